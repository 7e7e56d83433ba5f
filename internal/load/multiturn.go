package load

import (
	"context"
	"fmt"
	"time"

	"github.com/vllm-vcr/conformance/internal/retry"
)

const (
	conversations = 30
	turns         = 6
)

func playMultiturn(ctx context.Context, l *load) error {
	return parallel(ctx, conversations, l.cfg.Shape.Concurrency, l.conversation)
}

// conversation is one client's: it asks, reads the answer, thinks for a moment and asks on.
func (l *load) conversation(ctx context.Context, n int) error {
	rng := generator(l.cfg.Seed, uint64(n))
	// 8 openings at once stay below the 2,048 tokens of an engine's step: see docs/capturing.md on seeds.
	history := text(rng, between(rng, 40, 100))
	images := drawImages(l.cfg.Seed, n, l.cfg.Shape.Images)
	for turn := range turns {
		prompt := history + "\nQ: " + text(rng, between(rng, 8, 40)) + "\nA:"
		r := ask(fmt.Sprintf("conversation %d turn %d", n, turn), prompt, images, object{
			"max_tokens": between(rng, 4, 48), "temperature": 0,
		})
		if n%2 == 0 {
			r.body["temperature"], r.body["seed"] = 0.8, 1000*l.cfg.Seed+uint64(n)
		}
		if turn%3 == 2 {
			r.body["ignore_eos"] = true
		}
		pause := time.Duration(rng.Int64N(int64(50 * time.Millisecond)))
		answer, err := l.do(ctx, r.numbered(turns*n+turn))
		if err != nil {
			return err
		}
		// Clients drift apart, as people would: without it all turns arrive in step with the engine.
		if err := retry.Pause(ctx, pause); err != nil {
			return err
		}
		history = prompt + answer
	}
	return nil
}
