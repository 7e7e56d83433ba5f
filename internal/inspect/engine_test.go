package inspect

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/trace"
)

func TestEngineOf(t *testing.T) {
	seqs := uint64(64)
	tests := []struct {
		name, config string
		seqs         *uint64
		want         Engine
		err          string
	}{
		{name: "nothing said", want: Engine{MaxNumSeqs: 128, MaxNumBatchedTokens: 8192, BlockSize: 16, Caching: true}},
		{
			name: "all said", seqs: &seqs,
			config: "block_size=32;dtype=float32;enable_prefix_caching=false;max_model_len=4096;max_num_batched_tokens=512;num_gpu_blocks_override=9;speculative=none",
			want:   Engine{MaxNumSeqs: 64, MaxNumBatchedTokens: 512, MaxModelLen: 4096, BlockSize: 32, Blocks: 9},
		},
		{
			name: "the configuration counts most", seqs: &seqs, config: "max_num_seqs=8",
			want: Engine{MaxNumSeqs: 8, MaxNumBatchedTokens: 8192, BlockSize: 16, Caching: true},
		},
		{name: "no number", config: "block_size=auto", err: `t.jsonl: meta.engine_config: block_size is "auto": want a number above 0`},
		{name: "zero", config: "max_num_seqs=0", err: `t.jsonl: meta.engine_config: max_num_seqs is "0": want a number above 0`},
		{name: "no truth", config: "enable_prefix_caching=1x", err: `t.jsonl: meta.engine_config: enable_prefix_caching is "1x": want true or false`},
		{name: "guesses, which the recording tells", config: "speculative=ngram-k3", want: Engine{MaxNumSeqs: 128, MaxNumBatchedTokens: 8192, BlockSize: 16, Caching: true}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := EngineOf(&trace.Trace{Name: "t.jsonl", Meta: trace.Meta{EngineConfig: &test.config, MaxNumSeqs: test.seqs}}, Override{})
			if test.err != "" {
				require.True(t, err != nil && err.Error() == test.err, "got %v, want %s", err, test.err)
				return
			}
			if diff := cmp.Diff(test.want, got); err != nil || diff != "" {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}
