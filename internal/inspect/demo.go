package inspect

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/vllm-vcr/conformance/internal/engine/latency"
	"github.com/vllm-vcr/conformance/trace"
)

// DemoOptions of [Demo].
type DemoOptions struct {
	Seed     uint64
	Requests int
}

// Numbers of requests of a demo: by default, and at most.
const (
	DefaultDemoRequests = 400
	MaxDemoRequests     = 20_000
)

// DemoSource is the source in the meta of a demo.
const DemoSource = "demo"

// The load of a demo: so many clients at a time, one level after the other, each with conversations of a few turns.
var demoLevels = []int{1, 2, 4, 8, 16}

const (
	demoTurns  = 4
	demoSystem = 128 // tokens that all prompts begin with
	demoPause  = 500 // ms between two levels
)

// The engine of a demo.
var (
	demoEngine = Engine{MaxNumSeqs: 16, MaxNumBatchedTokens: 512, BlockSize: 16, Blocks: 2048, Caching: true}
	demoTimes  = latency.Knobs{
		PrefillOverhead: 6 * time.Millisecond, PrefillPerToken: 80 * time.Microsecond, PrefillStdDev: time.Millisecond,
		InterTokenLatency: 9 * time.Millisecond, InterTokenLatencyStdDev: time.Millisecond, LoadFactor: 2.2,
	}
)

// Demo makes a trace that looks like one of a real engine, for a first try of the commands: conversations with growing
// prompts and a common beginning, at several numbers of clients. The requests are answered by the scheduler and the KV cache of the
// player on a virtual clock. The same options give the same trace. Its meta says that it is synthetic.
func Demo(o DemoOptions) (*trace.Trace, error) {
	if o.Requests < 1 || o.Requests > MaxDemoRequests {
		return nil, fmt.Errorf("%d requests: want 1 to %d", o.Requests, MaxDemoRequests)
	}
	times := demoTimes
	records, err := Simulate(demoWorkload(o), demoEngine, &times, o.Seed)
	for i := range records {
		records[i].Extra = nil // what no recorder writes
	}
	if err != nil {
		return nil, err
	}
	text := func(s string) *string { return &s }
	seqs, blockSize := uint64(demoEngine.MaxNumSeqs), demoEngine.BlockSize
	return &trace.Trace{Records: records, Meta: trace.Meta{
		Model: text("demo"), GPU: text("none"), Source: text(DemoSource), MaxNumSeqs: &seqs, BlockSize: &blockSize,
		EngineConfig: text(fmt.Sprintf("max_num_batched_tokens=%d;block_size=%d;num_gpu_blocks_override=%d;enable_prefix_caching=true",
			demoEngine.MaxNumBatchedTokens, blockSize, demoEngine.Blocks)),
		Extra: map[string]json.RawMessage{"synthetic": json.RawMessage("true"), "seed": json.RawMessage(fmt.Sprint(o.Seed))},
	}}, nil
}

// demoWorkload draws the requests. Each client begins its next conversation when its last one has ended, and the clients of a
// level begin when one of the level before has ended.
func demoWorkload(o DemoOptions) *Workload {
	rng := rand.New(rand.NewPCG(o.Seed, 0xde30))
	w := &Workload{Name: DemoSource}
	system := demoTokens(rng, demoSystem)
	last := []int{-1} // ask of each client of the level before
	for level, clients := range demoLevels {
		until := o.Requests * (level + 1) / len(demoLevels)
		own := make([]int, clients)
		for c := range own {
			own[c] = last[c%len(last)]
		}
		for c := 0; len(w.asks) < until; c = (c + 1) % clients {
			at := float64(10 + rng.IntN(40))
			switch own[c] {
			case -1:
				at = 0 // the first of all
			case last[c%len(last)]:
				at += demoPause
			}
			prompt := system
			for turn := 0; turn < demoTurns && len(w.asks) < until; turn++ {
				prompt = append(prompt[:len(prompt):len(prompt)], demoTokens(rng, demoLength(rng, 120, 900))...)
				answer := demoTokens(rng, demoLength(rng, 40, 200))
				w.asks = append(w.asks, ask{
					parent: own[c], next: turn == 0, at: at, prompt: prompt, answer: answer,
					record: &trace.Record{
						PromptTokens: len(prompt), OutputTokens: len(answer), BlockHashes: trace.BlockHashes(prompt, demoEngine.BlockSize),
					},
				})
				own[c], at = len(w.asks)-1, float64(50+rng.IntN(400))
				prompt = append(prompt[:len(prompt):len(prompt)], answer...)
			}
		}
		last = own
	}
	return w
}

// demoLength draws a number of tokens around the median, with a long tail.
func demoLength(rng *rand.Rand, median, maximum float64) int {
	return int(min(max(median*math.Exp(0.6*rng.NormFloat64()), 4), maximum))
}

func demoTokens(rng *rand.Rand, n int) []uint32 {
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = rng.Uint32N(32000)
	}
	return ids
}
