package live

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// ask is a request of the live suite, and what came back of it.
type ask struct {
	id       string
	client   int
	prompt   []uint32
	request  *protocol.Request
	sampling protocol.Sampling

	tokens   []uint32
	outputs  int
	finish   protocol.FinishReason
	aborted  bool // an abort is on its way
	closed   bool // no output may come any more
	logprobs int  // rows that came
}

// lowestVocabulary is how many token ids every model has, as far as this suite is
// concerned, and firstPlain the first that is nothing special in most.
const (
	lowestVocabulary = 2000
	firstPlain       = 3
)

// prompt makes up a prompt of so many tokens.
func (l *live) prompt(n int) []uint32 {
	prompt := make([]uint32, n)
	for i := range prompt {
		prompt[i] = firstPlain + l.random.Uint32N(lowestVocabulary-firstPlain)
	}
	return prompt
}

// greedy asks for so many of the most likely tokens, whatever they are.
func greedy(tokens int) protocol.Sampling {
	return protocol.Sampling{
		MaxTokens: tokens, HasMaxTokens: true, EOSTokenID: -1,
		Logprobs: protocol.NoLogprobs, PromptLogprobs: protocol.NoLogprobs,
	}
}

// ask sends a request under a new id.
func (l *live) ask(prompt []uint32, sampling protocol.Sampling) (*ask, error) {
	l.number++
	return l.askAs(fmt.Sprintf("live-%d", l.number), prompt, sampling)
}

// askAs sends a request under an id that no open request has.
func (l *live) askAs(id string, prompt []uint32, sampling protocol.Sampling) (*ask, error) {
	a := &ask{id: id, prompt: prompt, sampling: sampling}
	return a, l.send(a)
}

func (l *live) send(a *ask) error {
	l.asks[a.id] = a
	request := &protocol.Request{
		ID: a.id, ExternalID: a.id, ClientIndex: a.client, PromptTokenIDs: a.prompt, DataParallelRank: -1, HasSampling: true, Sampling: a.sampling,
		ArrivalTime: float64(time.Now().UnixMicro()) / 1e6,
	}
	a.request = request
	l.invariant.Ask(request)
	if err := l.s.Front.Submit(request); err != nil {
		return l.s.Explain(err)
	}
	return nil
}

// await receives until the requests have ended.
func (l *live) await(asks ...*ask) error {
	for slices.ContainsFunc(asks, func(a *ask) bool { return !a.closed }) {
		if err := l.receive(); err != nil {
			return l.unfinished(err, asks)
		}
	}
	return nil
}

// awaitOutput receives until a request has its first output.
func (l *live) awaitOutput(a *ask) error {
	for a.outputs == 0 && !a.closed {
		if err := l.receive(); err != nil {
			return l.unfinished(err, []*ask{a})
		}
	}
	return nil
}

// unfinished adds to an error which requests are waited for.
func (l *live) unfinished(err error, asks []*ask) error {
	for _, a := range asks {
		if !a.closed {
			return fmt.Errorf("%w; request %s is open after %d of %d tokens", err, a.id, len(a.tokens), a.sampling.MaxTokens)
		}
	}
	return err
}

func (l *live) askAndAwait(prompt []uint32, sampling protocol.Sampling) (*ask, error) {
	a, err := l.ask(prompt, sampling)
	if err != nil {
		return nil, err
	}
	return a, l.await(a)
}

// askMany sends so many requests, of the lengths that size says, and receives until all have ended and nothing late can come.
func (l *live) askMany(n int, size func(i int) (prompt, tokens int)) error {
	var asks []*ask
	for i := range n {
		prompt, tokens := size(i)
		a, err := l.ask(l.prompt(prompt), greedy(tokens))
		if err != nil {
			return err
		}
		asks = append(asks, a)
	}
	if err := l.await(asks...); err != nil {
		return err
	}
	return l.barrier()
}

// askLong sends a request that stays open for a while, and receives until it has its first output.
func (l *live) askLong() (*ask, error) {
	a, err := l.ask(l.prompt(12), greedy(l.long()))
	if err != nil {
		return nil, err
	}
	return a, l.awaitOutput(a)
}

