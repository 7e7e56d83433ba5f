package selftest

import (
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/live"
)

// suiteRow is a fault in front of a check of the suite live or frontend. The check must report the code, with a message that has
// the words of finds: no other rule of the code has them.
type suiteRow struct {
	check      conformance.Assertion
	name, says string
	code       conformance.Code
	finds      string
	edits      []edit
}

func faultsOf(suite conformance.Suite, rows []suiteRow) (all []Fault) {
	for _, r := range rows {
		all = append(all, Fault{
			Name: string(suite) + "-" + r.name, Says: r.says,
			suite: &suiteFault{suite: suite, check: r.check, code: r.code, finds: r.finds, edits: r.edits},
		})
	}
	return all
}

// generatedEngineFaults are put in front of random sessions with an engine that replays a golden.
func generatedEngineFaults() []Fault {
	return faultsOf(conformance.SuiteGenerated, []suiteRow{
		{live.Sessions, "recorded-token", "a token is another than the recorded one", live.CodeRecorded, "token 0 differs", by(put("outputs.new_token_ids.0", plus(1), 1))},
		{live.Sessions, "recorded-end", "an answer ends by another reason than the recorded one", live.CodeRecorded, "it ended by", by(put("outputs.finish_reason", 4, 1))},
		{live.Sessions, "recorded-tokens-lost", "tokens of an answer are lost", live.CodeRecorded, "it ended after", by(put("outputs.new_token_ids", []any{}, 0))},
		{live.Sessions, "output-of-text", "a token is text", check.CodeLayout, "", by(put("outputs.new_token_ids.0", "x", 5))},
	})
}

