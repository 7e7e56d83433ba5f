package jinja

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A Template is a parsed template. It is safe for concurrent use.
type Template struct{ body []node }

// Parse reads a template, of at most 256 KiB.
func Parse(source string) (t *Template, err error) {
	defer recovered(&err)
	if len(source) > maxSource {
		fail("the chat template has %d bytes: want at most %d", len(source), maxSource)
	}
	p := &parser{tokens: lex(source)}
	body := p.nodes()
	if p.peek().kind != endOfFile {
		p.fail("{%% %s %%} ends nothing", p.tokens[p.at+1].text)
	}
	return &Template{body}, nil
}

// A node writes a part of the text. An expr has a value.
type (
	node interface{ run(r *runner) jump }
	expr interface{ eval(r *runner) any }
)

type parser struct {
	tokens []token
	at     int
	depth  int
}

func (p *parser) peek() token { return p.tokens[p.at] }

func (p *parser) next() token {
	t := p.tokens[p.at]
	if t.kind != endOfFile {
		p.at++
	}
	return t
}

func (p *parser) fail(format string, args ...any) {
	fail("line %d: %s", p.peek().line, fmt.Sprintf(format, args...))
}

// is reports whether the next token is this operator or name.
func (p *parser) is(text string) bool {
	t := p.peek()
	return (t.kind == opToken || t.kind == nameToken) && t.text == text
}

func (p *parser) accept(text string) bool {
	if p.is(text) {
		p.at++
		return true
	}
	return false
}

func (p *parser) expect(text string) {
	if !p.accept(text) {
		p.fail("want %q, not %q", text, p.peek().text)
	}
}

func (p *parser) expectKind(k kind, want string) token {
	if p.peek().kind != k {
		p.fail("want %s, not %q", want, p.peek().text)
	}
	return p.next()
}

func (p *parser) name() string { return p.expectKind(nameToken, "a name").text }

func (p *parser) end() { p.expectKind(endBlock, "%}") }

// deeper counts how deep the parser is until the function that it returns is called.
func (p *parser) deeper() func() {
	if p.depth++; p.depth > maxNesting {
		p.fail("nested more than %d deep", maxNesting)
	}
	return func() { p.depth-- }
}

// nodes parses up to a block that begins none, such as endif, and leaves that.
func (p *parser) nodes() (all []node) {
	defer p.deeper()()
	for {
		switch t := p.peek(); t.kind {
		case endOfFile:
			return all
		case textToken:
			p.at++
			all = append(all, textNode(t.text))
		case beginPrint:
			p.at++
			all = append(all, printNode{p.tuple()})
			p.expectKind(endPrint, "}}")
		case beginBlock:
			word := p.tokens[p.at+1]
			if slices.Contains(enders, word.text) {
				return all
			}
			p.at++
			all = append(all, p.block(p.name()))
		default:
			p.fail("unexpected %q", t.text)
		}
	}
}

var enders = []string{"elif", "else", "endif", "endfor", "endset", "endmacro", "endgeneration", "endfilter", "endcall"}

func (p *parser) block(name string) node {
	switch name {
	case "if":
		return p.ifBlock()
	case "for":
		return p.forBlock()
	case "set":
		return p.setBlock()
	case "macro":
		return p.macroBlock()
	case "break", "continue":
		p.end()
		return jump(name)
	case "generation": // it marks what the model is trained to answer, and writes nothing itself
		p.end()
		return group(p.until("endgeneration"))
	}
	p.at--
	p.fail("{%% %s %%} is not supported", name)
	return nil
}

// body parses the body of a block whose end has this name, up to the name of the block that follows it.
func (p *parser) body(end string) []node {
	body := p.nodes()
	if p.peek().kind == endOfFile {
		p.fail("{%% %s %%} is missing", end)
	}
	p.at++
	return body
}

// until parses the body of a block up to its end, which has this name.
func (p *parser) until(end string) []node {
	body := p.body(end)
	p.expect(end)
	p.end()
	return body
}

func (p *parser) ifBlock() node {
	defer p.deeper()()
	n := &ifNode{test: p.tuple()}
	p.end()
	n.then = p.body("endif")
	switch {
	case p.accept("elif"):
		n.otherwise = []node{p.ifBlock()}
	case p.accept("else"):
		p.end()
		n.otherwise = p.until("endif")
	case p.accept("endif"):
		p.end()
	default:
		p.fail("want {%% endif %%}, not %q", p.peek().text)
	}
	return n
}

