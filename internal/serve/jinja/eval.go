package jinja

import (
	"iter"
	"math"
	"slices"
	"strings"
	"time"
)

// Values are nil (none), bool, int64, float64, string, *List, *Dict, undefined, and functions.
type (
	// A List is a list of Python.
	List struct{ Items []any }
	// A Dict keeps the order of its keys, which are texts or numbers.
	Dict struct {
		keys   []any
		values map[any]any
	}
	undefined struct{ name string }
	function  func(r *runner, args []any, named map[string]any) any
)

// Get returns the value of a key.
func (d *Dict) Get(key any) (value any, ok bool) {
	value, ok = d.values[key]
	return value, ok
}

// Set sets the value of a key. A new key is the last one.
func (d *Dict) Set(key, value any) {
	if d.values == nil {
		d.values = map[any]any{}
	}
	if _, ok := d.values[key]; !ok {
		d.keys = append(d.keys, key)
	}
	d.values[key] = value
}

// A runner runs a template once.
type runner struct {
	out   *strings.Builder
	scope *scope
	now   time.Time
	steps int
	depth int
}

// mostSteps bounds the work of one run: a loop in a loop over a long chat could take for ever.
const mostSteps = 1_000_000

func (r *runner) step() {
	if r.steps++; r.steps > mostSteps {
		fail("the chat template takes too long")
	}
}

// A scope holds variables. Those of the scopes around it can be read.
type scope struct {
	vars   map[string]any
	parent *scope
}

func (s *scope) get(name string) (any, bool) {
	for ; s != nil; s = s.parent {
		if v, ok := s.vars[name]; ok {
			return v, true
		}
	}
	return nil, false
}

func (s *scope) set(name string, value any) {
	if s.vars == nil {
		s.vars = map[string]any{}
	}
	s.vars[name] = value
}

// Run writes the text of the template with these variables. now is the time of strftime_now.
func (t *Template) Run(vars map[string]any, now time.Time) (text string, err error) {
	defer recovered(&err)
	r := &runner{out: new(strings.Builder), scope: &scope{vars: globals()}, now: now}
	r.scope = &scope{parent: r.scope}
	for name, value := range vars {
		r.scope.set(name, value)
	}
	r.runWhole(t.body)
	return r.out.String(), nil
}

func globals() map[string]any {
	return map[string]any{
		"raise_exception": function(func(_ *runner, args []any, _ map[string]any) any {
			fail("%s", strings.Join(texts(args), " "))
			return nil
		}),
		"strftime_now": function(func(r *runner, args []any, _ map[string]any) any {
			return strftime(r.now, strings.Join(texts(args), ""))
		}),
		"namespace": function(newDict), "dict": function(newDict), "range": function(newRange),
	}
}

func newDict(_ *runner, args []any, named map[string]any) any {
	d := &Dict{}
	for _, a := range args {
		from, ok := a.(*Dict)
		if !ok {
			fail("dict of %s", typeName(a))
		}
		for _, k := range from.keys {
			d.Set(k, from.values[k])
		}
	}
	for name, value := range named {
		d.Set(name, value)
	}
	return d
}

// longestRange bounds range().
const longestRange = 1 << 20

func newRange(_ *runner, args []any, _ map[string]any) any {
	numbers := []int64{0, 0, 1}
	for i, a := range args {
		n, ok := a.(int64)
		if !ok || i > 2 {
			fail("range wants one to three numbers")
		}
		if numbers[i] = n; len(args) == 1 {
			numbers[0], numbers[1] = 0, n
		}
	}
	from, to, step := numbers[0], numbers[1], numbers[2]
	l := &List{}
	if step == 0 || (to-from)/step > longestRange {
		fail("range from %d to %d in steps of %d", from, to, step)
	}
	for n := from; step > 0 && n < to || step < 0 && n > to; n += step {
		l.Items = append(l.Items, n)
	}
	return l
}

func texts(args []any) (all []string) {
	for _, a := range args {
		all = append(all, toText(a))
	}
	return all
}

// A jump is what ends a body early; "" is nothing. It is also the block that does so.
type jump string

const (
	breaks    jump = "break"
	continues jump = "continue"
)

func (j jump) run(*runner) jump { return j }

func (r *runner) runAll(body []node) jump {
	for _, n := range body {
		r.step()
		if j := n.run(r); j != "" {
			return j
		}
	}
	return ""
}

// runWhole runs a body that is in no loop.
func (r *runner) runWhole(body []node) {
	if j := r.runAll(body); j != "" {
		fail("%s outside of a loop", j)
	}
}

