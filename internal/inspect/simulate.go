package inspect

import (
	"cmp"
	"container/heap"
	"fmt"
	"time"

	"github.com/vllm-vcr/conformance/internal/engine/kvcache"
	"github.com/vllm-vcr/conformance/internal/engine/latency"
	"github.com/vllm-vcr/conformance/internal/engine/scheduler"
	"github.com/vllm-vcr/conformance/trace"
)

// Simulate lets the engine answer the workload, taking the time that the model says, on a
// clock that runs ahead from one event to the next. The records that it returns are
// in the order in which requests end, with arrivals counted from the first. The seed
// decides what the model draws.
func Simulate(w *Workload, e Engine, m latency.Model, seed uint64) ([]trace.Record, error) {
	s, err := newSimulation(w, e, m, seed)
	if err != nil {
		return nil, err
	}
	for {
		s.arrive()
		s.draft()
		step := s.scheduler.Schedule()
		if len(step.Scheduled) > 0 {
			s.take(step)
			continue
		}
		if s.due.Len() == 0 {
			break
		}
		s.now = s.due.items[0].at
	}
	if n := s.scheduler.Len(); n > 0 {
		return nil, fmt.Errorf("%s: %d requests never get a place in %d blocks of %d tokens", w.Name, n, s.engine.Blocks, e.BlockSize)
	}
	return s.records, nil
}

type simulation struct {
	workload  *Workload
	engine    Engine
	model     latency.Model
	scheduler *scheduler.Scheduler[*running]
	seed      uint64
	now       time.Duration
	due       queue[arrival]
	children  [][]int
	inFlight  uint64
	records   []trace.Record
	shape     latency.Step
	// drafts is how many tokens are guessed ahead for each request in a step, block how many tokens a diffusion model says at once.
	drafts, block int
}

// burster is a model that knows how many tokens of a request a step says at most. See [latency.Fit].
type burster interface {
	Drafts() int
	Block() int
}

type running struct {
	index   int
	decode  int // its place in the decodes of the step, -1 if it is in none
	latency *latency.Request
	record  trace.Record
	last    time.Duration // of its last output, before that its arrival
}

func newSimulation(w *Workload, e Engine, m latency.Model, seed uint64) (*simulation, error) {
	if err := e.check(); err != nil {
		return nil, err
	}
	if e.Blocks == 0 {
		e.Blocks = w.blocks(e.BlockSize)
	}
	pool, err := kvcache.New(kvcache.Options{
		Blocks: e.Blocks, BlockSize: e.BlockSize, Caching: e.Caching, MaxModelLen: e.MaxModelLen,
	})
	if err != nil {
		return nil, err
	}
	s := &simulation{
		workload: w, engine: e, model: m, seed: seed, due: queue[arrival]{less: earlier}, children: make([][]int, len(w.asks)),
		scheduler: scheduler.New[*running](scheduler.Options{
			MaxNumSeqs: e.MaxNumSeqs, MaxNumBatchedTokens: e.MaxNumBatchedTokens, MaxModelLen: e.MaxModelLen,
			Caching: e.Caching, Pool: pool,
		}),
	}
	if b, ok := m.(burster); ok {
		s.drafts, s.block = b.Drafts(), b.Block()
	}
	for i := range w.asks {
		if a := &w.asks[i]; a.parent >= 0 {
			s.children[a.parent] = append(s.children[a.parent], i)
		} else {
			s.due.put(arrival{milliseconds(a.at), i})
		}
	}
	return s, nil
}

// blocks are as many as hold all of the workload, and the one that is never given out.
func (w *Workload) blocks(size int) int {
	n := 1
	for i := range w.asks {
		a := &w.asks[i]
		n += (len(a.prompt)+a.record.OutputTokens)/size + 1
	}
	return max(n, 2)
}

func (s *simulation) arrive() {
	for s.due.Len() > 0 && s.due.items[0].at <= s.now {
		next := s.due.take()
		a := &s.workload.asks[next.index]
		id := fmt.Sprintf("request-%d", next.index)
		prompt := append(make([]uint32, 0, len(a.prompt)+a.record.OutputTokens), a.prompt...)
		s.inFlight++
		at := inMilliseconds(next.at)
		s.scheduler.Add(&scheduler.Request[*running]{
			ID: id, Seq: kvcache.NewSequence(prompt), Prompt: len(prompt), Arrival: next.at.Seconds(),
			Owner: &running{
				index: next.index, last: next.at, latency: latency.NewRequest(s.seed, id, len(prompt), 0),
				record: trace.Record{
					PromptTokens: len(prompt), Concurrency: s.inFlight, ArrivalMs: &at, BlockHashes: a.record.BlockHashes,
				},
			},
		})
	}
}

// draft lets the next step compute guesses together with the next token of each request.
func (s *simulation) draft() {
	if s.drafts == 0 {
		return
	}
	for _, r := range s.scheduler.Running() {
		if done := r.Owner.record.OutputTokens; done > 0 && len(r.Seq.Tokens)-r.Computed == 1 {
			r.Drafts = min(s.drafts, s.workload.asks[r.Owner.index].record.OutputTokens-done-1)
		}
	}
}

