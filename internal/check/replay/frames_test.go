package replay

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

func TestPartOfOne(t *testing.T) {
	frame := [][]byte{{0x90}}
	messages := []trace.Message{
		{Note: "a frontend came"},
		{Channel: "handshake", Frames: frame},
		{Channel: "input", Rank: 1, Frames: frame},
		{Channel: "output", Client: 1, Frames: frame},
		{Channel: "coordinator_output", Frames: frame},
		{Channel: "output", Frames: frame},
		{Channel: "output", Frames: [][]byte{[]byte(protocol.EngineDead)}},
		{Channel: "output", Frames: frame},
	}
	require.NoDiff(t, cmp.Diff([]trace.Message{messages[0], messages[1], messages[5]}, partOfOne(messages)), "-want +got")
}

// A judge of messages that pass finds what the judge of a file finds, once for each kind, and shows the message.
func TestSessionJudge(t *testing.T) {
	found, err := filepath.Glob("../../../testdata/goldens/conformance/v0.33.0/cpu/tiny/frames-busy-*.jsonl.gz")
	require.NoError(t, err)
	if len(found) != 1 {
		t.Fatalf("%d goldens: %v", len(found), found)
	}
	data, err := os.ReadFile(found[0])
	require.NoError(t, err)
	_, messages, err := check.ReadFrames(data, found[0])
	require.NoError(t, err)
	tests := []struct {
		name string
		edit func(m *trace.Message) // of each message of the engine with outputs
		code check.Code
	}{
		{name: "as recorded", edit: func(*trace.Message) {}},
		{name: "cut", edit: func(m *trace.Message) { m.Frames[0] = m.Frames[0][:len(m.Frames[0])-1] }, code: check.CodeLayout},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var found []check.Code
			judge := SessionJudge{Found: func(_ int, f check.Failure, m *trace.Message) {
				found = append(found, f.Code)
				require.True(t, m.Channel == "output" && len(m.Frames) != 0, "%s of a message of channel %s", f.Code, m.Channel)
			}}
			n := 0
			for i := range messages {
				m := messages[i].Clone()
				if m.Note != "" {
					continue
				}
				n++
				if m.Channel == "output" && string(m.Frames[0]) != protocol.EngineDead {
					test.edit(&m)
				}
				judge.Message(&m)
			}
			if judged, kinds, unknown := judge.Judged(); judged != n || kinds != len(found) || unknown != 0 {
				t.Errorf("%d messages judged, %d kinds of failures, %d unknown engines; want %d, %d and 0", judged, kinds, unknown, n, len(found))
			}
			require.True(t, (test.code == "") == (len(found) == 0) && (test.code == "" || found[0] == test.code), "found %v, want %q first", found, test.code)
		})
	}
}
