package player

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

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
