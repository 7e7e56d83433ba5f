package pack

import (
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// BenchmarkValidate reads a long request, of 10,000 token ids.
func BenchmarkValidate(b *testing.B) {
	in := AppendUint32s(AppendString(AppendArrayHeader(nil, 2), "cmpl-0123456789abcdef"), tokenIDs(10_000))
	b.SetBytes(int64(len(in)))
	b.ReportAllocs()
	for b.Loop() {
		require.NoError(b, Validate(in))
	}
}

func BenchmarkUint32s(b *testing.B) {
	ids := tokenIDs(10_000)
	in := AppendUint32s(nil, ids)
	b.SetBytes(int64(len(in)))
	b.ReportAllocs()
	dst := make([]uint32, 0, len(ids))
	for b.Loop() {
		c := NewCursor(in)
		var err error
		if dst, err = c.Uint32s(dst[:0]); err != nil || len(dst) != len(ids) {
			b.Fatal(len(dst), err)
		}
	}
}
