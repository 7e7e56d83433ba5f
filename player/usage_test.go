package player

import (
	"testing"

	"github.com/vllm-vcr/conformance/internal/pack"
	"github.com/vllm-vcr/conformance/internal/protocol"
	"github.com/vllm-vcr/conformance/internal/testenv"
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
			if err != nil {
				t.Fatal(err)
			}
			e := &engine{
				ready: protocol.ReadyResponse{NumGPUBlocks: 8192}, byID: map[string]*request{},
				blocks: blockPool{size: 128, cached: true, users: map[uint64]int{}},
			}
			steps := 0
			for _, m := range testenv.Capture(t, name) {
				switch {
				case m.Channel == "input0" && len(m.Frames) == 2 && m.Frames[0][0] == protocol.TypeAdd:
					var r protocol.Request
					if err := codec.DecodeRequest(m.Frames[1], &r); err != nil {
						t.Fatal(err)
					}
					e.byID[r.ID] = &request{id: r.ID, prompt: len(r.PromptTokenIDs), chain: e.blocks.chain(&r)}
				case m.Channel == "output0":
					steps++
					followStep(t, codec, e, m.Frames[0], steps)
				}
			}
			if steps < 700 {
				t.Errorf("%d steps, want a whole session", steps)
			}
		})
	}
}

func followStep(t *testing.T, codec *protocol.Codec, e *engine, frame []byte, step int) {
	t.Helper()
	var o protocol.Outputs
	if err := codec.DecodeOutputs(frame, &o); err != nil {
		t.Fatal(err)
	}
	for _, out := range o.Outputs {
		q := e.byID[string(out.ID)]
		e.blocks.hold(q, q.prompt+max(q.said-1, 0))
		q.said += len(out.Tokens)
		if e.blocks.hold(q, q.prompt+max(q.said-1, 0)); out.Finish != protocol.Unfinished {
			e.forget(q)
		}
	}
	if o.SchedulerStats == nil {
		return
	}
	want := usageIn(t, o.SchedulerStats)
	if got := e.takeStats().KVCacheUsage; got != want {
		t.Errorf("step %d: usage %v, the engine said %v", step, got, want)
	}
}

func usageIn(t *testing.T, stats []byte) float64 {
	t.Helper()
	cur := pack.NewCursor(stats)
	n, err := cur.MapLen()
	for range n {
		key, keyErr := cur.StrString()
		if err != nil || keyErr != nil {
			t.Fatal(err, keyErr)
		}
		if key == "kv_cache_usage" {
			usage, err := cur.Float()
			if err != nil {
				t.Fatal(err)
			}
			return usage
		}
		err = cur.Skip()
	}
	t.Fatal("no kv_cache_usage")
	return 0
}
