package recorder

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

// TestObserveWritesWhatHappened follows two requests through their steps: which
// times, sizes and states a record has.
func TestObserveWritesWhatHappened(t *testing.T) {
	s := obsStart(t, Options{RecordTokens: true})
	s.add(obsRequest("a", 35)) // at 0 ms of the capture
	s.add(obsRequest("b", 20)) // 1
	first := obsTokens("a", 7, 8)
	first.Prefill = &protocol.PrefillStats{Prompt: 35, Computed: 16, Cached: 19, LocalCached: 16, ExternalCached: 3}
	s.out(2, first)                                                    // 2: prefill of a
	s.out(2, obsTokens("a", 9), obsTokens("b", 1))                     // 3: prefill of b
	s.out(-1, obsTokens("a", 10, 11))                                  // 4: no statistics
	s.out(0, obsEnd("b", protocol.FinishLength), obsTokens("a"))       // 5: an end without a token
	s.out(1, obsEnd("a", protocol.FinishStop, 12), obsTokens("a", 99)) // 6: and something late
	got := s.finish()

	arrival := func(ms float64) *float64 { return &ms }
	want := []trace.Record{
		{
			PromptTokens: 20, OutputTokens: 1, TTFTMs: 2, ITLMs: []float64{}, Concurrency: 2, ArrivalMs: arrival(1), EngineClock: trace.ClockUnproven,
			ITLCtx:      &trace.ITLCtx{NumRunning: []uint32{}, PrefillTokens: []uint32{}},
			BlockHashes: trace.BlockHashes(obsRequest("b", 20).PromptTokenIDs, 16), OutputTokenIDs: []uint32{1},
			FinishReason: trace.FinishLength,
		},
		{
			PromptTokens: 35, CachedTokens: 19, OutputTokens: 6, TTFTMs: 2, ITLMs: []float64{1, 1, 2},
			ITLTokens: []uint32{1, 2, 1}, Concurrency: 1, ArrivalMs: arrival(0), EngineClock: trace.ClockUnproven,
			ITLCtx:      &trace.ITLCtx{NumRunning: []uint32{2, 2, 1}, PrefillTokens: []uint32{20, 0, 0}},
			BlockHashes: trace.BlockHashes(obsRequest("a", 35).PromptTokenIDs, 16), OutputTokenIDs: []uint32{7, 8, 9, 10, 11, 12},
			FinishReason: trace.FinishStop,
		},
	}
	for i := range got.Records {
		got.Records[i].Extra, got.Records[i].Line = nil, 0
	}
	require.NoDiff(t, cmp.Diff(want, got.Records), "records (-want +got)")
	stats := s.counts.Snapshot()
	wantStats := Stats{Requests: 2, Done: 2, Tokens: 7, Records: 2, Steps: 4, Late: 1}
	require.NoDiff(t, cmp.Diff(wantStats, stats), "counts (-want +got)")
	steps, err := readSteps(s.file("steps.jsonl"), trace.Options{Strict: true})
	require.NoError(t, err)
	var at []float64
	for _, line := range steps {
		at = append(at, line.TsMs)
	}
	require.NoDiff(t, cmp.Diff([]float64{2, 3, 5, 6}, at), "times of the statistics (-want +got)")
}

