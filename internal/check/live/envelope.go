package live

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/frontends/coreclient"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// receive takes one message of the engine and checks what holds of every one.
func (l *live) receive() error { return l.receiveOr(nil) }

// receiveOr does something when nothing comes for a while.
func (l *live) receiveOr(quiet func()) error {
	begun := time.Now()
	aux, err := l.s.Next(l.ctx, l.env, &l.out, l.awaited(quiet))
	if errors.Is(err, coreclient.ErrUndecodable) {
		l.messages++
		l.unreadable(err, l.s.Front.Last(l.s.Front.From()))
		l.invariant.Lose()
		return errUnreadable
	}
	if errors.As(err, new(check.MessageError)) { // it is known why the engine is silent
		return l.s.WithOutput(err)
	}
	if err != nil {
		return l.s.WithOutput(l.s.Explain(err))
	}
	l.messages++
	l.longest = max(l.longest, time.Since(begun))
	l.answered = l.answered || len(l.out.Outputs) > 0
	from := l.s.Front.From()
	l.from = from
	l.read(aux, l.s.Front.Last(from))
	l.impossible = append(l.impossible, l.invariant.Said(l.messages, from, l.s.Front.Last(from))...)
	if l.noise > check.MaxSurplus {
		return check.ErrFlood
	}
	return nil
}

func (l *live) unreadable(err error, frames [][]byte) {
	l.fail("", check.Failed(check.CodeUndecodable, "message %d: %v", l.messages, err).Within(l.messages, ""))
	l.checkLayout(frames)
}

// read checks the message that was decoded last; frames are all of it, aux those after the first.
func (l *live) read(aux, frames [][]byte) {
	for i := range l.out.Outputs {
		l.take(&l.out.Outputs[i], aux)
	}
	l.checkEnvelope()
	l.takeAnswer()
	l.checkLayout(frames)
}

// checkEnvelope looks at what a real frontend looks at: it dies of an envelope that
// is of none of its kinds (rust/src/engine-core-client), or that lacks what it needs
// of the statistics.
func (l *live) checkEnvelope() {
	o := &l.out
	if o.EngineIndex != l.s.Engine.Index {
		l.fail("", check.Failed(check.CodeEngineIndex, "message %d: engine_index is %d, but engine %d registered", l.messages, o.EngineIndex, l.s.Engine.Index).
			Within(l.messages, "EngineCoreOutputs.engine_index").Compared(l.s.Engine.Index, o.EngineIndex))
	}
	if before := l.timestamp[l.from]; o.Timestamp <= 0 || o.Timestamp < before {
		l.fail("", check.Failed(CodeTimestamp, "message %d: timestamp %v comes after %v: the engine has to take it from a monotonic clock", l.messages, o.Timestamp, before).
			Within(l.messages, "EngineCoreOutputs.timestamp").Compared(fmt.Sprintf("at least %v", before), o.Timestamp))
	}
	l.timestamp[l.from] = max(l.timestamp[l.from], o.Timestamp)
	batch := len(o.Outputs) > 0 || o.SchedulerStats != nil || len(o.FinishedRequests) > 0
	switch {
	case o.WaveComplete >= 0 || o.StartWave >= 0:
		l.envelope("wave_complete and start_wave are for a coordinator, this is a client")
	case o.Utility != nil && batch:
		l.envelope("the answer to a utility call stands alone")
	case o.Utility == nil && !batch:
		l.envelope("it has neither outputs, nor statistics, nor finished requests, nor the answer to a call")
	}
	if o.SchedulerStats != nil {
		l.takeStats(o.SchedulerStats)
	}
	for _, id := range o.FinishedRequests {
		if a := l.asks[string(id)]; a != nil && !a.closed && !a.aborted {
			l.envelope(fmt.Sprintf("finished_requests names %s before its last output", a.id))
		}
	}
}

func (l *live) envelope(why string) {
	l.noise++
	l.fail(why, check.Failed(CodeEnvelope, "message %d: %s: a real frontend ends when it gets this message", l.messages, why).Within(l.messages, "EngineCoreOutputs"))
}

// gauges are the values of scheduler_stats that say how things are.
type gauges struct {
	running, waiting int64
	usage            float64
}

// takeStats reads the gauges, and finds out what a frontend would miss.
func (l *live) takeStats(raw []byte) {
	l.statsSeen++
	shape, err := check.ShapeOf(raw)
	if err != nil {
		l.statistics("", fmt.Sprintf("it is no map with text keys: %v", err))
		return
	}
	for _, key := range protocol.NeededKeys("SchedulerStats") {
		if _, ok := shape[key]; !ok {
			l.statistics(key, "it is missing, and a real frontend dies of that")
		}
	}
	for _, key := range protocol.NeededKeys("PrefixCacheStats") {
		if _, ok := shape["prefix_cache_stats."+key]; !ok && shape["prefix_cache_stats"] == pack.Map {
			l.statistics("prefix_cache_stats."+key, "it is missing, and a real frontend dies of that")
		}
	}
	stats := protocol.ViewOf(raw)
	usage, _ := stats.Field("kv_cache_usage").Float()
	l.gauges = gauges{running: stats.Field("num_running_reqs").Count(), waiting: stats.Field("num_waiting_reqs").Count(), usage: usage}
	open := int64(len(l.asks))
	if g := l.gauges; min(g.running, g.waiting) < 0 || g.running+g.waiting > open || g.usage < 0 || g.usage > 1 {
		l.statistics("num_running_reqs", fmt.Sprintf("%d running, %d waiting, KV cache usage %v: of %d requests ever sent", g.running, g.waiting, g.usage, open))
	}
}

