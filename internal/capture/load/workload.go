package load

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
)

// A Workload is a kind of traffic, by name.
type Workload string

const (
	// Multiturn is what an assistant sees: 30 conversations of 6 turns, 8 at a time, each turn with all turns before it in
	// its prompt. Every other conversation is greedy, the others are sampled from a seed, and one turn of three ignores
	// the end of the sequence: 180 requests, some 4,800 tokens. A shape that gives lengths makes all of them greedy, and
	// ignore the end.
	Multiturn Workload = "multiturn"
	// Edge is one request of each kind that a server may accept: every sampling parameter, logprobs, structured output,
	// several choices, long and short prompts, clients that hang up, and the calls that act on the engine itself.
	Edge Workload = "edge"
	// Concurrency keeps a number of requests in flight until all are answered.
	Concurrency Workload = "concurrency"
	// Stairs is one concurrency after another, each of them until its last answer.
	Stairs Workload = "stairs"
	// Bursts are many requests at once, and again after a while, whether or not the earlier ones are answered.
	Bursts Workload = "bursts"
	// Arrivals is a recorded load: its requests come as far apart, and are as long, and share the prefixes that they had.
	Arrivals Workload = "arrivals"
)

// Workloads are all workloads, in the order in which they are listed to people.
func Workloads() []Workload {
	return []Workload{Multiturn, Edge, Concurrency, Stairs, Bursts, Arrivals}
}

// A kind is what a workload does with a load, the keys of its shape, and what they are unless given.
type kind struct {
	play  func(context.Context, *load) error
	keys  []string
	usual Shape
}

// kinds has an entry for each of [Workloads].
var kinds = map[Workload]kind{
	Multiturn: {
		play:  playMultiturn,
		keys:  []string{"concurrency", "requests", "prompt_tokens", "output_tokens", "images"},
		usual: Shape{Concurrency: 8},
	},
	Edge: {play: playEdge},
	Concurrency: {
		play:  playConcurrency,
		keys:  []string{"concurrency", "requests", "prompt_tokens", "output_tokens", "text", "images"},
		usual: Shape{Concurrency: 8, Requests: 64, PromptTokens: 256, OutputTokens: 64},
	},
	Stairs: {
		play:  playStairs,
		keys:  []string{"stairs", "requests", "prompt_tokens", "output_tokens", "text", "images"},
		usual: Shape{Stairs: []int{1, 2, 4, 8}, Requests: 16, PromptTokens: 256, OutputTokens: 64},
	},
	Bursts: {
		play:  playBursts,
		keys:  []string{"requests", "bursts", "every", "prompt_tokens", "output_tokens", "text", "images"},
		usual: Shape{Requests: 16, Bursts: 4, Every: 2 * time.Second, PromptTokens: 256, OutputTokens: 64},
	},
	Arrivals: {play: playArrivals, keys: []string{"requests", "text", "arrivals", "speed"}, usual: Shape{Speed: 1}},
}

// kind is what follows the workload's name.
func (w Workload) kind() (kind, error) {
	k, ok := kinds[w]
	if !ok {
		return kind{}, fmt.Errorf("workload %q: want one of %s", string(w), safetext.Words(Workloads()))
	}
	return k, nil
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

// tokens is a prompt of n token ids, all of them words of even a small vocabulary.
func tokens(rng *rand.Rand, n int) []int {
	ids := make([]int, n)
	for i := range ids {
		ids[i] = between(rng, 300, 1999)
	}
	return ids
}

// between is a number from low to high, both included.
func between(rng *rand.Rand, low, high int) int { return low + rng.IntN(high-low+1) }

// generator is the source of chance of one part of a workload.
func generator(seed, part uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, part)) }
