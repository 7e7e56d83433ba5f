package protocol

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// anyShape takes everything.
type anyShape struct{}

func (anyShape) String() string       { return "Any" }
func (anyShape) takes(pack.Kind) bool { return true }
func (anyShape) check(x *examination) { x.skip() }

// kindShape takes what is of a kind. msgspec converts nothing: true is no int, 1.0
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
	text  string
	codes []int64
}

func (s enumShape) String() string         { return s.text }
func (s enumShape) takes(k pack.Kind) bool { return k == pack.Int }

func (s enumShape) check(x *examination) {
	ahead := x.cur
	if code, err := ahead.Int(); err != nil || !slices.Contains(s.codes, code) {
		x.mismatch(fmt.Sprintf("%s, one of %v", s.text, slices.Sorted(slices.Values(s.codes))))
	}
	x.skip()
}

// literalShape is one of some words.
type literalShape struct {
	text  string
	words []string
}

func (s literalShape) String() string         { return s.text }
func (s literalShape) takes(k pack.Kind) bool { return k == pack.String }

func (s literalShape) check(x *examination) {
	ahead := x.cur
	if word, _ := ahead.Str(); !slices.Contains(s.words, string(word)) {
		x.mismatch(s.text + ", one of " + strings.Join(s.words, ", "))
	}
	x.skip()
}

// listShape is a list, set or sequence: an array of any length.
type listShape struct {
	text    string
	element shape
}

func (s listShape) String() string         { return s.text }
func (s listShape) takes(k pack.Kind) bool { return k == pack.Array }

func (s listShape) check(x *examination) {
	n, _ := x.cur.ArrayLen()
	for i := range n {
		x.at(place{index: i}, s.element)
	}
}

// tupleShape is an array whose elements have a type each.
type tupleShape struct {
	text     string
	elements []shape
}

func (s tupleShape) String() string         { return s.text }
func (s tupleShape) takes(k pack.Kind) bool { return k == pack.Array }

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
	text       string
	key, value shape
}

func (s dictShape) String() string         { return s.text }
func (s dictShape) takes(k pack.Kind) bool { return k == pack.Map }

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
		found := slices.Clone(x.found[before:])
		x.found = x.found[:before]
		if len(found) == 0 {
			return
		}
		if best == nil || len(found) < len(best) {
			best = found
		}
	}
	x.found = append(x.found, best...)
}
