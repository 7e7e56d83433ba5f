package scheduler

import (
	"slices"

	"github.com/vllm-vcr/conformance/internal/engine/kvcache"
)

// Options are an engine's limits. Numbers below 1 count as 1, but for those that
// say what 0 means.
type Options struct {
	// MaxNumSeqs is how many requests run at once.
	MaxNumSeqs int
	// MaxNumBatchedTokens is how many tokens a step computes.
	MaxNumBatchedTokens int
	// LongPrefillTokenThreshold cuts prompts that are longer, while more than one
	// request is there; 0 cuts none.
	LongPrefillTokenThreshold int
	// MaxModelLen is how many tokens a request may have; 0 does not limit it.
	MaxModelLen int
	// MaxLoRAs is how many adapters the batch has room for; 0 does not limit it.
	MaxLoRAs int
	// NoChunks keeps prompts whole: one that is longer than what is left of a step waits.
	NoChunks bool
	// Partly admits a prompt when its first chunk fits into the KV cache, not only
	// when all of it does (scheduler_reserve_full_isl = false).
	Partly bool
	// Priority orders by [Request].Priority and then by arrival, not by arrival alone.
	Priority bool
	// Watermark is how many blocks of the KV cache stay free when a request is
	// admitted beside others.
	Watermark int
	// Caching is set if the pool looks prompts up, and counts them.
	Caching bool
	Pool    *kvcache.Pool
}

// Pause is what a paused scheduler does (vllm/v1/core/sched/interface.py PauseState).
type Pause uint8

// The states of a scheduler.
const (
	Unpaused Pause = iota
	// PausedNew lets what runs go on and admits nothing.
	PausedNew
	// PausedAll makes no steps.
	PausedAll
)

// Stats counts since the last call of [Scheduler.TakeStats]; queries and hits are
// in tokens (vllm/v1/metrics/stats.py PrefixCacheStats).
type Stats struct {
	Requests, Queries, Hits                            int
	PreemptedRequests, PreemptedQueries, PreemptedHits int
}

// Step is what one step computes.
type Step[T any] struct {
	// Scheduled are the requests with a share of the step's tokens, in the order in
	// which they got it.
	Scheduled []*Request[T]
	// Admitted are those that have just entered the batch, among Scheduled.
	Admitted []*Request[T]
	// Preempted are those that were pushed out of the batch.
	Preempted []*Request[T]
	// Pulls are those whose KV cache is to be pulled from elsewhere now:
	// [Scheduler.Pulled] says when it has come.
	Pulls []*Request[T]
	// Left is what the step would have had room for still, in tokens.
	Left int
}

// Scheduler is the state of an engine's scheduler.
type Scheduler[T any] struct {
	Pause Pause

	opt      Options
	running  []*Request[T]
	waiting  queue[T]
	requests int
	deferred int // of those that wait, those held back by something else than room
	loras    map[int64]int
	stats    Stats
	step     Step[T]
	number   uint64
	stale    bool // running lists requests that are gone
	skipped  []*Request[T]
}

// New returns a scheduler without requests.
func New[T any](opt Options) *Scheduler[T] {
	opt.MaxNumSeqs = max(opt.MaxNumSeqs, 1)
	opt.MaxNumBatchedTokens = max(opt.MaxNumBatchedTokens, 1)
	return &Scheduler[T]{opt: opt, waiting: queue[T]{priority: opt.Priority}, loras: map[int64]int{}}
}

// Add puts a request into the queue.
func (s *Scheduler[T]) Add(r *Request[T]) {
	r.state = waiting
	s.requests++
	s.waiting.push(r)
}

// Remove forgets a request that has finished or was aborted, and frees its blocks.
func (s *Scheduler[T]) Remove(r *Request[T]) {
	switch r.state {
	case unknown:
		return
	case running:
		s.stale = true
		s.leave(r)
	default:
		r.state = unknown
		s.undefer(r)
		s.waiting.removed()
	}
	s.requests--
	s.opt.Pool.Free(r.Seq)
}

