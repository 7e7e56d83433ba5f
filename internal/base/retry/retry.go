// Package retry is what clients do alike when a server fails for a while: how often they try, how long they wait between,
// and when they take it for dead. Which failures are worth another try, each client knows for itself.
package retry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"
)

const (
	// Tries is how often a request is made.
	Tries = 4
	// LongestWait is how long a server may ask to be left alone.
	LongestWait = 30 * time.Second

	firstBackoff = 500 * time.Millisecond // upper bound of the first wait; each further one is twice it
	defaultStall = 30 * time.Second
)

// Backoff is the wait after the given try, of which the first is 1: a random part of a growing bound, so that the jobs of a
// matrix do not come back all at once.
func Backoff(try int) time.Duration { return rand.N(firstBackoff << (try - 1)) }

// After is what the header Retry-After says, 0 unless it says seconds.
func After(header http.Header) time.Duration {
	seconds, err := strconv.ParseUint(header.Get("Retry-After"), 10, 16)
	if err != nil {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

// Pause waits. An error is why the context ended before.
func Pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// ErrStalled is why a try was given up on which nothing moved.
var ErrStalled = errors.New("the server sent nothing for too long")

// Watch returns a context that ends, with ErrStalled as its cause, when alive was not called for as long as stall says,
// which is 30 s unless it is more than 0. Stop is to be called at the end.
func Watch(ctx context.Context, stall time.Duration) (watched context.Context, alive, stop func()) {
	stall = cmp.Or(max(stall, 0), defaultStall)
	watched, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(stall, func() { cancel(fmt.Errorf("%w (%v)", ErrStalled, stall)) })
	alive = func() { timer.Reset(stall) }
	stop = func() {
		timer.Stop()
		cancel(nil)
	}
	return watched, alive, stop
}
