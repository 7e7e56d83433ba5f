package latency

import (
	"cmp"
	"math"
	"slices"
)

// A stepLaw is what a step takes, ms, learned from steps that were seen: by the number of
// requests in it, the contexts of the decodes, and the chunks.
type stepLaw struct {
	// levels are the times of steps with so many requests and no context, ascending by
	// requests; perContext is added for each token of context.
	levels     []level
	perContext float64
	// once is what chunks take in a step beyond what each of them does. If hides is set,
	// chunks take no longer than their step's decodes where these are longer; else
	// they are added.
	once  float64
	chunk chunkLaw
	hides bool
	// clean, mixed and full are what steps without chunks, with them, and with their
	// budget used up took as a part of what the law says, sorted.
	clean, mixed, full []float64
	// pauses are how much longer, ms, steps took in which something else had the machine,
	// sorted; there is one in every pausesEvery ms. Long steps meet more of them, and not longer ones.
	pauses      []float64
	pausesEvery float64
	notes       []string
}

const (
	stepsLeast = 100  // clean steps without which there is no law
	maxNoise   = 4096 // factors that are kept
	// hidesBetter is how much better the law must tell the recorded times with chunks
	// hidden than with chunks added.
	hidesBetter = 0.9
	// A step was paused that took so many times longer than a usual step does, beyond what the law says of it.
	pauseFactor = 3
	// So many steps at the start of a recording are left out if they took more than
	// warmUpFactor times what the law says: the engine was warming up.
	warmSteps = 20
)

// newStepLaw learns from steps with decodes. It returns nil if they are too few.
func newStepLaw(steps []step) *stepLaw {
	var clean, mixed []step
	for _, s := range steps {
		if s.chunks == 0 {
			clean = append(clean, s)
		} else {
			mixed = append(mixed, s)
		}
	}
	if len(clean) < stepsLeast {
		return nil
	}
	l := &stepLaw{perContext: contextSlope(clean)}
	l.levels, l.notes = levelsOf(clean, l.perContext)
	l.fitChunks(mixed)
	l.deviate(steps)
	return l
}

// deviate keeps how far the steps lie from the law, and apart from that the pauses.
func (l *stepLaw) deviate(steps []step) {
	pause, total := pauseFactor*l.usual(steps), 0.0
	for i := range steps {
		s := &steps[i]
		law := l.of(s)
		part := s.ms / law
		if s.position < warmSteps && part > warmUpFactor {
			continue
		}
		total += law
		if s.ms-law > pause {
			l.pauses = append(l.pauses, s.ms-law)
			continue
		}
		if s.chunks == 0 {
			l.clean = append(l.clean, part)
			continue
		}
		l.mixed = append(l.mixed, part)
		if s.full {
			l.full = append(l.full, part)
		}
	}
	slices.Sort(l.pauses)
	// Seconds without the machine happen to none of its engines again.
	if l.pauses = untilOutliers(l.pauses, 0); len(l.pauses) > 0 {
		l.pausesEvery = total / float64(len(l.pauses))
	}
	l.clean, l.mixed, l.full, l.pauses = thinned(l.clean), thinned(l.mixed), thinned(l.full), thinned(l.pauses)
}

// usual is the median of what the law says of steps without chunks.
func (l *stepLaw) usual(steps []step) float64 {
	var all []float64
	for i := range steps {
		if steps[i].chunks == 0 {
			all = append(all, l.of(&steps[i]))
		}
	}
	return median(all)
}

// paused is how much longer a step of so many ms takes because of pauses; u is a draw. With the same draw a longer step never has
// the shorter pause.
func (l *stepLaw) paused(ms, u float64) float64 {
	if len(l.pauses) == 0 {
		return 0
	}
	chance := min(ms/l.pausesEvery, 1)
	if u >= chance {
		return 0
	}
	return quantile(l.pauses, 1-u/chance)
}

// byRequests sorts steps into groups of the same number of requests.
func byRequests(steps []step) [][]step {
	sorted := slices.SortedStableFunc(slices.Values(steps), func(x, y step) int {
		return cmp.Or(cmp.Compare(x.requests(), y.requests()), cmp.Compare(x.ms, y.ms))
	})
	var groups [][]step
	for from := 0; from < len(sorted); {
		to := from
		for to < len(sorted) && sorted[to].requests() == sorted[from].requests() {
			to++
		}
		groups = append(groups, sorted[from:to])
		from = to
	}
	return groups
}

// decodes is what a step takes without its chunks.
func (l *stepLaw) decodes(requests, context int) float64 {
	return l.level(float64(requests)) + l.perContext*float64(context)
}

// level is the time between those of the two nearest levels, in proportion. Beyond the
// last it goes on as from the first to the last, and never falls.
func (l *stepLaw) level(requests float64) float64 {
	first, last := l.levels[0], l.levels[len(l.levels)-1]
	if requests >= last.requests {
		if first == last {
			return last.ms
		}
		slope := (last.ms - first.ms) / (last.requests - first.requests)
		return last.ms + max(slope, 0)*(requests-last.requests)
	}
	if requests <= first.requests {
		return first.ms
	}
	i, _ := slices.BinarySearchFunc(l.levels, requests, func(v level, n float64) int { return cmp.Compare(v.requests, n) })
	lower, upper := l.levels[i-1], l.levels[i]
	return lower.ms + (upper.ms-lower.ms)*(requests-lower.requests)/(upper.requests-lower.requests)
}

// of is what the law says of a step.
func (l *stepLaw) of(s *step) float64 {
	return l.together(l.decodes(s.requests(), s.context), s.tokens, s.pairs)
}

