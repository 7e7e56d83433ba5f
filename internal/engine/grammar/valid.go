package grammar

import (
	"encoding/json"
	"math/big"
	"slices"
	"unicode/utf8"
)

// checker looks at one value.
type checker struct{ schemas }

// conforms reports whether a value conforms to a schema of the document. The copy
// keeps what is only read apart from what others read at the same time.
func (s *schemas) conforms(w *Work, schema, v any) bool {
	c := &checker{*s}
	c.work = w
	return c.valid(schema, v, 0)
}

// valid reports whether a value conforms to a schema. Formats are not looked at: a client that
// writes them knows them.
func (s *checker) valid(schema, v any, depth int) bool {
	o, ok := schema.(*object)
	if s.work.spend(3); !ok || depth > maxDepth {
		return schema == true
	}
	for _, key := range []string{"$ref", "$dynamicRef"} {
		if ref, ok := o.get(key); ok && !s.valid(s.resolve(ref), v, depth+1) {
			return false
		}
	}
	if !s.validType(o, v) || !s.validCases(o, v, depth) {
		return false
	}
	switch v := v.(type) {
	case json.Number:
		return s.validNumber(o, v)
	case string:
		return s.validString(o, v)
	case []any:
		return s.validArray(o, v, depth)
	case *object:
		return s.validObject(o, v, depth)
	}
	return true
}

func (s *checker) validType(o *object, v any) bool {
	if want, ok := o.get("const"); ok && !s.work.equal(want, v) {
		return false
	}
	if list, ok := o.values["enum"].([]any); ok && !s.contains(s.enums[o], list, v) {
		return false
	}
	want, ok := o.get("type")
	if !ok {
		return true
	}
	names, ok := want.([]any)
	if !ok {
		names = []any{want}
	}
	return slices.ContainsFunc(names, func(name any) bool { return s.isType(name, v) })
}

func (s *checker) isType(name, v any) bool {
	switch v := v.(type) {
	case nil:
		return name == "null"
	case bool:
		return name == "boolean"
	case string:
		return name == "string"
	case []any:
		return name == "array"
	case *object:
		return name == "object"
	case json.Number:
		r, ok := rational(s.work, v)
		return name == "number" || name == "integer" && ok && r.IsInt()
	}
	return false
}

// equal compares as JSON does: 1 and 1.0 are one number, and the order of members
// does not matter.
func (w *Work) equal(a, b any) bool {
	w.spend(1)
	switch a := a.(type) {
	case json.Number:
		x, ok := rational(w, a)
		y, also := rational(w, b)
		return ok && also && x.Cmp(y) == 0
	case []any:
		list, ok := b.([]any)
		return ok && slices.EqualFunc(a, list, w.equal)
	case *object:
		o, ok := b.(*object)
		return ok && len(a.keys) == len(o.keys) && !slices.ContainsFunc(a.keys, func(key string) bool {
			v, found := o.get(key)
			return !found || !w.equal(a.values[key], v)
		})
	}
	switch b.(type) {
	case []any, *object:
		return false
	}
	return a == b
}

// fewValues are compared one by one.
const fewValues = 16

// canonical appends a text that equal values have in common, and no others. ok is false
// for a value that equals none.
func (w *Work) canonical(b []byte, v any) (text []byte, ok bool) {
	w.spend(2)
	switch v := v.(type) {
	case json.Number:
		r, ok := rational(w, v)
		if !ok {
			return b, false
		}
		w.spendOn(r)
		return append(b, r.RatString()...), true
	case []any:
		b = append(b, '[')
		for _, item := range v {
			if b, ok = w.canonical(b, item); !ok {
				return b, false
			}
			b = append(b, ',')
		}
		return append(b, ']'), true
	case *object:
		b = append(b, '{')
		for _, key := range slices.Sorted(slices.Values(v.keys)) {
			b = append(appendQuoted(b, key), ':')
			if b, ok = w.canonical(b, v.values[key]); !ok {
				return b, false
			}
			b = append(b, ',')
		}
		return append(b, '}'), true
	}
	before := len(b)
	b = appendJSON(b, v)
	w.spend((len(b) - before) / 32)
	return b, true
}

// canonicals are the texts of a list's values.
func (s *schemas) canonicals(list []any) map[string]bool {
	known := make(map[string]bool, len(list))
	for _, v := range list {
		if text, ok := s.work.canonical(nil, v); ok {
			known[string(text)] = true
			s.work.kept += 64 + len(text)
		}
	}
	return known
}

