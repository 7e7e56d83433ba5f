package inspect

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/jsonout"
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

// The processes of Perfetto under which the tracks stand.
const (
	pidRequests = 1
	pidEngine   = 2
)

// Perfetto writes the timeline in the Trace Event Format of Chrome, which https://ui.perfetto.dev opens: a track for each slot with
// the requests on it, an arrow from each turn of a conversation to the next one, and the counters and steps of the engine. Time 0 is
// the first request that is shown.
func (t *Timeline) Perfetto(w io.Writer, opt PerfettoOptions) error {
	e := &events{out: bufio.NewWriterSize(w, 1<<16), zero: t.from}
	e.out.WriteString(`{"displayTimeUnit":"ms","traceEvents":[`)
	title := "requests of " + t.Name
	if model := trace.Or(t.meta.Model, ""); model != "" {
		title += " (" + model + ")"
	}
	e.name("process_name", pidRequests, 0, title)
	e.name("process_name", pidEngine, 0, "engine")
	lanes := t.tracks(e, opt.PerRequest)
	for n, i := range t.order {
		t.requestEvents(e, lanes[n], t.all.at(i))
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
	e.out.WriteString("\n]}\n")
	return e.out.Flush()
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
			r := t.all.at(t.order[lane-1])
			name = fmt.Sprintf("request %d (%d prompt, %d output)", r.index, r.prompt, r.said)
		}
		e.name("thread_name", pidRequests, lane, name)
		e.begin('M', pidRequests, lane, "thread_sort_index")
		e.args(number{"sort_index", int64(lane)})
		e.end()
	}
	return lanes
}

// requestEvents are the spans of a request: the whole, and in it what it waited for, its prompt and its outputs.
func (t *Timeline) requestEvents(e *events, lane int32, r *row) {
	first, last := r.shown()
	e.span(pidRequests, int(lane), "request "+strconv.Itoa(int(r.index)), "request", r.arrival, last)
	e.args(number{"prompt_tokens", int64(r.prompt)}, number{"cached_tokens", int64(r.cached)}, number{"output_tokens", int64(r.said)})
	e.argMs("ttft_ms", r.first-r.arrival)
	if r.finish != trace.FinishAbsent {
		e.argText("finish_reason", r.finish.String())
	}
	e.end()
	if r.isInferred {
		prefill := min(max(r.prefill, r.arrival), first)
		e.plain(int(lane), "queued", r.arrival, prefill)
		e.plain(int(lane), "prefill", prefill, first)
		from := prefill
		for _, c := range t.steps.chunks[r.chunks : r.chunks+r.chunkCount] {
			to := min(max(t.steps.endMs(int(c.step)), from), first)
			e.span(pidRequests, int(lane), "prefill chunk", "prefill", from, to)
			e.args(number{"tokens", int64(c.tokens)})
			e.end()
			from = to
		}
	} else {
		e.plain(int(lane), "waits for the first token", r.arrival, first)
	}
	if r.said == 0 || last <= first {
		return
	}
	e.plain(int(lane), "decode", first, last)
	if t.many {
		return
	}
	at := first
	for k := r.gaps; k < r.gaps+r.gapCount; k++ {
		to := min(max(at+t.gaps[k], at), last)
		e.span(pidRequests, int(lane), "output", "decode", at, to)
		e.args(number{"tokens", int64(t.sizes[k])})
		e.end()
		at = to
	}
}

// flows are the arrows from each turn of a conversation to the next one.
func (t *Timeline) flows(e *events, lanes []int32) {
	lane := make([]int32, t.all.count) // by row, 0 for those that are not shown
	for n, i := range t.order {
		lane[i] = lanes[n]
	}
	for _, i := range t.order {
		r := t.all.at(i)
		if r.parent < 0 || lane[r.parent] == 0 {
			continue
		}
		parent := t.all.at(r.parent)
		_, end := parent.shown()
		// An arrow begins inside the span that it belongs to, so one nanosecond before its end.
		e.flow('s', int(lane[r.parent]), i, max(end-1e-6, parent.arrival))
		e.flow('f', int(lane[i]), i, r.arrival)
	}
}

// loadCounters count the requests that wait and those that are answered, as the trace tells without step statistics. Of the changes to
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
		r := t.all.at(i)
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
		e.span(pidEngine, 1, stepName(decodes, prompts), "step", begin, end)
		e.args(number{"decode_tokens", decodes}, number{"prompt_tokens", prompts})
		e.end()
		e.counter("batch", "tokens", begin, decodes+prompts)
		if step+1 == len(s.ends) || s.begins[step+1] > end {
			e.counter("batch", "tokens", end, 0)
		}
	}
}

// stepName tells what a step computed.
func stepName(decodes, prompts int64) string {
	switch {
	case prompts == 0:
		return "decode"
	case decodes == 0:
		return "prefill"
	}
	return "prefill and decode"
}

