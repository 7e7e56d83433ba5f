package inspect

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/trace"
)

// Compared is what [Compare] takes from a trace: the times of its requests in blocks of consecutive requests. Requests that
// ran together share the steps of the engine and its speed at that moment, so single requests are not independent values.
type Compared struct {
	summary *Summary
	series
	// levels are the requests by the number that were in flight when they came, by the last number of their range.
	levels map[uint64]*series
	// firstTurn and laterTurns are times to the first token, sizes the tokens of each output after the first.
	firstTurn, laterTurns, sizes sketch
}

// series are times of requests in blocks.
type series struct {
	blocks []timeBlock
	take   []int // of each block, if they are of several takes
	each   int   // requests in a block, 0 for one
	last   int   // requests in the last block
}

// timeBlock has a distribution for each of Metrics.
type timeBlock [4]sketch

// metrics are the times that are compared, by the names that options and results have for them.
var metrics = [4]string{"ttft", "itl", "tpot", "e2e"}

var metricTitles = [4]string{
	"Time to the first token (TTFT)", "Time between two outputs (ITL)", "Time per output token after the first (TPOT)", "Time of the whole request (E2E)",
}

// statistics are the figures of each metric that are compared.
var statistics = [4]string{"mean", "p50", "p90", "p99"}

const (
	// maxBlocks is how many blocks a trace is divided into at most, and minBlocks how many are needed for a verdict.
	maxBlocks = 32
	minBlocks = 8
	// confidence of the intervals: high, so that of the figures of a comparison seldom one fails by chance.
	confidence = 0.99
	// resamplings is how many times blocks are drawn at random; of large traces fewer, so that it takes seconds.
	resamplings    = 1000
	minResamplings = 200
	resamplingWork = 1 << 28 // values that are looked at
	// exactPoints is how many values of a metric are compared one by one.
	exactPoints = 1 << 17
	// differsBelow is the p-value below which two distributions differ.
	differsBelow = 0.01
	// DefaultTolerance is how much slower a figure may be, as a part of the baseline.
	DefaultTolerance = 0.1
)

// ReadCompared reads a trace. Memory does not grow with the number of records.
func ReadCompared(r *trace.Reader) (*Compared, error) {
	c := &Compared{levels: map[uint64]*series{}}
	sum := newSummarizer(r.Name(), r.Meta())
	var rec trace.Record
	for {
		if err := r.Next(&rec); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		turn := sum.add(&rec)
		c.add(&rec, turn > 1)
	}
	if sum.s.Records == 0 {
		return nil, fmt.Errorf("%s: the trace has no records, so there is nothing to compare", r.Name())
	}
	c.summary = sum.finish()
	return c, nil
}

func (c *Compared) add(r *trace.Record, isLater bool) {
	if r.OutputTokens == 0 {
		return
	}
	c.series.add(r)
	_, to := doubling(r.Concurrency)
	if c.levels[to] == nil {
		c.levels[to] = &series{}
	}
	c.levels[to].add(r)
	for i := range r.ITLMs {
		size := 1.0
		if i < len(r.ITLTokens) {
			size = float64(r.ITLTokens[i])
		}
		c.sizes.add(size)
	}
	if isLater {
		c.laterTurns.add(r.TTFTMs)
	} else {
		c.firstTurn.add(r.TTFTMs)
	}
}

func (c *series) add(r *trace.Record) {
	if len(c.blocks) == 0 || c.last >= max(c.each, 1) {
		if len(c.blocks) == maxBlocks {
			c.halve()
		}
		c.blocks, c.last = append(c.blocks, timeBlock{}), 0
	}
	c.last++
	b := &c.blocks[len(c.blocks)-1]
	whole := r.EndMs(0)
	b[0].add(r.TTFTMs)
	for _, ms := range r.ITLMs {
		b[1].add(ms)
	}
	if r.OutputTokens > 1 {
		b[2].add((whole - r.TTFTMs) / float64(r.OutputTokens-1))
	}
	b[3].add(whole)
}