// abort aborts requests and waits until the engine has read it: from then on it may
// say nothing of them.
func (l *live) abort(asks ...*ask) error {
	for _, a := range asks {
		if err := l.sendAbort(a); err != nil {
			return err
		}
	}
	if err := l.barrier(); err != nil {
		return err
	}
	for _, a := range asks {
		a.closed = true
	}
	return nil
}

func (l *live) sendAbort(a *ask) error {
	a.aborted = true
	l.invariant.Abort(a.id)
	if err := l.s.Front.Abort(a.client, a.id); err != nil {
		return l.s.Explain(err)
	}
	return nil
}

func (l *live) take(o *protocol.RequestOutput, aux [][]byte) {
	a := l.asks[string(o.ID)]
	switch {
	case a == nil:
		l.noise++
		l.fail("", check.Failed(check.CodeStray, "an output names request %q, which was never sent", o.ID).
			Within(l.messages, outputPath("request_id")).Compared("a request that was sent", string(o.ID)))
		return
	case a.closed:
		l.noise++
		l.fail(a.id, check.Failed(CodeAfterEnd, "request %s: an output of %s comes after %s", a.id, safetext.Count(len(o.Tokens), "token"), a.over()).
			Within(l.messages, outputPath("request_id")).Compared("nothing more", safetext.Count(len(o.Tokens), "token")))
		return
	case a.aborted: // until the engine has read it, it may say what it likes
		a.closed = o.Finish != protocol.Unfinished
		if o.Finish != protocol.FinishAbort {
			a.finish = o.Finish // it had ended before
		}
		return
	}
	a.outputs++
	if l.record != nil {
		l.takeRecorded(a, o)
		return
	}
	if a.outputs == 1 && o.Finish != protocol.FinishError {
		l.checkPrefill(a, o.Prefill)
	}
	l.takeTokens(a, o.Tokens)
	l.takeLogprobs(a, o, aux)
	if o.Finish != protocol.Unfinished {
		a.finish, a.closed = o.Finish, true
		l.checkEnd(a, bytes.Clone(o.StopReason), o.Error)
	}
}

// over says why no output of the request may come any more.
func (a *ask) over() string {
	if a.aborted && a.finish == protocol.Unfinished {
		return "it was aborted, and the engine had read that"
	}
	return "it had ended"
}

func outputPath(field string) string { return "EngineCoreOutputs.outputs[]." + field }

// takeTokens keeps what was asked for and one more, which is one too many.
func (l *live) takeTokens(a *ask, tokens []uint32) {
	room := a.sampling.MaxTokens + 1 - len(a.tokens)
	if len(tokens) > room {
		l.noise++
		tokens = tokens[:room]
	}
	a.tokens = append(a.tokens, tokens...)
	if len(a.tokens) > a.sampling.MaxTokens {
		l.fail(a.id, check.Failed(CodeTooMany, "request %s: more tokens than max_tokens = %d", a.id, a.sampling.MaxTokens).
			Within(l.messages, outputPath("new_token_ids")).Compared(a.sampling.MaxTokens, "more"))
	}
}

// checkPrefill looks at what only a first output has.
func (l *live) checkPrefill(a *ask, raw []byte) {
	if l.codec.Profile().Structs["EngineCoreOutput"].Index("prefill_stats") < 0 {
		return
	}
	l.f.Asserted++
	path := outputPath("prefill_stats")
	if raw == nil {
		l.fail("", check.Failed(CodePrefill, "request %s: the first output has no prefill_stats", a.id).Within(l.messages, path))
		return
	}
	if got := protocol.ViewOf(raw).Field("num_prompt_tokens").Count(); got != int64(len(a.prompt)) {
		l.fail("", check.Failed(CodePrefill, "request %s: prefill_stats count %d prompt tokens, the prompt has %d: %s", a.id, got, len(a.prompt), check.Describe(raw)).
			Within(l.messages, path+".num_prompt_tokens").Compared(len(a.prompt), got))
	}
}
