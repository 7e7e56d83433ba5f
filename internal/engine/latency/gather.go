package latency

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/vllm-vcr/conformance/trace"
)

// gathered is what the recordings hold, taken apart.
type gathered struct {
	points   []point
	records  [][]gap // of the records that tell which prompts ended beside them
	marginal [concurrencyBuckets][]float64
	donors   grid
	stalls   stalls
	lengths  []float64
	sizes    sizes
	steps    []step // whole steps of the engine, where the recordings show them
	notes    []string
}

// gather takes the recordings apart. Errors name the file and the line.
func gather(traces []*trace.Trace, budget int) (*gathered, error) {
	records, gaps := 0, false
	for _, t := range traces {
		for i := range t.Records {
			r := &t.Records[i]
			if err := check(r); err != nil {
				return nil, fmt.Errorf("%s: %w", place(t, r), err)
			}
			records++
			gaps = gaps || len(r.ITLMs) > 0 || r.ITLSummary != nil && r.ITLSummary.Count > 0
		}
	}
	switch {
	case records == 0:
		return nil, fmt.Errorf("%s: no records: nothing to learn times from", names(traces))
	case !gaps:
		return nil, fmt.Errorf("%s: no inter-token times: no record has an itl_ms or itl_summary with any",
			names(traces))
	}
	g := &gathered{sizes: sizesOf(traces)}
	for _, t := range traces {
		g.trace(t)
		g.steps = append(g.steps, stepsOf(t.Records, budget)...)
	}
	g.finish()
	return g, nil
}

// finish sorts what was gathered.
func (g *gathered) finish() {
	g.donors.finish()
	g.stalls.finish()
	for i := range g.marginal {
		slices.Sort(g.marginal[i])
	}
	slices.Sort(g.lengths)
}

func names(traces []*trace.Trace) string {
	s := ""
	for i, t := range traces {
		if i > 0 {
			s += ", "
		}
		s += t.Name
	}
	return cmp.Or(s, "no recording")
}

func place(t *trace.Trace, r *trace.Record) string {
	if r.Line == 0 {
		return t.Name
	}
	return fmt.Sprintf("%s:%d", t.Name, r.Line)
}

// mostTokens bounds the prompts that are learned from; no model has as many positions.
const mostTokens = math.MaxInt32

// check refuses what a reader of files never returns, but another caller may.
func check(r *trace.Record) error {
	if math.IsNaN(r.TTFTMs) || math.IsInf(r.TTFTMs, 0) {
		return fmt.Errorf("ttft_ms is %v: want a number", r.TTFTMs)
	}
	for i, ms := range r.ITLMs {
		if math.IsNaN(ms) || math.IsInf(ms, 0) {
			return fmt.Errorf("itl_ms[%d] is %v: want a number", i, ms)
		}
	}
	if s := r.ITLSummary; s != nil && (math.IsNaN(s.MeanMs) || math.IsInf(s.MeanMs, 0)) {
		return fmt.Errorf("itl_summary.mean_ms is %v: want a number", s.MeanMs)
	}
	if r.PromptTokens > mostTokens || r.OutputTokens > mostTokens {
		return fmt.Errorf("%d prompt and %d output tokens: want at most %d", r.PromptTokens, r.OutputTokens, mostTokens)
	}
	return r.Validate()
}

// trace adds the records of one recording.
func (g *gathered) trace(t *trace.Trace) {
	warm := warmUp(t.Records)
	if len(warm) > 0 {
		g.note("%s: %d requests at the start are left out of the times to the first token: the engine was warming up",
			t.Name, len(warm))
	}
	alone, backward := aloneOf(t.Records), 0
	for i := range t.Records {
		r := &t.Records[i]
		if r.OutputTokens == 0 { // no first token: its time says nothing
			continue
		}
		g.lengths = append(g.lengths, float64(r.OutputTokens))
		if r.TTFTMs < 0 {
			backward++
		} else if !warm[i] {
			g.points = append(g.points, point{r.PromptTokens, uncachedOf(r), r.TTFTMs, concurrencyOf(r), alone[i]})
		}
		gaps, dropped := gapsOf(r)
		backward += dropped
		g.gaps(r, gaps)
	}
	if backward > 0 {
		g.note("%s: %d negative times are left out: the clock of the recording went back", t.Name, backward)
	}
}