func (c *series) halve() {
	for i := range len(c.blocks) / 2 {
		joined := c.blocks[2*i]
		for m := range joined {
			joined[m].merge(&c.blocks[2*i+1][m])
		}
		c.blocks[i] = joined
	}
	clear(c.blocks[len(c.blocks)/2:])
	c.blocks = c.blocks[:len(c.blocks)/2]
	c.each = 2 * max(c.each, 1)
}

func (c *series) takeIn(of *series, take int) {
	c.blocks = append(c.blocks, of.blocks...)
	for range of.blocks {
		c.take = append(c.take, take)
	}
}

// Together puts several takes of the same load on the same engine together. What is drawn at random are then the takes, and the blocks in
// them, so that intervals know by how much takes differ.
func Together(takes []*Compared) *Compared {
	if len(takes) == 1 {
		return takes[0]
	}
	first := takes[0].summary
	s := *first
	s.Name, s.Notes = fmt.Sprintf("%s and %s", first.Name, safetext.Count(len(takes)-1, "more take")), nil
	s.Records, s.OutputTokens.Sum = 0, 0
	all := &Compared{summary: &s, levels: map[uint64]*series{}}
	seconds, isKnown := 0.0, true
	var prompt, output, inFlight, cached float64
	for i, take := range takes {
		all.takeIn(&take.series, i)
		for to, level := range take.levels {
			if all.levels[to] == nil {
				all.levels[to] = &series{}
			}
			all.levels[to].takeIn(level, i)
		}
		all.firstTurn.merge(&take.firstTurn)
		all.laterTurns.merge(&take.laterTurns)
		all.sizes.merge(&take.sizes)
		of := take.summary
		weight := float64(of.Records)
		s.Records += of.Records
		s.OutputTokens.Sum += of.OutputTokens.Sum
		prompt, output = prompt+weight*of.PromptTokens.Mean, output+weight*of.OutputTokens.Mean
		inFlight, cached = inFlight+weight*of.Concurrency.Mean, cached+weight*of.Cached
		if isKnown = isKnown && of.Seconds != nil; isKnown {
			seconds += *of.Seconds
		}
		for _, note := range of.Notes {
			s.Notes = append(s.Notes, of.Name+": "+note)
		}
		if i > 0 {
			s.Notes = append(s.Notes, differences(first, of)...)
		}
	}
	weight := float64(s.Records)
	s.PromptTokens.Mean, s.OutputTokens.Mean, s.Concurrency.Mean, s.Cached = prompt/weight, output/weight, inFlight/weight, cached/weight
	s.Seconds = nil
	if isKnown {
		s.Seconds = &seconds
	}
	for m, d := range []*Distribution{&s.TTFT, &s.ITL, &s.TPOT, &s.E2E} {
		*d = all.whole(m).distribution()
	}
	return all
}

// whole is the distribution of a metric in all blocks.
func (c *series) whole(metric int) *sketch {
	var all sketch
	for i := range c.blocks {
		all.merge(&c.blocks[i][metric])
	}
	return &all
}

// CompareOptions choose what a regression is.
type CompareOptions struct {
	// Tolerance is how much slower a figure may be, as a part of the baseline. Limits has others for single figures, by their
	// names, such as "ttft.p99".
	Tolerance float64
	Limits    map[string]float64
	// ByConcurrency compares the medians also for each number of requests that were in flight when a request came.
	ByConcurrency bool
	// Seed is that of the random drawings.
	Seed uint64
}

// FigureNames are the names of all figures.
func FigureNames() []string {
	var names []string
	for _, m := range metrics {
		for _, s := range statistics {
			names = append(names, m+"."+s)
		}
	}
	return names
}

