package protocol

import (
	"fmt"

	"github.com/vllm-vcr/conformance/internal/pack"
)

// DecodeReady reads a registration payload of any line. Keys it does not know
// are skipped, keys that are absent keep the zero value: use the raw bytes to
// judge which were there.
func DecodeReady(payload []byte) (ReadyResponse, error) {
	var r ReadyResponse
	cur := pack.NewCursor(payload)
	n, err := cur.MapLen()
	if err != nil {
		return r, fmt.Errorf("ready response: %w", err)
	}
	for range n {
		key, err := cur.Str()
		if err != nil {
			return r, fmt.Errorf("ready response: key: %w", err)
		}
		if cur.Nil() {
			continue
		}
		if err := decodeReadyValue(&cur, string(key), &r); err != nil {
			return r, fmt.Errorf("ready response: %s: %w", key, err)
		}
	}
	if !cur.Done() {
		return r, fmt.Errorf("ready response: %d bytes after the map", len(payload)-cur.Offset())
	}
	return r, nil
}

func decodeReadyValue(cur *pack.Cursor, key string, r *ReadyResponse) (err error) {
	ints := map[string]*int{
		"max_model_len": &r.MaxModelLen, "num_gpu_blocks": &r.NumGPUBlocks, "block_size": &r.BlockSize,
		"world_size": &r.WorldSize, "data_parallel_size": &r.DataParallelSize,
		"tensor_parallel_size": &r.TensorParallelSize, "pipeline_parallel_size": &r.PipelineParallelSize,
		"decode_context_parallel_size": &r.DecodeContextParallelSize, "data_parallel_rank": &r.DataParallelRank,
		"max_num_seqs": &r.MaxNumSeqs, "max_num_batched_tokens": &r.MaxNumBatchedTokens, "max_loras": &r.MaxLoRAs,
	}
	strs := map[string]*string{"dtype": &r.DType, "vllm_version": &r.VLLMVersion, "instance_id": &r.InstanceID}
	bools := map[string]*bool{
		"supports_lora": &r.SupportsLoRA, "enable_sleep_mode": &r.EnableSleepMode,
		"supports_draft_weight_updates": &r.SupportsDraftWeightUpdates,
	}
	optional := map[string]**string{
		"dp_stats_address": &r.DPStatsAddress, "weight_transfer_backend": &r.WeightTransferBackend,
		"coordinator_input_address": &r.CoordinatorInputAddress, "coordinator_output_address": &r.CoordinatorOutputAddress,
	}
	switch {
	case ints[key] != nil:
		*ints[key], err = smallInt(cur)
	case strs[key] != nil:
		*strs[key], err = cur.StrString()
	case bools[key] != nil:
		*bools[key], err = cur.Bool()
	case optional[key] != nil:
		var s string
		s, err = cur.StrString()
		*optional[key] = &s
	default:
		err = cur.Skip()
	}
	return err
}
