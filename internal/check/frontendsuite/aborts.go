package frontendsuite

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/frontends/openai"
)

const CodeNoAbort check.Code = "H013" // a request that nobody waits for any more is not aborted

//go:embed aborts.md
var abortsCodes string

var aborts = check.Check{Name: Aborts, Codes: abortsCodes, Levels: []check.Level{check.LevelCore}, Run: judged((*frontendCase).aborts)}

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
	prompt, body := k.says(stalling(k.words(3)))
	mark := k.ledger.mark()
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
	prompt, body := k.says(stalling(k.words(3)))
	mark := k.ledger.mark()
	ctx, hangUp := context.WithCancel(k.ctx)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = k.client.Send(ctx, http.MethodPost, k.route(), body.with(object{"max_tokens": 10}))
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
	stream, err := k.client.Open(ctx, k.route(), body)
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
			if got += len(c.TokenIDs); c.TokenIDs == nil && c.Content() != "" {
				got++
			}
		}
	}
	return got, nil
}