// Comparison is how traces differ from the first of them, the baseline.
type Comparison struct {
	Schema string `json:"schema"`
	// Pass is whether no figure is a regression. Judged is how many figures had enough requests for a verdict.
	Pass      bool    `json:"pass"`
	Judged    int     `json:"judged"`
	Tolerance float64 `json:"tolerance"`
	Seed      uint64  `json:"seed"`
	// Traces are all of them, the baseline first.
	Traces []ComparedTrace `json:"traces"`
	// Distributions has each metric of each other trace, Figures each figure of it.
	Distributions []DistributionChange `json:"distributions"`
	Figures       []Figure             `json:"figures"`
	// Regressions are the figures that are too slow, the one that exceeds its limit most first.
	Regressions []Figure `json:"regressions"`
	Notes       []string `json:"notes"`

	all []*Compared
}

// ComparedTrace is a trace of a comparison.
type ComparedTrace struct {
	Name     string   `json:"name"`
	Requests int      `json:"requests"`
	Seconds  *float64 `json:"seconds,omitempty"`
	// OutputTokensPerSecond is left out if the duration is unknown.
	OutputTokensPerSecond *float64 `json:"output_tokens_per_second,omitempty"`
}

// DistributionChange is how far apart the distributions of a metric are.
type DistributionChange struct {
	Trace  string `json:"trace"`
	Metric string `json:"metric"`
	// KS is the largest distance of the two cumulative distributions (Kolmogorov and Smirnov), 0 to 1. PValue is how often
	// blocks of both traces, mixed at random, are as far apart. It is left out of too few requests.
	KS     float64  `json:"ks"`
	PValue *float64 `json:"p_value,omitempty"`
	// DistanceMs is the mean distance of the two distributions (Wasserstein), ms.
	DistanceMs float64 `json:"distance_ms"`
	Differs    bool    `json:"differs"`
}

// Figure is a figure of a trace and of the baseline, ms.
type Figure struct {
	Trace string `json:"trace"`
	Name  string `json:"name"`
	// Concurrency is how many requests were in flight when those came that the figure is of, such as 3-4; "" for all requests.
	Concurrency string  `json:"concurrency,omitempty"`
	Baseline    float64 `json:"baseline_ms"`
	Value       float64 `json:"value_ms"`
	// Change is the part by which the value is larger than that of the baseline. Low and High are the ends of its interval of
	// 99 % confidence. All are left out where they cannot be known.
	Change *float64 `json:"change,omitempty"`
	Low    *float64 `json:"low,omitempty"`
	High   *float64 `json:"high,omitempty"`
	Limit  float64  `json:"limit"`
	// Verdict is one of the verdicts below.
	Verdict string `json:"verdict"`
}

// Verdicts on a figure.
const (
	verdictWorse   = "worse"   // slower than the limit allows, and not by chance
	verdictBetter  = "better"  // faster by more than the limit, and not by chance
	verdictSame    = "same"    // within the limit
	verdictUnclear = "unclear" // beyond the limit, which may be chance
	verdictNone    = "none"    // too few requests, or a baseline of 0
)

// Compare compares traces with the first of them.
func Compare(all []*Compared, opt CompareOptions) (*Comparison, error) {
	if len(all) < 2 {
		return nil, errors.New("want at least two traces: the baseline, and one to compare with it")
	}
	if !(opt.Tolerance >= 0) || math.IsInf(opt.Tolerance, 0) {
		return nil, fmt.Errorf("tolerance is %v: want a number of 0 or more, such as 0.1 for 10 %%", opt.Tolerance)
	}
	for name, limit := range opt.Limits {
		if !slices.Contains(FigureNames(), name) {
			return nil, fmt.Errorf("there is no figure %q: want one of %s", name, strings.Join(FigureNames(), ", "))
		}
		if !(limit >= 0) || math.IsInf(limit, 0) {
			return nil, fmt.Errorf("limit of %s is %v: want a number of 0 or more, such as 0.1 for 10 %%", name, limit)
		}
	}
	c := &Comparison{
		Pass: true, Tolerance: opt.Tolerance, Seed: opt.Seed, Notes: []string{}, Figures: []Figure{}, Distributions: []DistributionChange{},
		Regressions: []Figure{}, all: all,
	}
	for _, one := range all {
		s := one.summary
		t := ComparedTrace{Name: s.Name, Requests: s.Records, Seconds: s.Seconds}
		if s.Seconds != nil && *s.Seconds > 0 {
			rate := float64(s.OutputTokens.Sum) / *s.Seconds
			t.OutputTokensPerSecond = &rate
		}
		c.Traces = append(c.Traces, t)
		for _, note := range s.Notes {
			c.Notes = append(c.Notes, s.Name+": "+note)
		}
	}
	for i, other := range all[1:] {
		c.Notes = append(c.Notes, differences(all[0].summary, other.summary)...)
		for m := range metrics {
			c.metric(opt, m, i+1)
		}
		if opt.ByConcurrency {
			c.byConcurrency(opt, i+1)
		}
	}
	for _, f := range c.Figures {
		if f.Verdict != verdictNone {
			c.Judged++
		}
		if f.Verdict == verdictWorse {
			c.Pass = false
			c.Regressions = append(c.Regressions, f)
		}
	}
	slices.SortStableFunc(c.Regressions, func(a, b Figure) int {
		beyond := func(f Figure) float64 { return *f.Change - f.Limit }
		return cmp.Compare(beyond(b), beyond(a))
	})
	if c.Judged == 0 {
		c.Notes = append(c.Notes, fmt.Sprintf("too few requests with output for a verdict: want at least %d in each trace", minBlocks))
	}
	return c, nil
}

