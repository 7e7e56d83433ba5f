package coverage

import (
	"encoding/hex"
	"hash/maphash"
	"maps"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/replay"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/trace"
)

// Line is what is covered of the wire of a line.
type Line struct {
	Line      string
	Fields    []*Field
	Utilities []*Item
	Members   []*Item // of enumerations, "FinishReason.STOP"
	Messages  []*Item // kinds of message
	// Frontends are whose requests the messages hold, and Runners whose log-probabilities:
	// vLLM has two model runners.
	Frontends, Runners []string

	codec  *protocol.Codec
	fields map[*protocol.Field]*Field
	items  map[string]*Item
	// Of the message that was added last:
	message protocol.View
	values  []protocol.Value // of fields
}

// Field is a field of a struct that a message can hold.
type Field struct {
	Direction    protocol.Direction
	Struct, Name string
	Type         string // as Python declares it
	Feature      string
	// Seen: some message has another value than the default. Values is how many different
	// ones were seen, the default among them, up to several.
	Seen   bool
	Values int
	// Compared: another value of the same kind in its place is found by a check of the
	// replay suite; that it is read, and of the right kind, is not enough.
	Compared bool

	holdsStructs bool
	tried        int // how often another value was not found
	hashes       [several]uint64
}

// Item is something else that is seen or not: a method, a member of an enumeration, a kind of message.
type Item struct {
	Name string
	Seen bool
}

// several different values are enough: more are not counted.
const several = 2

// FullName is "EngineCoreOutput.finish_reason".
func (f *Field) FullName() string { return f.Struct + "." + f.Name }

// Varied reports whether several values were seen.
func (f *Field) Varied() bool { return f.Seen && f.Values == several }

// New is the wire of a line, of which nothing is covered.
func New(codec *protocol.Codec) *Line {
	l := &Line{Line: codec.Line(), codec: codec, fields: map[*protocol.Field]*Field{}, items: map[string]*Item{}}
	for _, d := range codec.Declared() {
		f := &Field{Direction: d.Direction, Struct: d.Struct, Name: d.Name, Type: d.Type, holdsStructs: d.HoldsStructs}
		f.Feature = featureOf(f.FullName())
		l.Fields, l.fields[d.Field] = append(l.Fields, f), f
	}
	profile := codec.Profile()
	item := func(list *[]*Item, kind, name string) {
		i := &Item{Name: name}
		*list, l.items[kind+name] = append(*list, i), i
	}
	for _, name := range slices.Sorted(maps.Keys(profile.Utilities)) {
		item(&l.Utilities, utility, name)
	}
	for _, name := range slices.Sorted(maps.Keys(profile.Enums)) {
		for _, m := range profile.Enums[name].Members {
			item(&l.Members, member, name+"."+m.Name)
		}
	}
	for _, name := range messageNames(profile) {
		item(&l.Messages, message, name)
	}
	return l
}

// messageNames are the kinds of message of a line. Those without a struct are named in its profile.
func messageNames(p *protocol.Profile) []string {
	names := []string{add, abort, call, outputs, answer, dead, initial, registration}
	for _, name := range slices.Sorted(maps.Keys(p.Messages)) {
		if name != "INIT.parallel_config" && !slices.Contains(names, name) { // a part of INIT
			names = append(names, name)
		}
	}
	return names
}

// The kinds of items, which begin their keys.
const (
	utility = "utility "
	member  = "member "
	message = "message "
)

// see notes that there is an item. One that the line does not have is none.
func (l *Line) see(kind, name string) {
	if i := l.items[kind+name]; i != nil {
		i.Seen = true
	}
}

// AddGolden adds what a golden holds that has been read, and, if measured is set, which of it
// the checks compare.
func (l *Line) AddGolden(g *check.Golden, measured bool) {
	var wire *replay.WireJudge
	var frames *replay.FramesJudge
	switch {
	case measured && g.Registered.Role == manifest.Wire:
		wire, _ = replay.NewWireJudge(g) // its own case says what is wrong with it
	case measured && g.Registered.Role == manifest.Frames:
		frames = replay.NewFramesJudge(g.Location, g.Codec)
	}
	for _, f := range l.Fields {
		f.tried = 0 // what is compared differs from golden to golden
	}
	for i := range g.Frames {
		m := &g.Frames[i]
		hasFields := l.Add(m)
		switch {
		case m.Note != "":
		case wire != nil && hasFields:
			l.compare(m, wire.Finds)
		case frames != nil:
			if hasFields {
				l.compare(m, frames.Finds)
			}
			frames.Take(m)
		}
	}
	if g.Frames == nil && g.Trace != nil {
		if ready, err := hex.DecodeString(trace.Or(g.Trace.Meta.ReadyResponseHex, "")); err == nil && len(ready) > 0 {
			l.see(message, registration)
			l.payload(protocol.KindReady, ready)
		}
	}
}

// AddConversation adds what an engine under test said, and which of it was judged.
func (l *Line) AddConversation(c check.Conversation) {
	l.Registration(c.Registration)
	l.compare(&trace.Message{Channel: "input", Direction: trace.EngineToFrontend, Frames: [][]byte{c.Registration}},
		func(_ *trace.Message, other [][]byte) bool { return c.Registers(other[0]) })
	for i, frames := range c.Said {
		l.values = l.values[:0]
		l.FromEngine(frames)
		l.compare(&trace.Message{Channel: "output", Direction: trace.EngineToFrontend, Frames: frames},
			func(_ *trace.Message, other [][]byte) bool { return c.Finds(i, other) })
	}
}

