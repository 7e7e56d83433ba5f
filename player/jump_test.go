package player

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// A clock that jumps forward, as after a suspended machine, loses and doubles nothing.
// Modelled steps go on from where the clock is, and do not make up for the hour. What a
// recording has for the hour is overdue, and leaves at once, step by step.
func TestTheClockJumps(t *testing.T) {
	const jump = time.Hour
	recorded := take{prompt: count(0, 4), output: []uint32{1, 2, 3, 4}, ttft: 1, gaps: []float64{1, 1, float64(jump/ms) + 5}}
	for _, tt := range []struct {
		name string
		opt  Options
		want []time.Duration // when each output left
	}{
		{
			"modelled",
			Options{Timing: Timing{Pace: PaceModelled, Latency: fixed{}}},
			[]time.Duration{1 * ms, jump + 1*ms, jump + 2*ms, jump + 3*ms},
		},
		{
			"recorded",
			Options{Timing: Timing{Pace: PaceRecorded}, Trace: cassette(t, recorded)},
			[]time.Duration{1 * ms, jump + 1*ms, jump + 1*ms, jump + 8*ms},
		},
		{"instant", Options{}, []time.Duration{0, 0, 0, 0}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, tt.opt, 1)
			r.submit(ask("replay-0", count(0, 4), 4))
			r.run()
			r.clock.advance(1 * ms)
			r.run()
			r.clock.advance(jump)
			r.runAll()
			got := r.answer("replay-0")
			if diff := cmp.Diff(tt.want, got.at); diff != "" || len(got.tokens()) != 4 {
				t.Errorf("%d tokens, outputs left at (-want +got):\n%s", len(got.tokens()), diff)
			}
			for i := 1; i < len(r.envelopes); i++ {
				if before, now := r.envelopes[i-1].Timestamp, r.envelopes[i].Timestamp; now < before {
					t.Errorf("envelope %d is stamped %v after %v", i, now, before)
				}
			}
		})
	}
}

// While the clock stands still no step ends, and all else is served: calls, aborts, the
// shutdown. When it goes on, so do the requests.
func TestTheClockStandsStill(t *testing.T) {
	for _, tt := range []struct {
		name  string
		opt   Options
		hours int // until all that is asked is answered
	}{
		{"modelled", Options{Timing: Timing{Pace: PaceModelled, Latency: fixed{}}}, 2}, // one step of the request that is aborted, and one more
		{"recorded", Options{Timing: Timing{Pace: PaceRecorded}, Source: sleepers{}}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			clock := &fakeClock{now: start}
			tt.opt.Clock = clock
			s := connect(t, tt.opt, 1)
			s.submit(ask("gone-x", count(0, 4), 1))
			s.reply(0, "is_sleeping") // its step has begun
			s.submit(ask("stays-x", count(0, 4), 1))
			if reply := s.reply(0, "is_sleeping"); text(reply.Result) != "false" {
				t.Errorf("is_sleeping: %s, want false", text(reply.Result))
			}
			s.abort("gone-x")
			s.reply(0, "is_sleeping")
			for range tt.hours - 1 {
				clock.advance(time.Hour)
				s.reply(0, "is_sleeping")
			}
			clock.advance(time.Hour)
			s.abort("nobody-x") // whatever the engine waits for, it looks at the clock now
			got, _ := s.finished(0, 1)
			want := map[string]*stream{
				"stays-x": {tokens: randomTokens(0, defaultVocab, "stays-x", 1), finish: protocol.FinishLength},
			}
			equal(t, "answers after an hour", want, got, cmp.AllowUnexported(stream{}))
			s.submit(ask("open-x", count(0, 4), 1))
			s.reply(0, "is_sleeping")
			s.stop()
			if got, _ := s.finished(0, 1); got["open-x"].finish != protocol.FinishAbort {
				t.Errorf("what was open at the shutdown finished by %v, want an abort", got["open-x"].finish)
			}
			if err := s.wait(); err != nil {
				t.Errorf("Run: %v", err)
			}
		})
	}
}

// A step that is noticed late puts off the next one only if the clock has jumped.
func TestHowLateAStepIsAJump(t *testing.T) {
	const second = time.Second
	for _, tt := range []struct {
		name string
		late time.Duration // the end of the second step is noticed
		want []time.Duration
	}{
		{"almost a second", second - 1, []time.Duration{1 * ms, second + 2*ms - 1, second + 2*ms - 1, second + 2*ms - 1}},
		{"a second", second, []time.Duration{1 * ms, second + 2*ms, second + 3*ms, second + 4*ms}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, Options{Timing: Timing{Pace: PaceModelled, Latency: fixed{}}}, 1)
			r.submit(ask("a", count(0, 4), 4))
			r.run()
			r.clock.advance(1 * ms)
			r.run()
			r.clock.advance(1*ms + tt.late)
			r.runAll()
			equal(t, "outputs left at", tt.want, r.answer("a").at)
		})
	}
}
