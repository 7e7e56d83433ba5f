package inspect

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"

	"github.com/vllm-vcr/conformance/trace"
)

// PerfettoOptions choose what of a timeline is written for Perfetto.
type PerfettoOptions struct {
	// PerRequest gives each request a track of its own. Otherwise a track is a slot, and a request has the lowest that
	// is free when it comes.
	PerRequest bool
	// Steps are the step statistics of the trace, nil if there are none.
	Steps *trace.StepReader
}

// The processes of Perfetto that have the tracks.
const (
	pidRequests = 1
	pidEngine   = 2
)

// Perfetto writes the timeline in the Trace Event Format of Chrome, which https://ui.perfetto.dev opens: a track for each slot with
// the requests on it, an arrow from each turn of a conversation to the next one, and the counters and steps of the engine. Time 0 is
// the first request that is shown.
func (t *Timeline) Perfetto(w io.Writer, opt PerfettoOptions) error {
	e := &events{out: bufio.NewWriterSize(w, 1<<16), zero: t.from}
	e.json = json.NewEncoder(e.out)
	e.out.WriteString(`{"displayTimeUnit":"ms","traceEvents":[` + "\n")
	title := "requests of " + t.Name
	if model := trace.Or(t.meta.Model, ""); model != "" {
		title += " (" + model + ")"
	}
	e.name("process_name", pidRequests, 0, title)
	e.name("process_name", pidEngine, 0, "engine")
	lanes := t.tracks(e, opt.PerRequest)
	for n, i := range t.order {
		t.requestEvents(e, lanes[n], &t.all[i])
	}
	t.flows(e, lanes)
	if opt.Steps != nil {
		if err := t.recordedSteps(e, opt.Steps); err != nil {
			return err
		}
	} else {
		t.loadCounters(e)
		t.inferredSteps(e)
	}
	e.out.WriteString("]}\n")
	return cmp.Or(e.err, e.out.Flush())
}

// tracks names the tracks, and returns that of each request, from 1.
func (t *Timeline) tracks(e *events, perRequest bool) []int32 {
	lanes, count := t.lanes()
	if perRequest {
		count = len(lanes)
	}
	for n := range lanes {
		if perRequest {
			lanes[n] = int32(n)
		}
		lanes[n]++
	}
	for lane := 1; lane <= count; lane++ {
		name := "slot " + strconv.Itoa(lane)
		if perRequest {
			r := &t.all[t.order[lane-1]]
			name = fmt.Sprintf("request %d (%d prompt, %d output)", r.index, r.prompt, r.output)
		}
		e.name("thread_name", pidRequests, lane, name)
		e.write(traceEvent{Phase: "M", PID: pidRequests, TID: lane, Name: "thread_sort_index", Args: args{"sort_index": lane}})
	}
	return lanes
}

// requestEvents are the spans of a request: the whole, and in it what it waited for, its prompt and its outputs.
func (t *Timeline) requestEvents(e *events, lane int32, r *row) {
	first, last := r.shown()
	about := args{"prompt_tokens": r.prompt, "cached_tokens": r.cached, "output_tokens": r.output, "ttft_ms": micro(r.first - r.arrival)}
	if r.finish != trace.FinishAbsent {
		about["finish_reason"] = r.finish.String()
	}
	e.span(pidRequests, int(lane), "request "+strconv.Itoa(int(r.index)), "request", r.arrival, last, about)
	if r.isInferred {
		prefill := min(max(r.prefill, r.arrival), first)
		e.plain(int(lane), "queued", r.arrival, prefill)
		e.plain(int(lane), "prefill", prefill, first)
		from := prefill
		for _, c := range t.steps.chunks[r.chunks : r.chunks+r.chunkCount] {
			to := min(max(t.steps.endMs(int(c.step)), from), first)
			e.span(pidRequests, int(lane), "prefill chunk", "prefill", from, to, args{"tokens": c.tokens})
			from = to
		}
	} else {
		e.plain(int(lane), "waits for the first token", r.arrival, first)
	}
	if r.output == 0 || last <= first {
		return
	}
	e.plain(int(lane), "decode", first, last)
	if t.many {
		return
	}
	at := first
	for k := r.gaps; k < r.gaps+r.gapCount; k++ {
		to := min(max(at+t.gaps[k], at), last)
		e.span(pidRequests, int(lane), "output", "decode", at, to, args{"tokens": t.sizes[k]})
		at = to
	}
}

