package protocol

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// A shape is what an annotation allows.
type shape interface {
	// String is the annotation.
	String() string
	// takes tells whether a value of the kind can be meant by it.
	takes(k pack.Kind) bool
	// check walks over the next value, which is well formed, and reports what is
	// wrong with it.
	check(x *examination)
}

// examination is one walk over one message. The bytes are well formed: [Codec.check]
// has seen to that, so that no read of a value of known kind fails.
type examination struct {
	rules  *rules
	cur    pack.Cursor
	aux    [][]byte
	path   []place
	found  []Mismatch
	others func() []*rules // for hints; nil asks for none
}

// place is one step of a path: a field, or an index where the name is empty.
type place struct {
	name  string
	index int
}

// examine returns what is wrong with a well-formed message.
func (r *rules) examine(root, annotation string, payload []byte, aux [][]byte, others func() []*rules) []Mismatch {
	x := &examination{rules: r, cur: pack.NewCursor(payload), aux: aux, path: []place{{name: root}}, others: others}
	x.value(r.parse(annotation))
	return x.found
}

// value checks the next value.
func (x *examination) value(s shape) {
	if k := x.cur.Kind(); !s.takes(k) {
		x.mismatch(s.String())
		x.skip()
		return
	}
	s.check(x)
}

// at checks the next value as a part of the current one.
func (x *examination) at(s place, part shape) {
	x.path = append(x.path, s)
	x.value(part)
	x.path = x.path[:len(x.path)-1]
}

// mismatch reports the next value, which stays unread.
func (x *examination) mismatch(expected string) *Mismatch {
	ahead := x.cur
	raw, _ := ahead.Raw()
	return x.report(expected, pack.Format(raw))
}

// report adds a mismatch at the current path. What is over the limit goes nowhere.
func (x *examination) report(expected, actual string) *Mismatch {
	m := Mismatch{Path: x.where(), Expected: expected, Actual: actual, Offset: x.cur.Offset()}
	if len(x.found) == maxMismatches {
		return &m
	}
	x.found = append(x.found, m)
	return &x.found[len(x.found)-1]
}

func (x *examination) where() string {
	var b strings.Builder
	for i, s := range x.path {
		switch {
		case s.name == "":
			b.WriteString("[" + strconv.Itoa(s.index) + "]")
		case i > 0:
			b.WriteString("." + s.name)
		default:
			b.WriteString(s.name)
		}
	}
	return b.String()
}

func (x *examination) skip() { _ = x.cur.Skip() } // well formed

// str reads a str that is one, for msgspec refuses other bytes.
func (x *examination) str(expected string) (string, bool) {
	ahead := x.cur
	s, err := ahead.Str()
	if err != nil || !utf8.Valid(s) {
		x.mismatch(expected)
		x.skip()
		return "", false
	}
	x.cur = ahead
	return string(s), true
}

// linesWith lists the other lines for which f holds.
func (x *examination) linesWith(f func(*rules) bool) []string {
	if x.others == nil {
		return nil
	}
	var lines []string
	for _, r := range x.others() {
		if f(r) {
			lines = append(lines, r.profile.Line)
		}
	}
	return lines
}

// hintField names the other fields that other lines have at a position.
func (x *examination) hintField(m *Mismatch, structName, own string, index int) {
	if x.others == nil {
		return
	}
	var names []string
	lines := map[string][]string{}
	for _, r := range x.others() {
		s := r.profile.Structs[structName]
		if s.Encoding != "array" || index >= len(s.Fields) {
			continue
		}
		name := s.Fields[index].Name
		if name == own {
			continue
		}
		if lines[name] == nil {
			names = append(names, name)
		}
		lines[name] = append(lines[name], r.profile.Line)
	}
	for _, name := range names {
		m.hint(fmt.Sprintf("field %d is %s in %s", index, name, LineRanges(lines[name])))
	}
}