// captured runs a body, and returns what it writes.
func (r *runner) captured(body []node, in *scope) string {
	inner := *r
	inner.out, inner.scope = new(strings.Builder), in
	if inner.depth++; inner.depth > deepest {
		fail("macros call each other more than %d deep", deepest)
	}
	inner.runWhole(body)
	r.steps = inner.steps
	return inner.out.String()
}

type textNode string

func (n textNode) run(r *runner) jump { r.out.WriteString(string(n)); return "" }

type group []node

func (n group) run(r *runner) jump { return r.runAll(n) }

type printNode struct{ value expr }

func (n printNode) run(r *runner) jump { r.out.WriteString(toText(n.value.eval(r))); return "" }

type ifNode struct {
	test            expr
	then, otherwise []node
}

func (n *ifNode) run(r *runner) jump {
	if truth(n.test.eval(r)) {
		return r.runAll(n.then)
	}
	return r.runAll(n.otherwise)
}

type forNode struct {
	names           []string
	over, filter    expr
	body, otherwise []node
}

func (n *forNode) run(r *runner) jump {
	items := itemsOf(n.over.eval(r))
	outer := r.scope
	defer func() { r.scope = outer }()
	if n.filter != nil {
		items = slices.DeleteFunc(slices.Clone(items), func(item any) bool {
			r.scope = &scope{parent: outer}
			n.bind(r.scope, item)
			return !truth(n.filter.eval(r))
		})
	}
	if len(items) == 0 {
		r.scope = outer
		return r.runAll(n.otherwise)
	}
	for i, item := range items {
		r.step()
		r.scope = &scope{parent: outer}
		r.scope.set("loop", &loop{items, i})
		n.bind(r.scope, item)
		if r.runAll(n.body) == breaks {
			break
		}
	}
	return ""
}

func (n *forNode) bind(s *scope, item any) {
	if len(n.names) == 1 {
		s.set(n.names[0], item)
		return
	}
	parts, err := iterate(item)
	if err != nil || len(parts) != len(n.names) {
		fail("a loop over %d names gets %s", len(n.names), typeName(item))
	}
	for i, name := range n.names {
		s.set(name, parts[i])
	}
}

// loop is the variable of that name.
type loop struct {
	items []any
	at    int
}

func (l *loop) attribute(name string) any {
	n := len(l.items)
	switch name {
	case "index":
		return int64(l.at + 1)
	case "index0":
		return int64(l.at)
	case "revindex":
		return int64(n - l.at)
	case "revindex0":
		return int64(n - l.at - 1)
	case "first":
		return l.at == 0
	case "last":
		return l.at == n-1
	case "length":
		return int64(n)
	case "previtem":
		if l.at > 0 {
			return l.items[l.at-1]
		}
	case "nextitem":
		if l.at < n-1 {
			return l.items[l.at+1]
		}
	case "cycle":
		return function(func(_ *runner, args []any, _ map[string]any) any {
			if len(args) == 0 {
				fail("cycle of nothing")
			}
			return args[l.at%len(args)]
		})
	}
	return undefined{"loop." + name}
}

type target struct{ name, attribute string }

type setNode struct {
	targets []target
	value   expr
	body    []node
}

func (n *setNode) run(r *runner) jump {
	var value any
	if n.value != nil {
		value = n.value.eval(r)
	} else {
		value = r.captured(n.body, &scope{parent: r.scope})
	}
	if len(n.targets) == 1 {
		n.targets[0].set(r, value)
		return ""
	}
	parts, err := iterate(value)
	if err != nil || len(parts) != len(n.targets) {
		fail("set of %d names gets %s", len(n.targets), typeName(value))
	}
	for i, t := range n.targets {
		t.set(r, parts[i])
	}
	return ""
}

func (t target) set(r *runner, value any) {
	if t.attribute == "" {
		r.scope.set(t.name, value)
		return
	}
	of, _ := r.scope.get(t.name)
	d, ok := of.(*Dict)
	if !ok {
		fail("%s is no namespace", t.name)
	}
	d.Set(t.attribute, value)
}

type macroNode struct {
	name       string
	parameters []string
	defaults   []expr
	body       []node
}

