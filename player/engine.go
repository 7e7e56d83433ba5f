package player

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/vllm-vcr/conformance/internal/engine/kvcache"
	"github.com/vllm-vcr/conformance/internal/engine/latency"
	"github.com/vllm-vcr/conformance/internal/engine/scheduler"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// engine owns every request. It is not safe for concurrent use and touches no
// socket: send takes its messages.
type engine struct {
	codec *protocol.Codec
	index int
	ready protocol.ReadyResponse
	opt   *Options
	clock Clock
	log   *slog.Logger

	// The ways out: to a client, to subscribers of KV events (nil without any), and to
	// [Options].OnRefused (nil without one). full reports whether a client has so much to
	// read that it gets no more; nil without sockets.
	send    func(client int, m protocol.ClientMessage)
	full    func(client int) bool
	publish func([]kvcache.Event)
	// report takes the statistics of each step for a frontend in this process; nil sends them in messages.
	report    func(*protocol.SchedulerStats)
	onRefused func(id string, err error)
	// beside does something that may take long beside the engine, and has then called by the
	// engine what it returns.
	beside func(do func(context.Context) (then func()))

	source    Source
	model     latency.Model // at PaceModelled and PaceAlone
	scheduler *scheduler.Scheduler[*request]
	pool      *kvcache.Pool
	connector *connector  // nil without one
	faults    *faultDraws // nil without any
	timers    timers
	state     engineState
	// sleepLevel is that of the sleep call that applies, for [Group.Engines].
	sleepLevel atomic.Int32

	byID       map[string]*request
	arrivals   uint64            // requests that were accepted
	faulty     int               // requests with a fault
	ownDraws   uint64            // requests that asked for faults of their own, refused ones too
	batches    []*protocol.Batch // one a client
	current    runningStep
	ended      bool // a request has ended since the last step began
	failed     bool // a batch has the error of a request for which nothing was computed
	paced      bool // there was a script with times of its own
	withheld   bool // an output has waited in the last step because its client is full
	killed     bool // by a fault
	iterations int  // steps that computed something, if that is reported
	batch      int  // requests that run, as the step found them
	arrived    bool // a request has come since the last report
	loras      bool // a request had an adapter
	counters   counters

	scratch struct {
		out     protocol.Output
		asked   Request // what the source gets of a request
		draws   latency.Step
		drawers []*request // of the decodes in draws
	}
}

// counters are reset when they have been sent with statistics.
type counters struct {
	spec  protocol.SpecDecodingStats
	reset bool // the prefix cache was emptied
}