// leave takes a request's adapter out of the batch.
func (s *Scheduler[T]) leave(r *Request[T]) {
	r.state = unknown
	if r.LoRA == 0 {
		return
	}
	if s.loras[r.LoRA]--; s.loras[r.LoRA] == 0 {
		delete(s.loras, r.LoRA)
	}
}

// Running returns the requests in the batch, in the order of their admission. The
// slice is valid until the next call.
func (s *Scheduler[T]) Running() []*Request[T] {
	s.sweep()
	return s.running
}

// Waiting is the number of requests that wait for room, Deferred of those that wait
// for something else, such as an adapter's slot.
func (s *Scheduler[T]) Waiting() int  { return s.waiting.count - s.deferred }
func (s *Scheduler[T]) Deferred() int { return s.deferred }

// Len is the number of requests that are there.
func (s *Scheduler[T]) Len() int { return s.requests }

// TakeStats returns what was counted since the last call.
func (s *Scheduler[T]) TakeStats() Stats {
	taken := s.stats
	s.stats = Stats{}
	return taken
}

// sweep takes requests that are gone out of the batch.
func (s *Scheduler[T]) sweep() {
	if !s.stale {
		return
	}
	s.running = slices.DeleteFunc(s.running, func(r *Request[T]) bool { return r.state != running })
	s.stale = false
}

// Schedule decides the next step. What it returns is valid until the next call. A
// step without scheduled requests computes nothing.
func (s *Scheduler[T]) Schedule() *Step[T] {
	s.sweep()
	s.number++
	s.step = Step[T]{
		Scheduled: s.step.Scheduled[:0], Admitted: s.step.Admitted[:0], Preempted: s.step.Preempted[:0],
		Pulls: s.step.Pulls[:0], Left: s.opt.MaxNumBatchedTokens,
	}
	if s.Pause == PausedAll {
		return &s.step
	}
	threshold := s.opt.LongPrefillTokenThreshold
	if len(s.running)+s.waiting.count <= 1 {
		threshold = 0
	}
	s.goOn(threshold)
	if len(s.step.Preempted) == 0 {
		s.admit(threshold)
	}
	s.advance()
	return &s.step
}

// advance counts what the step computes as computed: the next step may go on from
// there (vllm/v1/core/sched/scheduler.py _update_after_schedule).
func (s *Scheduler[T]) advance() {
	for _, r := range s.step.Scheduled {
		r.Computed += r.Share
		r.Drafts = 0
	}
}

// Reject takes back the last n tokens that were computed of a request: guesses that
// were wrong.
func (s *Scheduler[T]) Reject(r *Request[T], n int) { r.Computed -= n }

// goOn gives the step's tokens to what runs.
func (s *Scheduler[T]) goOn(threshold int) {
	for i := 0; i < len(s.running) && s.step.Left > 0; {
		r := s.running[i]
		n := s.shareOf(r, threshold)
		if n == 0 {
			i++
			continue
		}
		for !s.opt.Pool.Allocate(r.Seq, r.Computed, n, 0) {
			victim := s.victim()
			at := slices.Index(s.running, victim)
			s.preempt(victim)
			if at < i {
				i--
			}
			if victim == r {
				break
			}
		}
		if r.state != running {
			if s.opt.Priority {
				continue
			}
			return
		}
		s.schedule(r, n)
		i++
	}
}

// shareOf is how many tokens of a request in the batch the step computes.
func (s *Scheduler[T]) shareOf(r *Request[T], threshold int) int {
	n := r.missing()
	if threshold > 0 {
		n = min(n, threshold)
	}
	n = min(n, s.step.Left)
	if s.opt.MaxModelLen > 0 {
		n = min(n, s.opt.MaxModelLen-1-r.Computed)
	}
	return max(n, 0)
}