// flows are the arrows from each turn of a conversation to the next one.
func (t *Timeline) flows(e *events, lanes []int32) {
	lane := make([]int32, len(t.all)) // by row, 0 for those that are not shown
	for n, i := range t.order {
		lane[i] = lanes[n]
	}
	for _, i := range t.order {
		r := &t.all[i]
		if r.parent < 0 || lane[r.parent] == 0 {
			continue
		}
		parent := &t.all[r.parent]
		_, end := parent.shown()
		// An arrow begins inside the span that it belongs to, so one nanosecond before its end.
		e.flow("s", "", int(lane[r.parent]), i, max(end-1e-6, parent.arrival))
		e.flow("f", "e", int(lane[i]), i, r.arrival)
	}
}

// loadCounters count the requests that wait and those that are answered, as the trace shows without step statistics. Of the changes to
// come only those of requests in flight are in memory.
func (t *Timeline) loadCounters(e *events) {
	var waiting, running int64
	pending := queue[change]{less: func(a, b change) bool { return a.at < b.at }}
	at, some := 0.0, false
	write := func() {
		e.counter("running", "requests", at, running)
		e.counter("waiting", "requests", at, waiting)
	}
	apply := func(c change) {
		if some && c.at != at {
			write()
		}
		at, some = c.at, true
		waiting, running = waiting+int64(c.waiting), running+int64(c.running)
	}
	for _, i := range t.order {
		r := &t.all[i]
		for pending.Len() > 0 && pending.items[0].at <= r.arrival {
			apply(pending.take())
		}
		first, last := r.shown()
		begun := first
		if r.isInferred {
			begun = min(max(r.prefill, r.arrival), first)
		}
		apply(change{r.arrival, 1, 0})
		pending.put(change{begun, -1, 1})
		pending.put(change{last, 0, -1})
	}
	for pending.Len() > 0 {
		apply(pending.take())
	}
	if some {
		write()
	}
}

// change is by how many more or fewer requests wait and run from a time on.
type change struct {
	at      float64
	waiting int8
	running int8
}

// inferredSteps are the steps that the times of the outputs show, and the tokens of each.
func (t *Timeline) inferredSteps(e *events) {
	s := &t.steps
	if len(s.ends) == 0 {
		return
	}
	e.name("thread_name", pidEngine, 1, "steps (inferred from the times of outputs)")
	for step := range s.ends {
		begin, end := s.begins[step], s.endMs(step)
		if end < t.from || begin > t.to {
			continue
		}
		decodes, prompts := int64(s.decodes[step]), int64(s.prompts[step])
		e.span(pidEngine, 1, stepName(decodes, prompts), "step", begin, end, args{"decode_tokens": decodes, "prompt_tokens": prompts})
		e.counter("batch", "tokens", begin, decodes+prompts)
		if step+1 == len(s.ends) || s.begins[step+1] > end {
			e.counter("batch", "tokens", end, 0)
		}
	}
}

// stepName is what a step computed.
func stepName(decodes, prompts int64) string {
	switch {
	case prompts == 0:
		return "decode"
	case decodes == 0:
		return "prefill"
	}
	return "prefill and decode"
}

// recordedSteps are the steps and counters of the step statistics. A line of them covers the time since the line
// before, if the engine had requests then.
func (t *Timeline) recordedSteps(e *events, r *trace.StepReader) error {
	e.name("thread_name", pidEngine, 1, "steps")
	return eachStep(r, func(before, now *trace.StepStats) {
		s := &now.Scheduler
		if now.TsMs < t.from || now.TsMs > t.to+1 {
			return
		}
		queries, hits := s.PrefixCache.Queries, s.PrefixCache.Hits
		prompts := max(queries-hits, 0)
		if queries > 0 {
			e.part("prefix cache hits", now.TsMs, float64(hits)/float64(queries))
		}
		if before != nil && isBusy(before) {
			e.span(pidEngine, 1, stepName(int64(s.Running), int64(prompts)), "step", max(before.TsMs, t.from), now.TsMs,
				args{"running": s.Running, "waiting": s.Waiting, "prompt_tokens": prompts, "cached_tokens": hits})
		}
		e.counter("running", "requests", now.TsMs, s.Running)
		e.counter("waiting", "requests", now.TsMs, s.Waiting)
		if spec := s.Spec; spec != nil && spec.DraftTokens > 0 {
			e.part("accepted drafts", now.TsMs, float64(spec.AcceptedTokens)/float64(spec.DraftTokens))
		}
		e.counter("batch", "tokens", now.TsMs, batchTokens(now, int64(prompts)))
		e.part("KV cache usage", now.TsMs, s.KVCacheUsage)
	})
}

