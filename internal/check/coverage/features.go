package coverage

import (
	_ "embed"
	"regexp"
	"strings"
	"sync"

	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
)

// features group fields, methods and kinds of message by what somebody wants of vLLM. The
// first whose pattern a name matches has it.
var features = []struct {
	name    string
	pattern func() *regexp.Regexp
}{
	{"KV events", lazyregexp.New(`^(Block(Stored|Removed)|AllBlocksCleared|KVEvent|KV events)|kv_events_config|KVCacheEvent\.`)},
	{"LoRA", lazyregexp.New(`(?i)lora`)},
	{"elastic EP, fault tolerance", lazyregexp.New(`Reconfigure|ElasticEP|FaultTolerance|EEPNotification|EngineStatusType|elastic_ep|fault_tolerance|reinitialize_distributed`)},
	{"multimodal", lazyregexp.New(`MultiModal|PlaceholderRange|mm_(features|cache)|reset_mm_cache|encoder`)},
	{"pooling", lazyregexp.New(`Pooling|pooling_|LateChunking|LateInteraction`)},
	{"speculation", lazyregexp.New(`SpecDecod|spec_decod|draft`)},
	{"P/D, connectors", lazyregexp.New(`kv_transfer|ec_transfer|connector|external_cached|kv_fetch|KvHint|kv_hints|CacheHitSource|hits_by_source`)},
	{"data parallelism", lazyregexp.New(`data_parallel|wave|WAVE|coord|dp_stats|dummy_batch|engine_index|frontend_stats|client_index`)},
	{"weights, sleep, pause", lazyregexp.New(`weight|sleep|wake_up|pause|resume_scheduler|release_kv_cache|sharded_state`)},
	{"prompt embeds", lazyregexp.New(`prompt_embeds|prompt_is_token_ids`)},
	{"log-probabilities", lazyregexp.New(`(?i)logprob|sampling_?mask|token_ranks|cu_num_generated`)},
	{"structured output, reasoning", lazyregexp.New(`(?i)structured_?outputs|reasoning`)},
	{"sampling", lazyregexp.New(`^SamplingParams|RepetitionDetection|RequestOutputKind`)},
	{"statistics", lazyregexp.New(`(?i)stats|CUDAGraph|IterationDetails|Eviction|EngineCoreEvent|\.events|num_nans|trace_headers|profile`)},
	{"start", lazyregexp.New(`^(EngineCoreReadyResponse|EngineHandshakeMetadata|EngineZmqAddresses|HELLO|INIT|READY|registration)`)},
	{"requests and outputs", lazyregexp.New(`.`)},
}

// featureNames are the features of names that were asked for: lines have most names in common.
var featureNames sync.Map

func featureOf(name string) string {
	if known, ok := featureNames.Load(name); ok {
		return known.(string)
	}
	feature := ""
	for _, f := range features {
		if f.pattern().MatchString(name) {
			feature = f.name
			break
		}
	}
	featureNames.Store(name, feature)
	return feature
}

// Features are the names of all features.
func Features() []string {
	var names []string
	for _, f := range features {
		names = append(names, f.name)
	}
	return names
}

//go:embed unreachable.txt
var unreachableText string

// unreachable are the reasons why no golden can show something, by its name.
var unreachable = sync.OnceValue(func() map[string]string {
	reasons := map[string]string{}
	reason := ""
	for line := range strings.Lines(unreachableText) {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "["):
			reason = strings.Trim(line, "[]")
		default:
			reasons[line] = reason
		}
	}
	return reasons
})
