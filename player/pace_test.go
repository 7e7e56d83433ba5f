package player

import (
	"context"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/engine/scheduler"
)

const ms = time.Millisecond

func TestRecordedPace(t *testing.T) {
	quick := take{prompt: count(0, 4), output: []uint32{1, 2, 3, 4}, chunks: []int{1, 2, 1}, ttft: 10, gaps: []float64{5, 2.5}}
	slow := take{prompt: count(0, 4), output: []uint32{5, 6}, ttft: 12, gaps: []float64{100}}
	type arrival struct {
		at time.Duration
		id string
	}
	for _, tt := range []struct {
		name     string
		takes    []take
		seqs     int
		arrivals []arrival
		want     map[string][]time.Duration // when each output left
	}{
		{
			"one request",
			[]take{quick},
			0,
			[]arrival{{0, "replay-0"}},
			map[string][]time.Duration{"replay-0": {10 * ms, 15 * ms, 17500 * time.Microsecond}},
		},
		{
			"counted from the arrival",
			[]take{quick},
			0,
			[]arrival{{7 * ms, "replay-0"}},
			map[string][]time.Duration{"replay-0": {17 * ms, 22 * ms, 24500 * time.Microsecond}},
		},
		{
			"two interleaved",
			[]take{quick, slow},
			0,
			[]arrival{{0, "replay-0"}, {3 * ms, "replay-1"}},
			map[string][]time.Duration{
				"replay-0": {10 * ms, 15 * ms, 17500 * time.Microsecond}, "replay-1": {15 * ms, 115 * ms},
			},
		},
		{
			"a request that waited for room makes it up",
			[]take{quick, slow},
			1,
			[]arrival{{0, "replay-0"}, {1 * ms, "replay-1"}},
			map[string][]time.Duration{
				"replay-0": {10 * ms, 15 * ms, 17500 * time.Microsecond},
				"replay-1": {17500 * time.Microsecond, 117500 * time.Microsecond},
			},
		},
		{
			"negative times",
			[]take{{prompt: count(0, 4), output: []uint32{1, 2, 3}, ttft: -4, gaps: []float64{-1, 3}}},
			0,
			[]arrival{{2 * ms, "replay-0"}},
			map[string][]time.Duration{"replay-0": {2 * ms, 2 * ms, 5 * ms}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, Options{Trace: cassette(t, tt.takes...), Timing: Timing{Pace: PaceRecorded}, Limits: Limits{MaxNumSeqs: tt.seqs}}, 1)
			for _, a := range tt.arrivals {
				r.clock.advance(start + a.at - r.clock.Now())
				r.submit(ask(a.id, count(0, 4), 9))
				r.run()
			}
			r.runAll()
			got := map[string][]time.Duration{}
			for id, a := range r.answers() {
				got[id] = a.at
			}
			equal(t, "outputs left at", tt.want, got)
			for i, e := range r.envelopes {
				if want := (start + e.at).Seconds(); e.Timestamp != want {
					t.Errorf("envelope %d is stamped %v, want %v", i, e.Timestamp, want)
				}
			}
		})
	}
}

func TestALateStepDoesNotPutOffWhatFollows(t *testing.T) {
	tr := cassette(t, take{prompt: count(0, 4), output: []uint32{1, 2, 3, 4}, ttft: 10, gaps: []float64{5, 5, 5}})
	r := newRig(t, Options{Trace: tr, Timing: Timing{Pace: PaceRecorded}}, 1)
	r.submit(ask("replay-0", count(0, 4), 9))
	for _, at := range []time.Duration{0, 12 * ms, 14 * ms, 21 * ms, 25 * ms} {
		r.clock.advance(start + at - r.clock.Now())
		r.run()
	}
	want := []time.Duration{12 * ms, 21 * ms, 21 * ms, 25 * ms} // due at 10, 15, 20 and 25
	equal(t, "outputs left at", want, r.answer("replay-0").at)
}

func TestInstantPaceIgnoresRecordedTimes(t *testing.T) {
	r := newRig(t, Options{Trace: cassette(t, take{prompt: count(0, 4), output: []uint32{1, 2}, ttft: 10, gaps: []float64{5}})}, 1)
	r.submit(ask("replay-0", count(0, 4), 9))
	r.run()
	equal(t, "outputs left at", []time.Duration{0, 0}, r.answer("replay-0").at)
}

