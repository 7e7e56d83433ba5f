package latency

import (
	"cmp"
	"slices"
	"sort"
)

// A gap is one recorded gap between chunks.
type gap struct {
	ms     float64
	tokens int
	// prefill is the tokens of the prompts that ended in the step, running the
	// requests in it; both are 0 where that was not recorded.
	prefill, running int
}

// A sample is a step as a request saw it: how long, and what it said.
type sample struct {
	ms     float64
	tokens int
}

// A donor is a recorded request whose steps another may take over, sorted by time. It is
// picked as often as it has said tokens.
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
// the record tells them. It reports whether any are left.
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
// nearer of these said.
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

// empty reports whether there is no donor at all.
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

func (s *stalls) finish() {
	for row := range s.cells {
		for col := range s.cells[row] {
			slices.Sort(s.cells[row][col])
		}
	}
}

// draw is a recorded step in which about such a prompt ended; there must be any.
func (s *stalls) draw(prompt, running int, u float64) float64 {
	filled := func(row, col int) bool { return len(s.cells[row][col]) > 0 }
	at := nearestCell(0, promptBucket(prompt), concurrencyBucket(running), filled)
	return quantile(s.cells[at[0]][at[1]], u)
}
