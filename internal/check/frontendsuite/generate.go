package frontendsuite

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/player"
	"github.com/vllm-vcr/conformance/trace"
)

// spoken is how many recorded streams each case asks for.
const spoken = 8

// recorded are streams of the golden, to be said in their chunks and without their
// pauses.
func (k *frontendCase) recorded() []player.Script {
	if k.trace == nil {
		return []player.Script{plainly(k.words(12))}
	}
	var scripts []player.Script
	for _, i := range trace.ReplaySubset(k.trace.Records) {
		r := &k.trace.Records[i]
		ended := r.FinishReason == trace.FinishLength || r.FinishReason == trace.FinishStop
		if len(r.OutputTokenIDs) == 0 || !ended || len(scripts) == spoken {
			continue
		}
		scripts = append(scripts, player.Script{
			Tokens: r.OutputTokenIDs, Chunks: r.Chunks(), Finish: protocol.FinishReason(r.FinishReason.Wire() + 1),
		})
	}
	return scripts
}

// completions asks for recorded streams, whole and streamed, and for an echo of a
// text, which must be that text.
func (k *frontendCase) completions() {
	for i, script := range k.recorded() {
		prompt, body := k.says(script)
		for _, form := range []object{{}, streamed} {
			what := fmt.Sprintf("stream %d, %s", i, formName(form))
			r := k.post(what, body.with(form))
			if r == nil {
				continue
			}
			k.answered(what, r, prompt, script.Tokens, script.Finish.String())
		}
	}
	k.echo()
}

func formName(form object) string {
	if form["stream"] == true {
		return "streamed"
	}
	return "whole"
}

// echo sends a text, whose ids the engine says back: what comes out is the text, as
// far as the tokenizer keeps it.
func (k *frontendCase) echo() {
	r := k.post("the echo of a text", object{"model": k.model, "prompt": sampler, "max_tokens": 200, "temperature": 0})
	if r == nil {
		return
	}
	k.Asserted++
	if strings.TrimSpace(r.text) != sampler {
		k.fail(check.Failed(CodeHTTPText, "the engine sent the tokens of the prompt: the text is %q, expected %q", excerpt(r.text), sampler).
			Within(-1, "choices[0].text").Compared(sampler, excerpt(r.text)))
	}
}

// chat asks for a chat completion, whole and streamed. The prompt is what the
// frontend makes of the messages, and the answer its echo.
func (k *frontendCase) chat() {
	body := object{
		"model": k.model, "messages": []object{{"role": "user", "content": sampler}}, "max_tokens": 500, "temperature": 0, "return_token_ids": true,
	}
	var texts []string
	for _, form := range []object{{}, streamed} {
		what := "chat, " + formName(form)
		mark := k.ledger.mark()
		r := k.attempt(what, chatRoute, body.with(form))
		if r == nil {
			return
		}
		if r.status == 400 || r.status == 404 {
			k.Asserted = 0
			k.AddNote(fmt.Sprintf("no chat: status %d: %s", r.status, r.failure))
			return
		}
		if r.failure != "" {
			k.fail(check.Failed(CodeHTTP, "%s: status %d: %s", what, r.status, r.failure).Compared(200, r.status))
			continue
		}
		h := k.single(what, "EngineCoreRequest", mark, isAdd)
		if h == nil {
			continue
		}
		k.chatted(what, r, h.request.PromptTokenIDs)
		texts = append(texts, r.text)
	}
	if len(texts) == 2 && texts[0] != texts[1] {
		k.fail(check.Failed(CodeStreamed, "chat: the text is %q whole and %q streamed", excerpt(texts[0]), excerpt(texts[1])).
			Within(-1, "choices[0].message.content").Compared(excerpt(texts[0]), excerpt(texts[1])))
	}
}

// chatted checks one answer that echoes its prompt.
func (k *frontendCase) chatted(what string, r *reply, prompt []uint32) {
	k.framed(what, r)
	k.answered(what, r, prompt, prompt, "length")
	k.Asserted++
	if r.role != "assistant" {
		k.fail(check.Failed(CodeHTTP, "%s: the role is %q, expected \"assistant\"", what, r.role).Within(-1, "choices[0].message.role").Compared("assistant", r.role))
	}
	if !strings.Contains(r.text, sampler) {
		k.fail(check.Failed(CodeHTTPText, "%s: the engine sent the tokens of the prompt, but their text %q is not in %q", what, sampler, excerpt(r.text)).
			Within(-1, "choices[0].message.content").Compared(sampler, excerpt(r.text)))
	}
}

// streaming compares what is streamed, event by event, with the whole answer.
func (k *frontendCase) streaming() {
	for i, script := range k.recorded() {
		_, body := k.says(script)
		whole := k.post(fmt.Sprintf("stream %d, whole", i), body)
		what := fmt.Sprintf("stream %d, streamed", i)
		parts := k.post(what, body.with(streamed))
		if whole == nil || parts == nil {
			continue
		}
		k.Asserted++
		k.ended(what, parts, script.Finish.String())
		if parts.text != whole.text {
			k.fail(check.Failed(CodeStreamed, "stream %d: the text is %q whole and %q streamed", i, excerpt(whole.text), excerpt(parts.text)).
				Within(-1, "choices[0].text").Compared(excerpt(whole.text), excerpt(parts.text)))
		}
		if !slices.Equal(parts.tokens, whole.tokens) {
			k.fail(check.Failed(CodeStreamed, "stream %d: %d token ids streamed, %d whole", i, len(parts.tokens), len(whole.tokens)).
				Within(-1, "choices[0].token_ids").Compared(len(whole.tokens), len(parts.tokens)))
		}
		if parts.stop != whole.stop && parts.stop+whole.stop != "null" {
			k.fail(check.Failed(CodeStreamed, "stream %d: stop_reason is %s whole and %s streamed", i, whole.stop, parts.stop).
				Within(-1, "choices[0].stop_reason").Compared(whole.stop, parts.stop))
		}
	}
	k.arrivesAtOnce()
}

