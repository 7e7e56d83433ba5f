package kvcache_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/engine/kvcache"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestNewRefuses(t *testing.T) {
	tests := []struct {
		name    string
		options kvcache.Options
		want    string
	}{
		{name: "block size 0", options: kvcache.Options{Blocks: 10}, want: "block size 0: give a block at least one token"},
		{name: "no blocks", options: kvcache.Options{BlockSize: 16}, want: "0 blocks: one is never given out, so have at least 2"},
		{name: "null block alone", options: kvcache.Options{Blocks: 1, BlockSize: 16}, want: "1 blocks: one is never"},
		{name: "too many blocks", options: kvcache.Options{Blocks: 1<<24 + 1, BlockSize: 16}, want: "have at most 16777216"},
		{
			name: "negative length", options: kvcache.Options{Blocks: 2, BlockSize: 16, MaxModelLen: -1},
			want: "max model length -1: it cannot be negative",
		},
		{
			name: "unknown algorithm", options: kvcache.Options{Blocks: 2, BlockSize: 16, Algorithm: "md5"},
			want: `hash algorithm "md5": want sha256, sha256_cbor, xxhash or xxhash_cbor`,
		},
		{
			name: "block of several frames", options: kvcache.Options{Blocks: 2, BlockSize: 8193, Events: true},
			want: "block size 8193: sha256 hashes at most 8192 tokens a block, choose sha256_cbor or xxhash_cbor",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if _, err := kvcache.New(test.options); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got error %v, want %q", err, test.want)
			}
		})
	}
}

// newPool returns a pool of blocks of 4 tokens.
func newPool(t *testing.T, o kvcache.Options) *kvcache.Pool {
	t.Helper()
	o.BlockSize = 4
	pool, err := kvcache.New(o)
	require.NoError(t, err)
	return pool
}

// counted returns n tokens, first and those after it.
func counted(first uint32, n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = first + uint32(i)
	}
	return tokens
}

func TestFits(t *testing.T) {
	pool := newPool(t, kvcache.Options{Blocks: 4})
	for tokens, want := range map[int]bool{-1: true, 0: true, 1: true, 11: true, 12: true, 13: false} {
		require.Equal(t, pool.Fits(tokens), want, "Fits(%d)", tokens)
		if s := kvcache.NewSequence(counted(0, max(tokens, 0))); pool.Allocate(s, 0, len(s.Tokens), 0) != want {
			t.Errorf("Allocate of %d tokens is not what Fits says", tokens)
		} else {
			pool.Free(s)
		}
	}
}

// TestFreeTwice frees a sequence that holds nothing any more.
func TestFreeTwice(t *testing.T) {
	pool := newPool(t, kvcache.Options{Blocks: 10, Caching: true})
	a, b := kvcache.NewSequence(counted(0, 8)), kvcache.NewSequence(counted(50, 8))
	pool.Allocate(a, 0, 8, 0)
	pool.Allocate(b, 0, 8, 0)
	pool.Free(a)
	pool.Free(a)
	if free := pool.FreeBlocks(); free != 7 || pool.Usage() != 1-7.0/9 {
		t.Errorf("%d free blocks, usage %v, want 7 of 9", free, pool.Usage())
	}
	require.True(t, len(pool.BlockIDs(a)) == 0 && !pool.Reset(), "a freed sequence holds blocks, or a pool in use was reset")
	require.Equal(t, pool.Lookup(a), 4, "tokens cached of the freed one")
	pool.Free(b)
	require.True(t, pool.Reset() && pool.Lookup(a) == 0, "an unused pool is not reset")
}

// TestSeeds tells pools of different seeds and algorithms apart, and those of the same not.
func TestSeeds(t *testing.T) {
	first := func(o kvcache.Options) string {
		o.Blocks, o.Caching, o.Events = 10, true, true
		pool := newPool(t, o)
		pool.Allocate(kvcache.NewSequence(counted(0, 4)), 0, 4, 0)
		return string(pool.TakeEvents()[0].(kvcache.BlockStored).Hashes[0])
	}
	seen := map[string]bool{}
	for _, algorithm := range []kvcache.Algorithm{kvcache.SHA256, kvcache.SHA256CBOR, kvcache.XXHash, kvcache.XXHashCBOR} {
		for _, seed := range []string{"", "0", "1"} {
			seen[first(kvcache.Options{Algorithm: algorithm, Seed: seed})] = true
		}
	}
	require.Equal(t, len(seen), 12, "different hashes")
	byDefault := first(kvcache.Options{})
	require.NoDiff(t, cmp.Diff(first(kvcache.Options{Algorithm: kvcache.SHA256, Seed: kvcache.DefaultSeed}), byDefault), "default (-want +got)")
}

// TestWholeContent finds nothing in the cache that differs in anything, by the fast
// hash too.
func TestWholeContent(t *testing.T) {
	base := func() *kvcache.Sequence {
		s := kvcache.NewSequence(counted(0, 9))
		s.Extra = kvcache.Extra{
			LoRA: kvcache.LoRA{ID: 1, Name: "a", Path: "/a"}, Salt: "salt",
			Features: []kvcache.Feature{{ID: "image", Offset: 5, Length: 2}},
		}
		return s
	}
	tests := []struct {
		name   string
		change func(s *kvcache.Sequence)
		want   int
	}{
		{name: "nothing", change: func(*kvcache.Sequence) {}, want: 8},
		{name: "id of the adapter", change: func(s *kvcache.Sequence) { s.Extra.LoRA.ID = 2 }, want: 8},
		{name: "last token", change: func(s *kvcache.Sequence) { s.Tokens[8] = 99 }, want: 8},
		{name: "a token", change: func(s *kvcache.Sequence) { s.Tokens[7] = 99 }, want: 4},
		{name: "first token", change: func(s *kvcache.Sequence) { s.Tokens[0] = 99 }, want: 0},
		{name: "adapter", change: func(s *kvcache.Sequence) { s.Extra.LoRA.Name = "b" }, want: 0},
		{name: "path of the adapter", change: func(s *kvcache.Sequence) { s.Extra.LoRA.Path = "/b" }, want: 0},
		{name: "no adapter", change: func(s *kvcache.Sequence) { s.Extra.LoRA = kvcache.LoRA{} }, want: 0},
		{name: "salt", change: func(s *kvcache.Sequence) { s.Extra.Salt = "" }, want: 0},
		{name: "feature", change: func(s *kvcache.Sequence) { s.Extra.Features[0].ID = "other" }, want: 4},
		{name: "place of the feature", change: func(s *kvcache.Sequence) { s.Extra.Features[0].Offset = 6 }, want: 4},
		{name: "prompt log-probabilities", change: func(s *kvcache.Sequence) { s.Uncached = true }, want: 0},
	}
	for _, algorithm := range []kvcache.Algorithm{"", kvcache.SHA256, kvcache.XXHashCBOR} {
		pool := newPool(t, kvcache.Options{Blocks: 10, Caching: true, Algorithm: algorithm})
		pool.Allocate(base(), 0, 9, 0)
		for _, test := range tests {
			t.Run(string(algorithm)+" "+test.name, func(t *testing.T) {
				s := base()
				test.change(s)
				if got := pool.Lookup(s); got != test.want {
					t.Errorf("%d tokens are cached, want %d", got, test.want)
				}
			})
		}
	}
}
