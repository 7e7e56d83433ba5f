package player

import (
	"context"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

const ms = time.Millisecond

// The loop sleeps exactly until the next output, and an arrival wakes it.
func TestTheLoopWaitsForWhatIsDue(t *testing.T) {
	tr := traceOf(t, take{prompt: count(0, 4), output: []uint32{1, 2}, ttft: 10, gaps: []float64{5}}, take{prompt: count(0, 4), output: []uint32{3}, ttft: 2})
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
	require.NoError(t, <-served)
	equal(t, "sleeps", []time.Duration{10 * ms, 2 * ms, 4 * ms, 5 * ms}, sleeps)
}
