package inspect

import (
	"context"
	"sync"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/retry"
	"github.com/vllm-vcr/conformance/internal/engine/latency"
	"github.com/vllm-vcr/conformance/trace"
)

// A Server answers a workload as a real server does: over the network, in real time. The records are what its clients saw.
type Server func(w *Workload, e Engine, model latency.Learned) ([]trace.Record, error)

// Asked is a request of a [Workload] as a client sends it.
type Asked struct {
	// Prompt are token ids. Two prompts are equal as far as the recorded ones were; otherwise ids have no meaning.
	Prompt []uint32
	// Answer is the tokens of the answer. The prompt of the next turn has them, so a prefix cache finds them.
	Answer []uint32
}

// Asked is the request with this index.
func (w *Workload) Asked(i int) Asked {
	a := &w.asks[i]
	return Asked{a.prompt, a.answer[:a.record.OutputTokens]}
}

// Replay calls send for every request when it is due: at its recorded time after the start, or so long after the answer to
// the request that it waited for. It returns when all calls have returned. The first error ends the context of the others, and is
// the one that is returned.
func (w *Workload) Replay(ctx context.Context, send func(ctx context.Context, i int, a Asked) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	start := time.Now()
	answered := make([]chan time.Time, len(w.asks)) // each gets one time for each request that waits for it
	waiting := make([]int, len(w.asks))
	for i := range w.asks {
		if parent := w.asks[i].parent; parent >= 0 {
			waiting[parent]++
		}
	}
	for i := range answered {
		answered[i] = make(chan time.Time, waiting[i])
	}
	var running sync.WaitGroup
	for i := range w.asks {
		a := &w.asks[i]
		running.Go(func() {
			since := start
			if a.parent >= 0 {
				select {
				case since = <-answered[a.parent]:
				case <-ctx.Done():
					return
				}
			}
			if retry.Pause(ctx, time.Until(since.Add(milliseconds(a.at)))) != nil {
				return
			}
			if err := send(ctx, i, w.Asked(i)); err != nil {
				cancel(err)
				return
			}
			ended := time.Now()
			for range waiting[i] {
				answered[i] <- ended
			}
		})
	}
	running.Wait()
	return context.Cause(ctx)
}

// WithBlocks is the engine with as many blocks as the workload could need, unless their number is given.
func (w *Workload) WithBlocks(e Engine) Engine {
	if e.Blocks == 0 {
		e.Blocks = w.blocks(e.BlockSize)
	}
	return e
}
