package latency

import (
	"cmp"
	"math"
	"slices"

	"github.com/vllm-vcr/conformance/trace"
)

// A step is one that the engine was seen to make: what it took, and what it computed.
type step struct {
	at, ms  float64 // its end, and what it took; 0 if that is not known
	decodes int
	context int // of all decodes together
	// chunks is the number of parts of prompts, tokens and pairs their sums.
	chunks, tokens int
	pairs          float64
	full           bool // the step used its whole budget
	position, take int  // in its recording, and which recording that is
}

// requests is how many the step served.
func (s *step) requests() int { return s.decodes + s.chunks }

// A spoken is one chunk of output: which record's, when, and after which other one.
type spoken struct {
	at, since float64 // since is NaN for a first chunk
	record    int
	context   int
}

// together is how far the times of one message's outputs may lie apart, ms. They
// differ by the rounding of sums only.
const together = 1e-3

// stepsOf finds the steps of an engine in one recording of its requests. All
// outputs of a step have one time. A step took as long as a gap that began with the
// step before; a step in which no such gap closes may not be the next one, and is left
// out. So is one in which a request spoke twice: its messages were held up.
//
// A prompt's chunks are not recorded, but follow: a prompt that does not fit into what
// the decodes left of the budget took all that was left in the steps before.
func stepsOf(records []trace.Record, budget int) []step {
	outputs := spokenOf(records)
	var steps []step
	var free []int     // what prompts have not used of the budget, per step
	var firsts [][]int // records whose first token came, per step
	last := math.Inf(-1)
	for from := 0; from < len(outputs); {
		to := from + 1 // even where the difference to itself is not a number
		for to < len(outputs) && outputs[to].at-outputs[from].at <= together {
			to++
		}
		s, first := stepOf(outputs[from:to], last)
		s.at = outputs[from].at
		steps, firsts = append(steps, s), append(firsts, first)
		free = append(free, budget-s.decodes)
		last, from = outputs[from].at, to
	}
	for i := range steps {
		slices.SortStableFunc(firsts[i], func(x, y int) int {
			return cmp.Compare(*records[x].ArrivalMs, *records[y].ArrivalMs)
		})
		for _, r := range firsts[i] {
			computed(steps, free, i, &records[r])
		}
	}
	for i := range steps {
		steps[i].full, steps[i].position = free[i] <= 0, i
	}
	return slices.DeleteFunc(steps, func(s step) bool { return s.decodes == 0 || s.ms <= 0 })
}

// spokenOf lists the outputs of the records that have their times, by time.
func spokenOf(records []trace.Record) []spoken {
	var all []spoken
	for i := range records {
		r := &records[i]
		if r.ArrivalMs == nil || r.OutputTokens == 0 || r.ITLMs == nil && r.OutputTokens > 1 {
			continue
		}
		sizes := r.Chunks()
		at, context := *r.ArrivalMs+r.TTFTMs, r.PromptTokens
		all = append(all, spoken{at, math.NaN(), i, context})
		for j, ms := range r.ITLMs {
			context += sizes[j]
			all = append(all, spoken{at + ms, at, i, context})
			at += ms
		}
	}
	slices.SortStableFunc(all, func(x, y spoken) int { return cmp.Compare(x.at, y.at) })
	return all
}

// stepOf is the step of these outputs, after one that ended at last. The records
// whose first token came are in the order of the file.
func stepOf(outputs []spoken, last float64) (s step, firsts []int) {
	whole, seen := false, make(map[int]bool, len(outputs))
	for _, o := range outputs {
		if seen[o.record] {
			return step{}, firsts
		}
		seen[o.record] = true
		if math.IsNaN(o.since) {
			firsts = append(firsts, o.record)
			continue
		}
		s.decodes++
		s.context += o.context
		if math.Abs(o.since-last) <= together {
			s.ms, whole = o.at-o.since, true
		}
	}
	if !whole {
		s.ms = 0
	}
	return s, firsts
}

// computed puts the chunks of a prompt that ended in step i into it and the steps before,
// back to its arrival as long as these leave some of it to step i. Where there is no room for
// all of it, or where a step may have had some of it of which it is not known what it did,
// the steps since the arrival are left out.
func computed(steps []step, free []int, i int, r *trace.Record) {
	tokens, first, room, known := uncachedOf(r), i, free[i], true
	for before := 0; first > 0 && steps[first].ms > 0; first-- {
		s := &steps[first-1]
		before += free[first-1]
		known = s.ms > 0 || s.at <= *r.ArrivalMs
		if s.ms == 0 || s.at-s.ms < *r.ArrivalMs || before >= tokens {
			break
		}
		room += free[first-1]
	}
	if room < tokens || !known || steps[i].ms == 0 {
		for ; i >= 0 && steps[i].at > *r.ArrivalMs; i-- {
			steps[i].ms, free[i] = 0, 0
		}
		return
	}
	depth := max(r.PromptTokens-tokens, 0)
	for ; first <= i; first++ {
		n := min(tokens, max(free[first], 0))
		if n == 0 {
			continue
		}
		s := &steps[first]
		s.chunks, s.tokens, s.pairs = s.chunks+1, s.tokens+n, s.pairs+pairs(n, depth)
		free[first] -= n
		tokens, depth = tokens-n, depth+n
	}
}
