package protocol

import (
	"fmt"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/plural"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// structShape is a struct of the profile.
type structShape struct {
	name     string
	declared Struct
	types    []shape // of the fields
}

func (s *structShape) String() string { return s.name }

func (s *structShape) takes(k pack.Kind) bool {
	if s.declared.Encoding == "array" {
		return k == pack.Array
	}
	return k == pack.Map
}

func (s *structShape) check(x *examination) {
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
		m := x.report(plural.Count(len(fields), "field"), plural.Count(n, "field")+": without "+strings.Join(missing, ", "))
		if lines := x.linesWith(func(r *rules) bool { return len(r.profile.Structs[s.name].Fields) == n }); len(lines) > 0 {
			m.hint(fmt.Sprintf("%s has %s in %s", s.name, plural.Count(n, "field"), LineRanges(lines)))
		}
	}
	x.cur = ahead
	for i := range n {
		if i < len(fields) {
			s.checkField(x, i)
			continue
		}
		x.path = append(x.path, place{index: i})
		m := x.mismatch(fmt.Sprintf("no more than the %s of line %s", plural.Count(len(fields), "field"), x.rules.profile.Line))
		x.hintField(m, s.name, "", i)
		x.path = x.path[:len(x.path)-1]
		x.skip()
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
	seen := map[string]bool{}
	for range n {
		if x.cur.Kind() != pack.String {
			x.mismatch("the name of a field of " + s.name)
			x.skip()
			x.skip()
			continue
		}
		at := x.cur
		key, ok := x.str("the name of a field of " + s.name)
		if !ok {
			x.skip()
			continue
		}
		s.checkKey(x, key, at, seen[key])
		seen[key] = true
	}
	for _, f := range s.declared.Fields {
		if f.Required && !seen[f.Name] {
			x.path = append(x.path, place{name: f.Name})
			x.report(f.Type, "missing")
			x.path = x.path[:len(x.path)-1]
		}
	}
}

// checkKey checks the value behind a key, which stands at.
func (s *structShape) checkKey(x *examination, key string, at pack.Cursor, twice bool) {
	i := s.declared.Index(key)
	if i >= 0 && !twice {
		x.at(place{name: key}, s.types[i])
		return
	}
	x.path = append(x.path, place{name: keyStep(key)})
	if twice {
		x.mismatch("the key once").Offset = at.Offset()
	} else {
		m := x.mismatch(fmt.Sprintf("no such key: line %s does not know it", x.rules.profile.Line))
		m.Offset, m.Unknown = at.Offset(), true
		if lines := x.linesWith(func(r *rules) bool { return r.profile.Structs[s.name].Index(key) >= 0 }); len(lines) > 0 {
			m.hint("a key of " + LineRanges(lines))
		}
	}
	x.path = x.path[:len(x.path)-1]
	x.skip()
}

// keyStep bounds a key that anybody may have written.
func keyStep(key string) string {
	const most = 80
	if len(key) > most {
		return key[:most] + "…"
	}
	return key
}
