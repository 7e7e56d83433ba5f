package load

import (
	"context"
	"sync"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/retry"
)

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
