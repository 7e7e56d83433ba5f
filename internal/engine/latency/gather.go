package latency

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sort"

	"github.com/vllm-vcr/conformance/trace"
)

// gathered is what the recordings hold, taken apart.
type gathered struct {
	points   []point
	records  [][]gap // of the records that tell which prompts ended beside them
	marginal [concurrencyBuckets][]float64
	donors   grid
	stalls   stalls
	sizes    sizes
	steps    []step // whole steps of the engine, where the recordings show them
	notes    []string
}

// gather takes the recordings apart. Errors name the file and the line.
func gather(traces []*trace.Trace, budget int) (*gathered, error) {
	records, gaps, means := 0, false, false
	for _, t := range traces {
		for i := range t.Records {
			r := &t.Records[i]
			if err := check(r); err != nil {
				return nil, fmt.Errorf("%s: %w", place(t, r), err)
			}
			records++
			gaps = gaps || len(r.ITLMs) > 0
			means = means || r.ITLSummary != nil
		}
	}
	switch {
	case records == 0:
		return nil, fmt.Errorf("%s: no records: nothing to learn times from", names(traces))
	case !gaps && means:
		return nil, fmt.Errorf("%s: only the mean of the gaps of each request (itl_summary), which is not the time of a step: learn from them with --latency-results",
			names(traces))
	case !gaps:
		return nil, fmt.Errorf("%s: no inter-token times: no record has an itl_ms with any", names(traces))
	}
	g := &gathered{sizes: sizesOf(traces)}
	for i, t := range traces {
		g.trace(t)
		steps := stepsOf(t.Records, budget)
		for j := range steps {
			steps[j].take = i
		}
		g.steps = append(g.steps, steps...)
	}
	g.donors.finish()
	for _, row := range g.stalls.cells {
		for _, times := range row {
			slices.Sort(times)
		}
	}
	for i := range g.marginal {
		slices.Sort(g.marginal[i])
	}
	return g, nil
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

// maxTokens bounds the prompts that are learned from; no model has as many positions.
const maxTokens = math.MaxInt32

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
	if r.PromptTokens > maxTokens || r.OutputTokens > maxTokens {
		return fmt.Errorf("%d prompt and %d output tokens: want at most %d", r.PromptTokens, r.OutputTokens, maxTokens)
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
	alone, backward, means := aloneOf(t.Records), 0, 0
	for i := range t.Records {
		r := &t.Records[i]
		if r.OutputTokens == 0 { // no first token: its time says nothing
			continue
		}
		if r.TTFTMs < 0 {
			backward++
		} else if !warm[i] {
			g.points = append(g.points, point{r.PromptTokens, uncachedOf(r), r.TTFTMs, concurrencyOf(r), alone[i]})
		}
		if r.ITLMs == nil && r.ITLSummary != nil {
			means++
		}
		gaps, dropped := gapsOf(r)
		backward += dropped
		g.gaps(r, gaps)
	}
	if means > 0 {
		g.note("%s: %d requests have only the mean of their gaps, which is not the time of a step: they are left out of the times of steps", t.Name, means)
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
		return // the mean of the gaps is not the time of a step
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
			g.prefill = int(r.ITLCtx.PrefillTokens[i])
		}
		gaps = append(gaps, g)
	}
	return gaps, dropped
}

func uncachedOf(r *trace.Record) int { return max(r.PromptTokens-r.CachedTokens, 1) }

// concurrencyOf counts the request itself where a recording does not.
func concurrencyOf(r *trace.Record) int {
	return int(min(max(r.Concurrency, 1), maxTokens))
}

const (
	// A first request that took more than so many times what the others make one
	// expect, of at least so many others, met an engine that was warming up.
	warmUpFactor = 4
	warmUpOthers = 3
)

// warmUp returns the records, at the start of a recording, that took much longer than
// the later ones let expect, by their index.
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

