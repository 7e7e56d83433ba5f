package protocol

import (
	"fmt"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// DecodeReady reads a registration payload of any line. Keys it does not know
// are skipped, keys that are absent keep the zero value: use the raw bytes to
// judge which were there.
func DecodeReady(payload []byte) (ReadyResponse, error) {
	var r ReadyResponse
	targets := r.targets()
	err := eachKey(payload, func(key string, cur *pack.Cursor) error {
		if cur.Nil() {
			return nil
		}
		return targets.decode(key, cur)
	})
	if err != nil {
		return r, fmt.Errorf("ready response: %w", err)
	}
	return r, nil
}

// readyTargets says where the values of a registration go, by key.
type readyTargets struct {
	ints     map[string]*int
	strs     map[string]*string
	bools    map[string]*bool
	optional map[string]**string
}

func (r *ReadyResponse) targets() readyTargets {
	return readyTargets{
		ints: map[string]*int{
			"max_model_len": &r.MaxModelLen, "num_gpu_blocks": &r.NumGPUBlocks, "block_size": &r.BlockSize,
			"world_size": &r.WorldSize, "data_parallel_size": &r.DataParallelSize,
			"tensor_parallel_size": &r.TensorParallelSize, "pipeline_parallel_size": &r.PipelineParallelSize,
			"decode_context_parallel_size": &r.DecodeContextParallelSize, "data_parallel_rank": &r.DataParallelRank,
			"max_num_seqs": &r.MaxNumSeqs, "max_num_batched_tokens": &r.MaxNumBatchedTokens, "max_loras": &r.MaxLoRAs,
		},
		strs: map[string]*string{"dtype": &r.DType, "vllm_version": &r.VLLMVersion, "instance_id": &r.InstanceID},
		bools: map[string]*bool{
			"supports_lora": &r.SupportsLoRA, "enable_sleep_mode": &r.EnableSleepMode,
			"supports_draft_weight_updates": &r.SupportsDraftWeightUpdates,
		},
		optional: map[string]**string{
			"dp_stats_address": &r.DPStatsAddress, "weight_transfer_backend": &r.WeightTransferBackend,
			"coordinator_input_address":  &r.CoordinatorInputAddress,
			"coordinator_output_address": &r.CoordinatorOutputAddress,
		},
	}
}

func (t *readyTargets) decode(key string, cur *pack.Cursor) (err error) {
	switch {
	case t.ints[key] != nil:
		*t.ints[key], err = smallInt(cur)
	case t.strs[key] != nil:
		*t.strs[key], err = cur.StrString()
	case t.bools[key] != nil:
		*t.bools[key], err = cur.Bool()
	case t.optional[key] != nil:
		*t.optional[key], err = decodeOptional(cur)
	default:
		err = cur.Skip()
	}
	return err
}
