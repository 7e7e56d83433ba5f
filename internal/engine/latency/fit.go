package latency

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/vllm-vcr/conformance/trace"
)

// FitOptions are how recordings are read.
type FitOptions struct {
	// Budget is the captured engine's max_num_batched_tokens; 0 is 8192. Prompts
	// were cut at it.
	Budget int
	// Knobs may set the transfer of KV blocks, which recordings do not have, and
	// nothing else.
	Knobs Knobs
}

const usualBudget = 8192

// Fit is a model learned from recordings.
//
// Where they show whole steps of the engine, a step with decodes takes what such
// steps took, by the number of decodes, their contexts and the prompt tokens computed
// beside them. Elsewhere it takes what a recorded request like the one with the longest
// prompt saw between two chunks, at such a concurrency, or what its chunks of prompts
// take if that is longer, and what a prompt that ends takes beyond its chunks.
//
// A step without decodes takes what its chunks take, and where a prompt ends, what an engine
// without other work took to the first token of such a prompt beyond its chunks.
type Fit struct {
	budget   int
	service  service
	law      chunkLaw
	floor    float64   // least cost of the chunks of a step that uses its whole budget, ms
	steps    *stepLaw  // nil if the recordings do not show whole steps
	idle     []float64 // ms from an idle engine's request to its first token beyond the steps, sorted
	donors   grid
	stalls   stalls
	marginal [concurrencyBuckets][]float64
	drafts   int
	block    int
	transfer Knobs
	notes    []string

	now       float64 // ms of all steps so far
	lastLarge float64 // when a large prompt was last computed
}

// churnWindow is how long after a large prompt, ms, requests decode under churn.
const churnWindow = 1000

// NewFit learns from the recordings. Errors name the file, or the knob.
func NewFit(opt FitOptions, traces ...*trace.Trace) (*Fit, error) {
	if err := TransferOnly(&opt.Knobs); err != nil {
		return nil, err
	}
	if opt.Budget < 0 {
		return nil, fmt.Errorf("max-num-batched-tokens is %d: want at least 1", opt.Budget)
	}
	budget := cmp.Or(opt.Budget, usualBudget)
	g, err := gather(traces, budget)
	if err != nil {
		return nil, err
	}
	return newFit(budget, opt.Knobs, g), nil
}

// TransferOnly refuses knobs that set what is learned: all but the transfer of KV blocks.
func TransferOnly(knobs *Knobs) error {
	if err := knobs.Validate(); err != nil {
		return err
	}
	for _, k := range knobs.compute() {
		if k.value != 0 {
			return fmt.Errorf("%s and recordings to learn times from cannot be given together: leave out one of them", k.name)
		}
	}
	if knobs.LoadFactor > 1 {
		return errors.New("time-factor-under-load and recordings to learn times from cannot be given together: " +
			"leave out one of them")
	}
	return nil
}

// Again is the model of another engine, which shares what was learned.
func (f *Fit) Again() Learned {
	again := *f
	again.now, again.lastLarge = 0, math.Inf(-1)
	return &again
}

func newFit(budget int, transfer Knobs, g *gathered) *Fit {
	f := &Fit{
		budget: budget, transfer: transfer, service: newService(g.points),
		donors: g.donors, stalls: g.stalls, marginal: g.marginal,
		drafts: g.sizes.drafts(), block: g.sizes.block(), notes: g.notes, lastLarge: math.Inf(-1),
	}
	f.service.step = quantile(f.marginalAt(1), 0.5)
	var seen []observation
	for _, gaps := range g.records {
		seen = append(seen, observe(gaps, budget)...)
	}
	f.law = newChunkLaw(seen)
	f.floor = premium(g.records, f.law, budget)
	if f.steps = newStepLaw(g.steps); f.steps != nil {
		f.notes = append(f.notes, f.steps.notes...)
		switch { // too few steps had chunks next to decodes: their times are those of gaps or of the service curve
		case f.steps.once != 0 || !f.steps.chunk.zero():
		case !f.law.zero():
			f.steps.chunk = f.law
		case f.service.curve:
			f.steps.chunk = chunkLaw{f.service.b, 2 * f.service.c}
		}
		f.idle = f.idleTimes(g.points)
	}
	return f
}

