package grammar

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
)

// compileRegex reads a regular expression that all of a text must match.
func compileRegex(pattern string) (*node, error) {
	root, re, err := readRegex(pattern)
	if err != nil {
		return nil, err
	}
	return checked(root, func(text []byte) error {
		if !re.Match(text) {
			return fmt.Errorf("no text was found that matches %q", pattern)
		}
		return nil
	}), nil
}

// readRegex returns the texts that an expression matches, as far as its anchors
// and word boundaries, which stand for nothing there, do not matter, and what
// tells whether they do.
func readRegex(pattern string) (*node, *regexp.Regexp, error) {
	pattern = dialect(pattern)
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return nil, nil, fmt.Errorf("regular expression: %w", err)
	}
	re, err := regexp.Compile(`\A(?:` + pattern + `)\z`)
	if err != nil {
		return nil, nil, fmt.Errorf("regular expression: %w", err)
	}
	return regexNode(parsed), re, nil
}

var (
	unicodeEscape = lazyregexp.New(`\\(\\|u[0-9a-fA-F]{4}|Z)`)
	repeatCount   = lazyregexp.New(`\\.|\[(?:\\.|[^\]\\])*\]|\{\d+(?:,\d*)?\}`)
)

// dialect writes what ECMAScript and Python know, and Go does not, as Go does.
func dialect(pattern string) string {
	pattern = unicodeEscape().ReplaceAllStringFunc(pattern, func(s string) string {
		switch s[1] {
		case 'u':
			return `\x{` + s[2:] + `}`
		case 'Z':
			return `\z`
		}
		return s
	})
	return repeatCount().ReplaceAllStringFunc(pattern, func(s string) string {
		if s[0] != '{' {
			return s
		}
		return fewer(s)
	})
}

// fewer lowers the upper bound of a repetition: Go allows no more than a
// thousand, and so many are never written.
func fewer(count string) string {
	low, high, ranged := strings.Cut(count[1:len(count)-1], ",")
	n, _ := strconv.Atoi(high)
	m, _ := strconv.Atoi(low)
	if !ranged || high == "" || n <= m+4*mostRunes {
		return count
	}
	return "{" + low + "," + strconv.Itoa(m+4*mostRunes) + "}"
}

func regexNode(re *syntax.Regexp) *node {
	switch re.Op {
	case syntax.OpNoMatch:
		return choice()
	case syntax.OpLiteral:
		return literal(string(re.Rune))
	case syntax.OpCharClass:
		return &node{op: opClass, ranges: re.Rune}
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return &node{op: opClass, ranges: []rune{' ', '~', 0xa1, 0x17f}}
	case syntax.OpCapture:
		return regexNode(re.Sub[0])
	case syntax.OpStar:
		return repeat(regexNode(re.Sub[0]), 0, -1)
	case syntax.OpPlus:
		return repeat(regexNode(re.Sub[0]), 1, -1)
	case syntax.OpQuest:
		return repeat(regexNode(re.Sub[0]), 0, 1)
	case syntax.OpRepeat:
		return repeat(regexNode(re.Sub[0]), re.Min, re.Max)
	case syntax.OpConcat:
		return sequence(regexNodes(re.Sub)...)
	case syntax.OpAlternate:
		return choice(regexNodes(re.Sub)...)
	}
	return literal("") // anchors and boundaries
}

func regexNodes(all []*syntax.Regexp) []*node {
	var nodes []*node
	for _, re := range all {
		nodes = append(nodes, regexNode(re))
	}
	return nodes
}