// newEngine returns an engine without clients.
func newEngine(opt *Options, codec *protocol.Codec, ready protocol.ReadyResponse, source Source) (*engine, error) {
	var lives *kvcache.Lives
	if share := opt.Observability.KVCacheMetricsSample; share > 0 {
		draws := rand.New(rand.NewPCG(opt.Seed, uint64(opt.EngineIndex)))
		lives = &kvcache.Lives{Now: opt.Clock.Now, Sampled: func() bool { return draws.Float64() < share }}
	}
	pool, err := kvcache.New(kvcache.Options{
		Lives:  lives,
		Blocks: max(ready.NumGPUBlocks, 2), BlockSize: max(ready.BlockSize, 1), Caching: opt.caching(),
		Algorithm: opt.KVCache.HashAlgorithm, Seed: opt.KVCache.HashSeed, Events: opt.KVCache.Events != nil, Rules: kvcache.RulesOf(codec.Line()),
	})
	if err != nil {
		return nil, err
	}
	longest := ready.MaxModelLen
	if !slices.Contains(opt.tasks(), taskGenerate) {
		// A pooling model generates nothing after the prompt, which may so fill the context
		// (vllm/v1/core/sched/scheduler.py num_sampled_tokens_per_step). An engine of 0.27
		// waits for ever for the last token of such a prompt, if that is computed in chunks.
		longest++
	}
	e := &engine{
		codec: codec, index: opt.EngineIndex, ready: ready, opt: opt, clock: opt.Clock, log: opt.Log,
		onRefused: opt.OnRefused, source: source, pool: pool,
		scheduler: scheduler.New[*request](scheduler.Options{
			MaxNumSeqs: ready.MaxNumSeqs, MaxNumBatchedTokens: ready.MaxNumBatchedTokens, MaxModelLen: longest,
			LongPrefillTokenThreshold: opt.Limits.LongPrefillTokenThreshold, MaxLoRAs: opt.LoRA.MaxLoRAs,
			Priority: opt.SchedulingPolicy == PolicyPriority, Caching: opt.caching(), Pool: pool,
		}),
		byID: map[string]*request{}, state: engineState{weightVersion: "default"},
	}
	if opt.Timing.Pace == PaceModelled || opt.Timing.Pace == PaceAlone {
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

// add queues a decoded request, or answers it with an error. client is the socket it
// came by.
func (e *engine) add(r *protocol.Request, client int) {
	e.opt.Requests.add(e, r)
	if r.Receiver == nil && r.ClientIndex >= len(e.batches) {
		e.refuse(r, client, "bad_request", fmt.Errorf("client_index %d, but there are %d clients", r.ClientIndex, len(e.batches)))
		return
	}
	transfer, err := e.transferOf(r)
	if err != nil {
		e.refuse(r, r.ClientIndex, "bad_request", err)
		return
	}
	if r.AbortImmediately {
		e.releaseRemote(transfer) // all that such a request is for
		return
	}
	q := e.accept(r)
	if q == nil {
		e.releaseRemote(transfer) // it will not pull it
		return
	}
	e.arrivals++
	q.number = e.arrivals
	e.byID[q.id] = q
	if q.transfer = transfer; transfer != nil && transfer.Consume {
		q.Remote = !q.Seq.Uncached // one that may not use a cache cannot use another engine's
		e.setFetchStage(q, waitingToStart)
		e.await(q)
	}
	if q.faults != nil {
		e.faulty++
	}
	if q.script.Later != nil {
		e.answerLater(q)
		return
	}
	e.enqueueInTime(q)
}

// answerLater lets a request wait until its answer is made.
func (e *engine) answerLater(q *request) {
	needed, unneeded := context.WithCancel(context.Background())
	q.unneeded = unneeded
	later := q.script.Later
	e.beside(func(ctx context.Context) (then func()) {
		defer context.AfterFunc(ctx, unneeded)()
		script, err := later(needed)
		return func() {
			late := (*uncompiledError)(nil)
			switch {
			case e.byID[q.id] != q: // aborted meanwhile
			case errors.As(err, &late) && protocol.GuidanceGoesOn.Holds(e.codec.Line()):
				q.setScript(Script{Tokens: []uint32{late.end}, Finish: FinishStop, CachedTokens: LookUp})
				e.enqueueInTime(q)
			case err != nil:
				e.log.Error("request refused", "request", q.id, "code", codeOf(err), "error", err)
				if e.onRefused != nil {
					e.onRefused(q.id, err)
				}
				e.endUncomputed(q, &protocol.RequestError{Code: codeOf(err), Message: err.Error()})
			default:
				q.setScript(script)
				e.enqueueInTime(q)
			}
		}
	})
}

// endUncomputed answers a request with an error before anything is computed or looked up for it, as a real engine answers one whose
// grammar it cannot compile (vllm/v1/core/sched/scheduler.py grammar_compile_error_reqs): with the next step.
func (e *engine) endUncomputed(q *request, reason *protocol.RequestError) {
	q.addEvent(protocol.EventQueued, e.clock.Now())
	out := e.errorOutput(reason)
	out.Events, out.TraceHeaders = q.events, q.traceHeaders
	e.opt.Requests.output(e, q.id, nil, out.Finish)
	e.cancel(q)
	if r := q.stream.Receiver(); r != nil {
		r.Receive(out, seconds(e.clock.Now()))
	} else if err := e.batches[q.client].Add(q.stream, out); err != nil {
		e.log.Error("output not sent", "request", q.id, "error", err)
	} else {
		e.failed = true
	}
}

// enqueueInTime gives a request to the scheduler, later if a fault delays it.
func (e *engine) enqueueInTime(q *request) {
	if q.faults == nil || q.faults.delay == 0 {
		e.enqueue(q)
		return
	}
	e.timers.callAt(e.clock.Now()+q.faults.delay, func() {
		if e.byID[q.id] == q { // it may have been aborted
			e.enqueue(q)
		}
	})
}

// accept prepares the answer to a request. It sends a refusal and returns nil where
// there is none.
func (e *engine) accept(r *protocol.Request) *request {
	if e.state.refusesRequests {
		// As an engine whose scheduler was paused by pause_generation
		// (vllm/v1/engine/core.py at 0.33.0).
		e.sendRefusal(r, r.ClientIndex, &protocol.RequestError{
			Code: "engine_paused", Message: "Generation is paused. Please retry after it resumes.", Retryable: true,
		})
		return nil
	}
	if code, err := e.acceptable(r); err != nil {
		e.refuse(r, r.ClientIndex, code, err)
		return nil
	}
	if lost := e.lostImages(r); lost != nil {
		// vllm/v1/engine/core.py _handle_mm_cache_miss
		e.log.Warn("request ended: its frontend named images without sending them, and this engine does not have them; the frontend sends them with the next request",
			"request", r.ID, "images", len(lost))
		e.sendFinal(r.ClientIndex, e.codec.NewStream(r), &protocol.Output{Finish: protocol.FinishError, CacheMisses: lost})
		return nil
	}
	faults, err := e.faultsFor(r)
	if err != nil {
		e.refuse(r, r.ClientIndex, "bad_request", err)
		return nil
	}
	if reason := faults.refusal(); reason != nil {
		e.log.Info("a fault refuses a request", "request", r.ID)
		e.sendRefusal(r, r.ClientIndex, reason)
		return nil
	}
	q, err := e.newRequest(r)
	if err != nil {
		e.refuse(r, r.ClientIndex, codeOf(err), err)
		return nil
	}
	q.faults = faults
	return q
}

// codeOf is the code of an error of a source.
func codeOf(err error) string {
	if refusal := (*Refusal)(nil); errors.As(err, &refusal) {
		return refusal.Code
	}
	return "no_recording"
}

// acceptable returns why a request is refused before its answer is looked for, and the
// code of the error.
func (e *engine) acceptable(r *protocol.Request) (code string, err error) {
	if _, known := e.byID[r.ID]; known || e.connector != nil && e.connector.kept[r.ID] != nil {
		return "bad_request", errors.New("the request id is already in use")
	}
	if r.LoRA != nil {
		if err := e.checkLoRA(r.LoRA); err != nil {
			return "bad_request", err
		}
	}
	return "validation_error", e.fits(r)
}

// fits refuses prompts that no step would ever be composed for.
func (e *engine) fits(r *protocol.Request) error {
	n := len(r.PromptTokenIDs)
	if n > e.ready.MaxModelLen {
		return fmt.Errorf("the prompt has %d tokens, and max_model_len is %d", n, e.ready.MaxModelLen)
	}
	if n == e.ready.MaxModelLen && r.HasSampling {
		return fmt.Errorf("the prompt has %d tokens, and max_model_len = %d leaves no space for an answer", n, e.ready.MaxModelLen)
	}
	if !e.pool.Fits(n) {
		return fmt.Errorf("the prompt has %d tokens, and the KV cache has space for %d",
			n, (e.ready.NumGPUBlocks-1)*e.ready.BlockSize)
	}
	return nil
}

// enqueue gives a request to the scheduler.
func (e *engine) enqueue(q *request) {
	if s := &q.script; s.Finish == FinishError && len(s.Tokens) == 0 && s.Fill == nil {
		e.endUncomputed(q, (*protocol.RequestError)(s.Error))
		return
	}
	q.queued = e.clock.Now()
	e.arrived, e.loras = true, e.loras || q.LoRA != 0
	q.addEvent(protocol.EventQueued, q.queued)
	e.scheduler.Add(&q.Request)
}

// refuse answers a request with an error output.
func (e *engine) refuse(r *protocol.Request, client int, code string, err error) {
	e.log.Error("request refused", "request", r.ID, "code", code, "error", err)
	if e.onRefused != nil {
		e.onRefused(r.ID, err)
	}
	e.sendRefusal(r, client, &protocol.RequestError{Code: code, Message: err.Error()})
}

func (e *engine) sendRefusal(r *protocol.Request, client int, reason *protocol.RequestError) {
	e.sendFinal(client, e.codec.NewStream(r), e.errorOutput(reason))
}

// endWithError ends a request outside of a step with an error output.
func (e *engine) endWithError(q *request, err error) {
	e.log.Error("request ended", "request", q.id, "error", err)
	out := e.internalError(q.id, err)
	e.remove(q)
	e.sendFinal(q.client, q.stream, out)
}

// internalError is the last output of a request that cannot go on.
func (e *engine) internalError(id string, err error) *protocol.Output {
	if e.onRefused != nil {
		e.onRefused(id, err)
	}
	return e.errorOutput(&protocol.RequestError{Code: "internal_error", Message: err.Error()})
}

// errorOutput ends a request with an error. Lines before 0.33 have no field for
// the reason.
func (e *engine) errorOutput(reason *protocol.RequestError) *protocol.Output {
	out := &protocol.Output{Finish: protocol.FinishError}
	if e.codec.HasRequestError() {
		out.Error = reason
	}
	return out
}

// sendFinal sends the last output of a request in an envelope of its own, with the id
// in finished_requests, as an engine does outside its steps.
func (e *engine) sendFinal(client int, stream *protocol.Stream, out *protocol.Output) {
	e.opt.Requests.output(e, stream.ID(), nil, out.Finish)
	if r := stream.Receiver(); r != nil {
		r.Receive(out, seconds(e.clock.Now()))
		return
	}
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

// abort cancels requests. A real engine sends no output for them.
func (e *engine) abort(ids []string) {
	for _, id := range ids {
		if q := e.byID[id]; q != nil {
			e.opt.Requests.output(e, id, nil, protocol.FinishAbort)
			e.cancel(q)
		}
	}
}

// abortAll ends every request with an abort output, in the order of their arrival, as an
// engine that shuts down or pauses does.
func (e *engine) abortAll() {
	if e.failed {
		e.sendStep(e.clock.Now(), true)
	}
	all := slices.Collect(maps.Values(e.byID))
	slices.SortFunc(all, func(a, b *request) int { return cmp.Compare(a.number, b.number) })
	for _, q := range all {
		e.cancel(q)
		e.sendFinal(q.client, q.stream, &protocol.Output{Finish: protocol.FinishAbort})
	}
}

// cancel removes a request that has not ended. The KV cache that another engine keeps
// for it is not needed any more.
func (e *engine) cancel(q *request) {
	if q.stage == waitingToStart {
		e.releaseRemote(q.transfer)
	}
	e.remove(q)
}

// remove frees what a request holds.
func (e *engine) remove(q *request) {
	e.ended = true
	delete(e.byID, q.id)
	e.setFetchStage(q, notFetched)
	q.stopAwaiting()
	if q.faults != nil {
		e.faulty--
	}
	if q.unneeded != nil {
		q.unneeded()
	}
	if q.keepsBlocks {
		e.keepBlocks(q)
	}
	e.scheduler.Remove(&q.Request)
}
