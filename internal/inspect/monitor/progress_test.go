package monitor

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/recorder"
)

// busy is a recording with something in every field that is shown.
func busy() recorder.Stats {
	var c recorder.Counts
	work(&c)
	return c.Snapshot()
}

func work(c *recorder.Counts) {
	c.Engines.Add(1)
	c.InFlight.Add(3)
	c.Requests.Add(123)
	c.Done.Add(120)
	c.Records.Add(120)
	c.Tokens.Add(4800)
	c.Bytes[recorder.FromEngine].Add(3_400_000)
	c.Bytes[recorder.FromFrontend].Add(999)
}

func TestLine(t *testing.T) {
	tests := []struct {
		name   string
		change func(*recorder.Stats)
		want   string
	}{
		{"waiting", func(s *recorder.Stats) { *s = recorder.Stats{} }, "2:05 | waiting for an engine"},
		{"busy", func(*recorder.Stats) {}, "2:05 | 3 in flight, 120 done | 17 tok/s | 120 records | engine 3.4 MB, frontend 999 B"},
		{"one", func(s *recorder.Stats) { s.Records = 1 }, "2:05 | 3 in flight, 120 done | 17 tok/s | 1 record | engine 3.4 MB, frontend 999 B"},
		{
			"aborts", func(s *recorder.Stats) { s.Aborted = 2 },
			"2:05 | 3 in flight, 120 done, 2 aborted | 17 tok/s | 120 records | engine 3.4 MB, frontend 999 B",
		},
		{
			"failures before bytes", func(s *recorder.Stats) { s.Undecodable, s.WrongEngine, s.Queued = 4, 5, 12_345 },
			"2:05 | 3 in flight, 120 done | 17 tok/s | 120 records | 4 undecodable | 5 of another engine | engine 3.4 MB, frontend 999 B | 12.3 kB queued",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := busy()
			test.change(&s)
			if got := line(s, 125999*time.Millisecond, 16.6); got != test.want {
				t.Errorf("got  %q\nwant %q", got, test.want)
			}
		})
	}
}

// pass lets time pass in a bubble, and what was to happen in it.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// TestProgressOnScreen: what is on the screen, each half second.
func TestProgressOnScreen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, screen := newTerminal(t, 200)
		var counts recorder.Counts
		ctx, cancel := context.WithCancel(t.Context())
		p := Progress{Stats: counts.Snapshot, Screen: screen, Log: slog.New(slog.DiscardHandler)}
		ended := make(chan struct{})
		go func() { defer close(ended); p.Run(ctx) }()
		var got []string
		look := func() {
			got = append(got, strings.Join(m.seen(), "/"))
		}
		pass(drawEvery / 2)
		look()
		work(&counts)
		counts.Tokens.Store(0)
		// Ten tokens a second, which is five for each drawing, then 1000 a second.
		for n := 1; n <= 16; n++ {
			if counts.Tokens.Add(5); n > 12 {
				counts.Tokens.Add(495)
			}
			counts.Stopped.Store(uint64(n / 16))
			pass(drawEvery)
			if n%2 == 0 {
				look()
			}
		}
		fmt.Fprintln(screen, "a log line")
		look()
		cancel()
		<-ended
		look()
		const rest = " tok/s | 120 records | engine 3.4 MB, frontend 999 B"
		want := []string{
			"0:00 | waiting for an engine",
			"0:01 | 3 in flight, 120 done | 10" + rest,
			"0:02 | 3 in flight, 120 done | 10" + rest,
			"0:03 | 3 in flight, 120 done | 10" + rest,
			"0:04 | 3 in flight, 120 done | 10" + rest,
			"0:05 | 3 in flight, 120 done | 10" + rest,
			"0:06 | 3 in flight, 120 done | 10" + rest,
			"0:07 | 3 in flight, 120 done | 208" + rest,
			"RECORDING STOPPED | 0:08 | 3 in flight, 120 done | 406" + rest,
			"a log line/RECORDING STOPPED | 0:08 | 3 in flight, 120 done | 406" + rest,
			"a log line/",
		}
		require.NoDiff(t, cmp.Diff(want, got), "-want +got")
	})
}

func TestRate(t *testing.T) {
	var r rate
	for n := range 100 {
		got := r.add(time.Duration(n)*drawEvery, uint64(n*n))
		want := 0.0
		if n > 0 {
			first := max(0, n-rateWindow)
			want = float64(n*n-first*first) / (time.Duration(n-first) * drawEvery).Seconds()
		}
		if got != want {
			t.Fatalf("drawing %d: %v tokens a second, want %v", n, got, want)
		}
	}
	require.True(t, len(r.samples) <= rateWindow+1, "%d samples kept", len(r.samples))
}

// TestProgressInLog: without a screen the state is logged each half minute, at info unless recording has stopped.
func TestProgressInLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var counts recorder.Counts
		work(&counts)
		ctx, cancel := context.WithCancel(t.Context())
		p := Progress{Stats: counts.Snapshot, Log: slog.New(slog.NewTextHandler(&log, nil))}
		ended := make(chan struct{})
		go func() { defer close(ended); p.Run(ctx) }()
		pass(45 * time.Second)
		counts.Stopped.Add(1)
		counts.Late.Add(2)
		pass(30 * time.Second)
		cancel()
		<-ended
		const state = "engines=1 in_flight=3 done=120 aborted=0 records=120 tokens=4800 queued_bytes=0 bytes_from_engine=3400000 bytes_from_frontend=999"
		// The clock in here starts at midnight.
		want := "time=2000-01-01T00:00:30.000Z level=INFO msg=recording " + state + "\n" +
			"time=2000-01-01T00:01:00.000Z level=WARN msg=\"recording has stopped; messages are still forwarded\" " + state + " late_outputs=2\n"
		require.NoDiff(t, cmp.Diff(want, log.String()), "-want +got")
	})
}

func TestClock(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0:00", 59999 * time.Millisecond: "0:59", time.Minute: "1:00", time.Hour - 1: "59:59", time.Hour: "1:00:00",
		100*time.Hour + time.Second: "100:00:01",
	} {
		require.Equal(t, clock(d), want, "%v", d)
	}
}

func TestSize(t *testing.T) {
	for n, want := range map[uint64]string{
		0: "0 B", 999: "999 B", 1000: "1.0 kB", 999_949: "999.9 kB", 999_950: "1.0 MB", 1_500_000: "1.5 MB", 1 << 30: "1.1 GB", 1 << 63: "9.2 EB",
	} {
		require.Equal(t, size(n), want, "%d", n)
	}
}
