package retry

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestBackoffGrows(t *testing.T) {
	for try, most := 1, 500*time.Millisecond; try < Tries; try, most = try+1, 2*most {
		longest := time.Duration(0)
		for range 1000 {
			got := Backoff(try)
			if got < 0 || got >= most {
				t.Fatalf("wait of %v after try %d, want less than %v", got, try, most)
			}
			longest = max(longest, got)
		}
		require.True(t, longest >= most/2, "no wait after try %d is above %v of %v", try, longest, most)
	}
}

func TestAfter(t *testing.T) {
	for value, want := range map[string]time.Duration{
		"": 0, "7": 7 * time.Second, "0": 0, "-1": 0, "1.5": 0, "99999": 0, "Wed, 21 Oct 2026 07:28:00 GMT": 0,
	} {
		require.Equal(t, After(http.Header{"Retry-After": {value}}), want, "%q", value)
	}
}

func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		if err := Pause(t.Context(), time.Minute); err != nil || time.Since(start) != time.Minute {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		why := errors.New("why")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(why) })
		start = time.Now()
		if err := Pause(ctx, time.Hour); !errors.Is(err, why) || time.Since(start) != time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

func TestWatch(t *testing.T) {
	for _, test := range []struct {
		name  string
		stall time.Duration
		want  time.Duration
	}{
		{"usual", 0, 30 * time.Second},
		{"negative", -1, 30 * time.Second},
		{"given", time.Second, time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				ctx, alive, stop := Watch(t.Context(), test.stall)
				defer stop()
				time.Sleep(test.want / 2)
				alive()
				<-ctx.Done()
				if got, want := time.Since(start), test.want*3/2; got != want || !errors.Is(context.Cause(ctx), ErrStalled) {
					t.Errorf("ended after %v, want %v: %v", got, want, context.Cause(ctx))
				}
			})
		})
	}
}

func TestWatchRate(t *testing.T) {
	for _, test := range []struct {
		name  string
		every time.Duration
		bytes int
		ends  time.Duration // 0: it goes on
		why   error
	}{
		{name: "a byte a second", every: time.Second, bytes: 1, ends: time.Minute, why: ErrSlow},
		{name: "a little each time before it is taken for dead", every: 29 * time.Second, bytes: 10_000, ends: time.Minute, why: ErrSlow},
		{name: "nothing", every: time.Hour, ends: 30 * time.Second, why: ErrStalled},
		{name: "a slow link", every: time.Second, bytes: 2000},
		{name: "a link with pauses", every: 20 * time.Second, bytes: 40_000},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, alive, stop := WatchRate(t.Context(), 0)
				defer stop()
				start, tick := time.Now(), time.NewTicker(test.every)
				for ctx.Err() == nil && time.Since(start) < time.Hour {
					select {
					case <-tick.C:
						alive(test.bytes)
					case <-ctx.Done():
						if took := time.Since(start); took != test.ends || !errors.Is(context.Cause(ctx), test.why) {
							t.Errorf("ended after %v: %v; want %v: %v", took, context.Cause(ctx), test.ends, test.why)
						}
					}
				}
				require.True(t, test.why == nil || ctx.Err() != nil, "goes on, want %v", test.why)
			})
		})
	}
}

// What just keeps to the rate does not go on for days.
func TestWithLongest(t *testing.T) {
	for bytes, want := range map[int64]time.Duration{-1: 10 * time.Minute, 0: 10 * time.Minute, 1 << 20: 10*time.Minute + 32*time.Second, 256 << 20: 8792 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			ctx, stop := WithLongest(t.Context(), bytes)
			defer stop()
			<-ctx.Done()
			if got := time.Since(start); got != want || !errors.Is(context.Cause(ctx), ErrTooLong) {
				t.Errorf("%d bytes: ended after %v, want %v: %v", bytes, got, want, context.Cause(ctx))
			}
		})
	}
}

func TestWatchStops(t *testing.T) {
	ctx, _, stop := Watch(t.Context(), time.Hour)
	stop()
	require.ErrorIs(t, context.Cause(ctx), context.Canceled)
}