// aloneOf is for each record whether it is known to have met an idle engine and waited
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

// A gap is one recorded gap between chunks.
type gap struct {
	ms      float64
	tokens  int
	prefill int // tokens of the prompts that ended in the step, 0 where that was not recorded
}

// A sample is a step as a request saw it: how long, and how many tokens it got.
type sample struct {
	ms     float64
	tokens int
}

// A donor is a recorded request whose steps another may take over, sorted by time. It is
// picked as often as it has tokens.
type donor struct {
	steps  []sample
	weight float64
	until  float64 // of the weights of its cell up to and with it
}

// donorRows are the buckets of prompts, and again those recorded under churn: while
// large prompts came in one after the other.
const donorRows = 2 * promptBuckets

const (
	// A prompt of more tokens is large; a record is under churn if more than so many
	// of a hundred gaps had one.
	largePrompt  = 4096
	churnPercent = 6
)

func churned(gaps []gap) bool {
	large := 0
	for _, g := range gaps {
		if g.prefill > largePrompt {
			large++
		}
	}
	return 100*large > churnPercent*max(len(gaps), 1)
}

// newDonor takes the steps of a record in which no prompt ended, without outliers if
// the record has them. It reports whether any are left.
func newDonor(gaps []gap, marked bool) (donor, bool) {
	var d donor
	for _, g := range gaps {
		if g.prefill == 0 {
			d.steps = append(d.steps, sample{g.ms, g.tokens})
		}
	}
	slices.SortStableFunc(d.steps, func(x, y sample) int { return cmp.Compare(x.ms, y.ms) })
	if marked && len(d.steps) > 0 {
		most := 4 * d.steps[len(d.steps)/2].ms
		d.steps = d.steps[:sort.Search(len(d.steps), func(i int) bool { return d.steps[i].ms > most })]
	}
	for _, s := range d.steps {
		d.weight += float64(s.tokens)
	}
	return d, len(d.steps) > 0
}

// draw is a step of the donor: its time between two that were recorded, and what the
// nearer of these had.
func (d *donor) draw(u float64) sample {
	position := u * float64(len(d.steps)-1)
	i := int(position)
	if i+1 >= len(d.steps) {
		return d.steps[len(d.steps)-1]
	}
	lower, upper := d.steps[i], d.steps[i+1]
	part := position - float64(i)
	tokens := lower.tokens
	if part >= 0.5 {
		tokens = upper.tokens
	}
	return sample{lower.ms + part*(upper.ms-lower.ms), tokens}
}

// A grid has donors by the size of the prompt and the concurrency.
type grid struct {
	cells [donorRows][concurrencyBuckets][]donor
	// nearest is the cell that answers for each, row and column, or -1.
	nearest [donorRows][concurrencyBuckets][2]int8
}

func (g *grid) add(d donor, prompt, concurrency int, churn bool) {
	row := promptBucket(prompt)
	if churn {
		row += promptBuckets
	}
	cell := &g.cells[row][concurrencyBucket(concurrency)]
	d.until = d.weight
	if n := len(*cell); n > 0 {
		d.until += (*cell)[n-1].until
	}
	*cell = append(*cell, d)
}

// finish finds the nearest cell with donors for each. Calm and churn answer for each
// other only where one of them has no donors at all.
func (g *grid) finish() {
	for row := range g.nearest {
		own, other := 0, promptBuckets
		if row >= promptBuckets {
			own, other = other, own
		}
		for col := range g.nearest[row] {
			at := nearestCell(own, row, col, g.filled)
			if at[0] < 0 {
				at = nearestCell(other, row-own+other, col, g.filled)
			}
			g.nearest[row][col] = at
		}
	}
}

func (g *grid) filled(row, col int) bool { return len(g.cells[row][col]) > 0 }

// empty reports whether it has no donors.
func (g *grid) empty() bool { return g.nearest[0][0][0] < 0 }

