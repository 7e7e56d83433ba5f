package latency

import (
	"math"
	"time"
)

// A Law is what a step takes as a sum of constants, each of which multiplies what the step computes ([Step.Terms]). Few constants can
// be learned from the times of whole requests. See [Terms]. It has no memory and draws nothing.
type Law [len(Terms)]float64

// Term is what one constant of a [Law] multiplies.
type Term struct {
	// Name is for reports, Unit that of the constant.
	Name, Unit string
}

// Terms are the constants of a law. All are at least 0, so no step takes less time because it computes more.
var Terms = [...]Term{
	{"each step: weights, launches", "ms"},
	{"each request in a step", "ms"},
	{"each token of context of decodes", "µs"},
	{"each token of a prompt", "ms"},
	{"each pair of a prompt token and a token before it", "ns"},
	{"weights that only some tokens need, such as experts", "ms"},
}

// UnitMs are what the units of [Terms] are in ms.
var UnitMs = [...]float64{1, 1, 1e-3, 1, 1e-6, 1}

// widely is how many tokens use about two thirds of what [Terms] calls weights that only some tokens need: 8 of 128 experts for each token.
const widely = 16

// Terms is what the constants of a [Law] multiply: one step, its requests, the context of its decodes and the tokens of prompts, pairs of
// these, and how far its tokens use all the weights, 0 to 1.
func (s *Step) Terms() [len(Terms)]float64 {
	var context, tokens int
	all, pair := 0, 0.0
	for i := range s.Decodes {
		context += s.Decodes[i].Context
		all += max(s.Decodes[i].Tokens, 1)
	}
	for i := range s.Chunks {
		tokens += s.Chunks[i].Tokens
		pair += pairs(s.Chunks[i].Tokens, s.Chunks[i].Depth)
	}
	return [len(Terms)]float64{
		1, float64(len(s.Decodes) + len(s.Chunks)), float64(context), float64(tokens), pair,
		1 - math.Exp(-float64(all+tokens)/widely),
	}
}

// Ms is what a step with these terms takes, ms.
func (l *Law) Ms(terms [len(Terms)]float64) (ms float64) {
	for i, v := range terms {
		ms += l[i] * v
	}
	return ms
}

// Duration implements [Model].
func (l *Law) Duration(s *Step) time.Duration {
	return time.Duration(l.Ms(s.Terms()) * float64(time.Millisecond))
}

// Transfer implements [Model]: results of requests do not show it.
func (*Law) Transfer(*Request) time.Duration { return 0 }

// Again implements [Learned].
func (l *Law) Again() Learned { return l }

// Drafts and Block implement [Learned]: results of requests do not show how many tokens a step has.
func (*Law) Drafts() int { return 0 }
func (*Law) Block() int  { return 0 }

// Learned is a model that was learned from what was measured.
type Learned interface {
	Model
	// Again is the model of an engine that has not worked yet.
	Again() Learned
	// Drafts is the maximum number of tokens that a step adds to the first one, Block the size of the blocks of a diffusion model.
	Drafts() int
	Block() int
}