func (g *gathered) note(format string, args ...any) {
	g.notes = append(g.notes, fmt.Sprintf(format, args...))
}

// gaps adds what lay between the chunks of a record.
func (g *gathered) gaps(r *trace.Record, gaps []gap) {
	concurrency := concurrencyOf(r)
	column := concurrencyBucket(concurrency)
	if r.ITLMs == nil {
		if s := r.ITLSummary; s != nil && s.Count > 0 && s.MeanMs >= 0 {
			g.marginal[column] = append(g.marginal[column], s.MeanMs)
			g.donors.add(donor{steps: []sample{{s.MeanMs, 1}}, weight: float64(s.Count)}, r.PromptTokens, concurrency, false)
		}
		return
	}
	for _, gap := range gaps {
		g.marginal[column] = append(g.marginal[column], gap.ms)
		if gap.prefill > 0 {
			g.stalls.add(gap, concurrency)
		}
	}
	if r.ITLCtx != nil {
		g.records = append(g.records, gaps)
	}
	if d, ok := newDonor(gaps, r.ITLCtx != nil); ok {
		g.donors.add(d, r.PromptTokens, concurrency, churned(gaps))
	}
}

// gapsOf returns the gaps of a record, without those that are negative, and how many
// these are.
func gapsOf(r *trace.Record) (gaps []gap, dropped int) {
	for i, ms := range r.ITLMs {
		if ms < 0 {
			dropped++
			continue
		}
		g := gap{ms: ms, tokens: 1}
		if i < len(r.ITLTokens) {
			g.tokens = int(r.ITLTokens[i])
		}
		if r.ITLCtx != nil {
			g.prefill, g.running = int(r.ITLCtx.PrefillTokens[i]), int(r.ITLCtx.NumRunning[i])
		}
		gaps = append(gaps, g)
	}
	return gaps, dropped
}

func uncachedOf(r *trace.Record) int { return max(r.PromptTokens-r.CachedTokens, 1) }

// concurrencyOf counts the request itself where a recording does not.
func concurrencyOf(r *trace.Record) int {
	return int(min(max(r.Concurrency, 1), mostTokens))
}

const (
	// A first request that took more than so many times what the others make one
	// expect, of at least so many others, met an engine that was warming up.
	warmUpFactor = 4
	warmUpOthers = 3
)

// warmUp returns the records, at the start of a recording, that took much longer than
// the later ones tell, by their index.
func warmUp(records []trace.Record) map[int]bool {
	order := trace.ReplaySubset(records)
	if len(order) < len(records) {
		order = order[:0]
		for i := range records {
			order = append(order, i)
		}
	}
	order = slices.DeleteFunc(order, func(i int) bool { return records[i].OutputTokens == 0 || records[i].TTFTMs < 0 })
	warm := make(map[int]bool)
	for n, i := range order {
		others := order[n+1:]
		if len(others) < warmUpOthers {
			break
		}
		if records[i].TTFTMs <= warmUpFactor*expected(records, others, uncachedOf(&records[i])) {
			break
		}
		warm[i] = true
	}
	return warm
}

// expected is the median time to the first token of the others, each stretched by how
// much larger a prompt of u computed tokens is than theirs.
func expected(records []trace.Record, others []int, u int) float64 {
	times := make([]float64, 0, len(others))
	for _, i := range others {
		r := &records[i]
		times = append(times, r.TTFTMs*max(1, float64(u)/float64(uncachedOf(r))))
	}
	slices.Sort(times)
	return times[len(times)/2]
}

// aloneOf tells for each record whether it is known to have met an idle engine and waited
// for its first token alone.
func aloneOf(records []trace.Record) []bool {
	alone := make([]bool, len(records))
	order := trace.ReplaySubset(records)
	for n, i := range order {
		r := &records[i]
		others := n+1 < len(order) && *records[order[n+1]].ArrivalMs < *r.ArrivalMs+r.TTFTMs
		alone[i] = !others && concurrencyOf(r) == 1
	}
	return alone
}
