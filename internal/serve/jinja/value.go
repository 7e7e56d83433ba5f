package jinja

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Values are nil (none), bool, int64, float64, string, *List, *Dict, undefined, *loop and function.
type (
	// A List is a list of Python.
	List struct{ Items []any }
	// A Dict keeps the order of its keys, which are texts or numbers.
	Dict struct {
		keys   []any
		values map[any]any
	}
	undefined struct{ name string }
	function  func(r *runner, c call) any
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

// Len is the number of keys.
func (d *Dict) Len() int { return len(d.keys) }

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

func hashable(v any) bool {
	switch v.(type) {
	case nil, bool, int64, float64, string:
		return true
	}
	return false
}

func truth(v any) bool {
	switch v := v.(type) {
	case nil, undefined:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case *List:
		return len(v.Items) > 0
	case *Dict:
		return len(v.keys) > 0
	}
	return true
}

func number(v any) (float64, bool) {
	switch v := v.(type) {
	case int64:
		return float64(v), true
	case float64:
		return v, true
	case bool:
		if v {
			return 1, true
		}
		return 0, true
	}
	return 0, false
}

func typeName(v any) string {
	switch v.(type) {
	case nil:
		return "none"
	case undefined:
		return "an undefined value"
	case bool:
		return "a boolean"
	case int64, float64:
		return "a number"
	case string:
		return "a text"
	case *List:
		return "a list"
	case *Dict:
		return "a dict"
	}
	return "a function"
}

// items returns what a loop goes over: a list, the keys of a dict, the characters of a text. Only characters are copied, and charged.
func (r *runner) items(v any) []any {
	switch v := v.(type) {
	case undefined:
		return nil
	case *List:
		return v.Items
	case *Dict:
		return v.keys
	case string:
		n := utf8.RuneCountInString(v)
		r.charge(n)
		all := make([]any, 0, n)
		for _, c := range v {
			all = append(all, string(c))
		}
		return all
	}
	fail("%s is not a list", typeName(v))
	return nil
}

func (r *runner) equal(a, b any) bool {
	r.charge(1)
	if x, ok := number(a); ok {
		y, ok := number(b)
		return ok && x == y
	}
	switch a := a.(type) {
	case *List:
		other, ok := b.(*List)
		r.deeper()
		defer r.higher()
		return ok && slices.EqualFunc(a.Items, other.Items, r.equal)
	case *Dict:
		other, ok := b.(*Dict)
		if !ok || len(a.keys) != len(other.keys) {
			return false
		}
		r.deeper()
		defer r.higher()
		for _, k := range a.keys {
			if w, ok := other.Get(k); !ok || !r.equal(a.values[k], w) {
				return false
			}
		}
		return true
	case undefined:
		_, ok := b.(undefined)
		return ok
	case nil:
		return b == nil
	case string:
		other, ok := b.(string)
		if !ok || len(a) != len(other) {
			return false
		}
		r.chargeText(len(a))
		return a == other
	}
	return false
}

func (r *runner) compare(op string, a, b any) bool {
	switch op {
	case "==":
		return r.equal(a, b)
	case "!=":
		return !r.equal(a, b)
	case "in", "not in":
		return r.contains(b, a) == (op == "in")
	}
	order := r.order(a, b)
	switch op {
	case "<":
		return order < 0
	case "<=":
		return order <= 0
	case ">":
		return order > 0
	}
	return order >= 0
}

// order compares numbers or texts.
func (r *runner) order(a, b any) int {
	r.charge(1)
	if x, ok := number(a); ok {
		if y, ok := number(b); ok {
			return cmp.Compare(x, y)
		}
	}
	x, okX := a.(string)
	y, okY := b.(string)
	if !okX || !okY {
		fail("%s and %s have no order", typeName(a), typeName(b))
	}
	r.chargeText(min(len(x), len(y)))
	return cmp.Compare(x, y)
}

func (r *runner) contains(in, what any) bool {
	switch in := in.(type) {
	case string:
		text, ok := what.(string)
		if !ok {
			fail("%s in a text", typeName(what))
		}
		r.chargeText(len(in))
		return strings.Contains(in, text)
	case *Dict:
		if !hashable(what) {
			return false
		}
		_, ok := in.Get(what)
		return ok
	case *List:
		return slices.ContainsFunc(in.Items, func(v any) bool { return r.equal(v, what) })
	}
	r.items(in) // which is an error but for an undefined value
	return false
}

// text is str() of Python.
func (r *runner) text(v any) string {
	if text, ok := v.(string); ok {
		return text
	}
	if _, ok := v.(undefined); ok {
		return ""
	}
	return string(r.repr(nil, v))
}

func (r *runner) texts(values []any) (all []string) {
	for _, v := range values {
		all = append(all, r.text(v))
	}
	return all
}

// repr appends repr() of Python.
func (r *runner) repr(b []byte, v any) []byte {
	r.charge(1)
	switch v := v.(type) {
	case nil:
		return append(b, "None"...)
	case bool:
		if v {
			return append(b, "True"...)
		}
		return append(b, "False"...)
	case int64:
		return strconv.AppendInt(b, v, 10)
	case float64:
		return append(b, floatText(v)...)
	case string:
		quote := byte('\'')
		if strings.Contains(v, "'") && !strings.Contains(v, `"`) {
			quote = '"'
		}
		r.chargeCopies(2, len(v)) // each byte may be escaped
		b = append(b, quote)
		for i := range len(v) {
			switch c := v[i]; c {
			case '\n', '\r', '\t':
				b = append(b, '\\', map[byte]byte{'\n': 'n', '\r': 'r', '\t': 't'}[c])
			case '\\', quote:
				b = append(b, '\\', c)
			default:
				b = append(b, c)
			}
		}
		return append(b, quote)
	case *List:
		r.deeper()
		b = append(b, '[')
		for i, item := range v.Items {
			if i > 0 {
				b = append(b, ", "...)
			}
			b = r.repr(b, item)
		}
		r.higher()
		return append(b, ']')
	case *Dict:
		r.deeper()
		b = append(b, '{')
		for i, k := range v.keys {
			if i > 0 {
				b = append(b, ", "...)
			}
			b = r.repr(append(r.repr(b, k), ": "...), v.values[k])
		}
		r.higher()
		return append(b, '}')
	}
	return append(append(append(b, '<'), typeName(v)...), '>')
}

func floatText(f float64) string {
	if f == math.Trunc(f) && math.Abs(f) < 1e16 {
		return strconv.FormatFloat(f, 'f', 1, 64)
	}
	text := strconv.FormatFloat(f, 'g', -1, 64)
	if size := math.Abs(f); size >= 1e-4 && size < 1e16 {
		text = strconv.FormatFloat(f, 'f', -1, 64)
	}
	return text
}

// toJSON appends json.dumps with ensure_ascii off. indent below 0 writes one line.
func (r *runner) toJSON(b []byte, v any, indent, depth int) []byte {
	r.charge(1)
	line := func(depth int) {
		if indent >= 0 {
			r.chargeText(indent * depth)
			b = append(b, '\n')
			for range indent * depth {
				b = append(b, ' ')
			}
		}
	}
	list := func(brackets string, n int, write func(i int)) []byte {
		if n == 0 {
			return append(b, brackets...)
		}
		r.deeper()
		b = append(b, brackets[0])
		for i := range n {
			switch {
			case i == 0:
			case indent >= 0:
				b = append(b, ',')
			default:
				b = append(b, ", "...)
			}
			line(depth + 1)
			write(i)
		}
		line(depth)
		r.higher()
		return append(b, brackets[1])
	}
	switch v := v.(type) {
	case nil:
		return append(b, "null"...)
	case bool:
		return strconv.AppendBool(b, v)
	case int64:
		return strconv.AppendInt(b, v, 10)
	case float64:
		return append(b, floatText(v)...)
	case string:
		return r.appendString(b, v)
	case *List:
		return list("[]", len(v.Items), func(i int) { b = r.toJSON(b, v.Items[i], indent, depth+1) })
	case *Dict:
		return list("{}", len(v.keys), func(i int) {
			k := v.keys[i]
			b = append(r.appendString(b, r.text(k)), ": "...)
			b = r.toJSON(b, v.values[k], indent, depth+1)
		})
	}
	fail("%s is not JSON serializable", typeName(v))
	return nil
}

func (r *runner) appendString(b []byte, s string) []byte {
	const escaped, letters = "\"\\\n\r\t\b\f", `"\nrtbf`
	r.chargeText(len(s))
	for i := range len(s) {
		if s[i] < ' ' {
			r.chargeText(bytesPerStep) // it becomes six bytes
		}
	}
	b = append(b, '"')
	for _, c := range s {
		switch at := strings.IndexRune(escaped, c); {
		case at >= 0:
			b = append(b, '\\', letters[at])
		case c < ' ':
			b = fmt.Appendf(b, `\u%04x`, c)
		default:
			b = utf8.AppendRune(b, c)
		}
	}
	return append(b, '"')
}

// FromJSON makes a value of JSON. The keys of objects keep their order.
func FromJSON(raw []byte) (v any, err error) {
	defer recovered(&err)
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if v = fromTokens(d, 0); d.More() {
		fail("something follows the JSON value")
	}
	return v, nil
}

func fromTokens(d *json.Decoder, depth int) any {
	if depth > maxNesting {
		fail("JSON nested more than %d deep", maxNesting)
	}
	next := func() json.Token {
		t, err := d.Token()
		check(err)
		return t
	}
	t := next()
	switch t {
	case json.Delim('['):
		l := &List{}
		for d.More() {
			l.Items = append(l.Items, fromTokens(d, depth+1))
		}
		next()
		return l
	case json.Delim('{'):
		o := &Dict{}
		for d.More() {
			key := next()
			o.Set(key, fromTokens(d, depth+1))
		}
		next()
		return o
	}
	text, isNumber := t.(json.Number)
	if !isNumber {
		return t
	}
	if n, err := strconv.ParseInt(string(text), 10, 64); err == nil {
		return n
	}
	f, err := strconv.ParseFloat(string(text), 64)
	check(err)
	return f
}
