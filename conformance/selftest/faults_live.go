package selftest

import (
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/live"
)

// liveFaults are put in front of the suite live: an engine of which one field is wrong.
func liveFaults() []Fault {
	const stop, length, repetition = 0, 1, 4 // finish reasons on the wire
	const outputs, calls, statistics = "outputs.", "utility_output.", "scheduler_stats."
	table := []struct {
		check conformance.Assertion
		name  string
		says  string
		code  conformance.Code
		edit  edit
		ends  engineEnd
	}{
		{live.Handshake, "hello-without-headless", "HELLO lacks a key", live.CodeEngineHello, edit{of: "HELLO", field: "headless", value: omitted}, 0},
		{live.Handshake, "ready-local", "READY is of an engine that the frontend started", live.CodeEngineHello, edit{of: "READY", field: "local", value: true}, 0},
		{check.Schema, "registration-without-key", "the registration lacks a key", check.CodeReadyMissing, edit{of: "REGISTRATION", field: "block_size", value: omitted}, 0},
		{check.Schema, "registration-of-text", "a number of the registration is text", live.CodeEngineReadyKind, edit{of: "REGISTRATION", field: "mamba_block_size", value: "none"}, 0},
		{live.Streaming, "timestamp-of-zero", "messages have no time", live.CodeTimestamp, edit{of: "OUTPUTS", field: "timestamp", value: 0.0}, 0},
		{live.Streaming, "another-index", "messages are of another engine", check.CodeEngineIndex, edit{of: "OUTPUTS", field: "engine_index", value: 3}, 0},
		{live.Streaming, "no-prefill-stats", "the first output has no statistics of its prompt", live.CodePrefill, edit{of: "OUTPUTS", field: outputs + "prefill_stats"}, 0},
		{live.Streaming, "ends-by-repetition", "requests end by another reason", live.CodeFinish, edit{of: "OUTPUTS", field: outputs + "finish_reason", value: repetition, where: length}, 0},
		{live.Stop, "stops-by-length", "a request that stopped has another reason", live.CodeStopRule, edit{of: "OUTPUTS", field: outputs + "finish_reason", value: length, where: stop}, 0},
		{live.Stop, "no-stop-reason", "the token that ended a request is not named", live.CodeStopReason, edit{of: "OUTPUTS", field: outputs + "stop_reason"}, 0},
		{live.Abort, "abort-lost", "the engine gets no abort", live.CodeAfterEnd, edit{of: "ABORT", value: lost}, 0},
		{live.Abort, "abort-of-another", "the engine aborts another request", live.CodeAfterEnd, edit{of: "ABORT", field: "0", value: "nothing"}, 0},
		{live.Utilities, "call-fails", "calls are answered by a failure", live.CodeUtilityAnswer, edit{of: "OUTPUTS", field: calls + "failure_message", value: "no"}, 0},
		{live.Utilities, "unknown-call-succeeds", "a call of an unknown method succeeds", live.CodeUtilityUnknown, edit{of: "OUTPUTS", field: calls + "failure_message"}, 0},
		{live.Repeat, "logprobs-lost", "log-probabilities are left out", live.CodeLogprobs, edit{of: "OUTPUTS", field: outputs + "new_logprobs"}, 0},
		{live.Repeat, "other-tokens", "tokens are other ones each time", live.CodeRepeat, edit{of: "OUTPUTS", field: outputs + "new_token_ids.0", value: counting}, 0},
		{live.Statistics, "statistics-without-usage", "statistics lack a key", live.CodeStatistics, edit{of: "OUTPUTS", field: statistics + "kv_cache_usage", value: omitted}, 0},
		{live.Statistics, "always-waiting", "a request waits for ever", live.CodeGauges, edit{of: "OUTPUTS", field: statistics + "num_waiting_reqs", value: 1}, 0},
		{live.Shutdown, "killed", "the engine ends only by SIGKILL", live.CodeShutdown, edit{}, endsKilled},
		{live.Shutdown, "never-ends", "the engine does not end at all", live.CodeShutdown, edit{}, endsNever},
	}
	var all []Fault
	for _, f := range table {
		all = append(all, Fault{Name: "live-" + f.name, Says: f.says, suite: &suiteFault{conformance.SuiteLive, f.check, f.code, f.edit, f.ends}})
	}
	return all
}