func (s *Scheduler[T]) schedule(r *Request[T], n int) {
	r.Share, r.step = n, s.number
	s.step.Left -= n
	s.step.Scheduled = append(s.step.Scheduled, r)
}

// victim is the request that leaves the batch when the KV cache is full.
func (s *Scheduler[T]) victim() *Request[T] {
	if !s.opt.Priority {
		return s.running[len(s.running)-1]
	}
	last := s.running[0]
	for _, r := range s.running {
		if outlasts(last, r) {
			last = r
		}
	}
	return last
}

// outlasts reports whether a stays in the batch rather than b. Of requests that are
// alike the first in the batch goes, as Python's max takes the first.
func outlasts[T any](a, b *Request[T]) bool {
	return a.Priority < b.Priority || a.Priority == b.Priority && a.Arrival < b.Arrival
}

// preempt pushes a request out of the batch and puts it at the head of the queue.
// What the step had for it already goes to others.
func (s *Scheduler[T]) preempt(r *Request[T]) {
	if r.step == s.number {
		s.step.Left += r.Share
		s.step.Scheduled = slices.DeleteFunc(s.step.Scheduled, func(q *Request[T]) bool { return q == r })
	}
	s.running = slices.DeleteFunc(s.running, func(q *Request[T]) bool { return q == r })
	s.pushOut(r)
	s.step.Preempted = append(s.step.Preempted, r)
}

func (s *Scheduler[T]) pushOut(r *Request[T]) {
	s.opt.Pool.Free(r.Seq)
	s.leave(r)
	r.state = preempted
	r.Computed, r.Share, r.Drafts, r.step = 0, 0, 0, 0
	r.Seq.Known = -1 // what was recorded has been admitted once
	r.Preemptions++
	s.waiting.putBack(r)
}

// PreemptAll pushes everything out of the batch, the last one admitted first, so
// that it comes back in the same order. It returns them.
func (s *Scheduler[T]) PreemptAll() []*Request[T] {
	s.sweep()
	out := slices.Clone(s.running)
	for len(s.running) > 0 {
		r := s.running[len(s.running)-1]
		s.running = s.running[:len(s.running)-1]
		s.pushOut(r)
	}
	return out
}

