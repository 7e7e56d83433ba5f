package protocol

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/pytype"
)

// Direction is the way that a message takes.
type Direction string

const (
	ToEngine     Direction = "frontend to engine"
	ToFrontend   Direction = "engine to frontend"
	AtStart      Direction = "handshake" // and registration, both ways
	ToSubscriber Direction = "KV events"
)

// Directions are all of them.
func Directions() []Direction { return []Direction{ToEngine, ToFrontend, AtStart, ToSubscriber} }

// MessageKind is one kind of message, and what its payload is.
type MessageKind struct {
	Name      string // as paths begin
	Direction Direction
	Type      string // an annotation
}

// The kinds of message whose payload a line declares. What is checked, and what is
// surveyed, is of one of them. They are not to be changed.
var (
	KindRequest  = MessageKind{"EngineCoreRequest", ToEngine, "EngineCoreRequest"}
	KindAbort    = MessageKind{"Abort", ToEngine, "list[str]"}
	KindUtility  = MessageKind{"UtilityCall", ToEngine, utilityCallType}
	KindOutputs  = MessageKind{"EngineCoreOutputs", ToFrontend, "EngineCoreOutputs"}
	KindInit     = MessageKind{"EngineHandshakeMetadata", AtStart, "EngineHandshakeMetadata"}
	KindScaleUp  = MessageKind{"ExternalElasticEPScaleUpHandshakeMetadata", AtStart, "ExternalElasticEPScaleUpHandshakeMetadata"}
	KindReady    = MessageKind{"EngineCoreReadyResponse", AtStart, "EngineCoreReadyResponse"}
	KindKVEvents = MessageKind{"KVEventBatch", ToSubscriber, "KVEventBatch"}

	messageKinds = []MessageKind{KindRequest, KindAbort, KindUtility, KindOutputs, KindInit, KindScaleUp, KindReady, KindKVEvents}
)

// DeclaredField is a field of a struct that a message of the line can hold.
type DeclaredField struct {
	Direction Direction // of the first kind of message that can hold the struct
	Struct    string
	*Field    // the same for every survey of the line
	// HoldsStructs: what it holds has fields of its own.
	HoldsStructs bool
}

// Declared lists the fields of all structs that a message of the line can hold, by the
// same reading of its profile that the checks of messages use. A class that others are
// derived from, and that is never sent itself, is not among them.
func (c *Codec) Declared() []DeclaredField {
	r := c.rules()
	w := declaredWalk{known: map[string]bool{}}
	for _, k := range messageKinds {
		if w.direction = k.Direction; r.structs[k.Type] != nil {
			w.shape(r.structs[k.Type])
		}
	}
	// What methods are called with, and what they return.
	for _, name := range slices.Sorted(maps.Keys(r.methods)) {
		w.direction = ToEngine
		for _, p := range r.methods[name] {
			w.shape(p.typ)
		}
		w.direction = ToFrontend
		if s := r.structs[pytype.ParseSignature(r.profile.Utilities[name].Signature).Result.Name]; s != nil {
			w.shape(s)
		}
	}
	return w.fields
}

// declaredWalk goes through all that shapes are made of.
type declaredWalk struct {
	direction Direction
	known     map[string]bool
	fields    []DeclaredField
}

func (w *declaredWalk) shape(s shape) {
	switch s := s.(type) {
	case *structShape:
		if w.known[s.name] {
			return
		}
		w.known[s.name] = true
		for i := range s.declared.Fields {
			w.fields = append(w.fields, DeclaredField{w.direction, s.name, &s.declared.Fields[i], holdsStructs(s.types[i])})
		}
		for _, t := range s.types {
			w.shape(t)
		}
	case unionShape:
		for _, o := range s.options {
			w.shape(o)
		}
	case listShape:
		w.shape(s.element)
	case tupleShape:
		for _, e := range s.elements {
			w.shape(e)
		}
	case dictShape:
		w.shape(s.key)
		w.shape(s.value)
	case fieldShape:
		for _, kind := range []shape{s.batched, s.flat, s.shared} {
			w.shape(kind)
		}
	}
}

// holdsStructs reports whether a shape is, or is made of, structs.
func holdsStructs(s shape) bool {
	switch s := s.(type) {
	case *structShape, fieldShape:
		return true
	case unionShape:
		return slices.ContainsFunc(s.options, holdsStructs)
	case listShape:
		return holdsStructs(s.element)
	case dictShape:
		return holdsStructs(s.value)
	}
	return false
}

