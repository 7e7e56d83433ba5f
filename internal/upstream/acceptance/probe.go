package acceptance

import (
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// A Probe is one message of an engine, or a part of its handshake, with one place that is tampered with.
type Probe struct {
	Place, Variant string

	tamper   tamper
	scenario *scenario
}

// A scenario is what a frontend is asked for, so that it takes a message.
type scenario struct {
	name string
	root *node    // of the message
	open []string // places of it that have their samples
	// HTTP, for what answers a request.
	method, path string
	body         map[string]any
	call         string // the utility method that is called then; empty for a completion
	kind         byte   // of what a frontend sends
	// raw makes the frames of a message that is none; clean is one that is.
	raw func(clean []byte) [][]byte
}

// Messages are those of a line, and its probes.
type Messages struct {
	Codec  *protocol.Codec
	Probes []Probe

	ready                map[string][]byte
	hello, register, end *scenario
	init                 *scenario // of a frontend's messages
	plain                *scenario
}

const (
	rootOutputs  = "EngineCoreOutputs"
	rootRegister = "EngineCoreReadyResponse"
	outputPlace  = rootOutputs + ".outputs[]"
	answerPlace  = rootOutputs + ".utility_output"
	resultPlace  = answerPlace + ".result.value"
)

// routes lead to a call of a utility method.
var routes = []struct {
	method, path, call string
	body               map[string]any
}{
	{"GET", "/is_sleeping", "is_sleeping", nil},
	{"POST", "/reset_prefix_cache", "reset_prefix_cache", nil},
	{"POST", "/reset_mm_cache", "reset_mm_cache", nil},
	{"POST", "/reset_encoder_cache", "reset_encoder_cache", nil},
	{"POST", "/wake_up", "wake_up", nil},
	{"GET", "/is_paused", "is_scheduler_paused", nil},
	{"POST", "/resume", "resume_scheduler", nil},
	{"GET", "/weight_info", "get_weight_version", nil},
	{"POST", "/collective_rpc", "collective_rpc", map[string]any{"method": "nothing"}},
	{"POST", "/start_profile", "profile", nil},
}

// New makes the probes of a line.
func New(line string) (*Messages, error) {
	codec, err := protocol.CodecFor(line)
	if err != nil {
		return nil, err
	}
	m := &Messages{Codec: codec, ready: registered(codec)}
	hello, ready, register := m.builder(), m.builder(), m.builder()
	m.hello = &scenario{name: "HELLO", root: hello.status("HELLO")}
	m.end = &scenario{name: "READY", root: ready.status("READY")}
	m.register = &scenario{name: rootRegister, root: register.build(nil, rootRegister, rootRegister, protocol.ParsePyType(rootRegister))}
	m.add(hello.all, func(*node) *scenario { return m.hello })
	m.add(register.all, func(*node) *scenario { return m.register })
	m.add(ready.all, func(*node) *scenario { return m.end })
	m.outputs()
	m.utilities()
	m.frames()
	return m, nil
}

// add adds the probes of places.
func (m *Messages) add(nodes []*node, of func(*node) *scenario) {
	for _, n := range nodes {
		s := of(n)
		if s == nil {
			continue
		}
		for _, t := range n.variants() {
			t.open = s.open
			m.Probes = append(m.Probes, Probe{Place: n.place, Variant: t.variant, tamper: t, scenario: s})
		}
	}
}

func (m *Messages) builder() *builder { return &builder{profile: m.Codec.Profile()} }

// outputs are the answers to completions, each place once.
func (m *Messages) outputs() {
	b := m.builder()
	root := b.build(nil, rootOutputs, rootOutputs, protocol.ParsePyType(rootOutputs))
	open := []string{rootOutputs + ".outputs", outputPlace + ".prefill_stats"}
	completion := func(name string, extra map[string]any, more ...string) *scenario {
		var prompt []int
		for i := range promptTokens {
			prompt = append(prompt, promptID(i))
		}
		body := map[string]any{"model": "model", "prompt": prompt, "max_tokens": 1, "temperature": 0, "return_token_ids": true}
		for key, value := range extra {
			body[key] = value
		}
		return &scenario{name: name, root: root, open: append(more, open...), method: "POST", path: "/v1/completions", body: body}
	}
	m.plain = completion("completion", nil)
	logprobs := completion("completion with log-probabilities", map[string]any{"logprobs": 1}, outputPlace+".new_logprobs")
	prompt := completion("completion with log-probabilities of the prompt", map[string]any{"prompt_logprobs": 1}, outputPlace+".new_prompt_logprobs_tensors")
	m.add(b.all, func(n *node) *scenario {
		switch {
		case strings.HasPrefix(n.place, answerPlace):
			return nil
		case strings.HasPrefix(n.place, outputPlace+".new_logprobs"):
			return logprobs
		case strings.HasPrefix(n.place, outputPlace+".new_prompt_logprobs_tensors"):
			return prompt
		}
		return m.plain
	})
}

// utilities are the answers to calls: their envelope once, and what each method returns.
func (m *Messages) utilities() {
	for i, r := range routes {
		declared, is := m.Codec.Profile().Utilities[r.call]
		if !is {
			continue
		}
		b := m.builder()
		root := b.build(nil, rootOutputs, rootOutputs, protocol.ParsePyType(rootOutputs))
		s := &scenario{
			name: r.call, root: root, open: []string{answerPlace, answerPlace + ".result"},
			method: r.method, path: r.path, body: r.body, call: r.call,
		}
		_, annotation := protocol.CutResult(declared.Signature)
		if declared.Result == protocol.ResultNone {
			annotation = "None"
		}
		var value *node
		for _, n := range b.all {
			if n.place == resultPlace {
				value = n
			}
		}
		if value == nil {
			continue
		}
		place := "result of " + r.call
		result := m.builder()
		made := result.build(value.parent, place, place, protocol.ParsePyType(strings.TrimSpace(annotation)))
		value.parent.parts[len(value.parent.parts)-1] = made
		if i == 0 {
			m.add(b.all, func(n *node) *scenario {
				if !strings.HasPrefix(n.place, answerPlace) || n == value {
					return nil
				}
				return s
			})
		}
		m.add(result.all, func(*node) *scenario { return s })
	}
}

// frames are messages that are not EngineCoreOutputs, or not only.
func (m *Messages) frames() {
	dead := []byte(protocol.EngineDead)
	for _, f := range []struct {
		place, variant string
		frames         func(clean []byte) [][]byte
	}{
		{"ENGINE_CORE_DEAD", "sample", func([]byte) [][]byte { return [][]byte{dead} }},
		{"ENGINE_CORE_DEAD", "other", func([]byte) [][]byte { return [][]byte{[]byte("ENGINE_CORE_LIVE")} }},
		{"ENGINE_CORE_DEAD", "shorter", func([]byte) [][]byte { return [][]byte{dead[:len(dead)-1]} }},
		{"ENGINE_CORE_DEAD", "longer", func([]byte) [][]byte { return [][]byte{slices.Concat(dead, []byte("!"))} }},
		{"ENGINE_CORE_DEAD", "str", func([]byte) [][]byte { return [][]byte{pack.AppendString(nil, protocol.EngineDead)} }},
		{"ENGINE_CORE_DEAD", "extra", func([]byte) [][]byte { return [][]byte{dead, []byte("why")} }},
		{"message", "empty", func([]byte) [][]byte { return [][]byte{nil} }},
		{"message", "shorter", func(clean []byte) [][]byte { return [][]byte{clean[:len(clean)-1]} }},
		{"message", "longer", func(clean []byte) [][]byte { return [][]byte{append(clean, 0xc0)} }},
		{"message", "extra", func(clean []byte) [][]byte { return [][]byte{clean, []byte("nothing refers to it")} }},
		{"message", "other", func([]byte) [][]byte { return [][]byte{{0xc1}} }},
	} {
		s := *m.plain
		s.name, s.raw = f.place, f.frames
		m.Probes = append(m.Probes, Probe{Place: f.place, Variant: f.variant, scenario: &s})
	}
}

// message is what the engine sends for a probe.
func (p *Probe) message(f facts) [][]byte {
	if p.scenario.raw != nil {
		return p.scenario.raw(p.scenario.clean(f))
	}
	frames := [][]byte{p.tamper.encode(nil, p.scenario.root, f)}
	if at := p.tamper.at; p.Variant == "frame" && at.parent != nil && at.parent.form == tensor {
		frames = append(frames, at.parent.data(at.parent.dtypes()[0], at.parent.rows, at.parent.columns))
	}
	return frames
}

// clean is the message of a scenario without a variant.
func (s *scenario) clean(f facts) []byte {
	t := tamper{open: s.open}
	return t.encode(nil, s.root, f)
}
