package load

import (
	"io"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// BenchmarkConcurrency is what the client can do, with 64 requests in flight of 64 tokens each and records written: it must
// not be what a capture measures. The server in the same process has half of the work.
func BenchmarkConcurrency(b *testing.B) {
	server := newServer(b)
	server.exact = true
	w := NewRecordWriter(io.Discard, true)
	cfg := config(server.URL, Concurrency, 7)
	cfg.Shape = Shape{Concurrency: 64, Requests: max(b.N, 64)}
	cfg.Each = w.Write
	b.ResetTimer()
	report, err := Run(b.Context(), cfg)
	require.NoError(b, err)
	b.ReportMetric(float64(report.Completed)/report.Duration.Seconds(), "requests/s")
	b.ReportMetric(float64(report.Tokens)/report.Duration.Seconds(), "tokens/s")
}
