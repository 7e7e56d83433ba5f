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
	"sync/atomic"
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

// What a server has to keep to: less is not a usable link, but a server that holds its clients.
const (
	slowWindow  = time.Minute
	slowestRate = 1000 // bytes a second, over each window

	// Of a whole file, with all tries: see [Longest].
	longestStart = 10 * time.Minute
	averageRate  = 32 << 10 // bytes a second
)

var (
	// ErrSlow is why a try was given up on which too little came.
	ErrSlow = errors.New("the server sends too slowly")
	// ErrTooLong is why a file was given up that took too long in all.
	ErrTooLong = errors.New("it takes too long")
)

// WatchRate is [Watch] of a transfer: alive gets how many bytes have come. The context also ends, with ErrSlow as its cause,
// when less than 1000 bytes a second came over a minute.
func WatchRate(ctx context.Context, stall time.Duration) (watched context.Context, alive func(bytes int), stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	watched, moved, end := Watch(ctx, stall)
	var came atomic.Int64
	var timer *time.Timer
	ready := make(chan struct{})
	timer = time.AfterFunc(slowWindow, func() {
		<-ready
		if got, want := came.Swap(0), int64(slowestRate*slowWindow.Seconds()); got < want {
			cancel(fmt.Errorf("%w: %d bytes in %v, want at least %d", ErrSlow, got, slowWindow, want))
			return
		}
		timer.Reset(slowWindow)
	})
	close(ready)
	alive = func(bytes int) {
		came.Add(int64(bytes))
		moved()
	}
	stop = func() {
		timer.Stop()
		end()
		cancel(nil)
	}
	return watched, alive, stop
}

// Longest is how long a file of some bytes may take with all tries, of whose rate [WatchRate] only sees the last minute: ten
// minutes, and the time for its bytes at 32 KiB a second.
func Longest(bytes int64) time.Duration {
	return longestStart + time.Duration(max(bytes, 0)/averageRate)*time.Second
}

// WithLongest returns a context that ends, with ErrTooLong as its cause, after [Longest] of a file of some bytes.
func WithLongest(ctx context.Context, bytes int64) (context.Context, context.CancelFunc) {
	longest := Longest(bytes)
	return context.WithTimeoutCause(ctx, longest, fmt.Errorf("%w: more than %v for at most %d bytes", ErrTooLong, longest, bytes))
}
