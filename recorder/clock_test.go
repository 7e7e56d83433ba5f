package recorder

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/trace"
)

const tick = time.Millisecond

// TestEngineClock: what becomes of the timestamps of an engine that makes a step every 10 ms, and of which the tap receives each
// message when it is made, but for those that it receives later.
func TestEngineClock(t *testing.T) {
	for _, test := range []struct {
		name  string
		steps int
		stamp func(made time.Duration, step int) float64
		late  func(step int) time.Duration
		want  trace.EngineClock
	}{
		{name: "a clock of its own", steps: 20, want: trace.ClockUsed},
		{name: "too short", steps: 5, want: trace.ClockUnproven},
		{name: "the time of day", steps: 20, stamp: func(made time.Duration, _ int) float64 { return 1.8e9 + made.Seconds() }, want: trace.ClockUsed},
		{
			name: "a busy machine, which receives ten messages at once", steps: 300, want: trace.ClockUsed,
			late: func(step int) time.Duration { return time.Duration(9-step%10) * 10 * tick },
		},
		{name: "a first message that was held up", steps: 300, want: trace.ClockUsed, late: func(step int) time.Duration {
			return max(0, 700*tick-time.Duration(step)*10*tick)
		}},
		{name: "zero", steps: 1, stamp: func(time.Duration, int) float64 { return 0 }, want: trace.ClockZero},
		{name: "no number", steps: 3, stamp: func(time.Duration, int) float64 { return math.NaN() }, want: trace.ClockZero},
		{name: "zero after some", steps: 30, stamp: func(made time.Duration, step int) float64 {
			return map[bool]float64{true: made.Seconds()}[step < 20]
		}, want: trace.ClockZero},
		{name: "constant", steps: 2, stamp: func(time.Duration, int) float64 { return 7 }, want: trace.ClockConstant},
		{name: "backwards", steps: 30, stamp: func(made time.Duration, step int) float64 {
			return map[bool]float64{true: 50, false: 40}[step < 20] + made.Seconds()
		}, want: trace.ClockBackwards},
		{name: "milliseconds", steps: 300, stamp: func(made time.Duration, _ int) float64 { return made.Seconds() * 1e3 }, want: trace.ClockAnother},
		{name: "a clock that is slow", steps: 300, stamp: func(made time.Duration, _ int) float64 { return 9 + made.Seconds()/1e3 }, want: trace.ClockAnother},
		{name: "minutes forward", steps: 25, stamp: func(made time.Duration, step int) float64 {
			return map[bool]float64{true: 50, false: 400}[step < 20] + made.Seconds()
		}, want: trace.ClockUnproven},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newEngineClock()
			for step := range test.steps {
				made := time.Duration(step+1) * 10 * tick
				stamp, received := 1000+made.Seconds(), made
				if test.stamp != nil {
					stamp = test.stamp(made, step)
				}
				if test.late != nil {
					received += test.late(step)
				}
				c.observe(0, stamp, received)
			}
			require.Equal(t, c.state, test.want, "state")
		})
	}
}

// TestDriftingClock: where the engine's clock is slower by a thousandth, the offset follows.
func TestDriftingClock(t *testing.T) {
	c := newEngineClock()
	now := time.Duration(0)
	for range 30_000 {
		now += 10 * tick
		c.observe(0, now.Seconds()*0.999, now)
	}
	if behind := now/1000 - c.offset; behind < 0 || behind > 130*tick {
		t.Errorf("after %v the offset is behind by %v, want at most what the clocks differ in two minutes", now, behind)
	}
}

// TestTimesOfTheEngine: the gaps between tokens are the engine's, however late the tap received them, and the time to the first token is
// that on the tap's clock. The tap's own times are kept where they differ.
func TestTimesOfTheEngine(t *testing.T) {
	s := obsStart(t, Options{})
	answer := func(id string, tokens int, late func(i int) time.Duration) {
		s.add(obsRequest(id, 4))
		arrival := s.at - tick
		for i := range tokens {
			s.made = arrival + time.Duration(5+10*i)*tick
			s.at = s.made + late(i)
			if i == tokens-1 {
				s.out(1, obsEnd(id, 1, 7))
			} else {
				s.out(1, obsTokens(id, 7))
			}
		}
		s.at += tick
	}
	answer("proof", 20, func(i int) time.Duration { return max(0, time.Duration(30-10*i)*tick) })
	answer("idle", 4, func(int) time.Duration { return tick / 2 })
	answer("busy", 4, func(i int) time.Duration { return time.Duration(3-i) * 10 * tick })
	records := s.finish().Records
	for _, test := range []struct {
		record int
		ttft   float64
		tap    *trace.TapTimes
	}{
		{record: 1, ttft: 5}, {record: 2, ttft: 5, tap: &trace.TapTimes{TTFTMs: 35, ITLMs: []float64{0, 0, 0}}},
	} {
		r := records[test.record]
		if r.EngineClock != trace.ClockUsed || math.Abs(r.TTFTMs-test.ttft) > 1e-3 {
			t.Errorf("record %d: engine_clock %s, first token after %v ms, want %v", test.record, r.EngineClock, r.TTFTMs, test.ttft)
		}
		require.True(t, !slices.ContainsFunc(r.ITLMs, func(ms float64) bool { return math.Abs(ms-10) > 1e-3 }), "record %d: gaps %v, want 10 ms each", test.record, r.ITLMs)
		if (r.TapTimes == nil) != (test.tap == nil) || test.tap != nil && (r.TapTimes.TTFTMs != test.tap.TTFTMs || !slices.Equal(r.TapTimes.ITLMs, test.tap.ITLMs)) {
			t.Errorf("record %d: tap_times %+v, want %+v", test.record, r.TapTimes, test.tap)
		}
	}
}

// TestClockThatIsNotUsed: the tap's times stay, the record has the reason, and the log too, once.
func TestClockThatIsNotUsed(t *testing.T) {
	s := obsStart(t, Options{})
	s.made = time.Hour
	for _, id := range []string{"a", "b"} {
		s.add(obsRequest(id, 4))
		s.out(1, obsTokens(id, 7))
		s.at += 9 * tick
		s.out(1, obsEnd(id, 1, 7))
	}
	for _, r := range s.finish().Records {
		if r.EngineClock != trace.ClockConstant || r.TTFTMs != 1 || !slices.Equal(r.ITLMs, []float64{10}) || r.TapTimes != nil {
			t.Errorf("engine_clock %s, %v ms, %v", r.EngineClock, r.TTFTMs, r.ITLMs)
		}
	}
	require.Equal(t, strings.Count(s.log.String(), "engine_clock=constant"), 1, "reasons in the log:\n%s", s.log.String())
}
