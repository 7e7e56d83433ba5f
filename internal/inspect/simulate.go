package inspect

import (
	"cmp"
	"container/heap"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/vllm-vcr/conformance/internal/engine/kvcache"
	"github.com/vllm-vcr/conformance/internal/engine/latency"
	"github.com/vllm-vcr/conformance/internal/engine/scheduler"
	"github.com/vllm-vcr/conformance/trace"
)

// Simulate lets the engine answer the workload, taking the time that the model says, on a
// clock that runs ahead from one event to the next. The records that it returns are
// in the order in which requests end, with arrivals counted from the first; Line is 1 for the first request to come. The seed
// decides what the model draws.
func Simulate(w *Workload, e Engine, m latency.Model, seed uint64) ([]trace.Record, error) {
	s, err := newSimulation(newLoad(w, e), e, m, seed)
	if err != nil {
		return nil, err
	}
	return s.run(len(w.asks), nil, s)
}

// A load is a workload on its way: to one engine, or to several.
type load struct {
	workload *Workload
	due      queue[arrival]
	children [][]int
	inFlight uint64
	records  []trace.Record
	seen     *seen // nil if it is not needed
	until    int   // run ends when the requests with a smaller index have ended
	left     int   // of these, that have not
}

func newLoad(w *Workload, e Engine) *load {
	l := &load{workload: w, due: queue[arrival]{less: earlier}, children: make([][]int, len(w.asks))}
	for i := range w.asks {
		if a := &w.asks[i]; a.parent >= 0 {
			l.children[a.parent] = append(l.children[a.parent], i)
		} else {
			l.due.put(arrival{milliseconds(a.at + e.FrontMs), i})
		}
	}
	return l
}

// run runs until the first requests, so many of them, have ended. route says which engine gets a request, nil for the only one.
func (l *load) run(first int, route func(index int, engines []*simulation) int, engines ...*simulation) ([]trace.Record, error) {
	for l.until, l.left = first, first; l.left > 0; {
		var next *simulation // that whose clock is behind all others'
		for _, s := range engines {
			if s.scheduler.Len() > 0 && (next == nil || s.now < next.now) {
				next = s
			}
		}
		switch {
		case l.due.Len() > 0 && (next == nil || l.due.items[0].at <= next.now):
			came, to := l.due.take(), engines[0]
			if route != nil {
				to = engines[route(came.index, engines)]
			}
			to.arrive(came)
		case next != nil && next.tick():
		default:
			return nil, fmt.Errorf("%s: %d requests never get a place in %d blocks of %d tokens", l.workload.Name, next.scheduler.Len()+l.due.Len(), next.engine.Blocks, next.engine.BlockSize)
		}
	}
	return l.records, nil
}

type simulation struct {
	*load
	engine    Engine
	model     latency.Model
	scheduler *scheduler.Scheduler[*running]
	seed      uint64
	now       time.Duration
	steps     []stepTaken // that have begun and not ended
	isAsync   bool        // steps are scheduled one ahead
	shape     latency.Step
	// drafts is how many tokens are guessed ahead for each request in a step, block how many tokens a diffusion model says at once.
	drafts, block int
}

// tick schedules a step, and moves the clock to the end of the oldest step that runs. It reports whether there was any.
func (s *simulation) tick() bool {
	s.draft()
	if step := s.scheduler.Schedule(); len(step.Scheduled) > 0 {
		if s.begin(step); s.isAsync && len(s.steps) < 2 {
			return true // the next step is scheduled while this one is computed
		}
	}
	if len(s.steps) == 0 {
		return false
	}
	s.end()
	return true
}

// burster is a model that knows how many tokens of a request a step says at most. See [latency.Fit].
type burster interface {
	Drafts() int
	Block() int
}

// A stepTaken is a step from its beginning to its end.
type stepTaken struct {
	end       time.Duration
	completes []*scheduler.Request[*running]
	batch     uint32
	first     uint32 // tokens of the prompts that end here
}

type running struct {
	index   int
	decode  int // its place in the decodes of the step, -1 if it is in none
	ahead   int // tokens that were scheduled, and have not come
	latency *latency.Request
	record  trace.Record
	last    time.Duration // of its last output, before that its arrival
}

