package live

import (
	"github.com/vllm-vcr/conformance/internal/check"
)

// What is wrong with an engine under test, whatever tokens it makes up.
const (
	CodeEngineHello     check.Code = "E001" // HELLO or READY lacks what a frontend demands of an engine that somebody else started
	CodeEngineIdentity  check.Code = "E002" // the engine has another identity, index or rank than it was started with
	CodeEngineOrder     check.Code = "E003" // the handshake came in another order, or with other messages, than the protocol has
	CodeEnvelope        check.Code = "E004" // an envelope that decodes, but that a real frontend dies of
	CodeTimestamp       check.Code = "E005" // a timestamp is missing, or lies before one that came earlier
	CodeAfterEnd        check.Code = "E006" // an output for a request that had ended, or had been aborted
	CodeTooMany         check.Code = "E007" // more tokens than max_tokens
	CodeTooFew          check.Code = "E008" // a request that ended by length has fewer tokens than max_tokens
	CodeFinish          check.Code = "E009" // a request ended for a reason that it had not given
	CodeStopRule        check.Code = "E010" // a stop token was not obeyed, or something else was taken for one
	CodeStopReason      check.Code = "E011" // stop_reason does not name the token that ended the request
	CodeMinTokens       check.Code = "E012" // a request stopped before min_tokens
	CodePrefill         check.Code = "E013" // prefill_stats are missing, or count another prompt
	CodeAbort           check.Code = "E014" // an abort disturbed others, or left its id unusable
	CodeUtilityAnswer   check.Code = "E015" // a utility call was answered with a failure or another kind of value
	CodeUtilityUnknown  check.Code = "E016" // an unknown utility method was not answered with a failure
	CodeRepeat          check.Code = "E017" // the same greedy request gave other tokens
	CodeLogprobs        check.Code = "E018" // logprobs that were asked for are missing or of another shape
	CodeStatistics      check.Code = "E019" // scheduler_stats lack a key or have a value that cannot be
	CodeGauges          check.Code = "E020" // the gauges of scheduler_stats do not return to 0
	CodeShutdown        check.Code = "E021" // the engine did not end when told to
	CodeUnanswered      check.Code = "E022" // a request got an error instead of tokens
	CodeEngineReadyKind check.Code = "E023" // a key of the registration has a value of another kind than the line declares
)
