package jinja

import (
	"context"
	"fmt"
	"maps"
	"math"
	"runtime"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// A runner runs a template once.
type runner struct {
	*budget
	out   *strings.Builder
	scope *scope
	now   time.Time
}

// A scope holds variables. Those of the scopes around it can be read.
type scope struct {
	vars   map[string]any
	parent *scope
}

func (r *runner) get(name string) (any, bool) {
	for s := r.scope; s != nil; s = s.parent {
		r.charge(1)
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

// slots bounds how many templates run at once, and so their memory. More would not be done earlier.
var slots = make(chan struct{}, runtime.GOMAXPROCS(0))

// Run writes the text of the template with these variables. now is the time of strftime_now. What a run may cost is bounded: the error
// of one that costs more names the bound, as does the error of one that takes more than ten seconds.
func (t *Template) Run(ctx context.Context, vars map[string]any, now time.Time) (text string, err error) {
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, maxTime, fmt.Errorf("the chat template takes more than %v", maxTime))
	defer cancel()
	return t.run(&budget{ctx: ctx, steps: maxSteps}, vars, now)
}

func (t *Template) run(b *budget, vars map[string]any, now time.Time) (text string, err error) {
	defer recovered(&err)
	check(context.Cause(b.ctx))
	top := &scope{vars: maps.Clone(vars), parent: &scope{vars: globals}}
	r := &runner{budget: b, out: new(strings.Builder), scope: top, now: now}
	r.runWhole(t.body)
	return r.out.String(), nil
}

// write writes a part of the text.
func (r *runner) write(text string) {
	r.chargeText(len(text))
	r.out.WriteString(text)
}

// eval is the value of an expression. Every expression is evaluated here.
func (r *runner) eval(e expr) any {
	r.charge(1)
	r.deeper()
	v := e.eval(r)
	r.higher()
	return v
}

var globals = map[string]any{
	"raise_exception": function(func(r *runner, c call) any {
		fail("%s", strings.Join(r.texts(c.plain), " "))
		return nil
	}),
	"strftime_now": function(func(r *runner, c call) any {
		return r.strftime(strings.Join(r.texts(c.plain), ""))
	}),
	"namespace": function(newDict), "dict": function(newDict), "range": function(newRange),
}

func newDict(r *runner, c call) any {
	d := &Dict{}
	for _, a := range c.plain {
		from, ok := a.(*Dict)
		if !ok {
			fail("dict of %s", typeName(a))
		}
		r.charge(len(from.keys))
		for _, k := range from.keys {
			d.Set(k, from.values[k])
		}
	}
	for i, name := range c.names {
		d.Set(name, c.named[i])
	}
	return d
}

func newRange(r *runner, c call) any {
	numbers := []int64{0, 0, 1}
	for i, a := range c.plain {
		n, ok := a.(int64)
		if !ok || i > 2 {
			fail("range wants one to three numbers")
		}
		if numbers[i] = n; len(c.plain) == 1 {
			numbers[0], numbers[1] = 0, n
		}
	}
	from, to, step := numbers[0], numbers[1], numbers[2]
	if step == 0 {
		fail("range in steps of 0")
	}
	n := stepsTo(from, to, step)
	r.charge(n)
	l := &List{Items: make([]any, n)}
	for i := range l.Items {
		l.Items[i] = from + int64(i)*step
	}
	return l
}

// stepsTo is how often step, which is not 0, can be added to from before it reaches to. More than maxSteps are maxSteps+1.
func stepsTo(from, to, step int64) int {
	distance, each := uint64(to)-uint64(from), uint64(step)
	if step < 0 {
		distance, each = uint64(from)-uint64(to), -each
	}
	if from == to || from < to != (step > 0) {
		return 0
	}
	return int(min((distance-1)/each+1, maxSteps+1))
}

// A jump ends a body early; "" does not. It is also the block that does so.
type jump string

const (
	breaks    jump = "break"
	continues jump = "continue"
)

func (j jump) run(*runner) jump { return j }

func (r *runner) runAll(body []node) jump {
	r.deeper()
	defer r.higher()
	for _, n := range body {
		r.charge(1)
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
	inner.runWhole(body)
	return inner.out.String()
}

type textNode string

func (n textNode) run(r *runner) jump { r.write(string(n)); return "" }

type group []node

func (n group) run(r *runner) jump { return r.runAll(n) }

type printNode struct{ value expr }

func (n printNode) run(r *runner) jump { r.write(r.text(r.eval(n.value))); return "" }

type ifNode struct {
	test            expr
	then, otherwise []node
}

func (n *ifNode) run(r *runner) jump {
	if truth(r.eval(n.test)) {
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
	items := r.items(r.eval(n.over))
	outer := r.scope
	defer func() { r.scope = outer }()
	if n.filter != nil {
		var kept []any
		for _, item := range items {
			n.enter(r, outer, item)
			if truth(r.eval(n.filter)) {
				kept = append(kept, item)
			}
		}
		items = kept
	}
	if len(items) == 0 {
		r.scope = outer
		return r.runAll(n.otherwise)
	}
	for i, item := range items {
		n.enter(r, outer, item)
		r.scope.set("loop", &loop{items, i})
		if r.runAll(n.body) == breaks {
			break
		}
	}
	return ""
}

// scopeSteps is what a scope with its variables costs: they are kept as long as a macro that was defined in it.
const scopeSteps = 4

// enter makes the scope of an item.
func (n *forNode) enter(r *runner, outer *scope, item any) {
	r.charge(scopeSteps + len(n.names))
	r.scope = &scope{parent: outer}
	if len(n.names) == 1 {
		r.scope.set(n.names[0], item)
		return
	}
	parts := r.items(item)
	if len(parts) != len(n.names) {
		fail("a loop over %d names gets %s", len(n.names), typeName(item))
	}
	for i, name := range n.names {
		r.scope.set(name, parts[i])
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
		return function(func(_ *runner, c call) any {
			if len(c.plain) == 0 {
				fail("cycle of nothing")
			}
			return c.plain[l.at%len(c.plain)]
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
		value = r.eval(n.value)
	} else {
		value = r.captured(n.body, &scope{parent: r.scope})
	}
	if len(n.targets) == 1 {
		n.targets[0].set(r, value)
		return ""
	}
	parts := r.items(value)
	if len(parts) != len(n.targets) {
		fail("set of %d names gets %s", len(n.targets), typeName(value))
	}
	for i, t := range n.targets {
		t.set(r, parts[i])
	}
	return ""
}

func (t target) set(r *runner, value any) {
	r.charge(1)
	if t.attribute == "" {
		r.scope.set(t.name, value)
		return
	}
	of, _ := r.get(t.name)
	d, ok := of.(*Dict)
	if !ok {
		fail("%s is not a namespace", t.name)
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
	r.scope.set(n.name, function(func(r *runner, c call) any {
		if len(c.plain) > len(n.parameters) {
			fail("the macro %s takes %d arguments, not %d", n.name, len(n.parameters), len(c.plain))
		}
		r.charge(scopeSteps + len(n.parameters))
		inner := *r
		inner.scope = &scope{parent: around}
		for i, p := range n.parameters {
			value := c.arg(i, p, missing)
			switch {
			case value != missing:
			case n.defaults[i] != nil:
				value = inner.eval(n.defaults[i])
			default:
				value = undefined{p}
			}
			inner.scope.set(p, value)
		}
		return inner.captured(n.body, inner.scope)
	}))
	return ""
}

// missing is the argument that was not given. No expression has this value.
var missing any = new(struct{ _ byte })

type constExpr struct{ value any }

func (e constExpr) eval(*runner) any { return e.value }

type nameExpr string

func (e nameExpr) eval(r *runner) any {
	if v, ok := r.get(string(e)); ok {
		return v
	}
	return undefined{string(e)}
}

type listExpr []expr

func (e listExpr) eval(r *runner) any { return &List{Items: r.evalAll(e)} }

func (r *runner) evalAll(all []expr) []any {
	values := make([]any, 0, len(all))
	for _, one := range all {
		values = append(values, r.eval(one))
	}
	return values
}

type dictExpr [][2]expr

func (e dictExpr) eval(r *runner) any {
	d := &Dict{}
	for _, pair := range e {
		key, value := r.eval(pair[0]), r.eval(pair[1])
		if !hashable(key) {
			fail("%s as a key", typeName(key))
		}
		d.Set(key, value)
	}
	return d
}

type condExpr struct{ test, then, otherwise expr }

func (e condExpr) eval(r *runner) any {
	switch {
	case truth(r.eval(e.test)):
		return r.eval(e.then)
	case e.otherwise == nil:
		return undefined{"a condition without else"}
	}
	return r.eval(e.otherwise)
}

type logicExpr struct {
	left, right expr
	or          bool
}

func (e logicExpr) eval(r *runner) any {
	if v := r.eval(e.left); truth(v) == e.or {
		return v
	}
	return r.eval(e.right)
}

type notExpr struct{ of expr }

func (e notExpr) eval(r *runner) any { return !truth(r.eval(e.of)) }

type negExpr struct{ of expr }

func (e negExpr) eval(r *runner) any {
	v := r.eval(e.of)
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
	left := r.eval(e.left)
	for i, op := range e.ops {
		right := r.eval(e.right[i])
		if !r.compare(op, left, right) {
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

func (e binaryExpr) eval(r *runner) any { return r.operate(e.op, r.eval(e.left), r.eval(e.right)) }

func (r *runner) operate(op string, left, right any) any {
	if op == "~" {
		return r.joined(r.text(left), r.text(right))
	}
	switch l := left.(type) {
	case string:
		switch rt := right.(type) {
		case string:
			if op == "+" {
				return r.joined(l, rt)
			}
		case int64:
			if op == "*" {
				n := int(min(max(rt, 0), maxSteps*bytesPerStep+1))
				r.chargeCopies(n, len(l))
				return strings.Repeat(l, n)
			}
		}
		if op == "%" {
			fail("the operator %% of texts is not supported")
		}
	case *List:
		if other, ok := right.(*List); ok && op == "+" {
			r.chargeItems(len(l.Items) + len(other.Items))
			return &List{Items: slices.Concat(l.Items, other.Items)}
		}
	}
	x, okX := number(left)
	y, okY := number(right)
	if !okX || !okY {
		fail("%s %s %s", typeName(left), op, typeName(right))
	}
	if y == 0 && (op == "/" || op == "//" || op == "%") {
		fail("division by zero")
	}
	a, isInt := left.(int64)
	b, bothInt := right.(int64)
	if isInt && bothInt && op != "/" && (op != "**" || b >= 0) {
		return integers(op, a, b)
	}
	switch op {
	case "+":
		return x + y
	case "-":
		return x - y
	case "*":
		return x * y
	case "**":
		return math.Pow(x, y)
	case "//":
		return math.Floor(x / y)
	case "%":
		return x - math.Floor(x/y)*y
	}
	return x / y
}

// integers is an operation of whole numbers, those of Python. What does not fit 64 bits is an error.
func integers(op string, a, b int64) int64 {
	x, y := float64(a), float64(b)
	size, n := 0.0, int64(0)
	switch op {
	case "+":
		size, n = x+y, a+b
	case "-":
		size, n = x-y, a-b
	case "*":
		size, n = x*y, a*b
	case "**":
		if size = math.Pow(x, y); math.Abs(size) < 1<<63 {
			n = int64(size)
		}
	default:
		quotient := a / b
		if a%b != 0 && a < 0 != (b < 0) {
			quotient--
		}
		if op == "//" {
			return quotient
		}
		return a - quotient*b
	}
	if math.Abs(size) >= 1<<63 {
		fail("the number %g is too large", size)
	}
	return n
}

func (r *runner) joined(a, b string) string {
	r.chargeText(len(a) + len(b))
	return a + b
}

// chargeItems takes the steps of a copy of n items of a list.
func (r *runner) chargeItems(n int) { r.charge(n / 8) } // of 16 bytes

type attrExpr struct {
	of, key expr
	dot     bool // and not in brackets
}

func (e attrExpr) eval(r *runner) any { return r.lookUp(r.eval(e.of), r.eval(e.key), e.dot) }

func (r *runner) lookUp(of, key any, dot bool) any {
	name, _ := key.(string)
	place, isPlace := key.(int64)
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
		n := int64(len(of.Items))
		if place < 0 {
			place += n
		}
		if isPlace && place >= 0 && place < n {
			return of.Items[place]
		}
	case string:
		if isPlace {
			text := r.slice(of, &place, nil, nil).(string)
			if _, n := utf8.DecodeRuneInString(text); n > 0 && (place >= 0 || int64(utf8.RuneCountInString(text)) == -place) {
				return text[:n]
			}
		}
	}
	if m := method(of, name); m != nil {
		return m
	}
	return undefined{r.text(key)}
}

type sliceExpr struct{ of, from, to, step expr }

func (e sliceExpr) eval(r *runner) any {
	of := r.eval(e.of)
	bounds := [3]*int64{}
	for i, part := range []expr{e.from, e.to, e.step} {
		if part == nil {
			continue
		}
		v := r.eval(part)
		if n, ok := v.(int64); ok {
			bounds[i] = &n
		} else if v != nil {
			fail("a slice from %s", typeName(v))
		}
	}
	return r.slice(of, bounds[0], bounds[1], bounds[2])
}

// slice is that of Python.
func (r *runner) slice(of any, from, to, step *int64) any {
	text, isText := of.(string)
	n, by := int64(0), int64(1)
	var items []any
	if isText {
		r.chargeText(len(text))
		n = int64(utf8.RuneCountInString(text))
	} else {
		items = r.items(of)
		n = int64(len(items))
	}
	if step != nil && *step != 0 {
		by = *step
	}
	at := func(b *int64, otherwise int64) int64 {
		if b == nil {
			return otherwise
		}
		i := *b
		if i < 0 {
			i += n
		}
		if by < 0 {
			return min(max(i, -1), n-1)
		}
		return min(max(i, 0), n)
	}
	first, last := at(from, 0), at(to, n)
	if by < 0 {
		first, last = at(from, n-1), at(to, -1)
	}
	if isText && by == 1 {
		start := byteOf(text, first)
		return text[start : start+byteOf(text[start:], max(last-first, 0))]
	}
	count := stepsTo(first, last, by)
	r.chargeItems(count)
	if isText {
		r.charge(count)
		items = r.items(text)
	}
	cut := make([]any, count)
	for i := range cut {
		cut[i] = items[first+int64(i)*by]
	}
	if isText {
		return strings.Join(r.texts(cut), "")
	}
	return &List{Items: cut}
}

// byteOf is where character number n of a text begins, or the text ends.
func byteOf(text string, n int64) int {
	for at := range text {
		if n == 0 {
			return at
		}
		n--
	}
	return len(text)
}

// A call is the arguments of a function, a filter or a test.
type call struct {
	plain []any
	names []string
	named []any // by names
}

// arg is the argument at a place, or of a name, or else otherwise.
func (c call) arg(at int, name string, otherwise any) any {
	if at < len(c.plain) {
		return c.plain[at]
	}
	if i := slices.Index(c.names, name); i >= 0 {
		return c.named[i]
	}
	return otherwise
}

func (a *arguments) eval(r *runner) call {
	return call{r.evalAll(a.plain), a.names, r.evalAll(a.named)}
}

type callExpr struct {
	of   expr
	args arguments
	line int
}

func (e callExpr) eval(r *runner) any {
	of := r.eval(e.of)
	f, ok := of.(function)
	if !ok {
		name := typeName(of)
		if u, is := of.(undefined); is {
			name = "'" + u.name + "'"
		}
		fail("line %d: %s is not a function", e.line, name)
	}
	return f(r, e.args.eval(r))
}

type filterExpr struct {
	of   expr
	name string
	args arguments
	line int
}

func (e filterExpr) eval(r *runner) any {
	of, c := r.eval(e.of), e.args.eval(r)
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
	return tests[e.name](r, r.eval(e.of), e.args.eval(r).plain) != e.not
}
