package inspect

import (
	"math"
	"slices"
)

// sketch is a distribution of values: all of them as long as they are few, then how many are in each of narrow
// ranges. So a trace of a million requests takes no more memory than one of some thousand.
type sketch struct {
	count          int
	sum, low, high float64

	few  []float64
	many bool // the values are in ranges, and few is empty
	// below and zero are the values below and at 0; counts[i] those from ratio^(first+i) to ratio^(first+i+1).
	below, zero int
	first       int
	counts      []uint32
}

const (
	// fewValues is how many values a sketch keeps exactly.
	fewValues = 1 << 14
	// sketchRatio is the width of a range: a quantile is off by half of it, 0.05 %.
	sketchRatio = 1.001
	// minValue is what counts as 0 ms: a nanosecond, the clock's own step.
	minValue = 1e-6
	// sketchRoom is by how many ranges counts grows at its lower end.
	sketchRoom = 256
)

var sketchLog = math.Log(sketchRatio)

func (s *sketch) add(v float64) { s.addMany(v, 1) }

func (s *sketch) addMany(v float64, n int) {
	if n <= 0 {
		return
	}
	if s.count == 0 {
		s.low, s.high = v, v
	}
	s.low, s.high = min(s.low, v), max(s.high, v)
	s.count += n
	s.sum += v * float64(n)
	if s.many || n > fewValues-len(s.few) {
		s.spill()
		s.put(v, n)
		return
	}
	for range n {
		s.few = append(s.few, v)
	}
}

// spill moves the values into ranges.
func (s *sketch) spill() {
	if s.many {
		return
	}
	s.many = true
	for _, v := range s.few {
		s.put(v, 1)
	}
	s.few = nil
}

func (s *sketch) put(v float64, n int) {
	switch {
	case v < 0:
		s.below += n
		return
	case v < minValue:
		s.zero += n
		return
	}
	i := int(math.Floor(math.Log(v) / sketchLog))
	if len(s.counts) == 0 {
		s.first = i - sketchRoom
	}
	if i < s.first {
		more := s.first - i + sketchRoom
		s.first -= more
		s.counts = append(make([]uint32, more, more+len(s.counts)), s.counts...)
	}
	if missing := i - s.first + 1 - len(s.counts); missing > 0 {
		s.counts = append(s.counts, make([]uint32, missing)...)
	}
	s.counts[i-s.first] += uint32(n)
}

func (s *sketch) merge(o *sketch) {
	if !o.many {
		for _, v := range o.few {
			s.add(v)
		}
		return
	}
	s.spill()
	if s.count == 0 {
		s.low, s.high = o.low, o.high
	}
	s.low, s.high = min(s.low, o.low), max(s.high, o.high)
	s.count, s.sum = s.count+o.count, s.sum+o.sum
	s.below, s.zero = s.below+o.below, s.zero+o.zero
	for i, n := range o.counts {
		if n > 0 {
			s.put(middleOf(o.first+i), int(n))
		}
	}
}

// middleOf is the middle of a range.
func middleOf(i int) float64 { return math.Exp((float64(i) + 0.5) * sketchLog) }

// quantile is the value that so much of all does not exceed (nearest rank).
func (s *sketch) quantile(q float64) float64 {
	if s.count == 0 {
		return 0
	}
	rank := min(max(int(math.Ceil(q*float64(s.count)))-1, 0), s.count-1)
	if !s.many {
		slices.Sort(s.few)
		return s.few[rank]
	}
	if rank < s.below {
		return s.low
	}
	if rank -= s.below; rank < s.zero {
		return 0
	}
	rank -= s.zero
	for i, n := range s.counts {
		if rank < int(n) {
			return min(max(middleOf(s.first+i), s.low), s.high)
		}
		rank -= int(n)
	}
	return s.high
}

func (s *sketch) mean() float64 { return s.sum / float64(max(s.count, 1)) }

func (s *sketch) distribution() Distribution {
	return Distribution{s.count, s.mean(), s.quantile(0.5), s.quantile(0.9), s.quantile(0.99)}
}

// whole is the distribution of values that are whole numbers.
func (s *sketch) whole() Counts {
	at := func(v float64) int { return int(math.Round(v)) }
	return Counts{
		Sum: at(s.sum), Mean: s.mean(), Min: at(s.low), P50: at(s.quantile(0.5)), P90: at(s.quantile(0.9)), Max: at(s.high),
	}
}
