package inspect

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/vllm-vcr/conformance/internal/engine/latency"
	"github.com/vllm-vcr/conformance/trace"
)

// Learning is what the times of whole requests show of an engine.
//
// A simulation of the load with some constants shows which steps each request was in. With these steps, the time of a request is a sum of
// the constants, so the constants that fit all measured times best are the solution of a linear problem, with no constant below 0. Other
// constants make other steps, so this is repeated until they change no more.
type Learning struct {
	// Requests is how many were learned from.
	Requests  int        `json:"requests"`
	Engine    Engine     `json:"engine"`
	Constants []Constant `json:"constants"`
	// Residuals are how far the simulation of the learned requests is off.
	Residuals []Residual `json:"residuals"`
	// Notes say what was assumed, and what the load does not show.
	Notes []string `json:"notes,omitempty"`

	law   latency.Law
	loss  float64
	draws []solution        // other constants that fit as well as chance may have it
	usual [unknowns]float64 // what all learned requests computed together
}

// Constant is one constant of a [latency.Law], with its interval of 90 % confidence.
type Constant struct {
	Name  string  `json:"name"`
	Unit  string  `json:"unit"`
	Value float64 `json:"value"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
	// Shown is whether the load shows the constant: the interval is narrower than the value. If not, others take its place.
	Shown bool `json:"shown"`
}

// Residual is by how much the simulated times of a request exceed the measured ones.
type Residual struct {
	// Request is the line of the file, or the position in it.
	Request int     `json:"request"`
	TTFTMs  float64 `json:"ttft_ms"`
	E2EMs   float64 `json:"e2e_ms"`
}

// A solution is a law, and what a request takes to the engine, ms.
type solution [unknowns]float64

const (
	terms    = len(latency.Terms)
	front    = terms
	unknowns = terms + 1
)

func (v *solution) law() *latency.Law { return (*latency.Law)(v[:terms]) }

const (
	leastRequests = 8
	maxRounds     = 12
	// decodeNoise and firstNoise are the errors that count as one standard deviation: of the time after the first token, and of the time
	// to it. That one depends on what the step before did, so it is uncertain by about firstMs even where it is short.
	decodeNoise, firstNoise, firstMs = 0.02, 0.1, 100.0
	// usualShare is how much of the time of steps one constant is expected to explain, a standard deviation. It only decides between
	// constants that the load cannot distinguish.
	usualShare, usualFrontMs = 0.2, 20.0
	resamples                = 40
	maxTogether              = 1.5 // tokens in an output, a mean
)

// LearnResults learns from the requests of each trace but the last ones, so many of them. What otherwise does not set and the
// traces do not have of the engine is fitted as far as the load shows it, and a note says so.
func LearnResults(traces []*trace.Trace, holdout int, otherwise Override, seed uint64) (*Learning, error) {
	var lessons []*lesson
	var e Engine
	for i, t := range traces {
		l, err := lessonOf(t, holdout)
		if err != nil {
			return nil, err
		}
		of, err := EngineOf(t, otherwise)
		if err != nil {
			return nil, err
		}
		if i > 0 && (of != e || trace.Or(t.Meta.Model, "") != trace.Or(traces[0].Meta.Model, "")) {
			return nil, fmt.Errorf("%s and %s are results of different engines or models: learn from one engine at a time", traces[0].Name, t.Name)
		}
		e, lessons = of, append(lessons, l)
	}
	if len(lessons) == 0 {
		return nil, errors.New("no results to learn from")
	}
	best, err := search(lessons, e, otherwise)
	if err != nil {
		return nil, err
	}
	best.finish(lessons, seed)
	return &best.Learning, nil
}

// search fits the constants, and the limits of the engine that are not known.
func search(lessons []*lesson, e Engine, given Override) (*attempt, error) {
	modes := []bool{false, true}
	if given.Async != nil {
		modes = []bool{*given.Async}
	}
	var best *attempt
	try := func(e Engine, share float64, rounds int) {
		if a := fit(lessons, e, startOf(lessons, share), rounds); best == nil || a.loss < best.loss {
			best = a
		}
	}
	for _, mode := range modes {
		e.Async = mode
		try(e, 0.6, maxRounds/2)
	}
	for _, share := range []float64{0.3, 0.6, 0.9} { // several starts: the steps that they make may differ for good
		try(best.Engine, share, maxRounds)
	}
	if best.err != nil {
		return nil, best.err
	}
	unlimited := e.Blocks == 0
	if unlimited {
		best = best.searchBlocks(lessons)
	}
	best = best.polish(lessons)
	if unlimited && best.Engine.Blocks == 0 {
		best.note("the load does not show the size of the KV cache: requests did not wait for it, so it is taken for unlimited (--num-gpu-blocks-override sets it)")
	} else if unlimited {
		best.note("num_gpu_blocks is not known: %d blocks of %d tokens fit best", best.Engine.Blocks, best.Engine.BlockSize)
	}
	if given.Async == nil {
		best.note("async_scheduling is not known: %v fits best", best.Engine.Async)
	}
	if given.MaxNumSeqs == 0 {
		best.note("max_num_seqs is not known, and taken for %d: give --max-num-seqs or --engine-args", e.MaxNumSeqs)
	}
	if given.MaxNumBatchedTokens == 0 {
		best.note("max_num_batched_tokens is not known, and taken for %d: give --max-num-batched-tokens or --engine-args", e.MaxNumBatchedTokens)
	}
	return best, nil
}

// searchBlocks tries KV caches about as large as what the requests that ran at a time held, and then sizes near that which fits best. A
// request that lost its blocks for a while counts as if it held them, so the cache may be smaller.
func (a *attempt) searchBlocks(lessons []*lesson) *attempt {
	const largest, smallest, ratio, clearly = 1.15, 0.5, 0.94, 0.9
	held, least := 0.0, 0
	for _, l := range lessons {
		held = max(held, l.held()/float64(a.Engine.BlockSize))
		for i := range l.w.asks {
			least = max(least, (len(l.w.asks[i].prompt)+l.w.asks[i].record.OutputTokens)/a.Engine.BlockSize+2)
		}
	}
	var best *attempt
	try := func(blocks int, start solution, rounds int) {
		e := a.Engine
		if e.Blocks = blocks; blocks < least {
			return
		}
		if b := fit(lessons, e, start, rounds); best == nil || b.loss < best.loss {
			best = b
		}
	}
	for size := largest; size > smallest; size *= ratio {
		try(int(size*held), startOf(lessons, 0.6), maxRounds/2) // what fits an unlimited cache is far off if requests waited for it
	}
	if best == nil || best.loss > clearly*a.loss {
		return a
	}
	for width := 1 - ratio; width > 0.005; width /= 2 {
		center := float64(best.Engine.Blocks)
		try(int(center*(1-width/2)), best.solution(), 2)
		try(int(center*(1+width/2)), best.solution(), 2)
	}
	return best
}

// held is how many tokens the learned requests had at most that were between their first token and their end.
func (l *lesson) held() (most float64) {
	const moments = 500
	for k := 0; k < l.first; k += l.first/moments + 1 {
		r := l.w.asks[k].record
		now, sum := *r.ArrivalMs+r.TTFTMs, 0.0
		for i := range l.first {
			o := l.w.asks[i].record
			if from := *o.ArrivalMs + o.TTFTMs; from <= now && now < o.EndMs(*o.ArrivalMs) {
				sum += float64(o.PromptTokens) + float64(o.OutputTokens)*(now-from)/(o.EndMs(0)-o.TTFTMs)
			}
		}
		most = max(most, sum)
	}
	return most
}

func (l *Learning) note(format string, args ...any) {
	l.Notes = append(l.Notes, fmt.Sprintf(format, args...))
}

// A lesson is a load, and what was measured of its first requests.
type lesson struct {
	w     *Workload
	first int // of its requests are learned from
}

func lessonOf(t *trace.Trace, holdout int) (*lesson, error) {
	w, err := WorkloadOf(t)
	if err != nil {
		return nil, err
	}
	w.unrelate()
	first := len(w.asks) - holdout
	if first < leastRequests {
		return nil, fmt.Errorf("%s: %d requests to learn from: want at least %d", t.Name, max(first, 0), leastRequests)
	}
	l, decodes, outputs, tokens := &lesson{w, first}, 0, 0, 0
	for i := range first {
		r := w.asks[i].record
		end := r.EndMs(0)
		if !(r.TTFTMs > 0) || !(end >= r.TTFTMs) || math.IsInf(end, 0) {
			return nil, fmt.Errorf("%s: request %d: its first token is %.3f ms and its end %.3f ms after its arrival: want times that go forward, by one clock", t.Name, number(r, i), r.TTFTMs, end)
		}
		if r.OutputTokens > 1 && end > r.TTFTMs {
			decodes++
		}
		if r.ITLMs != nil {
			outputs, tokens = outputs+len(r.ITLMs)+1, tokens+r.OutputTokens
		}
	}
	// A frontend puts outputs together that it could not send in time, but not most of them.
	if float64(tokens) > maxTogether*float64(outputs) {
		return nil, fmt.Errorf("%s: %d tokens in %d outputs, as with speculative decoding: results of requests do not show how many tokens a step has; record a trace, and give --latency-trace", t.Name, tokens, outputs)
	}
	if decodes < leastRequests {
		return nil, fmt.Errorf("%s: %d requests have more than one token and a time after the first: want at least %d; without them, the time of a decode is not shown (were the answers streamed?)", t.Name, decodes, leastRequests)
	}
	return l, nil
}

func number(r *trace.Record, i int) int { return cmp.Or(r.Line, i+1) }

// unrelate lets every request come when it came, whatever it waited for.
func (w *Workload) unrelate() {
	zero := *w.asks[0].record.ArrivalMs
	for i := range w.asks {
		a := &w.asks[i]
		a.parent, a.next, a.at = -1, false, *a.record.ArrivalMs-zero
	}
	w.clients = 0
}

// seen is what the steps of a simulation up to a time computed.
type seen struct {
	at       []time.Duration
	sums     [][terms]float64
	requests []int // of each step
}

func newSeen() *seen { return &seen{at: []time.Duration{0}, sums: make([][terms]float64, 1)} }

func (s *seen) step(from, to time.Duration, shape *latency.Step) {
	sum := s.sums[len(s.sums)-1]
	if from > s.at[len(s.at)-1] {
		s.at, s.sums = append(s.at, from), append(s.sums, sum)
	}
	for i, v := range shape.Terms() {
		sum[i] += v
	}
	s.at, s.sums = append(s.at, to), append(s.sums, sum)
	s.requests = append(s.requests, len(shape.Decodes)+len(shape.Chunks))
}

// between is what steps computed between two times, ms. A part of a step counts as a part of what it computed.
func (s *seen) between(from, to float64) (x [terms]float64) {
	a, b := s.until(milliseconds(from)), s.until(milliseconds(to))
	for i := range x {
		x[i] = b[i] - a[i]
	}
	return x
}

func (s *seen) until(at time.Duration) [terms]float64 {
	i, found := slices.BinarySearch(s.at, at)
	switch {
	case found:
		for i+1 < len(s.at) && s.at[i+1] == at {
			i++
		}
		return s.sums[i]
	case i == len(s.at):
		return s.sums[i-1]
	case i == 0:
		return s.sums[0]
	}
	sum, part := s.sums[i-1], float64(at-s.at[i-1])/float64(s.at[i]-s.at[i-1])
	for k := range sum {
		sum[k] += part * (s.sums[i][k] - sum[k])
	}
	return sum
}

// An attempt is a fit for one engine.
type attempt struct {
	Learning
	equations []equation
	err       error
}

// equation is: x times the unknowns is about so many ms.
type equation struct {
	x         [unknowns]float64
	ms, sigma float64
	weight    float64 // less than 1 if it is far off
	request   int     // in the order of all lessons
}

// startOf lets the usual time of a token be made of a constant, and a part for each request.
func startOf(lessons []*lesson, share float64) (v solution) {
	var tokens times
	open := 0
	for _, l := range lessons {
		for i := range l.first {
			if r := l.w.asks[i].record; r.OutputTokens > 1 {
				tokens = append(tokens, (r.EndMs(0)-r.TTFTMs)/float64(r.OutputTokens-1))
				open = max(open, int(r.Concurrency))
			}
		}
	}
	usual := sortedTimes(tokens).quantile(0.5)
	v[0], v[1], v[3] = share*usual, (1-share)*usual/float64(max(open, 1)), usual/500
	return v
}

// fit simulates and solves in turns. It returns the constants with the least error.
func fit(lessons []*lesson, e Engine, v solution, rounds int) *attempt {
	best := &attempt{Learning: Learning{loss: math.Inf(1), Engine: e}}
	for round := range rounds {
		a := &attempt{Learning: Learning{Engine: e, law: *v.law()}}
		a.Engine.FrontMs = v[front]
		for _, l := range lessons {
			if a.err = a.simulate(l); a.err != nil {
				best.err = cmp.Or(best.err, a.err)
				return best
			}
		}
		a.weigh()
		if a.loss < best.loss {
			best = a
		}
		next := solve(a.equations, nil)
		change, part := 0.0, 0.5 // both halves of an oscillation are wrong
		if round < 3 {
			part = 1
		}
		for i := range v {
			was := v[i]
			v[i] += part * (next[i] - v[i])
			change = max(change, math.Abs(v[i]-was)/(math.Abs(was)+1e-9))
		}
		if change < 1e-3 {
			break
		}
	}
	return best
}

// simulate adds the equations of a lesson.
func (a *attempt) simulate(l *lesson) error {
	load := newLoad(l.w, a.Engine)
	load.seen = newSeen()
	s, err := newSimulation(load, a.Engine, &a.law, 0)
	if err != nil {
		return err
	}
	if _, err := s.run(l.first, nil, s); err != nil {
		return err
	}
	at := len(a.Residuals)
	a.Residuals = append(a.Residuals, make([]Residual, l.first)...)
	for i := range s.records {
		sim := &s.records[i]
		k := sim.Line - 1
		if k >= l.first {
			continue
		}
		real := l.w.asks[k].record
		came, first, end := *sim.ArrivalMs, *sim.ArrivalMs+sim.TTFTMs, sim.EndMs(*sim.ArrivalMs)
		a.Residuals[at+k] = Residual{number(real, k), sim.TTFTMs - real.TTFTMs, end - came - real.EndMs(0)}
		toFirst := equation{ms: real.TTFTMs, sigma: firstNoise * (real.TTFTMs + firstMs), request: at + k}
		x := s.seen.between(came+a.Engine.FrontMs, first)
		copy(toFirst.x[:], x[:])
		toFirst.x[front] = 1
		toFirst.weight = weightOf((sim.TTFTMs - real.TTFTMs) / toFirst.sigma)
		a.equations = append(a.equations, toFirst)
		if after := real.EndMs(0) - real.TTFTMs; real.OutputTokens > 1 && after > 0 {
			decode := equation{ms: after, sigma: decodeNoise * after, request: at + k}
			x := s.seen.between(first, end)
			copy(decode.x[:], x[:])
			decode.weight = weightOf((end - first - after) / decode.sigma)
			a.equations = append(a.equations, decode)
		}
	}
	a.cover(l, s.seen)
	return nil
}

// weightOf makes large errors count in proportion and not squared (pseudo-Huber).
func weightOf(off float64) float64 { return 1 / math.Sqrt(1+off*off) }

// weigh sums up the errors.
func (a *attempt) weigh() {
	for _, q := range a.equations {
		a.loss += (1/q.weight - 1) / float64(len(a.equations))
	}
}

// cover notes what the steps of a load do not show.
func (a *attempt) cover(l *lesson, s *seen) {
	counts := slices.Sorted(slices.Values(s.requests))
	if least := counts[len(counts)/20]; least > 1 {
		a.note("%s: nineteen of twenty steps had at least %d requests, so the time of a step with fewer is an extrapolation", l.w.Name, least)
	}
	if most := counts[len(counts)-1]; most < a.Engine.MaxNumSeqs && a.Engine.Blocks == 0 {
		a.note("%s: at most %d requests ran at a time, so the load does not show how the engine behaves when it is full", l.w.Name, most)
	}
}

// solve is the least squares solution without values below 0. Each equation counts as often as times says, once with nil.
func solve(equations []equation, times []int) (v solution) {
	var normal [unknowns][unknowns + 1]float64
	var all [unknowns]float64
	total := 0.0
	for i := range equations {
		q := &equations[i]
		weight := q.weight / (q.sigma * q.sigma)
		if times != nil {
			weight *= float64(times[q.request])
		}
		for j, x := range q.x {
			for k := range unknowns {
				normal[j][k] += weight * x * q.x[k]
			}
			normal[j][unknowns] += weight * x * q.ms
			all[j] += x
		}
		total += q.ms
	}
	for j := range unknowns { // what each is expected to be about
		usual := all[j] / total / usualShare
		if j == front {
			usual = 1 / usualFrontMs
		}
		normal[j][j] += usual*usual + 1e-12
	}
	use := []int{0, 1, 2, 3, 4, 5, 6}[:unknowns]
	for {
		// Each is brought to a size of about 1.
		size := func(j int) float64 { return math.Sqrt(normal[j][j]) }
		m := make([][]float64, len(use))
		for a, j := range use {
			for _, k := range use {
				m[a] = append(m[a], normal[j][k]/size(j)/size(k))
			}
			m[a] = append(m[a], normal[j][unknowns]/size(j))
		}
		x, ok := latency.Solve(m)
		if !ok {
			return v
		}
		worst := slices.Index(x, slices.Min(x))
		if x[worst] >= 0 {
			for a, j := range use {
				v[j] = x[a] / size(j)
			}
			return v
		}
		use = slices.Delete(slices.Clone(use), worst, worst+1)
	}
}

// finish adds what else the best fit says: how sure it is.
func (a *attempt) finish(lessons []*lesson, seed uint64) {
	for _, l := range lessons {
		a.Requests += l.first
	}
	v := a.solution()
	rng := rand.New(rand.NewPCG(seed, 1))
	// Requests that ran together were in the same steps, so they are drawn together.
	together := max(a.Requests/16, 1)
	center := solve(a.equations, nil)
	for _, q := range a.equations {
		for i := range q.x {
			a.usual[i] += q.x[i]
		}
	}
	for range resamples {
		times := make([]int, a.Requests)
		for drawn := 0; drawn < a.Requests; drawn += together {
			from := rng.IntN(a.Requests)
			for i := range together {
				times[(from+i)%a.Requests]++
			}
		}
		draw := solve(a.equations, times)
		for i := range draw { // the fit ended before it changed no more
			draw[i] = max(draw[i]+v[i]-center[i], 0)
		}
		a.draws = append(a.draws, draw)
	}
	for i := range unknowns {
		var values times
		for _, d := range a.draws {
			values = append(values, d[i])
		}
		values = sortedTimes(values)
		c := Constant{Name: "each request before the engine sees it", Unit: "ms"}
		scale := 1.0
		if i < terms {
			scale = latency.UnitMs[i]
			c.Name, c.Unit = latency.Terms[i].Name, latency.Terms[i].Unit
		}
		c.Value, c.Low, c.High = v[i]/scale, values.quantile(0.05)/scale, values.quantile(0.95)/scale
		c.Shown = c.High-c.Low < c.Value
		a.Constants = append(a.Constants, c)
	}
}

// ends are two laws of those that are as likely as the learned one: the fast and the slow end of an interval of 90 %, by how long all the
// equations take.
func (l *Learning) ends() []latency.Learned {
	slices.SortFunc(l.draws, func(a, b solution) int { return cmp.Compare(dot(l.usual, a), dot(l.usual, b)) })
	n := len(l.draws)
	return []latency.Learned{l.draws[n/20].law(), l.draws[n-1-n/20].law()}
}

func dot(a, b [unknowns]float64) (sum float64) {
	for i := range a {
		sum += a[i] * b[i]
	}
	return sum
}

// polish tries, one constant after the other, whether a larger or a smaller one makes the simulated times more like the measured ones:
// the linear solution does not know that other constants make other steps.
func (a *attempt) polish(lessons []*lesson) *attempt {
	best := a
	for step := 0.08; step > 0.01; step /= 2 {
		for i := range unknowns {
			for _, factor := range []float64{1 + step, 1 - step} {
				v := best.solution()
				if v[i] == 0 {
					break
				}
				v[i] *= factor
				if b := fit(lessons, a.Engine, v, 1); b.loss < best.loss {
					best = b
					break
				}
			}
		}
	}
	return best
}

func (a *attempt) solution() solution {
	v := solution{front: a.Engine.FrontMs}
	copy(v[:], a.law[:])
	return v
}

// Model is what was learned, for a player, with the transfer of KV blocks that the knobs set.
func (l *Learning) Model(transfer *latency.Knobs) latency.Model {
	return &lawWithTransfer{l.law, transfer}
}

type lawWithTransfer struct {
	latency.Law
	knobs *latency.Knobs
}

// Transfer implements [latency.Model].
func (l *lawWithTransfer) Transfer(r *latency.Request) time.Duration { return l.knobs.Transfer(r) }
