package selftest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/check/invariant"
	"github.com/vllm-vcr/conformance/internal/check/replay"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// invariantFaults are values of the right kind that no engine of the line can send. A replay finds them without a real engine
// to compare with; recorded frames show them as well.
func invariantFaults(s *scene) []Fault {
	const root, of = "EngineCoreOutputs", "outputs.new_token_ids" // the output in the middle of the target
	const kind, value = replay.CodeWireKind, replay.CodeWireValue
	var faults []Fault
	for _, f := range []struct {
		name, says string
		code       conformance.Code
		framed     conformance.Code // what recorded frames say
		before     string           // the field of the first output, or message, that has one
		field      string
		value      any
	}{
		{"uneven-prompt", "the computed and the cached tokens of a prompt are not the prompt", invariant.CodePrefill, value, prefill, prefill + ".num_computed_tokens", otherToken},
		{"prefill-again", "an output that is not the first of its request has statistics of a prompt", invariant.CodePrefill, kind, of, prefill, map[string]any{}},
		{"more-hits", "the prefix cache has more hits than queries", invariant.CodeCache, value, of, cache + ".hits", otherToken},
		{"more-running", "more requests run than were sent", invariant.CodeGauges, value, of, stats + "num_running_reqs", otherToken},
		{"events-of-no-clock", "an event has the time 0, which lies before its request", invariant.CodeEvents, value, "outputs.events.1", "outputs.events.1.timestamp", 0.0},
		{"accepted-more", "more tokens are accepted than were drafted", invariant.CodeSpeculation, kind, of, drafts, map[string]any{
			"num_spec_tokens": 3, "num_drafts": 1, "num_draft_tokens": 3, "num_accepted_tokens": 7,
			"num_accepted_tokens_per_pos": []any{3, 2, 2}, "num_draft_tokens_per_pos": []any{1, 1, 1},
		}},
		{"stopped-midway", "an output that does not end its request has a stop reason", invariant.CodeAnswer, kind, of, "outputs.stop_reason", otherToken},
		{"steps-of-one", "an engine without others counts its steps", invariant.CodeStep, value, of, stats + "step_counter", 5},
		{"unasked-logprobs", "a request gets log-probabilities that it did not ask for", invariant.CodeLogprobs, kind, of, "outputs.new_logprobs", []any{
			tensorOf("<i4", 1), tensorOf("<f4", 1), tensorOf("<i8", 1), nil,
		}},
		{"mask-of-floats", "the ids of a sampling mask are floats", invariant.CodeMask, kind, of, mask, []any{tensorOf("<f4", 1), nil, nil}},
	} {
		within, isOutput := strings.CutPrefix(f.field, "outputs.")
		if name, _, _ := strings.Cut(within, "."); isOutput && s.field("EngineCoreOutput", name) < 0 {
			continue // a line of before
		}
		within = strings.Replace(within, "events.1", "events[1]", 1) // as paths have it
		w, framed := impossible(f.code, root+"."+f.field), differing(f.framed, root+"."+f.field)
		if isOutput {
			w, framed = s.impossibleOf(f.code, "."+within), differingOutput(f.framed, root+".outputs[0]."+within)
		}
		faults = append(faults, Fault{
			Name: f.name, Says: f.says, red: and(only(conformance.Fidelity, w), conformance.Wire, framed),
			wire: atOutput(f.before, put(f.field, f.value, 0)),
		})
	}
	return append(faults, Fault{
		Name: "stale-gauges", Says: "the step that ends a request has no statistics, so the last ones say that it runs",
		red:  and(only(conformance.Fidelity, impossible(invariant.CodeRest, root+".scheduler_stats")), conformance.Wire, differing(kind, root+".scheduler_stats")),
		wire: withoutLastStats,
	}, Fault{
		Name: "no-workers", Says: "the registration has no worker",
		red: and(only(conformance.Schema, nowhere(invariant.CodeRegistration, "EngineCoreReadyResponse.world_size: ", ": expected ", ", found 0").in("world_size")),
			conformance.Wire, differing(value, "EngineCoreReadyResponse.world_size")),
		wire: register(func(ready *node) { ready.value("world_size").become(number(0)) }),
	}, Fault{
		Name: "call-kind", Says: "a utility call that returns a bool is answered with a str",
		red:  only(conformance.Fidelity, impossible(invariant.CodeCall, root+".utility_output.result")),
		wire: s.answer(func(utility *node) { utility.items[2].items[1] = text("no") }),
	})
}

// atOutput makes an edit of an output of the target: of that in its middle, or of the first that has a field.
func atOutput(has string, e edit) func(*scene) tamper {
	change := func(o *spoken) {
		own := e
		if within, is := strings.CutPrefix(e.field, "outputs."); is {
			own.field = fmt.Sprintf("outputs.%d.%s", o.at, within)
		}
		met := 0
		o.raw = append([][]byte{own.change(o.read(), &met)}, o.aux...)
	}
	within := strings.TrimPrefix(has, "outputs.")
	if within == "new_token_ids" {
		return inMiddle(change)
	}
	return once(func(o *spoken) bool {
		found, met := false, 0
		edit{field: within, where: given}.find(o.read().Field("outputs").At(o.at), strings.Split(within, "."), &met, func(protocol.Value, []byte) { found = true })
		return found
	}, change)
}

// read is the message that the output is in.
func (o *spoken) read() protocol.Value {
	return o.scene.codec.Read(new(protocol.View), protocol.KindOutputs, o.root.bytes(), o.aux...)
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

// float is a number of seconds.
func float(v float64) *node { return &node{kind: pack.Float, leaf: pack.AppendFloat64(nil, v)} }

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
