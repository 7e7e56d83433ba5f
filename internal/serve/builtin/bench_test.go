package builtin

import (
	"io"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// BenchmarkDecode is what a token costs without HTTP.
func BenchmarkDecode(b *testing.B) {
	_, s, source := serving(b, nil)
	ids := source.tok.Encode("The train leaves the station at nine in the morning, and nobody has seen the letter. ")
	p := &params{Stream: true, Stop: stringOrList{"zebra"}}
	d := newDecoder(s.opt.Tokenizer, p, false)
	var text []byte
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		if stop := d.push(ids[i%len(ids)]); stop != "" {
			b.Fatal(stop)
		}
		text = append(text[:0], d.next(false)...)
	}
	_, err := io.Discard.Write(text)
	require.NoError(b, err)
}
