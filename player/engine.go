package player

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/vllm-vcr/conformance/internal/engine/kvcache"
	"github.com/vllm-vcr/conformance/internal/engine/kvtransfer"
	"github.com/vllm-vcr/conformance/internal/engine/latency"
	"github.com/vllm-vcr/conformance/internal/engine/scheduler"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// engine owns every request. It is not safe for concurrent use and touches no
// socket: send takes what it says.
type engine struct {
	codec *protocol.Codec
	index int
	ready protocol.ReadyResponse
	opt   *Options
	clock Clock
	log   *slog.Logger
	fault func(id string, err error)
	send  func(client int, m protocol.ClientMessage)
	// full tells whether a client has so much to read that it is told no more; nil
	// without sockets.
	full func(client int) bool
	// publish takes what happened in the prefix cache; nil without KV events.
	publish func([]kvcache.Event)

	source    Source
	model     latency.Model // at PaceModelled
	scheduler *scheduler.Scheduler[*request]
	pool      *kvcache.Pool

	byID     map[string]*request
	batches  []*protocol.Batch // one a client
	flight   flight
	arrivals uint64
	ended    bool // a request has ended since the last step began
	silent   bool // a request has said nothing because its client is full
	reset    bool // the prefix cache was emptied since the last statistics
	state    engineState
	spec     protocol.SpecDecodingStats
	out      protocol.Output // scratch
	asked    Request         // scratch: what the source gets of a request
	draws    latency.Step    // scratch
	drawers  []*request      // scratch: of the decodes in draws

	timers    timers
	timed     uint64      // timers that were set
	connector *connector  // nil without one
	faults    *faultDraws // nil without any
	troubled  int         // requests that a fault has befallen
	draw      uint64      // requests that asked for faults of their own, refused ones too
	killed    bool        // by a fault
}

// newEngine returns an engine without clients.
func newEngine(opt *Options, codec *protocol.Codec, ready protocol.ReadyResponse, source Source) (*engine, error) {
	pool, err := kvcache.New(kvcache.Options{
		Blocks: max(ready.NumGPUBlocks, 2), BlockSize: max(ready.BlockSize, 1), Caching: opt.caching(),
		Algorithm: opt.KVCache.HashAlgorithm, Seed: opt.KVCache.HashSeed, Events: opt.KVCache.Events != nil, Rules: kvcache.RulesOf(codec.Line()),
	})
	if err != nil {
		return nil, err
	}
	longest := ready.MaxModelLen
	if len(opt.Pooling.Tasks) > 0 {
		// A model that pools says nothing after the prompt, which may so fill the context
		// (vllm/v1/core/sched/scheduler.py num_sampled_tokens_per_step). An engine of 0.27
		// waits for ever for the last token of such a prompt, if that is computed in chunks.
		longest++
	}
	e := &engine{
		codec: codec, index: opt.EngineIndex, ready: ready, opt: opt, clock: opt.Clock, log: opt.Log,
		fault: opt.OnRefused, source: source, pool: pool,
		scheduler: scheduler.New[*request](scheduler.Options{
			MaxNumSeqs: ready.MaxNumSeqs, MaxNumBatchedTokens: ready.MaxNumBatchedTokens, MaxModelLen: longest,
			LongPrefillTokenThreshold: opt.Limits.LongPrefillTokenThreshold, MaxLoRAs: opt.LoRA.MaxLoRAs,
			Priority: opt.SchedulingPolicy == PolicyPriority, Caching: opt.caching(), Pool: pool,
		}),
		byID: map[string]*request{}, state: engineState{weightVersion: "default"},
	}
	if opt.Timing.Pace == PaceModelled {
		e.model = opt.Timing.Latency
	}
	if len(opt.Faults) > 0 {
		e.faults = newFaultDraws(opt.Faults, opt.Seed)
	}
	return e, nil
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
	transfer, err := e.transferOf(r)
	if err != nil {
		e.refuse(r, r.ClientIndex, "bad_request", err)
		return
	}
	if r.AbortImmediately || !e.takeIn(r, transfer) {
		e.letGo(transfer) // a request to clean up after, or one that will not pull it
	}
}

