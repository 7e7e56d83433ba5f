//go:build unix

package edge

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// BenchmarkForward compares requests to a toy frontend with the same through the edge, with 64 connections. Client,
// edge and toy share one process, so the time per request is more than what the edge adds: look at the difference.
func BenchmarkForward(b *testing.B) {
	body := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("hello ", 50) + `"}],"stream":`
	answer := `{"id":"chatcmpl-1","choices":[{"index":0,"message":{"role":"assistant","content":"` + strings.Repeat("hello ", 50) + `"}}]}`
	toy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked, _ := io.ReadAll(r.Body)
		if !strings.Contains(string(asked), `"stream":true`) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, answer)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 16 {
			fmt.Fprintf(w, "data: {\"id\":\"chatcmpl-1\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"token %d\"}}]}\n\n", i)
			flush(w)
		}
	}))
	defer toy.Close()
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	e, err := New(Options{Frontends: []http.Handler{proxyTo(b, toy.URL)}, FanOut: true})
	require.NoError(b, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	go func() { _ = e.Serve(ctx, l) }()
	urls := map[string]string{"direct": toy.URL, "edge": "http://" + l.Addr().String()}
	for _, streams := range []bool{false, true} {
		for _, through := range []string{"direct", "edge"} {
			url := urls[through]
			b.Run(fmt.Sprintf("stream=%t/%s", streams, through), func(b *testing.B) {
				hammer(b, url+"/v1/chat/completions", fmt.Sprintf("%s%t}", body, streams), 64)
			})
		}
	}
}

// hammer sends b.N requests over so many connections.
func hammer(b *testing.B, url, body string, connections int) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: connections, MaxConnsPerHost: connections}}
	defer client.CloseIdleConnections()
	var times []time.Duration
	var mu sync.Mutex
	next := make(chan struct{}, connections)
	var sending sync.WaitGroup
	b.ReportAllocs()
	began := processorTime()
	b.ResetTimer()
	for range connections {
		sending.Go(func() {
			var own []time.Duration
			for range next {
				began := time.Now()
				answer, err := client.Post(url, "application/json", strings.NewReader(body))
				if err == nil {
					_, err = io.Copy(io.Discard, answer.Body)
					answer.Body.Close()
				}
				if err != nil || answer.StatusCode != http.StatusOK {
					b.Error(err)
					continue
				}
				own = append(own, time.Since(began))
			}
			mu.Lock()
			times = append(times, own...)
			mu.Unlock()
		})
	}
	for range b.N {
		next <- struct{}{}
	}
	close(next)
	sending.Wait()
	b.StopTimer()
	slices.Sort(times)
	if len(times) > 0 {
		b.ReportMetric(float64(times[len(times)/2].Microseconds()), "p50-µs")
	}
	b.ReportMetric(float64(len(times))/b.Elapsed().Seconds(), "requests/s")
	b.ReportMetric(float64((processorTime()-began).Nanoseconds())/1e3/float64(b.N), "cpu-µs/op")
}

// processorTime is what this process has used: other processes on the machine do not change it.
func processorTime() time.Duration {
	var used syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &used) != nil {
		return 0
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
