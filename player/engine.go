package player

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/vllm-vcr/conformance/internal/protocol"
)

// engine owns every request. It is not safe for concurrent use and touches no
// socket: send takes what it says.
type engine struct {
	codec  *protocol.Codec
	index  int
	ready  protocol.ReadyResponse
	source Source
	clock  Clock
	pace   Pace
	vocab  uint32
	log    *slog.Logger
	fault  func(id string, err error)
	send   func(client int, m protocol.ClientMessage)

	byID    map[string]*request
	waiting []*request
	running []*request
	batches []*protocol.Batch // one a client
	cache   protocol.CacheStats
	blocks  blockPool
	stale   bool // running or waiting lists a request that is gone
	ended   bool // a request has ended since the last step began
	pause   pauseState
	// prioritised is set by the first request that is not of priority 0: until
	// then arrival order is the order.
	prioritised bool
	state       engineState
	out         protocol.Output // scratch
	events      [2]protocol.Event
}

// addClients makes room for n output sockets.
func (e *engine) addClients(n int) {
	for range n {
		e.batches = append(e.batches, e.codec.NewBatch(e.index))
	}
}

// seconds is the timestamp of the envelopes and events of a moment.
func seconds(t time.Duration) float64 { return t.Seconds() }

// add takes a decoded request in. client is the socket it came by.
func (e *engine) add(r *protocol.Request, client int) {
	if r.ClientIndex >= len(e.batches) {
		e.refuse(r, client, "bad_request", fmt.Errorf("client_index %d, but there are %d clients", r.ClientIndex, len(e.batches)))
		return
	}
	if r.AbortImmediately {
		return // a request to clean up after: nothing to answer
	}
	if _, known := e.byID[r.ID]; known {
		e.refuse(r, r.ClientIndex, "bad_request", fmt.Errorf("the request id is already in use"))
		return
	}
	if !r.HasSampling {
		e.refuse(r, r.ClientIndex, "bad_request", fmt.Errorf("no sampling parameters: a player generates, it does not pool"))
		return
	}
	if e.state.refusesRequests {
		e.refusePaused(r)
		return
	}
	script, err := e.source.Script(r)
	if err != nil {
		e.refuse(r, r.ClientIndex, "no_recording", err)
		return
	}
	q := newRequest(e.codec, r, script, e.ready.MaxModelLen, e.vocab)
	q.queued, q.chain = e.clock.Now(), e.blocks.chain(r)
	e.byID[q.id] = q
	e.waiting = append(e.waiting, q)
	e.prioritised = e.prioritised || q.priority != 0
}

// refuse answers a request with an error output.
func (e *engine) refuse(r *protocol.Request, client int, code string, err error) {
	e.log.Error("request refused", "request", r.ID, "code", code, "error", err)
	if e.fault != nil {
		e.fault(r.ID, err)
	}
	e.refuseWith(r, client, &protocol.RequestError{Code: code, Message: err.Error()})
}

// refusePaused answers as an engine whose scheduler was paused by
// pause_generation (vllm/v1/engine/core.py at 0.33.0).
func (e *engine) refusePaused(r *protocol.Request) {
	e.refuseWith(r, r.ClientIndex, &protocol.RequestError{
		Code: "engine_paused", Message: "the engine is paused", Retryable: true,
	})
}

func (e *engine) refuseWith(r *protocol.Request, client int, reason *protocol.RequestError) {
	e.finishNow(client, e.codec.NewStream(r), e.errorOutput(reason))
}

// errorOutput ends a request with an error. Lines before 0.33 have no place for
// the reason.
func (e *engine) errorOutput(reason *protocol.RequestError) *protocol.Output {
	out := &protocol.Output{Finish: protocol.FinishError}
	if e.codec.HasRequestError() {
		out.Error = reason
	}
	return out
}

