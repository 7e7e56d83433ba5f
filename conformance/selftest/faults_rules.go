package selftest

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/check/invariant"
	"github.com/vllm-vcr/conformance/internal/check/replay"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

// rule is a fault in a recorded session of a real engine, and the rule that must find it.
type rule struct {
	name   string
	golden string // whose session it is
	code   conformance.Code
	path   string // in that of the failure
	says   string // a part of its message that no other rule of the code and path has
	edits  []edit
}

// ruleFaults are wrong values in recorded sessions, for the rules that the check frames has for the messages of every engine.
func ruleFaults(codec *protocol.Codec) []Fault {
	var all []Fault
	for _, r := range rules() {
		w := want{code: r.code, request: anywhere, position: -1, path: r.path, says: []string{r.says}, besides: true}
		all = append(all, Fault{
			Name: "rule-" + r.name, Says: fmt.Sprintf("in a recorded session, %s is not so: %q", r.path, r.says), session: r.golden, red: only(conformance.Frames, w),
			frames: func(messages []trace.Message) []trace.Message { return editedSession(codec, messages, r.edits) },
		})
	}
	return all
}

// editedSession is a session with edits.
func editedSession(codec *protocol.Codec, messages []trace.Message, edits []edit) (out []trace.Message) {
	tamper := tampers(codec, edits)
	for _, m := range messages {
		to, known := socketOf(&m)
		if !known {
			out = append(out, m)
			continue
		}
		tampered, _ := tamper(message{to, m.Frames}) // an edit has no error
		for _, t := range tampered {
			m.Frames = t.frames
			out = append(out, m)
		}
	}
	return out
}

// socketOf is where a recorded message went, as a tamperer has it.
func socketOf(m *trace.Message) (to socket, known bool) {
	if m.Note != "" || len(m.Frames) == 0 {
		return 0, false
	}
	sockets := map[string]socket{"handshake": handshake, "input": input, "output": output, "kv_events": published}
	if m.Direction == trace.FrontendToEngine {
		sockets = map[string]socket{"handshake": initial, "input": requests}
	}
	to, known = sockets[m.Channel]
	return to, known
}