// take lets a step take its time, and those that it completes say a token.
func (s *simulation) take(step *scheduler.Step[*running]) {
	for _, r := range step.Admitted {
		own := r.Owner
		own.record.CachedTokens, own.latency.Cached = r.Cached, r.Cached
	}
	s.describe(step)
	s.now += max(s.model.Duration(&s.shape), 0)
	first := uint32(0) // tokens of the prompts that end here
	for _, r := range step.Scheduled {
		if r.Complete() && r.Owner.record.OutputTokens == 0 {
			first += uint32(r.Prompt)
		}
	}
	batch := uint32(max(len(s.scheduler.Running()), 1))
	for _, r := range step.Scheduled {
		if r.Complete() {
			s.say(r, batch, first)
		}
	}
}

// describe returns what the step computes, for the model.
func (s *simulation) describe(step *scheduler.Step[*running]) {
	s.shape = latency.Step{
		Running: len(s.scheduler.Running()), Limit: s.engine.MaxNumSeqs,
		Budget: s.engine.MaxNumBatchedTokens, Left: step.Left,
		Decodes: s.shape.Decodes[:0], Chunks: s.shape.Chunks[:0],
	}
	for _, r := range step.Scheduled {
		own := r.Owner
		before := r.Computed - r.Share
		own.decode = -1
		if before >= r.Prompt && r.Complete() && r.Share <= max(1+s.drafts, s.block) {
			own.decode = len(s.shape.Decodes)
			s.shape.Decodes = append(s.shape.Decodes, latency.Decode{Request: own.latency, Context: len(r.Seq.Tokens), Tokens: r.Share})
			continue
		}
		s.shape.Chunks = append(s.shape.Chunks, latency.Chunk{
			Request: own.latency, Tokens: r.Share, Depth: before, Last: r.Complete(),
		})
	}
}

// say enters an output, and ends the request with its last.
func (s *simulation) say(r *scheduler.Request[*running], batch, first uint32) {
	own := r.Owner
	rec, ask := &own.record, &s.workload.asks[own.index]
	gap := inMilliseconds(s.now - own.last)
	own.last = s.now
	if rec.OutputTokens == 0 {
		rec.TTFTMs, rec.ITLMs, rec.ITLCtx = gap, []float64{}, &trace.ITLCtx{}
	} else {
		rec.ITLMs = append(rec.ITLMs, gap)
		rec.ITLCtx.NumRunning = append(rec.ITLCtx.NumRunning, batch)
		rec.ITLCtx.PrefillTokens = append(rec.ITLCtx.PrefillTokens, first)
	}
	n := s.size(own)
	if rec.OutputTokens > 0 && s.drafts+s.block > 0 {
		rec.ITLTokens = append(rec.ITLTokens, uint32(n))
	}
	r.Seq.Tokens = append(r.Seq.Tokens, ask.answer[rec.OutputTokens:rec.OutputTokens+n]...)
	rec.OutputTokens += n
	if wrong := r.Computed - len(r.Seq.Tokens) + 1; wrong > 0 {
		s.scheduler.Reject(r, wrong)
	}
	if rec.OutputTokens < ask.record.OutputTokens {
		return
	}
	s.scheduler.Remove(r)
	s.inFlight--
	s.records = append(s.records, *rec)
	for _, child := range s.children[own.index] {
		s.due.put(arrival{s.now + milliseconds(s.workload.asks[child].at), child})
	}
}

// size is how many tokens the next output of a request has.
func (s *simulation) size(r *running) int {
	n := 1
	switch {
	case s.block > 0:
		n = s.block
	case r.decode >= 0:
		n = s.shape.Decodes[r.decode].Tokens // the model has set it to what is accepted
	}
	return min(max(n, 1), s.workload.asks[r.index].record.OutputTokens-r.record.OutputTokens)
}

func milliseconds(ms float64) time.Duration  { return time.Duration(ms * float64(time.Millisecond)) }
func inMilliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

type arrival struct {
	at    time.Duration
	index int
}

func earlier(a, b arrival) bool {
	return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.index, b.index)) < 0
}

func (e *Engine) check() error {
	for _, limit := range []struct {
		name  string
		value int
	}{
		{"max-num-seqs", e.MaxNumSeqs}, {"max-num-batched-tokens", e.MaxNumBatchedTokens}, {"block-size", e.BlockSize},
	} {
		if limit.value < 1 {
			return fmt.Errorf("%s is %d: want at least 1", limit.name, limit.value)
		}
	}
	return nil
}

// queue hands out what was put into it, the least first.
type queue[T any] struct {
	items []T
	less  func(a, b T) bool
}

func (q *queue[T]) put(item T)    { heap.Push(q, item) }
func (q *queue[T]) take() T       { return heap.Pop(q).(T) }
func (q *queue[T]) Len() int      { return len(q.items) }
func (q *queue[T]) Swap(i, j int) { q.items[i], q.items[j] = q.items[j], q.items[i] }
func (q *queue[T]) Push(item any) { q.items = append(q.items, item.(T)) }

// Less implements [heap.Interface], as the methods above do.
func (q *queue[T]) Less(i, j int) bool { return q.less(q.items[i], q.items[j]) }

// Pop implements [heap.Interface].
func (q *queue[T]) Pop() any {
	last := q.items[len(q.items)-1]
	q.items = q.items[:len(q.items)-1]
	return last
}
