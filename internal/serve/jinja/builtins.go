package jinja

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
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
func FromJSON(raw []byte) (any, error) {
	d := json.NewDecoder(strings.NewReader(string(raw)))
	d.UseNumber()
	v, err := fromTokens(d, 0)
	if err == nil && d.More() {
		err = errors.New("something follows the JSON value")
	}
	return v, err
}

func fromTokens(d *json.Decoder, depth int) (any, error) {
	if depth > deepest {
		return nil, fmt.Errorf("JSON nested more than %d deep", deepest)
	}
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case json.Number:
		if n, err := strconv.ParseInt(string(t), 10, 64); err == nil {
			return n, nil
		}
		return strconv.ParseFloat(string(t), 64)
	case json.Delim:
		if t == '[' {
			l := &List{}
			for d.More() {
				v, err := fromTokens(d, depth+1)
				if err != nil {
					return nil, err
				}
				l.Items = append(l.Items, v)
			}
			_, err := d.Token()
			return l, err
		}
		o := &Dict{}
		for d.More() {
			key, err := d.Token()
			if err != nil {
				return nil, err
			}
			v, err := fromTokens(d, depth+1)
			if err != nil {
				return nil, err
			}
			o.Set(key, v)
		}
		_, err := d.Token()
		return o, err
	}
	return t, nil
}

// toJSON is json.dumps with ensure_ascii off. indent below 0 writes one line.
func toJSON(b []byte, v any, indent, depth int) ([]byte, error) {
	line := func(depth int) {
		if indent >= 0 {
			b = append(append(b, '\n'), strings.Repeat(" ", indent*depth)...)
		}
	}
	comma := func(i int) {
		switch {
		case i == 0:
		case indent >= 0:
			b = append(b, ',')
		default:
			b = append(b, ", "...)
		}
		line(depth + 1)
	}
	var err error
	switch v := v.(type) {
	case nil:
		return append(b, "null"...), nil
	case bool:
		return strconv.AppendBool(b, v), nil
	case int64:
		return strconv.AppendInt(b, v, 10), nil
	case float64:
		return append(b, floatText(v)...), nil
	case string:
		return appendString(b, v), nil
	case *List:
		if len(v.Items) == 0 {
			return append(b, "[]"...), nil
		}
		b = append(b, '[')
		for i, item := range v.Items {
			comma(i)
			if b, err = toJSON(b, item, indent, depth+1); err != nil {
				return nil, err
			}
		}
		line(depth)
		return append(b, ']'), nil
	case *Dict:
		if len(v.keys) == 0 {
			return append(b, "{}"...), nil
		}
		b = append(b, '{')
		for i, k := range v.keys {
			comma(i)
			b = append(appendString(b, toText(k)), ": "...)
			if b, err = toJSON(b, v.values[k], indent, depth+1); err != nil {
				return nil, err
			}
		}
		line(depth)
		return append(b, '}'), nil
	}
	return nil, fmt.Errorf("%s is not JSON serializable", typeName(v))
}

func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r == '\n':
			b = append(b, `\n`...)
		case r == '\r':
			b = append(b, `\r`...)
		case r == '\t':
			b = append(b, `\t`...)
		case r < ' ':
			b = fmt.Appendf(b, `\u%04x`, r)
		default:
			b = append(b, string(r)...)
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
	filters map[string]func(r *runner, v any, c call) (any, error)
	tests   map[string]func(v any, args []any) bool
)

