package conformance

import (
	"context"
	"errors"
	"fmt"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/replay"
	"github.com/vllm-vcr/conformance/internal/golden"
)

// load fetches and reads a case's golden.
func (r *run) load(ctx context.Context, c Case) *check.Golden {
	g := &check.Golden{Registered: c.Golden}
	if !check.NeedsGolden(c) {
		return g
	}
	if ctx.Err() != nil {
		g.FetchErr = notRun(ctx)
		return g
	}
	ctx, stop := context.WithTimeoutCause(ctx, r.Timeouts.Golden, &golden.TimeoutError{After: r.Timeouts.Golden})
	defer stop()
	var data []byte
	data, g.Location, g.FetchErr = r.Store.Fetch(ctx, c.Golden)
	var mismatch *golden.MismatchError
	switch {
	case errors.As(g.FetchErr, &mismatch):
		g.FetchErr, g.Mismatch = nil, g.FetchErr // which may tell of other locations too
	case errors.As(g.FetchErr, new(*golden.TimeoutError)):
		g.FetchErr = check.Infra(check.WithCode(check.CodeDeadline, g.FetchErr))
	case g.FetchErr != nil:
		g.FetchErr = check.Infra(check.WithCode(check.CodeFetch, g.FetchErr))
	default:
		if g.Integrity = replay.CheckIntegrity(c.Golden, g.Location, data); len(g.Integrity.Failures) > 0 {
			g.Mismatch = errors.New(g.Integrity.Failures[0].Message)
		} else {
			g.ReadErr = check.WithCode(check.CodeGolden, g.Read(c.Line, data))
		}
	}
	if g.Mismatch != nil && len(g.Integrity.Failures) == 0 {
		g.Integrity = replay.WrongBytes(g.Mismatch)
	}
	return g
}

// notRun is the error of a case that the end of the run came before.
func notRun(ctx context.Context) error {
	return check.Infra(check.WithCode(check.CodeNotRun, fmt.Errorf("not run: %w", context.Cause(ctx))))
}