// batchTokens are the tokens that a step computed. An engine with --enable-logging-iteration-details reports them. Otherwise they
// are the prompt tokens that were looked up in the prefix cache and not found, a token for each running request, and drafts.
func batchTokens(step *trace.StepStats, prompts int64) int64 {
	if exact := step.Scheduler.Iteration; exact != nil {
		return int64(exact.PrefillTokens + exact.GenerationTokens)
	}
	tokens := prompts + int64(step.Scheduler.Running)
	if spec := step.Scheduler.Spec; spec != nil {
		tokens += int64(spec.DraftTokens)
	}
	return tokens
}

// traceEvent is an event of the Trace Event Format. Times are in microseconds.
type traceEvent struct {
	Phase    string   `json:"ph"`
	PID      int      `json:"pid"`
	TID      int      `json:"tid"`
	Name     string   `json:"name"`
	Category string   `json:"cat,omitempty"`
	ID       *int32   `json:"id,omitempty"`
	At       float64  `json:"ts"`
	Duration *float64 `json:"dur,omitempty"`
	Binding  string   `json:"bp,omitempty"`
	Args     args     `json:"args,omitempty"`
}

type args map[string]any

// events writes events, one in a line.
type events struct {
	out  *bufio.Writer
	json *json.Encoder // to out
	zero float64
	some bool  // an event was written
	err  error // the first one
}

func (e *events) write(event traceEvent) {
	if e.some {
		e.out.WriteByte(',')
	}
	e.some = true
	if err := e.json.Encode(event); err != nil && e.err == nil {
		e.err = err
	}
}

// nanoseconds is a time since the beginning, in whole nanoseconds: spans that touch have the same end.
func (e *events) nanoseconds(ms float64) int64 { return wholeUnits(ms-e.zero, 1e6) }

// at is the time in microseconds of an event that does not begin before the others.
func (e *events) at(ms float64) float64 { return float64(max(e.nanoseconds(ms), 0)) / 1000 }

func (e *events) name(what string, pid, tid int, name string) {
	e.write(traceEvent{Phase: "M", PID: pid, TID: tid, Name: what, Args: args{"name": name}})
}

func (e *events) span(pid, tid int, name, category string, from, to float64, a args) {
	duration := float64(max(e.nanoseconds(to)-max(e.nanoseconds(from), 0), 0)) / 1000
	e.write(traceEvent{Phase: "X", PID: pid, TID: tid, Name: name, Category: category, At: e.at(from), Duration: &duration, Args: a})
}

// plain is a span of a request without arguments, left out if it takes no time.
func (e *events) plain(tid int, name string, from, to float64) {
	if e.nanoseconds(to) > e.nanoseconds(from) {
		e.span(pidRequests, tid, name, "request", from, to, nil)
	}
}

func (e *events) flow(phase, binding string, tid int, id int32, at float64) {
	e.write(traceEvent{
		Phase: phase, PID: pidRequests, TID: tid, Name: "next turn", Category: "conversation", ID: &id, At: e.at(at), Binding: binding,
	})
}

// counter is a value of a counter. Perfetto names it by both its name and its unit.
func (e *events) counter(name, unit string, at float64, value any) {
	e.write(traceEvent{Phase: "C", PID: pidEngine, Name: name, At: e.at(at), Args: args{unit: value}})
}

// part is a counter in percent.
func (e *events) part(name string, at, part float64) { e.counter(name, "%", at, micro(100*part)) }

// micro rounds to a thousandth.
func micro(v float64) float64 { return math.Round(v*1000) / 1000 }