// Request is one request in the scheduler, from [Scheduler.Add] to
// [Scheduler.Remove]. The owner sets the first fields, and appends to Tokens of
// its sequence what the request says.
type Request[T any] struct {
	// ID decides between requests that are otherwise alike.
	ID string
	// Seq has the tokens of the prompt and of the output, and the blocks.
	Seq *kvcache.Sequence
	// Owner is the request as the engine knows it.
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
	// Remote is set if the KV cache of the prompt is to be pulled from elsewhere
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

// Running reports whether the request is in the batch.
func (r *Request[T]) Running() bool { return r.state == running }

// Complete reports whether all its tokens are computed, so that it says the next.
func (r *Request[T]) Complete() bool { return r.state == running && r.Computed >= len(r.Seq.Tokens) }

// waits reports whether the request waits for a place in the batch.
func (r *Request[T]) waits() bool { return r.state != unknown && r.state != running }

// missing is how many tokens are still to be computed, guesses included.
func (r *Request[T]) missing() int { return len(r.Seq.Tokens) + r.Drafts - r.Computed }

// admit moves waiting requests into the batch while there is room.
func (s *Scheduler[T]) admit(threshold int) {
	for s.step.Left > 0 && s.Pause == Unpaused && len(s.running) < s.opt.MaxNumSeqs {
		r := s.waiting.peek()
		if r == nil {
			break
		}
		if r.state == pulling || !s.hasSlot(r) {
			s.skip()
			continue
		}
		if !s.enter(r, threshold) {
			break
		}
	}
	for i := len(s.skipped) - 1; i >= 0; i-- {
		s.waiting.putBack(s.skipped[i])
		s.skipped[i] = nil
	}
	s.skipped = s.skipped[:0]
}

// skip passes over the next request in this step.
func (s *Scheduler[T]) skip() {
	r := s.waiting.pop()
	if !r.deferred {
		r.deferred = true
		s.deferred++
	}
	s.skipped = append(s.skipped, r)
}

// undefer counts a request as one that nothing but room holds back.
func (s *Scheduler[T]) undefer(r *Request[T]) {
	if r.deferred {
		r.deferred = false
		s.deferred--
	}
}

// hasSlot reports whether the batch has a slot for the request's adapter.
func (s *Scheduler[T]) hasSlot(r *Request[T]) bool {
	return r.LoRA == 0 || s.opt.MaxLoRAs == 0 || len(s.loras) < s.opt.MaxLoRAs || s.loras[r.LoRA] > 0
}

// enter admits the next request, or starts to pull its KV cache. It reports false
// when there is no room, so that none behind it is asked.
func (s *Scheduler[T]) enter(r *Request[T], threshold int) bool {
	cached := r.Computed
	if cached == 0 {
		cached = s.opt.Pool.Lookup(r.Seq)
	}
	if r.Remote && r.state == waiting {
		return s.pull(r, cached)
	}
	n := len(r.Seq.Tokens) - cached
	if threshold > 0 {
		n = min(n, threshold)
	}
	if s.opt.NoChunks && n > s.step.Left {
		return false
	}
	n = min(n, s.step.Left)
	room := kvcache.Admission{Whole: !s.opt.Partly}
	if len(s.running) > 0 {
		room.Watermark = s.opt.Watermark
	}
	if !s.opt.Pool.Admit(r.Seq, cached, n, 0, room) {
		return false
	}
	if r.Computed == 0 {
		s.count(r, cached)
	}
	s.waiting.pop()
	s.join(r, cached)
	s.schedule(r, n)
	s.step.Admitted = append(s.step.Admitted, r)
	return true
}

func (s *Scheduler[T]) join(r *Request[T], computed int) {
	s.undefer(r)
	if r.Preemptions == 0 && r.state != pulled {
		r.Cached = computed
	}
	r.Computed, r.state = computed, running
	if r.LoRA != 0 {
		s.loras[r.LoRA]++
	}
	s.running = append(s.running, r)
}

// count adds a look-up of the prefix cache to the statistics.
func (s *Scheduler[T]) count(r *Request[T], cached int) {
	switch {
	case !s.opt.Caching || r.Seq.Uncached:
	case r.Preemptions > 0:
		s.stats.PreemptedRequests++
		s.stats.PreemptedQueries += len(r.Seq.Tokens)
		s.stats.PreemptedHits += cached
	default:
		s.stats.Requests++
		s.stats.Queries += len(r.Seq.Tokens)
		s.stats.Hits += cached
	}
}

// pull allocates the blocks that a remote KV cache is pulled into. All but the last
// token of the prompt need not be computed then.
func (s *Scheduler[T]) pull(r *Request[T], cached int) bool {
	whole := len(r.Seq.Tokens)
	if !s.opt.Pool.Admit(r.Seq, cached, whole-cached, 0, kvcache.Admission{Delay: true}) {
		return false
	}
	s.count(r, cached)
	r.Cached, r.External = cached, whole-cached
	r.Computed = whole - 1
	r.state = pulling
	s.step.Pulls = append(s.step.Pulls, r)
	s.skip()
	return true
}

// Pulled is called when the KV cache of a request has come, or, with failed, when it has
// not: its prompt is then computed here.
func (s *Scheduler[T]) Pulled(r *Request[T], failed bool) {
	if r.state != pulling {
		return
	}
	r.state = pulled
	if !failed {
		s.opt.Pool.Store(r.Seq, r.Computed)
	} else {
		s.opt.Pool.Free(r.Seq)
		r.Computed, r.Cached, r.External, r.Remote, r.state = 0, 0, 0, false, waiting
	}
}
