package latency

import (
	"cmp"
	"math"
	"slices"
	"sort"
)

// A point is the time to the first token of a recorded request, ms, its prompt and the
// tokens that were computed for it.
type point struct {
	prompt      int
	uncached    int
	ttft        float64
	concurrency int
	// alone is set if no other request came between this one and its first token.
	alone bool
}

// The service curve is fitted to the fast end of what windows of prompt sizes show.
const (
	windowWidth, windowStride = 600, 400
	windowLeast               = 5  // points that make a window
	windowFast                = 10 // the window's value is that of every tenth point
	quadraticWindows          = 4
	lineWindows               = 2
	// busiest bounds, as a multiple of the least concurrency recorded, which
	// requests may stand in when the quietest alone make no curve.
	busiest = 4
)

// service is what an engine without other work takes from a request to its first
// token: floor, or a + b·u + c·u² for u computed tokens, if that is more. A trace
// without a curve is used cell by cell.
type service struct {
	curve          bool
	a, b, c, floor float64
	cells          [promptBuckets]cell
	// step is what a step of one token takes. The time of a cell is not made shorter than that for a smaller prompt.
	step float64
}

// A cell holds the times of the prompts of one bucket, sorted, and the median of
// their computed tokens.
type cell struct {
	ttft   []float64
	median float64
}

// borrowed bounds how far a cell's times are stretched for a prompt of another bucket.
const leastBorrowed, maxBorrowed = 0.25, 8

// newService learns from the points of the least concurrency. Where these are too few
// to make a curve, points of more concurrency are taken in, one value after the other: the
// fast end of a window is of those that hardly waited.
func newService(points []point) service {
	var s service
	s.fillCells(points)
	slices.SortFunc(points, func(x, y point) int {
		return cmp.Or(cmp.Compare(x.uncached, y.uncached), cmp.Compare(x.ttft, y.ttft))
	})
	for _, most := range concurrencies(points) {
		var quiet []point
		for _, p := range points {
			if p.concurrency <= most {
				quiet = append(quiet, p)
			}
		}
		if s.fit(windowsOf(quiet)) {
			return s
		}
	}
	return s
}