func newSimulation(l *load, e Engine, m latency.Model, seed uint64) (*simulation, error) {
	if err := e.check(); err != nil {
		return nil, err
	}
	e = l.workload.WithBlocks(e)
	pool, err := kvcache.New(kvcache.Options{
		Blocks: e.Blocks, BlockSize: e.BlockSize, Caching: e.Caching, MaxModelLen: e.MaxModelLen,
	})
	if err != nil {
		return nil, err
	}
	s := &simulation{
		load: l, engine: e, model: m, seed: seed,
		scheduler: scheduler.New[*running](scheduler.Options{
			MaxNumSeqs: e.MaxNumSeqs, MaxNumBatchedTokens: e.MaxNumBatchedTokens, MaxModelLen: e.MaxModelLen,
			Caching: e.Caching, Pool: pool,
		}),
	}
	if b, ok := m.(burster); ok {
		s.drafts, s.block = b.Drafts(), b.Block()
	}
	s.isAsync = e.Async && s.drafts+s.block == 0
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

func (s *simulation) arrive(next arrival) {
	s.now = max(s.now, next.at)
	a := &s.workload.asks[next.index]
	id := fmt.Sprintf("request-%d", next.index)
	prompt := append(make([]uint32, 0, len(a.prompt)+a.record.OutputTokens), a.prompt...)
	s.inFlight++
	came := next.at - milliseconds(s.engine.FrontMs)
	at := inMilliseconds(came)
	s.scheduler.Add(&scheduler.Request[*running]{
		ID: id, Seq: kvcache.NewSequence(prompt), Prompt: len(prompt), Arrival: next.at.Seconds(),
		Owner: &running{
			index: next.index, last: came, latency: latency.NewRequest(s.seed, id, len(prompt), 0),
			record: trace.Record{
				Line: next.index + 1, PromptTokens: len(prompt), Concurrency: s.inFlight, ArrivalMs: &at, BlockHashes: a.record.BlockHashes,
			},
		},
	})
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

// begin lets a step begin when the one before has ended, and take its time.
func (s *simulation) begin(step *scheduler.Step[*running]) {
	for _, r := range step.Admitted {
		own := r.Owner
		own.record.CachedTokens, own.latency.Cached = r.Cached, r.Cached
		if own.record.Extra == nil {
			own.record.Extra = map[string]json.RawMessage{queueKey: strconv.AppendFloat(nil, inMilliseconds(s.now-own.last), 'f', 3, 64)}
		}
	}
	s.describe(step)
	from := s.now
	if n := len(s.steps); n > 0 {
		from = s.steps[n-1].end
	}
	taken := stepTaken{end: from + max(s.model.Duration(&s.shape), 0), batch: uint32(max(len(s.scheduler.Running()), 1))}
	if s.seen != nil {
		s.seen.step(from, taken.end, &s.shape)
	}
	for _, r := range step.Scheduled {
		if !r.Complete() {
			continue
		}
		own := r.Owner
		taken.completes = append(taken.completes, r)
		if own.record.OutputTokens+own.ahead == 0 {
			taken.first += uint32(r.Prompt)
		}
		if own.ahead++; s.isAsync && own.record.OutputTokens+own.ahead < s.workload.asks[own.index].record.OutputTokens {
			// The next step computes a token that has not come yet.
			r.Seq.Tokens = append(r.Seq.Tokens, s.workload.asks[own.index].answer[own.record.OutputTokens+own.ahead-1])
		}
	}
	s.steps = append(s.steps, taken)
}

// end ends the oldest step: those that it completes say a token.
func (s *simulation) end() {
	step := s.steps[0]
	s.steps = append(s.steps[:0], s.steps[1:]...)
	s.now = step.end
	for _, r := range step.completes {
		s.say(r, step.batch, step.first)
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
	own.ahead--
	if rec.OutputTokens > 0 && s.drafts+s.block > 0 {
		rec.ITLTokens = append(rec.ITLTokens, uint32(n))
	}
	if !s.isAsync {
		r.Seq.Tokens = append(r.Seq.Tokens, ask.answer[rec.OutputTokens:rec.OutputTokens+n]...)
	}
	rec.OutputTokens += n
	if wrong := r.Computed - len(r.Seq.Tokens) + 1; wrong > 0 && !s.isAsync {
		s.scheduler.Reject(r, wrong)
	}
	if rec.OutputTokens < ask.record.OutputTokens {
		return
	}
	s.scheduler.Remove(r)
	s.inFlight--
	s.records = append(s.records, *rec)
	if own.index < s.until {
		s.left--
	}
	for _, child := range s.children[own.index] {
		s.due.put(arrival{s.now + milliseconds(s.workload.asks[child].at+s.engine.FrontMs), child})
	}
}

// size is how many tokens the next output of a request has.
func (s *simulation) size(r *running) int {
	n := 1
	switch {
	case s.block > 0:
		n = s.block
	case r.decode >= 0 && !s.isAsync: // else the shape is that of a later step
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