// contains reports whether a list has a value; known are its canonical texts, if it is long.
func (s *checker) contains(known map[string]bool, list []any, v any) bool {
	if known == nil {
		return slices.ContainsFunc(list, func(e any) bool { return s.work.equal(e, v) })
	}
	text, ok := s.work.canonical(nil, v)
	return ok && known[string(text)]
}

// holding counts the schemas of a list that hold.
func (s *checker) holding(list []any, v any, depth int) int {
	count := 0
	for _, schema := range list {
		if s.valid(schema, v, depth+1) {
			count++
		}
	}
	return count
}

func (s *checker) validCases(o *object, v any, depth int) bool {
	if list, ok := o.values["allOf"].([]any); ok && s.holding(list, v, depth) < len(list) {
		return false
	}
	if list, ok := o.values["anyOf"].([]any); ok && s.holding(list, v, depth) == 0 {
		return false
	}
	if list, ok := o.values["oneOf"].([]any); ok && s.holding(list, v, depth) != 1 {
		return false
	}
	if not, ok := o.get("not"); ok && s.valid(not, v, depth+1) {
		return false
	}
	condition, ok := o.get("if")
	if !ok {
		return true
	}
	key := "else"
	if s.valid(condition, v, depth+1) {
		key = "then"
	}
	then, ok := o.get(key)
	return !ok || s.valid(then, v, depth+1)
}

func (s *checker) validNumber(o *object, v json.Number) bool {
	r, ok := rational(s.work, v)
	if !ok {
		return false
	}
	in := s.interval([]*object{o})
	step := in.step
	s.work.spendOn(in.low, in.high, step, r)
	if c := cmpOr(in.low, r, -1); c > 0 || c == 0 && in.openLow {
		return false
	}
	if c := cmpOr(in.high, r, 1); c < 0 || c == 0 && in.openHigh {
		return false
	}
	return step == nil || new(big.Rat).Quo(r, step).IsInt()
}

func (s *checker) validString(o *object, v string) bool {
	s.work.spend(len(v) / 32)
	n := utf8.RuneCountInString(v)
	if n < s.count(o, "minLength", 0) || n > s.count(o, "maxLength", longest) {
		return false
	}
	pattern, ok := o.values["pattern"].(string)
	if !ok {
		return true
	}
	found, err := s.work.matches(pattern, v)
	return found && err == nil
}

func (s *checker) validArray(o *object, v []any, depth int) bool {
	if len(v) < s.count(o, "minItems", 0) || len(v) > s.count(o, "maxItems", longest) {
		return false
	}
	unique := o.values["uniqueItems"] == true
	known := map[string]bool{}
	for i, item := range v {
		s.work.spend(1)
		for _, schema := range s.items([]*object{o}, i) {
			if !s.valid(schema, item, depth+1) {
				return false
			}
		}
		if !unique {
			continue
		}
		if text, ok := s.work.canonical(nil, item); ok && known[string(text)] {
			return false
		} else if ok {
			known[string(text)] = true
		}
	}
	wanted, ok := o.get("contains")
	if !ok {
		return true
	}
	count := 0
	for _, item := range v {
		if s.valid(wanted, item, depth+1) {
			count++
		}
	}
	return count >= s.count(o, "minContains", 1) && count <= s.count(o, "maxContains", longest)
}

func (s *checker) validObject(o, v *object, depth int) bool {
	if n := len(v.keys); n < s.count(o, "minProperties", 0) || n > s.count(o, "maxProperties", longest) {
		return false
	}
	needs := &objectNode{needs: map[string][]string{}}
	for _, name := range s.required([]*object{o}, needs) {
		if _, ok := v.get(name); !ok {
			return false
		}
	}
	names, named := o.get("propertyNames")
	for _, key := range v.keys {
		s.work.spend(2)
		if named && !s.valid(names, key, depth+1) {
			return false
		}
		for _, schema := range s.at([]*object{o}, key) {
			if !s.valid(schema, v.values[key], depth+1) {
				return false
			}
		}
		for _, name := range needs.needs[key] {
			if _, ok := v.get(name); !ok {
				return false
			}
		}
	}
	return s.validDependent(o, v, depth)
}

func (s *checker) validDependent(o, v *object, depth int) bool {
	for _, keyword := range []string{"dependentSchemas", "dependencies"} {
		dependent, ok := o.values[keyword].(*object)
		if !ok {
			continue
		}
		s.work.spend(len(dependent.keys))
		for _, name := range dependent.keys {
			_, there := v.get(name)
			if _, isList := dependent.values[name].([]any); there && !isList && !s.valid(dependent.values[name], v, depth+1) {
				return false
			}
		}
	}
	return true
}
