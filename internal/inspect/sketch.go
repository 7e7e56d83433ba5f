package inspect

import (
	"math"
	"slices"

	"github.com/DataDog/sketches-go/ddsketch"
)

// sketch is a distribution of values: all of them as long as they are few, then how many are in each of narrow ranges. So a
// trace of a million requests takes no more memory than one of some thousand.
type sketch struct {
	count          int
	sum, low, high float64

	few  []float64
	many *ddsketch.DDSketch // has the values in place of few
}

const (
	// fewValues is how many values a sketch keeps exactly.
	fewValues = 1 << 14
	// sketchAccuracy is the part of itself by which a quantile of more values is off at most.
	sketchAccuracy = 0.0005
	// minValue is what counts as 0 ms: a nanosecond, the clock's own step.
	minValue = 1e-6
)

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
	if s.many != nil || n > fewValues-len(s.few) {
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
	if s.many != nil {
		return
	}
	var err error
	if s.many, err = ddsketch.LogUnboundedDenseDDSketch(sketchAccuracy); err != nil {
		panic(err) // the accuracy is valid
	}
	for _, v := range s.few {
		s.put(v, 1)
	}
	s.few = nil
}

func (s *sketch) put(v float64, n int) {
	if math.Abs(v) < minValue {
		v = 0
	}
	if err := s.many.AddWithCount(v, float64(n)); err != nil {
		panic(err) // readers of traces limit the values
	}
}

func (s *sketch) merge(o *sketch) {
	if o.count == 0 {
		return
	}
	if s.count == 0 {
		s.low, s.high = o.low, o.high
	}
	s.low, s.high = min(s.low, o.low), max(s.high, o.high)
	s.count, s.sum = s.count+o.count, s.sum+o.sum
	if s.many == nil && o.many == nil && len(s.few)+len(o.few) <= fewValues {
		s.few = append(s.few, o.few...)
		return
	}
	s.spill()
	o.each(s.put)
}

// each passes on the values, and how many of each there are.
func (s *sketch) each(do func(v float64, n int)) {
	for _, v := range s.few {
		do(v, 1)
	}
	if s.many != nil {
		s.many.ForEach(func(v, n float64) (stop bool) {
			do(min(max(v, s.low), s.high), int(n))
			return false
		})
	}
}

// quantile is the value that so much of all does not exceed (nearest rank).
func (s *sketch) quantile(q float64) float64 {
	if s.count == 0 {
		return 0
	}
	rank := min(max(int(math.Ceil(q*float64(s.count)))-1, 0), s.count-1)
	if s.many == nil {
		slices.Sort(s.few)
		return s.few[rank]
	}
	v, err := s.many.GetValueAtQuantile(min((float64(rank)+0.5)/float64(s.count-1), 1))
	if err != nil {
		panic(err) // it has values, and the part is from 0 to 1
	}
	return min(max(v, s.low), s.high)
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
