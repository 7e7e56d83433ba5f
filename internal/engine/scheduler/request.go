package scheduler

import "github.com/vllm-vcr/conformance/internal/engine/kvcache"

// Request is one request in the scheduler, from [Scheduler.Add] to
// [Scheduler.Remove]. The owner sets the first fields, and appends to Tokens of
// its sequence what the request says.
type Request[T any] struct {
	// ID decides between requests that are otherwise alike.
	ID string
	// Seq holds the tokens of the prompt and of what was said, and the blocks.
	Seq *kvcache.Sequence
	// Owner is what the engine knows of the request beside this.
	Owner T
	// Prompt is the number of tokens of the prompt.
	Prompt int
	// Priority: lower runs first under [Options].Priority.
	Priority int
	// Arrival orders requests of the same priority, in any unit.
	Arrival float64
	// LoRA is the adapter, 0 for none.
	LoRA int64
	// Drafts is the number of tokens that were guessed for the next step, which
	// computes them beside the last one said.
	Drafts int
	// Remote says that the KV cache of the prompt is to be pulled from elsewhere
	// ([Step].Pulls).
	Remote bool

	// Computed is the number of tokens whose KV cache is there, or will be when the
	// step that was last scheduled ends.
	Computed int
	// Share is the number of tokens that the last step computes of it.
	Share int
	// Cached is the number of tokens of the prompt that were found in the prefix
	// cache when it was first admitted, External the number of those that were pulled.
	Cached, External int
	// Preemptions counts how often it was pushed out of the batch.
	Preemptions int

	state    state
	deferred bool   // held back by something else than room
	step     uint64 // the number of the step that scheduled it last
}

type state uint8

const (
	unknown state = iota
	waiting
	pulling // holds blocks that are being filled from elsewhere
	pulled
	running
	preempted
)

// Running tells whether the request is in the batch.
func (r *Request[T]) Running() bool { return r.state == running }

// Complete tells whether all its tokens are computed, so that it says the next.
func (r *Request[T]) Complete() bool { return r.state == running && r.Computed >= len(r.Seq.Tokens) }

// waits tells whether the request waits for a place in the batch.
func (r *Request[T]) waits() bool { return r.state != unknown && r.state != running }

// missing is how many tokens are still to be computed, guesses included.
func (r *Request[T]) missing() int { return len(r.Seq.Tokens) + r.Drafts - r.Computed }
