package scheduler

import "github.com/vllm-vcr/conformance/internal/engine/kvcache"

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

// hasSlot tells whether the batch has a slot for the request's adapter.
func (s *Scheduler[T]) hasSlot(r *Request[T]) bool {
	return r.LoRA == 0 || s.opt.MaxLoRAs == 0 || len(s.loras) < s.opt.MaxLoRAs || s.loras[r.LoRA] > 0
}

// enter admits the next request, or starts to pull its KV cache. It reports false
// when there is no room, so that nobody behind it is asked.
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

// Pulled says that the KV cache of a request has come, or, with failed, that it has
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