// arrivesAtOnce checks that a token reaches the client while the engine is still at
// work.
func (k *frontendCase) arrivesAtOnce() {
	if k.lostAt != "" {
		return
	}
	_, body := k.says(stalling(k.words(3)))
	ctx, stop := k.patience()
	defer stop()
	k.Asserted++
	if _, err := k.firstWords(ctx, body.with(object{"max_tokens": 10, "stream": true}), 3); err != nil {
		k.fail(check.Failed(CodeHangs, "streaming: the engine sent 3 tokens and then paused, and they did not arrive within %v: %s", k.limit, excerpt(err.Error())).
			Within(-1, "choices[0]"))
	}
}

// usage checks the counts, and that they come when they were asked for.
func (k *frontendCase) usage() {
	script := plainly(k.words(9))
	script.CachedTokens = 4
	prompt, body := k.says(script)
	told := false
	for _, form := range []object{{}, streamed, {"stream": true, "stream_options": object{"include_usage": false}}, {"stream": true}} {
		what := fmt.Sprintf("usage, %v", form)
		r := k.post(what, body.with(form))
		if r == nil {
			continue
		}
		if _, asked := form["stream_options"]; form["stream"] == true && (!asked || form["stream_options"].(object)["include_usage"] == false) {
			k.Asserted++
			if r.usage != nil {
				k.fail(check.Failed(CodeHTTPUsage, "%s: the answer has a usage that was not requested", what).Within(-1, "usage").Compared("none", "usage"))
			}
			continue
		}
		k.counted(what, r, len(prompt), len(script.Tokens))
		if r.usage != nil && r.usage.PromptTokensDetails != nil && r.usage.PromptTokensDetails.CachedTokens != nil {
			told = true
			k.Asserted++
			if got := *r.usage.PromptTokensDetails.CachedTokens; got != script.CachedTokens {
				k.fail(check.Failed(CodeHTTPUsage, "%s: %d cached tokens, but the engine sent %d", what, got, script.CachedTokens).
					Within(-1, "usage.prompt_tokens_details.cached_tokens").Compared(script.CachedTokens, got))
			}
		}
	}
	if !told {
		k.AddNote("cached tokens are not in its usage (prompt_tokens_details)")
	}
}

// interleaved is how many requests run at a time.
const interleaved = 16

// concurrency has requests in the engine at the same time: the first output of the
// first one waits for the last one. Each must get its own.
func (k *frontendCase) concurrency() {
	k.learn()
	mark := k.ledger.mark()
	together := 0
	everybody := sync.OnceFunc(func() {
		ctx, stop := context.WithTimeout(k.ctx, k.limit/2)
		defer stop()
		together = len(k.ledger.await(ctx, mark, interleaved, isAdd))
	})
	type talk struct {
		prompt, tokens []uint32
		answer         chan *reply
	}
	var talks []talk
	for i := range interleaved {
		t := talk{prompt: k.prompt(), tokens: k.words(8 + i), answer: make(chan *reply, 1)}
		p := plan{script: plainly(t.tokens), ready: everybody}
		p.script.Gaps = slices.Repeat([]time.Duration{time.Millisecond}, len(t.tokens))
		k.speaker.plan(t.prompt, p)
		talks = append(talks, t)
	}
	if k.lostAt != "" {
		return
	}
	for i, t := range talks {
		form := object{}
		if i%2 == 1 {
			form = streamed
		}
		body := k.body(t.prompt, len(t.tokens)).with(form)
		go func() { t.answer <- k.quietly(body) }()
	}
	for i, t := range talks {
		what := fmt.Sprintf("request %d of %d at a time", i, interleaved)
		r := <-t.answer
		if r.status != 200 || r.failure != "" {
			k.Asserted++
			if !k.stillServes(what, r.failure) {
				continue
			}
			k.fail(check.Failed(CodeHTTP, "%s: status %d: %s", what, r.status, r.failure).Of(i).Compared(200, r.status))
			continue
		}
		k.answered(what, r, t.prompt, t.tokens, "length")
	}
	if together < interleaved {
		k.AddNote(fmt.Sprintf("the frontend had %d of %d requests in the engine at a time", together, interleaved))
	}
}

// quietly is attempt for a goroutine of its own.
func (k *frontendCase) quietly(body object) *reply {
	ctx, stop := k.patience()
	defer stop()
	a, err := k.client.Send(ctx, http.MethodPost, completionsRoute, body)
	r := readReply(a, body["stream"] == true)
	if err != nil {
		r.err, r.failure = err, excerpt(err.Error())
	}
	return r
}