func (p *parser) forBlock() node {
	n := &forNode{}
	for more := true; more; more = p.accept(",") {
		p.accept("(")
		n.names = append(n.names, p.name())
		p.accept(")")
	}
	p.expect("in")
	n.over = p.or() // not a conditional: "if" is a filter of the loop
	if p.accept("if") {
		n.filter = p.expression()
	}
	p.end()
	if n.body = p.body("endfor"); p.accept("else") {
		p.end()
		n.otherwise = p.until("endfor")
		return n
	}
	p.expect("endfor")
	p.end()
	return n
}

func (p *parser) setBlock() node {
	n := &setNode{}
	for more := true; more; more = p.accept(",") {
		t := target{name: p.name()}
		if p.accept(".") {
			t.attribute = p.name()
		}
		n.targets = append(n.targets, t)
	}
	if p.accept("=") {
		n.value = p.tuple()
		p.end()
	} else {
		p.end()
		n.body = p.until("endset")
	}
	return n
}

func (p *parser) macroBlock() node {
	n := &macroNode{name: p.name()}
	p.expect("(")
	for !p.accept(")") {
		name, value := p.name(), expr(nil)
		if p.accept("=") {
			value = p.expression()
		}
		n.parameters, n.defaults = append(n.parameters, name), append(n.defaults, value)
		p.comma(")", "a comma")
	}
	p.end()
	n.body = p.until("endmacro")
	return n
}

// comma takes a comma, which may be absent before the end of a list. It reports whether there is one.
func (p *parser) comma(end, want string) bool {
	has := p.accept(",")
	if !has && !p.is(end) {
		p.fail("want %s, not %q", want, p.peek().text)
	}
	return has
}

// tuple parses expressions with commas between them.
func (p *parser) tuple() expr {
	first := p.expression()
	if !p.is(",") {
		return first
	}
	all := listExpr{first}
	for p.accept(",") {
		if k := p.peek().kind; k == endBlock || k == endPrint {
			break
		}
		all = append(all, p.expression())
	}
	return all
}

func (p *parser) expression() expr {
	defer p.deeper()()
	e := p.or()
	for p.accept("if") {
		c := condExpr{then: e, test: p.or()}
		if p.accept("else") {
			c.otherwise = p.expression()
		}
		e = c
	}
	return e
}

func (p *parser) or() expr  { return p.logical("or", (*parser).and) }
func (p *parser) and() expr { return p.logical("and", (*parser).not) }

func (p *parser) logical(word string, parse func(*parser) expr) expr {
	left := parse(p)
	for p.accept(word) {
		left = logicExpr{left, parse(p), word == "or"}
	}
	return left
}

func (p *parser) not() expr {
	if p.accept("not") {
		defer p.deeper()()
		return notExpr{p.not()}
	}
	return p.compare()
}

func (p *parser) compare() expr {
	all := compareExpr{left: p.binary(0)}
	for {
		op := ""
		switch t := p.peek(); {
		case t.kind == opToken && slices.Contains([]string{"==", "!=", "<", ">", "<=", ">="}, t.text):
			op = p.next().text
		case p.is("in"):
			op = p.next().text
		case p.is("not") && p.tokens[p.at+1].text == "in":
			p.at += 2
			op = "not in"
		}
		if op == "" {
			break
		}
		all.ops, all.right = append(all.ops, op), append(all.right, p.binary(0))
	}
	if all.ops == nil {
		return all.left
	}
	return all
}

// levels are the operators of two values, the weakest first.
var levels = [][]string{{"+", "-"}, {"~"}, {"*", "/", "//", "%"}, {"**"}}

func (p *parser) binary(level int) expr {
	if level == len(levels) {
		return p.unary(true)
	}
	left := p.binary(level + 1)
	for p.peek().kind == opToken && slices.Contains(levels[level], p.peek().text) {
		op := p.next().text
		left = binaryExpr{op, left, p.binary(level + 1)}
	}
	return left
}

func (p *parser) unary(filters bool) (e expr) {
	switch {
	case p.accept("-"):
		defer p.deeper()()
		e = negExpr{p.unary(false)}
	case p.accept("+"):
		defer p.deeper()()
		e = p.unary(false)
	default:
		e = p.postfix(p.primary())
	}
	if filters {
		e = p.filters(e)
	}
	return e
}