func inflate(data []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// put is an edit of the outputs of an engine, in the nth message or place of its kind, 0 for all.
func put(field string, value any, nth int) edit {
	return edit{of: "OUTPUTS", field: field, value: value, nth: nth}
}

// registered is an edit of the registration, and instead one of outputs that have a certain value.
func registered(field string, value any) edit {
	return edit{of: "REGISTRATION", field: field, value: value}
}

func instead(field string, where, value any) edit {
	return edit{of: "OUTPUTS", field: field, where: where, value: value}
}

// by are the edits of a rule.
func by(edits ...edit) []edit { return edits }

// idsBelow are all token ids below a limit.
func idsBelow(limit int) (ids []any) {
	for id := range limit {
		ids = append(ids, id)
	}
	return ids
}

// tensorOf is a tensor of zeros as it is in a message, with a size of elements.
func tensorOf(dtype string, elements int) []any {
	return []any{dtype, []any{elements}, zeros(elements * int(dtype[2]-'0'))}
}

// rulesLine is the line whose sessions the faults of rules are in: rules differ between lines only in which fields there are.
const rulesLine = protocol.LineOfSessions

// Goldens with recorded sessions of that line: busy has preemption, speculation, KV events and all statistics, edge the ways in
// which a request can end, and python what only a Python frontend asks for.
const busy, edge, python, ranks = "frames-busy", "wire-edge-s1", "frames-python", "frames-ranks"

const images, pooling = "frames-images", "frames-pooling"

// rules are the faults of [ruleFaults], in a function as only the self-test needs them. The path is the end of a field that the rule is about.
func rules() []rule {
	return []rule{
		{"other-index", busy, invariant.CodeEnvelope, "engine_index", "registered with another index", by(put("engine_index", 7, 1))},
		{"time-back", busy, invariant.CodeEnvelope, "timestamp", "must not go back", by(put("timestamp", 1.0, 5))},
		{"time-of-day", busy, invariant.CodeEnvelope, "timestamp", "this is a time of day", by(put("timestamp", 1.7e9, 5))},
		{"wave", busy, invariant.CodeEnvelope, "wave_complete", "sent to a coordinator", by(put("wave_complete", 1, 1))},
		{"weights", busy, invariant.CodeEnvelope, "weight_version", "no call has changed", by(put("weight_version", "x", 1))},
		{"finished-too-early", busy, invariant.CodeEnvelope, "finished_requests", "only requests that have ended", by(put("finished_requests", []any{"x"}, 1))},

		{"answer-to-no-call", busy, invariant.CodeCall, "call_id", "no frontend waits", by(put("utility_output.call_id", 999, 1))},
		{"answer-twice", busy, invariant.CodeCall, "call_id", "answered already", by(instead("utility_output.call_id", 2, 1))},
		{"failure-with-result", busy, invariant.CodeCall, "result", "that failed has no result", by(put("utility_output.failure_message", "no", 1))},
		{"unknown-method", busy, invariant.CodeCall, "failure_message", "the line has no method", by(edit{of: "UTILITY", field: "2", value: "fly", nth: 1})},
		{"result-of-text", busy, invariant.CodeCall, "result", "expected bool, found str", by(instead("utility_output.result.1", true, "yes"))},
		{"result-not-so", edge, invariant.CodeCall, "result", "expected false, found true", by(instead("utility_output.result.1", false, true))},

		{"prefill-twice", busy, invariant.CodePrefill, "prefill_stats", "and they come once", by(put(prefill, map[string]any{}, 2))},
		{"prompt-length", busy, invariant.CodePrefill, "num_prompt_tokens", "the length of the prompt", by(put(prefill+".num_prompt_tokens", plus(1), 1))},
		{"prefill-negative", busy, invariant.CodePrefill, "prefill_stats", "no count may be negative", by(put(prefill+".num_cached_tokens", -1, 1))},
		{"computed", busy, invariant.CodePrefill, "num_computed_tokens", "add up to the prompt", by(put(prefill+".num_computed_tokens", plus(1), 1))},
		{"local", busy, invariant.CodePrefill, "num_cached_tokens", "add up to the cached tokens", by(put(prefill+".num_local_cached_tokens", plus(1), 1))},
		{"created-of-nothing", busy, invariant.CodePrefill, "num_cache_creation_tokens", "only computed tokens", by(put(prefill+".num_cache_creation_tokens", 1000, 1))},
		{"created", busy, invariant.CodePrefill, "num_cache_creation_tokens", "that fill blocks of", by(put(prefill+".num_cache_creation_tokens", plus(-1), 1))},
		{"part-of-block", busy, invariant.CodePrefill, "num_local_cached_tokens", "only full blocks", by(
			put(prefill+".num_local_cached_tokens", plus(5), 1), put(prefill+".num_cached_tokens", plus(5), 1), put(prefill+".num_computed_tokens", plus(-5), 1),
		)},

		{"event-order", busy, invariant.CodeEvents, "type", "in an impossible order", by(put("outputs.events.0.type", 3, 1))},
		{"event-early", busy, invariant.CodeEvents, "timestamp", "is earlier than", by(put("outputs.events.0.timestamp", 1.0, 1))},
		{"event-late", busy, invariant.CodeEvents, "timestamp", "is later than", by(put("outputs.events.0.timestamp", 1e9, 1))},

		{"stop-reason", busy, invariant.CodeAnswer, "stop_reason", "did not end with stop", by(put("outputs.stop_reason", 7, 1))},
		{"error-with-tokens", busy, invariant.CodeAnswer, "new_token_ids", "ends with an error", by(instead("outputs.finish_reason", 1, 3))},
		{"error-of-none", busy, invariant.CodeAnswer, "error", "so it has none", by(put("outputs.error", map[string]any{"code": "x", "message": "x", "retryable": true}, 1))},
		{"over-limit", busy, invariant.CodeAnswer, "new_token_ids", "has reached its token limit", by(put("outputs.new_token_ids.0", again, 0))},
		{"behind-stop", busy, invariant.CodeAnswer, "new_token_ids", "has to stop at position", by(edit{of: "ADD", field: "sampling_params.stop_token_ids", value: idsBelow(2048)})},
		{"not-stopped", edge, invariant.CodeAnswer, "finish_reason", "has to stop at token id", by(instead("outputs.finish_reason", 0, 1))},
		{"stopped", edge, invariant.CodeAnswer, "finish_reason", "is not a stop token", by(instead("outputs.finish_reason", 1, 0))},
		{"short-length", busy, invariant.CodeAnswer, "finish_reason", "ends with length before", by(put("outputs.finish_reason", 1, 1))},
		{"not-ended", busy, invariant.CodeAnswer, "finish_reason", "has reached its token limit", by(instead("outputs.finish_reason", 1, nil))},
		{"repetition", busy, invariant.CodeAnswer, "finish_reason", "does not ask for repetition", by(instead("outputs.finish_reason", 1, 4))},
		{"repetition-reason", python, invariant.CodeAnswer, "stop_reason", "ends with repetition", by(instead("outputs.stop_reason", "repetition_detected", "x"))},
		{"eos-named", edge, invariant.CodeAnswer, "stop_reason", "at the end of the sequence", by(edit{of: "ADD", field: "sampling_params._eos_token_id", value: 304})},
		{"stop-unnamed", edge, invariant.CodeAnswer, "stop_reason", "at one of its stop_token_ids", by(instead("outputs.stop_reason", 304, nil))},

		{"histogram-early", busy, invariant.CodeSpeculation, "spec_decode_metrics", "comes with its last output", by(put(metrics, map[string]any{}, 1))},
		{"histogram-length", busy, invariant.CodeSpeculation, "histogram", "one count for each possible", by(put(metrics+".histogram", []any{1}, 1))},
		{"histogram-of-others", busy, invariant.CodeSpeculation, "num_spec_tokens", "the number that the engine drafts", by(
			put(metrics+".num_spec_tokens", 4, 1), put(metrics+".histogram", []any{1, 0, 0, 0, 0}, 1),
		)},
		{"histogram-drafts", busy, invariant.CodeSpeculation, "num_draft_tokens", "accepted tokens are drafted", by(put(metrics+".num_draft_tokens", 1000, 1))},
		{"histogram-tokens", busy, invariant.CodeSpeculation, "histogram", "tokens only", by(
			put(metrics+".histogram", []any{0, 0, 0, 900}, 1), put(metrics+".num_draft_tokens", 2700, 1),
		)},
		{"histogram-steps", busy, invariant.CodeSpeculation, "per_step_accepted", "agree with the histogram", by(put(metrics+".per_step_accepted", []any{99}, 1))},

		{"nans", busy, invariant.CodeAnswer, "num_nans_in_logits", "no count may be negative", by(put("outputs.num_nans_in_logits", -1, 1))},
		{"headers", python, invariant.CodeAnswer, "trace_headers", "the trace headers of", by(put("outputs.trace_headers.traceparent", "x", 1))},
		{"images", busy, invariant.CodeAnswer, "mm_cache_miss_hashes", "has no images", by(put("outputs.mm_cache_miss_hashes", []any{"x"}, 1))},
		{"pooled", busy, invariant.CodeAnswer, "pooling_output", "not for pooling", by(put("outputs.pooling_output", []any{"float32", []any{1}, zeros(4)}, 1))},
		{"transfer-early", busy, invariant.CodeAnswer, "kv_transfer_params", "comes with its last output", by(put("outputs.kv_transfer_params", map[string]any{}, 1))},

		{"no-workers", busy, invariant.CodeRegistration, "world_size", "a size is above 0", by(registered("world_size", 0))},
		{"port-negative", busy, invariant.CodeRegistration, "coord_store_port", "no count may be negative", by(registered("coord_store_port", -1))},
		{"cache-size", busy, invariant.CodeRegistration, "kv_cache_size_tokens", "the space for kv_cache_max_concurrency", by(registered("kv_cache_size_tokens", plus(1)))},
		{"half-a-group", busy, invariant.CodeRegistration, "world_size", "each group has", by(registered("tensor_parallel_size", 2))},
		{"seqs", busy, invariant.CodeRegistration, "max_num_seqs", "cannot have more requests than", by(registered("max_num_seqs", 100_000))},
		{"rank-of-another", busy, invariant.CodeRegistration, "data_parallel_rank", "the identity names", by(registered("data_parallel_rank", 3))},
		{"port-wide", busy, invariant.CodeRegistration, "coord_store_port", "a port has 16 bits", by(registered("coord_store_port", 70_000))},
		{"contexts", busy, invariant.CodeRegistration, "decode_context_parallel_size", "it divides", by(registered("decode_context_parallel_size", 3))},
		{"no-coordinator", busy, invariant.CodeRegistration, "dp_stats_address", "has no coordinator", by(registered("dp_stats_address", "x"))},
		{"group-alone", busy, invariant.CodeRegistration, "data_parallel_size", "of a group need one", by(registered("data_parallel_size", 2))},
		{"address-lost", ranks, invariant.CodeRegistration, "dp_stats_address", "has told the engine", by(registered("dp_stats_address", nil))},
		{"other-line", busy, invariant.CodeRegistration, "vllm_version", "frontends show it", by(registered("vllm_version", "another"))},
		{"no-blocks", busy, invariant.CodeRegistration, "num_gpu_blocks", "are in blocks", by(registered("num_gpu_blocks", 0))},
		{"concurrency", edge, invariant.CodeRegistration, "kv_cache_max_concurrency", "by those of a context", by(registered("kv_cache_max_concurrency", plus(1e-5)))},
		{"attention-block", edge, invariant.CodeRegistration, "effective_attention_block_size", "on each of the workers", by(registered("effective_attention_block_size", plus(1)))},
		{"mamba-block", busy, invariant.CodeRegistration, "mamba_block_size", "none is so large", by(registered("mamba_block_size", 0))},
		{"draft-weights", busy, invariant.CodeRegistration, "supports_draft_weight_updates", "takes new weights", by(registered("supports_draft_weight_updates", true))},
		{"coordinator-address", ranks, invariant.CodeRegistration, "coordinator_input_address", "no socket has", by(registered("coordinator_input_address", "x"))},
		{"other-stats", ranks, invariant.CodeRegistration, "dp_stats_address", "has told the engine this", by(registered("dp_stats_address", "tcp://127.0.0.1:1"))},
		{"events-off", busy, invariant.CodeRegistration, "enable_kv_cache_events", "only if it publishes", by(registered("kv_events_config.enable_kv_cache_events", false))},
		{"events-nowhere", busy, invariant.CodeRegistration, "endpoint", "routers subscribe", by(registered("kv_events_config.endpoint", "x"))},
		{"no-adapters", busy, invariant.CodeRegistration, "max_loras", "only where LoRA is enabled", by(registered("supports_lora", false))},

		{"running-negative", busy, invariant.CodeGauges, "num_running_reqs", "no count may be negative", by(put(stats+"num_running_reqs", -1, 1))},
		{"running-too-many", busy, invariant.CodeGauges, "num_running_reqs", "than are open", by(put(stats+"num_running_reqs", 50, 1))},
		{"running-none", busy, invariant.CodeGauges, "num_running_reqs", "that the engine has are counted", by(put(stats+"num_running_reqs", 0, 1))},
		{"waiting-with-token", edge, invariant.CodeGauges, "num_running_reqs", "that got a token", by(
			put(stats+"num_running_reqs", 0, 3), put(stats+"num_waiting_reqs", 1, 3),
		)},
		{"over-max-seqs", busy, invariant.CodeGauges, "num_running_reqs", "than max_num_seqs", by(registered("max_num_seqs", 1))},
		{"not-admitted", edge, invariant.CodeGauges, "num_running_reqs", "than were scheduled", by(put(cache+".requests", 0, 1), put(cache+".queries", 0, 1))},
		{"usage-of-two", busy, invariant.CodeGauges, "kv_cache_usage", "is a part of the KV cache", by(put(stats+"kv_cache_usage", 2.0, 1))},
		{"usage-of-parts", busy, invariant.CodeGauges, "kv_cache_usage", "divided by num_gpu_blocks − 1", by(put(stats+"kv_cache_usage", plus(1e-3), 1))},
		{"usage-of-none", edge, invariant.CodeGauges, "kv_cache_usage", "need this many blocks", by(put(stats+"kv_cache_usage", 0.0, 2))},
		{"fetches-negative", busy, invariant.CodeGauges, fetches, "no count may be negative", by(put(stats+fetches+".in_progress", -1, 1))},
		{"fetches-of-no-stage", busy, invariant.CodeGauges, fetches, "have these stages only", by(put(stats+fetches+".lost", 0, 1))},
		{"fetches-without-connector", busy, invariant.CodeGauges, fetches, "without a KV connector", by(put(stats+fetches+".in_progress", 1, 1))},
		{"fetches-too-many", busy, invariant.CodeGauges, fetches, "that the engine has are counted", by(
			put(stats+fetches+".in_progress", 9, 1), put(stats+"connector_prefix_cache_stats", map[string]any{}, 1),
		)},

		{"cache-negative", busy, invariant.CodeCache, "prefix_cache_stats", "no count may be negative", by(put(cache+".hits", -1, 1))},
		{"cache-hits", busy, invariant.CodeCache, "hits", "more hits than queries", by(put(cache+".hits", 1000, 1))},
		{"cache-queries", busy, invariant.CodeCache, "queries", "queries its tokens", by(put(cache+".requests", 1000, 1))},
		{"cache-reset", busy, invariant.CodeCache, "reset", "no call has reset", by(put(cache+".reset", true, 1))},
		{"cache-preempted", edge, invariant.CodeCache, "preempted_requests", "so no request is preempted", by(
			put(cache+".preempted_requests", 1, 1), put(cache+".preempted_queries", 5, 1),
		)},
		{"cache-sources", busy, invariant.CodeCache, "hits_by_source", "by source have to add up", by(put(cache+".hits_by_source", map[string]any{"x": 5}, 1))},
		{"cache-total", edge, invariant.CodeCache, "queries", "the sum over the session", by(put(cache+".queries", plus(9), 1))},

		{"drafts-of-others", busy, invariant.CodeSpeculation, "num_spec_tokens", "the number that the engine drafts", by(put(drafts+".num_spec_tokens", 7, 2))},
		{"drafts", busy, invariant.CodeSpeculation, "num_drafts", "each verified draft gives", by(put(drafts+".num_drafts", 50, 0))},
		{"draft-length", busy, invariant.CodeSpeculation, "num_draft_tokens", "no draft is longer", by(put(drafts+".num_draft_tokens", 1000, 1))},
		{"draft-accepted", busy, invariant.CodeSpeculation, "num_accepted_tokens", "accepted tokens are drafted", by(put(drafts+".num_accepted_tokens", 1000, 1))},
		{"draft-places", busy, invariant.CodeSpeculation, "num_accepted_tokens_per_pos", "by position have to add up", by(put(drafts+".num_accepted_tokens_per_pos.0", plus(1), 1))},
		{"draft-order", busy, invariant.CodeSpeculation, "num_accepted_tokens_per_pos", "at the one before", by(
			instead(drafts+".num_accepted_tokens_per_pos", []any{1, 0, 0}, []any{0, 1, 0}),
		)},
		{"draft-surplus", busy, invariant.CodeSpeculation, "num_accepted_tokens", "beyond one each", by(put(drafts+".num_accepted_tokens", 0, 0))},

		{"no-key", busy, invariant.CodeKeys, "connector_prefix_cache_stats", "sends this key", by(put(stats+"connector_prefix_cache_stats", omitted, 5))},
		{"no-key-of-cache", busy, invariant.CodeKeys, "preempted_hits", "sends this key", by(put(stats+"prefix_cache_stats.preempted_hits", omitted, 5))},
		{"no-key-of-prefill", busy, invariant.CodeKeys, "num_cache_creation_tokens", "sends this key", by(put("outputs.0.prefill_stats.num_cache_creation_tokens", omitted, 1))},
		{"steps", busy, invariant.CodeStep, "step_counter", "neither steps nor waves", by(put(stats+"step_counter", 5, 1))},
		{"connector-counts-nothing", "frames-transfer", invariant.CodeCache, "connector_prefix_cache_stats", "counts what it looks up there", by(put(stats+"connector_prefix_cache_stats", nil, 0))},
		{"connector", busy, invariant.CodeStep, "kv_connector_stats", "has no statistics of one", by(put(stats+"kv_connector_stats", map[string]any{"x": 1}, 1))},
		{"adapters", busy, invariant.CodeStep, "running_lora_adapters", "that use an adapter", by(put(stats+"running_lora_adapters.x", -1, 1))},
		{"mode", busy, invariant.CodeStep, "runtime_mode", "one of these modes", by(put(stats+"cudagraph_stats.runtime_mode", "x", 1))},
		{"no-iteration", busy, invariant.CodeStep, "iteration_details", "is one", by(put(stats+"iteration_details", nil, 5))},
		{"no-estimate", busy, invariant.CodeStep, "perf_stats", "is some", by(put(stats+"perf_stats", nil, 5))},
		{"padding", busy, invariant.CodeStep, "num_paddings", "the difference is the padding", by(put(stats+"cudagraph_stats.num_paddings", 5, 1))},
		{"flops", busy, invariant.CodeStep, "num_flops_per_gpu", "no count may be negative", by(put(stats+"perf_stats.num_flops_per_gpu", -1, 1))},
		{"eviction", busy, invariant.CodeStep, "lifetime_seconds", "as long as it is idle", by(put(stats+"kv_cache_eviction_events.lifetime_seconds", -5.0, 1))},
		{"iteration", busy, invariant.CodeStep, "iteration_index", "the index has to rise", by(put(iteration+".iteration_index", 0, 3))},
		{"elapsed", busy, invariant.CodeStep, "elapsed_ms", "a time is not negative", by(put(iteration+".elapsed_ms", -1.0, 1))},
		{"context", busy, invariant.CodeStep, "num_ctx_tokens", "one token or more", by(put(iteration+".num_ctx_requests", 1000, 1))},
		{"encoder", busy, invariant.CodeStep, "num_encoder_inputs", "no count may be negative", by(put(iteration+".num_encoder_inputs", -1, 1))},

		{"table-unasked", busy, invariant.CodeLogprobs, "new_logprobs", "does not ask for log-probabilities", by(
			put("outputs.new_logprobs", []any{tensorOf("<i4", 1), tensorOf("<f4", 1), tensorOf("<i8", 1), nil}, 1),
		)},
		{"table-missing", busy, invariant.CodeLogprobs, "new_logprobs", "asks for log-probabilities", by(instead("outputs.new_logprobs", given, nil))},
		{"table-of-prompt", busy, invariant.CodeLogprobs, "new_prompt_logprobs_tensors", "log-probabilities of the prompt", by(
			put("outputs.new_prompt_logprobs_tensors", []any{tensorOf("<i4", 1), tensorOf("<f4", 1), tensorOf("<i8", 1), nil}, 1),
		)},
		{"scores", busy, invariant.CodeLogprobs, "prompt_token_id_logprobs", "log-probabilities of the prompt", by(
			put("outputs.prompt_token_id_logprobs", []any{"float32", []any{1}, zeros(4)}, 1),
		)},
		{"table-of-several", busy, invariant.CodeLogprobs, "cu_num_generated_tokens", "one request in each table", by(put(table+".cu_num_generated_tokens", []any{1}, 1))},
		{"table-unreadable", busy, invariant.CodeLogprobs, "logprob_token_ids", "a table of request", by(put(table+".logprob_token_ids.0", "<x9", 1))},
		{"table-rows", busy, invariant.CodeLogprobs, "sampled_token_ranks", "has a row for each", by(put(table+".sampled_token_ranks", tensorOf("<i8", 3), 1))},
		{"table-type", busy, invariant.CodeLogprobs, "logprobs", "have this type", by(put(table+".logprobs.0", "<i4", 1))},
		{"row-of-another", busy, invariant.CodeLogprobs, "logprob_token_ids", "has to begin with its token", by(put(table+".logprob_token_ids", element{0, plus(1)}, 1))},
		{"row-negative", busy, invariant.CodeLogprobs, "logprob_token_ids", "token ids are not negative", by(put(table+".logprob_token_ids", element{2, -5}, 1))},
		{"row-of-one", busy, invariant.CodeLogprobs, "logprobs", "its logarithm is at most 0", by(put(table+".logprobs", element{2, 0.5}, 1))},
		{"row-sum", busy, invariant.CodeLogprobs, "logprobs", "add up to at most 1", by(put(table+".logprobs", element{1, 0.0}, 1), put(table+".logprobs", element{2, 0.0}, 1))},
		{"row-rank", busy, invariant.CodeLogprobs, "sampled_token_ranks", "ranks begin at 1", by(put(table+".sampled_token_ranks", element{0, 0}, 1))},
		{"row-rank-beyond", busy, invariant.CodeLogprobs, "sampled_token_ranks", "the size of the vocabulary", by(put(table+".sampled_token_ranks", element{0, 1 << 30}, 1))},
		{"row-order", busy, invariant.CodeLogprobs, "logprobs", "in falling order", by(put(table+".logprobs", element{2, plus(5)}, 1))},
		{"row-twice", busy, invariant.CodeLogprobs, "logprob_token_ids", "comes once", by(put(table+".logprob_token_ids", likeElement{2, 1}, 1))},
		{"row-two-values", busy, invariant.CodeLogprobs, "logprobs", "with another value", by(put(table+".logprobs", element{0, plus(-0.01)}, 1))},
		{"row-without-token", busy, invariant.CodeLogprobs, "logprob_token_ids", "it has to be among them", by(put(table+".logprob_token_ids", element{1, 1}, 1))},
		{"row-rank-low", busy, invariant.CodeLogprobs, "sampled_token_ranks", "tokens are more likely", by(
			put(table+".logprob_token_ids", element{1, 1}, 1), put(table+".logprobs", element{0, -30.0}, 1),
		)},
		{"row-rank-high", busy, invariant.CodeLogprobs, "sampled_token_ranks", "are at least as likely", by(put(table+".sampled_token_ranks", element{0, 1000}, 1))},
		{"row-greedy", busy, invariant.CodeLogprobs, "logprob_token_ids", "gets the most likely token", by(
			put(table+".logprob_token_ids", likeElement{1, 2}, 1), put(table+".logprob_token_ids", likeElement{2, 0}, 1),
			put(table+".logprobs", element{1, plus(0.5)}, 1), put(table+".logprobs", likeElement{2, 0}, 1), put(table+".sampled_token_ranks", element{0, 2}, 1),
		)},

		{"mask-unreadable", busy, invariant.CodeMask, "token_ids", "it does not decode", by(put(mask, []any{[]any{"<x9", []any{1}, zeros(4)}, nil, nil}, 1))},
		{"mask-of-floats", busy, invariant.CodeMask, "token_ids", "are integers in a list", by(put(mask, []any{tensorOf("<f4", 1), nil, nil}, 1))},
		{"mask-of-several", busy, invariant.CodeMask, "cu_num_generated_tokens", "one request in each table", by(put(mask, []any{tensorOf("<i4", 1), nil, []any{1}}, 1))},
		{"mask-rows", busy, invariant.CodeMask, "offsets", "begin at these places", by(put(mask, []any{tensorOf("<i4", 1), tensorOf("<i4", 3), nil}, 1))},
		{"mask-without-token", busy, invariant.CodeMask, "token_ids", "contain the token that was sampled", by(put(mask, []any{tensorOf("<i4", 1), nil, nil}, 1))},

		{"init-address", busy, invariant.CodeRequest, "inputs", "the engine dials it", by(edit{of: "INIT", field: "addresses.inputs.0", value: "x"})},
		{"request-name", busy, invariant.CodeRequest, "external_req_id", "made unique", by(edit{of: "ADD", field: "external_req_id", value: "another"})},
		{"client", busy, invariant.CodeRequest, "client_index", "has no more", by(edit{of: "ADD", field: "client_index", value: 9})},
		{"rank-of-another-request", ranks, invariant.CodeRequest, "data_parallel_rank", "sent to another rank", by(edit{of: "ADD", field: "data_parallel_rank", value: 7})},
		{"arrival", busy, invariant.CodeRequest, "arrival_time", "near that of the one before", by(edit{of: "ADD", field: "arrival_time", value: 1.0, nth: 2})},
		{"traceparent", python, invariant.CodeRequest, "traceparent", "W3C Trace Context", by(edit{of: "ADD", field: "trace_headers.traceparent", value: "x"})},
		{"all-stops", busy, invariant.CodeRequest, "_all_stop_token_ids", "and the end of the sequence", by(edit{of: "ADD", field: "sampling_params._all_stop_token_ids", value: []any{}})},
		{"backend", python, invariant.CodeRequest, "_backend", "no such backend", by(edit{of: "ADD", field: "sampling_params.structured_outputs._backend", value: "x"})},
		{"adapter", busy, invariant.CodeRequest, "lora_request", "that it had before", by(edit{of: "ADD", field: "lora_request.lora_int_id", value: plus(1), nth: 2})},
		{"modality", images, invariant.CodeRequest, "modality", "has encoders", by(edit{of: "ADD", field: "mm_features.modality", value: "smell"})},
		{"content", images, invariant.CodeRequest, "identifier", "that of the content", by(edit{of: "ADD", field: "mm_features.identifier", value: "x"})},
		{"placeholder", images, invariant.CodeRequest, "mm_position", "are in the prompt", by(edit{of: "ADD", field: "mm_features.mm_position.offset", value: 100_000})},
		{"task", pooling, invariant.CodeRequest, "task", "refuses the request", by(edit{of: "ADD", field: "pooling_params.task", value: "x"})},

		{"event-time-back", busy, invariant.CodeKVEvents, "ts", "must not go back", by(edit{of: "EVENTS", field: "ts", value: 1.0, nth: 2})},
		{"event-rank", busy, invariant.CodeKVEvents, "data_parallel_rank", "registered with another", by(edit{of: "EVENTS", field: "data_parallel_rank", value: 7})},
		{"event-medium", busy, invariant.CodeKVEvents, "medium", "in these media", by(edit{of: "EVENTS", field: "events.medium", value: "x"})},
		{"event-kind", busy, invariant.CodeKVEvents, "kv_cache_spec_kind", "these kinds of layers", by(edit{of: "EVENTS", field: "events.kv_cache_spec_kind", value: "x"})},
		{"event-group", busy, invariant.CodeKVEvents, "group_idx", "one kind of blocks", by(edit{of: "EVENTS", field: "events.group_idx", value: 3})},
		{"event-parent", busy, invariant.CodeKVEvents, "parent_block_hash", "stored before it", by(edit{of: "EVENTS", field: "events.parent_block_hash", value: "x"})},
		{"event-removed", busy, invariant.CodeKVEvents, "block_hashes", "removed only after", by(edit{of: "EVENTS", field: "events.block_hashes.0", value: "x", nth: 1})},
		{"event-size", busy, invariant.CodeKVEvents, "block_size", "has block_size tokens", by(edit{of: "EVENTS", field: "events.block_size", value: plus(1)})},
		{"event-adapter", busy, invariant.CodeKVEvents, "lora_name", "of this name and id", by(edit{of: "EVENTS", field: "events.lora_name", value: "x"})},

		{"events-lost", busy, replay.CodeFramesEvents, "KV events.seq", "expected ", by(edit{of: "EVENTS", value: lost, nth: 2})},
		{"nothing-asked", busy, replay.CodeFramesNothing, "", "the session has no requests", by(edit{of: "ADD", value: lost}, edit{of: "UTILITY", value: lost})},
	}
}

// Fields that many rules are about.
const (
	prefill   = "outputs.prefill_stats"
	metrics   = "outputs.spec_decode_metrics"
	table     = "outputs.new_logprobs"
	mask      = "outputs.new_sampling_mask"
	stats     = "scheduler_stats."
	cache     = stats + "prefix_cache_stats"
	drafts    = stats + "spec_decoding_stats"
	iteration = stats + "iteration_details"
	fetches   = "num_kv_fetch_reqs_by_stage"
)
