package player

import (
	"time"

	"github.com/vllm-vcr/conformance/internal/protocol"
)

// Pace says when outputs leave.
type Pace string

const (
	// PaceInstant makes one step after the other.
	PaceInstant Pace = "instant"
	// PaceRecorded lets each output leave when its recording did, counted from
	// the request's arrival. Requests are paced alone: a step is what is due.
	PaceRecorded Pace = "recorded"
)

// step makes one engine step: every running request that is due says one chunk,
// each client gets one envelope. A step in which nobody says anything, because a
// prompt is longer than a step or the last request has ended, is told to the first
// client. It reports whether there was anything to do.
func (e *engine) step() bool {
	e.sweep()
	if e.pause == pausedAll {
		return false
	}
	now := e.clock.Now()
	e.admit(now, e.share())
	if len(e.running) == 0 {
		return e.endStep(now)
	}
	e.ended = false // this step tells of it
	said, computed, freed := false, false, false
	kept := e.running[:0]
	for _, q := range e.running {
		switch {
		case q.cutShort():
			computed = e.compute(q) || computed
		case q.due > now:
			// What it waits for is not the room: that was its own for this step.
			freed = freed || q.computed < q.prompt
			q.computed = q.prompt
		default:
			said = true
			if !e.speak(q, now) {
				continue
			}
		}
		kept = append(kept, q)
	}
	clear(e.running[len(kept):])
	e.running = kept
	switch {
	case said:
		e.sendStep(now)
	case computed:
		e.sendStats(now)
	}
	return said || computed || freed && len(e.waiting) > 0
}

// endStep is the step after the last request has ended, in which a real engine
// gives up what it held (vllm/v1/core/sched/scheduler.py has_finished_requests).
func (e *engine) endStep(now time.Duration) bool {
	if !e.ended {
		return false
	}
	e.ended = false
	e.sendStats(now)
	return true
}

// compute reads the share of a prompt that this step has room for. It reports
// whether that is any.
func (e *engine) compute(q *request) bool {
	q.computed += q.share
	e.blocks.hold(q, q.computed)
	return q.share > 0
}

// speak adds the request's next output to its client's batch and reports
// whether the request goes on.
func (e *engine) speak(q *request, now time.Duration) bool {
	first := q.outputs == 0
	q.computed = q.prompt
	out := &e.out
	*out = protocol.Output{}
	last := q.say(out)
	if first {
		e.introduce(q, out)
	}
	q.logprobs.attach(out, first)
	if err := e.batches[q.client].Add(q.stream, out); err != nil {
		e.fail(q, err)
		last = true
	}
	if last {
		e.forget(q)
		return false
	}
	e.blocks.hold(q, q.prompt+max(q.said-1, 0)) // the token just said is computed, and stored, in the next step
	if e.pace == PaceRecorded {
		q.due += q.script.gap(q.outputs - 1) // of the last one's due time: a late step puts nothing off
	}
	return true
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

// introduce adds what only a first output has: when the request was queued and
// scheduled, and what became of its prompt.
func (e *engine) introduce(q *request, out *protocol.Output) {
	e.events = [2]protocol.Event{
		{Type: protocol.EventQueued, Timestamp: seconds(q.queued)},
		{Type: protocol.EventScheduled, Timestamp: seconds(q.started)},
	}
	out.Events = e.events[:]
	out.Prefill = e.prefillStats(q)
}

// prefillStats counts the prompt as vllm/v1/metrics/stats.py does: what was
// computed and fills blocks has been added to the cache.
func (e *engine) prefillStats(q *request) *protocol.PrefillStats {
	s := &protocol.PrefillStats{
		Prompt: q.prompt, Computed: q.prompt - q.cached, Cached: q.cached, LocalCached: q.cached,
	}
	if size := e.ready.BlockSize; e.blocks.cached && size > 0 {
		s.CacheCreation = max(q.prompt/size*size-q.cached, 0)
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
}

// sendStats tells of a step without outputs.
func (e *engine) sendStats(now time.Duration) {
	b := e.batches[0]
	b.WeightVersion = e.state.weightVersion
	if m, err := b.Finish(e.takeStats(), seconds(now)); err == nil {
		e.send(0, m)
	}
	b.Reset()
}

// takeStats returns the gauges as they are after the step, and the counters
// since the last step.
func (e *engine) takeStats() *protocol.SchedulerStats {
	s := &e.state.stats
	*s = protocol.SchedulerStats{
		Running: len(e.running), Waiting: len(e.waiting), PrefixCache: e.cache,
	}
	// One block of the pool is the null block, which no request gets
	// (vllm/v1/core/block_pool.py get_usage).
	if pool := e.ready.NumGPUBlocks - 1; pool > 0 {
		s.KVCacheUsage = 1 - float64(max(pool-e.blocks.held, 0))/float64(pool)
	}
	e.cache = protocol.CacheStats{}
	return s
}

// nextDue returns when the next output may leave, and false when nothing runs.
func (e *engine) nextDue() (time.Duration, bool) {
	if e.pause == pausedAll {
		return 0, false
	}
	var due time.Duration
	found := false
	for _, q := range e.running {
		if !q.gone && (!found || q.due < due) {
			due, found = q.due, true
		}
	}
	return due, found
}