// idleLeast is how many requests must have met an idle engine to know what it takes beyond
// its steps.
const idleLeast = 5

// idleTimes is what requests that met an idle engine waited for their first token beyond
// what the steps take, sorted. Where they are too few it is one time: the fast end of
// all requests, which hardly waited.
func (f *Fit) idleTimes(points []point) []float64 {
	var idle, all []float64
	for _, p := range points {
		beyond := max(0, p.ttft-f.charged(p.prompt, p.uncached))
		all = append(all, beyond)
		if p.alone {
			idle = append(idle, beyond)
		}
	}
	slices.Sort(all)
	if len(idle) < idleLeast && len(all) > 0 {
		return all[len(all)/windowFast:][:1]
	}
	slices.Sort(idle)
	return thinned(untilOutliers(idle, f.charged(1, 1)))
}

// Noise is how sure the time of a usual step is, as parts of it: spread is by how much recordings differ, a standard deviation,
// and uncertain by how much what was learned from all of them may be off. Of a single recording both are how much its speed changed
// while it was made. They are 0 if the recordings do not show whole steps.
func (f *Fit) Noise() (spread, uncertain float64) {
	if f.steps == nil {
		return 0, 0
	}
	all := 0.0
	for _, v := range f.steps.levels {
		steps := float64(v.steps)
		spread, uncertain, all = spread+v.spread*steps, uncertain+v.uncertain*steps, all+steps
	}
	return spread / all, uncertain / all
}

// Drafts is the most tokens that the recordings saw accepted beyond the first in a step,
// and 0 without speculation.
func (f *Fit) Drafts() int { return f.drafts }

// Block is the tokens of the blocks in which the recordings' requests got their output,
// as those of a diffusion model; 0 if they did not.
func (f *Fit) Block() int { return f.block }

// Notes are what was left out of the recordings, and why, one sentence each.
func (f *Fit) Notes() []string { return f.notes }

// Transfer implements [Model].
func (f *Fit) Transfer(r *Request) time.Duration { return f.transfer.Transfer(r) }

// Duration implements [Model].
func (f *Fit) Duration(s *Step) time.Duration {
	for i := range s.Chunks {
		if s.Chunks[i].Request.uncached() > largePrompt {
			f.lastLarge = f.now
		}
	}
	f.say(s)
	ms := 0.0
	if pacer := pacerOf(s.Decodes); pacer != nil && f.steps != nil {
		ms = f.steps.time(s, pacer)
	} else {
		ms = f.compose(s, pacer)
	}
	f.now += ms
	return nanoseconds(ms * float64(time.Millisecond))
}

func (f *Fit) churn() bool { return f.now-f.lastLarge <= churnWindow }

// say sets the tokens of each decode, where the recordings had more than one token in a step.
func (f *Fit) say(s *Step) {
	if f.drafts == 0 && f.block == 0 || f.donors.empty() {
		return
	}
	crowd := crowdOf(s.Running, f.churn())
	for i := range s.Decodes {
		d := &s.Decodes[i]
		if d.Tokens > 1 {
			u := d.Request.uniform(drawStep, d.Context)
			d.Tokens = min(d.Tokens, f.donors.donorOf(d.Request, crowd).draw(u).tokens)
		}
	}
}

// draw is a step of the recorded request that d's is like.
func (f *Fit) draw(d *Decode, running int) sample {
	u := d.Request.uniform(drawStep, d.Context)
	if f.donors.empty() {
		return sample{quantile(f.marginalAt(running), u), 1}
	}
	return f.donors.donorOf(d.Request, crowdOf(running, f.churn())).draw(u)
}

