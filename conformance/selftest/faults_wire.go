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
			Name: "missing-key", Says: "the statistics of a prompt lack a key", red: key(replay.CodeWireMissing, prefillAt),
			wire: atPrefill(func(stats *node) { stats.items = stats.items[:len(stats.items)-2] }),
		},
		{
			Name: "key-order", Says: "the statistics of a prompt come in another order", red: key(replay.CodeWireOrder, prefillAt),
			wire: atPrefill(func(stats *node) { stats.items = append(slices.Clone(stats.items[2:]), stats.items[:2]...) }),
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

// messageFaults are messages too few and too many in a session of recorded frames,
// which expects each by itself.
func messageFaults(*scene) []Fault {
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
