package pack

import (
	"bytes"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// sampleRequest is an array of six with 10,000 token ids, shaped like a long
// EngineCoreRequest.
func sampleRequest() []byte {
	b := AppendArrayHeader(nil, 6)
	b = AppendString(b, "cmpl-0123456789abcdef")
	b = AppendUint32s(b, tokenIDs(10_000))
	b = AppendNil(b)
	b = AppendFloat64(b, 1763711000.5)
	b = AppendMapHeader(b, 2)
	b = AppendBool(AppendString(b, "ignore_eos"), true)
	b = AppendInt(AppendString(b, "max_tokens"), 128)
	return AppendUint(b, 0)
}

func BenchmarkValidate(b *testing.B) {
	inputs := []frame{
		{"request-10k-tokens", sampleRequest()},
		{"engine-outputs", realFrame(b, "0.33.0/rust-20-out-logprobs-1")},
	}
	for _, in := range inputs {
		b.Run(in.name+"/pack", func(b *testing.B) {
			b.SetBytes(int64(len(in.bytes)))
			b.ReportAllocs()
			for b.Loop() {
				require.NoError(b, Validate(in.bytes))
			}
		})
		b.Run(in.name+"/msgpack-v5-skip", func(b *testing.B) {
			b.SetBytes(int64(len(in.bytes)))
			b.ReportAllocs()
			r := bytes.NewReader(nil)
			d := msgpack.NewDecoder(r)
			for b.Loop() {
				r.Reset(in.bytes)
				d.Reset(r)
				require.NoError(b, d.Skip())
			}
		})
	}
}

func BenchmarkUint32s(b *testing.B) {
	ids := tokenIDs(10_000)
	in := AppendUint32s(nil, ids)
	b.Run("pack", func(b *testing.B) {
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
	})
	b.Run("msgpack-v5-loop", func(b *testing.B) {
		b.SetBytes(int64(len(in)))
		b.ReportAllocs()
		dst := make([]uint32, 0, len(ids))
		r := bytes.NewReader(nil)
		d := msgpack.NewDecoder(r)
		for b.Loop() {
			r.Reset(in)
			d.Reset(r)
			n, err := d.DecodeArrayLen()
			require.NoError(b, err)
			dst = dst[:0]
			for range n {
				v, err := d.DecodeUint32()
				require.NoError(b, err)
				dst = append(dst, v)
			}
		}
	})
}

func BenchmarkAppendUint32s(b *testing.B) {
	ids := tokenIDs(10_000)
	size := int64(len(AppendUint32s(nil, ids)))
	b.Run("pack", func(b *testing.B) {
		b.SetBytes(size)
		b.ReportAllocs()
		var out []byte
		for b.Loop() {
			out = AppendUint32s(out[:0], ids)
		}
	})
	b.Run("msgpack-v5-loop", func(b *testing.B) {
		b.SetBytes(size)
		b.ReportAllocs()
		var out bytes.Buffer
		e := msgpack.NewEncoder(&out)
		for b.Loop() {
			out.Reset()
			require.NoError(b, e.EncodeArrayLen(len(ids)))
			for _, id := range ids {
				require.NoError(b, e.EncodeUint(uint64(id)))
			}
		}
	})
}

// BenchmarkAppendOutputs writes one EngineCoreOutputs-like message: a decode step
// of 64 requests with one token each.
func BenchmarkAppendOutputs(b *testing.B) {
	var out []byte
	b.ReportAllocs()
	for b.Loop() {
		out = AppendArrayHeader(out[:0], 3)
		out = AppendInt(out, 0)
		out = AppendArrayHeader(out, 64)
		for i := range 64 {
			out = AppendArrayHeader(out, 4)
			out = AppendString(out, "cmpl-0123456789abcdef")
			out = AppendUint(AppendArrayHeader(out, 1), uint64(i)*2000)
			out = AppendNil(out)
			out = AppendBool(out, false)
		}
		out = AppendFloat64(out, 1.5)
	}
	b.SetBytes(int64(len(out)))
}

func BenchmarkDiff(b *testing.B) {
	in := sampleRequest()
	other := bytes.Replace(in, AppendFloat64(nil, 1763711000.5), AppendFloat64(nil, 2), 1)
	b.SetBytes(int64(len(in)))
	b.ReportAllocs()
	for b.Loop() {
		found, err := Diff("EngineCoreRequest", in, other, DiffOptions{})
		if err != nil || len(found) != 1 {
			b.Fatal(found, err)
		}
	}
}