// differences lists how the models, engines and loads of two traces differ: times may differ for these reasons.
func differences(a, b *Summary) []string {
	var notes []string
	for _, fact := range []struct{ name, a, b string }{
		{"model", a.Model, b.Model}, {"GPU", a.GPU, b.GPU}, {"vLLM", a.Version, b.Version}, {"engine_config", a.Config, b.Config},
	} {
		if fact.a != fact.b && fact.a != "" && fact.b != "" {
			notes = append(notes, fmt.Sprintf("%s: %s is %q, and %q in %s", b.Name, fact.name, fact.b, fact.a, a.Name))
		}
	}
	for _, load := range []struct {
		name string
		a, b float64
	}{
		{"prompt tokens", a.PromptTokens.Mean, b.PromptTokens.Mean},
		{"output tokens", a.OutputTokens.Mean, b.OutputTokens.Mean},
		{"concurrency", a.Concurrency.Mean, b.Concurrency.Mean},
		{"cached prompt tokens in %", 100 * a.Cached, 100 * b.Cached},
	} {
		if math.Abs(load.a-load.b) > 0.1*max(load.a, load.b) {
			notes = append(notes, fmt.Sprintf("%s: another load: %s are %.1f on average, and %.1f in %s, so times may differ for this reason",
				b.Name, load.name, load.b, load.a, a.Name))
		}
	}
	return notes
}

// metric compares a metric of a trace with that of the baseline.
func (c *Comparison) metric(opt CompareOptions, m, which int) {
	p := pairOf(&c.all[0].series, &c.all[which].series, m, rand.NewPCG(opt.Seed, uint64(which)<<8|uint64(m)))
	if p == nil {
		return
	}
	d := p.distance()
	d.Trace, d.Metric = c.Traces[which].Name, metrics[m]
	c.Distributions = append(c.Distributions, d)
	c.Figures = append(c.Figures, p.figures(opt, m, c.Traces[which].Name)...)
}

// pair is the values of a metric in the baseline and in another trace, and how they are drawn from at random.
type pair struct {
	base, other *pointSet
	runs        int // 0 of too few requests
	rng         *rand.Rand
}

// pairOf returns nil if one of the two has no values.
func pairOf(base, other *series, m int, source rand.Source) *pair {
	p := &pair{base: pointsOf(base, m), other: pointsOf(other, m), rng: rand.New(source)}
	if p.base.total == 0 || p.other.total == 0 {
		return nil
	}
	if len(p.base.sizes) >= minBlocks && len(p.other.sizes) >= minBlocks {
		p.runs = min(max(resamplingWork/(len(p.base.points)+len(p.other.points)), minResamplings), resamplings)
	}
	return p
}

