package jinja

import (
	"errors"
	"fmt"
	"iter"
	"math"
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
	function  func(r *runner, args []any, named map[string]any) (any, error)
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

func (r *runner) step() error {
	if r.steps++; r.steps > mostSteps {
		return errors.New("the chat template takes too long")
	}
	return nil
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
func (t *Template) Run(vars map[string]any, now time.Time) (string, error) {
	r := &runner{out: new(strings.Builder), scope: &scope{vars: globals()}, now: now}
	r.scope = &scope{parent: r.scope}
	for name, value := range vars {
		r.scope.set(name, value)
	}
	if err := r.runAll(t.body); err != nil {
		return "", err
	}
	return r.out.String(), nil
}

func globals() map[string]any {
	return map[string]any{
		"raise_exception": function(func(_ *runner, args []any, _ map[string]any) (any, error) {
			return nil, errors.New(strings.Join(texts(args), " "))
		}),
		"strftime_now": function(func(r *runner, args []any, _ map[string]any) (any, error) {
			return strftime(r.now, strings.Join(texts(args), "")), nil
		}),
		"namespace": function(newDict), "dict": function(newDict), "range": function(newRange),
	}
}

func newDict(_ *runner, args []any, named map[string]any) (any, error) {
	d := &Dict{}
	for _, a := range args {
		from, ok := a.(*Dict)
		if !ok {
			return nil, fmt.Errorf("dict of %s", typeName(a))
		}
		for _, k := range from.keys {
			d.Set(k, from.values[k])
		}
	}
	for name, value := range named {
		d.Set(name, value)
	}
	return d, nil
}

// longestRange bounds range().
const longestRange = 1 << 20

func newRange(_ *runner, args []any, _ map[string]any) (any, error) {
	numbers := []int64{0, 0, 1}
	for i, a := range args {
		n, ok := a.(int64)
		if !ok || i > 2 {
			return nil, errors.New("range wants one to three numbers")
		}
		if numbers[min(i, 2)] = n; len(args) == 1 {
			numbers[0], numbers[1] = 0, n
		}
	}
	from, to, step := numbers[0], numbers[1], numbers[2]
	l := &List{}
	if step == 0 || (to-from)/step > longestRange {
		return nil, fmt.Errorf("range from %d to %d in steps of %d", from, to, step)
	}
	for n := from; step > 0 && n < to || step < 0 && n > to; n += step {
		l.Items = append(l.Items, n)
	}
	return l, nil
}

func texts(args []any) (all []string) {
	for _, a := range args {
		all = append(all, toText(a))
	}
	return all
}

func (r *runner) runAll(body []node) error {
	for _, n := range body {
		if err := r.step(); err != nil {
			return err
		}
		if err := n.run(r); err != nil {
			return err
		}
	}
	return nil
}

// captured runs a body, and returns what it writes.
func (r *runner) captured(body []node, in *scope) (string, error) {
	inner := *r
	inner.out, inner.scope = new(strings.Builder), in
	if inner.depth++; inner.depth > deepest {
		return "", fmt.Errorf("macros call each other more than %d deep", deepest)
	}
	err := inner.runAll(body)
	r.steps = inner.steps
	return inner.out.String(), err
}

type textNode string

func (n textNode) run(r *runner) error { r.out.WriteString(string(n)); return nil }

type group []node

func (n group) run(r *runner) error { return r.runAll(n) }

type printNode struct{ value expr }

func (n printNode) run(r *runner) error {
	v, err := n.value.eval(r)
	if err == nil {
		r.out.WriteString(toText(v))
	}
	return err
}

type ifNode struct {
	test            expr
	then, otherwise []node
}

func (n *ifNode) run(r *runner) error {
	v, err := n.test.eval(r)
	if err != nil {
		return err
	}
	if truth(v) {
		return r.runAll(n.then)
	}
	return r.runAll(n.otherwise)
}

var (
	errBreak    = errors.New("break outside of a loop")
	errContinue = errors.New("continue outside of a loop")
)

type loopEnd struct{ err error }

func (n loopEnd) run(*runner) error { return n.err }

type forNode struct {
	names           []string
	over, filter    expr
	body, otherwise []node
}

func (n *forNode) run(r *runner) error {
	over, err := n.over.eval(r)
	if err != nil {
		return err
	}
	items, err := iterate(over)
	if err != nil {
		return err
	}
	outer := r.scope
	defer func() { r.scope = outer }()
	if n.filter != nil {
		var kept []any
		for _, item := range items {
			r.scope = &scope{parent: outer}
			err := n.bind(r.scope, item)
			var ok any
			if err == nil {
				ok, err = n.filter.eval(r)
			}
			if err != nil {
				return err
			}
			if truth(ok) {
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
		if err := r.step(); err != nil {
			return err
		}
		r.scope = &scope{parent: outer}
		r.scope.set("loop", &loop{items, i})
		err := n.bind(r.scope, item)
		if err == nil {
			err = r.runAll(n.body)
		}
		if err == errBreak {
			break
		}
		if err != nil && err != errContinue {
			return err
		}
	}
	return nil
}

func (n *forNode) bind(s *scope, item any) error {
	if len(n.names) == 1 {
		s.set(n.names[0], item)
		return nil
	}
	parts, err := iterate(item)
	if err != nil || len(parts) != len(n.names) {
		return fmt.Errorf("a loop over %d names gets %s", len(n.names), typeName(item))
	}
	for i, name := range n.names {
		s.set(name, parts[i])
	}
	return nil
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
		return function(func(_ *runner, args []any, _ map[string]any) (any, error) {
			if len(args) == 0 {
				return nil, errors.New("cycle of nothing")
			}
			return args[l.at%len(args)], nil
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

func (n *setNode) run(r *runner) error {
	var value any
	var err error
	if n.value != nil {
		value, err = n.value.eval(r)
	} else {
		value, err = r.captured(n.body, &scope{parent: r.scope})
	}
	if err != nil {
		return err
	}
	if len(n.targets) == 1 {
		return n.targets[0].set(r, value)
	}
	parts, err := iterate(value)
	if err != nil || len(parts) != len(n.targets) {
		return fmt.Errorf("set of %d names gets %s", len(n.targets), typeName(value))
	}
	for i, t := range n.targets {
		if err := t.set(r, parts[i]); err != nil {
			return err
		}
	}
	return nil
}

func (t target) set(r *runner, value any) error {
	if t.attribute == "" {
		r.scope.set(t.name, value)
		return nil
	}
	of, _ := r.scope.get(t.name)
	d, ok := of.(*Dict)
	if !ok {
		return fmt.Errorf("%s is no namespace", t.name)
	}
	d.Set(t.attribute, value)
	return nil
}

type macroNode struct {
	name       string
	parameters []string
	defaults   []expr
	body       []node
}

func (n *macroNode) run(r *runner) error {
	around := r.scope
	r.scope.set(n.name, function(func(r *runner, args []any, named map[string]any) (any, error) {
		if len(args) > len(n.parameters) {
			return nil, fmt.Errorf("the macro %s takes %d arguments, not %d", n.name, len(n.parameters), len(args))
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
				var err error
				if value, err = n.defaults[i].eval(&inner); err != nil {
					return nil, err
				}
			default:
				value = undefined{p}
			}
			s.set(p, value)
		}
		return r.captured(n.body, s)
	}))
	return nil
}

type constExpr struct{ value any }

func (e constExpr) eval(*runner) (any, error) { return e.value, nil }

type nameExpr string

func (e nameExpr) eval(r *runner) (any, error) {
	if v, ok := r.scope.get(string(e)); ok {
		return v, nil
	}
	return undefined{string(e)}, nil
}

type listExpr []expr

func (e listExpr) eval(r *runner) (any, error) {
	l := &List{Items: make([]any, 0, len(e))}
	for _, item := range e {
		v, err := item.eval(r)
		if err != nil {
			return nil, err
		}
		l.Items = append(l.Items, v)
	}
	return l, nil
}

type dictExpr [][2]expr

func (e dictExpr) eval(r *runner) (any, error) {
	d := &Dict{}
	for _, pair := range e {
		key, err := pair[0].eval(r)
		if err != nil {
			return nil, err
		}
		value, err := pair[1].eval(r)
		if err != nil {
			return nil, err
		}
		if !hashable(key) {
			return nil, fmt.Errorf("%s as a key", typeName(key))
		}
		d.Set(key, value)
	}
	return d, nil
}

func hashable(v any) bool {
	switch v.(type) {
	case nil, bool, int64, float64, string:
		return true
	}
	return false
}

type condExpr struct{ test, then, otherwise expr }

func (e condExpr) eval(r *runner) (any, error) {
	v, err := e.test.eval(r)
	switch {
	case err != nil:
		return nil, err
	case truth(v):
		return e.then.eval(r)
	case e.otherwise == nil:
		return undefined{"a condition without else"}, nil
	}
	return e.otherwise.eval(r)
}

type logicExpr struct {
	left, right expr
	or          bool
}

func (e logicExpr) eval(r *runner) (any, error) {
	v, err := e.left.eval(r)
	if err != nil || truth(v) == e.or {
		return v, err
	}
	return e.right.eval(r)
}

type notExpr struct{ of expr }

func (e notExpr) eval(r *runner) (any, error) {
	v, err := e.of.eval(r)
	return !truth(v), err
}

type negExpr struct{ of expr }

func (e negExpr) eval(r *runner) (any, error) {
	v, err := e.of.eval(r)
	switch n := v.(type) {
	case int64:
		return -n, err
	case float64:
		return -n, err
	}
	if err == nil {
		err = fmt.Errorf("minus %s", typeName(v))
	}
	return nil, err
}

type compareExpr struct {
	left  expr
	ops   []string
	right []expr
}

func (e compareExpr) eval(r *runner) (any, error) {
	left, err := e.left.eval(r)
	if err != nil {
		return nil, err
	}
	for i, op := range e.ops {
		right, err := e.right[i].eval(r)
		if err != nil {
			return nil, err
		}
		ok, err := compare(op, left, right)
		if err != nil || !ok {
			return false, err
		}
		left = right
	}
	return true, nil
}

type binaryExpr struct {
	op          string
	left, right expr
}

func (e binaryExpr) eval(r *runner) (any, error) {
	left, err := e.left.eval(r)
	if err != nil {
		return nil, err
	}
	right, err := e.right.eval(r)
	if err != nil {
		return nil, err
	}
	return operate(e.op, left, right)
}

func operate(op string, left, right any) (any, error) {
	wrong := fmt.Errorf("%s %s %s", typeName(left), op, typeName(right))
	switch l := left.(type) {
	case string:
		switch rt := right.(type) {
		case string:
			if op == "+" {
				return joined(l, rt)
			}
		case int64:
			if op == "*" && rt*int64(len(l)) < 1<<20 {
				return strings.Repeat(l, int(max(rt, 0))), nil
			}
		}
		if op == "%" {
			return nil, errors.New("the operator % of texts is not supported")
		}
	case *List:
		if other, ok := right.(*List); ok && op == "+" {
			return &List{Items: append(append([]any(nil), l.Items...), other.Items...)}, nil
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
			return a + b, nil
		case "-":
			return a - b, nil
		case "*":
			return a * b, nil
		}
		if (op == "//" || op == "%") && b != 0 {
			quotient := int64(math.Floor(float64(a) / float64(b)))
			if op == "//" {
				return quotient, nil
			}
			return a - quotient*b, nil
		}
	}
	x, okX := number(left)
	y, okY := number(right)
	if !okX || !okY {
		return nil, wrong
	}
	switch op {
	case "+":
		return x + y, nil
	case "-":
		return x - y, nil
	case "*":
		return x * y, nil
	case "**":
		if p := math.Pow(x, y); isInt && bothInt && b >= 0 {
			return int64(p), nil
		} else {
			return p, nil
		}
	case "/", "//", "%":
		if y == 0 {
			return nil, errors.New("division by zero")
		}
		switch op {
		case "//":
			return math.Floor(x / y), nil
		case "%":
			return x - math.Floor(x/y)*y, nil
		}
		return x / y, nil
	}
	return nil, wrong
}

// longestText bounds a text that a template makes, in bytes.
const longestText = 64 << 20

func joined(a, b string) (any, error) {
	if len(a)+len(b) > longestText {
		return nil, fmt.Errorf("the chat template makes a text of more than %d bytes", longestText)
	}
	return a + b, nil
}

type attrExpr struct {
	of, key expr
	dot     bool // and not in brackets
}

func (e attrExpr) eval(r *runner) (any, error) {
	of, err := e.of.eval(r)
	if err != nil {
		return nil, err
	}
	key, err := e.key.eval(r)
	if err != nil {
		return nil, err
	}
	return lookUp(of, key, e.dot)
}

func lookUp(of, key any, dot bool) (any, error) {
	missing := undefined{toText(key)}
	name, _ := key.(string)
	switch of := of.(type) {
	case undefined:
		return nil, fmt.Errorf("'%s' is undefined", of.name)
	case *Dict:
		if dot {
			if m := method(of, name); m != nil {
				return m, nil
			}
		}
		if hashable(key) {
			if v, ok := of.Get(key); ok {
				return v, nil
			}
		}
		if m := method(of, name); m != nil {
			return m, nil
		}
	case *loop:
		return of.attribute(name), nil
	case *List:
		if i, ok := key.(int64); ok {
			if i < 0 {
				i += int64(len(of.Items))
			}
			if i >= 0 && i < int64(len(of.Items)) {
				return of.Items[i], nil
			}
			return missing, nil
		}
		if m := method(of, name); m != nil {
			return m, nil
		}
	case string:
		if i, ok := key.(int64); ok {
			runes := []rune(of)
			if i < 0 {
				i += int64(len(runes))
			}
			if i >= 0 && i < int64(len(runes)) {
				return string(runes[i]), nil
			}
			return missing, nil
		}
		if m := method(of, name); m != nil {
			return m, nil
		}
	}
	return missing, nil
}

type sliceExpr struct{ of, from, to, step expr }

func (e sliceExpr) eval(r *runner) (any, error) {
	of, err := e.of.eval(r)
	if err != nil {
		return nil, err
	}
	bounds := [3]*int64{}
	for i, part := range []expr{e.from, e.to, e.step} {
		if part == nil {
			continue
		}
		v, err := part.eval(r)
		if err != nil {
			return nil, err
		}
		if n, ok := v.(int64); ok {
			bounds[i] = &n
		} else if v != nil {
			return nil, fmt.Errorf("a slice from %s", typeName(v))
		}
	}
	var items []any
	text, isText := of.(string)
	if isText {
		for _, c := range text {
			items = append(items, string(c))
		}
	} else if items, err = iterate(of); err != nil {
		return nil, err
	}
	cut := slice(items, bounds)
	if isText {
		return strings.Join(texts(cut), ""), nil
	}
	return &List{Items: cut}, nil
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

func (a *arguments) eval(r *runner) (plain []any, named map[string]any, err error) {
	for _, e := range a.plain {
		v, err := e.eval(r)
		if err != nil {
			return nil, nil, err
		}
		plain = append(plain, v)
	}
	for i, name := range a.names {
		v, err := a.named[i].eval(r)
		if err != nil {
			return nil, nil, err
		}
		if named == nil {
			named = map[string]any{}
		}
		named[name] = v
	}
	return plain, named, nil
}

type callExpr struct {
	of   expr
	args arguments
	line int
}

func (e callExpr) eval(r *runner) (any, error) {
	of, err := e.of.eval(r)
	if err != nil {
		return nil, err
	}
	f, ok := of.(function)
	if !ok {
		name := typeName(of)
		if u, is := of.(undefined); is {
			name = "'" + u.name + "'"
		}
		return nil, fmt.Errorf("line %d: %s is no function", e.line, name)
	}
	plain, named, err := e.args.eval(r)
	if err != nil {
		return nil, err
	}
	if err := r.step(); err != nil {
		return nil, err
	}
	return f(r, plain, named)
}

type filterExpr struct {
	of   expr
	name string
	args arguments
	line int
}

func (e filterExpr) eval(r *runner) (any, error) {
	of, err := e.of.eval(r)
	if err != nil {
		return nil, err
	}
	plain, named, err := e.args.eval(r)
	if err != nil {
		return nil, err
	}
	v, err := filters[e.name](r, of, call{plain, named})
	if err != nil {
		return nil, fmt.Errorf("line %d: filter %s: %w", e.line, e.name, err)
	}
	return v, nil
}

type testExpr struct {
	of   expr
	name string
	args arguments
	not  bool
}

func (e testExpr) eval(r *runner) (any, error) {
	of, err := e.of.eval(r)
	if err != nil {
		return nil, err
	}
	plain, _, err := e.args.eval(r)
	if err != nil {
		return nil, err
	}
	return tests[e.name](of, plain) != e.not, nil
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
