package player

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/engine/latency"
	"github.com/vllm-vcr/conformance/internal/frontends/coreclient"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// runUntil makes the steps that end before a moment.
func (r *rig) runUntil(moment time.Duration) {
	for r.clock.Now()-start < moment {
		r.run()
		due, ok := r.nextDue()
		if !ok || due-start >= moment {
			return
		}
		r.clock.advance(due - r.clock.Now())
	}
}

func sizes(chunks [][]uint32) []int {
	var n []int
	for _, c := range chunks {
		n = append(n, len(c))
	}
	return n
}

func rates(t *testing.T, rates ...float64) *latency.Acceptance {
	t.Helper()
	a, err := latency.NewAcceptance(rates...)
	must(t, err)
	return a
}

// agreeing is a model that lets every decode say two tokens.
type agreeing struct{ fixed }

func (agreeing) Duration(step *latency.Step) time.Duration {
	for i := range step.Decodes {
		step.Decodes[i].Tokens = min(step.Decodes[i].Tokens, 2)
	}
	return ms
}

// Without acceptance rates the model says how many guesses are right.
func TestTheModelAcceptsGuesses(t *testing.T) {
	r := ran(t, Options{Timing: Timing{Pace: PaceModelled, Latency: agreeing{}}, Decoding: Decoding{SpeculativeTokens: 3}}, ask("a", count(0, 4), 6))
	equal(t, "tokens of each output", []int{1, 2, 2, 1}, sizes(r.answer("a").chunks))
}

// BenchmarkGaps tells how far the gaps between outputs are from what the model says, as
// a frontend beyond real sockets sees them, and how late the last of all is.
func BenchmarkGaps(b *testing.B) {
	const itl = 2 * ms
	ctx := b.Context()
	opt := Options{Timing: Timing{Pace: PaceModelled, Latency: &latency.Knobs{InterTokenLatency: itl}}}
	probe, err := New(opt)
	must(b, err)
	front, err := coreclient.Listen(coreclient.Options{Codec: probe.codec, Clients: 1})
	must(b, err)
	defer front.Close()
	opt.Handshake = front.Handshake()
	p, err := New(opt)
	must(b, err)
	ended := make(chan error, 1)
	running, stop := context.WithCancel(ctx)
	go func() { ended <- p.Run(running) }()
	if _, err := front.Accept(ctx); err != nil {
		b.Fatal(err)
	}
	<-p.Ready()

	next := func() time.Time {
		var o protocol.Outputs
		for len(o.Outputs) == 0 {
			if _, err := front.Next(ctx, 0, &o); err != nil {
				b.Fatal(err)
			}
		}
		return time.Now()
	}
	must(b, front.Submit(ask("gaps", count(0, 4), b.N+1)))
	first := next()
	b.ResetTimer()
	var off []time.Duration
	last := first
	for range b.N {
		now := next()
		off = append(off, (now.Sub(last) - itl).Abs())
		last = now
	}
	b.StopTimer()
	slices.Sort(off)
	b.ReportMetric(float64(off[len(off)/2].Microseconds()), "µs-off-p50")
	b.ReportMetric(float64(off[len(off)*9/10].Microseconds()), "µs-off-p90")
	b.ReportMetric(float64((last.Sub(first)-time.Duration(b.N)*itl).Microseconds())/float64(b.N), "µs-drift/step")
	stop()
	if err := <-ended; err != nil {
		b.Error(err)
	}
}
