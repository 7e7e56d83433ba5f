package vllmrs

import (
	"context"
	"fmt"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/process"
)

// Between two looks at /health: short, as a frontend is up within a tenth of a second of its engine, and longer when
// the engine takes its time.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = 200 * time.Millisecond
)

// Healthy waits until GET /health answers 200, which it does when an engine has registered. It returns at once, with the
// last of the output, when the frontend ends; and when ctx ends, with its cause and what the frontend last answered.
func (s *Server) Healthy(ctx context.Context) error {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err := s.client.Health(ctx)
		if err == nil {
			return nil
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-s.process.Done():
			timer.Stop()
			return fmt.Errorf("wait for the frontend to be healthy: %w", s.process.Exit())
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("wait for the frontend to be healthy: %w: %w; the last of its output:\n%s",
				context.Cause(ctx), err, process.Quote(s.Tail()))
		}
	}
}
