package selftest

import (
	"slices"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/check/invariant"
	"github.com/vllm-vcr/conformance/internal/check/replay"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// invariantFaults are values of the right kind that no engine of the line can send. A replay finds them without a real engine
// to compare with; recorded frames show them as well.
func invariantFaults(s *scene) []Fault {
	const root, outputAt, statsAt = "EngineCoreOutputs", "EngineCoreOutputs.outputs", "EngineCoreOutputs.scheduler_stats"
	const kind, value = replay.CodeWireKind, replay.CodeWireValue
	// told is what a replay says of a place, and what recorded frames do.
	told := func(code conformance.Code, path string, framed want) map[conformance.Assertion]want {
		w := impossible(code, path)
		if framed.request == someone {
			w = s.impossibleOf(code, path)
		}
		return and(only(conformance.Fidelity, w), conformance.Wire, framed)
	}
	stats := func(edit func(stats *node)) func(*scene) tamper {
		at := s.field(root, "scheduler_stats")
		return inMiddle(func(o *spoken) {
			if o.root.items[at].kind == pack.Map {
				edit(o.root.items[at])
			}
		})
	}
	faults := []Fault{
		{
			Name: "uneven-prompt", Says: "the computed and the cached tokens of a prompt are not the prompt",
			red:  told(invariant.CodePrefill, ".prefill_stats.num_computed_tokens", differingOutput(value, outputAt+"[0].prefill_stats.num_computed_tokens")),
			wire: atPrefill(func(stats *node) { stats.value("num_computed_tokens").become(number(otherToken)) }),
		},
		{
			Name: "prefill-again", Says: "an output that is not the first of its request has statistics of a prompt",
			red: told(invariant.CodePrefill, ".prefill_stats", differingOutput(kind, outputAt+"[0].prefill_stats")),
			wire: inMiddle(func(o *spoken) {
				o.node().items[o.scene.field("EngineCoreOutput", "prefill_stats")] = &node{kind: pack.Map}
			}),
		},
		{
			Name: "more-hits", Says: "the prefix cache has more hits than queries",
			red:  told(invariant.CodeCache, statsAt+".prefix_cache_stats.hits", differing(value, statsAt+".prefix_cache_stats.hits")),
			wire: stats(func(stats *node) { stats.value("prefix_cache_stats").value("hits").become(number(otherToken)) }),
		},
		{
			Name: "more-running", Says: "more requests run than were sent",
			red:  told(invariant.CodeGauges, statsAt+".num_running_reqs", differing(value, statsAt+".num_running_reqs")),
			wire: stats(func(stats *node) { stats.value("num_running_reqs").become(number(otherToken)) }),
		},
		{
			Name: "stale-gauges", Says: "the step that ends a request has no statistics, so the last ones say that it runs",
			red:  told(invariant.CodeRest, statsAt, differing(kind, statsAt)),
			wire: withoutLastStats,
		},
		{
			Name: "events-of-no-clock", Says: "an event has the time 0, which lies before its request",
			red:  told(invariant.CodeEvents, ".timestamp", differingOutput(value, outputAt+"[0].events[1].timestamp")),
			wire: atEvents(func(events *node) { events.items[1].value("timestamp").become(float(0)) }),
		},
		{
			Name: "accepted-more", Says: "more tokens are accepted than were drafted",
			red: told(invariant.CodeSpeculation, statsAt+".spec_decoding_stats", differing(kind, statsAt+".spec_decoding_stats")),
			wire: stats(func(stats *node) {
				stats.value("spec_decoding_stats").become(&node{kind: pack.Map, items: []*node{
					text("num_spec_tokens"), number(3), text("num_drafts"), number(1), text("num_draft_tokens"), number(3),
					text("num_accepted_tokens"), number(7), text("num_accepted_tokens_per_pos"), numbers([]uint32{3, 2, 2}),
					text("num_draft_tokens_per_pos"), numbers([]uint32{1, 1, 1}),
				}})
			}),
		},
		{
			Name: "stopped-midway", Says: "an output that does not end its request has a stop reason",
			red: told(invariant.CodeAnswer, ".stop_reason", differingOutput(kind, outputAt+"[0].stop_reason")),
			wire: inMiddle(func(o *spoken) {
				if !o.terminal() {
					o.node().items[o.scene.field("EngineCoreOutput", "stop_reason")] = number(otherToken)
				}
			}),
		},
		{
			Name: "steps-of-one", Says: "an engine without others counts its steps",
			red:  told(invariant.CodeStep, statsAt+".step_counter", differing(value, statsAt+".step_counter")),
			wire: stats(func(stats *node) { stats.value("step_counter").become(number(5)) }),
		},
		{
			Name: "no-workers", Says: "the registration has no worker",
			red: and(only(conformance.Schema, nowhere(invariant.CodeRegistration, "EngineCoreReadyResponse.world_size: ", ": expected ", ", found 0").in("world_size")),
				conformance.Wire, differing(value, "EngineCoreReadyResponse.world_size")),
			wire: register(func(ready *node) { ready.value("world_size").become(number(0)) }),
		},
		{
			Name: "call-kind", Says: "a utility call that returns a bool is answered with a str",
			red:  only(conformance.Fidelity, impossible(invariant.CodeCall, root+".utility_output.result")),
			wire: s.answer(func(utility *node) { utility.items[2].items[1] = text("no") }),
		},
		{
			Name: "unasked-logprobs", Says: "a request gets log-probabilities that it did not ask for",
			red: told(invariant.CodeLogprobs, ".new_logprobs", differingOutput(kind, outputAt+"[0].new_logprobs")),
			wire: inMiddle(func(o *spoken) {
				if at := o.scene.field("EngineCoreOutput", "new_logprobs"); o.node().items[at].isNil() {
					o.node().items[at] = array(tensor("<i4"), tensor("<f4"), tensor("<i8"), null())
				}
			}),
		},
	}
	if s.field("EngineCoreOutput", "new_sampling_mask") >= 0 {
		faults = append(faults, Fault{
			Name: "mask-of-floats", Says: "the ids of a sampling mask are floats",
			red: told(invariant.CodeMask, ".new_sampling_mask.token_ids", differingOutput(kind, outputAt+"[0].new_sampling_mask")),
			wire: inMiddle(func(o *spoken) {
				o.node().items[o.scene.field("EngineCoreOutput", "new_sampling_mask")] = array(tensor("<f4"), null(), null())
			}),
		})
	}
	return faults
}

// impossible is what is wanted of what cannot be of any engine, at a path.
func impossible(code conformance.Code, path string) want {
	w := nowhere(code, path, ": expected ", ", found ").in(path)
	w.says = []string{path, ": expected ", ", found "}
	w.inFrame, w.distinct, w.besides = true, true, true
	return w
}

// impossibleOf is what is wanted of it in an output of the target.
func (s *scene) impossibleOf(code conformance.Code, path string) want {
	w := impossible(code, path)
	w.request = s.target.index
	return w
}

// tensor is one of a zero.
func tensor(dtype string) *node {
	data := &node{kind: pack.Ext, leaf: pack.AppendExt(nil, protocol.ExtRawView, make([]byte, dtype[2]-'0'))}
	return array(text(dtype), array(number(1)), data)
}

// float is a number of seconds.
func float(v float64) *node { return &node{kind: pack.Float, leaf: pack.AppendFloat64(nil, v)} }

// atEvents edits the events of the first output that has two.
func atEvents(edit func(events *node)) func(*scene) tamper {
	events := func(o *spoken) *node { return o.node().items[o.scene.field("EngineCoreOutput", "events")] }
	return once(func(o *spoken) bool { return len(events(o).items) > 1 }, func(o *spoken) { edit(events(o)) })
}

// withoutLastStats takes the statistics out of every message that leaves nothing running, and leaves out those that have
// nothing else.
func withoutLastStats(s *scene) tamper {
	at := s.field("EngineCoreOutputs", "scheduler_stats")
	return func(m message) ([]message, error) {
		root, err := parse(m.frames[0])
		if m.to != output || err != nil || at >= len(root.items) || root.items[at].kind != pack.Map {
			return faithful(m)
		}
		running := root.items[at].value("num_running_reqs")
		if running == nil || !slices.Equal(running.leaf, pack.AppendInt(nil, 0)) {
			return faithful(m)
		}
		if len(root.items[1].items) == 0 {
			return nil, nil
		}
		if looked := root.items[at].value("prefix_cache_stats").value("requests"); !slices.Equal(looked.leaf, pack.AppendInt(nil, 0)) {
			return faithful(m) // it has counts of a request that begins
		}
		root.items[at] = null()
		m.frames[0] = root.bytes()
		return faithful(m)
	}
}
