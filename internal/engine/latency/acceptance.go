package latency

import (
	"errors"
	"fmt"

)

// Acceptance says how many drafted tokens of a request are accepted.
type Acceptance struct {
	rates []float64
}

// NewAcceptance takes for each draft position the probability that it and all
// before it are accepted, as vLLM's synthetic_acceptance_rates: none greater than
// the one before. Further positions are never accepted.
func NewAcceptance(rates ...float64) (*Acceptance, error) {
	if len(rates) == 0 {
		return nil, errors.New("no acceptance rates: give one for each draft position")
	}
	for i, rate := range rates {
		switch {
		case !(rate >= 0 && rate <= 1): // NaN is neither
			return nil, fmt.Errorf("acceptance rate of draft position %d is %v: want 0 to 1", i, rate)
		case i > 0 && rate > rates[i-1]:
			return nil, fmt.Errorf("acceptance rate of draft position %d is %v, more than the %v before it: "+
				"give the probability that all up to a position are accepted", i, rate, rates[i-1])
		}
	}
	return &Acceptance{rates: rates}, nil
}

// AcceptanceOfLength spreads a mean number of tokens said in a step, 1 to drafts+1,
// over the positions with the least variance, as vLLM's synthetic_acceptance_length.
func AcceptanceOfLength(length float64, drafts int) (*Acceptance, error) {
	if drafts < 1 {
		return nil, fmt.Errorf("%d draft tokens: want at least 1", drafts)
	}
	if !(length >= 1 && length <= float64(drafts+1)) {
		return nil, fmt.Errorf("acceptance length is %v: want 1 to %d, the draft tokens and 1", length, drafts+1)
	}
	rates := make([]float64, drafts)
	for i := range rates {
		rates[i] = min(max(length-1-float64(i), 0), 1)
	}
	return NewAcceptance(rates...)
}

// Accepted returns how many of so many drafts are accepted by the request at this
// context.
func (a *Acceptance) Accepted(r *Request, context, drafts int) int {
	u := r.uniform(drawAccept, context)
	n := 0
	for n < min(drafts, len(a.rates)) && u < a.rates[n] {
		n++
	}
	return n
}
