package main

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// TestSoak loads serve for as long as VLLM_VCR_SOAK says (make soak), half of that with each frontend: many streams at
// once, half of whose clients leave, faults, changes of the configuration, and ends of the frontend. Memory and
// descriptors stay as they are after the first rounds, and the counters of requests are equal to what clients have
// seen.
func TestSoak(t *testing.T) {
	length, err := time.ParseDuration(os.Getenv("VLLM_VCR_SOAK"))
	if err != nil {
		t.Skip("set VLLM_VCR_SOAK to a time, such as 30m")
	}
	streams := 10_000
	if text := os.Getenv("VLLM_VCR_SOAK_STREAMS"); text != "" {
		streams, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	// A proxied stream takes two descriptors of serve.
	for _, test := range []struct {
		frontend string
		streams  int
	}{{"builtin", streams}, {testenv.Frontend(t, "0.33.0"), streams * 2 / 5}} {
		t.Run(test.frontend[strings.LastIndex(test.frontend, "/")+1:], func(t *testing.T) { soak(t, test.frontend, test.streams, length/2) })
	}
}

func soak(t *testing.T, frontend string, streams int, length time.Duration) {
	s := startServe(t, "--frontend", frontend, "--restart", "--allow-request-faults", "--max-num-seqs", "16384", "--max-num-batched-tokens", "65536",
		"--inter-token-latency", "20ms", "--admin-token", "t", "--quiet")
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: -1, DisableKeepAlives: true}}
	var firstMemory, memory, firstFiles, files float64
	rounds := 0
	for end := time.Now().Add(length); time.Now().Before(end); rounds++ {
		if rounds%4 == 3 {
			s.endFrontend(t)
		}
		before := s.successes(t)
		reached := s.round(t, client, streams)
		for waited := time.Now(); s.successes(t) != before+reached; time.Sleep(50 * time.Millisecond) {
			if time.Since(waited) > time.Minute {
				t.Fatalf("round %d: %d requests came to the engine, and %d are counted", rounds, reached, s.successes(t)-before)
			}
		}
		client.CloseIdleConnections()
		http.DefaultClient.CloseIdleConnections()
		time.Sleep(3 * time.Second) // serve closes idle connections to its frontend after two
		memory, files = testenv.Resident(t, s.Pid()), descriptors(t, s.Pid())
		if rounds < 5 {
			firstMemory, firstFiles = max(firstMemory, memory), max(firstFiles, files)
		}
		t.Logf("round %d: %d requests, %.0f MB, %.0f descriptors", rounds, reached, memory, files)
	}
	if memory > 1.3*firstMemory || files > firstFiles+50 {
		t.Errorf("after %d rounds: %.0f MB and %.0f descriptors, and %.0f MB and %.0f after the first five", rounds, memory, files, firstMemory, firstFiles)
	}
}

// endFrontend ends what answers, and waits until it is started again.
func (s *served) endFrontend(t *testing.T) {
	t.Helper()
	if len(s.Pids) > 0 {
		require.NoError(t, syscall.Kill(s.Pids[0], syscall.SIGKILL))
	} else {
		s.ask(t, "/v1/completions", `{"prompt":"Hi","max_tokens":2,"vllm_xargs":{"vllm_vcr_fault":"kill"}}`)
	}
	s.next(t)
}

// successes is how many requests the engine has ended.
func (s *served) successes(t *testing.T) (sum int) {
	t.Helper()
	_, _, text := s.ask(t, "/metrics", "")
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "vllm:request_success_total{") {
			n, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndex(line, " "):]), 64)
			require.NoError(t, err)
			sum += int(n)
		}
	}
	return sum
}

// round opens streams, all at once, and returns how many came to the engine.
func (s *served) round(t *testing.T, client *http.Client, streams int) int {
	t.Helper()
	var reached atomic.Int64
	var running, begun sync.WaitGroup
	all := make(chan struct{}) // closed when all have begun
	opening := make(chan struct{}, 200)
	fail := func(i int, format string, args ...any) { t.Errorf("stream %d: "+format, append([]any{i}, args...)...) }
	for i := range streams {
		opening <- struct{}{}
		begun.Add(1)
		running.Go(func() {
			body := fmt.Sprintf(`{"prompt":"Hi %d","max_tokens":16,"ignore_eos":true,"stream":true}`, i)
			r, _ := http.NewRequestWithContext(t.Context(), "POST", s.URL+"/v1/completions", strings.NewReader(body))
			r.Header.Set("Content-Type", "application/json")
			fault := map[int]string{10: "status:503", 20: "http-truncate:2", 30: "http-reset:3", 40: "http-malformed:1"}[i%100]
			if fault != "" {
				r.Header.Set("X-Fault", fault)
			}
			answer, err := client.Do(r)
			<-opening
			began := sync.OnceFunc(begun.Done)
			defer began()
			if err != nil {
				fail(i, "%v", err)
				return
			}
			defer answer.Body.Close()
			if fault == "status:503" {
				if answer.StatusCode != 503 {
					fail(i, "status %d, want 503", answer.StatusCode)
				}
				return
			}
			lines := bufio.NewReaderSize(answer.Body, 1<<10)
			if first, err := lines.ReadString('\n'); err != nil || answer.StatusCode != 200 {
				fail(i, "status %d, %q, %v", answer.StatusCode, first, err)
				return
			}
			reached.Add(1)
			began()
			<-all
			if i%2 == 1 {
				return // and leave
			}
			rest, err := io.ReadAll(lines)
			if whole := err == nil && strings.HasSuffix(string(rest), "data: [DONE]\n\n"); whole != (fault == "" || fault == "http-malformed:1") {
				fail(i, "with fault %q: %v, %.100q", fault, err, rest)
			}
		})
		if i%(streams/4+1) == 0 {
			if status, _, text := s.ask(t, "/admin/config", fmt.Sprintf(`{"seed":%d}`, i), "Authorization", "Bearer t"); status != 200 {
				t.Errorf("a change of the configuration: %d %s", status, text)
			}
		}
	}
	begun.Wait()
	close(all)
	running.Wait()
	return int(reached.Load())
}

func descriptors(t *testing.T, pid int) float64 {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	require.NoError(t, err)
	return float64(len(entries))
}
