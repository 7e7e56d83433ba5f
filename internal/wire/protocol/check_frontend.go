package protocol

import (
	"fmt"
	"math"
	"slices"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// What released frontends want of an engine's messages beyond the annotations of the sources: vllm-rs has types of its own for
// them. All of it was measured, and the tests of internal/upstream/acceptance hold it against the tables of every line.
var (
	// neededKeys must be there although the sources have a default: vllm-rs has none.
	neededKeys = map[string][]string{
		"KVEventsConfig": {
			"enable_kv_cache_events", "publisher", "endpoint", "replay_endpoint", "buffer_steps", "hwm", "max_queue_size", "topic",
		},
		"PerfStats":         {"num_flops_per_gpu", "num_read_bytes_per_gpu", "num_write_bytes_per_gpu"},
		"DebugPerfStats":    {"calc_duration", "num_prefill_requests", "num_decode_requests"},
		"SpecDecodingStats": {"num_spec_tokens", "num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_accepted_tokens_per_pos"},
		"PrefixCacheStats":  {"reset", "requests", "queries", "hits", "preempted_requests", "preempted_queries", "preempted_hits"},
		"SchedulerStats": {
			"num_running_reqs", "num_waiting_reqs", "step_counter", "current_wave", "kv_cache_usage", "prefix_cache_stats", "kv_cache_eviction_events",
		},
	}
	// halfCounts are counts of 32 bits. An asterisk is all fields.
	halfCounts = map[string][]string{
		"PrefillStats":     {"*"},
		"EngineCoreOutput": {"num_nans_in_logits", "stop_reason"},
		"KVEventsConfig":   {"*"},
	}
	// batchFields are for the engine's own use: in a message they are nil.
	batchFields = map[string][]string{
		"LogprobsLists":     {"cu_num_generated_tokens"},
		"LogprobsTensors":   {"cu_num_generated_tokens", "cu_num_generated_tokens_tensor"},
		"SamplingMaskLists": {"cu_num_generated_tokens"},
	}
	// elementTypes are the types of elements that a tensor may have, where not all will do.
	elementTypes = map[string]map[string][]string{
		"LogprobsLists":     {"logprob_token_ids": integers, "logprobs": singles, "sampled_token_ranks": integers},
		"LogprobsTensors":   {"logprob_token_ids": integers, "logprobs": singles, "selected_token_ranks": integers},
		"SamplingMaskLists": {"token_ids": integers, "offsets": integers},
		"EngineCoreOutput":  {"prompt_token_id_logprobs": slices.Concat(singles, []string{"float64", "float16"})},
	}
	integers = []string{"<i4", "<i8", ">i4", ">i8", "int32", "int64"}
	singles  = []string{"<f4", ">f4", "float32"}
)

func has(names []string, name string) bool {
	return slices.Contains(names, name) || slices.Contains(names, "*")
}

// NeededKeys are the keys of a struct that vllm-rs does not do without, although the sources have a default for them.
func NeededKeys(structName string) []string { return neededKeys[structName] }

// narrow makes the types within a message of an engine those that frontends take.
func (r *rules) narrow(root string) {
	seen := map[*structShape]bool{}
	var walk func(s *structShape)
	walk = func(s *structShape) {
		if s == nil || seen[s] {
			return
		}
		seen[s] = true
		for i, f := range s.declared.Fields {
			eachStruct(s.types[i], walk)
			switch {
			case s.name == "UtilityOutput": // the ids of notifications are negative
			case has(batchFields[s.name], f.Name):
				s.types[i] = kindShape{"None: it is for the engine's own use, and a frontend ends at it", pack.Nil}
			case elementTypes[s.name][f.Name] != nil:
				s.types[i] = withElements(s.types[i], elementTypes[s.name][f.Name])
			case s.name == "EngineCoreReadyResponse" && f.Name == "dtype":
				s.types[i] = newLiteral("dtype", "float32", "float16", "bfloat16")
			case has(halfCounts[s.name], f.Name):
				s.types[i] = counted(s.types[i], math.MaxUint32)
			default:
				s.types[i] = counted(s.types[i], math.MaxUint64)
			}
		}
	}
	walk(r.structs[root])
}

// eachStruct calls f for the structs that a type names.
func eachStruct(s shape, f func(*structShape)) {
	switch t := s.(type) {
	case *structShape:
		f(t)
	case unionShape:
		for _, o := range t.options {
			eachStruct(o, f)
		}
	case listShape:
		eachStruct(t.element, f)
	case dictShape:
		eachStruct(t.value, f)
	case tupleShape:
		for _, e := range t.elements {
			eachStruct(e, f)
		}
	}
}

// counted is a type whose integers are counts, which are not negative.
func counted(s shape, limit uint64) shape {
	switch t := s.(type) {
	case kindShape:
		if t.kind == pack.Int {
			return countShape{t, limit}
		}
	case unionShape:
		t.options = slices.Clone(t.options)
		for i := range t.options {
			t.options[i] = counted(t.options[i], limit)
		}
		return t
	case listShape:
		t.element = counted(t.element, limit)
		return t
	case dictShape:
		t.value = counted(t.value, limit)
		return t
	}
	return s
}

// countShape is an int that is not negative, and has 32 or 64 bits.
type countShape struct {
	kindShape
	limit uint64
}

func (s countShape) check(x *examination) {
	ahead := x.cur
	if v, err := ahead.Uint(); err != nil || v > s.limit {
		x.mismatch(fmt.Sprintf("%s, from 0 to %d", s.text, s.limit))
	}
	x.skip()
}

// withElements is a type whose tensors have elements of some types.
func withElements(s shape, types []string) shape {
	switch t := s.(type) {
	case tensorShape:
		t.types = types
		return t
	case unionShape:
		t.options = slices.Clone(t.options)
		for i := range t.options {
			t.options[i] = withElements(t.options[i], types)
		}
		return t
	}
	return s
}
