package protocol

import "cmp"

// A LineRule is a way in which the engines or frontends of released lines differ
// that no declaration of their wheels shows. Code asks whether a rule holds for a
// line, and never compares lines itself: a new line changes the table alone.
type LineRule uint8

// The rules.
const (
	// PlainBlockKeys: the hash of a block of the prefix cache has its extra keys as they
	// are, and an adapter by its name alone. Elsewhere each key is distinguished by its
	// kind, and an adapter has its path next to its name.
	PlainBlockKeys LineRule = iota
	// LastFeatureHashed: the hashes of blocks that fill after the prompt, but for the
	// first block, include the last multimodal feature only.
	LastFeatureHashed
	// FreedBlocksLast: freed blocks go to the end of the free queue if there is no
	// prefix caching. Elsewhere they go to its front.
	FreedBlocksLast
	// FrontendBeginsWaves: an engine begins a wave of data-parallel requests only for a
	// request of an earlier wave. The frontend begins all others.
	FrontendBeginsWaves
	// FirstRankBeginsWaves: the first engine begins waves too, and reports those that
	// it joins. Elsewhere every engine does.
	FirstRankBeginsWaves
	// TransferHasExpiry, TransferHasMode, TransferHasParallelSizes and
	// TransferHasGeneration: the kv_transfer_params of an engine that has computed a
	// prompt have the keys remote_blocks_expiry_time; transfer_mode; dcp_size and
	// pp_size; remote_registration_generation.
	TransferHasExpiry
	TransferHasMode
	TransferHasParallelSizes
	TransferHasGeneration
	// TransferHasCached: they have remote_prefill_cached_tokens, which the frontend of the engine that goes on counts as cached.
	TransferHasCached
	// TransferCountsHandshakes and TransferCountsLate: the statistics of a NIXL connector have the keys num_failed_handshakes, which
	// those before count as failed transfers; and num_notifications_after_expiry.
	TransferCountsHandshakes
	TransferCountsLate
	// RustCountsTransfers: vllm-rs counts transfers of NIXL (vllm:nixl_xfer_time_seconds and others). It has no such metrics before, and
	// does not take statistics that have more keys than it knows, which engines send since (TransferCountsHandshakes).
	RustCountsTransfers
	// RustServesAdapters: vllm-rs takes --lora-modules.
	RustServesAdapters
	// RustChoosesGrammar: vllm-rs takes --structured-outputs-config; those before it
	// compile every grammar with the default backend.
	RustChoosesGrammar
	// RustBoundsStops: vllm-rs takes at most 4 stop strings, and no two tools of one name.
	RustBoundsStops
	// RustReadsHeaders: vllm-rs reads X-Session-ID and X-Vllm-Priority.
	RustReadsHeaders
	// RustTruncates: vllm-rs takes truncate_prompt_tokens, and -1 as top_k. RustLeavesRoom: the prompt then leaves room for
	// max_tokens.
	RustTruncates
	RustLeavesRoom
	// RustChecksAsPython: vllm-rs refuses an empty list of tools, bad words without tokens and prompt_embeds, and takes
	// length_penalty, and 0 as top_logprobs of a chat without logprobs.
	RustChecksAsPython
	// RustReadsLogprobIDs: vllm-rs takes logprob_token_ids.
	RustReadsLogprobIDs
	// RustSendsTemplateArgs: reasoning_parser_kwargs of each request have the arguments of the chat template. Elsewhere
	// those of a chat with a constraint have them.
	RustSendsTemplateArgs
	// RustFreesArguments: the arguments of a tool without strict may be any value, parallel_tool_calls counts, and the
	// tags of structural tags have a type.
	RustFreesArguments
	// RustBoundsSpace and RustExcludes: the contents of these tags have the members any_order and max_whitespace_cnt;
	// and excludes.
	RustBoundsSpace
	RustExcludes
	// RustJoinsConstraints: a chat with tools and a constraint of its own is answered with calls or by that constraint.
	// Elsewhere its tools are not enforced.
	RustJoinsConstraints
	// RustRefusesLongerOutput: vllm-rs refuses an EngineCoreOutput with more fields than
	// it knows, and fails every open request.
	RustRefusesLongerOutput
	// RustScalesOut: vllm-rs takes --enable-scale-out, and then serves /inference/v1/generate.
	RustScalesOut
	// GuidanceGoesOn: a regular expression, schema or choice that llguidance cannot compile is
	// answered with the end of sequence as its only token. Elsewhere the request fails.
	GuidanceGoesOn
	// XgrammarCompilesChoices: an engine makes a grammar of a choice that xgrammar is to compile. Elsewhere only the Python frontend
	// does, and a choice that another one sends as it is fails.
	XgrammarCompilesChoices
)