func (p *parser) primary() expr {
	t := p.next()
	switch t.kind {
	case stringToken:
		var text strings.Builder
		for text.WriteString(t.text); p.peek().kind == stringToken; {
			text.WriteString(p.next().text)
		}
		return constExpr{text.String()}
	case numberToken:
		if n, err := strconv.ParseInt(t.text, 10, 64); err == nil {
			return constExpr{n}
		}
		f, err := strconv.ParseFloat(t.text, 64)
		if err != nil {
			p.fail("number %q", t.text)
		}
		return constExpr{f}
	case nameToken:
		switch t.text {
		case "true", "True":
			return constExpr{true}
		case "false", "False":
			return constExpr{false}
		case "none", "None":
			return constExpr{nil}
		}
		return nameExpr(t.text)
	}
	switch t.text {
	case "(":
		var all listExpr
		comma := false
		for !p.accept(")") {
			all = append(all, p.expression())
			comma = p.comma(")", ")") || comma
		}
		if len(all) == 1 && !comma {
			return all[0]
		}
		return all
	case "[":
		all := listExpr{}
		for !p.accept("]") {
			all = append(all, p.expression())
			p.comma("]", "]")
		}
		return all
	case "{":
		var all dictExpr
		for !p.accept("}") {
			key := p.expression()
			p.expect(":")
			all = append(all, [2]expr{key, p.expression()})
			p.comma("}", "}")
		}
		return all
	}
	p.at--
	p.fail("unexpected %q", t.text)
	return nil
}

func (p *parser) postfix(e expr) expr {
	for {
		switch {
		case p.accept("."):
			t := p.next()
			if t.kind != nameToken && t.kind != numberToken {
				p.fail("want a name behind the dot, not %q", t.text)
			}
			e = attrExpr{e, constExpr{t.text}, true}
		case p.accept("["):
			index := p.subscript()
			if s, ok := index.(sliceExpr); ok {
				s.of = e
				e = s
			} else {
				e = attrExpr{e, index, false}
			}
		case p.is("("):
			e = callExpr{e, p.arguments(), p.peek().line}
		default:
			return e
		}
	}
}

// subscript parses the brackets behind a value.
func (p *parser) subscript() expr {
	var parts [3]expr
	n, slice := 0, false
	for !p.accept("]") {
		if p.accept(":") {
			slice = true
			if n++; n > 2 {
				p.fail("a slice has at most three parts")
			}
			continue
		}
		if parts[n] != nil {
			p.fail("want ], not %q", p.peek().text)
		}
		parts[n] = p.expression()
	}
	switch {
	case slice:
		return sliceExpr{from: parts[0], to: parts[1], step: parts[2]}
	case parts[0] == nil:
		p.fail("the brackets are empty")
	}
	return parts[0]
}

// arguments are those of a call, in parentheses.
type arguments struct {
	plain []expr
	names []string
	named []expr
}

func (p *parser) arguments() (a arguments) {
	p.at++ // (
	for !p.accept(")") {
		if p.peek().kind == nameToken && p.tokens[p.at+1].text == "=" && p.tokens[p.at+1].kind == opToken {
			a.names = append(a.names, p.next().text)
			p.at++
			a.named = append(a.named, p.expression())
		} else {
			a.plain = append(a.plain, p.expression())
		}
		p.comma(")", ")")
	}
	return a
}

// filters parses filters and tests behind a value.
func (p *parser) filters(e expr) expr {
	for {
		switch {
		case p.accept("|"):
			name := p.name()
			f := filterExpr{of: e, name: name, line: p.peek().line}
			if filters[name] == nil {
				p.fail("the filter %s is not supported", name)
			}
			if p.is("(") {
				f.args = p.arguments()
			}
			e = f
		case p.accept("is"):
			t := testExpr{of: e, not: p.accept("not"), name: p.name()}
			if tests[t.name] == nil {
				p.fail("the test %s is not supported", t.name)
			}
			switch k := p.peek(); {
			case p.is("("):
				t.args = p.arguments()
			case k.kind == stringToken || k.kind == numberToken || k.kind == nameToken && !slices.Contains([]string{"and", "or", "not", "if", "else", "is", "in"}, k.text):
				t.args.plain = []expr{p.postfix(p.primary())}
			}
			e = t
		case p.is("("):
			e = callExpr{e, p.arguments(), p.peek().line}
		default:
			return e
		}
	}
}
