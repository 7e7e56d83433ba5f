package frontendsuite

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/retry"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/frontends/openai"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/player"
)

// frontendCase is one assertion about the frontend under test, as it is made.
type frontendCase struct {
	*frontendSession
	*check.Outcome
	golden *check.Golden
	whole  context.Context // ends with the case
	ctx    context.Context // ends with the case, or the session
	limit  time.Duration   // for an answer, or a message, to come
	name   string
	// notTaken are the probes that were refused, by status.
	notTaken map[int][]string
}

// Routes of the OpenAI side.
const (
	completionsRoute = "/v1/completions"
	chatRoute        = "/v1/chat/completions"
)

type object map[string]any

func (o object) with(more object) object {
	all := maps.Clone(o)
	maps.Copy(all, more)
	return all
}

// fail records something wrong, unless the case was cut short: what does not come
// then is not the frontend's fault.
func (k *frontendCase) fail(wrong check.Failure) {
	if k.whole.Err() == nil {
		k.Outcome.Fail(wrong)
	}
}

// maxHangs is how many answers that never come are waited for in full.
const maxHangs = 2

// patience bounds one wait of the case.
func (k *frontendCase) patience() (context.Context, context.CancelFunc) {
	limit := k.limit
	if k.hangs >= maxHangs {
		limit /= 10
	}
	return context.WithTimeoutCause(k.ctx, limit, errNoAnswer)
}

var errNoAnswer = errors.New("nothing came in time")

// ask sends an HTTP request and waits for the whole answer; nil, with the failure
// recorded, if none came, and nil without more ado once the frontend is lost.
func (k *frontendCase) ask(what, method, path string, body any) *openai.Answer {
	return k.askWith(nil, what, method, path, body)
}

// askWith is ask with headers.
func (k *frontendCase) askWith(header map[string]string, what, method, path string, body any) *openai.Answer {
	if k.lostAt != "" {
		return nil
	}
	ctx, stop := k.patience()
	defer stop()
	k.Asserted++
	a, err := k.client.SendWith(ctx, header, method, path, body)
	switch {
	case err == nil:
		if a.Status >= http.StatusInternalServerError {
			k.stillServes(what, fmt.Sprintf("status %d: %s", a.Status, excerpt(string(a.Body))))
		}
		return &a
	case errors.Is(err, errNoAnswer):
		k.hangs++
		k.fail(check.Failed(CodeHangs, "%s: %s %s: no answer within %v", what, method, path, k.limit).Compared("an answer", "none"))
		k.stillServes(what, "no answer")
	case k.stillServes(what, err.Error()):
		k.fail(check.Failed(CodeHTTP, "%s: %s %s: %v", what, method, path, err).Compared("an answer", "none"))
	}
	return nil
}

// stillServes looks at the health after something went wrong. What comes after the
// loss of a frontend says nothing, so the loss is told and the rest left out.
func (k *frontendCase) stillServes(what, answer string) bool {
	if k.lostAt != "" || k.over {
		return false
	}
	ctx, stop := k.patience()
	defer stop()
	err := k.client.Health(ctx)
	if err == nil || k.whole.Err() != nil {
		return err == nil
	}
	k.lostAt = k.name
	code, did := k.loss(err)
	k.fail(check.Failed(code, "the frontend %s after: %s: %s (GET /health: %s)\n%s", did, what, answer, excerpt(check.FirstLine(err)), k.lastWords()).
		Compared("GET /health: 200", excerpt(check.FirstLine(err))))
	return false
}

// loss distinguishes the ways in which a frontend is lost, by the error of its health route: it ended, it hangs, or it
// answers that it does not serve. The end of a process is known a little later than that its connections broke.
func (k *frontendCase) loss(err error) (code check.Code, did string) {
	var status *openai.StatusError
	switch {
	case errors.Is(err, errNoAnswer):
		return CodeHangs, "hangs"
	case errors.As(err, &status):
		return CodeHealth, "has stopped serving"
	case k.frontend.Process == nil && errors.Is(err, syscall.ECONNREFUSED):
		return CodeEnded, "accepts no connection any more"
	}
	patience, stop := k.frontend.Patience(k.whole, exitPatience, nil)
	defer stop()
	select {
	case <-k.frontend.Done():
		return CodeEnded, "ended"
	case <-patience.Done():
		return CodeHealth, "has stopped serving"
	}
}

// lastWords is how the frontend ended, else the last of what it wrote.
func (k *frontendCase) lastWords() string {
	select {
	case <-k.frontend.Done():
		return k.frontend.Exit().Error()
	default:
		return k.frontend.Said()
	}
}

// post sends a request for a completion, and nil, with the failure recorded, is what it
// returns for any but a sound answer.
func (k *frontendCase) post(what string, body object) *openai.Reply {
	r := k.attempt(what, k.route(), body)
	if r == nil || k.lostAt != "" {
		return nil
	}
	if r.Status != http.StatusOK || r.Failure != "" {
		k.fail(check.Failed(CodeHTTP, "%s: POST %s: status %d: %s", what, k.route(), r.Status, r.Failure).Compared(http.StatusOK, r.Status))
		return nil
	}
	k.framed(what, r)
	return r
}