// AddExchange adds what a frontend under test sent and which of it was judged, and what it was sent.
func (l *Line) AddExchange(x check.Exchange) {
	if x.Init != nil {
		l.handshake(false, x.Init)
	}
	for i, frames := range x.Sent {
		l.values = l.values[:0]
		l.ToEngine(frames)
		if x.Finds[i] != nil {
			l.compareAll(&trace.Message{Channel: "input", Direction: trace.FrontendToEngine, Frames: frames}, true,
				func(_ *trace.Message, other [][]byte) bool { return x.Finds[i](other[1]) })
			l.compareAbsent(frames[1], x.Finds[i])
		}
	}
	for _, frames := range x.Said {
		l.values = l.values[:0]
		l.FromEngine(frames)
	}
}

func (l *Line) payload(kind protocol.MessageKind, payload []byte, aux ...[]byte) {
	if pack.Validate(payload) != nil {
		return
	}
	root := l.codec.Read(&l.message, kind, payload, aux...)
	root.Walk(func(v protocol.Value) bool {
		f := l.fields[v.Declared()]
		if f != nil {
			l.values = append(l.values, v)
			f.add(v)
			switch f.FullName() {
			case "SamplingParams.temperature":
				l.Frontends = noted(l.Frontends, frontendOf(v))
			case "LogprobsLists.logprob_token_ids":
				l.Runners = noted(l.Runners, runnerOf(v))
			}
		}
		for _, of := range []protocol.Value{v.Key(), v} {
			if enum, name := of.Enum(); enum != "" {
				l.see(member, enum+"."+name)
			}
		}
		return f == nil || !strings.Contains(f.Type, "list[int]") // of ids, which are many
	})
	if kind == protocol.KindUtility {
		l.see(utility, root.At(2).Text())
	}
}

// maxTries is how many values of a field are tried before it is taken for one that is not compared.
const maxTries = 3

// compare puts other values in the place of those of the message that was added last, and
// notes the fields of which a judge finds that.
func (l *Line) compare(m *trace.Message, finds func(m *trace.Message, frames [][]byte) bool) {
	l.compareAll(m, false, finds)
}

// compareAll is compare of values that are defaults too, if defaults is set.
func (l *Line) compareAll(m *trace.Message, defaults bool, finds func(m *trace.Message, frames [][]byte) bool) {
	payload, asked := payloadOf(m), false
	for _, v := range l.values {
		f := l.fields[v.Declared()]
		if f.Compared || f.tried == maxTries || !defaults && v.IsDefault() {
			continue
		}
		if !asked { // asked once, and only of messages that show something new
			if asked = true; finds(m, m.Frames) {
				return // whatever is changed, something is found
			}
		}
		others := mutations(v, f.holdsStructs, m.Frames, payload)
		if len(others) > 0 {
			f.tried++
		}
		f.Compared = slices.ContainsFunc(others, func(frames [][]byte) bool {
			return finds(m, frames)
		})
	}
}

// compareAbsent puts values in the place of the sampling parameters that a request leaves out, as compare does with those that it has.
func (l *Line) compareAbsent(payload []byte, finds func(payload []byte) bool) {
	params := l.codec.Read(&l.message, protocol.KindRequest, payload).Field("sampling_params")
	if params.Kind() != pack.Map || finds(payload) {
		return
	}
	cur := pack.NewCursor(params.Bytes())
	count, _ := cur.MapLen()
	entries := params.Bytes()[cur.Offset():]
	for _, f := range l.Fields {
		if f.Struct != "SamplingParams" || f.Compared || !params.Field(f.Name).IsAbsent() {
			continue
		}
		if value := valueOf(f.Type); value != nil {
			f.Compared = finds(params.Set(slices.Concat(pack.AppendMapHeader(nil, count+1), entries, pack.AppendString(nil, f.Name), value)))
		}
	}
}

// valueOf is a value of an annotation that is not a default; nil for an annotation of another kind.
func valueOf(annotation string) []byte {
	switch option := protocol.ParsePyType(annotation).Options()[0].String(); option {
	case "int":
		return pack.AppendInt(nil, 3)
	case "str":
		return pack.AppendString(nil, "x")
	case "list[int]":
		return pack.AppendArray(nil, pack.AppendInt(nil, 3))
	case "list[str]":
		return pack.AppendArray(nil, pack.AppendString(nil, "x"))
	}
	return nil
}

// payloadOf is which of the frames of a message has its fields: auxiliary frames come behind it.
func payloadOf(m *trace.Message) int {
	fromEngine := m.Direction == trace.EngineToFrontend
	switch m.Channel {
	case "output", "coordinator_output":
		return 0
	case "input", "coordinator_input":
		if !fromEngine {
			return 1
		}
	}
	return len(m.Frames) - 1
}

var seed = maphash.MakeSeed()

func (f *Field) add(v protocol.Value) {
	if f.Seen && f.Values == several {
		return
	}
	hash := maphash.Bytes(seed, v.Bytes())
	if slices.Contains(f.hashes[:f.Values], hash) {
		return
	}
	if f.Values < several {
		f.hashes[f.Values] = hash
		f.Values++
	}
	f.Seen = f.Seen || !v.IsDefault()
}

// frontendOf returns which frontend has written a request, by the width of a float: vllm-rs has
// 32 bits, Python 64.
func frontendOf(v protocol.Value) string {
	if len(v.Bytes()) == len(pack.AppendFloat32(nil, 0)) {
		return "vllm-rs"
	}
	return "Python"
}

// runnerOf returns which of vLLM's model runners has made a table of log-probabilities by the
// type of its token ids.
func runnerOf(v protocol.Value) string {
	switch v.At(0).Text() {
	case "<i4":
		return "V1"
	case "<i8":
		return "V2"
	}
	return ""
}

func noted(names []string, name string) []string {
	if name == "" || slices.Contains(names, name) {
		return names
	}
	return slices.Sorted(slices.Values(append(names, name)))
}
