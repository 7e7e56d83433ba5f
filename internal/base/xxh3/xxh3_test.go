package xxh3

import (
	"testing"

	oracle "github.com/zeebo/xxh3"
)

// Lengths go through each of the algorithm's cases and over its edges.
func TestSum128(t *testing.T) {
	data := make([]byte, 5000)
	for i := range data {
		data[i] = byte(i * i * 2654435761 >> 7)
	}
	for n := range data {
		if got, want := Sum128(data[:n]), oracle.Hash128(data[:n]).Bytes(); got != want {
			t.Fatalf("%d bytes: got %x, want %x", n, got, want)
		}
	}
}

func FuzzSum128(f *testing.F) {
	f.Add([]byte("abc"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if got, want := Sum128(data), oracle.Hash128(data).Bytes(); got != want {
			t.Errorf("got %x, want %x", got, want)
		}
	})
}

func BenchmarkSum128(b *testing.B) {
	for _, n := range []int{100, 300, 5000} {
		data := make([]byte, n)
		b.Run("ours", func(b *testing.B) {
			b.SetBytes(int64(n))
			for b.Loop() {
				Sum128(data)
			}
		})
		b.Run("zeebo", func(b *testing.B) {
			b.SetBytes(int64(n))
			for b.Loop() {
				_ = oracle.Hash128(data).Bytes()
			}
		})
	}
}