// framed reports what is wrong with the events of a stream.
func (k *frontendCase) framed(what string, r *openai.Reply) {
	for _, wrong := range append(slices.Clone(r.Wrong), r.Framing...) {
		k.fail(check.Failed(CodeEvents, "%s: %s", what, wrong))
	}
}

// attempt is post for a request that may be refused.
func (k *frontendCase) attempt(what, path string, body object) *openai.Reply {
	return k.attemptWith(nil, what, path, body)
}

func (k *frontendCase) attemptWith(header map[string]string, what, path string, body object) *openai.Reply {
	a := k.askWith(header, what, http.MethodPost, path, body)
	if a == nil {
		return nil
	}
	r := openai.ReadReply(*a, body["stream"] == true)
	if a.Status == http.StatusOK && r.Failure != "" {
		k.stillServes(what, r.Failure)
	}
	return r
}

// sent returns the request for a prompt that came after a mark; nil, with the
// failure recorded, if there is not just one. Who has an answer need not wait for it:
// a message is read before it is passed on.
func (k *frontendCase) sent(what string, mark int, prompt []uint32) *heard {
	return k.single(what, "EngineCoreRequest.prompt_token_ids", mark, asks(prompt))
}

func (k *frontendCase) single(what, path string, mark int, match func(*heard) bool) *heard {
	if k.lostAt != "" {
		return nil
	}
	k.Asserted++
	found := k.ledger.since(mark, match)
	if len(found) == 1 {
		return found[0]
	}
	others := len(k.ledger.since(mark, isAdd)) - len(found)
	k.fail(check.Failed(CodeNoRequest, "%s: expected one such request at the engine, got %d (and %d others)", what, len(found), others).
		Within(-1, path).Compared(1, len(found)))
	return nil
}

// await waits for a message after a mark; nil if none comes in time.
func (k *frontendCase) await(mark int, match func(*heard) bool) *heard {
	ctx, stop := k.patience()
	defer stop()
	return first(k.ledger.await(ctx, mark, 1, match))
}

// first is the first message of a list, nil of an empty one.
func first(found []*heard) *heard {
	if len(found) == 0 {
		return nil
	}
	return found[0]
}

// sampler is a text of many tokens.
const sampler = "the quick brown fox jumps over the lazy dog, 0 1 2 3 4 5 6 7 8 9: AND SO ON"

// promptForm is how prompts reach the engine: as token ids, or, of a frontend that takes none, as a text or as a chat.
type promptForm int

const (
	promptIDs promptForm = iota
	promptText
	promptChat
)

// learn finds ids that the tokenizer knows, those of a text, and in which form the frontend takes prompts.
func (k *frontendCase) learn() {
	if k.alphabet != nil {
		return
	}
	var text, chat *heard
	ids := []uint32{10, 11, 12, 13} // without a tokenizer, low ids are of any
	ctx, stop := k.patience()
	defer stop()
	for pause := firstLook; ; pause = min(2*pause, lastLook) {
		if text = k.tokenized(completionsRoute, object{"prompt": sampler}); text != nil {
			k.sampled = slices.Clone(text.request.PromptTokenIDs)
			ids = k.sampled
		}
		takesIDs := k.tokenized(completionsRoute, object{"prompt": ids}) != nil
		if !takesIDs && text == nil {
			chat = k.tokenized(chatRoute, chatOf(sampler))
		}
		switch {
		case takesIDs:
		case text != nil:
			k.form = promptText
			k.AddNote("the frontend takes no token ids as a prompt: every prompt is a text")
		case chat != nil:
			k.form, ids = promptChat, chat.request.PromptTokenIDs
			k.AddNote("the frontend takes neither token ids nor a text as a prompt: every prompt is a chat")
		case k.lostAt == "" && retry.Pause(ctx, pause) == nil:
			continue // a gateway takes a moment to find its engine ready
		}
		break
	}
	k.alphabet = slices.Compact(slices.Sorted(slices.Values(ids)))
}

// tokenized sends a prompt and returns the request at the engine, nil if the frontend does not take such a prompt.
func (k *frontendCase) tokenized(route string, prompt object) *heard {
	mark := k.ledger.mark()
	k.attempt("a prompt", route, prompt.with(object{"model": k.model, "max_tokens": 1}))
	return first(k.ledger.since(mark, isAdd))
}

// route is that of requests for a completion.
func (k *frontendCase) route() string {
	if k.form == promptChat {
		return chatRoute
	}
	return completionsRoute
}

