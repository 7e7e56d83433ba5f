package protocol

import (
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// reencodeOutputs decodes a real envelope into the values an engine would hand
// to a Batch, writes it again and demands the same bytes, frame by frame.
func reencodeOutputs(t *testing.T, c *Codec, where string, frames [][]byte, streams map[string]*Stream) {
	t.Helper()
	var o Outputs
	require.NoErrorf(t, c.DecodeOutputs(frames[0], &o), "%s", where)
	require.True(t, o.Fields == len(c.envelope.fields), "%s: %d fields, a real engine of the line writes %d", where, o.Fields, len(c.envelope.fields))
	var got ClientMessage
	if o.Utility != nil {
		got = reencodeUtility(t, c, where, &o)
	} else {
		got = reencodeBatch(t, c, where, frames, &o, streams)
	}
	if len(got) != len(frames) {
		t.Fatalf("%s: %d frames, want %d", where, len(got), len(frames))
	}
	for i := range frames {
		if string(got[i]) != string(frames[i]) {
			t.Errorf("%s: frame %d differs in bytes", where, i)
			if i == 0 {
				sameValue(t, c, "EngineCoreOutputs", where, frames[0], got[0])
			}
		}
	}
}

func reencodeUtility(t *testing.T, c *Codec, where string, o *Outputs) ClientMessage {
	t.Helper()
	cur := pack.NewCursor(o.Utility.Result)
	result, err := cur.Bool()
	require.NoErrorf(t, err, "%s", where)
	call := UtilityCall{CallID: o.Utility.CallID, Method: "reset_prefix_cache"}
	got, err := c.UtilityResult(o.EngineIndex, call, result, o.Timestamp)
	require.NoErrorf(t, err, "%s", where)
	return got
}

func reencodeBatch(t *testing.T, c *Codec, where string, frames [][]byte, o *Outputs, streams map[string]*Stream) ClientMessage {
	t.Helper()
	b := c.NewBatch(o.EngineIndex)
	b.WeightVersion = o.WeightVersion
	for i := range o.Outputs {
		out := engineOutput(t, &o.Outputs[i], frames)
		stream := streams[string(o.Outputs[i].ID)]
		if stream == nil {
			t.Fatalf("%s: output for unknown request %s", where, o.Outputs[i].ID)
		}
		require.NoErrorf(t, b.Add(stream, out), "%s", where)
	}
	for _, id := range o.FinishedRequests {
		b.ReportFinished(string(id))
	}
	stats := engineStats(t, o.SchedulerStats)
	got, err := b.Finish(stats, o.Timestamp)
	require.NoErrorf(t, err, "%s", where)
	return got
}

// engineOutput and engineStats are what an engine would hand to a batch for a message that was decoded.
func engineOutput(t *testing.T, o *RequestOutput, frames [][]byte) *Output {
	t.Helper()
	out, err := o.Decode(frames[1:])
	require.NoError(t, err)
	return &out
}

func engineStats(t *testing.T, raw []byte) *SchedulerStats {
	t.Helper()
	if raw == nil {
		return nil
	}
	s, err := DecodeStats(raw)
	require.NoError(t, err)
	return &s
}
