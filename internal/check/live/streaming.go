package live

import (
	_ "embed"
	"fmt"
	"slices"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// Codes of what the check reports.
const (
	CodeEnvelope   check.Code = "E004" // an envelope that decodes, but that a real frontend dies of
	CodeTimestamp  check.Code = "E005" // a timestamp is missing, or lies before one that came earlier
	CodeAfterEnd   check.Code = "E006" // an output for a request that had ended, or had been aborted
	CodeTooMany    check.Code = "E007" // more tokens than max_tokens
	CodeTooFew     check.Code = "E008" // a request that ended by length has fewer tokens than max_tokens
	CodeFinish     check.Code = "E009" // a request ended for a reason that it did not give
	CodePrefill    check.Code = "E013" // prefill_stats are missing, or count another prompt
	CodeLogprobs   check.Code = "E018" // logprobs that were asked for are missing or of another shape
	CodeUnanswered check.Code = "E022" // a request got an error instead of tokens
)

//go:embed streaming.md
var streamingCodes string

var streaming = check.Check{Name: Streaming, Codes: streamingCodes, Levels: []check.Level{check.LevelCore, check.LevelStatistics}, Run: judged((*live).checkStreaming)}

// checkStreaming has 16 requests in flight, of different lengths both ways.
func (l *live) checkStreaming() error {
	const flights = 16
	return l.askMany(flights, func(i int) (prompt, tokens int) { return 1 + i*5%37, 1 + i*7%23 })
}

// checkEnd compares how a request ended with what its tokens and limits demand
// (vllm/v1/core/sched/utils.py check_stop). The rules are those of the request
// alone, so they hold for any tokens.
func (l *live) checkEnd(a *ask, stopReason, failure []byte) {
	l.f.Asserted++
	l.f.Tokens += len(a.tokens)
	stopAt := a.firstStop()
	switch {
	case a.finish == protocol.FinishError:
		l.end(a, CodeUnanswered, "finish_reason", "tokens", "an error", "it was answered with an error: %s", reasonOf(failure))
	case stopAt < len(a.tokens)-1:
		l.end(a, CodeStopRule, "new_token_ids", fmt.Sprintf("an end after %d tokens", stopAt+1), len(a.tokens),
			"token %d is %d, which it was to stop at, and %d more follow", stopAt, a.tokens[stopAt], len(a.tokens)-1-stopAt)
	case a.finish == protocol.FinishStop && stopAt == len(a.tokens):
		l.checkEarly(a)
	case a.finish == protocol.FinishStop:
		l.checkStopReason(a, stopReason)
	case a.finish != protocol.FinishLength:
		l.end(a, CodeFinish, "finish_reason", "length or stop", a.finish, "it ended by %s, which nothing in it asks for", a.finish)
	case stopAt < len(a.tokens):
		l.end(a, CodeStopRule, "finish_reason", "stop", "length", "its last token %d is one to stop at, and finish_reason is length", a.tokens[stopAt])
	case len(a.tokens) < a.sampling.MaxTokens:
		l.end(a, CodeTooFew, "new_token_ids", a.sampling.MaxTokens, len(a.tokens), "it ended by length after %s, max_tokens is %d", safetext.Count(len(a.tokens), "token"), a.sampling.MaxTokens)
	}
	if a.sampling.Logprobs != protocol.NoLogprobs && a.logprobs != len(a.tokens) {
		l.end(a, CodeLogprobs, "new_logprobs", len(a.tokens), a.logprobs, "%d rows of logprobs for %d tokens", a.logprobs, len(a.tokens))
	}
}

// checkEarly is about a request that stopped and has no token to stop at where one
// counts.
func (l *live) checkEarly(a *ask) {
	n := len(a.tokens)
	if n > 0 && n < a.sampling.MinTokens && a.stopsAt(a.tokens[n-1]) {
		l.end(a, CodeMinTokens, "finish_reason", fmt.Sprintf("at least %d tokens", a.sampling.MinTokens), n,
			"it stopped after %s, min_tokens is %d", safetext.Count(n, "token"), a.sampling.MinTokens)
		return
	}
	l.end(a, CodeStopRule, "finish_reason", "length", "stop", "finish_reason is stop, and its last token is none to stop at: %s", check.Around(a.tokens, n-1))
}

// checkStopReason: the token is named, unless it is the end of the sequence.
func (l *live) checkStopReason(a *ask, reason []byte) {
	last := a.tokens[len(a.tokens)-1]
	want, rule := []byte(nil), "is the request's EOS (_eos_token_id), so stop_reason is nil"
	if int64(last) != a.sampling.EOSTokenID {
		want, rule = pack.AppendUint(nil, uint64(last)), "is in stop_token_ids and is not the EOS, so stop_reason is this token"
	}
	if !check.Same(want, reason) {
		l.end(a, CodeStopReason, "stop_reason", check.Describe(want), check.Describe(reason), "stop_reason is %s, but token %d %s", check.Describe(reason), last, rule)
	}
}

// reasonOf is what an engine says of an error. Lines before 0.33 have no place for it.
func reasonOf(failure []byte) string {
	if failure == nil {
		return "it says no more"
	}
	return check.Describe(failure)
}

// end reports how a request should not have ended.
func (l *live) end(a *ask, code check.Code, field string, want, got any, format string, args ...any) {
	l.fail(a.id, check.Failed(code, "request %s: %s", a.id, fmt.Sprintf(format, args...)).
		At(len(a.tokens)).Within(l.messages, outputPath(field)).Compared(want, got))
}

// firstStop is where the first token is at which the request is to stop, else the
// number of tokens.
func (a *ask) firstStop() int {
	for i, token := range a.tokens {
		if i+1 >= a.sampling.MinTokens && a.stopsAt(token) {
			return i
		}
	}
	return len(a.tokens)
}

func (a *ask) stopsAt(token uint32) bool {
	return int64(token) == a.sampling.EOSTokenID || slices.Contains(a.sampling.StopTokenIDs, token)
}