// takeIn queues a request, or answers with a refusal and returns false.
func (e *engine) takeIn(r *protocol.Request, transfer *kvtransfer.Params) bool {
	if e.state.refusesRequests {
		e.refusePaused(r)
		return false
	}
	code, err := e.acceptable(r)
	if err != nil {
		e.refuse(r, r.ClientIndex, code, err)
		return false
	}
	trouble, err := e.troubleOf(r)
	if err != nil {
		e.refuse(r, r.ClientIndex, "bad_request", err)
		return false
	}
	if reason := trouble.refusal(); reason != nil {
		e.log.Info("a fault refuses a request", "request", r.ID)
		e.refuseWith(r, r.ClientIndex, reason)
		return false
	}
	q, err := e.newRequest(r)
	if err != nil {
		e.refuse(r, r.ClientIndex, codeOf(err), err)
		return false
	}
	e.accept(q, transfer, trouble)
	return true
}

// acceptable says why a request is refused before anybody looks for its answer, and by
// which code.
func (e *engine) acceptable(r *protocol.Request) (code string, err error) {
	if _, known := e.byID[r.ID]; known || e.kept(r.ID) {
		return "bad_request", errors.New("the request id is already in use")
	}
	if r.LoRA != nil {
		if err := e.knowLoRA(r.LoRA); err != nil {
			return "bad_request", err
		}
	}
	return "validation_error", e.fits(r)
}

// codeOf is the code that a frontend is told of a request that gets no answer.
func codeOf(err error) string {
	var refusal *Refusal
	if errors.As(err, &refusal) {
		return refusal.Code
	}
	return "no_recording"
}

// fits refuses prompts that no step would ever be composed for.
func (e *engine) fits(r *protocol.Request) error {
	n := len(r.PromptTokenIDs)
	if n > e.ready.MaxModelLen {
		return fmt.Errorf("the prompt has %d tokens, and max_model_len is %d", n, e.ready.MaxModelLen)
	}
	if n == e.ready.MaxModelLen && r.HasSampling {
		return fmt.Errorf("the prompt has %d tokens, and max_model_len = %d leaves no room for an answer", n, e.ready.MaxModelLen)
	}
	if !e.pool.Fits(n) {
		return fmt.Errorf("the prompt has %d tokens, the KV cache has room for %d",
			n, (e.ready.NumGPUBlocks-1)*e.ready.BlockSize)
	}
	return nil
}

// accept queues a request.
func (e *engine) accept(q *request, transfer *kvtransfer.Params, trouble *trouble) {
	e.arrivals++
	q.number = e.arrivals
	e.byID[q.id] = q
	e.takePart(q, transfer)
	if trouble == nil {
		e.enqueue(q)
		return
	}
	q.trouble = trouble
	e.troubled++
	if trouble.late == 0 {
		e.enqueue(q)
		return
	}
	e.after(e.clock.Now()+trouble.late, func() {
		if e.byID[q.id] == q { // it may have been aborted
			e.enqueue(q)
		}
	})
}

func (e *engine) enqueue(q *request) {
	q.queued = e.clock.Now()
	q.note(protocol.EventQueued, q.queued)
	e.scheduler.Add(&q.Request)
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
		Code: "engine_paused", Message: "Generation is paused. Please retry after it resumes.", Retryable: true,
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
			e.leave(q)
		}
	}
}

// forget releases what a request holds.
func (e *engine) forget(q *request) {
	e.ended = true
	delete(e.byID, q.id)
	e.setStage(q, notFetched)
	if q.trouble != nil {
		e.troubled--
	}
	if q.keeps {
		e.keep(q)
	}
	e.scheduler.Remove(&q.Request)
}

// leave forgets a request that has not ended. The KV cache that another engine keeps
// for it is not needed any more.
func (e *engine) leave(q *request) {
	if q.stage == waitingToStart {
		e.letGo(q.transfer)
	}
	e.forget(q)
}

// abortAll ends every request with an abort output, as an engine that shuts
// down or pauses does.
func (e *engine) abortAll() {
	for _, q := range e.everyRequest() {
		e.leave(q)
		e.finishNow(q.client, q.stream, &protocol.Output{Finish: protocol.FinishAbort})
	}
}

// everyRequest lists the requests in the order of their arrival.
func (e *engine) everyRequest() []*request {
	all := slices.Collect(maps.Values(e.byID))
	slices.SortFunc(all, func(a, b *request) int { return cmp.Compare(a.number, b.number) })
	return all
}

// dropClient forgets the requests of a client that is gone.
func (e *engine) dropClient(client int) {
	for _, q := range e.byID {
		if q.client == client {
			e.leave(q)
		}
	}
}

// counts are what an engine tells a coordinator: requests that run and that wait,
// and the share of the KV cache that is in use.
func (e *engine) counts() (running, waiting int, usage float64) {
	return len(e.scheduler.Running()), e.scheduler.Waiting() + e.scheduler.Deferred(), e.pool.Usage()
}