// concurrencies returns the values that a curve may be made of, ascending.
func concurrencies(points []point) []int {
	var all []int
	for _, p := range points {
		all = append(all, p.concurrency)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	for i, c := range all {
		if c > busiest*all[0] {
			return all[:i]
		}
	}
	return all
}

// A window is the fast end of the points in it.
type window struct {
	u, ttft, weight float64
}

func windowsOf(points []point) []window {
	if len(points) == 0 {
		return nil
	}
	var windows []window
	last := points[len(points)-1].uncached
	for lo := points[0].uncached; lo <= last; lo += windowStride {
		from, _ := slices.BinarySearchFunc(points, lo, byUncached)
		to, _ := slices.BinarySearchFunc(points, lo+windowWidth, byUncached)
		if n := to - from; n >= windowLeast {
			times := make([]float64, 0, n)
			for _, p := range points[from:to] {
				times = append(times, p.ttft)
			}
			slices.Sort(times)
			u := float64(points[from+n/2].uncached)
			windows = append(windows, window{u, times[n/windowFast], math.Sqrt(float64(n))})
		} else if from == to && from < len(points) {
			// Nothing here: go on at the last stride that reaches the next point.
			skip := (points[from].uncached - lo - windowWidth) / windowStride
			lo += max(skip, 0) * windowStride
		}
	}
	return windows
}

func byUncached(p point, u int) int { return cmp.Compare(p.uncached, u) }

// fit makes the curve. It reports whether the windows make one that never falls.
func (s *service) fit(windows []window) bool {
	if len(windows) < lineWindows {
		return false
	}
	s.floor = windows[0].ttft
	for _, w := range windows {
		s.floor = min(s.floor, w.ttft)
	}
	umax := windows[len(windows)-1].u
	if len(windows) >= quadraticWindows {
		if p, ok := polynomial(windows, umax, 3); ok && p[2] >= 0 && p[1]+2*p[2] >= 0 {
			s.set(p[0], p[1]/umax, p[2]/umax/umax)
			return true
		}
	}
	if p, ok := polynomial(windows, umax, 2); ok && p[1] >= 0 {
		s.set(p[0], p[1]/umax, 0)
		return true
	}
	return false
}

func (s *service) set(a, b, c float64) { s.curve, s.a, s.b, s.c = true, a, b, c }

// polynomial is the weighted least squares fit of so many coefficients in u/scale. A
// coefficient that the rounding of numbers alone could make is 0.
func polynomial(windows []window, scale float64, terms int) ([3]float64, bool) {
	m := equations(terms)
	for _, w := range windows {
		powers := [3]float64{1, w.u / scale, w.u / scale * w.u / scale}
		for i := range terms {
			for j := range terms {
				m[i][j] += w.weight * powers[i] * powers[j]
			}
			m[i][terms] += w.weight * powers[i] * w.ttft
		}
	}
	var p [3]float64
	solved, ok := Solve(m)
	copy(p[:], solved)
	for i := range p {
		if math.Abs(p[i]) < 1e-12*math.Abs(windows[0].ttft) {
			p[i] = 0
		}
	}
	return p, ok
}

// equations are n equations of 0 with n unknowns, for [Solve].
func equations(n int) [][]float64 {
	m := make([][]float64, n)
	for i := range m {
		m[i] = make([]float64, n+1)
	}
	return m
}

// Solve is Gaussian elimination with partial pivoting of n equations with n unknowns, each with its right side as the last element. It
// reports whether there is one solution. The equations are changed.
func Solve(m [][]float64) (x []float64, ok bool) {
	n := len(m)
	x = make([]float64, n)
	for col := range n {
		pivot := col
		for row := col + 1; row < n; row++ {
			if math.Abs(m[row][col]) > math.Abs(m[pivot][col]) {
				pivot = row
			}
		}
		if math.Abs(m[pivot][col]) < 1e-12 {
			return x, false
		}
		m[col], m[pivot] = m[pivot], m[col]
		for row := col + 1; row < n; row++ {
			f := m[row][col] / m[col][col]
			for k := col; k <= n; k++ {
				m[row][k] -= f * m[col][k]
			}
		}
	}
	for row := n - 1; row >= 0; row-- {
		x[row] = m[row][n]
		for k := row + 1; k < n; k++ {
			x[row] -= m[row][k] * x[k]
		}
		x[row] /= m[row][row]
	}
	return x, true
}

// fillCells keeps for each bucket of sizes the times of its lowest bucket of concurrency.
func (s *service) fillCells(points []point) {
	var lowest [promptBuckets]int
	var sizes [promptBuckets][]float64
	for _, p := range points {
		b, c := promptBucket(p.uncached), concurrencyBucket(p.concurrency)
		cell := &s.cells[b]
		if len(cell.ttft) == 0 || c < lowest[b] {
			lowest[b], cell.ttft, sizes[b] = c, nil, nil
		}
		if c == lowest[b] {
			cell.ttft, sizes[b] = append(cell.ttft, p.ttft), append(sizes[b], float64(p.uncached))
		}
	}
	for b := range s.cells {
		if len(sizes[b]) == 0 {
			continue
		}
		slices.Sort(sizes[b])
		slices.Sort(s.cells[b].ttft)
		s.cells[b].median = sizes[b][len(sizes[b])/2]
		s.cells[b].ttft = untilOutliers(s.cells[b].ttft, 0)
	}
}

// time is what so many computed tokens take, ms. The draw, in [0, 1), matters where
// there is no curve.
func (s *service) time(uncached int, draw float64) float64 {
	u := float64(max(uncached, 1))
	if s.curve {
		return max(s.a+s.b*u+s.c*u*u, s.floor)
	}
	own := promptBucket(max(uncached, 1))
	nearest, distance := -1, 0
	for b := range s.cells {
		if d := max(b-own, own-b); len(s.cells[b].ttft) > 0 && (nearest < 0 || d < distance) {
			nearest, distance = b, d
		}
	}
	if nearest < 0 {
		return 0
	}
	cell := &s.cells[nearest]
	t := quantile(cell.ttft, draw)
	if distance == 0 {
		return t
	}
	return max(t*min(max(u/cell.median, leastBorrowed), maxBorrowed), min(t, s.step))
}

// quantile is the inverse of the cumulative distribution of sorted samples.
func quantile(sorted []float64, draw float64) float64 {
	position := draw * float64(len(sorted)-1)
	i := int(position)
	if i+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[i] + (position-float64(i))*(sorted[i+1]-sorted[i])
}

// untilOutliers cuts sorted samples that are more than four times their median, when
// each is taken as beyond some time: what is above was something else, such as a pause of
// the machine.
func untilOutliers(sorted []float64, beyond float64) []float64 {
	if len(sorted) == 0 {
		return sorted
	}
	most := 4*(sorted[len(sorted)/2]+beyond) - beyond
	return sorted[:sort.Search(len(sorted), func(i int) bool { return sorted[i] > most })]
}
