package protocol

import "sync"

// readSampling are the keys of SamplingParams that decoding looks up.
var readSampling = []string{
	"max_tokens", "min_tokens", "stop_token_ids", "_eos_token_id", "ignore_eos", "logprobs", "prompt_logprobs",
	"temperature", "seed", "extra_args", "structured_outputs", "logprob_token_ids", "prompt_logprob_token_ids",
	"prompt_logprob_start", "skip_reading_prefix_cache",
}

// ReadsByName tells whether a field is looked up by its name when messages are
// decoded or recorded, so that without it something is lost. All others are
// skipped, or kept as they are.
func ReadsByName(structName, field string) bool {
	return readFields()[structName+"."+field]
}

var readFields = sync.OnceValue(func() map[string]bool {
	read := map[string]bool{
		// What the recorder looks into raw values for.
		"MultiModalFeatureSpec.mm_hash": true, "PrefillStats.num_local_cached_tokens": true,
		"PrefillStats.num_external_cached_tokens": true, "SchedulerStats.num_running_reqs": true,
		"LoRARequest.lora_name": true, "LoRARequest.lora_int_id": true, "LoRARequest.lora_path": true,
		// What decoding pooling_params looks up.
		"PoolingParams.task": true, "PoolingParams.dimensions": true, "PoolingParams.use_activation": true,
		"PoolingParams.late_interaction_params": true, "PoolingParams.late_chunking_params": true,
		"PoolingParams.skip_reading_prefix_cache": true,
		// What decoding mm_features looks up.
		"MultiModalFeatureSpec.identifier": true, "MultiModalFeatureSpec.mm_position": true,
		"PlaceholderRange.offset": true, "PlaceholderRange.length": true,
		"EngineCoreOutputs.engine_index": true, "EngineCoreOutputs.outputs": true,
		"UtilityOutput.call_id": true, "UtilityOutput.failure_message": true, "UtilityOutput.result": true,
	}
	for _, key := range readSampling {
		read["SamplingParams."+key] = true
	}
	mark(read, "EngineCoreRequest", requestFieldNames)
	mark(read, "EngineCoreOutputs", envelopeOps)
	mark(read, "EngineCoreOutput", outputOps)
	ready := new(ReadyResponse).targets()
	mark(read, "EngineCoreReadyResponse", ready.ints)
	mark(read, "EngineCoreReadyResponse", ready.strs)
	mark(read, "EngineCoreReadyResponse", ready.bools)
	mark(read, "EngineCoreReadyResponse", ready.optional)
	return read
})

func mark[T any](read map[string]bool, structName string, fields map[string]T) {
	for field := range fields {
		read[structName+"."+field] = true
	}
}
