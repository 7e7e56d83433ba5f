package protocol

import (
	"maps"
	"slices"
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
	*Field    // that of [Value.Declared]
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
		if s := r.structs[ParseSignature(r.profile.Utilities[name].Signature).Result.Name]; s != nil {
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