// FieldValue is the value that a message has for a field that is declared.
type FieldValue struct {
	Field  *Field // see [DeclaredField]
	Raw    []byte // part of the message
	Offset int    // of Raw in the payload
}

// IsDefault reports whether the value says no more than that the field is there: it is the one
// that the field has where nobody sets it, or, where it must be set, None, 0, false, or empty.
func (v FieldValue) IsDefault() bool {
	if v.Field.Required {
		return slices.ContainsFunc(zeros, func(zero any) bool { return isPlain(v.Raw, zero) })
	}
	var want any
	if len(v.Field.Default) == 0 {
		return isPlain(v.Raw, nil)
	}
	return json.Unmarshal(v.Field.Default, &want) == nil && isPlain(v.Raw, want)
}

// zeros are the values that say nothing.
var zeros = []any{nil, false, "", 0.0, []any{}, map[string]any{}}

// isPlain reports whether a message is the value that package json has decoded.
func isPlain(raw []byte, want any) bool {
	cur := pack.NewCursor(raw)
	switch want := want.(type) {
	case nil:
		return cur.Nil()
	case bool:
		got, err := cur.Bool()
		return err == nil && got == want
	case string:
		got, err := cur.StrString()
		return err == nil && got == want
	case float64:
		got, err := cur.Float()
		return err == nil && (got == want || got == float64(float32(want)))
	case []any:
		n, err := cur.ArrayLen()
		return err == nil && n == 0 && len(want) == 0
	case map[string]any:
		n, err := cur.MapLen()
		return err == nil && n == 0 && len(want) == 0
	}
	return false
}

// Survey is what a message holds.
type Survey struct {
	Fields []FieldValue
	// Members are the values of enumerations, as MessagePack, with their names.
	Members []EnumValue
	// Calls are the methods that utility calls name.
	Calls []string
}

// EnumValue is a member of an enumeration that a message holds.
type EnumValue struct{ Enum, Member string }

// Survey lists what the payload of a kind of message holds for the fields of the line, in
// the order of the bytes, in place of what is in s. What is not of the line is left out.
func (c *Codec) Survey(s *Survey, kind MessageKind, payload []byte, aux ...[]byte) {
	s.Fields, s.Members, s.Calls = s.Fields[:0], s.Members[:0], s.Calls[:0]
	if pack.Validate(payload) != nil {
		return
	}
	r := c.rules()
	x := &examination{rules: r, cur: pack.NewCursor(payload), aux: aux, path: []place{{name: kind.Name}}, survey: s}
	x.value(r.parse(kind.Type))
}

// sees notes the value of a field.
func (x *examination) sees(s *structShape, i int) {
	if x.survey == nil {
		return
	}
	ahead := x.cur
	raw, err := ahead.Raw()
	if err == nil {
		x.survey.Fields = append(x.survey.Fields, FieldValue{&s.declared.Fields[i], raw, x.cur.Offset()})
	}
}

// seesMember notes a value whose type is an enumeration of the line.
func (x *examination) seesMember(s shape) {
	if x.survey == nil {
		return
	}
	name := s.String()
	enum, known := x.rules.profile.Enums[name]
	if !known {
		return
	}
	ahead := x.cur
	raw, _ := ahead.Raw()
	for _, m := range enum.Members {
		var value any
		if json.Unmarshal(m.Value, &value) == nil && isPlain(raw, value) {
			x.survey.Members = append(x.survey.Members, EnumValue{name, m.Name})
		}
	}
}

// length of what was seen so far, to go back to.
func (s *Survey) length() [3]int {
	if s == nil {
		return [3]int{}
	}
	return [3]int{len(s.Fields), len(s.Members), len(s.Calls)}
}

// from takes out what was seen since then.
func (s *Survey) from(n [3]int) (since Survey) {
	if s == nil {
		return since
	}
	since = Survey{slices.Clone(s.Fields[n[0]:]), slices.Clone(s.Members[n[1]:]), slices.Clone(s.Calls[n[2]:])}
	s.Fields, s.Members, s.Calls = s.Fields[:n[0]], s.Members[:n[1]], s.Calls[:n[2]]
	return since
}

// add appends what was seen elsewhere.
func (s *Survey) add(more Survey) {
	if s != nil {
		s.Fields = append(s.Fields, more.Fields...)
		s.Members = append(s.Members, more.Members...)
		s.Calls = append(s.Calls, more.Calls...)
	}
}
