package conformance

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/replay"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// TestUnknownKeysAreNoted: what frontends skip is told, once, and fails nothing.
func TestUnknownKeysAreNoted(t *testing.T) {
	codec, err := protocol.CodecFor("0.33")
	require.NoError(t, err)
	b := codec.NewBatch(0)
	require.NoError(t, b.Add(codec.NewStream(&protocol.Request{ID: "a", Sampling: protocol.Sampling{Logprobs: protocol.NoLogprobs, PromptLogprobs: protocol.NoLogprobs}}), &protocol.Output{Tokens: []uint32{7}}))
	m, err := b.Finish(&protocol.SchedulerStats{}, 1)
	require.NoError(t, err)
	frame := bytes.Replace(m[0], []byte("num_running_reqs"), []byte("num_sitting_reqs"), 1)
	layout := replay.LayoutCheck{Codec: codec}
	for number := range 3 {
		layout.Outputs(number, [][]byte{frame}, func(string) int { return 0 })
	}
	var f check.Outcome
	layout.Report(&f)
	const want = "keys that line 0.33 does not know, and frontends skip: EngineCoreOutputs.scheduler_stats.num_sitting_reqs"
	require.Equal(t, f.Note, want, "note")
	for _, wrong := range f.Failures {
		require.True(t, !strings.Contains(wrong.Path, "sitting"), "it fails: %v", wrong)
	}
}

// TestLayoutIsToldOnce: what is wrong in every message is told once, with the request
// of the first and how many there were.
func TestLayoutIsToldOnce(t *testing.T) {
	codec, err := protocol.CodecFor("0.33")
	require.NoError(t, err)
	output := func(id string) []byte { // without all but its first two fields
		b := pack.AppendString(pack.AppendArrayHeader(nil, 2), id)
		return pack.AppendUint32s(b, []uint32{7})
	}
	message := func(ids ...string) [][]byte {
		b := pack.AppendArrayHeader(pack.AppendInt(pack.AppendArrayHeader(nil, 9), 0), len(ids))
		for _, id := range ids {
			b = append(b, output(id)...)
		}
		b = pack.AppendFloat64(pack.AppendNil(b), 1)
		for range 5 {
			b = pack.AppendNil(b)
		}
		return [][]byte{b}
	}
	layout := replay.LayoutCheck{Codec: codec}
	requests := map[string]int{"a": 4, "b": 5}
	for number := 1; number < 4; number++ {
		layout.Outputs(number, message("b", "a"), func(id string) int { return requests[id] })
	}
	var f check.Outcome
	layout.Report(&f)
	if len(f.Failures) != 1 {
		t.Fatalf("%d failures: %v", len(f.Failures), f.Failures)
	}
	got := f.Failures[0]
	want := Failure{
		Code: check.CodeLayout, Request: 5, Position: -1, Frame: 1, Path: "EngineCoreOutputs.outputs[0]",
		Expected: "19 fields", Actual: got.Actual, Message: got.Message,
	}
	if got != want || !strings.HasPrefix(got.Actual, "2 fields: without ") ||
		!strings.HasPrefix(got.Message, "message 1: EngineCoreOutputs.outputs[0]: expected 19 fields, found 2 fields") || !strings.HasSuffix(got.Message, " (the first of 3 messages)") {
		t.Errorf("got %+v", got)
	}
	require.Equal(t, replay.OutputID(message("b", "a")[0], 1), "a", "output 1 is of")
	for _, broken := range [][]byte{{}, {0x90}, {0x92, 0x00}, {0x92, 0x00, 0x91, 0x07}, {0x92, 0x00, 0x91, 0x90}, {0x92, 0x00, 0x91, 0x91, 0x07}} {
		require.Equal(t, replay.OutputID(broken, 0), "", "%x names", broken)
	}
	for range 2 * replay.MaxLayoutKinds { // of another protocol
		at := len(layout.Kinds)
		layout.Add(protocol.Mismatch{Path: fmt.Sprint("x", at)}, Failure{})
	}
	require.True(t, len(layout.Kinds) == replay.MaxLayoutKinds, "%d kinds are kept, want %d", len(layout.Kinds), replay.MaxLayoutKinds)
}