// prompt makes one that no request had yet. Of a frontend that takes no ids it asks for those of a new text.
func (k *frontendCase) prompt() []uint32 {
	k.learn()
	k.prompts++
	if k.form != promptIDs {
		text := fmt.Sprintf("the quick brown fox %d jumps", 10_000+k.prompts)
		if h := k.tokenized(k.route(), k.form.of(text)); h != nil {
			if k.texts == nil {
				k.texts = map[string]string{}
			}
			k.texts[promptKey(h.request.PromptTokenIDs)] = text
			return slices.Clone(h.request.PromptTokenIDs)
		}
	}
	const digits = 6
	base := len(k.alphabet)
	var p []uint32
	for rest := k.prompts; len(p) < digits; rest /= base {
		p = append(p, k.alphabet[rest%base])
	}
	return p
}

// of is the part of a body that has a text as its prompt.
func (f promptForm) of(text string) object {
	if f == promptChat {
		return chatOf(text)
	}
	return object{"prompt": text}
}

func chatOf(text string) object {
	return object{"messages": []object{{"role": "user", "content": text}}, "ignore_eos": true}
}

// words are n ids to say.
func (k *frontendCase) words(n int) []uint32 {
	k.learn()
	var ids []uint32
	for i := range n {
		ids = append(ids, k.alphabet[(7*i+k.prompts)%len(k.alphabet)])
	}
	return ids
}

// says plans an answer to a new prompt and returns the body that asks for it.
func (k *frontendCase) says(script player.Script) (prompt []uint32, body object) {
	prompt = k.prompt()
	k.speaker.plan(prompt, plan{script: script})
	return prompt, k.body(prompt, max(len(script.Tokens), 1))
}

// body asks for a completion of token ids.
func (k *frontendCase) body(prompt []uint32, tokens int) object {
	body := object{"model": k.model, "max_tokens": tokens, "temperature": 0, "return_token_ids": true}
	if k.form != promptIDs {
		return body.with(k.form.of(k.texts[promptKey(prompt)]))
	}
	return body.with(object{"prompt": prompt})
}

// plainly says tokens one by one and ends by length.
func plainly(tokens []uint32) player.Script {
	return player.Script{Tokens: tokens, Finish: protocol.FinishLength}
}

var streamed = object{"stream": true, "stream_options": object{"include_usage": true}}

// answered checks all of an answer: its tokens, its end and its usage.
func (k *frontendCase) answered(what string, r *openai.Reply, prompt, tokens []uint32, finish string) {
	k.sameTokens(what, r, tokens)
	k.ended(what, r, finish)
	k.counted(what, r, len(prompt), len(tokens))
}

// sameTokens compares the ids through HTTP with what the engine said.
func (k *frontendCase) sameTokens(what string, r *openai.Reply, want []uint32) {
	if !r.HasIDs {
		if note := "token ids are not in its answers (return_token_ids), so only texts and counts were compared"; !strings.Contains(k.Note, note) {
			k.AddNote(note)
		}
		return
	}
	k.Tokens += len(want)
	k.Asserted++
	if !slices.Equal(r.Tokens, want) {
		at := check.FirstDifference(want, r.Tokens)
		k.fail(check.Failed(CodeHTTPTokens, "%s: token %d differs: the engine sent %s, HTTP has %s (%d sent, %d received)",
			what, at, check.Around(want, at), check.Around(r.Tokens, at), len(want), len(r.Tokens)).
			At(at).Within(-1, "choices[0].token_ids").Compared(check.Around(want, at), check.Around(r.Tokens, at)))
	}
}

// ended checks that the answer ended once, and how.
func (k *frontendCase) ended(what string, r *openai.Reply, want string) {
	k.Asserted++
	switch {
	case r.Ends != 1:
		k.fail(check.Failed(CodeHTTPFinish, "%s: expected one part with a finish_reason, got %d", what, r.Ends).Within(-1, "choices[0].finish_reason").Compared(1, r.Ends))
	case r.Late:
		k.fail(check.Failed(CodeEvents, "%s: text or tokens after the finish_reason", what).Within(-1, "choices[0]"))
	case r.Finish != want:
		k.fail(check.Failed(CodeHTTPFinish, "%s: finish_reason is %q, but the engine sent %q", what, r.Finish, want).
			Within(-1, "choices[0].finish_reason").Compared(want, r.Finish))
	}
}

func (k *frontendCase) counted(what string, r *openai.Reply, prompt, completion int) {
	k.Asserted++
	if r.Usage == nil {
		k.fail(check.Failed(CodeHTTPUsage, "%s: the answer has no usage", what).Within(-1, "usage").Compared("usage", "none"))
		return
	}
	want, got := []int{prompt, completion, prompt + completion}, []int{r.Usage.PromptTokens, r.Usage.CompletionTokens, r.Usage.TotalTokens}
	if !slices.Equal(want, got) {
		k.fail(check.Failed(CodeHTTPUsage, "%s: usage counts %v prompt, completion and total tokens, expected %v", what, got, want).
			Within(-1, "usage").Compared(want, got))
	}
}

// excerpt bounds what is quoted of an answer.
func excerpt(text string) string { return safetext.Clip(strings.TrimSpace(text), 300) }
