package latency

import (
	"cmp"
	"math"
	"slices"
)

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

// observe returns what the marked gaps of one record say of chunks. The gap shows the
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