func TestNextDue(t *testing.T) {
	tr := cassette(t, take{prompt: count(0, 4), output: []uint32{1}, ttft: 30}, take{prompt: count(0, 4), output: []uint32{1}, ttft: 20})
	r := newRig(t, Options{Trace: tr, Timing: Timing{Pace: PaceRecorded}}, 1)
	if due, ok := r.nextDue(); ok {
		t.Errorf("an idle engine is due at %v", due)
	}
	r.submit(ask("replay-0", count(0, 4), 1), ask("replay-1", count(0, 4), 1))
	r.run()
	check := func(when string, want time.Duration) {
		t.Helper()
		if due, ok := r.nextDue(); !ok || due != start+want {
			t.Errorf("%s: due at %v (%v), want %v", when, due-start, ok, want)
		}
	}
	check("both run", 20*ms)
	r.abort([]string{"replay-1"})
	check("the earlier one aborted", 30*ms)
	r.scheduler.Pause = scheduler.PausedAll
	if due, ok := r.nextDue(); ok {
		t.Errorf("a paused engine is due at %v", due)
	}
}

// The loop sleeps exactly until the next output, and an arrival wakes it.
func TestTheLoopWaitsForWhatIsDue(t *testing.T) {
	tr := cassette(t, take{prompt: count(0, 4), output: []uint32{1, 2}, ttft: 10, gaps: []float64{5}}, take{prompt: count(0, 4), output: []uint32{3}, ttft: 2})
	r := newRig(t, Options{Trace: tr, Timing: Timing{Pace: PaceRecorded}}, 1)
	r.clock.armed = make(chan time.Duration)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	r.player.inbox.put(event{request: ask("replay-0", count(0, 4), 9)})
	<-r.player.inbox.wake // the loop begins by looking, so it is not woken for this one
	go func() { served <- r.player.serve(ctx) }()

	sleeps := []time.Duration{<-r.clock.armed}
	r.clock.advance(4 * ms)
	r.player.inbox.put(event{request: ask("replay-1", count(0, 4), 9)})
	for range 3 {
		d := <-r.clock.armed
		sleeps = append(sleeps, d)
		r.clock.advance(d)
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
	equal(t, "sleeps", []time.Duration{10 * ms, 2 * ms, 4 * ms, 5 * ms}, sleeps)
}

// Who has the room of a step for its prompt has it for one step, however long the
// recording waits for the first token: another may begin meanwhile.
func TestAPromptTakesTheRoomOfOneStep(t *testing.T) {
	slow := take{prompt: count(0, 100), output: []uint32{1, 2}, ttft: 1000, gaps: []float64{1}}
	quick := take{prompt: count(0, 90), output: []uint32{3, 4}, ttft: 10, gaps: []float64{1}}
	r := ran(t, Options{Trace: cassette(t, slow, quick), Timing: Timing{Pace: PaceRecorded}, Limits: Limits{MaxNumBatchedTokens: 100}, KVCache: KVCacheOptions{BlockSize: 10}}, ask("replay-0", slow.prompt, 9), ask("replay-1", quick.prompt, 9))
	got := map[string][]time.Duration{}
	for id, a := range r.answers() {
		got[id] = a.at
	}
	want := map[string][]time.Duration{"replay-0": {1000 * ms, 1001 * ms}, "replay-1": {10 * ms, 11 * ms}}
	equal(t, "outputs left at", want, got)
}

// An hour of a recording passes in 36 seconds, and the arrivals are the frontend's.
func TestRecordedPaceIsScaled(t *testing.T) {
	one := take{prompt: count(0, 4), output: []uint32{1, 2, 3}, ttft: 1000, gaps: []float64{500, 250}}
	r := newRig(t, Options{Trace: cassette(t, one), Timing: Timing{Pace: PaceRecorded, Scale: 100}}, 1)
	r.clock.advance(7 * ms)
	r.submit(ask("replay-0", count(0, 4), 3))
	r.runAll()
	want := []time.Duration{17 * ms, 22 * ms, 24500 * time.Microsecond}
	equal(t, "outputs left at", want, r.answer("replay-0").at)
}
