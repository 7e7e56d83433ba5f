package live

import (
	"fmt"
	"slices"

	"github.com/vllm-vcr/conformance/internal/base/plural"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// checkStreaming has 16 requests in flight, of different lengths both ways.
func (l *live) checkStreaming() error {
	const flights = 16
	return l.askMany(flights, func(i int) (prompt, tokens int) { return 1 + i*5%37, 1 + i*7%23 })
}

// checkStop asks again for tokens that are known to come, or likely to, with rules
// to stop at them. What is asserted are the rules, whatever tokens came.
func (l *live) checkStop() error {
	const limit = 24
	prompt := l.prompt(12)
	first, err := l.askAndAwait(prompt, greedy(limit))
	if err != nil || len(first.tokens) == 0 {
		return err
	}
	known := laterToken(first.tokens)
	var even []uint32
	for id := uint32(0); id < lowestVocabulary; id += 2 {
		even = append(even, id)
	}
	for _, rule := range []func(*protocol.Sampling){
		func(s *protocol.Sampling) { s.StopTokenIDs = []uint32{known} },
		func(s *protocol.Sampling) { s.EOSTokenID = int64(known) },
		func(s *protocol.Sampling) { s.StopTokenIDs, s.EOSTokenID = []uint32{known}, int64(known) },
		func(s *protocol.Sampling) { s.StopTokenIDs = even },
		func(s *protocol.Sampling) { s.StopTokenIDs, s.MinTokens = even, 8 },
		func(s *protocol.Sampling) { s.EOSTokenID, s.MinTokens = int64(first.tokens[0]), 4 },
		func(s *protocol.Sampling) { s.MinTokens = limit },
	} {
		sampling := greedy(limit)
		rule(&sampling)
		if _, err := l.askAgain(first, sampling); err != nil {
			return err
		}
	}
	return l.barrier()
}

// laterToken is the last token that did not come before.
func laterToken(tokens []uint32) uint32 {
	for i := len(tokens) - 1; i > 0; i-- {
		if !slices.Contains(tokens[:i], tokens[i]) {
			return tokens[i]
		}
	}
	return tokens[0]
}

// checkAbort aborts requests before and after their first output. Others get what
// they asked for, the ids can be used again, and to abort what is unknown, or has
// ended, is nothing. A real engine says nothing of an aborted request; whether an
// engine ends it with an output is left to it, until it has read the abort.
func (l *live) checkAbort() error {
	hit, err := l.tryAborts(l.abortSome)
	if err == nil && !hit {
		l.f.AddNote("every request had ended before the engine read its abort, so only the use of their ids was judged")
	}
	return err
}

// tryAborts aborts requests until one is open when the engine reads its abort: an engine that is quick may be done before.
func (l *live) tryAborts(abort func() (hit bool, err error)) (hit bool, err error) {
	for range 5 {
		if hit, err = abort(); hit || err != nil {
			break
		}
	}
	return hit, err
}

// long is how many tokens a request asks for that is to be open for a while.
func (l *live) long() int { return min(512, max(l.s.Engine.Ready.MaxModelLen/2, 2)) }

// abortSome makes one try, and reports whether a request was open when the engine read
// its abort.
func (l *live) abortSome() (hit bool, err error) {
	var others, victims []*ask
	for i := range 6 {
		list, tokens := &others, 16
		if i%2 == 0 {
			list, tokens = &victims, l.long()
		}
		a, err := l.ask(l.prompt(10+i), greedy(tokens))
		if err != nil {
			return false, err
		}
		*list = append(*list, a)
	}
	if err := l.abort(victims[0]); err != nil {
		return false, err
	}
	if err := l.awaitOutput(victims[1]); err != nil {
		return false, err
	}
	if err := l.s.Front.Abort(0, "live-unknown", victims[0].id); err != nil {
		return false, err
	}
	if err := l.abort(victims[1:]...); err != nil {
		return false, err
	}
	if err := l.await(others...); err != nil {
		return false, err
	}
	hit = slices.ContainsFunc(victims, func(a *ask) bool { return a.finish == protocol.Unfinished })
	return hit, l.useAgain(append(victims, others...))
}

// useAgain sends new requests under the ids of ended ones.
func (l *live) useAgain(ended []*ask) error {
	if err := l.barrier(); err != nil { // what comes late belongs to the ended ones
		return err
	}
	var again []*ask
	for _, a := range ended {
		b, err := l.askAs(a.id, l.prompt(7), greedy(5))
		if err != nil {
			return err
		}
		again = append(again, b)
	}
	if err := l.await(again...); err != nil {
		return err
	}
	for _, a := range again {
		l.f.Asserted++
		if a.finish != protocol.FinishLength {
			l.fail(a.id, check.Failed(CodeAbort, "the id %s cannot be used again after an abort: the request ended by %s", a.id, a.finish).
				Compared(protocol.FinishLength, a.finish))
		}
	}
	return l.barrier()
}

// checkRepeat asks twice for the same: greedily, and with a seed. Then it asks for
// log-probabilities, without which a frontend answers HTTP 500.
func (l *live) checkRepeat() error {
	seeded := greedy(16)
	seeded.Temperature, seeded.Seed, seeded.HasSeed = 1, 7, true
	for _, sampling := range []protocol.Sampling{greedy(16), seeded} {
		if err := l.repeat(l.prompt(20), sampling); err != nil {
			return err
		}
	}
	withLogprobs, withPrompt := greedy(6), greedy(2)
	withLogprobs.Logprobs, withPrompt.PromptLogprobs = 2, 1
	sampledOnly := greedy(3)
	sampledOnly.Logprobs = 0
	many := greedy(4)
	many.Logprobs = 20 // too large for the message itself, so they have frames of their own
	for _, sampling := range []protocol.Sampling{withLogprobs, sampledOnly, many, withPrompt} {
		if _, err := l.askAndAwait(l.prompt(9), sampling); err != nil {
			return err
		}
	}
	return l.barrier()
}

// askAgain sends the prompt of an ended request once more and awaits the end, under
// the same id: an engine without a model may make its tokens of that. What comes
// late of the first belongs to the first.
func (l *live) askAgain(first *ask, sampling protocol.Sampling) (*ask, error) {
	if err := l.barrier(); err != nil {
		return nil, err
	}
	again, err := l.askAs(first.id, first.prompt, sampling)
	if err != nil {
		return nil, err
	}
	return again, l.await(again)
}

// repeat sends a request twice, one after the other, with nothing cached of it.
func (l *live) repeat(prompt []uint32, sampling protocol.Sampling) error {
	first, err := l.askAndAwait(prompt, sampling)
	if err != nil {
		return err
	}
	// What is found in the prefix cache is not computed in the same pieces again, and
	// rounds in another way: a real model may choose another token for that.
	if _, err := l.call(resetPrefixCache.method, resetPrefixCache.args...); err != nil {
		return err
	}
	again, err := l.askAgain(first, sampling)
	if err != nil {
		return err
	}
	l.f.Asserted++
	if !slices.Equal(first.tokens, again.tokens) {
		at := check.FirstDifference(first.tokens, again.tokens)
		l.fail(first.id, check.Failed(CodeRepeat, "request %s, temperature %v: the second time token %d differs: first %s, then %s",
			first.id, sampling.Temperature, at, check.Around(first.tokens, at), check.Around(again.tokens, at)).
			At(at).Compared(check.Around(first.tokens, at), check.Around(again.tokens, at)))
	}
	return nil
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
	l.end(a, CodeStopRule, "finish_reason", "length", "stop", "finish_reason is stop, and its last token is none to stop at: %s", check.Around(a.tokens, n-1))
}

// checkStopReason: the token is named, unless it is the end of the sequence.
func (l *live) checkStopReason(a *ask, reason []byte) {
	last := a.tokens[len(a.tokens)-1]
	want := []byte(nil)
	if int64(last) != a.sampling.EOSTokenID {
		want = pack.AppendUint(nil, uint64(last))
	}
	if !check.Same(want, reason) {
		l.end(a, CodeStopReason, "stop_reason", check.Describe(want), check.Describe(reason), "stop_reason is %s, it stopped at token %d", check.Describe(reason), last)
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