// lineRules says from which line to which a rule holds, both included, and from where
// that is known; "" is without end. The sources are files of vLLM as released, or
// experiments with what was released.
var lineRules = map[LineRule]struct{ since, until, source string }{
	PlainBlockKeys:    {"", "0.30", kvCacheSource},
	LastFeatureHashed: {"", "0.30", kvCacheSource},
	FreedBlocksLast:   {"0.27", "0.27", kvCacheSource},

	FrontendBeginsWaves:  {"", "0.28", wavesSource},
	FirstRankBeginsWaves: {"0.29", "0.32", wavesSource},

	TransferHasExpiry:        {"0.26", "", nixlSource},
	TransferHasMode:          {"0.28", "", nixlSource},
	TransferHasParallelSizes: {"0.29", "", nixlSource},
	TransferHasGeneration:    {"0.33", "", nixlSource},

	TransferHasCached: {"0.31", "", "vllm/v1/core/sched/scheduler.py update_from_output, of each line"},

	TransferCountsHandshakes: {"0.31", "", nixlStatsSource},
	TransferCountsLate:       {"0.32", "", nixlStatsSource},

	RustCountsTransfers:     {"0.30", "0.30", rustSource},
	RustServesAdapters:      {"0.30", "", rustSource},
	RustChoosesGrammar:      {"0.33", "", rustSource},
	RustBoundsStops:         {"0.28", "", rustSource},
	RustChecksAsPython:      {"0.33", "", rustSource},
	RustReadsHeaders:        {"0.28", "", rustSource},
	RustTruncates:           {"0.29", "", rustSource},
	RustLeavesRoom:          {"", "0.32", rustSource},
	RustReadsLogprobIDs:     {"0.32", "", rustSource},
	RustSendsTemplateArgs:   {"0.31", "", rustSource},
	RustFreesArguments:      {"0.31", "", rustSource},
	RustBoundsSpace:         {"0.27", "", rustSource},
	RustExcludes:            {"0.32", "", rustSource},
	RustJoinsConstraints:    {"0.32", "", rustSource},
	RustRefusesLongerOutput: {"", "0.30", rustSource},
	RustScalesOut:           {"0.30", "", rustSource},

	XgrammarCompilesChoices: {"0.33", "", "vllm/v1/structured_output/backend_xgrammar.py compile_grammar of 0.32.0 and 0.33.0; vllm-rs 0.33.0 before engines of 0.29 to 0.32"},

	GuidanceGoesOn: {"", "0.32", "vllm/v1/structured_output/backend_guidance.py compile_grammar of 0.32.0 and 0.33.0, and their engines, run by hand"},
}

const (
	kvCacheSource   = "the KV cache managers of 0.25 to 0.33 (vllm/v1/core), run by internal/engine/kvcache/testdata/vectors.py"
	wavesSource     = "vllm/v1/engine/core.py DPEngineCoreProc, compared at 0.27.1, 0.32.0 and 0.33.0"
	nixlSource      = "vllm/distributed/kv_transfer/kv_connector/v1/nixl/pull_scheduler.py request_finished, of each line"
	nixlStatsSource = "vllm/distributed/kv_transfer/kv_connector/v1/nixl/stats.py NixlKVConnectorStats.reset, of each line"
	rustSource      = "the released binaries of vllm-rs, run by hand"
)

// Holds reports whether the rule holds for a line, release tag or tracker. A tracker has
// the rules of the newest line.
func (r LineRule) Holds(line string) bool {
	rule, name := lineRules[r], LineOf(line)
	_, _, numbered := lineNumbers(name)
	if !numbered {
		return rule.until == ""
	}
	return (rule.since == "" || compareLines(name, rule.since) >= 0) && (rule.until == "" || compareLines(name, rule.until) <= 0)
}

// Since is the first line for which the rule holds, "" if all older ones have it.
func (r LineRule) Since() string { return lineRules[r].since }

// compareLines orders numbered lines, the older first.
func compareLines(a, b string) int {
	majorA, minorA, _ := lineNumbers(a)
	majorB, minorB, _ := lineNumbers(b)
	return cmp.Or(cmp.Compare(majorA, majorB), cmp.Compare(minorA, minorB))
}

// LineOfSessions is the line of which there are goldens with every kind of session. Faults of single rules are injected into those.
const LineOfSessions = "0.33"
