package load

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
)

// A Workload is a kind of traffic, by name.
type Workload string

const (
	// Multiturn is what an assistant sees: 30 conversations of 6 turns, 8 at a time, each turn with all turns before it in
	// its prompt. Every other conversation is greedy, the others are sampled from a seed, and one turn of three ignores
	// the end of the sequence: 180 requests, some 4,800 tokens.
	Multiturn Workload = "multiturn"
	// Edge is one request of each kind that a server may accept: every sampling parameter, logprobs, structured output,
	// several choices, long and short prompts, clients that hang up, and the calls that act on the engine itself.
	Edge Workload = "edge"
)

// Workloads are all workloads, in the order in which they are listed to people.
func Workloads() []Workload { return []Workload{Multiturn, Edge} }

// play is what a workload does with a load.
func (w Workload) play() (func(context.Context, *load) error, error) {
	switch w {
	case Multiturn:
		return playMultiturn, nil
	case Edge:
		return playEdge, nil
	}
	return nil, fmt.Errorf("workload %q: want one of %v", string(w), Workloads())
}

// words are what prompts are made of.
var words = [...]string{
	"def", "return", "import", "class", "self", "engine", "request", "token", "cache", "block", "prefix", "batch",
	"schedule", "step", "output", "decode", "prefill", "queue", "latency", "replay", "golden", "trace", "frame", "socket",
	"router", "dealer", "frontend", "sampler", "worker", "logits",
}

// text is n words.
func text(rng *rand.Rand, n int) string {
	drawn := make([]string, n)
	for i := range drawn {
		drawn[i] = words[rng.IntN(len(words))]
	}
	return strings.Join(drawn, " ")
}

// between is a number from low to high, both included.
func between(rng *rand.Rand, low, high int) int { return low + rng.IntN(high-low+1) }

// generator is the source of chance of one part of a workload.
func generator(seed, part uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, part)) }
