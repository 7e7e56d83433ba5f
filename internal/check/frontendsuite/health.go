package frontendsuite

import (
	"context"
	_ "embed"
	"errors"
	"net/http"

	"github.com/vllm-vcr/conformance/internal/base/retry"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/frontends/openai"
)

const CodeHealth check.Code = "H017" // what the frontend says of its health or its models is not so

//go:embed health.md
var healthCodes string

var health = check.Check{Name: Health, Codes: healthCodes, Levels: []check.Level{check.LevelCore}, Run: judged((*frontendCase).health)}

// health checks what the frontend says of itself, then takes the engine away: the
// player says that it is dead, and nobody may wait for it any longer.
func (k *frontendCase) health() {
	if a := k.ask("health", http.MethodGet, "/health", nil); a != nil && a.Status != http.StatusOK {
		k.fail(check.Failed(CodeHealth, "GET /health: status %d, although the engine serves", a.Status).Compared(http.StatusOK, a.Status))
	}
	k.Asserted++
	if k.model == "" {
		k.fail(check.Failed(CodeHealth, "GET /v1/models names no model").Within(-1, "data[0].id").Compared("a name", "none"))
	}
	_, body := k.says(stalling(k.words(2)))
	ctx, stop := k.patience()
	defer stop()
	open := make(chan *openai.Reply, 1)
	mark := k.ledger.mark()
	go func() { open <- k.patiently(body.with(object{"max_tokens": 10})) }()
	k.ledger.await(ctx, mark, 1, isAdd)
	k.takeEngine()
	k.Asserted += 2
	r := <-open
	if errors.Is(r.Err, errNoAnswer) {
		k.fail(check.Failed(CodeHangs, "the engine sent ENGINE_CORE_DEAD, and an open request got no answer within %v", k.limit).Compared("an error", "nothing"))
	} else if !r.Refused() && r.Finish != "abort" {
		k.fail(check.Failed(CodeHealth, "the engine sent ENGINE_CORE_DEAD, and an open request ended with %q", r.Finish).
			Within(-1, "choices[0].finish_reason").Compared("an error or abort", r.Finish))
	}
	k.unhealthy()
}

// unhealthy waits until the frontend says that it does not serve, or is gone.
func (k *frontendCase) unhealthy() {
	ctx, stop := k.patience()
	defer stop()
	for k.client.Health(ctx) == nil {
		if ctx.Err() != nil || retry.Pause(ctx, lastLook/4) != nil {
			break
		}
	}
	if errors.Is(context.Cause(ctx), errNoAnswer) { // ctx also ends when the frontend does, which is right
		k.fail(check.Failed(CodeHealth, "the engine sent ENGINE_CORE_DEAD, and GET /health still had status 200 after %v", k.limit).Compared("not 200", 200))
	}
}
