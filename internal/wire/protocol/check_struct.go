package protocol

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// structShape is a struct of the profile.
type structShape struct {
	name     string
	declared Struct
	types    []shape // of the fields
	index    map[string]int
}

func (s *structShape) String() string { return s.name }

func (s *structShape) takes(k pack.Kind) bool {
	if s.declared.Encoding == "array" {
		return k == pack.Array
	}
	return k == pack.Map
}

func (s *structShape) check(x *examination) {
	if x.decodes {
		s.checkDecodable(x)
		return
	}
	if s.declared.Encoding == "array" {
		s.checkArray(x)
		return
	}
	s.checkMap(x)
}

// checkArray wants every field: the encoder of an array leaves nothing out, so that a
// shorter one is of another line, and its fields may be others.
func (s *structShape) checkArray(x *examination) {
	ahead := x.cur
	n, _ := ahead.ArrayLen()
	fields := s.declared.Fields
	if n < len(fields) {
		var missing []string
		for _, f := range fields[n:] {
			missing = append(missing, f.Name)
		}
		m := x.report(safetext.Count(len(fields), "field"), safetext.Count(n, "field")+": without "+strings.Join(missing, ", "))
		if lines := x.linesWith(func(r *rules) bool { return len(r.profile.Structs[s.name].Fields) == n }); len(lines) > 0 {
			m.hint(fmt.Sprintf("%s has %s in %s", s.name, safetext.Count(n, "field"), LineRanges(lines)))
		}
	}
	x.cur = ahead
	for i := range n {
		if i < len(fields) {
			s.checkField(x, i)
			continue
		}
		x.path = append(x.path, place{index: i})
		m := x.mismatch(fmt.Sprintf("no more than the %s of line %s", safetext.Count(len(fields), "field"), x.rules.profile.Line))
		x.hintField(m, s.name, "", i)
		x.path = x.path[:len(x.path)-1]
		x.skip()
	}
}

// checkDecodable wants the fields without a default, and looks at those that the line knows.
func (s *structShape) checkDecodable(x *examination) {
	array := s.declared.Encoding == "array"
	size := x.cur.MapLen
	if array {
		size = x.cur.ArrayLen
	}
	n, _ := size()
	var seen fieldSet
	for i := range n {
		known := i < len(s.types)
		if !array {
			key, err := x.cur.Str()
			if err != nil { // not even msgspec passes over a key that is not text
				x.mismatch("the name of a field of " + s.name)
				x.skip()
				x.skip()
				continue
			}
			i, known = s.index[string(key)]
		}
		if !known {
			x.skip()
			continue
		}
		seen.add(i)
		x.at(place{name: s.declared.Fields[i].Name}, s.types[i])
	}
	for i := range s.declared.Fields {
		if f := &s.declared.Fields[i]; f.Required && !seen.has(i) {
			x.missing(f.Name, f.Type)
		}
	}
}

// checkField names, of a value that does not fit its position, the fields that other
// lines have there: arrays are read by position, and a field that came or went shifts
// those behind it.
func (s *structShape) checkField(x *examination, i int) {
	before := len(x.found)
	at := x.cur.Offset()
	x.at(place{name: s.declared.Fields[i].Name}, s.types[i])
	if len(x.found) == before {
		return
	}
	if m := &x.found[before]; m.Offset == at {
		m.Expected += fmt.Sprintf(" (field %d of line %s)", i, x.rules.profile.Line)
		x.hintField(m, s.name, s.declared.Fields[i].Name, i)
	}
}

// checkMap wants known keys, each once, and those without a default.
func (s *structShape) checkMap(x *examination) {
	n, _ := x.cur.MapLen()
	fields := s.declared.Fields
	var seen fieldSet
	others := map[string]bool{} // keys that are none
	for next := 0; n > 0; n-- {
		if x.cur.Kind() != pack.String {
			x.mismatch("the name of a field of " + s.name)
			x.skip()
			x.skip()
			continue
		}
		at, ahead := x.cur, x.cur
		key, _ := ahead.Str()
		i, known := next, next < len(fields) && string(key) == fields[next].Name // an encoder keeps their order
		if !known {
			i, known = s.index[string(key)]
		}
		if known && !seen.has(i) {
			seen.add(i)
			x.cur, next = ahead, i+1
			x.at(place{name: fields[i].Name}, s.types[i])
			continue
		}
		name, ok := x.str("the name of a field of " + s.name)
		if !ok {
			x.skip()
			continue
		}
		s.checkOther(x, name, at, known || others[name])
		others[name] = true
	}
	if s.declared.Tag != "" && !others[tagKey] {
		x.missing(tagKey, s.declared.Tag)
	}
	for i := range fields {
		if f := &fields[i]; !seen.has(i) && (f.Required || slices.Contains(neededKeys[s.name], f.Name)) {
			x.missing(f.Name, f.Type)
		}
	}
}

// fieldSet are fields of a struct by number. Most structs have at most 64, which costs no memory.
type fieldSet struct {
	low  uint64
	high map[int]bool
}

func (s *fieldSet) add(i int) {
	if i < 64 {
		s.low |= 1 << i
		return
	}
	if s.high == nil {
		s.high = map[int]bool{}
	}
	s.high[i] = true
}

func (s *fieldSet) has(i int) bool {
	if i < 64 {
		return s.low&(1<<i) != 0
	}
	return s.high[i]
}

// tagKey has the tag of a struct that is one of a union.
const tagKey = "type"

