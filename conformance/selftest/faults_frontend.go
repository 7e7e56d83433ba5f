package selftest

import (
	"github.com/vllm-vcr/conformance/conformance"
	suite "github.com/vllm-vcr/conformance/internal/check/frontendsuite"
)

// frontendFaults are put in front of the suite frontend: a frontend of which one field is wrong, of a message to the engine or of an
// HTTP answer.
func frontendFaults() []Fault {
	const completions, chat, params, choice = "POST /v1/completions", "POST /v1/chat/completions", "sampling_params.", "choices.0."
	table := []struct {
		check conformance.Assertion
		name  string
		says  string
		code  conformance.Code
		edit  edit
	}{
		{suite.Handshake, "unhealthy", "it never serves", suite.CodeNoRegistration, edit{of: "GET /health", field: "status", value: 503}},
		{suite.Handshake, "init-without-outputs", "its answer to HELLO lacks a key", suite.CodeInit, edit{of: "INIT", field: "addresses.outputs", value: omitted}},
		{suite.Requests, "another-temperature", "a request has another temperature", suite.CodeCarried, edit{of: "ADD", field: params + "temperature", value: 0.123}},
		{suite.Requests, "limit-of-text", "max_tokens is text", suite.CodeMessage, edit{of: "ADD", field: params + "max_tokens", value: "16"}},
		{suite.Requests, "another-prompt", "a request has another prompt", suite.CodeNoRequest, edit{of: "ADD", field: "prompt_token_ids.0", value: 1}},
		{suite.Requests, "no-temperature", "a request has no temperature", suite.CodeCarried, edit{of: "ADD", field: params + "temperature", value: omitted}},
		{suite.Requests, "arrival-in-the-past", "a request has an arrival time of 1970", suite.CodeCarried, edit{of: "ADD", field: "arrival_time", value: 1.0}},
		{suite.Requests, "no-answer", "an answer never comes", suite.CodeHangs, edit{of: completions, value: unsent}},
		{suite.Completions, "other-token", "an answer has another token", suite.CodeHTTPTokens, edit{of: completions, field: choice + "token_ids.0", value: 1}},
		{suite.Completions, "server-error", "an answer has status 500", suite.CodeHTTP, edit{of: completions, field: "status", value: 500}},
		{suite.Chat, "chat-finish", "an answer ends by another reason", suite.CodeHTTPFinish, edit{of: chat, field: choice + "finish_reason", value: "content_filter", where: "length"}},
		{suite.Chat, "chat-error", "an answer has status 500", suite.CodeHTTP, edit{of: chat, field: "status", value: 500}},
		{suite.Chat, "ends", "it accepts no connection after a request", suite.CodeEnded, edit{of: chat, value: gone}},
		{suite.Chat, "hangs", "it answers nothing after a request", suite.CodeHangs, edit{of: chat, value: silent}},
		{suite.Chat, "stops-serving", "it is unhealthy after a request", suite.CodeHealth, edit{of: chat, value: refusing}},
		{suite.Chat, "other-text-in-chat", "a streamed answer has another text", suite.CodeStreamed, edit{of: chat, field: "choices.0.delta.content", value: "?", streamed: true}},
		{suite.Streaming, "plain-text", "a stream is text/plain", suite.CodeEvents, edit{of: completions, field: "type", value: "text/plain"}},
		{suite.Streaming, "all-at-once", "a stream comes when it is complete", suite.CodeHangs, edit{of: completions, value: late}},
		{suite.Streaming, "no-done", "a stream has no last event", suite.CodeEvents, edit{of: completions, field: "[DONE]"}},
		{suite.Streaming, "other-text-streamed", "a streamed answer has another text", suite.CodeStreamed, edit{of: completions, field: choice + "text", value: "?", streamed: true}},
		{suite.Usage, "prompt-miscounted", "the usage counts another prompt", suite.CodeHTTPUsage, edit{of: completions, field: "usage.prompt_tokens", value: 1}},
		{suite.Usage, "cache-miscounted", "the usage counts other cached tokens", suite.CodeHTTPUsage, edit{of: completions, field: "usage.prompt_tokens_details.cached_tokens", value: 3}},
		{suite.Usage, "no-usage", "an answer has no usage", suite.CodeHTTPUsage, edit{of: completions, field: "usage", value: omitted}},
		{suite.Finish, "stop-is-length", "an answer ends by another reason", suite.CodeHTTPFinish, edit{of: completions, field: choice + "finish_reason", value: "length", where: "stop"}},
		{suite.Finish, "no-stop-reason", "an answer does not name what stopped it", suite.CodeHTTPFinish, edit{of: completions, field: choice + "stop_reason"}},
		{suite.Finish, "no-abort-at-stop", "the engine gets no abort of a request that ended by a stop string", suite.CodeNoAbort, edit{of: "ABORT", value: lost}},
		{suite.Aborts, "no-abort", "the engine gets no abort", suite.CodeNoAbort, edit{of: "ABORT", value: lost}},
		{suite.Aborts, "abort-of-another", "the engine aborts another request", suite.CodeNoAbort, edit{of: "ABORT", field: "0", value: "nothing"}},
		{suite.Utilities, "another-call", "another method is called", suite.CodeNoCall, edit{of: "UTILITY", field: "2", value: "is_sleeping", where: "reset_prefix_cache"}},
		{suite.Utilities, "call-with-text", "an argument of a call is text", suite.CodeMessage, edit{of: "UTILITY", field: "3.0", value: "no", where: false}},
		{suite.Utilities, "call-fails", "the route fails after the call", suite.CodeHTTP, edit{of: "POST /reset_prefix_cache", field: "status", value: 500}},
		{suite.LoRA, "adapter-refused", "an adapter cannot be loaded", suite.CodeHTTP, edit{of: "POST /v1/load_lora_adapter", field: "status", value: 500}},
		{suite.LoRA, "adapter-forgotten", "a request has no adapter", suite.CodeCarried, edit{of: "ADD", field: "lora_request"}},
		{suite.Concurrency, "other-token-of-many", "an answer has another token", suite.CodeHTTPTokens, edit{of: completions, field: choice + "token_ids.0", value: 1}},
		{suite.Concurrency, "ends-of-many", "an answer ends by another reason", suite.CodeHTTPFinish, edit{of: completions, field: choice + "finish_reason", value: "stop", where: "length"}},
		{suite.Errors, "takes-anything", "bad requests are not refused", suite.CodeAccepted, edit{of: completions, field: "status", value: 200, where: 400}},
		{suite.Errors, "any-model", "any model is served", suite.CodeAccepted, edit{of: completions, field: "status", value: 200, where: 404}},
		{suite.Transfer, "no-transfer", "an answer lacks what the decode engine needs", suite.CodeTransfer, edit{of: completions, field: "kv_transfer_params", value: omitted}},
		{suite.Transfer, "transfer-not-asked", "the engine is not asked to keep the KV cache", suite.CodeCarried, edit{of: "ADD", field: params + "extra_args"}},
		{suite.RealEngine, "other-token-of-real-engine", "an answer has another token", suite.CodeHTTPTokens, edit{of: completions, field: choice + "token_ids.0", value: 1}},
		{suite.RealEngine, "ends-of-real-engine", "an answer ends by another reason", suite.CodeHTTPFinish, edit{of: completions, field: choice + "finish_reason", value: "stop", where: "length"}},
		{suite.Health, "no-models", "no model is listed", suite.CodeHealth, edit{of: "GET /v1/models", field: "data", value: []any{}}},
		{suite.Health, "waits-for-the-dead", "an open request is never answered", suite.CodeHangs, edit{of: completions, value: unsent}},
		{suite.Health, "always-healthy", "it is healthy without an engine", suite.CodeHealth, edit{of: "GET /health", field: "status", value: 200}},
	}
	var all []Fault
	for _, f := range table {
		all = append(all, Fault{Name: "frontend-" + f.name, Says: f.says, suite: &suiteFault{conformance.SuiteFrontend, f.check, f.code, f.edit, 0}})
	}
	return all
}
