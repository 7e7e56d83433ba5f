package jinja

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

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

// iterate returns what a loop goes over.
func iterate(v any) ([]any, error) {
	switch v := v.(type) {
	case undefined:
		return nil, nil
	case *List:
		return v.Items, nil
	case *Dict:
		return v.keys, nil
	case string:
		var all []any
		for _, c := range v {
			all = append(all, string(c))
		}
		return all, nil
	}
	return nil, fmt.Errorf("%s is no list", typeName(v))
}

// itemsOf is [iterate] of what has to be a list.
func itemsOf(v any) []any {
	items, err := iterate(v)
	check(err)
	return items
}

func equal(a, b any) bool {
	if x, ok := number(a); ok {
		y, ok := number(b)
		return ok && x == y
	}
	switch a := a.(type) {
	case *List:
		other, ok := b.(*List)
		return ok && slices.EqualFunc(a.Items, other.Items, equal)
	case *Dict:
		other, ok := b.(*Dict)
		if !ok || len(a.keys) != len(other.keys) {
			return false
		}
		for k, v := range a.values {
			if w, ok := other.Get(k); !ok || !equal(v, w) {
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
		return ok && a == other
	}
	return false
}

func compare(op string, a, b any) (bool, error) {
	switch op {
	case "==":
		return equal(a, b), nil
	case "!=":
		return !equal(a, b), nil
	case "in", "not in":
		in, err := contains(b, a)
		return in == (op == "in"), err
	}
	order, err := ordered(a, b)
	switch op {
	case "<":
		return order < 0, err
	case "<=":
		return order <= 0, err
	case ">":
		return order > 0, err
	}
	return order >= 0, err
}

func ordered(a, b any) (int, error) {
	if x, ok := number(a); ok {
		if y, ok := number(b); ok {
			return cmp.Compare(x, y), nil
		}
	}
	x, okX := a.(string)
	y, okY := b.(string)
	if okX && okY {
		return cmp.Compare(x, y), nil
	}
	return 0, fmt.Errorf("%s and %s have no order", typeName(a), typeName(b))
}

func contains(in, what any) (bool, error) {
	switch in := in.(type) {
	case string:
		text, ok := what.(string)
		if !ok {
			return false, fmt.Errorf("%s in a text", typeName(what))
		}
		return strings.Contains(in, text), nil
	case *Dict:
		_, ok := in.Get(what)
		return ok && hashable(what), nil
	}
	all, err := iterate(in)
	return slices.ContainsFunc(all, func(v any) bool { return equal(v, what) }), err
}

// toText is str() of Python.
func toText(v any) string {
	if text, ok := v.(string); ok {
		return text
	}
	if _, ok := v.(undefined); ok {
		return ""
	}
	return repr(v)
}

func repr(v any) string {
	switch v := v.(type) {
	case nil:
		return "None"
	case bool:
		if v {
			return "True"
		}
		return "False"
	case int64:
		return strconv.FormatInt(v, 10)
	case float64:
		return floatText(v)
	case string:
		quote := "'"
		if strings.Contains(v, "'") && !strings.Contains(v, `"`) {
			quote = `"`
		}
		text := strings.NewReplacer(`\`, `\\`, "\n", `\n`, "\r", `\r`, "\t", `\t`, quote, `\`+quote).Replace(v)
		return quote + text + quote
	case *List:
		var all []string
		for _, item := range v.Items {
			all = append(all, repr(item))
		}
		return "[" + strings.Join(all, ", ") + "]"
	case *Dict:
		var all []string
		for _, k := range v.keys {
			all = append(all, repr(k)+": "+repr(v.values[k]))
		}
		return "{" + strings.Join(all, ", ") + "}"
	}
	return "<" + typeName(v) + ">"
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
	if depth > deepest {
		fail("JSON nested more than %d deep", deepest)
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

// toJSON is json.dumps with ensure_ascii off. indent below 0 writes one line.
func toJSON(b []byte, v any, indent, depth int) []byte {
	line := func(depth int) {
		if indent >= 0 {
			b = append(append(b, '\n'), strings.Repeat(" ", indent*depth)...)
		}
	}
	list := func(brackets string, n int, write func(i int)) []byte {
		if n == 0 {
			return append(b, brackets...)
		}
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
		return appendString(b, v)
	case *List:
		return list("[]", len(v.Items), func(i int) { b = toJSON(b, v.Items[i], indent, depth+1) })
	case *Dict:
		return list("{}", len(v.keys), func(i int) {
			k := v.keys[i]
			b = append(appendString(b, toText(k)), ": "...)
			b = toJSON(b, v.values[k], indent, depth+1)
		})
	}
	fail("%s is not JSON serializable", typeName(v))
	return nil
}

func appendString(b []byte, s string) []byte {
	const escaped, letters = "\"\\\n\r\t\b\f", `"\nrtbf`
	b = append(b, '"')
	for _, r := range s {
		switch at := strings.IndexRune(escaped, r); {
		case at >= 0:
			b = append(b, '\\', letters[at])
		case r < ' ':
			b = fmt.Appendf(b, `\u%04x`, r)
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return append(b, '"')
}

// A call is the arguments of a filter.
type call struct {
	plain []any
	named map[string]any
}

// arg is the argument at a place, or of a name, or else otherwise.
func (c call) arg(at int, name string, otherwise any) any {
	if at < len(c.plain) {
		return c.plain[at]
	}
	if v, ok := c.named[name]; ok {
		return v
	}
	return otherwise
}

var (
	filters map[string]func(r *runner, v any, c call) any
	tests   map[string]func(v any, args []any) bool
)

func init() {
	text := func(change func(string) string) func(*runner, any, call) any {
		return func(_ *runner, v any, _ call) any { return change(toText(v)) }
	}
	items := func(do func(items []any, c call) any) func(*runner, any, call) any {
		return func(_ *runner, v any, c call) any { return do(itemsOf(v), c) }
	}
	filters = map[string]func(*runner, any, call) any{
		"upper": text(strings.ToUpper), "lower": text(strings.ToLower), "title": text(title), "capitalize": text(capitalize),
		"string": text(func(s string) string { return s }), "safe": text(func(s string) string { return s }),
		"trim": func(_ *runner, v any, c call) any { return stripped(toText(v), c.plain, true, true) },
		"tojson": func(_ *runner, v any, c call) any {
			indent := -1
			if n, ok := c.arg(0, "indent", nil).(int64); ok {
				indent = int(min(max(n, 0), 16))
			}
			return string(toJSON(nil, v, indent, 0))
		},
		"length": length, "count": length,
		"default": orDefault, "d": orDefault,
		"join": items(func(all []any, c call) any {
			return strings.Join(texts(mapped(all, c.arg(1, "attribute", nil))), toText(c.arg(0, "d", "")))
		}),
		"first": items(func(all []any, _ call) any {
			if len(all) == 0 {
				return undefined{"the first of nothing"}
			}
			return all[0]
		}),
		"last": items(func(all []any, _ call) any {
			if len(all) == 0 {
				return undefined{"the last of nothing"}
			}
			return all[len(all)-1]
		}),
		"list": items(func(all []any, _ call) any { return &List{Items: slices.Clone(all)} }),
		"reverse": func(_ *runner, v any, _ call) any {
			all := slices.Clone(itemsOf(v))
			slices.Reverse(all)
			if _, ok := v.(string); ok {
				return strings.Join(texts(all), "")
			}
			return &List{Items: all}
		},
		"unique": items(func(all []any, _ call) any {
			l := &List{}
			for _, v := range all {
				if !slices.ContainsFunc(l.Items, func(w any) bool { return equal(v, w) }) {
					l.Items = append(l.Items, v)
				}
			}
			return l
		}),
		"sort": items(func(all []any, c call) any {
			keys := mapped(all, c.arg(2, "attribute", nil))
			places := make([]int, len(all))
			for i := range places {
				places[i] = i
			}
			sign := 1
			if truth(c.arg(0, "reverse", false)) {
				sign = -1
			}
			slices.SortStableFunc(places, func(a, b int) int { return sign * order(keys[a], keys[b]) })
			l := &List{}
			for _, at := range places {
				l.Items = append(l.Items, all[at])
			}
			return l
		}),
		"sum": items(func(all []any, c call) any {
			total := any(int64(0))
			for _, v := range mapped(all, c.arg(0, "attribute", nil)) {
				total = operate("+", total, v)
			}
			return total
		}),
		"max": items(func(all []any, _ call) any { return extreme(all, 1) }),
		"min": items(func(all []any, _ call) any { return extreme(all, -1) }),
		"map": func(r *runner, v any, c call) any {
			all := itemsOf(v)
			if attribute, ok := c.named["attribute"]; ok {
				return &List{Items: mapped(all, attribute)}
			}
			name, _ := c.arg(0, "", "").(string)
			f := filters[name]
			if f == nil {
				fail("the filter %q is not supported", name)
			}
			l := &List{}
			for _, v := range all {
				l.Items = append(l.Items, f(r, v, call{c.plain[1:], c.named}))
			}
			return l
		},
		"select": selecting(false, true), "reject": selecting(false, false),
		"selectattr": selecting(true, true), "rejectattr": selecting(true, false),
		"items": func(_ *runner, v any, _ call) any {
			d, ok := v.(*Dict)
			if !ok {
				return &List{}
			}
			return pairs(d)
		},
		"dictsort": func(_ *runner, v any, _ call) any {
			d, ok := v.(*Dict)
			if !ok {
				fail("%s is no dict", typeName(v))
			}
			l := pairs(d)
			slices.SortStableFunc(l.Items, func(a, b any) int {
				return cmp.Compare(strings.ToLower(toText(a.(*List).Items[0])), strings.ToLower(toText(b.(*List).Items[0])))
			})
			return l
		},
		"replace": func(_ *runner, v any, c call) any {
			return strings.ReplaceAll(toText(v), toText(c.arg(0, "old", "")), toText(c.arg(1, "new", "")))
		},
		"indent": func(_ *runner, v any, c call) any {
			width := "    "
			switch w := c.arg(0, "width", nil).(type) {
			case int64:
				width = strings.Repeat(" ", int(min(max(w, 0), 64)))
			case string:
				width = w
			}
			lines := strings.Split(toText(v), "\n")
			for i, line := range lines {
				if (i > 0 || truth(c.arg(1, "first", false))) && (line != "" || truth(c.arg(2, "blank", false))) {
					lines[i] = width + line
				}
			}
			return strings.Join(lines, "\n")
		},
		"int": func(_ *runner, v any, c call) any {
			if f, ok := parsed(v); ok {
				return int64(f)
			}
			return c.arg(0, "default", int64(0))
		},
		"float": func(_ *runner, v any, c call) any {
			if f, ok := parsed(v); ok {
				return f
			}
			return c.arg(0, "default", 0.0)
		},
		"abs": func(_ *runner, v any, _ call) any {
			if n, ok := v.(int64); ok {
				return max(n, -n)
			}
			f, ok := number(v)
			if !ok {
				fail("%s is no number", typeName(v))
			}
			return math.Abs(f)
		},
	}
	filters["escape"], filters["e"] = escaped, escaped
	kinds := func(kinds ...string) func(any, []any) bool {
		return func(v any, _ []any) bool { return slices.Contains(kinds, typeName(v)) }
	}
	compared := func(op string) func(any, []any) bool {
		return func(v any, args []any) bool {
			if len(args) == 0 {
				return false
			}
			ok, err := compare(op, v, args[0])
			return ok && err == nil
		}
	}
	tests = map[string]func(any, []any) bool{
		"defined":   func(v any, _ []any) bool { _, not := v.(undefined); return !not },
		"undefined": func(v any, _ []any) bool { _, is := v.(undefined); return is },
		"none":      kinds("none"), "string": kinds("a text"), "number": kinds("a number", "a boolean"), "boolean": kinds("a boolean"),
		"mapping": kinds("a dict"), "sequence": kinds("a list", "a text", "a dict"), "iterable": kinds("a list", "a text", "a dict", "an undefined value"),
		"callable": kinds("a function"),
		"integer":  func(v any, _ []any) bool { _, is := v.(int64); return is },
		"float":    func(v any, _ []any) bool { _, is := v.(float64); return is },
		"true":     func(v any, _ []any) bool { return v == true },
		"false":    func(v any, _ []any) bool { return v == false },
		"odd":      func(v any, _ []any) bool { n, is := v.(int64); return is && n%2 != 0 },
		"even":     func(v any, _ []any) bool { n, is := v.(int64); return is && n%2 == 0 },
		"divisibleby": func(v any, args []any) bool {
			n, is := v.(int64)
			if len(args) == 0 {
				return false
			}
			by, number := args[0].(int64)
			return is && number && by != 0 && n%by == 0
		},
		"upper": func(v any, _ []any) bool { s := toText(v); return s == strings.ToUpper(s) && s != strings.ToLower(s) },
		"lower": func(v any, _ []any) bool { s := toText(v); return s == strings.ToLower(s) && s != strings.ToUpper(s) },
		"sameas": func(v any, args []any) bool {
			return len(args) > 0 && equal(v, args[0]) && typeName(v) == typeName(args[0])
		},
		"eq": compared("=="), "equalto": compared("=="), "ne": compared("!="), "lt": compared("<"), "gt": compared(">"), "le": compared("<="),
		"ge": compared(">="), "in": compared("in"),
	}
}

func escaped(_ *runner, v any, _ call) any {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&#34;", "'", "&#39;").Replace(toText(v))
}

// parsed is a number, or that of a text.
func parsed(v any) (float64, bool) {
	if f, ok := number(v); ok {
		return f, true
	}
	f, err := strconv.ParseFloat(strings.TrimSpace(toText(v)), 64)
	return f, err == nil
}

func length(_ *runner, v any, _ call) any { return int64(len(itemsOf(v))) }

func orDefault(_ *runner, v any, c call) any {
	_, missing := v.(undefined)
	if missing || truth(c.arg(1, "boolean", false)) && !truth(v) {
		return c.arg(0, "default_value", "")
	}
	return v
}

// order is [ordered] of what has to have an order.
func order(a, b any) int {
	n, err := ordered(a, b)
	check(err)
	return n
}

func extreme(all []any, sign int) any {
	if len(all) == 0 {
		return undefined{"the extreme of nothing"}
	}
	best := all[0]
	for _, v := range all[1:] {
		if order(v, best)*sign > 0 {
			best = v
		}
	}
	return best
}

// mapped are the attributes of this name, with dots for those of attributes; all themselves without a name.
func mapped(all []any, attribute any) []any {
	if attribute == nil {
		return all
	}
	out := make([]any, 0, len(all))
	for _, v := range all {
		out = append(out, attributeOf(v, attribute))
	}
	return out
}

func attributeOf(v, attribute any) any {
	if n, ok := attribute.(int64); ok {
		return lookUp(v, n, false)
	}
	for name := range strings.SplitSeq(toText(attribute), ".") {
		v = lookUp(v, name, false)
	}
	return v
}

// selecting keeps the items, or those whose attribute, for which a test holds.
func selecting(byAttribute, keep bool) func(*runner, any, call) any {
	return func(_ *runner, v any, c call) any {
		all, args := itemsOf(v), c.plain
		var attribute any
		if byAttribute {
			if len(args) == 0 {
				fail("it wants the name of an attribute")
			}
			attribute, args = args[0], args[1:]
		}
		test := func(v any, _ []any) bool { return truth(v) }
		if len(args) > 0 {
			name := toText(args[0])
			if name == "==" {
				name = "eq"
			}
			if test = tests[name]; test == nil {
				fail("the test %q is not supported", name)
			}
			args = args[1:]
		}
		l := &List{}
		for i, of := range mapped(all, attribute) {
			if test(of, args) == keep {
				l.Items = append(l.Items, all[i])
			}
		}
		return l
	}
}

func pairs(d *Dict) *List {
	l := &List{}
	for _, k := range d.keys {
		l.Items = append(l.Items, &List{Items: []any{k, d.values[k]}})
	}
	return l
}

func title(s string) string {
	var b strings.Builder
	begin := true
	for _, r := range s {
		if begin {
			b.WriteRune(unicode.ToUpper(r))
		} else {
			b.WriteRune(unicode.ToLower(r))
		}
		begin = !unicode.IsLetter(r) && r != '\''
	}
	return b.String()
}

func capitalize(s string) string {
	for i, r := range s {
		if i == 0 {
			return string(unicode.ToUpper(r)) + strings.ToLower(s[len(string(r)):])
		}
	}
	return s
}

// stripped is strip of Python: of white space, or of the characters of the first argument.
func stripped(s string, args []any, left, right bool) string {
	cut := unicode.IsSpace
	if len(args) > 0 && args[0] != nil {
		set := toText(args[0])
		cut = func(r rune) bool { return strings.ContainsRune(set, r) }
	}
	if left {
		s = strings.TrimLeftFunc(s, cut)
	}
	if right {
		s = strings.TrimRightFunc(s, cut)
	}
	return s
}

// method is a method of a text, a list or a dict; nil if there is none of this name.
func method(of any, name string) any {
	var do func(c call) any
	switch of := of.(type) {
	case string:
		do = textMethod(of, name)
	case *List:
		do = listMethod(of, name)
	case *Dict:
		do = dictMethod(of, name)
	}
	if do == nil {
		return nil
	}
	return function(func(_ *runner, args []any, named map[string]any) any { return do(call{args, named}) })
}

func listMethod(of *List, name string) func(c call) any {
	switch name {
	case "append":
		return func(c call) any { of.Items = append(of.Items, c.plain...); return nil }
	case "extend":
		return func(c call) any {
			for _, a := range c.plain {
				of.Items = append(of.Items, itemsOf(a)...)
			}
			return nil
		}
	case "pop":
		return func(c call) any {
			at, _ := c.arg(0, "", int64(len(of.Items)-1)).(int64)
			if at < 0 || at >= int64(len(of.Items)) {
				fail("pop index out of range")
			}
			v := of.Items[at]
			of.Items = slices.Delete(slices.Clone(of.Items), int(at), int(at)+1)
			return v
		}
	case "index":
		return func(c call) any {
			at := slices.IndexFunc(of.Items, func(v any) bool { return len(c.plain) > 0 && equal(v, c.plain[0]) })
			if at < 0 {
				fail("the value is not in the list")
			}
			return int64(at)
		}
	}
	return nil
}

func dictMethod(of *Dict, name string) func(c call) any {
	switch name {
	case "items":
		return func(call) any { return pairs(of) }
	case "keys":
		return func(call) any { return &List{Items: slices.Clone(of.keys)} }
	case "values":
		return func(call) any {
			l := &List{}
			for _, k := range of.keys {
				l.Items = append(l.Items, of.values[k])
			}
			return l
		}
	case "get":
		return func(c call) any {
			if key := c.arg(0, "", nil); hashable(key) {
				if v, ok := of.Get(key); ok {
					return v
				}
			}
			return c.arg(1, "", nil)
		}
	case "update":
		return func(c call) any {
			more := newDict(nil, c.plain, c.named).(*Dict)
			for _, k := range more.keys {
				of.Set(k, more.values[k])
			}
			return nil
		}
	}
	return nil
}

func textMethod(s, name string) func(c call) any {
	switch name {
	case "strip":
		return func(c call) any { return stripped(s, c.plain, true, true) }
	case "lstrip":
		return func(c call) any { return stripped(s, c.plain, true, false) }
	case "rstrip":
		return func(c call) any { return stripped(s, c.plain, false, true) }
	case "startswith":
		return func(c call) any { return c.affix(s, strings.HasPrefix) }
	case "endswith":
		return func(c call) any { return c.affix(s, strings.HasSuffix) }
	case "upper":
		return func(call) any { return strings.ToUpper(s) }
	case "lower":
		return func(call) any { return strings.ToLower(s) }
	case "title":
		return func(call) any { return title(s) }
	case "capitalize":
		return func(call) any { return capitalize(s) }
	case "removeprefix":
		return func(c call) any { return strings.TrimPrefix(s, c.text(0)) }
	case "removesuffix":
		return func(c call) any { return strings.TrimSuffix(s, c.text(0)) }
	case "replace":
		return func(c call) any {
			most, limited := c.arg(2, "", nil).(int64)
			if !limited {
				most = -1
			}
			return strings.Replace(s, c.text(0), c.text(1), int(most))
		}
	case "count":
		return func(c call) any { return int64(strings.Count(s, c.text(0))) }
	case "find":
		return func(c call) any {
			before, _, found := strings.Cut(s, c.text(0))
			if !found {
				return int64(-1)
			}
			return int64(utf8.RuneCountInString(before))
		}
	case "isdigit":
		return func(call) any {
			return s != "" && strings.IndexFunc(s, func(r rune) bool { return !unicode.IsDigit(r) }) < 0
		}
	case "join":
		return func(c call) any { return strings.Join(texts(itemsOf(c.arg(0, "", undefined{}))), s) }
	case "splitlines":
		return func(call) any {
			l := &List{}
			for line := range strings.Lines(s) {
				l.Items = append(l.Items, strings.TrimRight(line, "\r\n"))
			}
			return l
		}
	case "split", "rsplit":
		return func(c call) any { return split(s, c, name == "rsplit") }
	}
	return nil
}

// text is the argument at a place as a text, "" if there is none.
func (c call) text(at int) string { return toText(c.arg(at, "", "")) }

// affix reports whether a text has the affix that is the first argument, or one of those in a list.
func (c call) affix(s string, has func(s, affix string) bool) bool {
	if l, ok := c.arg(0, "", "").(*List); ok {
		return slices.ContainsFunc(l.Items, func(v any) bool { return has(s, toText(v)) })
	}
	return has(s, c.text(0))
}

// split is that of Python, or rsplit.
func split(s string, c call, fromRight bool) *List {
	most := -1
	if n, ok := c.arg(1, "maxsplit", nil).(int64); ok && n >= 0 {
		most = int(n) + 1
	}
	var parts []string
	separator := c.arg(0, "sep", nil)
	switch mark := toText(separator); {
	case separator == nil:
		parts = strings.Fields(s)
	case mark == "":
		fail("empty separator")
	case fromRight && most > 0:
		for range most - 1 {
			at := strings.LastIndex(s, mark)
			if at < 0 {
				break
			}
			parts, s = append(parts, s[at+len(mark):]), s[:at]
		}
		parts = append(parts, s)
		slices.Reverse(parts)
	default:
		parts = strings.SplitN(s, mark, most)
	}
	l := &List{}
	for _, part := range parts {
		l.Items = append(l.Items, part)
	}
	return l
}

// strftime formats a time as Python does.
func strftime(t time.Time, format string) string {
	layouts := map[byte]string{
		'd': "02", 'm': "01", 'Y': "2006", 'y': "06", 'H': "15", 'I': "03", 'M': "04", 'S': "05", 'B': "January", 'b': "Jan", 'A': "Monday",
		'a': "Mon", 'p': "PM", 'j': "002", 'Z': "MST", 'z': "-0700", 'F': "2006-01-02", 'T': "15:04:05",
	}
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		layout, known := "", false
		if format[i] == '%' && i+1 < len(format) {
			layout, known = layouts[format[i+1]]
		}
		switch {
		case known:
			b.WriteString(t.Format(layout))
			i++
		case format[i] == '%' && i+1 < len(format) && format[i+1] == '-' && i+2 < len(format):
			b.WriteString(strings.TrimLeft(t.Format(layouts[format[i+2]]), "0"))
			i += 2
		case format[i] == '%' && i+1 < len(format) && format[i+1] == '%':
			b.WriteByte('%')
			i++
		default:
			b.WriteByte(format[i])
		}
	}
	return b.String()
}
