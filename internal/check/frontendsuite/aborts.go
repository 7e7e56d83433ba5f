package frontendsuite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/frontends/openai"
)

// aborts has clients hang up: in the middle of a stream, and while they wait for a
// whole answer. The engine must be told, or it goes on for nobody.
func (k *frontendCase) aborts() {
	k.hangUpStreaming()
	k.hangUpWaiting()
}

func (k *frontendCase) hangUpStreaming() {
	if k.lostAt != "" {
		return
	}
	const what = "a client that hangs up in the middle of a stream"
	mark := k.ledger.mark()
	prompt, body := k.says(stalling(k.words(3)))
	ctx, stop := k.patience()
	defer stop()
	k.Asserted++
	got, err := k.firstWords(ctx, body.with(object{"max_tokens": 10, "stream": true}), 1)
	if err != nil {
		k.fail(check.Failed(CodeHTTP, "%s: %s", what, excerpt(err.Error())).Compared("a token", fmt.Sprintf("%d tokens", got)))
		return
	}
	if h := k.sent(what, mark, prompt); h != nil {
		k.aborted(what, mark, h)
	}
}

func (k *frontendCase) hangUpWaiting() {
	if k.lostAt != "" {
		return
	}
	const what = "a client that hangs up while it waits"
	mark := k.ledger.mark()
	prompt, body := k.says(stalling(k.words(3)))
	ctx, hangUp := context.WithCancel(k.ctx)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = k.client.Send(ctx, http.MethodPost, completionsRoute, body.with(object{"max_tokens": 10}))
	}()
	k.await(mark, asks(prompt))
	// Another request's answer shows that the frontend is done with sending this one.
	_, other := k.says(plainly(k.words(1)))
	k.post("a request beside it", other)
	hangUp()
	<-gone
	if h := k.sent(what, mark, prompt); h != nil {
		k.aborted(what, mark, h)
	}
}

// aborted checks that a request is aborted, by its own id.
func (k *frontendCase) aborted(what string, mark int, request *heard) {
	k.Asserted++
	id := request.request.ID
	if k.await(mark, func(h *heard) bool { return slices.Contains(h.aborted, id) }) == nil {
		others := len(k.ledger.since(mark, func(h *heard) bool { return h.aborted != nil }))
		k.fail(check.Failed(CodeNoAbort, "%s: the engine got no ABORT of %q within %v (%d of other requests)", what, id, k.limit, others).
			Within(request.number, "EngineCoreRequest.request_id").Compared(id, "no abort"))
	}
}

// firstWords opens a stream, reads until as many tokens have come, and hangs up. An
// event with text counts as a token where there are no ids.
func (k *frontendCase) firstWords(ctx context.Context, body object, want int) (got int, err error) {
	stream, err := k.client.Open(ctx, completionsRoute, body)
	if err != nil {
		return 0, err
	}
	defer stream.Close()
	for got < want {
		data, err := stream.Next()
		if err != nil {
			return got, errors.Join(context.Cause(ctx), err)
		}
		var p openai.Response
		if json.Unmarshal(data, &p) != nil {
			return got, fmt.Errorf("an event that is no JSON: %q", excerpt(string(data)))
		}
		if p.Failed() {
			return got, fmt.Errorf("an error: %s", excerpt(string(p.Error)))
		}
		for _, c := range p.Choices {
			if got += len(c.TokenIDs); c.TokenIDs == nil && c.Text != "" {
				got++
			}
		}
	}
	return got, nil
}

var errRefusedByPlan = errors.New("the engine cannot do that")

// errors has the engine refuse a request, and sends requests that must not reach it.
func (k *frontendCase) errors() {
	for _, form := range []object{{}, streamed} {
		what := "a request that the engine refuses, " + formName(form)
		prompt := k.prompt()
		k.speaker.plan(prompt, plan{refuse: errRefusedByPlan})
		r := k.attempt(what, completionsRoute, k.body(prompt, 5).with(form))
		k.Asserted++
		if r != nil && !r.refused() {
			k.fail(check.Failed(CodeAccepted, "%s: status %d, finish_reason %q, %d tokens", what, r.status, r.finish, len(r.tokens)).
				Within(-1, "choices[0].finish_reason").Compared("an error", r.finish))
		}
	}
	sound := k.body(k.prompt(), 5)
	for _, bad := range []struct {
		name string
		body any
	}{
		{"no JSON", json.RawMessage(`{"model": `)},
		{"another model", sound.with(object{"model": "no-such-model"})},
		{"no prompt", object{"model": k.model, "max_tokens": 5}},
		{"max_tokens in words", sound.with(object{"max_tokens": "five"})},
	} {
		k.refuses(bad.name, bad.body)
	}
	_, body := k.says(plainly(k.words(3)))
	k.post("a request after all these", body)
}

// refuses checks that a bad request gets a status of 4xx and no engine.
func (k *frontendCase) refuses(name string, body any) {
	mark := k.ledger.mark()
	a := k.ask("a bad request ("+name+")", http.MethodPost, completionsRoute, body)
	if a == nil {
		return
	}
	if a.Status < 400 || a.Status >= 500 {
		k.fail(check.Failed(CodeAccepted, "a bad request (%s): expected status 4xx, got %d: %s", name, a.Status, excerpt(string(a.Body))).Compared("4xx", a.Status))
	}
	if n := len(k.ledger.since(mark, isAdd)); n > 0 {
		k.fail(check.Failed(CodeAccepted, "a bad request (%s) reached the engine", name).Compared(0, n))
	}
}
