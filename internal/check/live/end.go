package live

import (
	"fmt"
	"slices"

	"github.com/vllm-vcr/conformance/internal/base/plural"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/message"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

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
		l.end(a, CodeTooFew, "new_token_ids", a.sampling.MaxTokens, len(a.tokens), "it ended by length after %s, max_tokens is %d", plural.Count(len(a.tokens), "token"), a.sampling.MaxTokens)
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
			"it stopped after %s, min_tokens is %d", plural.Count(n, "token"), a.sampling.MinTokens)
		return
	}
	l.end(a, CodeStopRule, "finish_reason", "length", "stop", "finish_reason is stop, and its last token is none to stop at: %s", message.Around(a.tokens, n-1))
}

// checkStopReason: the token is named, unless it is the end of the sequence.
func (l *live) checkStopReason(a *ask, reason []byte) {
	last := a.tokens[len(a.tokens)-1]
	want := []byte(nil)
	if int64(last) != a.sampling.EOSTokenID {
		want = pack.AppendUint(nil, uint64(last))
	}
	if same, err := sameValue(want, reason); err != nil || !same {
		l.end(a, CodeStopReason, "stop_reason", shown(want), shown(reason), "stop_reason is %s, it stopped at token %d", shown(reason), last)
	}
}

func sameValue(want, got []byte) (bool, error) {
	if want == nil || got == nil {
		return want == nil && got == nil, nil
	}
	return pack.Equal(want, got)
}

// reasonOf is what an engine says of an error. Lines before 0.33 have no place for it.
func reasonOf(failure []byte) string {
	if failure == nil {
		return "it says no more"
	}
	return message.Describe(failure)
}

func shown(raw []byte) string {
	if raw == nil {
		return "nil"
	}
	return message.Describe(raw)
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
