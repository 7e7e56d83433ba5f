package retry

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
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
		if longest < most/2 {
			t.Errorf("no wait after try %d is above %v of %v", try, longest, most)
		}
	}
}

func TestAfter(t *testing.T) {
	for value, want := range map[string]time.Duration{
		"": 0, "7": 7 * time.Second, "0": 0, "-1": 0, "1.5": 0, "99999": 0, "Wed, 21 Oct 2026 07:28:00 GMT": 0,
	} {
		if got := After(http.Header{"Retry-After": {value}}); got != want {
			t.Errorf("%q: got %v, want %v", value, got, want)
		}
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

func TestWatchStops(t *testing.T) {
	ctx, _, stop := Watch(t.Context(), time.Hour)
	stop()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