// TestObserveEnds is how requests end, one way a case.
func TestObserveEnds(t *testing.T) {
	for _, test := range []struct {
		name    string
		opt     Options
		run     func(s *obsSession)
		want    Stats
		reasons string // of the records, in order
		log     string
	}{
		{
			name: "ended by the frontend", run: func(s *obsSession) {
				s.add(obsRequest("a", 1))
				s.out(1, obsTokens("a", 5))
				s.abort("a", "never seen")
				s.out(1, obsTokens("a", 6))
			},
			want: Stats{Requests: 1, Aborted: 1, Tokens: 1, Records: 1, Steps: 2, Late: 1}, reasons: "abort by frontend",
		},
		{
			name: "ended before the first token", run: func(s *obsSession) {
				s.add(obsRequest("a", 1))
				s.abort("a")
			},
			want: Stats{Requests: 1, Aborted: 1, Unrecorded: 1},
		},
		{
			name: "aborted by the client and written", opt: Options{RecordAborted: true, RecordTokens: true},
			run: func(s *obsSession) {
				s.add(obsRequest("a", 1))
				s.add(obsRequest("b", 1))
				s.out(2, obsTokens("a", 5), obsTokens("b", 5))
				s.abort("b")
				s.out(1, obsEnd("a", protocol.FinishStop, 6))
			},
			want: Stats{Requests: 2, Aborted: 1, Done: 1, Tokens: 3, Records: 2, Steps: 2}, reasons: "abort by frontend stop",
		},
		{
			name: "aborted by the engine", opt: Options{RecordAborted: true}, run: func(s *obsSession) {
				s.add(obsRequest("a", 1))
				s.out(1, obsTokens("a", 5))
				s.out(0, obsEnd("a", protocol.FinishAbort, 6))
				s.abort("a")
			},
			want: Stats{Requests: 1, Aborted: 1, Tokens: 2, Records: 1, Steps: 2}, reasons: "abort",
		},
		{
			name: "refused without a token", run: func(s *obsSession) {
				s.add(obsRequest("a", 1))
				s.out(-1, obsEnd("a", protocol.FinishError))
			},
			want: Stats{Requests: 1, Done: 1, Records: 1}, reasons: "error",
		},
		{
			name: "refused for a reason, which may quote the request", run: func(s *obsSession) {
				s.add(obsRequest("a", 1))
				end := obsEnd("a", protocol.FinishError)
				end.Error = &protocol.RequestError{Code: "validation_error", Message: "too long: SECRET", Retryable: true}
				s.out(-1, end)
			},
			want: Stats{Requests: 1, Done: 1, Records: 1}, reasons: `error validation_error "" true`,
		},
		{
			name: "refused for a reason, which is recorded", opt: Options{RecordTokens: true}, run: func(s *obsSession) {
				s.add(obsRequest("a", 1))
				end := obsEnd("a", protocol.FinishError)
				end.Error = &protocol.RequestError{Code: "validation_error", Message: "too long: 9"}
				s.out(-1, end)
			},
			want: Stats{Requests: 1, Done: 1, Records: 1}, reasons: `error validation_error "too long: 9" false`,
		},
		{
			name: "still in flight", run: func(s *obsSession) {
				s.add(obsRequest("a", 1))
				s.out(1, obsTokens("a", 5))
			},
			want: Stats{Requests: 1, InFlight: 1, Tokens: 1, Steps: 1}, log: "still in flight",
		},
		{
			name: "abort_immediately runs nothing", run: func(s *obsSession) {
				r := obsRequest("a", 1)
				r.AbortImmediately = true
				s.add(r)
				s.out(0, obsEnd("a", protocol.FinishAbort))
			},
			want: Stats{Requests: 1, Aborted: 1, Unrecorded: 1, Steps: 1, Late: 1},
		},
		{
			name: "an id is used again", run: func(s *obsSession) {
				s.add(obsRequest("a", 1))
				s.out(1, obsEnd("a", protocol.FinishStop, 5))
				s.add(obsRequest("a", 1))
				s.out(1, obsEnd("a", protocol.FinishLength, 5))
			},
			want: Stats{Requests: 2, Done: 2, Tokens: 2, Records: 2, Steps: 2}, reasons: "stop length",
		},
		{
			name: "a duplicate id: the first goes on, the refusal is the second's", run: func(s *obsSession) {
				s.add(obsRequest("a", 1))
				s.out(1, obsTokens("a", 5))
				s.add(obsRequest("a", 9))
				s.out(1, obsEnd("a", protocol.FinishError))
				s.out(1, obsEnd("a", protocol.FinishStop, 6))
			},
			want: Stats{Requests: 1, Done: 1, Duplicates: 1, Tokens: 2, Records: 1, Steps: 3}, reasons: "stop", log: "a second ADD",
		},
		{
			name: "a streaming session takes more input under its id", run: func(s *obsSession) {
				r := obsRequest("a", 1)
				r.Resumable = true
				s.add(r)
				s.add(r)
				s.out(1, obsEnd("a", protocol.FinishError))
			},
			want: Stats{Requests: 1, Done: 1, Duplicates: 1, Records: 1, Steps: 1}, reasons: "error",
		},
		{
			name: "an output for a request that never came", run: func(s *obsSession) { s.out(-1, obsTokens("x", 1)) },
			want: Stats{Unknown: 1}, log: "never arrived",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := obsStart(t, test.opt)
			test.run(s)
			got := s.finish()
			require.NoDiff(t, cmp.Diff(test.want, s.counts.Snapshot()), "counts (-want +got)")
			var reasons []string
			for _, r := range got.Records {
				reason := r.FinishReason.String()
				if r.EndedByFrontend {
					reason += " by frontend"
				}
				if e := r.Error; e != nil {
					reason += fmt.Sprintf(" %s %q %v", e.Code, e.Message, e.Retryable)
				}
				reasons = append(reasons, reason)
			}
			require.Equal(t, strings.Join(reasons, " "), test.reasons, "finish reasons")
			require.Contains(t, s.log.String(), test.log)
		})
	}
}

