package grammar

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
)

// ebnf reads a grammar: rules "name ::= …" of which the first to be applied is
// root, or Lark's "name: …" with start (vllm/v1/structured_output/utils.py
// grammar_is_likely_lark).
type ebnf struct {
	work  *Work
	text  string
	at    int
	lark  bool
	empty bool // a sequence may be of nothing
	rules map[string]*node
	// defined are the rules that were read, and used the names in the order in which
	// they were met.
	defined map[string]bool
	used    []string
	inRule  string // begins the errors of a rule
}

// A misreading is what reading a grammar panics with.
type misreading struct{ err error }

func (g *ebnf) fail(format string, args ...any) { g.check(fmt.Errorf(format, args...)) }

func (g *ebnf) check(err error) {
	if err != nil {
		panic(misreading{fmt.Errorf("grammar: line %d: %s%w", 1+strings.Count(g.text[:min(g.at, len(g.text))], "\n"), g.inRule, err)})
	}
}

func compileGrammar(w *Work, text string, empty bool) (n *node, err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case misreading:
			err = p.err
		default:
			panic(p)
		}
	}()
	w.spend(len(text))
	g := &ebnf{work: w, text: text, lark: isLark(text), empty: empty, rules: map[string]*node{}, defined: map[string]bool{}}
	for g.space(true); g.at < len(g.text); g.space(true) {
		if g.lark && g.text[g.at] == '%' {
			g.directive()
		} else {
			g.definition()
		}
	}
	root := "root"
	if g.lark {
		root = "start"
	}
	if !g.defined[root] {
		return nil, fmt.Errorf("grammar: no rule %s", root)
	}
	for _, name := range g.used {
		if !g.defined[name] {
			return nil, fmt.Errorf("grammar: rule %q is used and nowhere defined", name)
		}
	}
	return g.rules[root], nil
}

func isLark(text string) bool {
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		line, _, _ = strings.Cut(line, "//")
		if strings.Contains(line, "::=") {
			return false
		}
	}
	return true
}

// rule is the node of a rule, which may be defined later.
func (g *ebnf) rule(name string) *node {
	n := g.rules[name]
	if n == nil {
		n = choice()
		g.rules[name] = n
	}
	return n
}

// definition reads one rule.
func (g *ebnf) definition() {
	if g.lark {
		g.take("?")
		g.take("!")
	}
	name := g.name()
	if name == "" {
		g.fail("expected a rule, found %s", g.here())
	}
	sign := "::="
	if g.lark {
		sign = ":"
		if g.take(".") {
			for g.at < len(g.text) && g.text[g.at] >= '0' && g.text[g.at] <= '9' {
				g.at++
			}
		}
	}
	g.space(false)
	if !g.take(sign) {
		g.fail("expected %q after %s, found %s", sign, name, g.here())
	}
	if g.defined[name] {
		g.fail("rule %q is defined a second time", name)
	}
	g.defined[name] = true
	g.inRule = "rule " + name + ": "
	body := g.alternatives(0)
	g.inRule = ""
	g.rule(name).kids = append(g.rule(name).kids, body)
}

// alternatives reads up to a closing bracket or the next rule.
func (g *ebnf) alternatives(depth int) *node {
	if depth > maxDepth {
		g.fail("nested more than %d deep", maxDepth)
	}
	all := choice()
	for {
		all.kids = append(all.kids, g.sequence(depth))
		g.space(true)
		if !g.take("|") {
			return all
		}
	}
}

func (g *ebnf) sequence(depth int) *node {
	all := sequence()
	for {
		g.space(depth > 0)
		if g.ended() {
			if len(all.kids) == 0 && !g.lark && !g.empty {
				g.fail("expected something to say, found %s", g.here())
			}
			return all
		}
		if g.lark && g.take("->") {
			g.space(false)
			g.name()
			continue
		}
		all.kids = append(all.kids, g.repeated(g.item(depth)))
	}
}

// ended reports whether a sequence ends here. A line ends it unless the next one
// goes on with an alternative, or is not a rule.
func (g *ebnf) ended() bool {
	if g.at >= len(g.text) {
		return true
	}
	switch g.text[g.at] {
	case '|', ')', ']':
		return true
	case '\n', '\r':
		return g.ruleFollows()
	}
	return false
}

var (
	nextEBNF = lazyregexp.New(`^\s*(?:(?:#[^\n]*)\s*)*(?:$|\||[\w.-]+\s*::=)`)
	nextLark = lazyregexp.New(`^\s*(?:(?:#|//)[^\n]*\s*)*(?:$|\||%|[?!]*[\w]+(?:\.\d+)?\s*:)`)
)

