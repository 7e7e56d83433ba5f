package player

import (
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/engine/latency"
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
