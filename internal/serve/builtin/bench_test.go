package builtin

import (
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// discard takes an answer in the place of a client.
type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(p []byte) (int, error) { return len(p), nil }
func (d discard) WriteHeader(int)             {}
func (d discard) Flush()                      {}

// BenchmarkCompletion is what an answer of 128 tokens costs without a network, in CPU of all goroutines.
func BenchmarkCompletion(b *testing.B) {
	for _, stream := range []bool{true, false} {
		b.Run(fmt.Sprintf("stream=%t", stream), func(b *testing.B) {
			_, s, source := serving(b, nil)
			source.set("...")
			body := fmt.Sprintf(`{"prompt":"a","max_tokens":128,"stream":%t}`, stream)
			var before, after syscall.Rusage
			require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &before))
			b.ReportAllocs()
			for b.Loop() {
				r, err := http.NewRequestWithContext(b.Context(), http.MethodPost, "/v1/completions", strings.NewReader(body))
				require.NoError(b, err)
				r.Header.Set("Content-Type", "application/json")
				s.ServeHTTP(discard{http.Header{}}, r)
			}
			require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &after))
			used := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
			b.ReportMetric(float64(used)/float64(b.N), "cpu-ns/op")
		})
	}
}
