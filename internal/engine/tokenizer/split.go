package tokenizer

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// splitter cuts a text into pieces, which no merge crosses.
type splitter interface {
	// split calls yield with the pieces of text, none of them empty, until that returns false. It reports whether it never did.
	split(text string, yield func(piece string) bool) bool
}

// gpt2Pattern is what ByteLevel splits by when use_regex is set.
const gpt2Pattern = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

// prefixSpace puts a space before a text that does not begin with one.
type prefixSpace struct{}

func (prefixSpace) split(text string, yield func(string) bool) bool {
	if text == "" {
		return true
	}
	if !strings.HasPrefix(text, " ") {
		text = " " + text
	}
	return yield(text)
}

// digits cuts a text before and behind numbers (\p{N}), or each digit of them.
type digits struct{ each bool }

func (d digits) split(text string, yield func(string) bool) bool {
	start, inNumber := 0, false
	for at, r := range text {
		is := unicode.IsNumber(r)
		if at > 0 && (is != inNumber || is && d.each) {
			if !yield(text[start:at]) {
				return false
			}
			start = at
		}
		inNumber = is
	}
	return text == "" || yield(text[start:])
}

// pattern cuts a text at the matches of a regular expression.
type pattern struct {
	re   *regexp.Regexp
	tail int // the group of \s+(?!\S); -1: there is none
	// scanner finds most matches in the place of re; nil without one.
	scanner *scanner
	// What is left out: matches, or what is between them.
	dropMatches, dropRest bool
}

func (p *pattern) split(text string, yield func(string) bool) bool {
	emit := func(piece string, drop bool) bool { return piece == "" || drop || yield(piece) }
	done, at := 0, 0
	for at < len(text) {
		start, stop, ok := p.find(text[at:])
		if !ok {
			break
		}
		start, stop = start+at, stop+at
		if start == stop { // a match of nothing cuts, and the search goes on behind the next character
			_, n := utf8.DecodeRuneInString(text[stop:])
			at = stop + max(n, 1)
			if !emit(text[done:start], p.dropRest) {
				return false
			}
			done = start
			continue
		}
		if !emit(text[done:start], p.dropRest) || !emit(text[start:stop], p.dropMatches) {
			return false
		}
		done, at = stop, stop
	}
	return emit(text[done:], p.dropRest)
}

// find returns the leftmost match. A run of white space that the lookahead ends early gives its last character back.
func (p *pattern) find(text string) (start, stop int, ok bool) {
	if p.scanner != nil {
		if n := p.scanner.find(text); n > 0 {
			return 0, n, true
		}
	}
	if p.tail < 0 {
		at := p.re.FindStringIndex(text)
		if at == nil {
			return 0, 0, false
		}
		return at[0], at[1], true
	}
	at := p.re.FindStringSubmatchIndex(text)
	if at == nil {
		return 0, 0, false
	}
	start, stop = at[0], at[1]
	if at[2*p.tail] >= 0 && stop < len(text) {
		_, last := utf8.DecodeLastRuneInString(text[start:stop])
		if stop-last > start {
			stop -= last
		}
	}
	return start, stop, true
}

// Unicode's White_Space, which \s means, and the rest, for use inside of [].
const (
	spaces    = `\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}`
	nonSpaces = `\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}` +
		`\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff}`
)

// lookahead is the one that package regexp need not know: a run of white space but for its last character, if something
// follows. What comes after it must take that one character.
const lookahead = `\s+(?!\S)`

// maxPattern bounds a regular expression. Those of released models have 500 bytes.
const maxPattern = 16 << 10

// newPattern translates an Oniguruma pattern for package regexp.
func newPattern(onig string) (*pattern, error) {
	if len(onig) > maxPattern {
		return nil, fmt.Errorf("a pattern of %d bytes: want at most %d", len(onig), maxPattern)
	}
	body, rest, tail := onig, "", -1
	for _, end := range []string{`|\s+`, `|\s`} {
		if before, ok := strings.CutSuffix(onig, lookahead+end); ok {
			body, rest, tail = before, `([`+spaces+`]+)`, 1
		}
	}
	translated, err := translate(body)
	if err == nil {
		var re *regexp.Regexp
		if re, err = regexp.Compile(translated + rest); err == nil {
			if tail > 0 {
				tail = re.NumSubexp()
			}
			return &pattern{re: re, tail: tail, scanner: scanners[onig]}, nil
		}
	}
	return nil, fmt.Errorf("pattern %.200q: %w", onig, err)
}

// translate writes out what the two kinds of regular expressions understand differently, and refuses what package
// regexp does not know but would take for something else.
func translate(onig string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(onig); {
		read := translateOutside
		if onig[i] == '[' {
			read = translateClass
		}
		text, n, err := read(onig[i:])
		if err != nil {
			return "", err
		}
		b.WriteString(text)
		i += n
	}
	return b.String(), nil
}

// translateOutside translates what onig begins with, n bytes, and that is no [].
func translateOutside(onig string) (text string, n int, err error) {
	switch c := onig[0]; {
	case c == '\\':
		return translateEscape(onig, false)
	case c == '^' || c == '$' || strings.HasPrefix(onig, "{,"):
		return "", 0, fmt.Errorf("%c is not supported", c)
	case strings.HasPrefix(onig, "(?"):
		for _, group := range []string{"(?:", "(?i:", "(?i)"} {
			if strings.HasPrefix(onig, group) {
				return group, len(group), nil
			}
		}
		return "", 0, fmt.Errorf("%.4s is not supported", onig)
	case c == '(':
		return "(?:", 1, nil // groups are for the lookahead
	}
	return onig[:1], 1, nil
}

// translateClass translates the [] that onig begins with.
func translateClass(onig string) (text string, n int, err error) {
	var b strings.Builder
	n = len("[")
	if strings.HasPrefix(onig, "[^") {
		n++
	}
	b.WriteString(onig[:n])
	for first := n; n < len(onig); {
		switch c := onig[n]; {
		case c == '\\':
			text, m, err := translateEscape(onig[n:], true)
			if err != nil {
				return "", 0, err
			}
			b.WriteString(text)
			n += m
			continue
		case c == '[' || c == ']' && n == first || strings.HasPrefix(onig[n:], "&&"):
			return "", 0, fmt.Errorf("%c at this place inside of [] is not supported", c)
		case c == ']':
			return b.String() + "]", n + 1, nil
		}
		b.WriteByte(onig[n])
		n++
	}
	return "", 0, errors.New("[ without ]")
}

// translateEscape translates the backslash and the character that onig begins with.
func translateEscape(onig string, inside bool) (text string, n int, err error) {
	if len(onig) < 2 {
		return "", 0, errors.New(`it ends in \`)
	}
	sets := map[byte]string{'s': spaces, 'S': nonSpaces, 'd': `\p{Nd}`}
	c := onig[1]
	switch set, ok := sets[c]; {
	case ok && inside:
		return set, 2, nil
	case ok:
		return "[" + set + "]", 2, nil
	case strings.IndexByte("nrtfvpPx", c) >= 0, c >= utf8.RuneSelf:
		return onig[:2], 2, nil
	case c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z':
		return "", 0, fmt.Errorf(`\%c is not supported`, c)
	}
	return `\` + string(c), 2, nil
}