// together is what decodes and chunks take in one step.
func (l *stepLaw) together(decodes float64, tokens int, pairs float64) float64 {
	if tokens == 0 {
		return decodes
	}
	chunks := l.once + l.chunk.c0*float64(tokens) + l.chunk.c1*pairs
	if l.hides {
		return max(decodes, chunks)
	}
	return decodes + chunks
}

// fitChunks decides whether chunks are added to the decodes of their step or hide them,
// and what they take.
func (l *stepLaw) fitChunks(steps []step) {
	if len(steps) < observationsLeast {
		return
	}
	added, hidden := *l, *l
	hidden.hides = true
	added.solveChunks(steps)
	hidden.solveChunks(steps)
	*l = added
	if hidden.error(steps) < hidesBetter*added.error(steps) {
		*l = hidden
	}
}

// error is the median of how far the law is off, as a part of the recorded time.
func (l *stepLaw) error(steps []step) float64 {
	var off []float64
	for i := range steps {
		off = append(off, math.Abs(l.of(&steps[i])/steps[i].ms-1))
	}
	return median(off)
}

// solveChunks fits once and the chunk law, leaving out the worst fifth three times.
func (l *stepLaw) solveChunks(steps []step) {
	for range lawRounds {
		var shown []step
		for _, s := range steps {
			// Chunks that are hidden show nothing.
			if !l.hides || s.ms > l.decodes(s.requests(), s.context) {
				shown = append(shown, s)
			}
		}
		if len(shown) < observationsLeast {
			return
		}
		l.once, l.chunk = l.coefficients(shown)
		slices.SortStableFunc(shown, func(x, y step) int { return cmp.Compare(l.off(&x), l.off(&y)) })
		steps = shown[:len(shown)*4/5]
	}
}

func (l *stepLaw) off(s *step) float64 { return math.Abs(l.of(s)/s.ms - 1) }

// coefficients are the least squares, each step weighing as the inverse of its time. What
// would be negative is left out.
func (l *stepLaw) coefficients(steps []step) (once float64, law chunkLaw) {
	use := [3]bool{true, true, true}
	for {
		x, ok := l.normal(steps, use)
		least := 0
		for i := range x {
			if x[i] < x[least] {
				least = i
			}
		}
		if ok && x[least] >= 0 {
			return x[0], chunkLaw{x[1], x[2]}
		}
		if !ok { // the chunks are too much alike: tell their tokens only
			least = 2
			if !use[2] {
				least = 0
			}
		}
		if !use[least] {
			return 0, chunkLaw{}
		}
		use[least] = false
	}
}

// normal solves the normal equations of the coefficients in use; the others are 0.
func (l *stepLaw) normal(steps []step, use [3]bool) (x [3]float64, ok bool) {
	var scale [3]float64 // brings all columns to the same size
	var index []int
	for i := range use {
		if use[i] {
			index = append(index, i)
		}
	}
	for i := range steps {
		for j, v := range steps[i].columns() {
			scale[j] = max(scale[j], v)
		}
	}
	usual := steps[len(steps)/2].ms // brings the weights to about 1
	m := equations(len(index))
	for i := range steps {
		s := &steps[i]
		y := s.ms
		if !l.hides {
			y -= l.decodes(s.requests(), s.context)
		}
		columns, weight := s.columns(), usual*usual/(s.ms*s.ms)
		for a, p := range index {
			for b, q := range index {
				m[a][b] += weight * columns[p] / scale[p] * columns[q] / scale[q]
			}
			m[a][len(index)] += weight * columns[p] / scale[p] * y
		}
	}
	solved, ok := Solve(m)
	for a, p := range index {
		x[p] = solved[a] / scale[p]
	}
	return x, ok
}

// columns is what the coefficients of a step's chunks multiply.
func (s *step) columns() [3]float64 { return [3]float64{1, float64(s.tokens), s.pairs} }

// time is what a step with decodes takes.
func (l *stepLaw) time(s *Step, pacer *Decode) float64 {
	context, tokens, pair := 0, 0, 0.0
	for i := range s.Decodes {
		context += s.Decodes[i].Context
	}
	for i := range s.Chunks {
		tokens += s.Chunks[i].Tokens
		pair += pairs(s.Chunks[i].Tokens, s.Chunks[i].Depth)
	}
	draw := pacer.Request.uniform(drawStep, pacer.Context)
	ms := l.together(l.decodes(len(s.Decodes)+len(s.Chunks), context), tokens, pair) * quantile(l.noise(s), draw)
	if tokens > 0 { // however steps with chunks scatter, none is shorter than it were without
		ms = max(ms, l.decodes(len(s.Decodes), context)*quantile(l.clean, draw))
	}
	return ms + l.paused(ms, pacer.Request.uniform(drawPause, pacer.Context))
}

// noise is how much steps like this one deviate.
func (l *stepLaw) noise(s *Step) []float64 {
	switch {
	case len(s.Chunks) == 0 || len(l.mixed) < observationsLeast:
		return l.clean
	case s.Left <= 0 && len(l.full) >= observationsLeast:
		return l.full
	}
	return l.mixed
}

// chunks is what a step takes that computes chunks only, of so many requests.
func (l *stepLaw) chunks(requests, tokens int, pairs float64) float64 {
	return l.together(l.decodes(requests, 0), tokens, pairs)
}

// thinned sorts the factors, and keeps some of many, evenly.
func thinned(factors []float64) []float64 {
	slices.Sort(factors)
	return evenly(factors, maxNoise)
}

// evenly keeps so many of the values, from the first to the last.
func evenly[T any](values []T, most int) []T {
	n := len(values)
	if n <= most {
		return values
	}
	kept := make([]T, most)
	for i := range kept {
		kept[i] = values[i*(n-1)/(most-1)]
	}
	return kept
}
