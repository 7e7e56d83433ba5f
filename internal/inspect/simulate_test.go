package inspect

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/engine/latency"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/trace"
)

// Steps take 10 ms and 1 ms for each token of a prompt.
func TestSimulate(t *testing.T) {
	caching, one, tight := small, small, small
	caching.Caching = true
	one.MaxNumSeqs = 1
	tight.Blocks = 5 // 4 of 4 tokens
	next := hashed(record(57, 12, 9), 1, 2, 3)
	next.CachedTokens = 8
	tests := []struct {
		name   string
		engine Engine
		trace  []trace.Record
		want   []string
	}{
		{
			name: "alone", engine: small,
			trace: []trace.Record{record(500, 5, 1, 1, 1)},
			want:  []string{"0 +5 cached 0 beside 1: 15 25 35"},
		},
		{
			name: "a prompt in chunks holds up who decodes", engine: small,
			// The first decodes until 40; the second's 11 tokens take 7 of a step, then 4.
			trace: []trace.Record{record(0, 5, 1, 1, 1, 1, 1), record(20, 11, 1)},
			want:  []string{"20 +11 cached 0 beside 2: 56", "0 +5 cached 0 beside 1: 15 25 42 56 66"},
		},
		{
			name: "no place in the batch", engine: one,
			trace: []trace.Record{record(0, 2, 1, 1), record(0, 3, 1)},
			want:  []string{"0 +2 cached 0 beside 1: 12 22", "0 +3 cached 0 beside 2: 35"},
		},
		{
			name: "a turn comes so long after the answer", engine: small,
			// Recorded, the answer ended at 30, and the next turn came at 37.
			trace: []trace.Record{hashed(record(0, 4, 20, 10), 1), hashed(record(37, 8, 9), 1, 2)},
			want:  []string{"0 +4 cached 0 beside 1: 14 24", "31 +8 cached 0 beside 1: 49"},
		},
		{
			name: "a turn finds its beginning", engine: caching,
			trace: []trace.Record{hashed(record(0, 4, 20, 10), 1), hashed(record(37, 8, 9), 1, 2)},
			want:  []string{"0 +4 cached 0 beside 1: 14 24", "31 +8 cached 4 beside 1: 45"},
		},
		{
			name: "a turn finds the answer too, as in the recording", engine: caching,
			// 6 tokens of the prompt and 3 of the answer: two whole blocks of the next prompt are computed, as the recorded engine found.
			trace: []trace.Record{hashed(record(0, 6, 20, 10, 10), 1), next},
			want:  []string{"0 +6 cached 0 beside 1: 16 26 36", "53 +12 cached 8 beside 1: 67"},
		},
		{
			name: "who has no blocks waits", engine: tight,
			// 8 tokens and an answer of 2 are 3 blocks: the second waits until the first has gone.
			trace: []trace.Record{record(0, 8, 1, 1), record(0, 8, 1)},
			want:  []string{"0 +8 cached 0 beside 1: 18 28", "0 +8 cached 0 beside 2: 46"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := Simulate(mustWorkload(t, recorded(test.trace...)), test.engine, ten{}, 1)
			require.NoError(t, err)
			require.NoDiff(t, cmp.Diff(strings.Join(test.want, "\n")+"\n", timeline(got)), "(-want +got)")
		})
	}
}

// guesses is a model that accepts one of two guesses in each step, or says whole blocks of three tokens.
type guesses struct {
	ten
	drafts, block int
}

func (g guesses) Drafts() int { return g.drafts }
func (g guesses) Block() int  { return g.block }
func (g guesses) Duration(s *latency.Step) time.Duration {
	for i := range s.Decodes {
		if d := &s.Decodes[i]; g.drafts > 0 {
			d.Tokens = min(d.Tokens, 2)
		}
	}
	return g.ten.Duration(s)
}

// Steps with several tokens of a request: the recording said one in each, which does not matter.
func TestSimulateSeveralTokens(t *testing.T) {
	for _, test := range []struct {
		name  string
		model latency.Model
		want  string
		sizes []uint32
	}{
		{"one", ten{}, "0 +5 cached 0 beside 1: 15 25 35 45 55 65\n", nil},
		{"guesses", guesses{drafts: 2}, "0 +5 cached 0 beside 1: 15 25 35 45\n", []uint32{2, 2, 1}},
		{"blocks", guesses{block: 4}, "0 +5 cached 0 beside 1: 15 25\n", []uint32{2}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := Simulate(mustWorkload(t, recorded(record(0, 5, 1, 1, 1, 1, 1, 1))), small, test.model, 1)
			require.NoError(t, err)
			require.NoDiff(t, cmp.Diff(test.want, timeline(got)), "(-want +got)")
			require.NoDiff(t, cmp.Diff(test.sizes, got[0].ITLTokens), "tokens of outputs (-want +got)")
		})
	}
}

// What a record says of a gap is what the tap says of it.
func TestSimulateTellsContext(t *testing.T) {
	w := mustWorkload(t, recorded(record(0, 5, 1, 1, 1, 1, 1), record(20, 11, 1)))
	got, err := Simulate(w, small, ten{}, 1)
	require.NoError(t, err)
	ctx := got[1].ITLCtx
	require.NoDiff(t, cmp.Diff([]uint32{0, 0, 11, 0}, ctx.PrefillTokens), "prefill tokens (-want +got)")
	require.NoDiff(t, cmp.Diff([]uint32{1, 2, 2, 1}, ctx.NumRunning), "running (-want +got)")
}

func TestSimulateErrors(t *testing.T) {
	tests := []struct {
		name   string
		change func(*Engine)
		want   string
	}{
		{"a prompt larger than the cache", func(e *Engine) { e.Blocks = 2 }, "t.jsonl: 1 requests never get a place in 2 blocks of 4 tokens"},
		{"no batch", func(e *Engine) { e.MaxNumSeqs = 0 }, "max-num-seqs is 0: want at least 1"},
		{"no step", func(e *Engine) { e.MaxNumBatchedTokens = -1 }, "max-num-batched-tokens is -1: want at least 1"},
		{"no block", func(e *Engine) { e.BlockSize = 0 }, "block-size is 0: want at least 1"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			engine := small
			test.change(&engine)
			_, err := Simulate(mustWorkload(t, recorded(record(0, 9, 1))), engine, &latency.Knobs{}, 1)
			require.True(t, err != nil && err.Error() == test.want, "got %v, want %s", err, test.want)
		})
	}
}
