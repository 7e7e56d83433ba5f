package monitor

import (
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/recorder"
)

func serve(t *testing.T, stats func() recorder.Stats) *Server {
	t.Helper()
	s, err := Serve("127.0.0.1:0", stats, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

func get(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s %q %v", url, resp.Status, body, err)
	}
	return string(body)
}

const scraped = `
vllm_vcr_record_bytes_total{from="engine"} 3.4e+06
vllm_vcr_record_bytes_total{from="frontend"} 999
vllm_vcr_record_duplicate_requests_total 25
vllm_vcr_record_engines 1
vllm_vcr_record_late_outputs_total 24
vllm_vcr_record_lost_requests_total 12
vllm_vcr_record_messages_total{from="engine"} 7
vllm_vcr_record_messages_total{from="frontend"} 8
vllm_vcr_record_output_tokens_total 4800
vllm_vcr_record_queued_bytes 10
vllm_vcr_record_records_total 120
vllm_vcr_record_refused_records_total 22
vllm_vcr_record_requests_in_flight 3
vllm_vcr_record_requests_total{outcome="aborted"} 11
vllm_vcr_record_requests_total{outcome="done"} 120
vllm_vcr_record_requests_total{outcome="lost"} 12
vllm_vcr_record_steps_total 13
vllm_vcr_record_stopped_files 2
vllm_vcr_record_too_large_messages_total 21
vllm_vcr_record_undecodable_messages_total 20
vllm_vcr_record_unknown_outputs_total 23
vllm_vcr_record_wrong_engine_messages_total 26
`

// TestMetrics scrapes over HTTP: every sample with its value, names that Prometheus' own linter has nothing against, and
// nothing else in the registry.
func TestMetrics(t *testing.T) {
	stats := busy()
	stats.Messages = [2]uint64{recorder.FromEngine: 7, recorder.FromFrontend: 8}
	stats.Queued, stats.Aborted, stats.Lost, stats.Steps, stats.Stopped = 10, 11, 12, 13, 2
	stats.Undecodable, stats.TooLarge, stats.Refused, stats.Unknown = 20, 21, 22, 23
	stats.Late, stats.Duplicates, stats.WrongEngine = 24, 25, 26
	s := serve(t, func() recorder.Stats { return stats })
	page := get(t, "http://"+s.Address()+"/metrics")
	var samples []string
	for line := range strings.Lines(page) {
		if !strings.HasPrefix(line, "#") {
			samples = append(samples, line)
		}
	}
	slices.Sort(samples)
	require.NoDiff(t, cmp.Diff(scraped[1:], strings.Join(samples, "")), "-want +got")
	problems, err := promlint.New(strings.NewReader(page)).Lint()
	require.NoError(t, err)
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func TestHealth(t *testing.T) {
	var stats recorder.Stats
	s := serve(t, func() recorder.Stats { return stats })
	require.Equal(t, get(t, "http://"+s.Address()+"/healthz"), "ok\n", "get")
	stats.Stopped = 1
	require.Equal(t, get(t, "http://"+s.Address()+"/healthz"), "ok, but nothing is recorded any more\n", "get")
}

func TestAddressTaken(t *testing.T) {
	none := func() recorder.Stats { return recorder.Stats{} }
	s := serve(t, none)
	for _, address := range []string{s.Address(), "nonsense", "127.0.0.1:99999"} {
		if second, err := Serve(address, none, slog.New(slog.DiscardHandler)); err == nil {
			second.Close()
			t.Errorf("%s: no error", address)
		} else if !strings.HasPrefix(err.Error(), "metrics: listen tcp") || !strings.Contains(err.Error(), address) && !strings.Contains(err.Error(), "99999") {
			t.Errorf("%s: %v", address, err)
		}
	}
}
