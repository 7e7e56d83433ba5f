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
		require.True(t, len(found.Failures) != 0 && len(found.Failures) <= replay.MaxWireFailures && found.Asserted == 1, "%d failures, %d asserted", len(found.Failures), found.Asserted)
		require.True(t, seen.Class != replay.WireStep || len(found.Failures) != 1 || pack.Validate(payload) == nil, "%x is no message, and nothing is wrong with it", payload)
	})
}

// Whatever well-formed value an engine puts into the place of another, the live suite
// reads it to its end.
func FuzzLiveValues(f *testing.F) {
	table := func(dtype string, data []byte, shape ...uint32) []byte {
		return pack.AppendArray(nil, pack.AppendString(nil, dtype), pack.AppendUint32s(nil, shape), pack.AppendExt(nil, protocol.ExtRawView, data))
	}
	null := pack.AppendNil(nil)
	ids, values := table("<i4", make([]byte, 8), 1, 2), table("<f4", make([]byte, 8), 1, 2)
	f.Add(pack.AppendArray(nil, ids, values, table("<i8", make([]byte, 8), 1), null), 1, 2)
	f.Add(pack.AppendArray(nil, table("<i8", nil, 1<<31, 1<<30), null, null), 1, 2)
	f.Add(pack.AppendArray(nil, table("<i4", nil, 0, 0), null, null), 0, 0)
	f.Fuzz(func(t *testing.T, raw []byte, rows, columns int) {
		if pack.Validate(raw) != nil {
			return // refused before anybody looks at it
		}
		rows, columns = rows&0xff, columns&0xff
		if found, err := live.LogprobTable(raw, nil, rows, columns); err == nil {
			require.Equal(t, len(found), rows*columns, "ids of %d rows and %d columns", rows, columns)
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
