package report

import (
	"io"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// BenchmarkRender writes a document of 10,000 cases, 1,000 of which fail, in every
// format.
func BenchmarkRender(b *testing.B) {
	r := large(10000)
	b.Run("all", func(b *testing.B) {
		for b.Loop() {
			d := New(r, someRun())
			for _, f := range renderers {
				require.NoError(b, f.write(io.Discard, d))
			}
		}
	})
	d := New(r, someRun())
	for _, f := range renderers {
		b.Run(f.name, func(b *testing.B) {
			for b.Loop() {
				require.NoError(b, f.write(io.Discard, d))
			}
		})
	}
}