// byConcurrency compares the medians of the requests that came when as many were in flight.
func (c *Comparison) byConcurrency(opt CompareOptions, which int) {
	for _, to := range slices.Sorted(maps.Keys(c.all[0].levels)) {
		if c.all[which].levels[to] == nil {
			continue
		}
		for m := range metrics {
			p := pairOf(c.all[0].levels[to], c.all[which].levels[to], m, rand.NewPCG(opt.Seed, to<<16|uint64(which)<<8|uint64(m)))
			if p == nil {
				continue
			}
			from, _ := doubling(to)
			for _, f := range p.figures(opt, m, c.Traces[which].Name) {
				if strings.HasSuffix(f.Name, ".p50") {
					f.Concurrency = (&Level{From: from, To: to}).name()
					c.Figures = append(c.Figures, f)
				}
			}
		}
	}
}

// figures are those of a metric of a trace and of the baseline.
func (p *pair) figures(opt CompareOptions, m int, name string) (all []Figure) {
	was, is := p.base.figures(p.base.once()), p.other.figures(p.other.once())
	var changes [len(statistics)][]float64
	for range p.runs {
		a, b := p.base.figures(p.base.draw(p.rng)), p.other.figures(p.other.draw(p.rng))
		for s := range statistics {
			if a[s] > 0 {
				changes[s] = append(changes[s], b[s]/a[s]-1)
			}
		}
	}
	for s, statistic := range statistics {
		f := Figure{Trace: name, Name: metrics[m] + "." + statistic, Baseline: was[s], Value: is[s], Limit: opt.Tolerance, Verdict: verdictNone}
		if limit, ok := opt.Limits[f.Name]; ok {
			f.Limit = limit
		}
		if was[s] > 0 {
			change := is[s]/was[s] - 1
			f.Change = &change
		}
		if f.Change != nil && len(changes[s]) > 0 {
			slices.Sort(changes[s])
			all := times(changes[s])
			low, high := all.quantile((1-confidence)/2), all.quantile((1+confidence)/2)
			f.Low, f.High = &low, &high
			f.Verdict = judge(*f.Change, low, high, f.Limit)
		}
		all = append(all, f)
	}
	return all
}

// judge is the verdict on a change whose interval is known.
func judge(change, low, high, limit float64) string {
	switch {
	case math.Abs(change) <= limit:
		return verdictSame
	case change > 0 && low > 0:
		return verdictWorse
	case change < 0 && high < 0:
		return verdictBetter
	}
	return verdictUnclear
}

// pointSet is the values of a metric in all blocks, ascending.
type pointSet struct {
	points []point
	// sizes and sums are those of each block that has values.
	sizes []int
	sums  []float64
	total int
	// takes are the blocks of each take; there is one if all blocks are of the same.
	takes [][]int
}

// point is so many equal values of a block.
type point struct {
	value float64
	n     int32
	block int32
}

func pointsOf(c *series, m int) *pointSet {
	var p pointSet
	of := 0 // the take of the last block
	for i := range c.blocks {
		p.total += c.blocks[i][m].count
	}
	for i := range c.blocks {
		s := &c.blocks[i][m]
		if s.count == 0 {
			continue
		}
		if p.total > exactPoints {
			s.spill()
		}
		block := int32(len(p.sizes))
		s.each(func(v float64, n int) { p.points = append(p.points, point{v, int32(n), block}) })
		p.sizes, p.sums = append(p.sizes, s.count), append(p.sums, s.sum)
		if len(p.takes) == 0 || c.take != nil && c.take[i] != of {
			p.takes = append(p.takes, nil)
		}
		if c.take != nil {
			of = c.take[i]
		}
		take := &p.takes[len(p.takes)-1]
		*take = append(*take, int(block))
	}
	slices.SortFunc(p.points, func(a, b point) int { return cmp.Compare(a.value, b.value) })
	return &p
}

func (p *pointSet) once() []int {
	return slices.Repeat([]int{1}, len(p.sizes))
}

