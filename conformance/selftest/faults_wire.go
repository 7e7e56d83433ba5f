package selftest

import (
	"slices"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/check/invariant"
	"github.com/vllm-vcr/conformance/internal/check/replay"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// wireFaults are those that a frontend of ours does not mind, and that only a look
// at the recorded frames can tell from the real engine.
func wireFaults(s *scene) []Fault {
	const root, outputAt = "EngineCoreOutputs", "EngineCoreOutputs.outputs[0]"
	const prefillAt = outputAt + ".prefill_stats"
	timestamp := s.field("EngineCoreOutputs", "timestamp")
	wire := func(w want) map[conformance.Assertion]want { return only(conformance.Wire, w) }
	key := func(code conformance.Code, path string) map[conformance.Assertion]want {
		return wire(differingOutput(code, path))
	}
	return []Fault{
		{
			Name: "short-output", Says: "an output lacks the last field of the line", red: key(replay.CodeWireLength, outputAt),
			layout: only(conformance.Fidelity, s.layoutOf(outputAt)),
			wire:   inMiddle(func(o *spoken) { o.node().items = o.node().items[:len(o.node().items)-1] }),
		},
		{
			Name: "short-envelope", Says: "a message lacks the last field of the line", red: wire(differing(replay.CodeWireLength, root)),
			layout: only(conformance.Fidelity, layoutAt(root)),
			wire:   inMiddle(func(o *spoken) { o.root.items = o.root.items[:len(o.root.items)-1] }),
		},
		{
			Name: "extra-frame", Says: "a message has an auxiliary frame that nothing refers to", red: wire(differing(replay.CodeWireFrames, "frames")),
			layout: only(conformance.Fidelity, layoutAt("frames[1]")),
			wire:   inMiddle(func(o *spoken) { o.aux = append(o.aux, []byte{0}) }),
		},
		{
			Name: "whole-seconds", Says: "the time of a message is an int, and lies before that of the message before",
			red: and(wire(differing(replay.CodeWireKind, root+".timestamp")), conformance.Fidelity,
				impossible(invariant.CodeEnvelope, root+".timestamp")),
			wire: inMiddle(func(o *spoken) { o.root.items[timestamp] = number(7) }),
		},
		{
			Name: "extra-key", Says: "the statistics of a prompt have a key more", red: key(replay.CodeWireExtra, prefillAt),
			wire: atPrefill(func(stats *node) { stats.items = append(stats.items, text("surprise"), number(1)) }),
		},
		{
			Name: "missing-key", Says: "the statistics of a prompt lack a key",
			red:  and(key(replay.CodeWireMissing, prefillAt), conformance.Fidelity, s.impossibleOf(invariant.CodeKeys, ".prefill_stats.")),
			wire: atPrefill(func(stats *node) { stats.items = stats.items[:len(stats.items)-2] }),
		},
		{
			Name: "key-order", Says: "the statistics of a prompt come in another order", red: key(replay.CodeWireOrder, prefillAt),
			layout: map[conformance.Assertion]want{}, // a frontend reads them by their keys
			wire:   atPrefill(func(stats *node) { stats.items = append(slices.Clone(stats.items[2:]), stats.items[:2]...) }),
		},
		{
			Name: "cached-tokens", Says: "the statistics of a prompt count other cached tokens",
			red:  and(key(replay.CodeWireValue, prefillAt+".num_cached_tokens"), conformance.Fidelity, s.impossibleOf(invariant.CodePrefill, ".prefill_stats.")),
			wire: atPrefill(func(stats *node) { stats.value("num_cached_tokens").become(number(otherToken)) }),
		},
		{
			Name: "extension-code", Says: "a tensor has another extension code", red: key(replay.CodeWireKind, outputAt),
			wire: extension,
		},
	}
}

// valueFaults are values that only a recorded session shows to be wrong, in the first message that has them and those after it.
func valueFaults(s *scene) []Fault {
	const logprobs, event = "outputs.new_logprobs", "outputs.events.0.timestamp"
	table := []struct {
		name, says, field string
		value             any
		code              conformance.Code
		path              string // the end of the failure's
	}{
		{"weights", "the weights have another version", "weight_version", "x", replay.CodeWireValue, ".weight_version"},
		{"wave", "a message for a coordinator", "wave_complete", 1, replay.CodeWireKind, ".wave_complete"},
		{"no-time", "messages have no time", "timestamp", 0.0, replay.CodeWireValue, ".timestamp"},
		{"time-to-come", "messages are of the future", "timestamp", 1e9, replay.CodeWireValue, ".timestamp"},
		{"event-to-come", "events are of the future", event, 1e9, replay.CodeWireValue, ".events[0].timestamp"},
		{"event-of-text", "an event has another type", "outputs.events.0.type", 3, replay.CodeWireValue, ".events[0].type"},
		{"no-logprobs", "log-probabilities are left out", logprobs, nil, replay.CodeWireKind, ".new_logprobs"},
		{"logprobs-of-zeros", "log-probabilities are of other tokens", logprobs + ".0.2", zeros(16), replay.CodeWireValue, ".new_logprobs.logprob_token_ids[2]"},
		{"logprobs-too-few", "log-probabilities are too few", logprobs + ".1.2", zeros(12), replay.CodeWireValue, ".new_logprobs.logprobs[2]"},
		{"logprobs-of-doubles", "log-probabilities have another type of numbers", logprobs + ".1.0", "<f8", replay.CodeWireValue, ".new_logprobs.logprobs[0]"},
		{"another-result", "a utility call has another result", "utility_output.result.1", false, replay.CodeWireValue, ".utility_output.result[1]"},
	}
	var all []Fault
	for _, f := range table {
		if f.field == "weight_version" && s.field("EngineCoreOutputs", f.field) < 0 {
			continue // a line of before
		}
		w := want{code: f.code, request: anywhere, position: -1, inFrame: true, path: f.path}
		all = append(all, Fault{Name: "session-" + f.name, Says: f.says, red: only(conformance.Wire, w), wire: func(s *scene) tamper {
			if !s.any {
				return faithful
			}
			return edit{of: "OUTPUTS", field: f.field, value: f.value}.tamper(s.codec)
		}})
	}
	framed := func(change func(tensor []byte) []byte) func(*scene) tamper {
		edit := once(func(o *spoken) bool { return len(o.aux) > 1 }, func(o *spoken) {
			o.aux = slices.Clone(o.aux)
			o.aux[0] = change(slices.Clone(o.aux[0]))
		})
		return func(s *scene) tamper {
			if !s.any {
				return faithful
			}
			return edit(s)
		}
	}
	return append(all, Fault{
		Name: "session-prompt-of-another", Says: "log-probabilities of a prompt are of another token",
		red: only(conformance.Wire, want{
			code: replay.CodeWireValue, request: anywhere, position: -1, inFrame: true, path: ".new_prompt_logprobs_tensors.logprob_token_ids[2]",
		}),
		wire: framed(func(tensor []byte) []byte {
			tensor[len(tensor)-8]++ // the first id of the last row
			return tensor
		}),
	}, Fault{
		Name: "session-tensor-too-short", Says: "the frame of a tensor lacks a byte",
		red:  only(conformance.Wire, want{code: replay.CodeWireFrames, request: anywhere, position: -1, inFrame: true, path: "frames[1]"}),
		wire: framed(func(tensor []byte) []byte { return tensor[1:] }),
	})
}

// messageFaults are messages too few and too many in a session of recorded frames,
// which expects each by itself.
func messageFaults(s *scene) []Fault {
	timestamp := s.field("EngineCoreOutputs", "timestamp")
	framed := func(edit func(*spoken)) func(*scene) tamper {
		return func(s *scene) tamper {
			if !s.any {
				return faithful
			}
			return inMiddle(edit)(s)
		}
	}
	stray := nowhere(replay.CodeWireStray, "did not send").in("EngineCoreOutputs").compares("no message", "a step with outputs")
	stray.says = []string{"a message that the real engine did not send", "a step with outputs"}
	return []Fault{
		{
			Name: "lost-message", Says: "a whole message is lost",
			red:  only(conformance.Wire, differingOutput(replay.CodeWireUnsaid, "EngineCoreOutputs")),
			wire: framed(func(o *spoken) { o.held = true }),
		},
		{
			Name: "session-time-before", Says: "the time of a message lies before that of the message before",
			red:  only(conformance.Wire, want{code: replay.CodeWireValue, request: anywhere, position: -1, inFrame: true, path: ".timestamp"}),
			wire: framed(func(o *spoken) { o.root.items[timestamp] = float(1) }),
		},
		{
			Name: "stray-message", Says: "a message comes twice", red: only(conformance.Wire, stray),
			wire: framed(func(o *spoken) { o.after = append(o.after, [][]byte{o.root.bytes()}) }),
		},
	}
}

// atPrefill edits the prefill_stats of the first output that has some.
func atPrefill(edit func(stats *node)) func(*scene) tamper {
	stats := func(o *spoken) *node { return o.node().items[o.scene.field("EngineCoreOutput", "prefill_stats")] }
	return once(func(o *spoken) bool { return stats(o).kind == pack.Map }, func(o *spoken) { edit(stats(o)) })
}

// extension changes the code of the first extension value of an output.
func extension(s *scene) tamper {
	find := func(o *spoken) *node { return o.node().first(pack.Ext) }
	return once(func(o *spoken) bool { return find(o) != nil }, func(o *spoken) {
		n := find(o)
		cur := pack.NewCursor(n.leaf)
		if code, data, err := cur.Ext(); err == nil {
			n.leaf = pack.AppendExt(nil, code+1, data)
		}
	})(s)
}

// first is the first value of a kind at or below the node, nil if there is none.
func (n *node) first(kind pack.Kind) *node {
	if n.kind == kind {
		return n
	}
	for _, item := range n.items {
		if found := item.first(kind); found != nil {
			return found
		}
	}
	return nil
}
