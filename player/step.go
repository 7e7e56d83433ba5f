package player

import (
	"fmt"
	"time"

	"github.com/vllm-vcr/conformance/internal/engine/latency"
	"github.com/vllm-vcr/conformance/internal/engine/scheduler"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// flight is the step that is being computed.
type flight struct {
	on         bool
	busy       bool // it takes time, and the next one begins at its end
	chunks     bool // it computes a part of a prompt
	begin, end time.Duration
}

// lateness is how late a step may end without the next one beginning later: beyond
// it the clock has jumped, or the machine slept, and nobody waits for what was missed.
const lateness = time.Second

// step ends the step that is being computed, when its time has come, and begins the
// next one. It reports whether there was anything to do.
func (e *engine) step() bool {
	now := e.clock.Now()
	begin := now
	if e.flight.on {
		if now < e.flight.end {
			return false
		}
		e.land()
	}
	if e.flight.busy && now-e.flight.end < lateness {
		begin = e.flight.end // the next step follows at once, however late that is noticed
	}
	landed := e.flight.busy
	e.flight.busy = false
	if e.killed {
		return false
	}
	rung := e.ring(now)
	return e.launch(begin, now) || landed || rung
}

// launch composes the step that begins at a moment. One that takes no time ends in
// the same call.
func (e *engine) launch(begin, now time.Duration) bool {
	if e.scheduler.Pause == scheduler.PausedAll {
		return false
	}
	e.guess()
	step := e.scheduler.Schedule()
	for _, r := range step.Preempted {
		e.preempted(r.Owner, begin)
	}
	for _, r := range step.Admitted {
		e.admitted(r.Owner, begin)
	}
	for _, r := range step.Pulls {
		e.pull(r.Owner, begin)
	}
	if len(step.Scheduled) == 0 && !e.anyDue(now) {
		return e.endStep(now) || len(step.Preempted) > 0 || len(step.Pulls) > 0
	}
	e.flight = flight{on: true, begin: begin, end: begin, chunks: hasChunks(step)}
	if e.model != nil && len(step.Scheduled) > 0 {
		took := e.duration(step)
		e.flight.end += took
		e.flight.busy = took > 0
	}
	if !e.flight.busy {
		e.flight.end = now
		e.land()
	}
	return true
}

// anyDue tells whether a request has something to say that is computed already.
func (e *engine) anyDue(now time.Duration) bool {
	if !e.holdsBack() {
		return false
	}
	for _, r := range e.scheduler.Running() {
		if q := r.Owner; r.Complete() && q.due <= now && !e.unheard(q) {
			return true
		}
	}
	return false
}

// hasChunks tells whether a step computes a part of a prompt, and not its end.
func hasChunks(step *scheduler.Step[*request]) bool {
	for _, r := range step.Scheduled {
		if !r.Complete() {
			return true
		}
	}
	return false
}

// duration asks the model how long a step takes.
func (e *engine) duration(step *scheduler.Step[*request]) time.Duration {
	d := &e.draws
	*d = latency.Step{
		Running: len(e.scheduler.Running()), Limit: e.ready.MaxNumSeqs, Budget: e.ready.MaxNumBatchedTokens, Left: step.Left,
		Decodes: d.Decodes[:0], Chunks: d.Chunks[:0],
	}
	e.drawers = e.drawers[:0]
	for _, r := range step.Scheduled {
		q := r.Owner
		before := r.Computed - r.Share
		if before >= r.Prompt && r.Complete() {
			d.Decodes = append(d.Decodes, latency.Decode{Request: q.timing, Context: before, Tokens: r.Share})
			e.drawers = append(e.drawers, q)
		} else {
			d.Chunks = append(d.Chunks, latency.Chunk{Request: q.timing, Tokens: r.Share, Depth: before, Last: r.Complete()})
		}
	}
	took := e.opt.scaled(max(e.model.Duration(d), 0))
	for i, q := range e.drawers {
		q.modelled = d.Decodes[i].Tokens
	}
	return took
}

// preempted notes that a request has lost its place in the batch. One that is alone
// with the KV cache and finds it too small would come back for ever: it ends.
func (e *engine) preempted(q *request, at time.Duration) {
	q.note(protocol.EventPreempted, at)
	if !e.pool.Fits(len(q.Seq.Tokens) + 1) {
		e.end(q, fmt.Errorf("its %d tokens fill the KV cache", len(q.Seq.Tokens)))
	}
}

// admitted notes when a request has got its place in the batch.
func (e *engine) admitted(q *request, at time.Duration) {
	at = max(at, q.queued)
	q.note(protocol.EventScheduled, at)
	e.fetchedBefore(q)
	if q.LoRA != 0 {
		e.load(q.LoRA)
	}
	if q.Preemptions > 0 {
		return
	}
	q.timing.Cached = q.Cached + q.External
	if e.opt.Timing.Pace == PaceRecorded {
		q.due = max(at, q.queued+e.opt.scaled(q.script.FirstToken))
	}
}

// land ends a step: every request whose tokens are all computed says one chunk, each
// client gets one envelope. A step in which nobody says anything, because a prompt is
// longer than a step, is told to the first client.
func (e *engine) land() {
	now := e.flight.end
	e.flight.on, e.ended, e.silent = false, false, false
	said := false
	for _, r := range e.scheduler.Running() {
		q := r.Owner
		if r.Complete() && q.due <= now && !e.unheard(q) && (q.trouble == nil || !e.holds(q, now)) {
			said = true
			e.speak(q, now)
		}
	}
	switch {
	case said:
		e.sendStep(now)
	case e.flight.chunks:
		e.sendStats(now)
	}
	if e.publish != nil {
		e.publish(e.pool.TakeEvents()) // once a step (vllm/v1/core/sched/scheduler.py update_from_output)
	}
}

// endStep is the step after the last request has ended, in which a real engine
// gives up what it held (vllm/v1/core/sched/scheduler.py has_finished_requests).
func (e *engine) endStep(now time.Duration) bool {
	if !e.ended || len(e.scheduler.Running()) > 0 {
		return false
	}
	e.ended = false
	e.sendStats(now)
	return true
}

// guess decides how many tokens each request will say in the next step: those beyond
// the first are computed as guesses.
func (e *engine) guess() {
	for _, r := range e.scheduler.Running() {
		if len(r.Seq.Tokens)-r.Computed == 1 {
			r.Drafts = r.Owner.drafts(e.opt)
		}
	}
}

// speak adds the request's next output to its client's batch.
func (e *engine) speak(q *request, now time.Duration) {
	out := &e.out
	*out = protocol.Output{}
	last := q.say(out, e.opt)
	if q.outputs > 1 {
		e.countGuesses(q, q.sampled)
	}
	lost := q.trouble != nil && q.spoil(out, e.opt.Vocab)
	if last && q.transfer != nil {
		e.offer(q, out)
	}
	if (!lost || last) && !e.tell(q, out) {
		last = true
	}
	if over := q.Computed - len(q.Seq.Tokens) + 1; over > 0 {
		e.scheduler.Reject(&q.Request, over)
	}
	if last {
		e.forget(q)
	} else if e.opt.Timing.Pace == PaceRecorded {
		q.due += e.opt.scaled(q.script.gap(q.outputs - 1)) // of the last one's due time: a late step puts nothing off
	}
}

// tell adds an output to its client's batch. The first one that the client gets says how
// the prompt was computed. It reports false when the request has ended with an error.
func (e *engine) tell(q *request, out *protocol.Output) bool {
	out.Events = q.takeEvents()
	if !q.told {
		out.Prefill = e.prefillStats(q)
	}
	q.logprobs.attach(out, !q.told)
	q.told = true
	if err := e.batches[q.client].Add(q.stream, out); err != nil {
		q.keeps = false
		e.fail(q, err)
		return false
	}
	return true
}

// countGuesses counts a step of speculative decoding in which n tokens were sampled for a
// request (vllm/v1/spec_decode/metrics.py observe_draft).
func (e *engine) countGuesses(q *request, n int) {
	k := e.opt.Decoding.SpeculativeTokens
	if k == 0 || q.Share < 2 {
		return
	}
	s := &e.spec
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

// end ends a request outside of a step with an error output.
func (e *engine) end(q *request, err error) {
	e.log.Error("request ended", "request", q.id, "error", err)
	if e.fault != nil {
		e.fault(q.id, err)
	}
	e.forget(q)
	e.finishNow(q.client, q.stream, e.errorOutput(&protocol.RequestError{Code: "internal_error", Message: err.Error()}))
}

// fail ends a request whose next output cannot be said with an error output: a
// client that gets nothing would wait for ever.
func (e *engine) fail(q *request, err error) {
	e.log.Error("output replaced by an error", "request", q.id, "error", err)
	if e.fault != nil {
		e.fault(q.id, err)
	}
	out := e.errorOutput(&protocol.RequestError{Code: "internal_error", Message: err.Error()})
	if err := e.batches[q.client].Add(q.stream, out); err != nil {
		e.log.Error("output not sent", "request", q.id, "error", err)
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
		s.CacheCreation = max(q.Prompt/size*size-q.Cached, 0)
	}
	return s
}

// sendStep closes the step's envelopes. The statistics go to one client, the
// first that got something, as a real engine does it: frontends add up the
// counters.
func (e *engine) sendStep(now time.Duration) {
	stats := e.takeStats()
	for client, b := range e.batches {
		if b.Len() == 0 {
			continue
		}
		b.WeightVersion = e.state.weightVersion
		m, err := b.Finish(stats, seconds(now))
		if err != nil {
			e.log.Error("envelope not sent", "client", client, "error", err)
		} else {
			e.send(client, m)
		}
		b.Reset()
		stats = nil
	}
	e.told()
}

// sendStats tells of a step without outputs.
func (e *engine) sendStats(now time.Duration) {
	b := e.batches[0]
	b.WeightVersion = e.state.weightVersion
	if m, err := b.Finish(e.takeStats(), seconds(now)); err == nil {
		e.send(0, m)
	}
	b.Reset()
	e.told()
}

// told forgets what the statistics have counted.
func (e *engine) told() {
	s := &e.spec
	clear(s.AcceptedPerPos)
	clear(s.DraftTokensPerPos)
	*s = protocol.SpecDecodingStats{SpecTokens: s.SpecTokens, AcceptedPerPos: s.AcceptedPerPos, DraftTokensPerPos: s.DraftTokensPerPos}
}

// takeStats returns the gauges as they are after the step, and the counters
// since the last step.
func (e *engine) takeStats() *protocol.SchedulerStats {
	s, cache := &e.state.stats, e.scheduler.TakeStats()
	*s = protocol.SchedulerStats{
		Running: len(e.scheduler.Running()), Waiting: e.scheduler.Waiting(), Skipped: e.scheduler.Deferred(),
		KVCacheUsage: e.pool.Usage(),
		PrefixCache: protocol.CacheStats{
			Reset: e.reset, Requests: cache.Requests, Queries: cache.Queries, Hits: cache.Hits,
			PreemptedRequests: cache.PreemptedRequests, PreemptedQueries: cache.PreemptedQueries, PreemptedHits: cache.PreemptedHits,
		},
	}
	e.reset = false
	if c := e.connector; c != nil {
		e.state.external, c.stats = c.stats, protocol.CacheStats{}
		s.External, s.Fetching = &e.state.external, [3]int(c.stages[waitingToStart:])
	}
	if e.spec.Drafts > 0 {
		s.Spec = &e.spec
	}
	return s
}

// nextDue returns when there is something to do again, and false when only a message
// can bring that about.
func (e *engine) nextDue() (time.Duration, bool) {
	if e.flight.on {
		return e.flight.end, true
	}
	due := never
	if len(e.timers) > 0 {
		due = e.timers[0].at
	}
	if e.holdsBack() && e.scheduler.Pause != scheduler.PausedAll {
		for _, r := range e.scheduler.Running() {
			if q := r.Owner; r.Complete() && !e.unheard(q) {
				due = min(due, q.due)
			}
		}
	}
	return due, due != never
}

// holdsBack tells whether requests may have to wait with what is computed.
func (e *engine) holdsBack() bool {
	return e.opt.Timing.Pace == PaceRecorded || e.troubled > 0 || e.silent
}

// unheard tells whether the request has to wait because its client reads too slowly.
// The others go on.
func (e *engine) unheard(q *request) bool {
	if e.full == nil || !e.full(q.client) {
		return false
	}
	e.silent = true
	return true
}
