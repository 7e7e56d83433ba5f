package recorder

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

// TestEdgeCapture: a session of aborts, refusals and odd requests, of which no
// trace was kept, by what must hold of any session.
func TestEdgeCapture(t *testing.T) {
	frames := capturePath("0.27.1-edge-s1.jsonl.gz")
	adds, aborted := obsCensus(t, "0.27.1-edge-s1.jsonl.gz")
	run := obsDerive(t, frames, Options{RecordTokens: true, RecordPrompts: true, RecordAborted: true})
	s := run.stats
	t.Logf("%d requests, aborts of %d: %+v", adds, aborted, s)
	if s.Requests != uint64(adds) || s.Requests != s.Done+s.Aborted || s.InFlight != 0 || s.Records != s.Requests {
		t.Errorf("%d requests are not %d done, %d aborted, in %d records", adds, s.Done, s.Aborted, s.Records)
	}
	require.True(t, s.Aborted != 0 && s.Aborted <= uint64(aborted), "%d requests aborted, the frontend named %d", s.Aborted, aborted)
	require.Equal(t, s.Undecodable+s.Unknown+s.Lost+s.Duplicates+s.Clamped+s.WrongEngine+s.Refused, 0, "counts %+v", s)
	tokens, reasons := 0, map[trace.FinishReason]int{}
	for _, r := range run.trace.Records {
		tokens += r.OutputTokens
		reasons[r.FinishReason]++
		require.True(t, len(r.Extra["request_id"]) >= 3 && len(r.Extra["sampling_params"]) != 0, "record %d: extra keys %s", r.Line, r.Extra)
	}
	if uint64(tokens) != s.Tokens || reasons[trace.FinishAbort] != int(s.Aborted) || reasons[trace.FinishStop] == 0 || reasons[trace.FinishLength] == 0 {
		t.Errorf("%d tokens of %d, reasons %v", tokens, s.Tokens, reasons)
	}

	// All six got tokens before their frontend ended them: hang-ups, and stop strings that it found.
	without := obsDerive(t, frames, Options{})
	ended := 0
	for _, r := range without.trace.Records {
		if r.EndedByFrontend {
			ended++
		}
	}
	if n := len(without.trace.Records); uint64(n) != s.Done+s.Aborted || uint64(ended) != s.Aborted {
		t.Errorf("%d records, %d ended by the frontend, want %d and %d", n, ended, s.Done+s.Aborted, s.Aborted)
	}
}

// obsCensus counts a session's ADDs, and its distinct ids in ABORTs of them.
func obsCensus(t *testing.T, name string) (adds, aborted int) {
	codec, err := protocol.CodecFor("0.27")
	require.NoError(t, err)
	ids := map[string]bool{}
	for _, m := range testenv.Capture(t, name) {
		if m.Channel != "input0" || m.Direction != "f2e" {
			continue
		}
		switch m.Frames[0][0] {
		case protocol.TypeAdd:
			var r protocol.Request
			require.NoError(t, codec.DecodeRequest(m.Frames[1], &r))
			adds++
			ids[r.ID] = true
		case protocol.TypeAbort:
			named, err := protocol.DecodeAbort(m.Frames[1])
			require.NoError(t, err)
			for _, id := range named {
				if ids[id] {
					aborted++
					delete(ids, id)
				}
			}
		}
	}
	return adds, aborted
}

