package acceptance

import (
	"slices"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

const (
	rootRequest   = "EngineCoreRequest"
	rootInit      = "EngineHandshakeMetadata"
	samplingPlace = rootRequest + ".sampling_params"
)

// calledMethods are utility methods after which an engine without adapters serves as before.
var calledMethods = []string{
	"is_sleeping", "reset_prefix_cache", "reset_mm_cache", "reset_encoder_cache", "wake_up", "is_scheduler_paused", "resume_scheduler",
	"get_weight_version", "set_weight_version", "get_supported_tasks", "list_loras", "add_lora", "remove_lora", "pin_lora", "collective_rpc",
}

// NewRequests makes the probes of the other direction: what a line's frontend sends to its engine.
func NewRequests(line string) (*Messages, error) {
	codec, err := protocol.CodecFor(line)
	if err != nil {
		return nil, err
	}
	m := &Messages{Codec: codec}
	b := m.builder()
	m.init = &scenario{name: "INIT", root: b.build(nil, rootInit, rootInit, protocol.ParsePyType(rootInit))}
	m.add(b.all, func(*node) *scenario { return m.init })
	b = m.builder()
	root := b.build(nil, rootRequest, rootRequest, protocol.ParsePyType(rootRequest))
	m.plain = &scenario{name: "request", kind: protocol.TypeAdd, root: root, open: []string{rootRequest + ".prompt_token_ids", samplingPlace}}
	m.add(b.all, func(*node) *scenario { return m.plain })
	m.calls()
	m.inputs()
	return m, nil
}

// calls are the envelope of a utility call once, and the arguments of each method.
func (m *Messages) calls() {
	for i, method := range calledMethods {
		declared, is := m.Codec.Profile().Utilities[method]
		if !is {
			continue
		}
		envelope := &node{place: "call", field: "call", form: tuple, kind: pack.Array}
		all := []*node{envelope}
		for _, part := range []struct {
			name string
			kind pack.Kind
			leaf func(facts) []byte
		}{
			{"client_index", pack.Int, constant(pack.AppendInt(nil, 0))},
			{"call_id", pack.Int, func(f facts) []byte { return pack.AppendUint(nil, f.callID) }},
			{"method", pack.String, constant(pack.AppendString(nil, method))},
		} {
			n := &node{place: "call." + part.name, field: "call." + part.name, parent: envelope, kind: part.kind, leaf: part.leaf}
			envelope.parts, all = append(envelope.parts, n), append(all, n)
		}
		place := "call of " + method
		b := m.builder()
		args := &node{place: place, field: "call.args", parent: envelope, form: tuple, kind: pack.Array}
		b.all = append(b.all, args)
		for _, p := range protocol.ParseSignature(declared.Signature).Params {
			args.parts = append(args.parts, b.build(args, place+"."+p.Name, method+"."+p.Name, p.Type))
		}
		envelope.parts = append(envelope.parts, args)
		s := &scenario{name: method, kind: protocol.TypeUtility, root: envelope, call: method}
		if i == 0 {
			m.add(all, func(*node) *scenario { return s })
		}
		m.add(b.all, func(*node) *scenario { return s })
	}
}

// inputs are aborts, and messages that are none of those above.
func (m *Messages) inputs() {
	b := m.builder()
	ids := b.build(nil, "abort", "abort", protocol.ParsePyType("list[str]"))
	abort := &scenario{name: "abort", kind: protocol.TypeAbort, root: ids}
	m.add(b.all, func(*node) *scenario { return abort })
	for _, f := range []struct {
		place, variant string
		frames         func(clean []byte) [][]byte
	}{
		{"type", "other", func(clean []byte) [][]byte { return [][]byte{{9}, clean} }},
		{"type", "longer", func(clean []byte) [][]byte { return [][]byte{{protocol.TypeAdd, 0}, clean} }},
		{"type", "empty", func(clean []byte) [][]byte { return [][]byte{nil, clean} }},
		{"type", "missing", func(clean []byte) [][]byte { return [][]byte{clean} }},
		{"START_DP_WAVE", "sample", func([]byte) [][]byte { return [][]byte{{protocol.TypeStartDPWave}, {0x92, 0, 0xc0}} }},
		{"START_DP_WAVE", "nil", func([]byte) [][]byte { return [][]byte{{protocol.TypeStartDPWave}, {0xc0}} }},
		{"request", "missing", func([]byte) [][]byte { return [][]byte{{protocol.TypeAdd}} }},
		{"request", "empty", func([]byte) [][]byte { return [][]byte{{protocol.TypeAdd}, nil} }},
		{"request", "shorter", func(clean []byte) [][]byte { return [][]byte{{protocol.TypeAdd}, clean[:len(clean)-1]} }},
		{"request", "longer", func(clean []byte) [][]byte { return [][]byte{{protocol.TypeAdd}, append(slices.Clone(clean), 0xc0)} }},
		{"request", "extra", func(clean []byte) [][]byte {
			return [][]byte{{protocol.TypeAdd}, clean, []byte("nothing refers to it")}
		}},
		{"request", "other", func([]byte) [][]byte { return [][]byte{{protocol.TypeAdd}, {0xc1}} }},
	} {
		s := *m.plain
		s.name, s.raw = f.place, f.frames
		m.Probes = append(m.Probes, Probe{Place: f.place, Variant: f.variant, scenario: &s})
	}
}

// input is what a frontend sends for a probe, with the type of the message.
func (p *Probe) input(f facts) [][]byte {
	frames := p.message(f)
	if p.scenario.raw != nil {
		return frames
	}
	return append([][]byte{{p.scenario.kind}}, frames...)
}