// checkOther checks the value behind the key at a place, which is not a field, or is one for the second time.
func (s *structShape) checkOther(x *examination, key string, at pack.Cursor, twice bool) {
	x.path = append(x.path, place{name: keyStep(key)})
	defer func() { x.path = x.path[:len(x.path)-1] }()
	if key == tagKey && s.declared.Tag != "" && !twice {
		x.value(newLiteral("the tag of "+s.name, s.declared.Tag))
		return
	}
	if twice {
		x.mismatch("the key once").Offset = at.Offset()
	} else {
		m := x.mismatch(fmt.Sprintf("no such key: line %s does not know it", x.rules.profile.Line))
		m.Offset, m.Unknown = at.Offset(), true
		if lines := x.linesWith(func(r *rules) bool { return r.profile.Structs[s.name].Index(key) >= 0 }); len(lines) > 0 {
			m.hint("a key of " + LineRanges(lines))
		}
	}
	x.skip()
}

// keyStep bounds a key that anybody may have written.
func keyStep(key string) string { return safetext.Clip(key, 80) }

// anyShape takes everything.
type anyShape struct{}

func (anyShape) String() string       { return "Any" }
func (anyShape) takes(pack.Kind) bool { return true }
func (anyShape) check(x *examination) { x.skip() }

// kindShape takes what is of a kind. msgspec converts nothing: true is not an int, 1.0
// neither, and a str must be UTF-8.
type kindShape struct {
	text string
	kind pack.Kind
}

func (s kindShape) String() string         { return s.text }
func (s kindShape) takes(k pack.Kind) bool { return k == s.kind }

func (s kindShape) check(x *examination) {
	if s.kind == pack.String {
		x.str(s.text + " in UTF-8")
		return
	}
	x.skip()
}

// floatShape takes integers too, as msgspec does.
type floatShape struct{}

func (floatShape) String() string         { return "float" }
func (floatShape) takes(k pack.Kind) bool { return k == pack.Float || k == pack.Int }
func (floatShape) check(x *examination)   { x.skip() }

// enumShape is an IntEnum.
type enumShape struct {
	kindShape
	codes []int64
}

func newEnum(text string, codes ...int64) enumShape {
	return enumShape{kindShape{text, pack.Int}, codes}
}

func (s enumShape) check(x *examination) {
	ahead := x.cur
	if code, err := ahead.Int(); err != nil || !slices.Contains(s.codes, code) {
		x.mismatch(fmt.Sprintf("%s, one of %v", s.text, slices.Sorted(slices.Values(s.codes))))
	}
	x.skip()
}

// literalShape is one of some words.
type literalShape struct {
	kindShape
	words []string
}

func newLiteral(text string, words ...string) literalShape {
	return literalShape{kindShape{text, pack.String}, words}
}

func (s literalShape) check(x *examination) {
	ahead := x.cur
	if word, _ := ahead.Str(); !slices.Contains(s.words, string(word)) {
		x.mismatch(s.text + ", one of " + strings.Join(s.words, ", "))
	}
	x.skip()
}

// listShape is a list, set or sequence: an array of any length.
type listShape struct {
	kindShape
	element shape
}

func (s listShape) check(x *examination) {
	if x.decodes && s.element == plainTypes["int"] {
		ahead := x.cur
		if ids, err := ahead.Uint32s(x.ids[:0]); err == nil { // as most are
			x.cur, x.ids = ahead, ids
			return
		}
	}
	n, _ := x.cur.ArrayLen()
	for i := range n {
		x.at(place{index: i}, s.element)
	}
}

// tupleShape is an array whose elements have a type each.
type tupleShape struct {
	kindShape
	elements []shape
}

func (s tupleShape) check(x *examination) {
	ahead := x.cur
	n, _ := ahead.ArrayLen()
	if n != len(s.elements) {
		x.mismatch(fmt.Sprintf("%s, an array of %d", s.text, len(s.elements)))
		x.skip()
		return
	}
	x.cur = ahead
	for i, e := range s.elements {
		x.at(place{index: i}, e)
	}
}

// dictShape is a map with keys of one type and values of one type.
type dictShape struct {
	kindShape
	key, value shape
}

func (s dictShape) check(x *examination) {
	n, _ := x.cur.MapLen()
	for range n {
		ahead := x.cur
		raw, _ := ahead.Raw()
		x.at(place{name: "key"}, s.key)
		x.at(place{name: keyText(raw)}, s.value)
	}
}

// keyText is a map's key in a path: a word as it is, anything else as printed.
func keyText(raw []byte) string {
	cur := pack.NewCursor(raw)
	if s, err := cur.StrString(); err == nil && len(s) <= 80 {
		return s
	}
	return pack.Format(raw)
}

// unionShape is one of several types. Which one a value is meant to be shows in its
// kind; where two are of a kind, in what fits best.
type unionShape struct {
	text    string
	options []shape
}

func (s unionShape) String() string { return s.text }

func (s unionShape) takes(k pack.Kind) bool {
	return slices.ContainsFunc(s.options, func(o shape) bool { return o.takes(k) })
}

func (s unionShape) check(x *examination) {
	start, before := x.cur, len(x.found)
	var best []Mismatch
	for _, o := range s.options {
		if !o.takes(start.Kind()) {
			continue
		}
		x.cur = start
		o.check(x)
		if len(x.found) == before {
			return
		}
		found := slices.Clone(x.found[before:])
		x.found = x.found[:before]
		if best == nil || len(found) < len(best) {
			best = found
		}
	}
	x.found = append(x.found, best...)
}
