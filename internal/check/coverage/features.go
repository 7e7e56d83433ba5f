package coverage

import "regexp"

// features group fields, methods and kinds of message by what somebody wants of vLLM. The
// first whose pattern a name matches has it.
var features = []struct {
	name    string
	pattern *regexp.Regexp
}{
	{"KV events", regexp.MustCompile(`^(Block(Stored|Removed)|AllBlocksCleared|KVEvent|KV events)|kv_events_config|KVCacheEvent\.`)},
	{"LoRA", regexp.MustCompile(`(?i)lora`)},
	{"elastic EP, fault tolerance", regexp.MustCompile(`Reconfigure|ElasticEP|FaultTolerance|EEPNotification|EngineStatusType|elastic_ep|fault_tolerance|reinitialize_distributed`)},
	{"multimodal", regexp.MustCompile(`MultiModal|PlaceholderRange|mm_(features|cache)|reset_mm_cache|encoder`)},
	{"pooling", regexp.MustCompile(`Pooling|pooling_|LateChunking|LateInteraction`)},
	{"speculation", regexp.MustCompile(`SpecDecod|spec_decod|draft`)},
	{"P/D, connectors", regexp.MustCompile(`kv_transfer|ec_transfer|connector|external_cached|kv_fetch|KvHint|kv_hints|CacheHitSource|hits_by_source`)},
	{"data parallelism", regexp.MustCompile(`data_parallel|wave|WAVE|coord|dp_stats|dummy_batch|engine_index|frontend_stats|client_index`)},
	{"weights, sleep, pause", regexp.MustCompile(`weight|sleep|wake_up|pause|resume_scheduler|release_kv_cache|sharded_state`)},
	{"prompt embeds", regexp.MustCompile(`prompt_embeds|prompt_is_token_ids`)},
	{"log-probabilities", regexp.MustCompile(`(?i)logprob|sampling_?mask|token_ranks|cu_num_generated`)},
	{"structured output, reasoning", regexp.MustCompile(`(?i)structured_?outputs|reasoning`)},
	{"sampling", regexp.MustCompile(`^SamplingParams|RepetitionDetection|RequestOutputKind`)},
	{"statistics", regexp.MustCompile(`(?i)stats|CUDAGraph|IterationDetails|Eviction|EngineCoreEvent|\.events|num_nans|trace_headers|profile`)},
	{"start", regexp.MustCompile(`^(EngineCoreReadyResponse|EngineHandshakeMetadata|EngineZmqAddresses|HELLO|INIT|READY|registration)`)},
	{"requests and outputs", regexp.MustCompile(`.`)},
}

func featureOf(name string) string {
	for _, f := range features {
		if f.pattern.MatchString(name) {
			return f.name
		}
	}
	return ""
}

// Features are the names of all features.
func Features() []string {
	var names []string
	for _, f := range features {
		names = append(names, f.name)
	}
	return names
}
