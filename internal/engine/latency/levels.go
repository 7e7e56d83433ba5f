package latency

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// A level is what steps with about so many requests take.
type level struct {
	requests, ms float64
	// spread is by what part of ms recordings differ, a standard deviation, and uncertain by what part ms itself may be off;
	// weight is how much it counts, compared with other levels.
	spread, uncertain, weight float64
	steps                     int
}

const (
	levelLeast = 20   // steps without chunks that make a level
	levelMs    = 1e-3 // the least a level takes, so that times can be told as parts of it
	// steadiest is the least that the speed of a machine changes, as a part, from one recording to the next, and unknownNoise
	// what is assumed of a recording with too few steps to tell.
	steadiest, unknownNoise = 0.02, 0.25
	// unlikely is from how many times the time of more requests on a level is reported.
	unlikely = 1.2
)

// levelsOf groups the steps by requests, neighbours together until they are enough. A level's time is the median of the
// recordings' medians, where the steady ones weigh more. Levels never fall with more requests: see [isotonic].
func levelsOf(steps []step, perContext float64) (levels []level, notes []string) {
	var group []step
	groups := byRequests(steps)
	for i := range groups {
		group = append(group, groups[i]...)
		if len(group) < levelLeast && (i < len(groups)-1 || len(levels) > 0) {
			continue
		}
		levels = append(levels, levelOf(group, perContext))
		group = nil
	}
	for from := range levels {
		for to := len(levels) - 1; to > from; to-- {
			if slow, fast := levels[from], levels[to]; slow.ms > unlikely*fast.ms {
				notes = append(notes, fmt.Sprintf("recorded steps with %.3g requests took %.1f ms, and those with %.3g requests took %.1f ms: "+
					"the model never gets faster as requests are added", slow.requests, slow.ms, fast.requests, fast.ms))
				break
			}
		}
	}
	isotonic(levels)
	return levels, notes
}

func levelOf(steps []step, perContext float64) level {
	v := level{steps: len(steps)}
	for _, s := range steps {
		v.requests += float64(s.requests()) / float64(len(steps))
	}
	var takes []weighted
	var noise float64 // of the last recording, which matters if it is the only one
	for _, of := range byTake(steps) {
		var t weighted
		t, noise = takeOf(of, perContext)
		takes = append(takes, t)
	}
	v.ms = max(weightedMedian(slices.Clone(takes)), levelMs)
	squares := 0.0
	for _, t := range takes {
		v.weight += t.weight
		squares += t.weight * (t.value/v.ms - 1) * (t.value/v.ms - 1)
	}
	if n := float64(len(takes)); n > 1 {
		v.spread = math.Sqrt(squares / v.weight * n / (n - 1))
		v.uncertain = v.spread / math.Sqrt(n)
	} else {
		v.spread, v.uncertain = noise, noise
	}
	return v
}

// A stretch is some successive steps of one recording with equally many requests.
type stretch struct {
	context, ms float64 // of the step that took the median
	steps       int
}

// maxStretches bounds the pairs that a slope is found from.
const maxStretches = 256

// contextSlope is what a token of context adds to a step, at least 0: the median of the slopes between any two stretches of steps
// with equally many requests, those whose contexts are far apart weighing more (Theil and Sen). So a recording in which something
// else had the machine does not decide, nor do the few steps in which it paused.
func contextSlope(steps []step) float64 {
	var slopes []weighted
	for _, group := range byRequests(steps) {
		var stretches []stretch
		for _, of := range byTake(group) {
			for some := range slices.Chunk(of, levelLeast) {
				stretches = append(stretches, stretchOf(some))
			}
		}
		stretches = evenly(stretches, maxStretches)
		for i, a := range stretches {
			for _, b := range stretches[:i] {
				if apart := math.Abs(a.context - b.context); apart > 0 {
					slopes = append(slopes, weighted{(a.ms - b.ms) / (a.context - b.context), apart * float64(min(a.steps, b.steps))})
				}
			}
		}
	}
	return max(weightedMedian(slopes), 0)
}

