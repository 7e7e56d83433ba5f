package trace

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func repeat(token uint32, n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = token
	}
	return out
}

func count(n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(i)
	}
	return out
}

func TestBlockHashes(t *testing.T) {
	tests := []struct {
		name   string
		tokens []uint32
		block  int
		want   []uint64
	}{
		{"0..11 by 4", count(12), 4, []uint64{0x4f6b7b917766d00c, 0xd7a98fdc1036b124, 0x1147cc36921fcd5d}},
		{"0..11 by 4, decimal", count(12), 4, []uint64{5722803616208048140, 15540110164546203940, 1245188356743089501}},
		{"42 by 16", repeat(42, 32), 16, []uint64{0x65d56a375dae36cc, 0x3bb563ba43b9f421}},
		{"1,2,3 by 1", []uint32{1, 2, 3}, 1, []uint64{13004174835995866397, 7367614953835160355, 7489982877924929412}},
		{"largest id", repeat(1<<32-1, 2), 2, []uint64{5394237124865880516}},
		{"shorter than a block", count(3), 4, nil},
		{"tail does not count", count(15), 4, []uint64{0x4f6b7b917766d00c, 0xd7a98fdc1036b124, 0x1147cc36921fcd5d}},
		{"no tokens", nil, 4, nil},
		{"block of 0", count(4), 0, nil},
		{"negative block", count(4), -1, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			require.NoDiff(t, cmp.Diff(tt.want, BlockHashes(tt.tokens, tt.block)), "(-want +got)")
			got := AppendBlockHashes([]uint64{9}, tt.tokens, tt.block)
			require.NoDiff(t, cmp.Diff(append([]uint64{9}, tt.want...), got), "appended (-want +got)")
		})
	}
}

func TestConfigHash(t *testing.T) {
	qwen := func(cached string) string {
		return "block_size=16;enable_prefix_caching=" + cached + ";enforce_eager=true;gpu_memory_utilization=0.9;" +
			"max_model_len=16384;max_num_seqs=256;model=Qwen/Qwen3-8B;speculative=none;tensor_parallel=1"
	}
	tests := []struct{ tag, cached, want string }{
		{"v0.27.1", "true", "008ec925f30d74759b6c62bd5e78b16efb7b450c687554c053726dad9740a9dd"},
		{"v0.27.1", "false", "207648aeb128254e4e0c6d177c428abccd40a306478c04b0b8519a61b9c4ce8e"},
		{"v0.26.0", "true", "a50876aca900d094a2d58897176c1c96748203743b29a17ce1eb355fccbac84c"},
		{"v0.26.0", "false", "17e60055a625292e67a354084204b1f7f0f3f196ee3d62363113d3de15aa20ec"},
		{"v0.25.1", "true", "c74d2e5958ebe152838089bfc134ba615c9f10f113fb9ff034c68cfe7ed1d543"},
		{"v0.25.1", "false", "c7f70be8d426964e035600f31adb13b56f4335c93bbf5b51e63e4da8ae63c86c"},
		{"v0.24.0", "true", "6877a96ac4bfb8281101baecdccdbc1bb1e2d447f0d0595ffcf2bef1771cbd51"},
		{"v0.24.0", "false", "e4cae396fbb56fb7587526332d2b9078baeadb710345c665c1e3630dc740c1fb"},
	}
	for _, tt := range tests {
		t.Run(tt.tag+" "+tt.cached, func(t *testing.T) {
			if got := ConfigHash("H200", tt.tag, qwen(tt.cached)); got != tt.want {
				t.Errorf("want %s, got %s", tt.want, got)
			}
		})
	}
	if got := ConfigHash("", "", ""); got[:8] != "a4337510" || got[58:] != "decc2e" {
		t.Errorf("nothing known: got %s", got)
	}
}
