package frontendsuite

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/frontends/openai"
)

var concurrency = check.Check{Name: Concurrency, Levels: []check.Level{check.LevelCore}, Run: judged((*frontendCase).concurrency)}

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
		answer         chan *openai.Reply
	}
	var talks []talk
	for i := range interleaved {
		t := talk{prompt: k.prompt(), tokens: k.words(8 + i), answer: make(chan *openai.Reply, 1)}
		p := plan{script: plainly(t.tokens), ready: everybody}
		p.script.Gaps = slices.Repeat([]time.Duration{time.Millisecond}, len(t.tokens))
		k.speaker.plan(t.prompt, p)
		talks = append(talks, t)
	}
	if k.lostAt != "" {
		return
	}
	mark = k.ledger.mark()
	for i, t := range talks {
		form := object{}
		if i%2 == 1 {
			form = streamed
		}
		body := k.body(t.prompt, len(t.tokens)).with(form)
		go func() { t.answer <- k.patiently(body) }()
	}
	for i, t := range talks {
		what := fmt.Sprintf("request %d of %d at a time", i, interleaved)
		r := <-t.answer
		if r.Status != 200 || r.Failure != "" {
			k.Asserted++
			if !k.stillServes(what, r.Failure) {
				continue
			}
			k.fail(check.Failed(CodeHTTP, "%s: status %d: %s", what, r.Status, r.Failure).Of(i).Compared(200, r.Status))
			continue
		}
		k.answered(what, r, t.prompt, t.tokens, "length")
	}
	if together < interleaved {
		k.AddNote(fmt.Sprintf("the frontend had %d of %d requests in the engine at a time", together, interleaved))
	}
}

// patiently is quietly within the limit of the case.
func (k *frontendCase) patiently(body object) *openai.Reply {
	ctx, stop := k.patience()
	defer stop()
	return k.quietly(ctx, body)
}

// quietly is attempt for a goroutine of its own.
func (k *frontendCase) quietly(ctx context.Context, body object) *openai.Reply {
	a, err := k.client.Send(ctx, http.MethodPost, k.route(), body)
	r := openai.ReadReply(a, body["stream"] == true)
	if err != nil {
		r.Err, r.Failure = err, excerpt(err.Error())
	}
	return r
}
