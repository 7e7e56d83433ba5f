package load

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/retry"
	"github.com/vllm-vcr/conformance/trace"
)

// An arrival is a request of a trace, as far as it is asked again.
type arrival struct {
	at             float64 // ms
	prompt, output int     // tokens
	blocks         []uint64
	line           int
}

func playArrivals(ctx context.Context, l *load) error {
	shape := l.cfg.Shape
	all, blockSize, err := l.cfg.readArrivals()
	if err != nil {
		return err
	}
	due := make([]time.Duration, len(all))
	for i, a := range all {
		due[i] = duration((a.at - all[0].at) / shape.Speed)
	}
	return l.scheduled(ctx, due, func(ctx context.Context, i int) error {
		a := all[i]
		prompt := a.draw(l.cfg.Seed, i, blockSize, shape.Text)
		r := exactly(fmt.Sprintf("line %d", a.line), prompt, nil, a.prompt, a.output)
		_, err := l.do(ctx, r.numbered(i).dueAt(due[i]))
		return err
	})
}

// readArrivals are the requests of the shape's trace in the order in which they arrived, and how many tokens each of
// their blocks has, 0 if they have none.
func (c Config) readArrivals() (all []arrival, blockSize int, err error) {
	shape, open := c.Shape, c.OpenTrace
	if open == nil {
		open = func(name string) (*trace.Reader, error) { return trace.Open(name, trace.Options{}) }
	}
	tr, err := open(shape.Arrivals)
	if err != nil {
		return nil, 0, err
	}
	defer tr.Close()
	blockSize = trace.Or(tr.Meta().BlockSize, 0)
	for {
		var rec trace.Record
		if err := tr.Next(&rec); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, 0, err
		}
		a, err := arrivalOf(&rec, blockSize)
		if err != nil {
			return nil, 0, fmt.Errorf("%s:%d: %w", tr.Name(), rec.Line, err)
		}
		all = append(all, a)
	}
	switch {
	case tr.Truncated():
		return nil, 0, fmt.Errorf("%s is cut off: %s", tr.Name(), tr.Warnings()[0])
	case len(all) == 0:
		return nil, 0, fmt.Errorf("%s has no records, so there is nothing to ask", tr.Name())
	}
	slices.SortStableFunc(all, func(a, b arrival) int { return cmp.Compare(a.at, b.at) })
	if shape.Requests > 0 {
		all = all[:min(shape.Requests, len(all))]
	}
	if last := (all[len(all)-1].at - all[0].at) / shape.Speed; last > longestSchedule {
		return nil, 0, fmt.Errorf("%s: its last request arrives %.0f hours after the first: want a schedule of %d hours or less, "+
			"by --speed or --requests", tr.Name(), last/msPerHour, int(longestSchedule/msPerHour))
	}
	return all, blockSize, nil
}

const (
	msPerHour       = 3600 * 1000.0
	longestSchedule = 24 * msPerHour // ms: a time that is wrong by a power of ten must not keep a GPU
)

func arrivalOf(rec *trace.Record, blockSize int) (arrival, error) {
	switch {
	case rec.ArrivalMs == nil:
		return arrival{}, errors.New("no arrival_ms: want a trace with the arrival time of each request")
	case len(rec.BlockHashes) > 0 && blockSize < 1:
		return arrival{}, errors.New("block_hashes, but no block_size in the meta line to tell what they are hashes of")
	case len(rec.BlockHashes)*blockSize > rec.PromptTokens:
		return arrival{}, fmt.Errorf("%d block_hashes of %d tokens each, but prompt_tokens is %d",
			len(rec.BlockHashes), blockSize, rec.PromptTokens)
	case max(rec.PromptTokens, rec.OutputTokens) > maxTokens:
		return arrival{}, fmt.Errorf("%d prompt_tokens and %d output_tokens: want %d at most", rec.PromptTokens, rec.OutputTokens, maxTokens)
	}
	// A server takes no empty prompt and gives no empty answer.
	return arrival{
		at: *rec.ArrivalMs, prompt: max(1, rec.PromptTokens), output: max(1, rec.OutputTokens),
		blocks: rec.BlockHashes, line: rec.Line,
	}, nil
}

// draw is a prompt of the arrival's length. Blocks of one hash are equal in all prompts, as a hash represents its block and
// all before it; what no hash covers is the prompt's own.
func (a *arrival) draw(seed uint64, number, blockSize int, asText bool) any {
	var prompt pieces
	for _, hash := range a.blocks {
		// Apart from the generators of prompts, whose numbers are small.
		prompt.add(rand.New(rand.NewPCG(^seed, hash)), blockSize, asText)
	}
	prompt.add(generator(seed, uint64(number)), a.prompt-len(a.blocks)*blockSize, asText)
	if asText {
		return prompt.text
	}
	return prompt.ids
}

// pieces are the parts of a prompt put together.
type pieces struct {
	text string
	ids  []int
}

func (p *pieces) add(rng *rand.Rand, n int, asText bool) {
	switch {
	case n == 0:
	case !asText:
		p.ids = append(p.ids, tokens(rng, n)...)
	case p.text == "":
		p.text = text(rng, n)
	default:
		p.text += " " + text(rng, n)
	}
}

// scheduled calls f for each of the times, counted from the start of the workload and in ascending order, whether or not
// earlier calls have returned. It returns when all have; the first error ends the context of the others and is the one
// that is returned.
func (l *load) scheduled(ctx context.Context, due []time.Duration, f func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var running sync.WaitGroup
	for i, at := range due {
		if wait := at - time.Since(l.start); wait > 0 {
			_ = retry.Pause(ctx, wait) // its error is the context's
		}
		if ctx.Err() != nil {
			break
		}
		running.Go(func() {
			if err := f(ctx, i); err != nil {
				cancel(err)
			}
		})
	}
	running.Wait()
	return context.Cause(ctx)
}