func (l *live) statistics(key, why string) {
	path := "EngineCoreOutputs.scheduler_stats"
	if key != "" {
		path += "." + key
	}
	l.fail(key, check.Failed(CodeStatistics, "message %d: scheduler_stats: %s: %s", l.messages, key, why).Within(l.messages, path))
}

// takeAnswer keeps the answer to a call.
func (l *live) takeAnswer() {
	u := l.out.Utility
	if u == nil {
		return
	}
	if waiting, asked := l.calls[u.CallID]; !asked || waiting != nil {
		l.noise++
		l.fail("", check.Failed(CodeUtilityAnswer, "message %d: an answer to call %d, which the frontend did not make: a Python frontend ends when it gets it", l.messages, u.CallID).
			Within(l.messages, "EngineCoreOutputs.utility_output.call_id"))
		return
	}
	answer := *u
	answer.Result = slices.Clone(u.Result)
	l.calls[u.CallID] = &answer
}

// call makes a utility call and receives until it is answered. The upper half of the ids is as good as the lower one: a Python
// frontend uses it. An engine reads its input in order and answers a call at once: if it answers two requests that were sent
// after the call, no answer to that will come.
func (l *live) call(method string, args ...[]byte) (*protocol.UtilityOutput, error) {
	id := uint64(1)<<63 + uint64(len(l.calls))
	l.calls[id] = nil
	call := protocol.UtilityCall{ClientIndex: l.client, CallID: id, Method: method, Args: args}
	l.invariant.Call(call)
	payload := protocol.AppendUtilityCall(nil, call)
	if err := l.s.Front.SendRaw(l.client, []byte{protocol.TypeUtility}, payload); err != nil {
		return nil, l.s.Explain(err)
	}
	var after []*ask
	begun := time.Now()
	quiet := func() {
		if len(after) == 0 || after[len(after)-1].closed {
			if a, err := l.ask(l.prompt(3), greedy(1)); err == nil {
				after = append(after, a)
			}
		}
	}
	if l.record != nil {
		quiet = nil // the engine has recorded requests only
	} else if l.mute {
		quiet()
	}
	for l.calls[id] == nil {
		if n := len(after); n > 0 && after[n-1].closed {
			if n == 2 {
				l.mute = true
				l.unanswered(method, fmt.Errorf("utility call %s was not answered, and two requests after it were: an engine answers every call, an unknown one with a failure", method))
				return nil, errUnanswered
			}
			quiet()
		}
		if err := l.receiveOr(quiet); check.CodeOf(err) == check.CodeSilence {
			l.unanswered(method, check.Unanswered(method, time.Since(begun).Round(100*time.Millisecond)))
			return nil, errUnanswered
		} else if errors.As(err, new(check.MessageError)) {
			return nil, err
		} else if err != nil {
			return nil, fmt.Errorf("%w; the call of %s is not answered", err, method)
		}
	}
	return l.calls[id], nil
}

func (l *live) unanswered(method string, err error) {
	l.fail(method, check.Failed(check.CodeUtility, "%v", err).Within(-1, "EngineCoreOutputs.utility_output").Compared("an answer", "no answer"))
}

// barrier returns when the engine has read all that it was sent, and what it said before has been received: by a call, or by a
// request to an engine that answers none.
func (l *live) barrier() error {
	if l.mute {
		_, err := l.askAndAwait(l.prompt(3), greedy(1))
		return err
	}
	_, err := l.call(check.LastCall)
	if errors.Is(err, errUnanswered) && l.mute {
		return nil // what was sent after the call was answered
	}
	return err
}

// checkLayout checks a message, whether it decodes or not.
func (l *live) checkLayout(frames [][]byte) {
	for _, m := range check.OutputsLayout(l.codec, frames) {
		if m.Unknown {
			continue
		}
		l.fail(check.LayoutPlace(m), check.LayoutProblem(fmt.Sprintf("message %d", l.messages), m).Within(l.messages, m.Path))
	}
}

// awaited says what the suite waits for.
func (l *live) awaited(quiet func()) check.Wait {
	return check.Wait{Quiet: quiet, First: !l.answered, Short: l.short, What: l.open}
}

// open is the first request that is open.
func (l *live) open() (string, *protocol.Request) {
	for _, id := range slices.Sorted(maps.Keys(l.asks)) {
		if a := l.asks[id]; !a.closed && !a.aborted {
			return "an output of " + id, a.request
		}
	}
	return "the answer to a call", nil
}
