package recorder

import (
	"cmp"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

// obsSession feeds one observer with messages made by the codec of a line.
type obsSession struct {
	t      testing.TB
	codec  *protocol.Codec
	o      *Observer
	counts Counts
	log    strings.Builder
	path   string
	at     time.Duration // of the next event
	made   time.Duration // when the engine made the next envelope, on a clock of its own; 0: at the same time
}

// obsStart begins a session that writes plain files, and registers its engine.
func obsStart(t testing.TB, opt Options) *obsSession {
	s := obsUnregistered(t, opt, "0.33")
	s.register("0.33.0")
	return s
}

func obsUnregistered(t testing.TB, opt Options, line string) *obsSession {
	t.Helper()
	codec, err := protocol.CodecFor(line)
	require.NoError(t, err)
	dir := t.TempDir()
	s := &obsSession{t: t, codec: codec, path: filepath.Join(dir, "run.jsonl"), at: time.Second}
	sinks := Sinks{
		Trace:  obsCreate(t, s.path),
		Steps:  obsCreate(t, filepath.Join(dir, "steps.jsonl")),
		Frames: obsCreate(t, filepath.Join(dir, "frames.jsonl.gz")),
	}
	s.o = NewObserver(opt, sinks, &s.counts, slog.New(slog.NewTextHandler(&s.log, nil)))
	return s
}

func (s *obsSession) file(name string) string { return filepath.Join(filepath.Dir(s.path), name) }

// event observes one message, a millisecond after the last.
func (s *obsSession) event(ch Channel, dir Direction, frames ...[]byte) {
	s.o.Observe(&Event{At: s.at, Channel: ch, Direction: dir, Frames: frames})
	s.at += time.Millisecond
}

func (s *obsSession) register(version string) {
	ready := protocol.DefaultReady(version)
	s.event(Input, FromEngine, s.codec.AppendReady(nil, &ready))
}

func obsRequest(id string, prompt int) *protocol.Request {
	r := &protocol.Request{ID: id, DataParallelRank: -1, HasSampling: true, PromptTokenIDs: []uint32{}}
	r.Sampling = protocol.Sampling{
		MaxTokens: 16, HasMaxTokens: true, Logprobs: protocol.NoLogprobs, PromptLogprobs: protocol.NoLogprobs,
		Temperature: 1, EOSTokenID: 2,
	}
	for i := range prompt {
		r.PromptTokenIDs = append(r.PromptTokenIDs, uint32(3+i))
	}
	return r
}

func (s *obsSession) add(r *protocol.Request) {
	s.event(Input, FromFrontend, []byte{protocol.TypeAdd}, s.codec.AppendRequest(nil, r))
}

func (s *obsSession) abort(ids ...string) {
	s.event(Input, FromFrontend, []byte{protocol.TypeAbort}, protocol.AppendAbort(nil, ids...))
}

// obsOut is what one request gets in an envelope.
type obsOut struct {
	id string
	protocol.Output
}

func obsTokens(id string, tokens ...uint32) obsOut {
	return obsOut{id: id, Output: protocol.Output{Tokens: tokens}}
}

func obsEnd(id string, finish protocol.FinishReason, tokens ...uint32) obsOut {
	o := obsTokens(id, tokens...)
	o.Finish = finish
	return o
}

// envelope encodes one step; running < 0 leaves the statistics out.
func (s *obsSession) envelope(running int, outs ...obsOut) []byte {
	s.t.Helper()
	b := s.codec.NewBatch(0)
	for i := range outs {
		require.NoError(s.t, b.Add(s.codec.NewStream(obsRequest(outs[i].id, 1)), &outs[i].Output))
	}
	var stats *protocol.SchedulerStats
	if running >= 0 {
		stats = &protocol.SchedulerStats{Running: running, KVCacheUsage: 0.25}
	}
	m, err := b.Finish(stats, 1000+cmp.Or(s.made, s.at).Seconds())
	require.NoError(s.t, err)
	return m[0]
}

func (s *obsSession) out(running int, outs ...obsOut) {
	s.t.Helper()
	s.event(Output, FromEngine, s.envelope(running, outs...))
}

// finish closes the observer and reads what it wrote, strictly.
func (s *obsSession) finish() *trace.Trace {
	s.t.Helper()
	require.NoError(s.t, s.o.Close())
	got, err := trace.Read(s.path, trace.Options{Strict: true, KeepExtra: true})
	require.NoError(s.t, err)
	return got
}
