package load

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

// playConcurrency sends the next request when one of those in flight is answered.
func playConcurrency(ctx context.Context, l *load) error {
	shape := l.cfg.Shape
	return parallel(ctx, shape.Requests, shape.Concurrency, func(ctx context.Context, i int) error {
		_, err := l.do(ctx, l.sized(fmt.Sprintf("request %d", i), i))
		return err
	})
}

func playStairs(ctx context.Context, l *load) error {
	shape := l.cfg.Shape
	for step, concurrency := range shape.Stairs {
		err := parallel(ctx, shape.Requests, concurrency, func(ctx context.Context, i int) error {
			name := fmt.Sprintf("step %d of %d at a time, request %d", step, concurrency, i)
			_, err := l.do(ctx, l.sized(name, step*shape.Requests+i))
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func playBursts(ctx context.Context, l *load) error {
	shape := l.cfg.Shape
	due := make([]time.Duration, shape.Bursts*shape.Requests)
	for i := range due {
		due[i] = time.Duration(i/shape.Requests) * shape.Every
	}
	return l.scheduled(ctx, due, func(ctx context.Context, i int) error {
		r := l.sized(fmt.Sprintf("burst %d, request %d", i/shape.Requests, i%shape.Requests), i)
		_, err := l.do(ctx, r.dueAt(due[i]))
		return err
	})
}

// sized asks for an answer of the shape's length to a prompt of the shape's length, whose text no other request shares.
func (l *load) sized(name string, number int) request {
	shape := l.cfg.Shape
	images := drawImages(l.cfg.Seed, number, shape.Images)
	prompt := drawPrompt(generator(l.cfg.Seed, uint64(number)), shape.PromptTokens, shape.Text || len(images) > 0)
	return exactly(name, prompt, images, shape.PromptTokens, shape.OutputTokens).numbered(number)
}

// drawPrompt is a prompt of n token ids, or of n words.
func drawPrompt(rng *rand.Rand, n int, asText bool) any {
	if asText {
		return text(rng, n)
	}
	return tokens(rng, n)
}

// exactly asks for so many tokens, and for a prompt of token ids expects the server to count as many as were sent.
func exactly(name string, prompt any, images []string, promptTokens, outputTokens int) request {
	r := ask(name, prompt, images, object{"max_tokens": outputTokens, "ignore_eos": true, "temperature": 0})
	r.wantOutput = outputTokens
	if _, asText := prompt.(string); !asText {
		r.wantPrompt = promptTokens
	}
	return r
}
