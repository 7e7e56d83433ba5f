package player

import (
	"bytes"
	"encoding/hex"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

func TestRegistrationIsTheRecordedOne(t *testing.T) {
	backend, topic := "nccl", "kv@pod"
	recorded := protocol.ReadyResponse{
		MaxModelLen: 40960, NumGPUBlocks: 1234, BlockSize: 32, DType: "bfloat16", VLLMVersion: "0.0.1", WorldSize: 4,
		DataParallelSize: 2, TensorParallelSize: 4, PipelineParallelSize: 1, DecodeContextParallelSize: 1,
		DataParallelRank: 1, MaxNumSeqs: 77, MaxNumBatchedTokens: 8192, InstanceID: "recorded", SupportsLoRA: true,
		MaxLoRAs: 3, WeightTransferBackend: &backend, EnableSleepMode: true, SupportsDraftWeightUpdates: true,
		KVEvents: &protocol.KVEventsConfig{Enable: true, Publisher: "zmq", Topic: topic},
	}
	for _, line := range protocol.Lines() {
		t.Run(line, func(t *testing.T) {
			codec, err := protocol.CodecFor(line)
			must(t, err)
			tr := traceOf(t, take{prompt: count(0, 4), output: []uint32{1}})
			raw := hex.EncodeToString(codec.AppendReady(nil, &recorded))
			tr.Meta.ReadyResponseHex, tr.Meta.VLLMVersion = &raw, &codec.Profile().Version
			s := connect(t, Options{Trace: tr, EngineIndex: 3}, 2)

			want := recorded
			want.VLLMVersion, want.DataParallelRank = codec.Profile().Version, 3
			want.KVEvents = nil // this engine publishes none
			want.InstanceID = s.engine.Ready.InstanceID
			if diffs, err := pack.Diff("ready", codec.AppendPlayerReady(nil, &want), s.engine.RawReady, pack.DiffOptions{}); err != nil || len(diffs) > 0 {
				t.Errorf("registration: %v %v", diffs, err)
			}
			require.True(t, bytes.Equal(codec.AppendPlayerReady(nil, &want), s.engine.RawReady), "the registration's bytes differ")
			require.True(t, protocol.IsPlayer(s.engine.RawReady) && !protocol.IsPlayer(codec.AppendReady(nil, &recorded)), "instance id %q", s.engine.Ready.InstanceID)
			require.True(t, s.engine.Index == 3 && bytes.Equal(s.engine.Identity, []byte{3, 0}), "engine %d with identity %x, want 3 with 0300", s.engine.Index, s.engine.Identity)
		})
	}
}