// draw takes as many takes as there are, and of each as many blocks as it has, at random, some of them several times.
func (p *pointSet) draw(rng *rand.Rand) []int {
	weights := make([]int, len(p.sizes))
	for range p.takes {
		take := p.takes[0]
		if len(p.takes) > 1 {
			take = p.takes[rng.IntN(len(p.takes))]
		}
		for range take {
			weights[take[rng.IntN(len(take))]]++
		}
	}
	return weights
}

// figures are the statistics of the values of blocks that are taken so many times.
func (p *pointSet) figures(weights []int) (figures [len(statistics)]float64) {
	total, sum := 0, 0.0
	for b, w := range weights {
		total += w * p.sizes[b]
		sum += float64(w) * p.sums[b]
	}
	figures[0] = sum / float64(total)
	rank := func(q float64) int { return max(int(math.Ceil(q*float64(total))), 1) }
	ranks := [...]int{rank(0.5), rank(0.9), rank(0.99)}
	at, next := 0, 0
	for i := range p.points {
		at += int(p.points[i].n) * weights[p.points[i].block]
		for next < len(ranks) && at >= ranks[next] {
			figures[next+1] = p.points[i].value
			next++
		}
		if next == len(ranks) {
			break
		}
	}
	return figures
}

// distance is how far apart two distributions are, and how often blocks that are mixed at random are as far apart.
func (p *pair) distance() DistributionChange {
	a, b := p.base, p.other
	both := pointSet{points: slices.Clone(a.points), sizes: slices.Concat(a.sizes, b.sizes)}
	for _, one := range b.points {
		one.block += int32(len(a.sizes))
		both.points = append(both.points, one)
	}
	slices.SortFunc(both.points, func(a, b point) int { return cmp.Compare(a.value, b.value) })
	isOther := make([]bool, len(both.sizes))
	for i := range b.sizes {
		isOther[len(a.sizes)+i] = true
	}
	var d DistributionChange
	d.KS, d.DistanceMs = both.apart(isOther)
	if p.runs == 0 {
		return d
	}
	asFar := 1
	for range p.runs {
		p.rng.Shuffle(len(isOther), func(i, j int) { isOther[i], isOther[j] = isOther[j], isOther[i] })
		if ks, _ := both.apart(isOther); ks >= d.KS-1e-12 {
			asFar++
		}
	}
	value := float64(asFar) / float64(p.runs+1)
	d.PValue, d.Differs = &value, value < differsBelow
	return d
}

// apart is the largest and the mean distance of two groups of blocks.
func (p *pointSet) apart(isOther []bool) (ks, mean float64) {
	var totals, seen [2]float64
	side := func(block int32) int {
		if isOther[block] {
			return 1
		}
		return 0
	}
	for b, n := range p.sizes {
		totals[side(int32(b))] += float64(n)
	}
	for i := range p.points {
		one := &p.points[i]
		seen[side(one.block)] += float64(one.n)
		if i+1 < len(p.points) && p.points[i+1].value > one.value {
			off := math.Abs(seen[0]/totals[0] - seen[1]/totals[1])
			ks = max(ks, off)
			mean += off * (p.points[i+1].value - one.value)
		}
	}
	return ks, mean
}

// Text writes the comparison for people.
func (c *Comparison) Text(w io.Writer) error { return c.write(w, (*table).text, "", safetext.Line) }

// Markdown writes the comparison for a renderer of Markdown.
func (c *Comparison) Markdown(w io.Writer) error {
	return c.write(w, (*table).markdown, "- ", safetext.Markdown)
}

func (c *Comparison) write(w io.Writer, show func(*table, io.Writer), bullet string, clean func(string) string) error {
	out := bufio.NewWriter(w)
	for i, t := range c.tables() {
		if i > 0 {
			fmt.Fprintf(out, "\n")
		}
		show(t, out)
	}
	var lines []string
	for _, note := range c.Notes {
		lines = append(lines, "note: "+note)
	}
	if len(c.Regressions) > 0 {
		lines = append(lines, "regressions, the largest first:")
	}
	for i := range c.Regressions {
		lines = append(lines, fmt.Sprintf("%d. %s", i+1, c.Regressions[i].sentence()))
	}
	fmt.Fprintf(out, "\n")
	for _, line := range append(lines, c.verdict()) {
		fmt.Fprintf(out, "%s%s\n", bullet, clean(line))
	}
	return out.Flush()
}