func (g *ebnf) ruleFollows() bool {
	g.work.spend(20)
	next := nextEBNF
	if g.lark {
		next = nextLark
	}
	if next().MatchString(g.text[g.at:]) {
		return true
	}
	g.space(true)
	return g.ended()
}

func (g *ebnf) item(depth int) *node {
	g.work.spend(4)
	switch c := g.text[g.at]; {
	case c == '"' || c == '\'' && g.lark:
		return g.quoted(c)
	case c == '(':
		return g.bracket(depth, ")")
	case c == '[' && g.lark:
		return repeat(g.bracket(depth, "]"), 0, 1)
	case c == '[':
		return g.class()
	case c == '/' && g.lark:
		m := slashedPattern().FindStringSubmatch(g.text[g.at:])
		if m == nil {
			g.fail("a regular expression has no / at its end")
		}
		g.at += len(m[0])
		n, err := compileRegex(g.work, strings.ReplaceAll(m[1], `\/`, "/"))
		g.check(err)
		return n
	case c == '.' && !g.lark:
		g.at++
		return &node{op: opClass, ranges: []rune{' ', '~'}}
	}
	name := g.name()
	if name == "" {
		g.fail("expected something to say, found %s", g.here())
	}
	g.used = append(g.used, name)
	return g.rule(name)
}

func (g *ebnf) bracket(depth int, end string) *node {
	g.at++
	if g.space(true); !g.lark && g.take(end) {
		return literal("")
	}
	n := g.alternatives(depth + 1)
	if g.space(true); !g.take(end) {
		g.fail("expected %q, found %s", end, g.here())
	}
	return n
}

// repeated reads the repetition after an item: * + ? {2,3}, or Lark's ~ 2..3.
func (g *ebnf) repeated(n *node) *node {
	for {
		g.work.spend(2)
		switch {
		case g.take("*"):
			n = repeat(n, 0, -1)
		case g.take("+"):
			n = repeat(n, 1, -1)
		case g.take("?"):
			n = repeat(n, 0, 1)
		case !g.lark && g.at < len(g.text) && g.text[g.at] == '{', g.lark && g.tilde():
			low, high := g.bounds()
			n = repeat(n, low, high)
		default:
			return n
		}
	}
}

func (g *ebnf) tilde() bool {
	before := g.at
	g.space(false)
	if g.at < len(g.text) && g.text[g.at] == '~' {
		return true
	}
	g.at = before
	return false
}

var counted = lazyregexp.New(`^(?:\{\s*(\d+)\s*(?:(,)\s*(\d*)\s*)?\}|~\s*(\d+)(?:(\.\.)(\d+))?)`)

func (g *ebnf) bounds() (low, high int) {
	g.work.spend(10)
	m := counted().FindStringSubmatch(g.text[g.at:])
	if m == nil {
		g.fail("expected a number of repetitions, found %s", g.here())
	}
	g.at += len(m[0])
	low, err := strconv.Atoi(m[1] + m[4])
	high = low
	if m[2]+m[5] != "" {
		if high = -1; m[3]+m[6] != "" {
			high, _ = strconv.Atoi(m[3] + m[6])
		}
	}
	if err != nil || low > longest || high >= 0 && high < low {
		g.fail("%s is not a number of repetitions", m[0])
	}
	return low, high
}

func (g *ebnf) quoted(quote byte) *node {
	var text strings.Builder
	for g.at++; g.at < len(g.text) && g.text[g.at] != quote; {
		if g.text[g.at] == '\n' {
			break
		}
		text.WriteRune(g.character())
	}
	if !g.take(string(quote)) {
		g.fail("a text has no %c at its end", quote)
	}
	if g.lark {
		g.take("i") // any case: this one, then
	}
	return literal(text.String())
}

// character reads one rune, which may be escaped.
func (g *ebnf) character() rune {
	if g.text[g.at] != '\\' {
		r, size := utf8.DecodeRuneInString(g.text[g.at:])
		g.at += size
		return r
	}
	if g.at+1 >= len(g.text) {
		g.fail("nothing follows a backslash")
	}
	c := g.text[g.at+1]
	g.at += 2
	switch c {
	case 'n':
		return '\n'
	case 't':
		return '\t'
	case 'r':
		return '\r'
	case 'x', 'u', 'U':
		end := min(g.at+map[byte]int{'x': 2, 'u': 4, 'U': 8}[c], len(g.text))
		code, err := strconv.ParseUint(g.text[g.at:end], 16, 32)
		if err != nil || !utf8.ValidRune(rune(code)) {
			g.fail("%q is not a character", g.text[g.at:end])
		}
		g.at = end
		return rune(code)
	}
	return rune(c)
}