func (n *macroNode) run(r *runner) jump {
	around := r.scope
	r.scope.set(n.name, function(func(r *runner, args []any, named map[string]any) any {
		if len(args) > len(n.parameters) {
			fail("the macro %s takes %d arguments, not %d", n.name, len(n.parameters), len(args))
		}
		s := &scope{parent: around}
		for i, p := range n.parameters {
			value, given := named[p]
			switch {
			case i < len(args):
				value = args[i]
			case given:
			case n.defaults[i] != nil:
				inner := *r
				inner.scope = s
				value = n.defaults[i].eval(&inner)
			default:
				value = undefined{p}
			}
			s.set(p, value)
		}
		return r.captured(n.body, s)
	}))
	return ""
}

type constExpr struct{ value any }

func (e constExpr) eval(*runner) any { return e.value }

type nameExpr string

func (e nameExpr) eval(r *runner) any {
	if v, ok := r.scope.get(string(e)); ok {
		return v
	}
	return undefined{string(e)}
}

type listExpr []expr

func (e listExpr) eval(r *runner) any { return &List{Items: evalAll(r, e)} }

func evalAll(r *runner, all []expr) []any {
	values := make([]any, 0, len(all))
	for _, one := range all {
		values = append(values, one.eval(r))
	}
	return values
}

type dictExpr [][2]expr

func (e dictExpr) eval(r *runner) any {
	d := &Dict{}
	for _, pair := range e {
		key, value := pair[0].eval(r), pair[1].eval(r)
		if !hashable(key) {
			fail("%s as a key", typeName(key))
		}
		d.Set(key, value)
	}
	return d
}

func hashable(v any) bool {
	switch v.(type) {
	case nil, bool, int64, float64, string:
		return true
	}
	return false
}

type condExpr struct{ test, then, otherwise expr }

func (e condExpr) eval(r *runner) any {
	switch {
	case truth(e.test.eval(r)):
		return e.then.eval(r)
	case e.otherwise == nil:
		return undefined{"a condition without else"}
	}
	return e.otherwise.eval(r)
}

type logicExpr struct {
	left, right expr
	or          bool
}

func (e logicExpr) eval(r *runner) any {
	if v := e.left.eval(r); truth(v) == e.or {
		return v
	}
	return e.right.eval(r)
}

type notExpr struct{ of expr }

func (e notExpr) eval(r *runner) any { return !truth(e.of.eval(r)) }

type negExpr struct{ of expr }

func (e negExpr) eval(r *runner) any {
	v := e.of.eval(r)
	switch n := v.(type) {
	case int64:
		return -n
	case float64:
		return -n
	}
	fail("minus %s", typeName(v))
	return nil
}

type compareExpr struct {
	left  expr
	ops   []string
	right []expr
}

func (e compareExpr) eval(r *runner) any {
	left := e.left.eval(r)
	for i, op := range e.ops {
		right := e.right[i].eval(r)
		ok, err := compare(op, left, right)
		if check(err); !ok {
			return false
		}
		left = right
	}
	return true
}

type binaryExpr struct {
	op          string
	left, right expr
}

func (e binaryExpr) eval(r *runner) any { return operate(e.op, e.left.eval(r), e.right.eval(r)) }

func operate(op string, left, right any) any {
	switch l := left.(type) {
	case string:
		switch rt := right.(type) {
		case string:
			if op == "+" {
				return joined(l, rt)
			}
		case int64:
			if op == "*" && rt*int64(len(l)) < 1<<20 {
				return strings.Repeat(l, int(max(rt, 0)))
			}
		}
		if op == "%" {
			fail("the operator %% of texts is not supported")
		}
	case *List:
		if other, ok := right.(*List); ok && op == "+" {
			return &List{Items: slices.Concat(l.Items, other.Items)}
		}
	}
	if op == "~" {
		return joined(toText(left), toText(right))
	}
	a, isInt := left.(int64)
	b, bothInt := right.(int64)
	if isInt && bothInt {
		switch op {
		case "+":
			return a + b
		case "-":
			return a - b
		case "*":
			return a * b
		}
		if (op == "//" || op == "%") && b != 0 {
			quotient := int64(math.Floor(float64(a) / float64(b)))
			if op == "//" {
				return quotient
			}
			return a - quotient*b
		}
	}
	x, okX := number(left)
	y, okY := number(right)
	if !okX || !okY {
		fail("%s %s %s", typeName(left), op, typeName(right))
	}
	switch op {
	case "+":
		return x + y
	case "-":
		return x - y
	case "*":
		return x * y
	case "**":
		if p := math.Pow(x, y); isInt && bothInt && b >= 0 {
			return int64(p)
		} else {
			return p
		}
	}
	switch {
	case y == 0:
		fail("division by zero")
	case op == "//":
		return math.Floor(x / y)
	case op == "%":
		return x - math.Floor(x/y)*y
	}
	return x / y
}

