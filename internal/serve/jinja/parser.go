package jinja

import (
	"fmt"
	"slices"
	"strconv"
)

// A Template is a parsed template. It is safe for concurrent use.
type Template struct{ body []node }

// Parse reads a template.
func Parse(source string) (*Template, error) {
	tokens, err := lex(source)
	if err != nil {
		return nil, err
	}
	p := &parser{tokens: tokens}
	body, err := p.nodes()
	if err == nil && p.peek().kind != endOfFile {
		err = p.failed("{%% %s %%} ends nothing", p.tokens[p.at+1].text)
	}
	if err != nil {
		return nil, err
	}
	return &Template{body}, nil
}

// A node writes a part of the text. An expr has a value.
type (
	node interface{ run(r *runner) error }
	expr interface{ eval(r *runner) (any, error) }
)

type parser struct {
	tokens []token
	at     int
	depth  int
}

// deepest bounds how deep templates are nested.
const deepest = 200

func (p *parser) peek() token { return p.tokens[p.at] }

func (p *parser) next() token {
	t := p.tokens[p.at]
	if t.kind != endOfFile {
		p.at++
	}
	return t
}

func (p *parser) failed(format string, args ...any) error {
	return fmt.Errorf("line %d: %s", p.peek().line, fmt.Sprintf(format, args...))
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

func (p *parser) expect(text string) error {
	if !p.accept(text) {
		return p.failed("want %q, not %q", text, p.peek().text)
	}
	return nil
}

func (p *parser) name() (string, error) {
	if p.peek().kind != nameToken {
		return "", p.failed("want a name, not %q", p.peek().text)
	}
	return p.next().text, nil
}

func (p *parser) end() error {
	if p.peek().kind != endBlock {
		return p.failed("want %%}, not %q", p.peek().text)
	}
	p.at++
	return nil
}

// nodes parses up to a block that begins none, such as endif, and leaves that.
func (p *parser) nodes() (all []node, err error) {
	if p.depth++; p.depth > deepest {
		return nil, p.failed("nested more than %d deep", deepest)
	}
	defer func() { p.depth-- }()
	for {
		switch t := p.peek(); t.kind {
		case endOfFile:
			return all, nil
		case textToken:
			p.at++
			all = append(all, textNode(t.text))
		case beginPrint:
			p.at++
			e, err := p.tuple()
			if err != nil {
				return nil, err
			}
			if p.peek().kind != endPrint {
				return nil, p.failed("want }}, not %q", p.peek().text)
			}
			p.at++
			all = append(all, printNode{e})
		case beginBlock:
			word := p.tokens[p.at+1]
			parse := blocks[word.text]
			if word.kind != nameToken || parse == nil {
				if slices.Contains(enders, word.text) {
					return all, nil
				}
				return nil, p.failed("{%% %s %%} is not supported", word.text)
			}
			p.at += 2
			n, err := parse(p)
			if err != nil {
				return nil, err
			}
			if n != nil {
				all = append(all, n)
			}
		default:
			return nil, p.failed("unexpected %q", t.text)
		}
	}
}

var enders = []string{"elif", "else", "endif", "endfor", "endset", "endmacro", "endgeneration", "endfilter", "endcall"}

var blocks map[string]func(*parser) (node, error)

func init() {
	blocks = map[string]func(*parser) (node, error){
		"if": (*parser).ifBlock, "for": (*parser).forBlock, "set": (*parser).setBlock, "macro": (*parser).macroBlock,
		"break":    func(p *parser) (node, error) { return loopEnd{errBreak}, p.end() },
		"continue": func(p *parser) (node, error) { return loopEnd{errContinue}, p.end() },
		// What the model is trained to say is marked, and nothing else.
		"generation": func(p *parser) (node, error) {
			if err := p.end(); err != nil {
				return nil, err
			}
			body, err := p.until("endgeneration")
			return group(body), err
		},
	}
}

// until parses the body of a block up to its end, which has this name.
func (p *parser) until(name string) ([]node, error) {
	body, err := p.nodes()
	if err != nil {
		return nil, err
	}
	if p.peek().kind == endOfFile {
		return nil, p.failed("{%% %s %%} is missing", name)
	}
	p.at++
	if err := p.expect(name); err != nil {
		return nil, err
	}
	return body, p.end()
}

func (p *parser) ifBlock() (node, error) {
	test, err := p.tuple()
	if err == nil {
		err = p.end()
	}
	if err != nil {
		return nil, err
	}
	n := &ifNode{test: test}
	if n.then, err = p.nodes(); err != nil {
		return nil, err
	}
	if p.peek().kind == endOfFile {
		return nil, p.failed("{%% endif %%} is missing")
	}
	p.at++
	switch {
	case p.accept("elif"):
		other, err := p.ifBlock()
		n.otherwise = []node{other}
		return n, err
	case p.accept("else"):
		if err := p.end(); err != nil {
			return nil, err
		}
		n.otherwise, err = p.until("endif")
		return n, err
	case p.accept("endif"):
		return n, p.end()
	}
	return nil, p.failed("want {%% endif %%}, not %q", p.peek().text)
}

func (p *parser) forBlock() (node, error) {
	n := &forNode{}
	for {
		p.accept("(")
		name, err := p.name()
		if err != nil {
			return nil, err
		}
		n.names = append(n.names, name)
		p.accept(")")
		if !p.accept(",") {
			break
		}
	}
	err := p.expect("in")
	if err != nil {
		return nil, err
	}
	if n.over, err = p.or(); err != nil { // not a conditional: "if" is a filter of the loop
		return nil, err
	}
	if p.accept("if") {
		if n.filter, err = p.expression(); err != nil {
			return nil, err
		}
	}
	if err = p.end(); err != nil {
		return nil, err
	}
	if n.body, err = p.nodes(); err != nil {
		return nil, err
	}
	if p.peek().kind == endOfFile {
		return nil, p.failed("{%% endfor %%} is missing")
	}
	p.at++
	if p.accept("else") {
		if err := p.end(); err != nil {
			return nil, err
		}
		n.otherwise, err = p.until("endfor")
		return n, err
	}
	if err := p.expect("endfor"); err != nil {
		return nil, err
	}
	return n, p.end()
}

func (p *parser) setBlock() (node, error) {
	n := &setNode{}
	for {
		name, err := p.name()
		if err != nil {
			return nil, err
		}
		t := target{name: name}
		if p.accept(".") {
			if t.attribute, err = p.name(); err != nil {
				return nil, err
			}
		}
		n.targets = append(n.targets, t)
		if !p.accept(",") {
			break
		}
	}
	var err error
	if !p.accept("=") {
		if err = p.end(); err == nil {
			n.body, err = p.until("endset")
		}
		return n, err
	}
	if n.value, err = p.tuple(); err != nil {
		return nil, err
	}
	return n, p.end()
}

func (p *parser) macroBlock() (node, error) {
	n := &macroNode{}
	var err error
	if n.name, err = p.name(); err != nil {
		return nil, err
	}
	if err = p.expect("("); err != nil {
		return nil, err
	}
	for !p.accept(")") {
		name, err := p.name()
		if err != nil {
			return nil, err
		}
		var value expr
		if p.accept("=") {
			if value, err = p.expression(); err != nil {
				return nil, err
			}
		}
		n.parameters, n.defaults = append(n.parameters, name), append(n.defaults, value)
		if !p.accept(",") && !p.is(")") {
			return nil, p.failed("want a comma, not %q", p.peek().text)
		}
	}
	if err = p.end(); err != nil {
		return nil, err
	}
	n.body, err = p.until("endmacro")
	return n, err
}

// tuple parses expressions with commas between them.
func (p *parser) tuple() (expr, error) {
	first, err := p.expression()
	if err != nil || !p.is(",") {
		return first, err
	}
	all := listExpr{first}
	for p.accept(",") {
		if k := p.peek().kind; k == endBlock || k == endPrint {
			break
		}
		e, err := p.expression()
		if err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	return all, nil
}

func (p *parser) expression() (expr, error) {
	if p.depth++; p.depth > deepest {
		return nil, p.failed("nested more than %d deep", deepest)
	}
	defer func() { p.depth-- }()
	e, err := p.or()
	for err == nil && p.accept("if") {
		c := condExpr{then: e}
		if c.test, err = p.or(); err != nil {
			return nil, err
		}
		if p.accept("else") {
			if c.otherwise, err = p.expression(); err != nil {
				return nil, err
			}
		}
		e = c
	}
	return e, err
}

func (p *parser) or() (expr, error)  { return p.logical("or", (*parser).and) }
func (p *parser) and() (expr, error) { return p.logical("and", (*parser).not) }

func (p *parser) logical(word string, parse func(*parser) (expr, error)) (expr, error) {
	left, err := parse(p)
	for err == nil && p.accept(word) {
		var right expr
		right, err = parse(p)
		left = logicExpr{left, right, word == "or"}
	}
	return left, err
}

func (p *parser) not() (expr, error) {
	if p.accept("not") {
		e, err := p.not()
		return notExpr{e}, err
	}
	return p.compare()
}

func (p *parser) compare() (expr, error) {
	left, err := p.binary(0)
	if err != nil {
		return nil, err
	}
	var all compareExpr
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
		right, err := p.binary(0)
		if err != nil {
			return nil, err
		}
		all.ops, all.right = append(all.ops, op), append(all.right, right)
	}
	if all.ops == nil {
		return left, nil
	}
	all.left = left
	return all, nil
}

// levels are the operators of two values, the weakest first.
var levels = [][]string{{"+", "-"}, {"~"}, {"*", "/", "//", "%"}, {"**"}}

func (p *parser) binary(level int) (expr, error) {
	if level == len(levels) {
		return p.unary(true)
	}
	left, err := p.binary(level + 1)
	for err == nil && p.peek().kind == opToken && slices.Contains(levels[level], p.peek().text) {
		op := p.next().text
		var right expr
		right, err = p.binary(level + 1)
		left = binaryExpr{op, left, right}
	}
	return left, err
}

func (p *parser) unary(filters bool) (e expr, err error) {
	switch {
	case p.accept("-"):
		e, err = p.unary(false)
		e = negExpr{e}
	case p.accept("+"):
		e, err = p.unary(false)
	default:
		if e, err = p.primary(); err == nil {
			e, err = p.postfix(e)
		}
	}
	if err == nil && filters {
		e, err = p.filters(e)
	}
	return e, err
}

func (p *parser) primary() (expr, error) {
	t := p.next()
	switch t.kind {
	case stringToken:
		text := t.text
		for p.peek().kind == stringToken {
			text += p.next().text
		}
		return constExpr{text}, nil
	case numberToken:
		if n, err := strconv.ParseInt(t.text, 10, 64); err == nil {
			return constExpr{n}, nil
		}
		f, err := strconv.ParseFloat(t.text, 64)
		if err != nil {
			return nil, p.failed("number %q", t.text)
		}
		return constExpr{f}, nil
	case nameToken:
		switch t.text {
		case "true", "True":
			return constExpr{true}, nil
		case "false", "False":
			return constExpr{false}, nil
		case "none", "None":
			return constExpr{nil}, nil
		}
		return nameExpr(t.text), nil
	}
	switch t.text {
	case "(":
		var all listExpr
		comma := false
		for !p.accept(")") {
			e, err := p.expression()
			if err != nil {
				return nil, err
			}
			if all = append(all, e); p.accept(",") {
				comma = true
			} else if !p.is(")") {
				return nil, p.failed("want ), not %q", p.peek().text)
			}
		}
		if len(all) == 1 && !comma {
			return all[0], nil
		}
		return all, nil
	case "[":
		all := listExpr{}
		for !p.accept("]") {
			e, err := p.expression()
			if err != nil {
				return nil, err
			}
			if all = append(all, e); !p.accept(",") && !p.is("]") {
				return nil, p.failed("want ], not %q", p.peek().text)
			}
		}
		return all, nil
	case "{":
		var all dictExpr
		for !p.accept("}") {
			key, err := p.expression()
			if err == nil {
				err = p.expect(":")
			}
			var value expr
			if err == nil {
				value, err = p.expression()
			}
			if err != nil {
				return nil, err
			}
			if all = append(all, [2]expr{key, value}); !p.accept(",") && !p.is("}") {
				return nil, p.failed("want }, not %q", p.peek().text)
			}
		}
		return all, nil
	}
	p.at--
	return nil, p.failed("unexpected %q", t.text)
}

func (p *parser) postfix(e expr) (expr, error) {
	for {
		switch {
		case p.accept("."):
			t := p.next()
			if t.kind != nameToken && t.kind != numberToken {
				return nil, p.failed("want a name behind the dot, not %q", t.text)
			}
			e = attrExpr{e, constExpr{t.text}, true}
		case p.accept("["):
			index, err := p.subscript()
			if err != nil {
				return nil, err
			}
			if s, ok := index.(sliceExpr); ok {
				s.of = e
				e = s
			} else {
				e = attrExpr{e, index, false}
			}
		case p.is("("):
			args, err := p.arguments()
			if err != nil {
				return nil, err
			}
			e = callExpr{e, args, p.peek().line}
		default:
			return e, nil
		}
	}
}

// subscript parses what stands in brackets behind a value.
func (p *parser) subscript() (expr, error) {
	var parts [3]expr
	n, slice := 0, false
	for !p.accept("]") {
		if p.accept(":") {
			slice = true
			if n++; n > 2 {
				return nil, p.failed("a slice has at most three parts")
			}
			continue
		}
		e, err := p.expression()
		if err != nil {
			return nil, err
		}
		parts[n] = e
	}
	if !slice {
		if parts[0] == nil {
			return nil, p.failed("nothing stands in the brackets")
		}
		return parts[0], nil
	}
	return sliceExpr{from: parts[0], to: parts[1], step: parts[2]}, nil
}

// arguments are those of a call, in parentheses.
type arguments struct {
	plain []expr
	names []string
	named []expr
}

func (p *parser) arguments() (a arguments, err error) {
	p.at++ // (
	for !p.accept(")") {
		if p.peek().kind == nameToken && p.tokens[p.at+1].text == "=" && p.tokens[p.at+1].kind == opToken {
			a.names = append(a.names, p.next().text)
			p.at++
			e, err := p.expression()
			if err != nil {
				return a, err
			}
			a.named = append(a.named, e)
		} else {
			e, err := p.expression()
			if err != nil {
				return a, err
			}
			a.plain = append(a.plain, e)
		}
		if !p.accept(",") && !p.is(")") {
			return a, p.failed("want ), not %q", p.peek().text)
		}
	}
	return a, nil
}

// filters parses filters and tests behind a value.
func (p *parser) filters(e expr) (expr, error) {
	for {
		switch {
		case p.accept("|"):
			name, err := p.name()
			if err != nil {
				return nil, err
			}
			f := filterExpr{of: e, name: name, line: p.peek().line}
			if filters[name] == nil {
				return nil, p.failed("the filter %s is not supported", name)
			}
			if p.is("(") {
				if f.args, err = p.arguments(); err != nil {
					return nil, err
				}
			}
			e = f
		case p.accept("is"):
			t := testExpr{of: e, not: p.accept("not")}
			var err error
			if t.name, err = p.name(); err != nil {
				return nil, err
			}
			if tests[t.name] == nil {
				return nil, p.failed("the test %s is not supported", t.name)
			}
			switch k := p.peek(); {
			case p.is("("):
				if t.args, err = p.arguments(); err != nil {
					return nil, err
				}
			case k.kind == stringToken || k.kind == numberToken || k.kind == nameToken && !slices.Contains([]string{"and", "or", "not", "if", "else", "is", "in"}, k.text):
				arg, err := p.primary()
				if err == nil {
					arg, err = p.postfix(arg)
				}
				if err != nil {
					return nil, err
				}
				t.args.plain = []expr{arg}
			}
			e = t
		case p.is("("):
			args, err := p.arguments()
			if err != nil {
				return nil, err
			}
			e = callExpr{e, args, p.peek().line}
		default:
			return e, nil
		}
	}
}
