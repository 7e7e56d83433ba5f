package inspect

import (
	"math"
	"slices"
	"strconv"

	"github.com/vllm-vcr/conformance/trace"
)

// inferred is what a trace shows of the engine's steps: all outputs of a step have the same time. Which part of a prompt a
// step computed is not recorded. It follows from the number of tokens that a step computes at most.
type inferred struct {
	// ends is when each step ended, in units of 1/stepUnit ms. It is empty if the outputs are too many to keep.
	ends []int64
	// begins is when it began, ms; decodes and prompts are the tokens that it computed.
	begins  []float64
	decodes []int32
	prompts []int32
	// chunks are the parts of the prompts.
	chunks []chunk
}

// chunk is a part of a prompt, and the step that computed it.
type chunk struct{ step, tokens int32 }

// stepUnit is the part of a ms in which times of the same step are equal: sums of gaps are off by less.
const stepUnit = 1e4

func stepTime(ms float64) int64 { return wholeUnits(ms, stepUnit) }

// maxUnits is further away than any time, and fits an int64 with room for sums.
const maxUnits = 4e18

// wholeUnits is a time in units of which a millisecond has so many.
func wholeUnits(ms, units float64) int64 {
	return int64(math.Round(min(max(ms*units, -maxUnits), maxUnits)))
}

func (s *inferred) endMs(step int) float64 { return float64(s.ends[step]) / stepUnit }

func (s *inferred) find(at int64) int {
	i, _ := slices.BinarySearch(s.ends, at)
	return i
}

// infer finds the steps, and when the engine began with each prompt.
func (t *Timeline) infer() {
	if t.many {
		t.Notes = append(t.Notes, "the trace has more than "+strconv.Itoa(maxGaps)+" outputs: single outputs and the steps of the engine are left out")
		return
	}
	s := &t.steps
	t.eachOutput(func(o output) { s.ends = append(s.ends, o.at) })
	slices.Sort(s.ends)
	s.ends = slices.Compact(s.ends)
	s.begins, s.decodes, s.prompts = make([]float64, len(s.ends)), make([]int32, len(s.ends)), make([]int32, len(s.ends))
	for i := range s.begins {
		s.begins[i] = math.Inf(1)
	}
	t.eachOutput(func(o output) {
		if step := s.find(o.at); !o.isFirst {
			s.decodes[step] += o.tokens
			s.begins[step] = min(s.begins[step], float64(o.before)/stepUnit)
		}
	})
	budget := int32(defaultTokens)
	if engine, err := EngineOf(&trace.Trace{Meta: t.meta}, Override{}); err == nil {
		budget = int32(min(engine.MaxNumBatchedTokens, math.MaxInt32))
	}
	for _, i := range t.order {
		if r := &t.all[i]; r.output > 0 {
			s.place(r, budget)
		}
	}
	for step := range s.begins {
		begin := min(s.begins[step], s.endMs(step))
		if step > 0 {
			begin = max(begin, s.endMs(step-1))
		}
		s.begins[step] = begin
	}
}

// output is one of a request, at a time in units of steps; before is the time of the output before it.
type output struct {
	at, before int64
	tokens     int32
	isFirst    bool
}

func (t *Timeline) eachOutput(do func(output)) {
	for i := range int32(len(t.all)) {
		r := &t.all[i]
		if r.output == 0 {
			continue
		}
		ms := r.first
		o := output{at: stepTime(ms), isFirst: true}
		do(o)
		for k := r.gaps; k < r.gaps+r.gapCount; k++ {
			ms += t.gaps[k]
			o = output{at: stepTime(ms), before: o.at, tokens: int32(t.sizes[k])}
			do(o)
		}
	}
}

// place distributes the prompt of a request over the steps before its first token, as far as they have room: the last of
// them first, and none that began before the request came.
func (s *inferred) place(r *row, budget int32) {
	last := s.find(stepTime(r.first))
	left := max(r.prompt-r.cached, 1)
	r.chunks = int32(len(s.chunks))
	begin := r.first
	for step := last; step >= 0 && left > 0; step-- {
		previous := math.Inf(-1)
		if step > 0 {
			previous = s.endMs(step - 1)
		}
		if step < last && previous < r.arrival {
			break
		}
		take := min(left, budget-s.decodes[step]-s.prompts[step])
		if step == last {
			take = max(take, 1) // the first token comes from the last part of the prompt
		}
		if take > 0 {
			s.prompts[step] += take
			left -= take
			begin = max(r.arrival, previous)
			s.begins[step] = min(s.begins[step], begin)
			s.chunks = append(s.chunks, chunk{int32(step), take})
		}
		if previous < r.arrival {
			break
		}
	}
	slices.Reverse(s.chunks[r.chunks:])
	r.chunkCount = int32(len(s.chunks)) - r.chunks
	r.prefill, r.isInferred = min(begin, max(r.first, r.arrival)), true
}
