package grammar

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// schemas turns JSON schemas of one document into nodes. A schema is an *object,
// or a bool.
type schemas struct {
	work     *Work
	document any
	anchors  map[string]any
	enums    map[*object]map[string]bool // the values of long ones, see canonical
	nodes    map[string]*node            // by the schemas that hold at the same time
	style    style
	err      error
}

func compileSchemaText(w *Work, text string) (*node, error) {
	document, err := parseJSON(w, text)
	if err != nil {
		return nil, err
	}
	return compileSchema(w, document, style{})
}

// compileSchema returns the texts that conform to a schema, which is the whole
// document that its references are looked up in.
func compileSchema(w *Work, document any, as style) (*node, error) {
	s := &schemas{work: w, document: document, anchors: map[string]any{}, enums: map[*object]map[string]bool{}, nodes: map[string]*node{}, style: as}
	if err := s.learn(document); err != nil {
		return nil, err
	}
	var root *node
	if as.xml() {
		root = s.parameters(document)
	} else {
		root = s.of([]any{document})
	}
	if s.err != nil {
		return nil, s.err
	}
	if as.xml() {
		return root, nil
	}
	return checked(root, func(w *Work, text []byte) error {
		v, err := parseJSON(w, string(text))
		if err != nil {
			return err
		}
		if !s.conforms(w, document, v) {
			return errors.New("no value was found that conforms to the schema")
		}
		return nil
	}), nil
}

// learn looks through the document for anchors, and for values that are not schemas.
func (s *schemas) learn(v any) error {
	o, ok := v.(*object)
	if !ok {
		if _, ok := v.(bool); ok {
			return nil
		}
		return errors.New("a JSON schema is an object, true or false")
	}
	s.note(o)
	return s.err
}

func (s *schemas) note(v any) {
	s.work.spend(2)
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			s.note(item)
		}
	case *object:
		for _, key := range []string{"$anchor", "$dynamicAnchor", "$id", "id"} {
			if name, ok := v.values[key].(string); ok && key[0] == '$' && key != "$id" {
				s.anchors["#"+name] = v
			} else if ok {
				s.anchors[name] = v
			}
		}
		if list := items(v.values["enum"]); len(list) > fewValues {
			s.enums[v] = s.canonicals(list)
		}
		for _, key := range v.keys {
			s.note(v.values[key])
		}
	}
}

func (s *schemas) fail(format string, args ...any) {
	if s.err == nil {
		s.err = fmt.Errorf(format, args...)
	}
}

// of returns the values that conform to all of the schemas.
func (s *schemas) of(all []any) *node {
	s.work.spend(2 + 2*len(all))
	key := identity(all)
	if n := s.nodes[key]; n != nil {
		return n
	}
	n := choice()
	s.nodes[key] = n
	if len(s.nodes) > maxNodes/8 {
		s.fail("JSON schema: %w", errTooLarge)
	}
	if s.err != nil {
		return n
	}
	var cases [][]*object
	s.expand(all, nil, &cases)
	for _, c := range cases {
		n.kids = append(n.kids, s.values(c)...)
	}
	return n
}

// identity distinguishes sets of schemas by their places in the document.
func identity(all []any) string {
	var b strings.Builder
	for _, schema := range all {
		if o, ok := schema.(*object); ok {
			fmt.Fprintf(&b, "%p|", o)
		} else {
			fmt.Fprintf(&b, "%v|", schema == true) // what is not a schema is refused
		}
	}
	return b.String()
}

// maxCases bounds the ways in which anyOf and the like are combined.
const maxCases = 64

// expand resolves what combines schemas: each case is a list of schemas that all
// hold, in which allOf, anyOf, oneOf, if and $ref are followed. What is left to
// look at afterwards is that no second branch of oneOf holds.
func (s *schemas) expand(todo []any, done []*object, cases *[][]*object) {
	for len(todo) > 0 {
		if s.err != nil || len(*cases) >= maxCases {
			return
		}
		s.work.spend(2 + len(done)/4 + len(todo)/8)
		first := todo[0]
		todo = todo[1:]
		o, ok := first.(*object)
		if !ok {
			if first == true {
				continue
			}
			if first != false {
				s.fail("JSON schema: %s is not a schema", shown(first))
			}
			return
		}
		if slices.Contains(done, o) {
			continue
		}
		done = append(slices.Clip(done), o)
		todo = append(s.implied(o), todo...)
		if s.branch(o, todo, done, cases) {
			return
		}
	}
	*cases = append(*cases, done)
}