func stretchOf(steps []step) stretch {
	sorted := slices.SortedFunc(slices.Values(steps), func(x, y step) int { return cmp.Compare(x.ms, y.ms) })
	middle := sorted[len(sorted)/2]
	return stretch{float64(middle.context), middle.ms, len(steps)}
}

// byTake sorts steps into those of each recording, in its order.
func byTake(steps []step) (takes [][]step) {
	sorted := slices.SortedStableFunc(slices.Values(steps), func(x, y step) int {
		return cmp.Or(cmp.Compare(x.take, y.take), cmp.Compare(x.position, y.position))
	})
	for from := 0; from < len(sorted); {
		to := from + 1
		for to < len(sorted) && sorted[to].take == sorted[from].take {
			to++
		}
		takes = append(takes, sorted[from:to])
		from = to
	}
	return takes
}

// takeOf is what the steps of one recording take without their contexts, and by what part of that the medians of its stretches
// scatter, as the speed of the machine changed. It weighs as the inverse of the variance of what is the mean of them.
func takeOf(steps []step, perContext float64) (of weighted, noise float64) {
	var all, stretches []float64
	for some := range slices.Chunk(steps, levelLeast) {
		var times []float64
		for _, s := range some {
			times = append(times, s.ms-perContext*float64(s.context))
		}
		all = append(all, times...)
		if len(times) == levelLeast {
			stretches = append(stretches, median(times))
		}
	}
	ms := max(median(all), levelMs)
	noise = unknownNoise
	if len(stretches) >= 2 {
		for i := range stretches {
			stretches[i] = math.Abs(stretches[i]/ms - 1)
		}
		noise = max(1.5*median(stretches), steadiest) // of normal noise, the standard deviation
	}
	return weighted{ms, float64(max(len(stretches), 1)) / (noise * noise)}, noise
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// weighted is a value and how much it counts, compared with others.
type weighted struct {
	value, weight float64
}

// weightedMedian is the value with as much weight of others below as above it, in proportion between two; 0 if there are none.
func weightedMedian(all []weighted) float64 {
	slices.SortFunc(all, func(x, y weighted) int { return cmp.Compare(x.value, y.value) })
	half := 0.0
	for _, v := range all {
		half += v.weight / 2
	}
	middle, below := 0.0, 0.0 // where the weight of the one before has its middle, and the weight up to this one
	for i, v := range all {
		before := middle
		middle = below + v.weight/2
		below += v.weight
		if middle < half && i < len(all)-1 {
			continue
		}
		if i == 0 || middle <= half {
			return v.value
		}
		return all[i-1].value + (v.value-all[i-1].value)*(half-before)/(middle-before)
	}
	return 0
}

// isotonic makes levels that fall with more requests equal: neighbours that contradict each other take the time that half of
// their weight does not exceed (least absolute deviations, by pooling adjacent violators). Other work on a machine makes steps
// longer and never shorter, so of two that weigh the same the shorter one holds.
func isotonic(levels []level) {
	var ends []int // of the blocks
	var times []float64
	for i := range levels {
		from, ms := i, levels[i].ms
		for len(times) > 0 && times[len(times)-1] > ms {
			ends, times = ends[:len(ends)-1], times[:len(times)-1]
			from = 0
			if len(ends) > 0 {
				from = ends[len(ends)-1]
			}
			ms = lowerMedian(levels[from : i+1])
		}
		ends, times = append(ends, i+1), append(times, ms)
	}
	from := 0
	for i, end := range ends {
		for ; from < end; from++ {
			levels[from].ms = times[i]
		}
	}
}

func lowerMedian(levels []level) float64 {
	sorted := slices.SortedFunc(slices.Values(levels), func(x, y level) int { return cmp.Compare(x.ms, y.ms) })
	total, below := 0.0, 0.0
	for _, v := range sorted {
		total += v.weight
	}
	for _, v := range sorted {
		if below += v.weight; below >= total/2 {
			return v.ms
		}
	}
	return sorted[len(sorted)-1].ms
}
