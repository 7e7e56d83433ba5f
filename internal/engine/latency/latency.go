package latency

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"time"
)

// Model is how long the steps of an engine take. A model is not safe for concurrent use.
type Model interface {
	// Duration is how long the step occupies the engine, at least 0. What its
	// first tokens of its prompts have been computed when the step ends. It may set the
	// Tokens of the step's decodes.
	Duration(*Step) time.Duration
	// Transfer is how long the KV blocks of a prompt take to arrive from the
	// engine that computed it.
	Transfer(*Request) time.Duration
}

// A Step is one pass of the engine: what it computes together.
type Step struct {
	// Running is the number of running requests, Limit the most that may run
	// (max_num_seqs).
	Running, Limit int
	// Budget is the tokens that one step may compute (max_num_batched_tokens),
	// Left what this one does not use of it.
	Budget, Left int
	Decodes      []Decode
	Chunks       []Chunk
}

// A Decode is a request that gets output in a step.
type Decode struct {
	Request *Request
	// Context is the tokens before it: the prompt and the output.
	Context int
	// Tokens is how many are scheduled, 1 and the drafts. A model that decides how
	// many are said replaces it by that, at least 1 and never more.
	Tokens int
}

// A Chunk is a part of a prompt that is computed in a step.
type Chunk struct {
	Request *Request
	// Tokens is the size of the chunk, Depth the tokens computed or cached before.
	Tokens, Depth int
	// Last is set if the chunk ends the prompt: a first token follows.
	Last bool
}

// A Request is what a model knows of one request. Only one model may use it.
type Request struct {
	// Prompt is the prompt's tokens, Cached how many of them were found computed.
	// Both may be set later, but before the first chunk.
	Prompt, Cached int

	key uint64
	// donors are the recorded requests that this one is like, for each bucket of
	// concurrency without and with churn. See [Fit].
	donors [2 * concurrencyBuckets]*donor
}

// NewRequest returns what a model remembers of the request with this id. Equal
// seed and id draw equal values.
func NewRequest(seed uint64, id string, prompt, cached int) *Request {
	return &Request{Prompt: prompt, Cached: cached, key: keyOf(seed, id)}
}

// uncached is the tokens of the prompt that are to be computed, at least 1: the
// last token always is.
func (r *Request) uncached() int { return max(r.Prompt-r.Cached, 1) }

// What is recorded is kept by the size of the prompt and the number of requests
// that ran at the same time.
const (
	promptBuckets      = 11
	concurrencyBuckets = 8
)

// concurrencyEdges are the least concurrencies of the buckets.
var concurrencyEdges = [concurrencyBuckets]int{0, 2, 5, 7, 9, 17, 33, 65}

// promptBucket returns the bucket of a prompt of so many tokens: up to 64, up to 128
// and so on, doubling.
func promptBucket(tokens int) int {
	return min(max(bits.Len(uint(max(tokens-1, 0)))-6, 0), promptBuckets-1)
}

// concurrencyBucket returns the bucket of so many running requests. None counts
// as one: the request itself is running.
func concurrencyBucket(running int) int {
	b := 0
	for i, edge := range concurrencyEdges {
		if running >= edge {
			b = i
		}
	}
	return b
}

// A purpose keeps the draws of one request apart.
type purpose uint64

const (
	drawDonor purpose = iota + 1
	drawStep
	_
	drawFirst
	drawTransfer
	_
	drawAccept
	drawPause
)

// keyOf hashes a seed and an id (FNV-1a, then mixed).
func keyOf(seed uint64, id string) uint64 {
	h := uint64(0xcbf29ce484222325)
	for i := range 8 {
		h = (h ^ seed>>(8*i)&0xff) * 0x100000001b3
	}
	for i := range len(id) {
		h = (h ^ uint64(id[i])) * 0x100000001b3
	}
	return mix(h)
}

// mix is the finalizer of SplitMix64: every bit of x decides every bit of the result.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// uniform is the request's number in [0, 1) for a purpose and a position, such as
// the context it decodes at.
func (r *Request) uniform(p purpose, position int) float64 {
	const golden = 0x9e3779b97f4a7c15
	x := mix(r.key + golden*uint64(p))
	return float64(mix(x+golden*uint64(position+1))>>11) / (1 << 53)
}

// normal is the request's standard normal number for a purpose and a position (Box
// and Muller).
func (r *Request) normal(p purpose, position int) float64 {
	u1 := 1 - r.uniform(p, 2*position) // in (0, 1]
	u2 := r.uniform(p, 2*position+1)
	return math.Sqrt(-2*math.Log(u1)) * math.Cos(2*math.Pi*u2)
}

// Acceptance is how many drafted tokens of a request are accepted.
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

// AcceptanceOfLength spreads a mean number of tokens in a step, 1 to drafts+1,
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
