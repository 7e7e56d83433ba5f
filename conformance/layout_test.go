package conformance

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/replay"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/trace"
)

// recordedSession reads the messages of a golden of raw frames, and the codec of its
// line.
func recordedSession(t *testing.T, path string) (*protocol.Codec, []trace.Message) {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	meta, messages, err := check.ReadFrames(data, path)
	require.NoError(t, err)
	codec, err := protocol.CodecFor(*meta.VLLMVersion)
	require.NoError(t, err)
	return codec, messages
}

func recordedSessions(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob("../testdata/goldens/conformance/*/cpu/tiny/wire-*.jsonl.gz")
	_, mf := repository(t)
	want := 0
	for _, g := range mf.Goldens {
		if g.Role == manifest.Wire {
			want++
		}
	}
	if err != nil || len(paths) != want || want == 0 {
		t.Fatalf("%d goldens of raw frames, want %d (%v)", len(paths), want, err)
	}
	return paths
}

// TestLayoutOfRealEngines: no message of a real engine of any line is found wrong.
func TestLayoutOfRealEngines(t *testing.T) {
	for _, path := range recordedSessions(t) {
		codec, messages := recordedSession(t, path)
		t.Run(codec.Line(), func(t *testing.T) {
			outputs, framed, ready := 0, 0, 0
			for _, m := range messages {
				switch {
				case m.Direction != trace.EngineToFrontend:
				case m.Channel == "output":
					outputs++
					framed += min(len(m.Frames)-1, 1)
					for _, wrong := range check.OutputsLayout(codec, m.Frames) {
						t.Errorf("line %d: %v", m.Line, wrong)
					}
				case m.Channel == "input":
					ready++
					s := replay.Replaying{Session: new(check.Session), Layout: &replay.LayoutCheck{Codec: codec}}
					s.Engine.RawReady = m.Frames[0]
					var f check.Outcome
					s.CheckRegistration(&f)
					for _, wrong := range f.Failures {
						t.Errorf("line %d: %s", m.Line, wrong.Message)
					}
				}
			}
			if outputs < 500 || framed == 0 || ready != 1 {
				t.Errorf("%d outputs, %d with auxiliary frames, %d registrations: want a whole session", outputs, framed, ready)
			}
		})
	}
}

// reversed exchanges the first two pairs of the first map in a message that begins
// with the key.
func reversed(t *testing.T, message []byte, key string) []byte {
	t.Helper()
	at := strings.Index(string(message), string(pack.AppendString(nil, key)))
	if at < 0 {
		t.Fatalf("no key %s in %s", key, pack.Format(message))
	}
	cur := pack.NewCursor(message[at:])
	var pairs [2][]byte
	for i := range pairs {
		for range 2 {
			raw, err := cur.Raw()
			require.NoError(t, err)
			pairs[i] = append(pairs[i], raw...)
		}
	}
	end := at + len(pairs[0]) + len(pairs[1])
	return slices.Concat(message[:at], pairs[1], pairs[0], message[end:])
}

// shortened leaves out the last element of an array of less than 16.
func shortened(t *testing.T, message []byte) []byte {
	t.Helper()
	cur := pack.NewCursor(message)
	n, err := cur.ArrayLen()
	for i := 0; i < n-1 && err == nil; i++ {
		err = cur.Skip()
	}
	require.NoError(t, err)
	return slices.Concat([]byte{message[0] - 1}, message[1:cur.Offset()])
}

// TestLayoutFinds: each way of being wrong is found, by its place.
func TestLayoutFinds(t *testing.T) {
	codec, messages := recordedSession(t, pinnedWirePath)
	var plain, first, framed [][]byte // a step with statistics, the first output of a request, one with auxiliary frames
	for _, m := range messages {
		if m.Channel != "output" {
			continue
		}
		text := string(m.Frames[0])
		switch {
		case len(m.Frames) > 1:
			framed = m.Frames
		case first == nil && strings.Contains(text, "num_prompt_tokens"):
			first = m.Frames
		case plain == nil && strings.Contains(text, "num_running_reqs"):
			plain = m.Frames
		}
	}
	tests := []struct {
		name           string
		frames         [][]byte
		path, expected string
	}{
		{"nothing", plain, "", ""},
		{"a frame too many", append(slices.Clone(plain), []byte{1}), "frames[1]", "a frame that the message refers to"},
		{"an empty frame too many", append(slices.Clone(plain), []byte{}), "frames[1]", "a frame that the message refers to"},
		{"a frame behind those of tensors", append(slices.Clone(framed), []byte{1}), fmt.Sprintf("frames[%d]", len(framed)), "a frame that the message refers to"},
		{"a frame too few", framed[:len(framed)-1], "EngineCoreOutputs.outputs[0].", "ext 3, or the number of one of"},
		{"other keys first", [][]byte{reversed(t, plain[0], "num_running_reqs")}, "", ""},
		{"other keys first in a nested map", [][]byte{reversed(t, plain[0], "reset")}, "", ""},
		{"other keys first in an output", [][]byte{reversed(t, first[0], "num_prompt_tokens")}, "", ""},
		{"a field too few", [][]byte{shortened(t, plain[0])}, "EngineCoreOutputs", "9 fields"},
		{"no message", [][]byte{{0xc1}}, "EngineCoreOutputs", "one well-formed message"},
		{"the last word", [][]byte{[]byte(protocol.EngineDead)}, "", ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			found := check.OutputsLayout(codec, test.frames)
			if test.path == "" {
				if len(found) > 0 {
					t.Errorf("found %v", found)
				}
				return
			}
			if len(found) == 0 || !strings.HasPrefix(found[0].Path, test.path) || !strings.Contains(found[0].Expected, test.expected) || found[0].Actual == "" {
				t.Errorf("found %v, want %s: %s", found, test.path, test.expected)
			}
		})
	}
}

// TestUnknownKeysAreNoted: what frontends skip is told, once, and fails nothing.
func TestUnknownKeysAreNoted(t *testing.T) {
	codec, err := protocol.CodecFor("0.33")
	require.NoError(t, err)
	b := codec.NewBatch(0)
	if err := b.Add(codec.NewStream(&protocol.Request{ID: "a", Sampling: protocol.Sampling{Logprobs: protocol.NoLogprobs, PromptLogprobs: protocol.NoLogprobs}}), &protocol.Output{Tokens: []uint32{7}}); err != nil {
		t.Fatal(err)
	}
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
	if f.Note != want {
		t.Errorf("note %q, want %q", f.Note, want)
	}
	for _, wrong := range f.Failures {
		if strings.Contains(wrong.Path, "sitting") {
			t.Errorf("it fails: %v", wrong)
		}
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
	if at := replay.OutputID(message("b", "a")[0], 1); at != "a" {
		t.Errorf("output 1 is of %q, want a", at)
	}
	for _, broken := range [][]byte{{}, {0x90}, {0x92, 0x00}, {0x92, 0x00, 0x91, 0x07}, {0x92, 0x00, 0x91, 0x90}, {0x92, 0x00, 0x91, 0x91, 0x07}} {
		if id := replay.OutputID(broken, 0); id != "" {
			t.Errorf("%x names %q", broken, id)
		}
	}
	for range 2 * replay.MaxLayoutKinds { // of another protocol
		at := len(layout.Kinds)
		layout.Add(protocol.Mismatch{Path: fmt.Sprint("x", at)}, Failure{})
	}
	if len(layout.Kinds) != replay.MaxLayoutKinds {
		t.Errorf("%d kinds are kept, want %d", len(layout.Kinds), replay.MaxLayoutKinds)
	}
}