func init() {
	text := func(change func(string) string) func(*runner, any, call) (any, error) {
		return func(_ *runner, v any, _ call) (any, error) { return change(toText(v)), nil }
	}
	items := func(do func(items []any, c call) (any, error)) func(*runner, any, call) (any, error) {
		return func(_ *runner, v any, c call) (any, error) {
			all, err := iterate(v)
			if err != nil {
				return nil, err
			}
			return do(all, c)
		}
	}
	filters = map[string]func(*runner, any, call) (any, error){
		"upper": text(strings.ToUpper), "lower": text(strings.ToLower), "title": text(title), "capitalize": text(capitalize),
		"string": text(func(s string) string { return s }), "safe": text(func(s string) string { return s }),
		"trim": func(_ *runner, v any, c call) (any, error) { return stripped(toText(v), c.plain, true, true), nil },
		"tojson": func(_ *runner, v any, c call) (any, error) {
			indent := -1
			if n, ok := c.arg(0, "indent", nil).(int64); ok {
				indent = int(min(max(n, 0), 16))
			}
			b, err := toJSON(nil, v, indent, 0)
			return string(b), err
		},
		"length": length, "count": length,
		"default": orDefault, "d": orDefault,
		"join": items(func(all []any, c call) (any, error) {
			all, err := mapped(all, c.arg(1, "attribute", nil))
			return strings.Join(texts(all), toText(c.arg(0, "d", ""))), err
		}),
		"first": items(func(all []any, _ call) (any, error) {
			if len(all) == 0 {
				return undefined{"the first of nothing"}, nil
			}
			return all[0], nil
		}),
		"last": items(func(all []any, _ call) (any, error) {
			if len(all) == 0 {
				return undefined{"the last of nothing"}, nil
			}
			return all[len(all)-1], nil
		}),
		"list": items(func(all []any, _ call) (any, error) { return &List{Items: slices.Clone(all)}, nil }),
		"reverse": func(_ *runner, v any, _ call) (any, error) {
			all, err := iterate(v)
			all = slices.Clone(all)
			slices.Reverse(all)
			if _, ok := v.(string); ok {
				return strings.Join(texts(all), ""), err
			}
			return &List{Items: all}, err
		},
		"unique": items(func(all []any, _ call) (any, error) {
			l := &List{}
			for _, v := range all {
				if !slices.ContainsFunc(l.Items, func(w any) bool { return equal(v, w) }) {
					l.Items = append(l.Items, v)
				}
			}
			return l, nil
		}),
		"sort": items(func(all []any, c call) (any, error) {
			all = slices.Clone(all)
			keys, err := mapped(all, c.arg(2, "attribute", nil))
			if err != nil {
				return nil, err
			}
			places := make([]int, len(all))
			for i := range places {
				places[i] = i
			}
			slices.SortStableFunc(places, func(a, b int) int {
				order, failed := ordered(keys[a], keys[b])
				if failed != nil {
					err = failed
				}
				if truth(c.arg(0, "reverse", false)) {
					return -order
				}
				return order
			})
			l := &List{}
			for _, at := range places {
				l.Items = append(l.Items, all[at])
			}
			return l, err
		}),
		"sum": items(func(all []any, c call) (any, error) {
			all, err := mapped(all, c.arg(0, "attribute", nil))
			total := any(int64(0))
			for _, v := range all {
				if err == nil {
					total, err = operate("+", total, v)
				}
			}
			return total, err
		}),
		"max": items(func(all []any, _ call) (any, error) { return extreme(all, 1) }),
		"min": items(func(all []any, _ call) (any, error) { return extreme(all, -1) }),
		"map": func(r *runner, v any, c call) (any, error) {
			all, err := iterate(v)
			if err != nil {
				return nil, err
			}
			if attribute, ok := c.named["attribute"]; ok {
				all, err = mapped(all, attribute)
				return &List{Items: all}, err
			}
			name, _ := c.arg(0, "", "").(string)
			f := filters[name]
			if f == nil {
				return nil, fmt.Errorf("the filter %q is not supported", name)
			}
			l := &List{}
			for _, v := range all {
				one, err := f(r, v, call{c.plain[1:], c.named})
				if err != nil {
					return nil, err
				}
				l.Items = append(l.Items, one)
			}
			return l, nil
		},
		"select": selecting(false, true), "reject": selecting(false, false),
		"selectattr": selecting(true, true), "rejectattr": selecting(true, false),
		"items": func(_ *runner, v any, _ call) (any, error) {
			d, ok := v.(*Dict)
			if !ok {
				return &List{}, nil
			}
			return pairs(d), nil
		},
		"dictsort": func(_ *runner, v any, _ call) (any, error) {
			d, ok := v.(*Dict)
			if !ok {
				return nil, fmt.Errorf("%s is no dict", typeName(v))
			}
			l := pairs(d)
			slices.SortStableFunc(l.Items, func(a, b any) int {
				return cmp.Compare(strings.ToLower(toText(a.(*List).Items[0])), strings.ToLower(toText(b.(*List).Items[0])))
			})
			return l, nil
		},
		"replace": func(_ *runner, v any, c call) (any, error) {
			return strings.ReplaceAll(toText(v), toText(c.arg(0, "old", "")), toText(c.arg(1, "new", ""))), nil
		},
		"indent": func(_ *runner, v any, c call) (any, error) {
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
			return strings.Join(lines, "\n"), nil
		},
		"int": func(_ *runner, v any, c call) (any, error) {
			if f, ok := number(v); ok {
				return int64(f), nil
			}
			if f, err := strconv.ParseFloat(strings.TrimSpace(toText(v)), 64); err == nil {
				return int64(f), nil
			}
			return c.arg(0, "default", int64(0)), nil
		},
		"float": func(_ *runner, v any, c call) (any, error) {
			if f, ok := number(v); ok {
				return f, nil
			}
			if f, err := strconv.ParseFloat(strings.TrimSpace(toText(v)), 64); err == nil {
				return f, nil
			}
			return c.arg(0, "default", 0.0), nil
		},
		"abs": func(_ *runner, v any, _ call) (any, error) {
			if n, ok := v.(int64); ok {
				return max(n, -n), nil
			}
			f, ok := number(v)
			if !ok {
				return nil, fmt.Errorf("%s is no number", typeName(v))
			}
			return math.Abs(f), nil
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

func escaped(_ *runner, v any, _ call) (any, error) {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&#34;", "'", "&#39;").Replace(toText(v)), nil
}

func length(_ *runner, v any, _ call) (any, error) {
	if d, ok := v.(*Dict); ok {
		return int64(len(d.keys)), nil
	}
	all, err := iterate(v)
	return int64(len(all)), err
}

func orDefault(_ *runner, v any, c call) (any, error) {
	_, missing := v.(undefined)
	if missing || truth(c.arg(1, "boolean", false)) && !truth(v) {
		return c.arg(0, "default_value", ""), nil
	}
	return v, nil
}

func extreme(all []any, sign int) (any, error) {
	if len(all) == 0 {
		return undefined{"the extreme of nothing"}, nil
	}
	best := all[0]
	for _, v := range all[1:] {
		order, err := ordered(v, best)
		if err != nil {
			return nil, err
		}
		if order*sign > 0 {
			best = v
		}
	}
	return best, nil
}

// mapped are the attributes of this name, with dots for those of attributes; all themselves without a name.
func mapped(all []any, attribute any) ([]any, error) {
	if attribute == nil {
		return all, nil
	}
	out := make([]any, 0, len(all))
	for _, v := range all {
		v, err := attributeOf(v, attribute)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}

func attributeOf(v, attribute any) (any, error) {
	if n, ok := attribute.(int64); ok {
		return lookUp(v, n, false)
	}
	var err error
	for name := range strings.SplitSeq(toText(attribute), ".") {
		if v, err = lookUp(v, name, false); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// selecting keeps the items, or those whose attribute, for which a test holds.
func selecting(byAttribute, keep bool) func(*runner, any, call) (any, error) {
	return func(_ *runner, v any, c call) (any, error) {
		all, err := iterate(v)
		if err != nil {
			return nil, err
		}
		args := c.plain
		var attribute any
		if byAttribute {
			if len(args) == 0 {
				return nil, errors.New("it wants the name of an attribute")
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
				return nil, fmt.Errorf("the test %q is not supported", name)
			}
			args = args[1:]
		}
		l := &List{}
		for _, v := range all {
			of := v
			if byAttribute {
				if of, err = attributeOf(v, attribute); err != nil {
					return nil, err
				}
			}
			if test(of, args) == keep {
				l.Items = append(l.Items, v)
			}
		}
		return l, nil
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
	var do func(args []any, named map[string]any) (any, error)
	switch of := of.(type) {
	case string:
		do = textMethod(of, name)
	case *List:
		switch name {
		case "append":
			do = func(args []any, _ map[string]any) (any, error) { of.Items = append(of.Items, args...); return nil, nil }
		case "extend":
			do = func(args []any, _ map[string]any) (any, error) {
				for _, a := range args {
					more, err := iterate(a)
					if err != nil {
						return nil, err
					}
					of.Items = append(of.Items, more...)
				}
				return nil, nil
			}
		case "pop":
			do = func(args []any, _ map[string]any) (any, error) {
				at := int64(len(of.Items) - 1)
				if len(args) > 0 {
					at, _ = args[0].(int64)
				}
				if at < 0 || at >= int64(len(of.Items)) {
					return nil, errors.New("pop index out of range")
				}
				v := of.Items[at]
				of.Items = slices.Delete(slices.Clone(of.Items), int(at), int(at)+1)
				return v, nil
			}
		case "index":
			do = func(args []any, _ map[string]any) (any, error) {
				at := slices.IndexFunc(of.Items, func(v any) bool { return len(args) > 0 && equal(v, args[0]) })
				if at < 0 {
					return nil, errors.New("the value is not in the list")
				}
				return int64(at), nil
			}
		}
	case *Dict:
		do = dictMethod(of, name)
	}
	if do == nil {
		return nil
	}
	return function(func(_ *runner, args []any, named map[string]any) (any, error) { return do(args, named) })
}

func dictMethod(of *Dict, name string) func(args []any, named map[string]any) (any, error) {
	switch name {
	case "items":
		return func([]any, map[string]any) (any, error) { return pairs(of), nil }
	case "keys":
		return func([]any, map[string]any) (any, error) { return &List{Items: slices.Clone(of.keys)}, nil }
	case "values":
		return func([]any, map[string]any) (any, error) {
			l := &List{}
			for _, k := range of.keys {
				l.Items = append(l.Items, of.values[k])
			}
			return l, nil
		}
	case "get":
		return func(args []any, _ map[string]any) (any, error) {
			c := call{plain: args}
			if key := c.arg(0, "", nil); hashable(key) {
				if v, ok := of.Get(key); ok {
					return v, nil
				}
			}
			return c.arg(1, "", nil), nil
		}
	case "update":
		return func(args []any, named map[string]any) (any, error) {
			more, err := newDict(nil, args, named)
			if err == nil {
				for _, k := range more.(*Dict).keys {
					of.Set(k, more.(*Dict).values[k])
				}
			}
			return nil, err
		}
	}
	return nil
}

func textMethod(s, name string) func(args []any, named map[string]any) (any, error) {
	plain := func(do func(args []any) any) func([]any, map[string]any) (any, error) {
		return func(args []any, _ map[string]any) (any, error) { return do(args), nil }
	}
	arg := func(args []any, at int) string { return toText(call{plain: args}.arg(at, "", "")) }
	affix := func(has func(s, affix string) bool) func([]any, map[string]any) (any, error) {
		return plain(func(args []any) any {
			if l, ok := (call{plain: args}).arg(0, "", "").(*List); ok {
				return slices.ContainsFunc(l.Items, func(v any) bool { return has(s, toText(v)) })
			}
			return has(s, arg(args, 0))
		})
	}
	switch name {
	case "strip":
		return plain(func(args []any) any { return stripped(s, args, true, true) })
	case "lstrip":
		return plain(func(args []any) any { return stripped(s, args, true, false) })
	case "rstrip":
		return plain(func(args []any) any { return stripped(s, args, false, true) })
	case "startswith":
		return affix(strings.HasPrefix)
	case "endswith":
		return affix(strings.HasSuffix)
	case "upper":
		return plain(func([]any) any { return strings.ToUpper(s) })
	case "lower":
		return plain(func([]any) any { return strings.ToLower(s) })
	case "title":
		return plain(func([]any) any { return title(s) })
	case "capitalize":
		return plain(func([]any) any { return capitalize(s) })
	case "removeprefix":
		return plain(func(args []any) any { return strings.TrimPrefix(s, arg(args, 0)) })
	case "removesuffix":
		return plain(func(args []any) any { return strings.TrimSuffix(s, arg(args, 0)) })
	case "replace":
		return plain(func(args []any) any {
			most := -1
			if n, ok := (call{plain: args}).arg(2, "", nil).(int64); ok {
				most = int(n)
			}
			return strings.Replace(s, arg(args, 0), arg(args, 1), most)
		})
	case "count":
		return plain(func(args []any) any { return int64(strings.Count(s, arg(args, 0))) })
	case "find":
		return plain(func(args []any) any {
			at := strings.Index(s, arg(args, 0))
			if at < 0 {
				return int64(-1)
			}
			return int64(len([]rune(s[:at])))
		})
	case "isdigit":
		return plain(func([]any) any {
			return s != "" && strings.IndexFunc(s, func(r rune) bool { return !unicode.IsDigit(r) }) < 0
		})
	case "join":
		return func(args []any, _ map[string]any) (any, error) {
			all, err := iterate(call{plain: args}.arg(0, "", undefined{}))
			return strings.Join(texts(all), s), err
		}
	case "splitlines":
		return plain(func([]any) any {
			l := &List{}
			for line := range strings.Lines(s) {
				l.Items = append(l.Items, strings.TrimRight(line, "\r\n"))
			}
			return l
		})
	case "split", "rsplit":
		return func(args []any, named map[string]any) (any, error) {
			c := call{args, named}
			most := -1
			if n, ok := c.arg(1, "maxsplit", nil).(int64); ok && n >= 0 {
				most = int(n) + 1
			}
			separator := c.arg(0, "sep", nil)
			l := &List{}
			switch {
			case separator == nil:
				for _, word := range strings.Fields(s) {
					l.Items = append(l.Items, word)
				}
			case toText(separator) == "":
				return nil, errors.New("empty separator")
			case name == "rsplit" && most > 0:
				rest := s
				for range most - 1 {
					at := strings.LastIndex(rest, toText(separator))
					if at < 0 {
						break
					}
					l.Items = append(l.Items, rest[at+len(toText(separator)):])
					rest = rest[:at]
				}
				l.Items = append(l.Items, rest)
				slices.Reverse(l.Items)
			default:
				for _, part := range strings.SplitN(s, toText(separator), most) {
					l.Items = append(l.Items, part)
				}
			}
			return l, nil
		}
	}
	return nil
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
