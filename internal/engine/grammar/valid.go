package grammar

import (
	"encoding/json"
	"errors"
	"math/big"
	"slices"
	"unicode/utf8"
)

// checker looks at one value. It is given so much to do, as branches that refer to
// each other may multiply without end.
type checker struct {
	schemas
	left int
}

// mostChecks is how many schemas are compared with values in one look.
const mostChecks = 200_000

var errTooMuch = errors.New("JSON schema: comparing one value with it takes too long")

// conforms tells whether a value conforms to a schema of the document. The copy
// keeps what is only read apart from what others read at the same time.
func (s *schemas) conforms(schema, v any) (bool, error) {
	c := &checker{schemas: *s, left: mostChecks}
	ok := c.valid(schema, v, 0)
	if c.left < 0 {
		return false, errTooMuch
	}
	return ok, nil
}

// valid tells whether a value conforms to a schema. Formats are not looked at: who
// writes them knows them.
func (s *checker) valid(schema, v any, depth int) bool {
	o, ok := schema.(*object)
	if s.left--; !ok || depth > maxDepth || s.left < 0 {
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
	if want, ok := o.get("const"); ok && !equal(want, v) {
		return false
	}
	if list, ok := o.values["enum"].([]any); ok && !slices.ContainsFunc(list, func(e any) bool { return equal(e, v) }) {
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
	return slices.ContainsFunc(names, func(name any) bool { return isType(name, v) })
}

func isType(name, v any) bool {
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
		r, ok := rational(v)
		return name == "number" || name == "integer" && ok && r.IsInt()
	}
	return false
}

// equal compares as JSON does: 1 and 1.0 are one number, and the order of members
// does not matter.
func equal(a, b any) bool {
	switch a := a.(type) {
	case json.Number:
		x, ok := rational(a)
		y, also := rational(b)
		return ok && also && x.Cmp(y) == 0
	case []any:
		list, ok := b.([]any)
		return ok && slices.EqualFunc(a, list, equal)
	case *object:
		o, ok := b.(*object)
		return ok && len(a.keys) == len(o.keys) && !slices.ContainsFunc(a.keys, func(key string) bool {
			v, found := o.get(key)
			return !found || !equal(a.values[key], v)
		})
	}
	switch b.(type) {
	case []any, *object:
		return false
	}
	return a == b
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
	r, ok := rational(v)
	if !ok {
		return false
	}
	in := s.interval([]*object{o})
	step := in.step
	in.step = nil
	if c := cmpOr(in.low, r, -1); c > 0 || c == 0 && in.openLow {
		return false
	}
	if c := cmpOr(in.high, r, 1); c < 0 || c == 0 && in.openHigh {
		return false
	}
	return step == nil || new(big.Rat).Quo(r, step).IsInt()
}

func (s *checker) validString(o *object, v string) bool {
	n := utf8.RuneCountInString(v)
	if n < s.count(o, "minLength", 0) || n > s.count(o, "maxLength", longest) {
		return false
	}
	pattern, ok := o.values["pattern"].(string)
	if !ok {
		return true
	}
	found, err := matches(pattern, v)
	return found && err == nil
}

func (s *checker) validArray(o *object, v []any, depth int) bool {
	if len(v) < s.count(o, "minItems", 0) || len(v) > s.count(o, "maxItems", longest) {
		return false
	}
	for i, item := range v {
		for _, schema := range s.items([]*object{o}, i) {
			if !s.valid(schema, item, depth+1) {
				return false
			}
		}
		if o.values["uniqueItems"] == true && slices.ContainsFunc(v[:i], func(other any) bool { return equal(item, other) }) {
			return false
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
		for _, name := range dependent.keys {
			_, there := v.get(name)
			if _, isList := dependent.values[name].([]any); there && !isList && !s.valid(dependent.values[name], v, depth+1) {
				return false
			}
		}
	}
	return true
}