// marginalAt holds all recorded gaps of the nearest concurrency.
func (f *Fit) marginalAt(running int) []float64 {
	own := concurrencyBucket(running)
	nearest := -1
	for b := range f.marginal {
		if len(f.marginal[b]) == 0 {
			continue
		}
		if nearest < 0 || max(b-own, own-b) < max(nearest-own, own-nearest) {
			nearest = b
		}
	}
	if nearest < 0 {
		return []float64{0}
	}
	return f.marginal[nearest]
}

// compose is the time of a step from its parts, ms: what the pacer's recorded counterpart
// saw, or the chunks, and what a first token takes beyond them.
func (f *Fit) compose(s *Step, pacer *Decode) float64 {
	decode, chunks, beyond := 0.0, f.chunks(s), 0.0
	if pacer != nil {
		decode = f.draw(pacer, s.Running).ms
	}
	ending := longestEnding(s.Chunks)
	for i := range s.Chunks {
		if s.Chunks[i].Last {
			beyond = max(beyond, f.beyond(s.Chunks[i].Request))
		}
	}
	if pacer != nil && ending != nil && f.law.zero() && f.stalls.any {
		// All that is known of chunks is how long such steps were as a whole.
		u := ending.uniform(drawFirst, 1)
		return max(decode, f.stalls.draw(ending.Prompt, s.Running, u), beyond)
	}
	return max(decode, chunks) + beyond
}

// longestEnding is the request with the longest prompt that ends, or nil.
func longestEnding(chunks []Chunk) *Request {
	var longest *Request
	for i := range chunks {
		c := &chunks[i]
		if c.Last && (longest == nil || c.Request.Prompt > longest.Prompt ||
			c.Request.Prompt == longest.Prompt && c.Request.key > longest.key) {
			longest = c.Request
		}
	}
	return longest
}

// chunks is what all chunks of a step take.
func (f *Fit) chunks(s *Step) float64 {
	if len(s.Chunks) == 0 {
		return 0
	}
	ms, tokens, pair := 0.0, 0, 0.0
	for i := range s.Chunks {
		c := &s.Chunks[i]
		ms += f.law.cost(c.Tokens, c.Depth)
		tokens += c.Tokens
		pair += pairs(c.Tokens, c.Depth)
	}
	if f.steps != nil {
		return f.steps.chunks(len(s.Chunks), tokens, pair)
	}
	if s.Left <= 0 {
		ms = max(ms, f.floor)
	}
	return ms
}

// cost is what a chunk takes by itself, ms; full is set if it uses the whole budget.
func (f *Fit) cost(tokens, depth int, full bool) float64 {
	switch {
	case f.steps != nil:
		return f.steps.chunks(1, tokens, pairs(tokens, depth))
	case full:
		return max(f.law.cost(tokens, depth), f.floor)
	}
	return f.law.cost(tokens, depth)
}

// beyond is what a prompt takes to its first token beyond what its chunks take on an
// engine without other work, ms.
func (f *Fit) beyond(r *Request) float64 {
	u := r.uniform(drawFirst, 0)
	if len(f.idle) > 0 {
		return quantile(f.idle, u)
	}
	return max(0, f.service.time(r.uncached(), u)-f.charged(r.Prompt, r.uncached()))
}

// charged is what the chunks of a prompt take of which so many tokens are computed, alone.
func (f *Fit) charged(prompt, uncached int) float64 {
	sum, left, depth := 0.0, uncached, max(prompt-uncached, 0)
	for left > f.budget {
		sum += f.cost(f.budget, depth, true)
		depth += f.budget
		left -= f.budget
	}
	return sum + f.cost(left, depth, false)
}

// chunkLaw is what a chunk of a prompt takes, ms: c0 for each token and c1 for each
// pair of a token and one before it, so that deep chunks take longer.
type chunkLaw struct {
	c0, c1 float64
}

func (l chunkLaw) zero() bool { return l.c0 == 0 && l.c1 == 0 }

func (l chunkLaw) cost(tokens, depth int) float64 {
	return l.c0*float64(tokens) + l.c1*pairs(tokens, depth)
}

// pairs is (d1² − d0²) / 2 for a chunk from depth d0 to d1.
func pairs(tokens, depth int) float64 {
	d0, d1 := float64(depth), float64(depth+tokens)
	return (d1*d1 - d0*d0) / 2
}

