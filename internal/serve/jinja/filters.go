package jinja

import (
	"html"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// filters are the functions behind "|". "map" is one more, which looks others up here.
var filters = map[string]func(r *runner, v any, c call) any{
	"upper": textFilter(upper), "lower": textFilter(lower), "title": textFilter(title), "capitalize": textFilter(capitalize), "trim": textFilter(strip),
	"string": textFilter(unchanged), "safe": textFilter(unchanged), "escape": textFilter(escape), "e": textFilter(escape),
	"replace": textFilter(replace), "indent": textFilter(indent),
	"length": length, "count": length, "default": orDefault, "d": orDefault,
	"first": func(r *runner, v any, _ call) any { return r.lookUp(indexable(v), int64(0), false) },
	"last":  func(r *runner, v any, _ call) any { return r.lookUp(indexable(v), int64(-1), false) },
	"join": func(r *runner, v any, c call) any {
		return r.join(r.mapped(r.items(v), c.arg(1, "attribute", nil)), r.text(c.arg(0, "d", "")))
	},
	"list": func(r *runner, v any, _ call) any { return r.list(r.items(v)) },
	"reverse": func(r *runner, v any, _ call) any {
		back := int64(-1)
		return r.slice(v, nil, nil, &back)
	},
	"unique": func(r *runner, v any, _ call) any {
		l := &List{}
		for _, v := range r.items(v) {
			r.charge(1)
			if !slices.ContainsFunc(l.Items, func(w any) bool { return r.equal(v, w) }) {
				l.Items = append(l.Items, v)
			}
		}
		return l
	},
	"sort": func(r *runner, v any, c call) any {
		all := r.items(v)
		return r.sorted(all, r.mapped(all, c.arg(2, "attribute", nil)), truth(c.arg(0, "reverse", false)))
	},
	"dictsort": func(r *runner, v any, _ call) any {
		d, ok := v.(*Dict)
		if !ok {
			fail("%s is not a dict", typeName(v))
		}
		var keys []any
		for _, k := range d.keys {
			keys = append(keys, lower(r, r.text(k), call{}))
		}
		return r.sorted(r.pairs(d).Items, keys, false)
	},
	"sum": func(r *runner, v any, c call) any {
		total := any(int64(0))
		for _, v := range r.mapped(r.items(v), c.arg(0, "attribute", nil)) {
			r.charge(1)
			total = r.operate("+", total, v)
		}
		return total
	},
	"max":    func(r *runner, v any, _ call) any { return r.extreme(r.items(v), 1) },
	"min":    func(r *runner, v any, _ call) any { return r.extreme(r.items(v), -1) },
	"select": selecting(false, true), "reject": selecting(false, false),
	"selectattr": selecting(true, true), "rejectattr": selecting(true, false),
	"items": func(r *runner, v any, _ call) any {
		d, ok := v.(*Dict)
		if !ok {
			return &List{}
		}
		return r.pairs(d)
	},
	"tojson": func(r *runner, v any, c call) any {
		spaces := -1
		if n, ok := c.arg(0, "indent", nil).(int64); ok {
			spaces = int(min(max(n, 0), 16))
		}
		return string(r.toJSON(nil, v, spaces, 0))
	},
	"int": func(r *runner, v any, c call) any {
		if f, ok := r.parsed(v); ok && math.Abs(f) < 1<<63 {
			return int64(f)
		}
		return c.arg(0, "default", int64(0))
	},
	"float": func(r *runner, v any, c call) any {
		if f, ok := r.parsed(v); ok {
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
			fail("%s is not a number", typeName(v))
		}
		return math.Abs(f)
	},
}

func init() {
	filters["map"] = func(r *runner, v any, c call) any { // refers to filters itself
		if attribute := c.arg(math.MaxInt, "attribute", missing); attribute != missing {
			return &List{Items: r.mapped(r.items(v), attribute)}
		}
		name, _ := c.arg(0, "", "").(string)
		f := filters[name]
		if f == nil {
			fail("the filter %q is not supported", name)
		}
		c.plain = c.plain[1:]
		r.deeper()
		l := &List{}
		for _, v := range r.items(v) {
			r.charge(1)
			l.Items = append(l.Items, f(r, v, c))
		}
		r.higher()
		return l
	}
}

// textFilter is the filter that does with a text what a method of texts does.
func textFilter(f func(r *runner, s string, c call) any) func(*runner, any, call) any {
	return func(r *runner, v any, c call) any { return f(r, r.text(v), c) }
}

// tests are the words behind "is".
var tests = map[string]func(r *runner, v any, args []any) bool{
	"defined":   func(_ *runner, v any, _ []any) bool { _, not := v.(undefined); return !not },
	"undefined": isKind("an undefined value"), "none": isKind("none"), "string": isKind("a text"), "number": isKind("a number", "a boolean"),
	"boolean": isKind("a boolean"), "mapping": isKind("a dict"), "sequence": isKind("a list", "a text", "a dict"),
	"iterable": isKind("a list", "a text", "a dict", "an undefined value"), "callable": isKind("a function"),
	"integer": func(_ *runner, v any, _ []any) bool { _, is := v.(int64); return is },
	"float":   func(_ *runner, v any, _ []any) bool { _, is := v.(float64); return is },
	"true":    func(_ *runner, v any, _ []any) bool { return v == true },
	"false":   func(_ *runner, v any, _ []any) bool { return v == false },
	"odd":     func(_ *runner, v any, _ []any) bool { n, is := v.(int64); return is && n%2 != 0 },
	"even":    func(_ *runner, v any, _ []any) bool { n, is := v.(int64); return is && n%2 == 0 },
	"divisibleby": func(_ *runner, v any, args []any) bool {
		n, is := v.(int64)
		if len(args) == 0 {
			return false
		}
		by, number := args[0].(int64)
		return is && number && by != 0 && n%by == 0
	},
	"upper": isCase(upper, lower), "lower": isCase(lower, upper),
	"sameas": func(r *runner, v any, args []any) bool {
		return len(args) > 0 && typeName(v) == typeName(args[0]) && r.equal(v, args[0])
	},
	"eq": isCompared("=="), "equalto": isCompared("=="), "ne": isCompared("!="), "lt": isCompared("<"), "gt": isCompared(">"),
	"le": isCompared("<="), "ge": isCompared(">="), "in": isCompared("in"),
}

func isKind(kinds ...string) func(*runner, any, []any) bool {
	return func(_ *runner, v any, _ []any) bool { return slices.Contains(kinds, typeName(v)) }
}

// isCase is the test that a text is as one function makes it, and has letters, so that the other one changes it.
func isCase(same, other func(*runner, string, call) any) func(*runner, any, []any) bool {
	return func(r *runner, v any, _ []any) bool {
		s := r.text(v)
		return s == same(r, s, call{}) && s != other(r, s, call{})
	}
}

func isCompared(op string) func(*runner, any, []any) bool {
	return func(r *runner, v any, args []any) bool { return len(args) > 0 && r.compare(op, v, args[0]) }
}

// indexable is a value with places: the keys of a dict, as a list.
func indexable(v any) any {
	switch v := v.(type) {
	case *Dict:
		return &List{Items: v.keys}
	case *List, string:
		return v
	case undefined:
		return &List{}
	}
	fail("%s is not a list", typeName(v))
	return nil
}

// parsed is a number, or that of a text.
func (r *runner) parsed(v any) (float64, bool) {
	if f, ok := number(v); ok {
		return f, true
	}
	s := r.text(v)
	r.chargeText(len(s))
	f, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
	return f, err == nil
}

func length(r *runner, v any, _ call) any {
	if s, ok := v.(string); ok {
		r.chargeText(len(s))
		return int64(len([]rune(s)))
	}
	return int64(len(r.items(v)))
}

func orDefault(_ *runner, v any, c call) any {
	_, isUndefined := v.(undefined)
	if isUndefined || truth(c.arg(1, "boolean", false)) && !truth(v) {
		return c.arg(0, "default_value", "")
	}
	return v
}

// list is a new list of these items.
func (r *runner) list(items []any) *List {
	r.chargeItems(len(items))
	return &List{Items: slices.Clone(items)}
}

func (r *runner) join(values []any, separator string) string {
	r.charge(len(values))
	all := r.texts(values)
	r.chargeCopies(len(all), len(separator))
	for _, s := range all {
		r.chargeText(len(s))
	}
	return strings.Join(all, separator)
}

// sorted are the items in the order of their keys.
func (r *runner) sorted(all, keys []any, backwards bool) *List {
	r.charge(len(all))
	places, sign := make([]int, len(all)), 1
	for i := range places {
		places[i] = i
	}
	if backwards {
		sign = -1
	}
	slices.SortStableFunc(places, func(a, b int) int { return sign * r.order(keys[a], keys[b]) })
	l := &List{}
	for _, at := range places {
		l.Items = append(l.Items, all[at])
	}
	return l
}

func (r *runner) extreme(all []any, sign int) any {
	if len(all) == 0 {
		return undefined{"the extreme of nothing"}
	}
	best := all[0]
	for _, v := range all[1:] {
		if r.order(v, best)*sign > 0 {
			best = v
		}
	}
	return best
}

// mapped are the attributes of this name, with dots for those of attributes; all themselves without a name.
func (r *runner) mapped(all []any, attribute any) []any {
	if attribute == nil {
		return all
	}
	place, isPlace := attribute.(int64)
	name := r.text(attribute)
	var out []any
	for _, v := range all {
		r.charge(1)
		if isPlace {
			out = append(out, r.lookUp(v, place, false))
			continue
		}
		for part := range strings.SplitSeq(name, ".") {
			r.charge(1 + len(part)/bytesPerStep)
			v = r.lookUp(v, part, false)
		}
		out = append(out, v)
	}
	return out
}

// selecting keeps the items, or those whose attribute, for which a test holds.
func selecting(byAttribute, keep bool) func(*runner, any, call) any {
	return func(r *runner, v any, c call) any {
		all, args := r.items(v), c.plain
		var attribute any
		if byAttribute {
			if len(args) == 0 {
				fail("it wants the name of an attribute")
			}
			attribute, args = args[0], args[1:]
		}
		test := func(_ *runner, v any, _ []any) bool { return truth(v) }
		if len(args) > 0 {
			name := r.text(args[0])
			if name == "==" {
				name = "eq"
			}
			if test = tests[name]; test == nil {
				fail("the test %q is not supported", name)
			}
			args = args[1:]
		}
		l := &List{}
		for i, of := range r.mapped(all, attribute) {
			r.charge(1)
			if test(r, of, args) == keep {
				l.Items = append(l.Items, all[i])
			}
		}
		return l
	}
}

func (r *runner) pairs(d *Dict) *List {
	r.charge(len(d.keys))
	l := &List{}
	for _, k := range d.keys {
		l.Items = append(l.Items, &List{Items: []any{k, d.values[k]}})
	}
	return l
}

func title(r *runner, s string, _ call) any {
	r.chargeText(len(s))
	begin := true
	return strings.Map(func(c rune) rune {
		first := begin
		begin = !unicode.IsLetter(c) && c != '\''
		if first {
			return unicode.ToUpper(c)
		}
		return unicode.ToLower(c)
	}, s)
}

func capitalize(r *runner, s string, _ call) any {
	r.chargeText(len(s))
	for _, c := range s {
		return string(unicode.ToUpper(c)) + strings.ToLower(s[len(string(c)):])
	}
	return s
}

func escape(r *runner, s string, _ call) any {
	r.chargeCopies(5, len(s))
	return html.EscapeString(s)
}

func indent(r *runner, s string, c call) any {
	width := "    "
	switch w := c.arg(0, "width", nil).(type) {
	case int64:
		width = strings.Repeat(" ", int(min(max(w, 0), 64)))
	case string:
		width = w
	}
	n := 1 + strings.Count(s, "\n")
	r.charge(n)
	r.chargeText(len(s))
	r.chargeCopies(n, len(width))
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		if (i > 0 || truth(c.arg(1, "first", false))) && (line != "" || truth(c.arg(2, "blank", false))) {
			lines[i] = width + line
		}
	}
	return strings.Join(lines, "\n")
}
