package golden

import (
	"bytes"
	"testing"
)

// BenchmarkCached is what a run pays for a golden that it has: reading and hashing it.
func BenchmarkCached(b *testing.B) {
	for _, size := range []int{50_000, 5_000_000} {
		data := bytes.Repeat([]byte("x"), size)
		s := &Store{Cache: b.TempDir()}
		if err := s.keep(digest(data), data); err != nil {
			b.Fatal(err)
		}
		b.Run(map[int]string{50_000: "50kB", 5_000_000: "5MB"}[size], func(b *testing.B) {
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Fetch(b.Context(), "s3://bucket/key", digest(data), int64(size)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
