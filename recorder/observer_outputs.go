package recorder

import (
	"errors"
	"math"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

// outputs takes an EngineCoreOutputs envelope: what one engine step sent to one
// client.
func (o *Observer) outputs(ev *Event) {
	out := &o.out
	err := o.codec.DecodeOutputs(ev.Frames[0], out)
	switch {
	case errors.Is(err, protocol.ErrEngineDead) && o.left:
		// An engine says so too when its frontend has left it: that is no loss.
		o.log.Info("the engine ends, because its frontend has left", "rank", ev.Rank, "client", ev.Client)
		return
	case errors.Is(err, protocol.ErrEngineDead):
		o.counts.Dead.Add(1)
		o.log.Error("the engine reports that it is dead", "client", ev.Client, "in_flight", len(o.tracked))
		return
	case err != nil:
		o.undecodable(ev, "an answer", err)
		o.lose(ev, ev.Frames[0])
		return
	case out.EngineIndex != ev.Rank:
		o.counts.WrongEngine.Add(1)
		o.warn(ev, "an answer in the name of another engine", nil, "engine_index", out.EngineIndex)
	}
	at := moment{tap: o.now, engine: o.engineTime(ev, out)}
	st := o.beginStep(ev, out)
	before := o.tokens
	for i := range out.Outputs {
		o.output(ev, o.step[i], &out.Outputs[i], at, st)
	}
	o.counts.Tokens.Add(o.tokens - before)
}

// engineTime is the timestamp of an envelope with tokens. Others, which threads besides that of the steps make, need not be in order.
func (o *Observer) engineTime(ev *Event, out *protocol.Outputs) time.Duration {
	tokens := 0
	for i := range out.Outputs {
		tokens += len(out.Outputs[i].Tokens)
	}
	if tokens == 0 {
		return 0
	}
	before := o.clock.state
	at := o.clock.observe(ev.Client, out.Timestamp, o.now)
	if now := o.clock.state; now != before && now != trace.ClockUsed && now != trace.ClockUnproven {
		o.warn(ev, "the timestamps of the engine's messages are not used: times are those at which the recorder received them", nil,
			"engine_clock", now, "timestamp", out.Timestamp)
	}
	return at
}

// step is the engine's state behind one envelope.
type step struct {
	running, prefill uint32
}

// beginStep looks at the envelope as a whole: who is meant (o.step, parallel to
// the outputs), how many requests ran, and how many prompt tokens were computed
// for those that get their first token in it.
func (o *Observer) beginStep(ev *Event, out *protocol.Outputs) step {
	o.steps++
	running := len(o.tracked)
	if out.SchedulerStats != nil {
		o.startClock()
		if n, ok := mapCount(out.SchedulerStats, "num_running_reqs"); ok {
			running = n
		}
		o.files.step(o.sinceZero(o.now), out.SchedulerStats)
	}
	prefill := 0
	o.step = o.step[:0]
	for i := range out.Outputs {
		q := o.tracked[string(out.Outputs[i].ID)]
		o.step = append(o.step, q)
		if q == nil || q.chunks > 0 || len(out.Outputs[i].Tokens) == 0 || q.remote || q.prefill == o.steps {
			continue
		}
		q.prefill = o.steps
		prefill += q.rec.PromptTokens
	}
	return step{running: clampUint32(max(running, 1)), prefill: clampUint32(prefill)}
}

func clampUint32(n int) uint32 { return uint32(min(n, math.MaxUint32)) }

// output takes what one request gets in a step.
func (o *Observer) output(ev *Event, q *request, out *protocol.RequestOutput, at moment, st step) {
	if q == nil || !q.live {
		o.stray(ev, out)
		return
	}
	if q.refusals > 0 && out.Finish == protocol.FinishError && len(out.Tokens) == 0 {
		q.refusals--
		return
	}
	if out.Prefill != nil {
		local, _ := mapCount(out.Prefill, "num_local_cached_tokens")
		external, _ := mapCount(out.Prefill, "num_external_cached_tokens")
		q.rec.CachedTokens = local + external
	}
	if len(out.Tokens) > 0 {
		o.chunk(q, out.Tokens, at, st)
	}
	switch out.Finish {
	case protocol.Unfinished:
	case protocol.FinishAbort:
		o.endAborted(q, false)
	default:
		q.stop = o.stopReason(q.stop, out.StopReason)
		q.rec.Error = o.requestError(ev, out)
		o.endDone(q, trace.FinishReason(out.Finish-1)) // the wire's code
	}
}

// stray counts an output for no request in flight.
func (o *Observer) stray(ev *Event, out *protocol.RequestOutput) {
	if o.finished.has(out.ID) {
		o.counts.Late.Add(1)
		return
	}
	o.counts.Unknown.Add(1)
	o.warn(ev, "an output for a request that never arrived", nil, "request", string(out.ID))
}

// chunk adds the tokens that came with one output.
func (o *Observer) chunk(q *request, tokens []uint32, at moment, st step) {
	if q.chunks == 0 {
		q.first, q.era = at, o.clock.era
	} else {
		q.gaps = append(q.gaps, gap{wait: at.tap - q.last.tap, own: at.engine - q.last.engine, tokens: uint32(len(tokens)), step: st})
	}
	q.last = at
	q.chunks++
	q.count += len(tokens)
	o.tokens += uint64(len(tokens))
	if o.opt.RecordTokens {
		q.tokens = append(q.tokens, tokens...)
	}
}

// stopReason renders a stop_reason: a token id, or a string, which is content.
func (o *Observer) stopReason(b, raw []byte) []byte {
	cur := pack.NewCursor(raw)
	switch kind := cur.Kind(); {
	case kind == pack.Int, kind == pack.String && o.opt.RecordTokens:
		b, _ = cur.AppendJSON(b) // it is well formed
	}
	return b
}

// requestError is why an output ends its request with an error. Its message may quote
// the request, so it is content.
func (o *Observer) requestError(ev *Event, out *protocol.RequestOutput) *trace.RequestError {
	if out.Finish != protocol.FinishError || out.Error == nil {
		return nil
	}
	e, err := protocol.DecodeRequestError(out.Error)
	if err != nil {
		o.undecodable(ev, "the error of an output", err)
		return nil
	}
	if !o.opt.RecordTokens {
		e.Message = ""
	}
	return &trace.RequestError{Code: e.Code, Message: strings.ToValidUTF8(e.Message, "\ufffd"), Retryable: e.Retryable}
}

func (o *Observer) endDone(q *request, reason trace.FinishReason) {
	o.counts.Done.Add(1)
	o.write(q, reason)
	o.end(q)
}

// endAborted ends a request that did not come to its end. What the engine sent until the
// frontend ended it is recorded as such.
func (o *Observer) endAborted(q *request, byFrontend bool) {
	o.counts.Aborted.Add(1)
	q.rec.EndedByFrontend = byFrontend
	if o.opt.RecordAborted || byFrontend && q.chunks > 0 && !q.session {
		o.write(q, trace.FinishAbort)
	} else {
		o.counts.Unrecorded.Add(1)
	}
	o.end(q)
}

// end forgets a request in flight.
func (o *Observer) end(q *request) {
	o.counts.InFlight.Add(-1)
	delete(o.tracked, q.id)
	o.finished.add(q.id)
	q.live = false
	o.ended = append(o.ended, q)
}

// write completes the record of q and writes it.
func (o *Observer) write(q *request, reason trace.FinishReason) {
	rec := q.rec
	arrival := o.sinceZero(q.arrival)
	rec.ArrivalMs, rec.FinishReason, rec.OutputTokens = &arrival, reason, q.count
	o.gaps.fill(q.gaps)
	rec.ITLMs, rec.ITLCtx = o.gaps.waits, &o.gaps.ctx
	if q.chunks > 0 {
		rec.TTFTMs = ms(q.first.tap - q.arrival)
		o.useEngineClock(&rec, q)
	}
	if o.gaps.several {
		rec.ITLTokens = o.gaps.tokens
	}
	if len(rec.BlockHashes) == 0 {
		rec.BlockHashes = nil
	}
	if o.opt.RecordTokens {
		rec.OutputTokenIDs = orEmpty(q.tokens)
	}
	if len(rec.PromptTokenIDs) == 0 {
		rec.PromptTokenIDs = nil
	}
	o.files.record(&rec, q)
}

// keptDifference is from where on the times of both clocks are kept, ms.
const keptDifference = 1

// useEngineClock replaces the times of a record, which are the tap's, by those of the engine's clock where this is usable.
func (o *Observer) useEngineClock(rec *trace.Record, q *request) {
	if rec.EngineClock = o.clock.state; !o.clock.usable(q.era) {
		if rec.EngineClock == trace.ClockUsed {
			rec.EngineClock = trace.ClockAnother // it has jumped during the request
		}
		return
	}
	first := max(ms(q.first.engine+o.clock.offset-q.arrival), 0)
	differ := math.Abs(first-rec.TTFTMs) > keptDifference
	for i, own := range o.gaps.own {
		differ = differ || math.Abs(own-o.gaps.waits[i]) > keptDifference
	}
	if differ {
		o.gaps.tap = trace.TapTimes{TTFTMs: rec.TTFTMs, ITLMs: o.gaps.waits}
		rec.TapTimes = &o.gaps.tap
	}
	rec.TTFTMs, rec.ITLMs = first, o.gaps.own
}

func orEmpty[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

// recordGaps are the gaps of one record, each property on its own.
type recordGaps struct {
	waits   []float64 // ms, on the tap's clock
	own     []float64 // on the engine's
	tap     trace.TapTimes
	tokens  []uint32
	several bool // one brought more than one token
	ctx     trace.ITLCtx
}

func (r *recordGaps) fill(gaps []gap) {
	if cap(r.waits) > keptGaps {
		*r = recordGaps{}
	}
	r.waits, r.own, r.tokens, r.several = orEmpty(r.waits[:0]), orEmpty(r.own[:0]), r.tokens[:0], false
	r.ctx.NumRunning, r.ctx.PrefillTokens = r.ctx.NumRunning[:0], r.ctx.PrefillTokens[:0]
	for i := range gaps {
		g := &gaps[i]
		r.waits, r.own = append(r.waits, ms(g.wait)), append(r.own, ms(g.own))
		r.tokens = append(r.tokens, g.tokens)
		r.several = r.several || g.tokens > 1
		r.ctx.NumRunning = append(r.ctx.NumRunning, g.running)
		r.ctx.PrefillTokens = append(r.ctx.PrefillTokens, g.prefill)
	}
}

// lose gives up the requests that an unreadable answer names, or all that it may
// name: their records would lack tokens without a sign of it.
func (o *Observer) lose(ev *Event, frame []byte) {
	ids, ok := answeredIDs(frame)
	lost := 0
	for _, q := range o.tracked {
		if ok && !ids[q.id] || !ok && q.client != ev.Client {
			continue
		}
		o.end(q)
		lost++
	}
	if lost > 0 {
		o.counts.Lost.Add(uint64(lost))
		o.warn(ev, "requests left out because an answer of theirs could not be read", nil, "requests", lost)
	}
}

// answeredIDs reads only the ids of an envelope's outputs, whatever line it is
// of.
func answeredIDs(frame []byte) (map[string]bool, bool) {
	cur := pack.NewCursor(frame)
	if n, err := cur.ArrayLen(); err != nil || n < 2 || cur.Skip() != nil {
		return nil, false
	}
	n, err := cur.ArrayLen()
	if err != nil {
		return nil, false
	}
	ids := make(map[string]bool, n)
	for range n {
		output, err := cur.Raw()
		if err != nil {
			return nil, false
		}
		in := pack.NewCursor(output)
		if fields, err := in.ArrayLen(); err != nil || fields == 0 {
			return nil, false
		}
		id, err := in.StrString()
		if err != nil {
			return nil, false
		}
		ids[id] = true
	}
	return ids, true
}