// nearestCell is the filled cell of a half of the grid with the least distance in rows
// and columns together, of equals that with the least distance in rows; -1 without any.
func nearestCell(half, row, col int, filled func(row, col int) bool) [2]int8 {
	at, best, bestRows := [2]int8{-1, -1}, 0, 0
	for r := half; r < half+promptBuckets; r++ {
		for c := range concurrencyBuckets {
			rows := max(r-row, row-r)
			distance := rows + max(c-col, col-c)
			if filled(r, c) && (at[0] < 0 || distance < best || distance == best && rows < bestRows) {
				at, best, bestRows = [2]int8{int8(r), int8(c)}, distance, rows
			}
		}
	}
	return at
}

// A crowd is the column of donors for so many running requests, and its place among
// those that a request remembers.
type crowd struct {
	column, slot int
	churn        bool
}

func crowdOf(running int, churn bool) crowd {
	c := crowd{column: concurrencyBucket(running), churn: churn}
	c.slot = c.column
	if churn {
		c.slot += concurrencyBuckets
	}
	return c
}

// donorOf is the recorded request that r is like in a crowd. It stays the same.
func (g *grid) donorOf(r *Request, c crowd) *donor {
	if d := r.donors[c.slot]; d != nil {
		return d
	}
	row := promptBucket(r.Prompt)
	if c.churn {
		row += promptBuckets
	}
	at := g.nearest[row][c.column]
	cell := g.cells[at[0]][at[1]]
	u := r.uniform(drawDonor, c.slot) * cell[len(cell)-1].until
	d := &cell[sort.Search(len(cell)-1, func(i int) bool { return cell[i].until > u })]
	r.donors[c.slot] = d
	return d
}

// stalls are how long steps took in which a prompt of a size ended, beside so many
// requests, sorted.
type stalls struct {
	cells [promptBuckets][concurrencyBuckets][]float64
	any   bool
}

func (s *stalls) add(g gap, concurrency int) {
	cell := &s.cells[promptBucket(g.prefill)][concurrencyBucket(concurrency)]
	*cell = append(*cell, g.ms)
	s.any = true
}

// draw is a recorded step in which about such a prompt ended; there must be any.
func (s *stalls) draw(prompt, running int, u float64) float64 {
	filled := func(row, col int) bool { return len(s.cells[row][col]) > 0 }
	at := nearestCell(0, promptBucket(prompt), concurrencyBucket(running), filled)
	return quantile(s.cells[at[0]][at[1]], u)
}

// sizes counts the chunks after the first by their tokens.
type sizes struct {
	inner map[int]int // but for the last of each request, which may have been cut
	most  int
}

func sizesOf(traces []*trace.Trace) sizes {
	s := sizes{inner: map[int]int{}}
	for _, t := range traces {
		for i := range t.Records {
			s.add(t.Records[i].ITLTokens, len(t.Records[i].ITLMs))
		}
	}
	return s
}

// add counts the chunks of a record; without sizes, each of its gaps brought one.
func (s *sizes) add(tokens []uint32, gaps int) {
	for i := range gaps {
		n := 1
		if i < len(tokens) {
			n = int(min(tokens[i], math.MaxInt32))
		}
		s.most = max(s.most, n)
		if i < gaps-1 {
			s.inner[n]++
		}
	}
}

// block is the size of the blocks that always come whole, but for a request's
// last: those of a diffusion model. It is 0 if sizes vary.
func (s *sizes) block() int {
	if s.most > 1 && len(s.inner) == 1 && s.inner[s.most] > 1 {
		return s.most
	}
	return 0
}

// drafts is the maximum of tokens that came in a step beyond the first, and 0 for
// blocks.
func (s *sizes) drafts() int {
	if s.block() != 0 {
		return 0
	}
	return min(max(s.most-1, 0), maxDrafts)
}

// maxDrafts bounds what a recording can make a step's drafts.
const maxDrafts = 1023
