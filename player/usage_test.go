package player

import (
	"testing"

	"github.com/vllm-vcr/conformance/internal/engine/kvcache"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// TestUsageOfRealEngines follows two captured sessions and counts KV blocks as
// the player does: after every step the share must be what the real engine said.
func TestUsageOfRealEngines(t *testing.T) {
	for name, line := range map[string]string{
		"0.27.1-multiturn-s7.jsonl.gz": "0.27",
		"0.33.0-multiturn-s7.jsonl.gz": "0.33",
	} {
		t.Run(line, func(t *testing.T) {
			codec, err := protocol.CodecFor(line)
			must(t, err)
			pool, err := kvcache.New(kvcache.Options{Blocks: 8192, BlockSize: 128, Caching: true})
			must(t, err)
			followed := map[string]*kvcache.Sequence{}
			steps := 0
			for _, m := range testenv.Capture(t, name) {
				switch {
				case m.Channel == "input0" && len(m.Frames) == 2 && m.Frames[0][0] == protocol.TypeAdd:
					var r protocol.Request
					must(t, codec.DecodeRequest(m.Frames[1], &r))
					followed[r.ID] = kvcache.NewSequence(r.PromptTokenIDs)
					followed[r.ID].Uncached = r.Sampling.PromptLogprobs != protocol.NoLogprobs
				case m.Channel == "output0":
					steps++
					followStep(t, codec, pool, followed, m.Frames[0], steps)
				}
			}
			require.True(t, steps >= 700, "%d steps, want a whole session", steps)
		})
	}
}

func followStep(t *testing.T, codec *protocol.Codec, pool *kvcache.Pool, followed map[string]*kvcache.Sequence, frame []byte, step int) {
	t.Helper()
	var o protocol.Outputs
	must(t, codec.DecodeOutputs(frame, &o))
	for _, out := range o.Outputs {
		q := followed[string(out.ID)]
		computed := len(q.Tokens) - 1
		if out.Prefill != nil {
			computed = pool.Lookup(q)
			if want := int(numberIn(t, out.Prefill, "num_cached_tokens")); computed != want {
				t.Errorf("step %d: request %s found %d tokens, in the engine %d", step, out.ID, computed, want)
			}
		}
		pool.Allocate(q, computed, len(q.Tokens)-computed, 0)
		q.Tokens = append(q.Tokens, out.Tokens...)
	}
	for _, out := range o.Outputs {
		if out.Finish != protocol.Unfinished {
			pool.Free(followed[string(out.ID)])
		}
	}
	if o.SchedulerStats == nil {
		return
	}
	want := numberIn(t, o.SchedulerStats, "kv_cache_usage")
	if got := pool.Usage(); got != want {
		t.Errorf("step %d: usage %v, the engine said %v", step, got, want)
	}
}

// numberIn reads one number of a map.
func numberIn(t *testing.T, encoded []byte, name string) float64 {
	t.Helper()
	cur := pack.NewCursor(encoded)
	n, err := cur.MapLen()
	for range n {
		key, keyErr := cur.StrString()
		if err != nil || keyErr != nil {
			t.Fatal(err, keyErr)
		}
		if key == name {
			number, err := cur.Float()
			must(t, err)
			return number
		}
		err = cur.Skip()
	}
	t.Fatalf("no %s", name)
	return 0
}
