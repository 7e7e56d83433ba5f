package conformance

import (
	"testing"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/live"
	"github.com/vllm-vcr/conformance/internal/check/replay"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// Whatever an engine says in the place of a real one's message, comparing the two ends
// in a bounded list of failures, and in none only if they are the same but for masks.
func FuzzWireMessage(f *testing.F) {
	codec, err := protocol.CodecFor("0.33")
	require.NoError(f, err)
	w, err := replay.NewWireSession("golden", codec, messagesOf(f, pinnedWire(f)))
	require.NoError(f, err)
	var answers []*replay.WireSaid
	for _, m := range w.Said {
		// A first output, log-probabilities, tables in frames, a step of nobody, an answer.
		switch m.Line {
		case 7, 24, 43, 287, 713:
			answers = append(answers, m)
			f.Add(m.Frames[0], []byte{}, uint8(len(answers)-1))
			f.Add(m.Frames[0], m.Frames[len(m.Frames)-1], uint8(len(answers)-1))
		}
	}
	f.Fuzz(func(t *testing.T, payload, aux []byte, at uint8) {
		want := answers[int(at)%len(answers)]
		got := [][]byte{payload}
		if len(want.Frames) > 1 {
			got = append(got, aux, aux)
		}
		clock := new(replay.StepClock)
		clock.Set(replay.StepTime(1 << 20))
		c := replay.NewWireComparison("golden", codec, clock)
		seen := w.Look(got)
		c.Message("EngineCoreOutputs", &want.WireMessage, want.Requests, got)
		c.Stray(want, seen)
		var found check.Outcome
		c.Report(&found)
		if len(found.Failures) == 0 || len(found.Failures) > replay.MaxWireFailures || found.Asserted != 1 {
			t.Errorf("%d failures, %d asserted", len(found.Failures), found.Asserted)
		}
		if seen.Class == replay.WireStep && len(found.Failures) == 1 && pack.Validate(payload) != nil {
			t.Errorf("%x is no message, and nothing is wrong with it", payload)
		}
	})
}

// Whatever well-formed value an engine puts into the place of another, the live suite
// reads it to its end.
func FuzzLiveValues(f *testing.F) {
	table := func(dtype string, shape []any, data []byte) []any {
		return []any{dtype, shape, pack.AppendExt(nil, protocol.ExtRawView, data)}
	}
	ids, values := table("<i4", []any{1, 2}, make([]byte, 8)), table("<f4", []any{1, 2}, make([]byte, 8))
	f.Add(msgpackOf([]any{ids, values, table("<i8", []any{1}, make([]byte, 8)), nil}), 1, 2)
	f.Add(msgpackOf([]any{table("<i8", []any{1 << 31, 1 << 30}, nil), nil, nil}), 1, 2)
	f.Add(msgpackOf([]any{table("<i4", []any{0, 0}, nil), nil, nil}), 0, 0)
	f.Add(msgpackOf(map[string]any{"kv_cache_usage": 0.5, "num_running_reqs": 1}), 1, 1)
	f.Fuzz(func(t *testing.T, raw []byte, rows, columns int) {
		if pack.Validate(raw) != nil {
			return // refused before anybody looks at it
		}
		rows, columns = rows&0xff, columns&0xff
		if found, err := live.LogprobTable(raw, nil, rows, columns); err == nil {
			if len(found) != rows*columns {
				t.Errorf("%d ids of %d rows and %d columns", len(found), rows, columns)
			}
			_ = live.FirstColumn(found, columns, make([]uint32, rows))
		}
		if first := replay.FirstIDs(raw, nil); len(first) > len(raw) {
			t.Errorf("%d rows out of %d bytes", len(first), len(raw))
		}
		protocol.ViewOf(raw).Walk(func(protocol.Value) bool { return true })
		for _, kind := range []protocol.ResultKind{protocol.ResultNone, protocol.ResultBool, protocol.ResultStr, protocol.ResultInts, protocol.ResultStrings, protocol.ResultList} {
			_ = live.IsResult(kind, raw)
		}
	})
}
