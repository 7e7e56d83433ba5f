package player

import (
	"fmt"
	"slices"
	"time"

	"github.com/vllm-vcr/conformance/internal/engine/latency"
	"github.com/vllm-vcr/conformance/internal/engine/scheduler"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// runningStep is the step that is being computed.
type runningStep struct {
	active bool
	timed  bool // it takes time, and the next one begins at its end
	chunks bool // it computes a part of a prompt
	end    time.Duration
	// iteration is what it computes, if that is reported.
	iteration *protocol.IterationDetails
}

// lateness is how late a step may end without the next one beginning later: beyond
// it the clock has jumped, or the machine slept, and what was missed is not caught up.
const lateness = time.Second

// step ends the step that is being computed, when its time has come, and begins the
// next one. It reports whether there was anything to do.
func (e *engine) step() bool {
	now := e.clock.Now()
	begin := now
	if e.current.active {
		if now < e.current.end {
			return false
		}
		e.finishStep()
	}
	if e.current.timed && now-e.current.end < lateness {
		begin = e.current.end // the next step follows at once, however late that is noticed
	}
	finished := e.current.timed
	e.current.timed = false
	if e.killed {
		return false
	}
	ran := e.timers.run(now)
	began := e.beginStep(begin, now)
	if e.arrived && e.report != nil && e.opt.Timing.Pace == PaceAlone {
		e.report(e.takeStats()) // there may be no step for long
	}
	e.arrived = false
	return began || finished || ran
}

// beginStep composes the step that begins at a moment. One that takes no time ends in
// the same call.
func (e *engine) beginStep(begin, now time.Duration) bool {
	if e.scheduler.Pause == scheduler.PausedAll {
		return false
	}
	for _, r := range e.scheduler.Running() {
		if len(r.Seq.Tokens)-r.Computed == 1 {
			r.Drafts = r.Owner.drafts(e.opt) // computed beside the next token
		}
	}
	step := e.scheduler.Schedule()
	for _, r := range step.Preempted {
		q := r.Owner
		q.addEvent(protocol.EventPreempted, begin)
		if !e.pool.Fits(len(q.Seq.Tokens) + 1) { // it is alone with the cache, and would come back for ever
			e.endWithError(q, fmt.Errorf("the %d tokens of the request fill the KV cache", len(q.Seq.Tokens)))
		}
	}
	e.batch = len(e.scheduler.Running())
	for _, r := range step.Admitted {
		e.admitted(r.Owner, begin)
	}
	for _, r := range step.Pulls {
		e.startPull(r.Owner, begin)
	}
	if len(step.Scheduled) == 0 && !e.anyDue(now) {
		return e.emptyStep(now) || len(step.Preempted) > 0 || len(step.Pulls) > 0
	}
	// What ends from here on, the next step reports, an abort while this one runs too
	// (vllm/v1/core/sched/scheduler.py _update_after_schedule).
	e.ended = false
	e.current = runningStep{active: true, end: begin, chunks: slices.ContainsFunc(step.Scheduled, isChunk)}
	if e.opt.Observability.IterationDetails && len(step.Scheduled) > 0 {
		e.current.iteration = e.iteration(step)
	}
	if e.opt.Timing.Pace == PaceModelled && e.model != nil && len(step.Scheduled) > 0 {
		took := e.duration(step)
		e.current.end += took
		e.current.timed = took > 0
	}
	if e.current.iteration != nil {
		e.current.iteration.ElapsedMS = seconds(e.current.end-begin) * 1000
	}
	if !e.current.timed {
		e.current.end = now
		e.finishStep()
	}
	return true
}

// iteration counts what a step computes (vllm/v1/utils.py compute_iteration_details).
func (e *engine) iteration(step *scheduler.Step[*request]) *protocol.IterationDetails {
	d := &protocol.IterationDetails{Index: e.iterations}
	e.iterations++
	for _, r := range step.Scheduled {
		if len(r.Seq.Tokens) > r.Prompt {
			d.GenerationRequests++
			d.GenerationTokens += r.Share
		} else {
			d.PrefillRequests++
			d.PrefillTokens += r.Share
		}
	}
	return d
}

// emptyStep is the step after the last request has ended, in which a real engine
// frees what it held (vllm/v1/core/sched/scheduler.py has_finished_requests), or
// one that reports only requests for which nothing was computed.
func (e *engine) emptyStep(now time.Duration) bool {
	if !e.failed && (!e.ended || len(e.scheduler.Running()) > 0) {
		return false
	}
	e.ended = e.failed // and what has failed is freed by the next one
	e.sendStep(now, e.failed)
	return true
}

// anyDue reports whether an output is due that is computed already.
func (e *engine) anyDue(now time.Duration) bool {
	if !e.mayWithhold() {
		return false
	}
	for _, r := range e.scheduler.Running() {
		if q := r.Owner; r.Complete() && q.due <= now && !e.clientFull(q) {
			return true
		}
	}
	return false
}

// isChunk reports whether a step computes a part of a prompt, and not its end.
func isChunk(r *scheduler.Request[*request]) bool { return !r.Complete() }

// duration is how long a step takes by the model.
func (e *engine) duration(step *scheduler.Step[*request]) time.Duration {
	d := &e.scratch.draws
	*d = latency.Step{
		Running: len(e.scheduler.Running()), Limit: e.ready.MaxNumSeqs, Budget: e.ready.MaxNumBatchedTokens, Left: step.Left,
		Decodes: d.Decodes[:0], Chunks: d.Chunks[:0],
	}
	e.scratch.drawers = e.scratch.drawers[:0]
	for _, r := range step.Scheduled {
		q := r.Owner
		before := r.Computed - r.Share
		if before >= r.Prompt && r.Complete() {
			d.Decodes = append(d.Decodes, latency.Decode{Request: q.timing, Context: before, Tokens: r.Share})
			e.scratch.drawers = append(e.scratch.drawers, q)
		} else {
			d.Chunks = append(d.Chunks, latency.Chunk{Request: q.timing, Tokens: r.Share, Depth: before, Last: r.Complete()})
		}
	}
	took := e.opt.scaled(max(e.model.Duration(d), 0))
	for i, q := range e.scratch.drawers {
		q.modelled = d.Decodes[i].Tokens
	}
	return took
}

// admitted records that a request has got its place in the batch.
func (e *engine) admitted(q *request, at time.Duration) {
	at = max(at, q.queued)
	q.addEvent(protocol.EventScheduled, at)
	e.countFetch(q)
	if q.LoRA != 0 {
		e.loadLoRA(q.LoRA)
	}
	if q.Preemptions > 0 {
		return
	}
	q.timing.Cached = q.Cached + q.External
	switch {
	case q.script.Paced || e.opt.Timing.Pace == PaceRecorded:
		e.paced = e.paced || q.script.Paced
		q.due = max(at, q.queued+e.opt.scaled(q.script.FirstToken))
	case e.opt.Timing.Pace == PaceAlone:
		q.due = at + e.alone(q)
	}
}

// alone is the time until the next output of a request as if nothing else was in its step.
func (e *engine) alone(q *request) time.Duration {
	if e.model == nil {
		return 0
	}
	if q.outputs == 0 && q.script.Transferred {
		return e.opt.scaled(max(e.model.Transfer(q.timing), 0))
	}
	d := &e.scratch.draws
	*d = latency.Step{
		Running: e.batch, Limit: e.ready.MaxNumSeqs, Budget: e.ready.MaxNumBatchedTokens,
		Decodes: d.Decodes[:0], Chunks: d.Chunks[:0],
	}
	if q.outputs == 0 {
		d.Chunks = append(d.Chunks, latency.Chunk{Request: q.timing, Tokens: max(q.Prompt-q.timing.Cached, 1), Depth: q.timing.Cached, Last: true})
	} else {
		d.Decodes = append(d.Decodes, latency.Decode{Request: q.timing, Context: len(q.Seq.Tokens), Tokens: 1})
	}
	return e.opt.scaled(max(e.model.Duration(d), 0))
}

// finishStep ends a step: every request whose tokens are all computed gets its next
// output, and each client one envelope. A step without outputs, because a prompt is
// longer than a step, is reported to the first client.
func (e *engine) finishStep() {
	now := e.current.end
	e.current.active, e.withheld = false, false
	any := false
	running := e.scheduler.Running()
	e.batch = len(running)
	for _, r := range running {
		q := r.Owner
		if r.Complete() && q.due <= now && !e.clientFull(q) && (q.faults == nil || !e.heldByFault(q, now)) {
			any = true
			e.output(q)
		}
	}
	if any || e.current.chunks {
		e.sendStep(now, any || e.failed)
	}
	if e.publish != nil {
		e.publish(e.pool.TakeEvents()) // once a step (vllm/v1/core/sched/scheduler.py update_from_output)
	}
}

// output adds the next output of a request to its client's batch. The first one that the
// client gets has how the prompt was computed.
func (e *engine) output(q *request) {
	out := &e.scratch.out
	*out = protocol.Output{}
	last := q.next(out, e.opt)
	if reason := q.script.Error; reason != nil && out.Finish == protocol.FinishError && e.codec.HasRequestError() {
		out.Error = (*protocol.RequestError)(reason)
	}
	if q.outputs > 1 {
		e.countDrafts(q, q.sampled)
	}
	lost := q.faults != nil && q.spoil(out, e.opt.Vocab)
	if out.Finish == protocol.FinishError && !last {
		if last = true; e.codec.HasRequestError() {
			out.Error = &protocol.RequestError{Code: "injected_fault", Message: "ended by a fault"}
		}
	}
	if last && q.transfer != nil {
		e.offerBlocks(q, out)
	}
	if !lost || last {
		out.TraceHeaders = q.traceHeaders
		if last {
			out.Drafts = q.drafted
		}
		if len(q.events) > 0 {
			out.Events, q.events = q.events, q.events[:0]
		}
		if !q.answered {
			out.Prefill = e.prefillStats(q)
		}
		q.logprobs.attach(out, !q.answered)
		q.answered = true
		e.opt.Requests.output(e, q.id, out.Tokens, out.Finish)
		if r := q.stream.Receiver(); r != nil {
			r.Receive(out, seconds(e.current.end))
		} else if err := e.batches[q.client].Add(q.stream, out); err != nil {
			// Without any output the client would wait for ever.
			e.log.Error("an output could not be encoded and was replaced by an error", "request", q.id, "error", err)
			last, q.keepsBlocks = true, false
			if err := e.batches[q.client].Add(q.stream, e.internalError(q.id, err)); err != nil {
				e.log.Error("output not sent", "request", q.id, "error", err)
			}
		}
	}
	if over := q.Computed - len(q.Seq.Tokens) + 1; over > 0 {
		e.scheduler.Reject(&q.Request, over)
	}
	if last {
		e.remove(q)
	} else if e.opt.Timing.Pace == PaceAlone && !q.script.Paced {
		q.due += e.alone(q) // of the last one's due time: a late step puts nothing off
	} else if gaps := q.script.Gaps; (q.script.Paced || e.opt.Timing.Pace == PaceRecorded) && len(gaps) > 0 {
		q.due += e.opt.scaled(max(gaps[min(q.outputs, len(gaps))-1], 0)) // of the last one's due time: a late step puts nothing off
	}
}

// countDrafts counts a step of speculative decoding in which n tokens were sampled for a
// request (vllm/v1/spec_decode/metrics.py observe_draft).
func (e *engine) countDrafts(q *request, n int) {
	k := e.opt.Decoding.SpeculativeTokens
	if k == 0 || q.Share < 2 {
		return
	}
	if d := q.drafted; d != nil {
		d.Histogram[min(n-1, k)]++
		d.DraftTokens += q.Share - 1
		if e.opt.Observability.RequestDrafts == DraftsDetailed {
			d.StepAccepted, d.StepDrafted = append(d.StepAccepted, n-1), append(d.StepDrafted, q.Share-1)
		}
	}
	s := &e.counters.spec
	if s.AcceptedPerPos == nil {
		*s = protocol.SpecDecodingStats{SpecTokens: k, AcceptedPerPos: make([]int, k), DraftTokensPerPos: make([]int, k)}
	}
	s.Drafts++
	s.DraftTokens += q.Share - 1
	s.AcceptedTokens += n - 1
	for i := range min(q.Share-1, k) {
		s.DraftTokensPerPos[i]++
		if i < n-1 {
			s.AcceptedPerPos[i]++
		}
	}
}

// prefillStats counts the prompt as vllm/v1/metrics/stats.py does: what was
// computed and fills blocks has been added to the cache.
func (e *engine) prefillStats(q *request) *protocol.PrefillStats {
	cached := q.Cached + q.External
	s := &protocol.PrefillStats{
		Prompt: q.Prompt, Computed: q.Prompt - cached, Cached: cached, LocalCached: q.Cached, ExternalCached: q.External,
	}
	if size := e.ready.BlockSize; e.opt.caching() && size > 0 {
		s.CacheCreation = max(q.Prompt/size*size-cached, 0)
	}
	return s
}

// sendStep sends the step's envelopes. The statistics go to one client, the first
// that got an output, as a real engine does it: frontends add up the counters. Those
// of a step without outputs go to the first client.
func (e *engine) sendStep(now time.Duration, outputs bool) {
	stats := e.takeStats()
	e.failed = false
	if e.report != nil {
		e.report(stats)
	}
	for client, b := range e.batches {
		if b.Len() == 0 && (outputs || client > 0) {
			continue
		}
		b.WeightVersion = e.state.weightVersion
		m, err := b.Finish(stats, seconds(now))
		if err != nil {
			e.log.Error("message not sent", "client", client, "error", err)
		} else {
			e.send(client, m)
		}
		b.Reset()
		stats = nil
	}
	s := &e.counters.spec
	clear(s.AcceptedPerPos)
	clear(s.DraftTokensPerPos)
	*s = protocol.SpecDecodingStats{SpecTokens: s.SpecTokens, AcceptedPerPos: s.AcceptedPerPos, DraftTokensPerPos: s.DraftTokensPerPos}
}

// adapters are those of the requests that run, and of those that wait.
func (e *engine) adapters() *protocol.LoRAStats {
	all := &protocol.LoRAStats{}
	running := map[string]bool{}
	for _, r := range e.scheduler.Running() {
		running[r.Owner.id] = true
	}
	for id, q := range e.byID {
		list := &all.Waiting
		if running[id] {
			list = &all.Running
		}
		if q.LoRA != 0 {
			*list = append(*list, q.Seq.Extra.LoRA.Name)
		}
	}
	for _, list := range []*[]string{&all.Running, &all.Waiting} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	return all
}

// takeStats returns the gauges as they are after the step, and the counters
// since the last step.
func (e *engine) takeStats() *protocol.SchedulerStats {
	s, cache := &e.state.stats, e.scheduler.TakeStats()
	*s = protocol.SchedulerStats{
		Running: len(e.scheduler.Running()), Waiting: e.scheduler.Waiting(), Skipped: e.scheduler.Deferred(),
		KVCacheUsage: e.pool.Usage(),
		PrefixCache: protocol.CacheStats{
			Reset: e.counters.reset, Requests: cache.Requests, Queries: cache.Queries, Hits: cache.Hits,
			PreemptedRequests: cache.PreemptedRequests, PreemptedQueries: cache.PreemptedQueries, PreemptedHits: cache.PreemptedHits,
		},
	}
	e.counters.reset = false
	s.Iteration, e.current.iteration = e.current.iteration, nil
	for _, life := range e.pool.TakeLives() {
		ended := protocol.Eviction{Lifetime: seconds(life.Lifetime), Idle: seconds(life.Idle)}
		for _, gap := range life.Gaps {
			ended.ReuseGaps = append(ended.ReuseGaps, seconds(gap))
		}
		s.Evictions = append(s.Evictions, ended)
	}
	if c := e.connector; c != nil {
		e.state.external, c.stats = c.stats, protocol.CacheStats{}
		e.state.external.Source = protocol.HitsOfPeers
		s.External = &e.state.external
		s.Fetching = protocol.FetchStages{
			WaitingToStart: c.stages[waitingToStart], InProgress: c.stages[inProgress], CompletedWaiting: c.stages[completedWaiting],
		}
		s.Connector = c.takeMoved()
	}
	if e.counters.spec.Drafts > 0 {
		s.Spec = &e.counters.spec
	}
	if e.loras && e.report != nil {
		s.LoRAs = e.adapters()
	}
	return s
}

// nextDue returns when there is something to do again, and false when only a message
// can bring that about.
func (e *engine) nextDue() (time.Duration, bool) {
	if e.current.active {
		return e.current.end, true
	}
	due := e.timers.next()
	if e.mayWithhold() && e.scheduler.Pause != scheduler.PausedAll {
		for _, r := range e.scheduler.Running() {
			if q := r.Owner; r.Complete() && !e.clientFull(q) {
				due = min(due, q.due)
			}
		}
	}
	return due, due != never
}

// mayWithhold reports whether a computed output may have to wait.
func (e *engine) mayWithhold() bool {
	return e.opt.Timing.Pace == PaceRecorded || e.opt.Timing.Pace == PaceAlone || e.faulty > 0 || e.withheld || e.paced
}

// clientFull reports whether the request has to wait because its client reads too slowly.
// The others go on.
func (e *engine) clientFull(q *request) bool {
	if r := q.stream.Receiver(); r != nil {
		if !r.Full() {
			return false
		}
	} else if e.full == nil || !e.full(q.client) {
		return false
	}
	e.withheld = true
	return true
}