func (c *Comparison) verdict() string {
	switch {
	case c.Judged == 0:
		return "NOTHING JUDGED: no figure has enough requests for a verdict"
	case !c.Pass:
		return fmt.Sprintf("FAIL: %d of %s are slower than the limit", len(c.Regressions), safetext.Count(c.Judged, "figure"))
	}
	return fmt.Sprintf("PASS: none of %s is slower than the limit", safetext.Count(c.Judged, "figure"))
}

// sentence is a figure that regressed.
func (f *Figure) sentence() string {
	name := f.Name
	if f.Concurrency != "" {
		name += " at concurrency " + f.Concurrency
	}
	return fmt.Sprintf("%s: %s: %s ms, and %s ms in the baseline: %s, %s allowed", f.Trace, name, msText(f.Value), msText(f.Baseline),
		f.changeText(), percent(f.Limit))
}

func percent(part float64) string { return fmt.Sprintf("%+.1f %%", 100*part) }

func (f *Figure) changeText() string {
	switch {
	case f.Change == nil:
		return "-"
	case f.Low == nil:
		return percent(*f.Change)
	}
	return fmt.Sprintf("%s (%s to %s)", percent(*f.Change), percent(*f.Low), percent(*f.High))
}

func (c *Comparison) tables() []*table {
	traces := &table{left: 1, head: []string{"trace", "requests", "seconds", "output tokens/s", "TTFT p50 / p90 / p99", "ITL", "TPOT", "E2E"}}
	for i, t := range c.Traces {
		name, seconds, rate := t.Name, "-", "-"
		if i == 0 {
			name += " (baseline)"
		}
		if t.Seconds != nil {
			seconds = fmt.Sprintf("%.1f", *t.Seconds)
		}
		if t.OutputTokensPerSecond != nil {
			rate = fmt.Sprintf("%.1f", *t.OutputTokensPerSecond)
		}
		s := c.all[i].summary
		traces.add(name, fmt.Sprint(t.Requests), seconds, rate, quantilesText(s.TTFT), quantilesText(s.ITL), quantilesText(s.TPOT), quantilesText(s.E2E))
	}
	figures := &table{
		title: fmt.Sprintf("figures, with the interval of %.0f %% confidence of the change", 100*confidence), left: 2,
		head: []string{"trace", "figure", "baseline ms", "ms", "change", "limit", "verdict"},
	}
	levels := &table{
		title: "by concurrency (requests in flight when a request came, itself included)", left: 3,
		head: []string{"trace", "concurrency", "figure", "baseline ms", "ms", "change", "limit", "verdict"},
	}
	for i := range c.Figures {
		f := &c.Figures[i]
		if f.Concurrency != "" {
			levels.add(f.Trace, f.Concurrency, f.Name, msText(f.Baseline), msText(f.Value), f.changeText(), percent(f.Limit), f.Verdict)
			continue
		}
		figures.add(f.Trace, f.Name, msText(f.Baseline), msText(f.Value), f.changeText(), percent(f.Limit), f.Verdict)
	}
	whole := &table{
		title: "distributions (KS: largest distance, 0 to 1; p: how often a difference as large is chance)", left: 2,
		head: []string{"trace", "metric", "KS", "p", "mean distance ms", ""},
	}
	for _, d := range c.Distributions {
		p, verdict := "-", ""
		if d.PValue != nil {
			p = fmt.Sprintf("%.3f", *d.PValue)
			verdict = map[bool]string{true: "differs", false: "no difference found"}[d.Differs]
		}
		whole.add(d.Trace, d.Metric, fmt.Sprintf("%.3f", d.KS), p, msText(d.DistanceMs), verdict)
	}
	if len(levels.rows) == 0 {
		return []*table{traces, figures, whole}
	}
	return []*table{traces, figures, levels, whole}
}
