package load

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/retry"
)

const (
	conversations = 30
	turns         = 6
)

func playMultiturn(ctx context.Context, l *load) error {
	shape := l.cfg.Shape
	requests := cmp.Or(shape.Requests, conversations*turns)
	return parallel(ctx, (requests+turns-1)/turns, shape.Concurrency, func(ctx context.Context, n int) error {
		return l.conversation(ctx, n, min(turns, requests-n*turns))
	})
}

// conversation is one client's: it asks, reads the answer, thinks for a moment and asks on.
func (l *load) conversation(ctx context.Context, n, turns int) error {
	rng := generator(l.cfg.Seed, uint64(n))
	history := beginning(rng, l.cfg.Shape.PromptTokens)
	images := drawImages(l.cfg.Seed, n, l.cfg.Shape.Images)
	for turn := range turns {
		prompt := history + "\nQ: " + text(rng, between(rng, 8, 40)) + "\nA:"
		r := l.turn(n, turn, prompt, images, between(rng, 4, 48))
		pause := time.Duration(rng.Int64N(int64(50 * time.Millisecond)))
		answer, err := l.do(ctx, r)
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

// beginning is what a conversation begins with, of about so many tokens.
func beginning(rng *rand.Rand, tokens int) string {
	if tokens > 0 {
		return text(rng, tokens)
	}
	// 8 openings at once stay below the 2,048 tokens of an engine's step: see docs/capturing.md on seeds.
	return text(rng, between(rng, 40, 100))
}

// turn asks on in a conversation. If the shape gives lengths, all turns are greedy and none ends before its length: the
// engine on CPUs dies of cutting the prompt of a seeded request.
func (l *load) turn(n, turn int, prompt string, images []string, drawn int) request {
	shape := l.cfg.Shape
	sized := shape.PromptTokens > 0 || shape.OutputTokens > 0
	r := ask(fmt.Sprintf("conversation %d turn %d", n, turn), prompt, images, object{
		"max_tokens": cmp.Or(shape.OutputTokens, drawn), "temperature": 0,
	})
	if n%2 == 0 && !sized {
		r.body["temperature"], r.body["seed"] = 0.8, 1000*l.cfg.Seed+uint64(n)
	}
	if turn%3 == 2 || sized {
		r.body["ignore_eos"] = true
	}
	r.wantOutput = shape.OutputTokens
	return r.numbered(turns*n + turn)
}