// TestDeriveGivesTheSameFiles: what is derived from a frames file is, byte for
// byte, what was recorded along with it.
func TestDeriveGivesTheSameFiles(t *testing.T) {
	s := obsStart(t, Options{RecordTokens: true, RecordAborted: true, Model: "tiny", VLLMVersion: "v0.33.0", GPU: "cpu", Recorder: "v1"})
	obsSecrets(s)
	s.add(obsRequest("a", 40))
	s.at -= 5000
	s.out(1, obsTokens("a", 5))
	s.o.Note(s.at, "a note on the \"link\"")
	s.o.Flush()
	s.o.Observe(&Event{At: s.at, Channel: Output, Elided: 99}) // loses a
	s.add(obsRequest("b", 4))
	s.event(Handshake, FromEngine, []byte("HELLO"))
	s.event(CoordinatorOutput, FromEngine, []byte{0x90}, nil, []byte("x"))
	s.out(1, obsTokens("b", 5))
	s.abort("b")
	s.finish()

	frames := s.file("frames.jsonl.gz")
	opt, err := FrameOptions(frames)
	require.NoError(t, err)
	dir := t.TempDir()
	var counts Counts
	err = Derive(t.Context(), frames, opt, func(int) (Sinks, error) {
		return Sinks{
			Trace:  obsCreate(t, filepath.Join(dir, "run.jsonl")),
			Steps:  obsCreate(t, filepath.Join(dir, "steps.jsonl")),
			Frames: obsCreate(t, filepath.Join(dir, "frames.jsonl")),
		}, nil
	}, &counts, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	for _, name := range []string{"run.jsonl", "steps.jsonl"} {
		want, got := obsRead(t, s.file(name)), obsRead(t, filepath.Join(dir, name))
		if diff := cmp.Diff(want, got); diff != "" || want == "" {
			t.Errorf("%s (-recorded +derived):\n%s", name, diff)
		}
	}
	require.NoDiff(t, cmp.Diff(s.counts.Snapshot(), counts.Snapshot()), "counts (-recorded +derived)")
	again := obsMessages(t, filepath.Join(dir, "frames.jsonl"))
	if diff := cmp.Diff(obsMessages(t, frames), again); diff != "" || len(again) != 13 {
		t.Errorf("%d messages (-recorded +derived):\n%s", len(again), diff)
	}
}

func obsRead(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(data)
}

func obsMessages(t *testing.T, path string) (all []trace.Message) {
	t.Helper()
	r, err := trace.OpenFrames(path, trace.Options{Strict: true})
	require.NoError(t, err)
	defer r.Close()
	for {
		var m trace.Message
		if err := r.Next(&m); err != nil {
			return all
		}
		for i := range m.Frames {
			m.Frames[i] = bytes.Clone(m.Frames[i])
		}
		all = append(all, m)
	}
}

// TestDeriveFaults: what ends Derive, and what is left then.
func TestDeriveFaults(t *testing.T) {
	s := obsStart(t, Options{})
	s.add(obsRequest("a", 4))
	s.out(1, obsEnd("a", protocol.FinishStop, 1))
	s.add(obsRequest("b", 4))
	s.finish()
	whole := obsRead(t, s.file("frames.jsonl.gz"))
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for _, test := range []struct {
		name, file, data string
		ctx              context.Context
		want             string // in the error; "" is none
	}{
		{name: "whole", file: "f.jsonl.gz", data: whole},
		{name: "a killed tap's", file: "f.jsonl.gz", data: whole[:len(whole)-4]},
		{name: "not gzip", file: "f.jsonl.gz", data: "plain", want: "f.jsonl.gz"},
		{name: "a bad line", file: "f.jsonl", data: "{\"t\":1,\"ch\":\"input0\",\"dir\":\"f2e\",\"frames\":[\"AA==\",\"wA==\"]}\n{\"t\":-1}\n", want: "line 2"},
		{name: "empty", file: "f.jsonl", want: "no message"},
		{name: "canceled", file: "f.jsonl.gz", data: whole, ctx: canceled, want: "context canceled"},
		{name: "no such file", want: "no such file"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "in-"+test.file)
			if test.file != "" {
				require.NoError(t, os.WriteFile(path, []byte(test.data), 0o600))
			}
			if test.ctx == nil {
				test.ctx = t.Context()
			}
			err := Derive(test.ctx, path, Options{}, func(int) (Sinks, error) {
				return Sinks{Trace: obsCreate(t, filepath.Join(dir, "out.jsonl"))}, nil
			}, nil, slog.New(slog.DiscardHandler))
			if test.want == "" {
				got, reading := trace.Read(filepath.Join(dir, "out.jsonl"), trace.Options{Strict: true})
				require.True(t, err == nil && reading == nil && len(got.Records) == 1, "%v, %v", err, reading)
				return
			}
			require.ErrorContains(t, err, test.want)
			if _, err := os.Stat(filepath.Join(dir, "out.jsonl")); err == nil {
				t.Error("the trace is in its place after a fault")
			}
		})
	}
}

// TestDeriveLeavesWhatItHad: a fault in the middle names what was derived before.
func TestDeriveLeavesWhatItHad(t *testing.T) {
	s := obsStart(t, Options{})
	s.add(obsRequest("a", 4))
	s.out(1, obsEnd("a", protocol.FinishStop, 1))
	s.finish()
	plain := filepath.Join(t.TempDir(), "f.jsonl")
	var lines strings.Builder
	w, err := trace.NewFrameWriter(&lines, false, nil)
	require.NoError(t, err)
	for _, m := range obsMessages(t, s.file("frames.jsonl.gz")) {
		require.NoError(t, w.Write(&m))
	}
	require.NoError(t, w.Close())
	require.NoError(t, os.WriteFile(plain, []byte(lines.String()+"oops\n"), 0o600))
	dir := t.TempDir()
	err = Derive(t.Context(), plain, Options{}, func(int) (Sinks, error) {
		return Sinks{Trace: obsCreate(t, filepath.Join(dir, "out.jsonl.gz"))}, nil
	}, nil, slog.New(slog.DiscardHandler))
	left, _ := filepath.Glob(filepath.Join(dir, "*"))
	if err == nil || len(left) != 1 || !strings.Contains(err.Error(), left[0]) || !strings.Contains(err.Error(), "line 4") {
		t.Fatalf("error %v, files %q", err, left)
	}
	if got, err := trace.Read(left[0], trace.Options{}); err != nil || len(got.Records) != 1 || len(got.Warnings) != 1 {
		t.Errorf("%+v, %v", got, err)
	}
}