// class reads [a-z] or [^a-z].
func (g *ebnf) class() *node {
	g.at++
	negated := g.take("^")
	var ranges []rune
	for g.at < len(g.text) && g.text[g.at] != ']' {
		low := g.character()
		high := low
		if g.at+1 < len(g.text) && g.text[g.at] == '-' && g.text[g.at+1] != ']' {
			g.at++
			high = g.character()
		}
		if high < low {
			g.fail("the range %c-%c is empty", low, high)
		}
		ranges = append(ranges, low, high)
	}
	if !g.take("]") {
		g.fail("a class has no ] at its end")
	}
	if negated {
		g.work.spend(20 + 10*len(ranges))
		ranges = others(ranges)
	}
	return &node{op: opClass, ranges: ranges}
}

// others are the printable runes that are not of a class.
func others(ranges []rune) []rune {
	var left []rune
	for r := ' '; r <= 0x17f; r++ {
		in := r >= 0x7f && r <= 0xa0
		for i := 0; i < len(ranges) && !in; i += 2 {
			in = ranges[i] <= r && r <= ranges[i+1]
		}
		if !in {
			left = append(left, r, r)
		}
	}
	return left
}

var slashedPattern = lazyregexp.New(`^/((?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n])+)/([imslux]*)`)

var namePattern = lazyregexp.New(`^[A-Za-z_][\w.-]*`)

func (g *ebnf) name() string {
	g.work.spend(10)
	name := namePattern().FindString(g.text[g.at:])
	if g.lark {
		name, _, _ = strings.Cut(name, ".")
		name, _, _ = strings.Cut(name, "-")
	}
	g.at += len(name)
	return name
}

func (g *ebnf) take(text string) bool {
	if !strings.HasPrefix(g.text[g.at:], text) {
		return false
	}
	g.at += len(text)
	return true
}

// space skips white space and comments, and the ends of lines if lines is set.
func (g *ebnf) space(lines bool) {
	for g.at < len(g.text) {
		switch c := g.text[g.at]; {
		case c == ' ', c == '\t', lines && (c == '\n' || c == '\r'):
			g.at++
		case c == '#', g.lark && strings.HasPrefix(g.text[g.at:], "//"):
			for g.at < len(g.text) && g.text[g.at] != '\n' {
				g.at++
			}
		default:
			return
		}
	}
}

// here is the beginning of what was not expected.
func (g *ebnf) here() string {
	rest := g.text[g.at:]
	if rest == "" {
		return "the end"
	}
	line, _, _ := strings.Cut(rest, "\n")
	return strconv.Quote(line[:min(len(line), 20)])
}

// common are the terminals of Lark's library.
var common = map[string]string{
	"WS": `\s+`, "WS_INLINE": `[ \t]+`, "NEWLINE": `\n`, "INT": `[0-9]+`, "SIGNED_INT": `[+-]?[0-9]+`, "DIGIT": `[0-9]`,
	"HEXDIGIT": `[0-9a-fA-F]`, "DECIMAL": `[0-9]+\.[0-9]+`, "FLOAT": `[0-9]+\.[0-9]+`, "SIGNED_FLOAT": `[+-]?[0-9]+\.[0-9]+`,
	"NUMBER": `[0-9]+(\.[0-9]+)?`, "SIGNED_NUMBER": `[+-]?[0-9]+(\.[0-9]+)?`, "ESCAPED_STRING": `"[a-z ]*"`,
	"LCASE_LETTER": `[a-z]`, "UCASE_LETTER": `[A-Z]`, "LETTER": `[a-zA-Z]`, "WORD": `[a-zA-Z]+`, "CNAME": `[a-zA-Z_]\w*`,
}

var (
	importPattern = lazyregexp.New(`^%import\s+common(?:\.(\w+)(?:\s*->\s*(\w+))?|\s*\(([^)]*)\))`)
	ignorePattern = lazyregexp.New(`^%ignore[^\n]*`)
)

// directive reads a line that begins with a percent sign. What %ignore allows
// between terminals is never written.
func (g *ebnf) directive() {
	g.work.spend(20)
	rest := g.text[g.at:]
	if m := ignorePattern().FindString(rest); m != "" {
		g.at += len(m)
		return
	}
	m := importPattern().FindStringSubmatch(rest)
	if m == nil {
		g.fail("directive not known: %s", g.here())
	}
	g.at += len(m[0])
	if m[3] != "" {
		for name := range strings.SplitSeq(m[3], ",") {
			g.library(strings.TrimSpace(name), strings.TrimSpace(name))
		}
		return
	}
	g.library(m[1], cmp.Or(m[2], m[1]))
}

func (g *ebnf) library(name, as string) {
	pattern, ok := common[name]
	if !ok {
		g.fail("%%import of unknown common.%s", name)
	}
	n, err := compileRegex(g.work, pattern)
	g.check(err)
	g.defined[as] = true
	g.rule(as).kids = []*node{n}
}
