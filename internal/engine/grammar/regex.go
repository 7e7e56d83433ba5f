package grammar

import (
	"fmt"
	"regexp/syntax"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
)

// compileRegex reads a regular expression that all of a text must match.
func compileRegex(w *Work, text string) (*node, error) {
	p, err := w.pattern(text)
	if err != nil {
		return nil, err
	}
	return checked(regexNode(w, p.parsed), p.check(text)), nil
}

// check reports whether all of a text matches.
func (p *pattern) check(pattern string) func(*Work, []byte) error {
	return func(w *Work, text []byte) error {
		if !p.match(w, text, true) {
			return fmt.Errorf("no text was found that matches %q", safetext.Clip(pattern, maxShown))
		}
		return nil
	}
}

// A pattern is a regular expression. Its texts, as regexNode has them, disregard anchors
// and word boundaries, which stand for nothing there; match does not.
type pattern struct {
	parsed *syntax.Regexp
	prog   *syntax.Prog
}

// pattern compiles an expression once for each language. Its steps are counted before
// they are taken, as package regexp cannot be stopped: those of characters, of tables of
// Unicode, of ranges in which any case counts, and of repetitions written out.
func (w *Work) pattern(text string) (*pattern, error) {
	if p := w.known[text]; p != nil {
		return p, nil
	}
	if p := w.patterns[text]; p != nil {
		return p, nil
	}
	w.spend(20 + 6*len(text) + 1000*(strings.Count(text, `\p`)+strings.Count(text, `\P`)))
	if strings.Contains(text, "(?") {
		w.spend(foldedRanges(text))
	}
	goes, err := dialect(text)
	if err != nil {
		return nil, fmt.Errorf("regular expression: %w", err)
	}
	parsed, err := syntax.Parse(goes, syntax.Perl)
	if err != nil {
		return nil, fmt.Errorf("regular expression: %w", err)
	}
	size := instructions(parsed)
	w.spend(size)
	prog, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return nil, fmt.Errorf("regular expression: %w", err)
	}
	if w.patterns == nil {
		w.patterns = map[string]*pattern{}
	}
	p := &pattern{parsed, prog}
	w.patterns[text] = p
	w.kept += 64*size + 256*len(text)
	return p, nil
}

// foldedRanges is what ranges may take if any case counts: each of their characters is
// looked up. Those that end in ASCII are short.
func foldedRanges(text string) (steps int) {
	for i := 0; i+1 < len(text); i++ {
		switch next := text[i+1]; {
		case text[i] != '-':
		case next < utf8.RuneSelf && next != '\\':
			steps += 100
		default:
			steps += 20_000
		}
	}
	return steps
}

// instructions is about how many a program has.
func instructions(re *syntax.Regexp) int {
	sum := 2 + len(re.Rune)/8
	if re.Op == syntax.OpLiteral {
		sum = 1 + len(re.Rune)
	}
	for _, kid := range re.Sub {
		sum = plus(sum, instructions(kid))
	}
	if re.Op == syntax.OpRepeat {
		sum = times(max(re.Min+1, re.Max), sum)
	}
	return sum
}

// match reports whether text matches from its beginning to its end or, if whole is not
// set, somewhere. It goes through all ways at the same time, and counts them.
func (p *pattern) match(w *Work, text []byte, whole bool) bool {
	m := matcher{work: w, prog: p.prog, whole: whole, seen: make([]int, len(p.prog.Inst))}
	w.spend(1 + len(p.prog.Inst)/16)
	before := rune(-1)
	for at := 0; ; {
		r, n := rune(-1), 0
		if at < len(text) {
			r, n = utf8.DecodeRune(text[at:])
		}
		m.round++
		m.flags, m.last = syntax.EmptyOpContext(before, r), at == len(text)
		for _, pc := range m.next {
			m.follow(pc)
		}
		if at == 0 || !whole {
			m.follow(p.prog.Start)
		}
		if m.found || m.last {
			return m.found
		}
		m.next = m.next[:0]
		w.spend(1 + len(m.here))
		for _, pc := range m.here {
			if inst := &p.prog.Inst[pc]; inst.MatchRune(r) {
				m.next = append(m.next, int(inst.Out))
			}
		}
		if whole && len(m.next) == 0 {
			return false
		}
		before, m.here = r, m.here[:0]
		at += n
	}
}

// matcher is the state of one match at one place of the text.
type matcher struct {
	work  *Work
	prog  *syntax.Prog
	whole bool
	last  bool // this is the end of the text
	flags syntax.EmptyOp
	found bool
	round int
	seen  []int // the round in which an instruction was reached
	here  []int // instructions that want a rune
	next  []int // those after the rune
	todo  []int
}