// finishNow sends one finishing output in an envelope of its own, with the id
// in finished_requests, as an engine does outside its steps.
func (e *engine) finishNow(client int, stream *protocol.Stream, out *protocol.Output) {
	b := e.codec.NewBatch(e.index)
	b.WeightVersion = ""
	if err := b.Add(stream, out); err != nil {
		e.log.Error("output not sent", "request", stream.ID(), "error", err)
		return
	}
	b.ReportFinished(stream.ID())
	if m, err := b.Finish(nil, seconds(e.clock.Now())); err == nil {
		e.send(client, m)
	}
}

// abort forgets requests. A real engine says nothing of them.
func (e *engine) abort(ids []string) {
	for _, id := range ids {
		if q := e.byID[id]; q != nil {
			e.drop(q)
		}
	}
}

// forget releases what a request holds. It stays in its list.
func (e *engine) forget(q *request) {
	q.gone, e.ended = true, true
	delete(e.byID, q.id)
	e.blocks.release(q)
}

// drop forgets a request between two steps; the next one begins with a sweep.
func (e *engine) drop(q *request) {
	e.forget(q)
	e.stale = true
}

// sweep takes the dropped requests out of the lists: their places in the batch
// are free at once, and the gauges do not count them.
func (e *engine) sweep() {
	if !e.stale {
		return
	}
	gone := func(q *request) bool { return q.gone }
	e.running = slices.DeleteFunc(e.running, gone)
	e.waiting = slices.DeleteFunc(e.waiting, gone)
	e.stale = false
}

// abortAll ends every request with an abort output, as an engine that shuts
// down or pauses does.
func (e *engine) abortAll() {
	for _, list := range [][]*request{e.running, e.waiting} {
		for _, q := range list {
			if !q.gone {
				e.forget(q)
				e.finishNow(q.client, q.stream, &protocol.Output{Finish: protocol.FinishAbort})
			}
		}
	}
	clear(e.running)
	clear(e.waiting)
	e.running, e.waiting = e.running[:0], e.waiting[:0]
}

// dropClient forgets the requests of a client that is gone.
func (e *engine) dropClient(client int) {
	for _, list := range [][]*request{e.running, e.waiting} {
		for _, q := range list {
			if q.client == client && !q.gone {
				e.drop(q)
			}
		}
	}
}

// share gives out the tokens of a step, of which there are max_num_batched_tokens:
// one to each request that decodes, and to each that does not yet what is missing
// of its prompt. It returns what is left for requests that wait
// (vllm/v1/core/sched/scheduler.py schedule).
func (e *engine) share() (left int) {
	left = e.ready.MaxNumBatchedTokens
	for _, q := range e.running {
		q.share = min(q.needs(), left)
		left -= q.share
	}
	return left
}

// admit moves waiting requests into the batch, by priority and then arrival,
// as far as max_num_seqs and the tokens left in the step allow.
func (e *engine) admit(now time.Duration, left int) {
	room := max(e.ready.MaxNumSeqs, 1) - len(e.running)
	if len(e.waiting) == 0 || room <= 0 || e.pause != unpaused {
		return
	}
	if e.prioritised {
		slices.SortStableFunc(e.waiting, func(a, b *request) int { return cmp.Compare(a.priority, b.priority) })
	}
	n := 0
	for ; n < min(len(e.waiting), room) && left > 0; n++ {
		q := e.waiting[n]
		q.started = now
		if e.pace == PaceRecorded {
			q.due = max(now, q.queued+q.script.FirstToken)
		}
		q.share = min(q.needs(), left)
		left -= q.share
		e.blocks.hold(q, q.computed+q.share)
		e.countLookup(q)
		e.running = append(e.running, q)
	}
	e.waiting = slices.Delete(e.waiting, 0, n)
}

// countLookup counts a request that was looked up in the prefix cache: one whose
// prompt's log-probabilities are asked for is computed anew.
func (e *engine) countLookup(q *request) {
	if e.blocks.cached && !q.uncached {
		e.cache.Requests++
		e.cache.Queries += q.prompt
		e.cache.Hits += q.cached
	}
}
