package latency

import "time"

// Model says how long an engine takes. A model is not safe for concurrent use.
type Model interface {
	// Duration is how long the step occupies the engine, at least 0. What its
	// prompts say first has been computed when the step ends. It may set the
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

// A Decode is a request that says something in a step.
type Decode struct {
	Request *Request
	// Context is the tokens before it: the prompt and what was said.
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

// A Request is what a model knows of one request. Only one model may be asked about it.
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