// TestObserveBadMessages: what cannot be read is counted and logged, and costs
// the requests it may have spoken of.
func TestObserveBadMessages(t *testing.T) {
	for _, test := range []struct {
		name string
		run  func(s *obsSession)
		want Stats
		log  string
	}{
		{
			name: "an ADD that is cut", run: func(s *obsSession) {
				payload := s.codec.AppendRequest(nil, obsRequest("z", 4))
				s.event(Input, FromFrontend, []byte{protocol.TypeAdd}, payload[:20])
				s.out(-1, obsTokens("z", 1))
			},
			want: Stats{Requests: 2, InFlight: 2, Undecodable: 1, Unknown: 1}, log: "channel=input client=0 message=4",
		},
		{
			name: "an ABORT that is none",
			run:  func(s *obsSession) { s.event(Input, FromFrontend, []byte{protocol.TypeAbort}, []byte{0x80}) },
			want: Stats{Requests: 2, InFlight: 2, Undecodable: 1}, log: "an ABORT could not be read",
		},
		{
			name: "one frame only", run: func(s *obsSession) { s.event(Input, FromFrontend, []byte{0}) },
			want: Stats{Requests: 2, InFlight: 2, Undecodable: 1}, log: "want a type of one byte",
		},
		{
			name: "an unknown type", run: func(s *obsSession) { s.event(Input, FromFrontend, []byte{9}, []byte{0xc0}) },
			want: Stats{Requests: 2, InFlight: 2, Undecodable: 1}, log: "unknown type",
		},
		{
			name: "an answer of a newer line loses whom it names", run: func(s *obsSession) {
				long := pack.AppendArrayHeader(nil, 2)
				long = pack.AppendUint(long, 0)
				long = pack.AppendArrayHeader(long, 1)
				long = pack.AppendArrayHeader(long, 40)
				long = pack.AppendString(long, "a")
				for range 39 {
					long = pack.AppendNil(long)
				}
				s.event(Output, FromEngine, long)
				s.out(-1, obsEnd("a", protocol.FinishStop, 1), obsEnd("b", protocol.FinishStop, 1))
			},
			want: Stats{Requests: 2, Done: 1, Lost: 1, Late: 1, Undecodable: 1, Tokens: 1, Records: 1}, log: "left out",
		},
		{
			name: "an answer of garbage loses all of its client", run: func(s *obsSession) {
				r := obsRequest("c", 1)
				r.ClientIndex = 1
				s.add(r)
				s.event(Output, FromEngine, []byte{0xc1})
			},
			want: Stats{Requests: 3, InFlight: 1, Lost: 2, Undecodable: 1}, log: "requests=2",
		},
		{
			name: "an answer that was too large", run: func(s *obsSession) {
				s.o.Observe(&Event{At: s.at, Channel: Output, Elided: 1 << 30})
			},
			want: Stats{Requests: 2, Lost: 2, TooLarge: 1}, log: "bytes=1073741824",
		},
		{
			name: "a request that was too large", run: func(s *obsSession) {
				s.o.Observe(&Event{At: s.at, Channel: Input, Direction: FromFrontend, Elided: 1 << 30})
			},
			want: Stats{Requests: 2, InFlight: 2, TooLarge: 1}, log: "too large",
		},
		{
			name: "no frames", run: func(s *obsSession) {
				s.event(Output, FromEngine, [][]byte{}...)
				s.event(Input, FromEngine, [][]byte{}...)
				s.event(Input, FromFrontend, [][]byte{}...)
			},
			want: Stats{Requests: 2, InFlight: 2, Undecodable: 2}, log: "no frames",
		},
		{
			name: "the engine is dead", run: func(s *obsSession) {
				s.event(Output, FromEngine, []byte(protocol.EngineDead))
				s.o.Note(s.at, "the engine hung up")
			},
			want: Stats{Requests: 2, InFlight: 2, Dead: 1, Notes: 1}, log: "the engine hung up",
		},
		{
			name: "another engine's answer", run: func(s *obsSession) {
				s.o.Observe(&Event{At: s.at, Rank: 3, Channel: Output, Frames: [][]byte{s.envelope(-1, obsTokens("a", 4))}})
			},
			want: Stats{Requests: 2, InFlight: 2, WrongEngine: 1, Tokens: 1}, log: "another engine",
		},
		{
			name: "the clock goes backwards", run: func(s *obsSession) {
				s.at -= time.Second
				s.out(-1, obsTokens("a", 4))
			},
			want: Stats{Requests: 2, InFlight: 2, Clamped: 1, Tokens: 1},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := obsStart(t, Options{})
			s.add(obsRequest("a", 4))
			s.add(obsRequest("b", 4))
			test.run(s)
			s.finish()
			require.NoDiff(t, cmp.Diff(test.want, s.counts.Snapshot()), "counts (-want +got)")
			require.Contains(t, s.log.String(), test.log)
		})
	}
}

// TestClampedTimesAreNeverNegative: an answer stamped before its request.
func TestClampedTimesAreNeverNegative(t *testing.T) {
	s := obsStart(t, Options{})
	s.add(obsRequest("a", 4))
	s.at -= 10 * time.Millisecond
	s.out(1, obsTokens("a", 1))
	s.out(1, obsEnd("a", protocol.FinishStop, 2))
	r := s.finish().Records[0]
	if r.TTFTMs != 0 || r.ITLMs[0] != 0 || s.counts.Clamped.Load() != 2 {
		t.Errorf("ttft %v, gaps %v, %d clamped", r.TTFTMs, r.ITLMs, s.counts.Clamped.Load())
	}
}

// TestObserveLogsACauseAFewTimes: a flood of bad messages is told in few lines.
func TestObserveLogsACauseAFewTimes(t *testing.T) {
	s := obsStart(t, Options{})
	for i := range 1000 {
		s.out(-1, obsTokens(fmt.Sprint("x", i), 1))
	}
	s.finish()
	require.Equal(t, strings.Count(s.log.String(), "never arrived"), maxLogged+1, "lines of log: %d and a sum", maxLogged)
	require.Contains(t, s.log.String(), "times=1000")
}
