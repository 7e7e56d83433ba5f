package golden

import (
	"bytes"
	"path/filepath"
	"testing"
)

// keep puts data into the cache of the store.
func keep(tb testing.TB, s *Store, data []byte) {
	tb.Helper()
	write(tb, filepath.Join(s.Cache, entryName(digest(data))), data)
}

// BenchmarkCached is what a run pays for a golden that it has: reading and hashing it.
func BenchmarkCached(b *testing.B) {
	for _, size := range []int{50_000, 5_000_000} {
		data := bytes.Repeat([]byte("x"), size)
		s := &Store{Cache: b.TempDir()}
		keep(b, s, data)
		b.Run(map[int]string{50_000: "50kB", 5_000_000: "5MB"}[size], func(b *testing.B) {
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Fetch(b.Context(), Object{Location: "s3://bucket/key", SHA256: digest(data), Size: int64(size)}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