// recordedSteps are the steps and counters of the step statistics. A line of them stands for the time since the line
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
			e.span(pidEngine, 1, stepName(int64(s.Running), int64(prompts)), "step", max(before.TsMs, t.from), now.TsMs)
			e.args(number{"running", int64(s.Running)}, number{"waiting", int64(s.Waiting)}, number{"prompt_tokens", int64(prompts)}, number{"cached_tokens", int64(hits)})
			e.end()
		}
		e.counter("running", "requests", now.TsMs, int64(s.Running))
		e.counter("waiting", "requests", now.TsMs, int64(s.Waiting))
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

// events writes events of the Trace Event Format, one in a line. The writer keeps its first error.
type events struct {
	out     *bufio.Writer
	zero    float64
	buf     []byte
	some    bool // an event was written
	hasArgs bool // the event has an argument
}

// nanoseconds is a time since the beginning, in whole nanoseconds: spans that touch have the same end.
func (e *events) nanoseconds(ms float64) int64 { return wholeUnits(ms-e.zero, 1e6) }

// begin begins an event. The name is a text of this program.
func (e *events) begin(kind byte, pid, tid int, name string) {
	e.buf = e.buf[:0]
	if e.some {
		e.buf = append(e.buf, ',')
	}
	e.some, e.hasArgs = true, false
	e.buf = fmt.Appendf(e.buf, "\n{\"ph\":\"%c\",\"pid\":%d,\"tid\":%d,\"name\":\"%s\"", kind, pid, tid, name)
}

func (e *events) time(key string, ns int64) {
	e.buf = fmt.Appendf(e.buf, ",\"%s\":%d", key, ns/1000)
	if rest := ns % 1000; rest != 0 {
		e.buf = fmt.Appendf(e.buf, ".%03d", rest)
	}
}

func (e *events) arg(name string) {
	before := ",\"args\":{"
	if e.hasArgs {
		before = ","
	}
	e.hasArgs = true
	e.buf = fmt.Appendf(e.buf, "%s\"%s\":", before, name)
}

type number struct {
	name  string
	value int64
}

func (e *events) args(numbers ...number) {
	for _, n := range numbers {
		e.arg(n.name)
		e.buf = strconv.AppendInt(e.buf, n.value, 10)
	}
}

func (e *events) argMs(name string, ms float64) {
	e.arg(name)
	e.buf = strconv.AppendFloat(e.buf, math.Round(ms*1000)/1000, 'f', -1, 64)
}

// argText adds a text, which may be foreign.
func (e *events) argText(name, text string) {
	e.arg(name)
	quoted, err := jsonout.Line(text)
	if err != nil { // a text always has one
		quoted = []byte(`""`)
	}
	e.buf = append(e.buf, strings.TrimSuffix(string(quoted), "\n")...)
}

func (e *events) end() {
	if e.hasArgs {
		e.buf = append(e.buf, '}')
	}
	e.buf = append(e.buf, '}')
	e.out.Write(e.buf)
}

func (e *events) name(what string, pid, tid int, name string) {
	e.begin('M', pid, tid, what)
	e.argText("name", name)
	e.end()
}

func (e *events) span(pid, tid int, name, category string, from, to float64) {
	e.begin('X', pid, tid, name)
	e.buf = fmt.Appendf(e.buf, ",\"cat\":\"%s\"", category)
	begin := max(e.nanoseconds(from), 0)
	e.time("ts", begin)
	e.time("dur", max(e.nanoseconds(to)-begin, 0))
}

// plain is a span of a request without arguments, left out if it takes no time.
func (e *events) plain(tid int, name string, from, to float64) {
	if e.nanoseconds(to) > e.nanoseconds(from) {
		e.span(pidRequests, tid, name, "request", from, to)
		e.end()
	}
}

func (e *events) flow(kind byte, tid int, id int32, at float64) {
	e.begin(kind, pidRequests, tid, "next turn")
	e.buf = fmt.Appendf(e.buf, ",\"cat\":\"conversation\",\"id\":%d", id)
	e.time("ts", max(e.nanoseconds(at), 0))
	if kind == 'f' {
		e.buf = append(e.buf, ",\"bp\":\"e\""...)
	}
	e.end()
}

// counter is a value of a counter. Perfetto names it by both its name and its unit.
func (e *events) counter(name, unit string, at float64, value int64) {
	e.begin('C', pidEngine, 0, name)
	e.time("ts", max(e.nanoseconds(at), 0))
	e.args(number{unit, value})
	e.end()
}

// part is a counter in percent.
func (e *events) part(name string, at, part float64) {
	e.begin('C', pidEngine, 0, name)
	e.time("ts", max(e.nanoseconds(at), 0))
	e.argMs("%", 100*part)
	e.end()
}
