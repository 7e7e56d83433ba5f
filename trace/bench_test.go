package trace

import (
	"bytes"
	"io"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// corpus is all goldens in one trace, repeated to be worth measuring.
func corpus(b *testing.B) []byte {
	b.Helper()
	var all bytes.Buffer
	for i, path := range goldenPaths(b) {
		plain := inflate(b, path)
		if i > 0 {
			plain = plain[bytes.IndexByte(plain, '\n')+1:]
		}
		all.Write(plain)
	}
	return all.Bytes()
}

func readThrough(b *testing.B, data []byte, gz bool) {
	b.Helper()
	r, err := NewReader(bytes.NewReader(data), "corpus", gz, Options{Strict: true})
	require.NoError(b, err)
	var rec Record
	for {
		if err := r.Next(&rec); err == io.EOF {
			return
		} else if err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkNextPlain(b *testing.B) {
	data := corpus(b)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		readThrough(b, data, false)
	}
}

// BenchmarkNextGzip counts inflated bytes.
func BenchmarkNextGzip(b *testing.B) {
	data := corpus(b)
	var packed bytes.Buffer
	w := newLineWriter(&packed, true, "record")
	require.NoError(b, w.writeMeta(data))
	require.NoError(b, w.Close())
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		readThrough(b, packed.Bytes(), true)
	}
}

func benchmarkWrite(b *testing.B, gz bool) {
	data := corpus(b)
	r, err := NewReader(bytes.NewReader(data), "corpus", false, Options{})
	require.NoError(b, err)
	tr, err := r.ReadAll()
	require.NoError(b, err)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		w, err := NewWriter(io.Discard, gz, tr.Meta)
		require.NoError(b, err)
		for i := range tr.Records {
			require.NoError(b, w.Write(&tr.Records[i]))
		}
		require.NoError(b, w.Close())
	}
}

func BenchmarkWritePlain(b *testing.B) { benchmarkWrite(b, false) }
func BenchmarkWriteGzip(b *testing.B)  { benchmarkWrite(b, true) }