// longestText bounds a text that a template makes, in bytes.
const longestText = 64 << 20

func joined(a, b string) string {
	if len(a)+len(b) > longestText {
		fail("the chat template makes a text of more than %d bytes", longestText)
	}
	return a + b
}

type attrExpr struct {
	of, key expr
	dot     bool // and not in brackets
}

func (e attrExpr) eval(r *runner) any { return lookUp(e.of.eval(r), e.key.eval(r), e.dot) }

func lookUp(of, key any, dot bool) any {
	name, _ := key.(string)
	var items []any
	switch of := of.(type) {
	case undefined:
		fail("'%s' is undefined", of.name)
	case *loop:
		return of.attribute(name)
	case *Dict:
		if hashable(key) && (!dot || method(of, name) == nil) {
			if v, ok := of.Get(key); ok {
				return v
			}
		}
	case *List:
		items = of.Items
	case string:
		if _, ok := key.(int64); ok {
			items, _ = iterate(of)
		}
	}
	if i, ok := key.(int64); ok {
		if i < 0 {
			i += int64(len(items))
		}
		if i >= 0 && i < int64(len(items)) {
			return items[i]
		}
	} else if m := method(of, name); m != nil {
		return m
	}
	return undefined{toText(key)}
}

type sliceExpr struct{ of, from, to, step expr }

func (e sliceExpr) eval(r *runner) any {
	of := e.of.eval(r)
	bounds := [3]*int64{}
	for i, part := range []expr{e.from, e.to, e.step} {
		if part == nil {
			continue
		}
		v := part.eval(r)
		if n, ok := v.(int64); ok {
			bounds[i] = &n
		} else if v != nil {
			fail("a slice from %s", typeName(v))
		}
	}
	cut := slice(itemsOf(of), bounds)
	if _, isText := of.(string); isText {
		return strings.Join(texts(cut), "")
	}
	return &List{Items: cut}
}

// slice is that of Python.
func slice(items []any, bounds [3]*int64) (cut []any) {
	n, step := int64(len(items)), int64(1)
	if bounds[2] != nil && *bounds[2] != 0 {
		step = *bounds[2]
	}
	at := func(b *int64, otherwise int64) int64 {
		if b == nil {
			return otherwise
		}
		i := *b
		if i < 0 {
			i += n
		}
		if step < 0 {
			return min(max(i, -1), n-1)
		}
		return min(max(i, 0), n)
	}
	if step < 0 {
		for i := at(bounds[0], n-1); i > at(bounds[1], -1); i += step {
			cut = append(cut, items[i])
		}
		return cut
	}
	for i := at(bounds[0], 0); i < at(bounds[1], n); i += step {
		cut = append(cut, items[i])
	}
	return cut
}

func (a *arguments) eval(r *runner) (c call) {
	c.plain = evalAll(r, a.plain)
	for i, name := range a.names {
		if c.named == nil {
			c.named = map[string]any{}
		}
		c.named[name] = a.named[i].eval(r)
	}
	return c
}

type callExpr struct {
	of   expr
	args arguments
	line int
}

func (e callExpr) eval(r *runner) any {
	of := e.of.eval(r)
	f, ok := of.(function)
	if !ok {
		name := typeName(of)
		if u, is := of.(undefined); is {
			name = "'" + u.name + "'"
		}
		fail("line %d: %s is no function", e.line, name)
	}
	c := e.args.eval(r)
	r.step()
	return f(r, c.plain, c.named)
}

type filterExpr struct {
	of   expr
	name string
	args arguments
	line int
}

func (e filterExpr) eval(r *runner) any {
	of, c := e.of.eval(r), e.args.eval(r)
	defer explained("line %d: filter %s", e.line, e.name)
	return filters[e.name](r, of, c)
}

type testExpr struct {
	of   expr
	name string
	args arguments
	not  bool
}

func (e testExpr) eval(r *runner) any {
	return tests[e.name](e.of.eval(r), e.args.eval(r).plain) != e.not
}

// All goes over the keys that are texts, and their values.
func (d *Dict) All() iter.Seq2[string, any] {
	return func(yield func(string, any) bool) {
		for _, k := range d.keys {
			if name, ok := k.(string); ok && !yield(name, d.values[k]) {
				return
			}
		}
	}
}