// liveFaults are put in front of the suite live: an engine of which one field is wrong.
func liveFaults() []Fault {
	const stop, length, failed, repetition = 0, 1, 3, 4 // finish reasons on the wire
	const outputs, calls, params = "outputs.", "utility_output.", "sampling_params."
	// asked is an edit of what the engine under test is asked for, which is then not what the suite believes.
	asked := func(field string, value any, nth int) []edit {
		return by(edit{of: "ADD", field: field, value: value, nth: nth})
	}
	all := faultsOf(conformance.SuiteLive, []suiteRow{
		{live.Handshake, "hello-without-headless", "HELLO lacks a key", live.CodeEngineHello, "HELLO has no key", by(edit{of: "HELLO", field: "headless", value: omitted})},
		{live.Handshake, "ready-local", "READY is of an engine that the frontend started", live.CodeEngineHello, "READY says local = true", by(edit{of: "READY", field: "local", value: true})},
		{live.Handshake, "ready-first", "READY comes in place of HELLO", live.CodeEngineOrder, "out of turn", by(edit{of: "HELLO", field: "status", value: "READY"})},
		{live.Handshake, "another-rank", "the registration is of another rank", live.CodeEngineIdentity, "registers as data_parallel_rank 3", by(registered("data_parallel_rank", 3))},
		{check.Schema, "registration-without-key", "the registration lacks a key", check.CodeReadyMissing, "block_size", by(registered("block_size", omitted))},
		{check.Schema, "registration-of-text", "a number of the registration is text", live.CodeEngineReadyKind, "kv_cache_size_tokens is str", by(registered("kv_cache_size_tokens", "none"))},

		{live.Streaming, "timestamp-of-zero", "messages have no time", live.CodeTimestamp, "monotonic", by(put("timestamp", 0.0, 0))},
		{live.Streaming, "another-index", "messages are of another engine", check.CodeEngineIndex, "engine_index is 3", by(put("engine_index", 3, 0))},
		{live.Streaming, "wave", "a message is for a coordinator", live.CodeEnvelope, "this is a client", by(put("wave_complete", 1, 1))},
		{live.Streaming, "finished-too-early", "a message lists a request that goes on", live.CodeEnvelope, "before its last output", by(put("finished_requests", []any{"live-2"}, 1))},
		{live.Streaming, "empty-message", "a message has nothing", live.CodeEnvelope, "it has neither outputs", by(put("scheduler_stats", nil, 0))},
		{live.Streaming, "stray-output", "an output is of no request", check.CodeStray, "which was never sent", by(put(outputs+"request_id", "stray", 1))},
		{live.Streaming, "token-of-text", "a token is text", check.CodeUndecodable, "new_token_ids", by(put(outputs+"new_token_ids.0", "x", 1))},
		{live.Streaming, "statistics-of-text", "a number of the statistics is text", check.CodeLayout, "num_waiting_reqs", by(put(stats+"num_waiting_reqs", "x", 1))},
		{live.Streaming, "no-prefill-stats", "the first output has no statistics of its prompt", live.CodePrefill, "has no prefill_stats", by(put(outputs+"prefill_stats", nil, 0))},
		{live.Streaming, "another-prompt", "the statistics are of another prompt", live.CodePrefill, "prefill_stats count", by(put(outputs+"prefill_stats.num_prompt_tokens", plus(1), 1))},
		{live.Streaming, "output-twice", "outputs come twice", live.CodeAfterEnd, "after it had ended", by(put(outputs+"0", again, 0))},
		{live.Streaming, "token-twice", "tokens come twice", live.CodeTooMany, "more tokens than max_tokens", by(put(outputs+"new_token_ids.0", again, 0))},
		{live.Streaming, "token-too-few", "the engine stops early", live.CodeTooFew, "it ended by length after", asked(params+"max_tokens", 1, 0)},
		{live.Streaming, "ends-by-repetition", "requests end by another reason", live.CodeFinish, "which nothing in it asks for", by(instead(outputs+"finish_reason", length, repetition))},
		{live.Streaming, "ends-by-error", "requests end by an error", live.CodeUnanswered, "answered with an error", by(instead(outputs+"finish_reason", length, failed))},
		{live.Streaming, "stops-without-reason", "requests stop at any token", live.CodeStopRule, "its last token is none to stop at", by(instead(outputs+"finish_reason", length, stop))},

		{live.Stop, "stops-by-length", "a request that stopped has another reason", live.CodeStopRule, "finish_reason is length", by(instead(outputs+"finish_reason", stop, length))},
		{live.Stop, "does-not-stop", "the engine does not stop at a token", live.CodeStopRule, "more follow", append(asked(params+"stop_token_ids", omitted, 0), asked(params+"max_tokens", plus(1), 2)...)},
		{live.Stop, "stops-too-early", "the engine stops before min_tokens", live.CodeMinTokens, "min_tokens is", asked(params+"min_tokens", 0, 0)},
		{live.Stop, "no-stop-reason", "the token that ended a request is not named", live.CodeStopReason, "stop_reason is nil", by(put(outputs+"stop_reason", nil, 0))},

		{live.Abort, "abort-lost", "the engine gets no abort", live.CodeAfterEnd, "and the engine had read that", by(edit{of: "ABORT", value: lost})},
		{live.Abort, "abort-of-another", "the engine aborts another request", live.CodeAfterEnd, "and the engine had read that", by(edit{of: "ABORT", field: "0", value: "nothing"})},
		{live.Abort, "id-of-aborted", "an id cannot be used again after an abort", live.CodeAbort, "cannot be used again", asked(params+"stop_token_ids", idsBelow(4096), 8)},

		{live.Utilities, "call-fails", "calls are answered by a failure", live.CodeUtilityAnswer, "answered with a failure", by(put(calls+"failure_message", "no", 0))},
		{live.Utilities, "call-with-result-of-text", "calls have results of another kind", live.CodeUtilityAnswer, "expects a result of type", by(instead(calls+"result.1", false, "no"))},
		{live.Utilities, "answer-twice", "a call is answered twice", live.CodeUtilityAnswer, "which the frontend did not make", by(put(calls+"call_id", 99, 1))},
		{live.Utilities, "answer-among-others", "an answer is not alone in its message", live.CodeEnvelope, "stands alone", by(put("scheduler_stats", map[string]any{}, 0))},
		{live.Utilities, "call-lost", "a call is not answered", check.CodeUtility, "was not answered, and two requests after it were", by(edit{of: "UTILITY", value: lost, nth: 2})},
		{live.Utilities, "unknown-call-succeeds", "a call of an unknown method succeeds", live.CodeUtilityUnknown, "no line has this method", by(put(calls+"failure_message", nil, 0))},

		{live.Logprobs, "logprobs-lost", "log-probabilities are left out", live.CodeLogprobs, "missing, although asked for", by(put(outputs+"new_logprobs", nil, 0))},
		{live.Logprobs, "logprobs-of-less", "log-probabilities are of fewer tokens", live.CodeLogprobs, "rows of logprobs for", by(put(outputs+"new_token_ids.0", again, 0))},
		{live.Repeat, "other-tokens", "tokens are other ones each time", live.CodeRepeat, "the second time token", by(put(outputs+"new_token_ids.0", counting, 0))},
		{live.Repeat, "one-other-token", "one token of the first answer is another", live.CodeRepeat, "the second time token 0 differs", by(put(outputs+"new_token_ids.0", 7, 1))},

		{live.Statistics, "statistics-without-usage", "statistics lack a key", live.CodeStatistics, "kv_cache_usage", by(put(stats+"kv_cache_usage", omitted, 0))},
		{live.Statistics, "always-waiting", "a request waits for ever", live.CodeGauges, "1 waiting", by(put(stats+"num_waiting_reqs", 1, 0))},
	})
	shutdown := func(name, says, finds string, ends engineEnd) Fault {
		return Fault{Name: "live-" + name, Says: says, suite: &suiteFault{
			suite: conformance.SuiteLive, check: live.Shutdown, code: live.CodeShutdown, finds: finds, ends: ends,
		}}
	}
	return append(
		all,
		shutdown("killed", "the engine ends only by SIGKILL", "was killed", endsKilled),
		shutdown("never-ends", "the engine does not end at all", "not even by SIGKILL", endsNever),
		Fault{Name: "live-another-identity", Says: "the engine has the identity of another", suite: &suiteFault{
			suite: conformance.SuiteLive, check: live.Handshake, code: live.CodeEngineIdentity, finds: "names engine 5", index: 5,
		}},
	)
}