// implied are the schemas that hold wherever o does.
func (s *schemas) implied(o *object) []any {
	var all []any
	for _, key := range []string{"$ref", "$dynamicRef"} {
		if ref, ok := o.get(key); ok {
			all = append(all, s.resolve(ref))
		}
	}
	return append(all, s.list(o, "allOf")...)
}

// branch follows every branch of o, if it has any.
func (s *schemas) branch(o *object, todo []any, done []*object, cases *[][]*object) bool {
	ways := [][]any{nil}
	for _, key := range []string{"anyOf", "oneOf"} {
		if _, ok := o.get(key); ok {
			ways = product(ways, single(s.list(o, key)))
		}
	}
	if condition, ok := o.get("if"); ok {
		ways = product(ways, [][]any{with(condition, o, "then"), with(nil, o, "else")})
	}
	if len(ways) == 1 && len(ways[0]) == 0 {
		return false
	}
	s.work.spend(len(ways))
	for _, way := range ways {
		s.expand(append(slices.Clone(way), todo...), done, cases)
	}
	return true
}

func single(all []any) [][]any {
	var ways [][]any
	for _, v := range all {
		ways = append(ways, []any{v})
	}
	return ways
}

func with(first any, o *object, key string) []any {
	var all []any
	if first != nil {
		all = append(all, first)
	}
	if v, ok := o.get(key); ok {
		all = append(all, v)
	}
	return all
}

func product(a, b [][]any) [][]any {
	var ways [][]any
	for _, x := range a {
		for _, y := range b {
			if len(ways) < maxCases {
				ways = append(ways, slices.Concat(x, y))
			}
		}
	}
	return ways
}

// list is a member that is a list of schemas.
func (s *schemas) list(o *object, key string) []any {
	v, ok := o.get(key)
	if !ok {
		return nil
	}
	all, ok := v.([]any)
	if !ok {
		s.fail("JSON schema: %s is not a list", key)
	}
	return all
}

// resolve follows a reference within the document.
func (s *schemas) resolve(ref any) any {
	name, ok := ref.(string)
	if !ok {
		s.fail("JSON schema: $ref is not a string")
		return false
	}
	s.work.spend(4 + len(name)/4)
	if target, ok := s.anchors[name]; ok {
		return target
	}
	path, local := strings.CutPrefix(name, "#")
	if !local {
		s.fail("JSON schema: $ref %s leads out of the document", shown(name))
		return false
	}
	if unescaped, err := url.PathUnescape(path); err == nil {
		path = unescaped
	}
	target := s.document
	for i, part := range strings.Split(path, "/") {
		if i == 0 && part == "" {
			continue
		}
		if target, ok = member(target, unescape.Replace(part)); !ok {
			s.fail("JSON schema: $ref %s leads nowhere", shown(name))
			return false
		}
	}
	return target
}

var unescape = strings.NewReplacer("~1", "/", "~0", "~")

func member(v any, name string) (any, bool) {
	switch v := v.(type) {
	case *object:
		return v.get(name)
	case []any:
		if i, err := strconv.Atoi(name); err == nil && i >= 0 && i < len(v) {
			return v[i], true
		}
	}
	return nil, false
}

// jsonTypes are the types in the order in which they are offered.
var jsonTypes = []string{"object", "array", "string", "number", "integer", "boolean", "null"}

// values are the ways to conform to a case: one for each value that is listed,
// or else for each type.
func (s *schemas) values(all []*object) []*node {
	if listed, ok := s.listed(all); ok {
		var nodes []*node
		for _, v := range listed {
			nodes = append(nodes, literal(string(appendJSON(nil, v))))
		}
		return nodes
	}
	var nodes []*node
	for _, name := range s.types(all) {
		nodes = append(nodes, s.value(name, all))
	}
	return nodes
}

