package kvcache_test

import (
	"testing"

	"github.com/vllm-vcr/conformance/internal/engine/kvcache"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// decoding is a pool with sequences that have said nothing yet.
func decoding(tb testing.TB, sequences, prompt, room int, o kvcache.Options) (*kvcache.Pool, []*kvcache.Sequence) {
	tb.Helper()
	o.BlockSize, o.Caching = 16, true
	o.Blocks = sequences*((prompt+room)/16+1) + 2
	pool, err := kvcache.New(o)
	require.NoError(tb, err)
	var list []*kvcache.Sequence
	for i := range sequences {
		s := kvcache.NewSequence(append(make([]uint32, 0, prompt+room), counted(uint32(i)*1000, prompt)...))
		if !pool.Allocate(s, 0, prompt, 0) {
			tb.Fatal("no room")
		}
		list = append(list, s)
	}
	return pool, list
}

// decode is one step of each.
func decode(tb testing.TB, pool *kvcache.Pool, list []*kvcache.Sequence) {
	for _, s := range list {
		s.Tokens = append(s.Tokens, uint32(len(s.Tokens)))
		if !pool.Allocate(s, len(s.Tokens)-1, 1, 0) {
			tb.Fatal("no room")
		}
	}
}

// BenchmarkDecode1024 is the blocks' part of a step of 1024 requests that say a token each.
func BenchmarkDecode1024(b *testing.B) {
	for _, o := range []kvcache.Options{{}, {Algorithm: kvcache.SHA256CBOR}, {Algorithm: kvcache.SHA256, Events: true}} {
		b.Run("algorithm="+string(o.Algorithm), func(b *testing.B) {
			const room = 1600
			pool, list := decoding(b, 1024, 100, room, o)
			b.ReportAllocs()
			steps := 0
			for b.Loop() {
				if steps++; steps == room {
					b.StopTimer()
					pool, list = decoding(b, 1024, 100, room, o)
					steps = 0
					b.StartTimer()
				}
				decode(b, pool, list)
				pool.TakeEvents()
			}
		})
	}
}

// BenchmarkLookup11k looks a prompt of 11 thousand tokens up that is all cached, hashing it or not.
func BenchmarkLookup11k(b *testing.B) {
	for _, algorithm := range []kvcache.Algorithm{"", kvcache.SHA256, kvcache.SHA256CBOR, kvcache.XXHash} {
		pool, list := decoding(b, 1, 11000, 16, kvcache.Options{Algorithm: algorithm})
		b.Run("first/algorithm="+string(algorithm), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if pool.Lookup(kvcache.NewSequence(list[0].Tokens)) != 10992 {
					b.Fatal("not all is cached")
				}
			}
		})
		b.Run("again/algorithm="+string(algorithm), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				pool.Lookup(list[0])
			}
		})
	}
}

// TestAllocations counts what a token costs in steady state: hashes of full blocks,
// every 16th, grow lists, and nothing else allocates.
func TestAllocations(t *testing.T) {
	pool, list := decoding(t, 64, 100, 1600, kvcache.Options{})
	for range 300 {
		decode(t, pool, list)
	}
	perStep := testing.AllocsPerRun(1000, func() { decode(t, pool, list) })
	if perStep > 1 {
		t.Errorf("%v allocations in a step of 64 tokens, want fewer than one", perStep)
	}
}