// An observation is what a chunk added to a step.
type observation struct {
	tokens, pairs, extra float64
}

const (
	cleanLeast        = 5   // clean gaps a record needs to tell its base
	chunkLeast        = 256 // tokens of a chunk that can be told from noise
	markDistance      = 2   // gaps on either side that must be without another prompt
	observationsLeast = 30
	lawRounds         = 4
)

// base is the median of the gaps in which no prompt ended, ms.
func base(gaps []gap) (float64, bool) {
	var clean []float64
	for _, g := range gaps {
		if g.prefill == 0 {
			clean = append(clean, g.ms)
		}
	}
	if len(clean) < cleanLeast {
		return 0, false
	}
	slices.Sort(clean)
	return clean[len(clean)/2], true
}

// observe returns what the marked gaps of one record show of chunks. The gap shows the
// last chunk of its prompt only: what is left of it by budgets.
func observe(gaps []gap, budget int) []observation {
	usual, ok := base(gaps)
	if !ok {
		return nil
	}
	var seen []observation
	for i, g := range gaps {
		if g.prefill == 0 || crowded(gaps, i) {
			continue
		}
		if last := (g.prefill-1)%budget + 1; last >= chunkLeast {
			extra := max(g.ms-usual, 0)
			seen = append(seen, observation{float64(last), pairs(last, g.prefill-last), extra})
		}
	}
	return seen
}

// crowded reports whether another prompt ended close to gap i.
func crowded(gaps []gap, i int) bool {
	for j := max(i-markDistance, 0); j <= min(i+markDistance, len(gaps)-1); j++ {
		if j != i && gaps[j].prefill > 0 {
			return true
		}
	}
	return false
}

// newChunkLaw fits the observations, leaving out the worst fifth three times. It is zero
// if they are too few or make no sense.
func newChunkLaw(seen []observation) chunkLaw {
	var law chunkLaw
	for range lawRounds {
		if len(seen) < observationsLeast {
			return chunkLaw{}
		}
		var ok bool
		if law, ok = leastSquares(seen); !ok {
			return chunkLaw{}
		}
		slices.SortStableFunc(seen, func(x, y observation) int {
			return cmp.Compare(law.residual(x), law.residual(y))
		})
		seen = seen[:len(seen)*4/5]
	}
	if law.c0 < 0 || law.c1 < 0 {
		return chunkLaw{}
	}
	return law
}

func (l chunkLaw) residual(o observation) float64 {
	return math.Abs(o.extra - l.c0*o.tokens - l.c1*o.pairs)
}

// leastSquares fits the two coefficients through the origin.
func leastSquares(seen []observation) (chunkLaw, bool) {
	var tt, tp, pp, te, pe float64
	for _, o := range seen {
		tt += o.tokens * o.tokens
		tp += o.tokens * o.pairs
		pp += o.pairs * o.pairs
		te += o.tokens * o.extra
		pe += o.pairs * o.extra
	}
	det := tt*pp - tp*tp
	if math.Abs(det) < 1e-9 {
		return chunkLaw{}, false
	}
	return chunkLaw{(te*pp - pe*tp) / det, (pe*tt - te*tp) / det}, true
}

// premium is what a step that uses its whole budget for prompts takes at least, ms. Gaps
// that no prompt ended in show it where they are about as long as the law says of a
// full chunk at depth 0.
func premium(records [][]gap, law chunkLaw, budget int) float64 {
	full := law.cost(budget, 0)
	if full == 0 {
		return 0
	}
	var extras []float64
	for _, gaps := range records {
		usual, ok := base(gaps)
		if !ok {
			continue
		}
		for _, g := range gaps {
			if extra := g.ms - usual; g.prefill == 0 && extra >= 0.8*full && extra <= 2.5*full {
				extras = append(extras, extra)
			}
		}
	}
	if len(extras) < observationsLeast {
		return 0
	}
	slices.Sort(extras)
	return extras[len(extras)/2]
}