// follow reaches an instruction, and all that it leads to without a rune.
func (m *matcher) follow(pc int) {
	m.todo = append(m.todo[:0], pc)
	for len(m.todo) > 0 {
		pc := m.todo[len(m.todo)-1]
		m.todo = m.todo[:len(m.todo)-1]
		if m.seen[pc] == m.round {
			continue
		}
		m.seen[pc] = m.round
		m.work.spend(1)
		switch inst := &m.prog.Inst[pc]; inst.Op {
		case syntax.InstAlt, syntax.InstAltMatch:
			m.todo = append(m.todo, int(inst.Out), int(inst.Arg))
		case syntax.InstCapture, syntax.InstNop:
			m.todo = append(m.todo, int(inst.Out))
		case syntax.InstEmptyWidth:
			if syntax.EmptyOp(inst.Arg)&^m.flags == 0 {
				m.todo = append(m.todo, int(inst.Out))
			}
		case syntax.InstMatch:
			m.found = m.found || m.last || !m.whole
		case syntax.InstFail:
		default:
			m.here = append(m.here, pc)
		}
	}
}

var unicodeEscape = lazyregexp.New(`\\(\\|u[0-9a-fA-F]{4}|Z)`)

// dialect writes what ECMAScript and Python know, and Go does not, as Go does. A brace that
// begins no repetition is refused, as xgrammar and llguidance do.
func dialect(text string) (string, error) {
	text = unicodeEscape().ReplaceAllStringFunc(text, func(s string) string {
		switch s[1] {
		case 'u':
			return `\x{` + s[2:] + `}`
		case 'Z':
			return `\z`
		}
		return s
	})
	var b strings.Builder
	unclosed := -1 // up to there no class is closed
	for i := 0; i < len(text); {
		end := i + 1
		switch text[i] {
		case '\\':
			end = min(i+2, len(text))
			if named := strings.IndexByte(text[end:], '}'); end < len(text) && text[end] == '{' && strings.IndexByte("pPx", text[end-1]) >= 0 && named > 0 {
				end += named + 1 // of \p{Greek}
			}
		case '[':
			if i <= unclosed {
				break
			}
			if at, closed := classEnd(text, i); closed {
				end = at
			} else {
				unclosed = at
			}
		case '{':
			if count := repeatCount(text[i:]); count != "" {
				b.WriteString(fewer(count))
				i += len(count)
				continue
			}
			return "", fmt.Errorf("the { at byte %d begins no number of repetitions such as {2} or {2,5}", i)
		}
		b.WriteString(text[i:end])
		i = end
	}
	return b.String(), nil
}

// classEnd is where a class ends that begins at start, or where it turns out not to be
// closed.
func classEnd(text string, start int) (end int, closed bool) {
	for i := start + 1; i < len(text); i++ {
		switch text[i] {
		case ']':
			return i + 1, true
		case '\\':
			if i++; i < len(text) && text[i] == '\n' {
				return i, false
			}
		}
	}
	return len(text), false
}

// repeatCount is a count such as {2}, {2,} or {2,3} that text begins with.
func repeatCount(text string) string {
	digits := func(i int) int {
		for i < len(text) && '0' <= text[i] && text[i] <= '9' {
			i++
		}
		return i
	}
	i := digits(1)
	if i > 1 && i < len(text) && text[i] == ',' {
		i = digits(i + 1)
	} else if i == 1 {
		return ""
	}
	if i == len(text) || text[i] != '}' {
		return ""
	}
	return text[:i+1]
}

// fewer lowers the upper bound of a repetition: Go allows no more than a
// thousand, and so many are never written.
func fewer(count string) string {
	low, high, ranged := strings.Cut(count[1:len(count)-1], ",")
	n, _ := strconv.Atoi(high)
	m, _ := strconv.Atoi(low)
	if !ranged || high == "" || n <= m+4*maxRunes {
		return count
	}
	return "{" + low + "," + strconv.Itoa(m+4*maxRunes) + "}"
}

func regexNode(w *Work, re *syntax.Regexp) *node {
	w.spend(2)
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
		return regexNode(w, re.Sub[0])
	case syntax.OpStar:
		return repeat(regexNode(w, re.Sub[0]), 0, -1)
	case syntax.OpPlus:
		return repeat(regexNode(w, re.Sub[0]), 1, -1)
	case syntax.OpQuest:
		return repeat(regexNode(w, re.Sub[0]), 0, 1)
	case syntax.OpRepeat:
		return repeat(regexNode(w, re.Sub[0]), re.Min, re.Max)
	case syntax.OpConcat:
		return sequence(regexNodes(w, re.Sub)...)
	case syntax.OpAlternate:
		return choice(regexNodes(w, re.Sub)...)
	}
	return literal("") // anchors and boundaries
}

func regexNodes(w *Work, all []*syntax.Regexp) []*node {
	var nodes []*node
	for _, re := range all {
		nodes = append(nodes, regexNode(w, re))
	}
	return nodes
}