func (s *schemas) value(typeName string, all []*object) *node {
	switch typeName {
	case "object":
		return s.objectOf(all)
	case "array":
		return s.arrayOf(all)
	case "string":
		return s.stringOf(all)
	case "number", "integer":
		return s.numberOf(all, typeName == "integer")
	case "boolean":
		return choice(literal("true"), literal("false"))
	}
	return literal("null")
}

// listed are the values that enum and const leave, if there is any such member.
func (s *schemas) listed(all []*object) (values []any, ok bool) {
	for _, o := range all {
		list, isEnum := o.values["enum"].([]any)
		if v, isConst := o.get("const"); isConst {
			list, isEnum = []any{v}, true
		}
		if isEnum && !ok {
			values, ok = list, true
		}
	}
	return slices.DeleteFunc(slices.Clone(values), func(v any) bool {
		s.work.spend(4)
		return slices.ContainsFunc(all, func(o *object) bool {
			return !s.conforms(s.work, o, v)
		})
	}), ok
}

// types are those that all schemas allow. Where none is named, the members that
// are there tell what was meant, if they do.
func (s *schemas) types(all []*object) []string {
	left, named := slices.Clone(jsonTypes), false
	for _, o := range all {
		s.work.spend(1 + len(o.keys))
		v, ok := o.get("type")
		if !ok {
			continue
		}
		named = true
		names, ok := v.([]any)
		if !ok {
			names = []any{v}
		}
		for _, name := range names {
			if text, ok := name.(string); !ok || !slices.Contains(jsonTypes, text) {
				s.fail("JSON schema: %s is not a type", shown(name))
			}
		}
		left = slices.DeleteFunc(left, func(name string) bool {
			return !slices.Contains(names, any(name)) && !(name == "integer" && slices.Contains(names, any("number")))
		})
	}
	if slices.Contains(left, "number") {
		left = slices.DeleteFunc(left, func(name string) bool { return named && name == "integer" })
	}
	if !named {
		if meant := meantTypes(all); meant != nil {
			return meant
		}
	}
	return left
}

// typeOf is the type that a member is about.
var typeOf = map[string]string{
	"properties": "object", "required": "object", "additionalProperties": "object", "patternProperties": "object",
	"propertyNames": "object", "minProperties": "object", "maxProperties": "object", "dependentRequired": "object",
	"items": "array", "prefixItems": "array", "minItems": "array", "maxItems": "array", "uniqueItems": "array",
	"contains": "array", "pattern": "string", "minLength": "string", "maxLength": "string", "format": "string",
	"minimum": "number", "maximum": "number", "exclusiveMinimum": "number", "exclusiveMaximum": "number",
	"multipleOf": "number",
}

func meantTypes(all []*object) []string {
	var meant []string
	for _, name := range jsonTypes {
		if slices.ContainsFunc(all, func(o *object) bool {
			return slices.ContainsFunc(o.keys, func(key string) bool { return typeOf[key] == name })
		}) {
			meant = append(meant, name)
		}
	}
	return meant
}

// count is a member that is a number of things, or the default.
func (s *schemas) count(o *object, key string, otherwise int) int {
	v, ok := o.get(key)
	if !ok {
		return otherwise
	}
	number, ok := v.(json.Number)
	s.work.spend(1 + len(number)/32)
	f, err := number.Float64()
	if !ok || err != nil || f < 0 {
		s.fail("JSON schema: %s is %s, which is not a count", key, shown(v))
		return otherwise
	}
	return int(min(f, longest))
}

// atLeast and atMost are the narrowest of a bound in all schemas.
func (s *schemas) atLeast(all []*object, key string) int {
	most := 0
	for _, o := range all {
		most = max(most, s.count(o, key, 0))
	}
	return most
}

func (s *schemas) atMost(all []*object, key string) int {
	least := longest
	for _, o := range all {
		least = min(least, s.count(o, key, longest))
	}
	return least
}
