package load

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// slowServer answers every completion after a while, without a network, so that tests have a clock of their own.
type slowServer struct {
	takes  time.Duration
	status int // of GET /health, 0 for a connection that fails

	mu   sync.Mutex
	came []time.Time
}

func (s *slowServer) CloseIdleConnections() {}

func (s *slowServer) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	s.came = append(s.came, time.Now())
	status := s.status
	s.mu.Unlock()
	if r.Method == http.MethodGet {
		if status == 0 {
			return nil, errors.New("connection refused")
		}
		return &http.Response{StatusCode: status, Body: http.NoBody}, nil
	}
	select {
	case <-time.After(s.takes):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	asked, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	prompt := bytes.Count(asked, []byte(",")) - bytes.Count(asked, []byte(`,"`)) + 1 // ids have commas between them
	body := fmt.Sprintf("%sdata: {\"usage\":{\"completion_tokens\":64,\"prompt_tokens\":%d}}\n\n%s", ending, prompt, done)
	return &http.Response{
		StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: io.NopCloser(strings.NewReader(body)),
	}, nil
}

// turn makes the server's health another.
func (s *slowServer) turn(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status = status
}

// times are when requests came, since start.
func (s *slowServer) times(start time.Time) (all []time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, at := range s.came {
		all = append(all, at.Sub(start))
	}
	return all
}

// Bursts come when they are due, however long the answers take.
func TestBurstsKeepTheirTimes(t *testing.T) {
	for _, takes := range []time.Duration{time.Millisecond, time.Hour} {
		t.Run(takes.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server, start := &slowServer{takes: takes}, time.Now()
				cfg := config("http://x", Bursts, 7)
				cfg.Shape, cfg.Idle = Shape{Bursts: 3, Requests: 2, Every: time.Minute}, 2*time.Hour
				var records []Record
				cfg.Each = func(rec Record) error {
					records = append(records, rec)
					return nil
				}
				report, err := run(t.Context(), cfg, server)
				require.NoError(t, err)
				want := []time.Duration{0, 0, time.Minute, time.Minute, 2 * time.Minute, 2 * time.Minute}
				require.NoDiff(t, cmp.Diff(want, server.times(start)), "times (-want +got)")
				if took := 2*time.Minute + takes; report.Duration != took || report.Late != 0 {
					t.Errorf("took %v, %v late; want %v, 0", report.Duration, report.Late, took)
				}
				for _, rec := range records {
					require.True(t, rec.DueMs != nil && *rec.DueMs == rec.SentMs && rec.DurationMs == ms(takes) && *rec.TTFTMs == ms(takes), "got %+v", rec)
				}
			})
		})
	}
}

// The requests of a trace come as far apart as they did, by the speed.
func TestArrivalsKeepTheirTimes(t *testing.T) {
	const first = `{"meta":{"block_size":2}}` + "\n"
	path := write(t, "a.jsonl", first+arrivalLine(1500, 3, 64)+arrivalLine(1000, 3, 64)+arrivalLine(4000, 3, 64))
	for speed, want := range map[float64][]time.Duration{
		0:   {0, 500 * time.Millisecond, 3 * time.Second},
		0.5: {0, time.Second, 6 * time.Second},
		10:  {0, 50 * time.Millisecond, 300 * time.Millisecond},
	} {
		t.Run(fmt.Sprint(speed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server, start := &slowServer{takes: time.Minute}, time.Now()
				cfg := config("http://x", Arrivals, 7)
				cfg.Shape = Shape{Arrivals: path, Speed: speed}
				if _, err := run(t.Context(), cfg, server); err != nil {
					t.Fatal(err)
				}
				require.NoDiff(t, cmp.Diff(want, server.times(start)), "times (-want +got)")
			})
		})
	}
}

// Who is interrupted between two bursts sends no more.
func TestScheduleEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, enough := &slowServer{takes: time.Second}, errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(90*time.Second, func() { cancel(enough) })
		cfg := config("http://x", Bursts, 7)
		cfg.Shape = Shape{Bursts: 100, Requests: 2, Every: time.Minute}
		report, err := run(ctx, cfg, server)
		require.True(t, errors.Is(err, enough) && report.Requests == 4 && report.Duration == 90*time.Second, "got %v, %+v", err, report)
	})
}

func TestAwait(t *testing.T) {
	tests := []struct {
		name   string
		status int
		want   string
	}{
		{name: "healthy", status: 200},
		{name: "no such path", status: 404},
		{name: "ill", status: 503, want: "the server at http://x was not ready within 1m0s: GET /health: status 503"},
		{name: "nobody", want: "the server at http://x was not ready within 1m0s: connection refused"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server, start := &slowServer{status: test.status}, time.Now()
				err := await(t.Context(), "http://x", time.Minute, server)
				if test.want == "" {
					require.True(t, err == nil && len(server.came) == 1, "got %v after %d looks", err, len(server.came))
					return
				}
				if err == nil || err.Error() != test.want || time.Since(start) != time.Minute {
					t.Errorf("got %v after %v, want %s", err, time.Since(start), test.want)
				}
				require.Equal(t, slices.Max(server.times(start))/time.Duration(len(server.came)-1), serverPause, "looked every")
			})
		})
	}
}

// A server that comes up late is waited for, and an interrupt ends the wait.
func TestAwaitIsPatient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, start := &slowServer{}, time.Now()
		time.AfterFunc(30*time.Second, func() { server.turn(200) })
		if err := await(t.Context(), "http://x", time.Minute, server); err != nil || time.Since(start) < 30*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		enough := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(enough) })
		server.turn(0)
		require.ErrorIs(t, await(ctx, "http://x", time.Minute, server), enough)
	})
}
