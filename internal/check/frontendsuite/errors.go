package frontendsuite

import (
	_ "embed"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/vllm-vcr/conformance/internal/check"
)

// Codes of what the check reports.
const (
	CodeHangs    check.Code = "H015" // no answer comes
	CodeAccepted check.Code = "H016" // a bad request is not refused
	CodeEnded    check.Code = "H018" // the frontend ended, or accepts no connection any more
)

//go:embed errors.md
var badRequestsCodes string

var badRequests = check.Check{Name: Errors, Codes: badRequestsCodes, Levels: []check.Level{check.LevelCore}, Run: judged((*frontendCase).errors)}

var errRefusedByPlan = errors.New("the engine cannot do that")

// errors has the engine refuse a request, and sends requests that must not reach it.
func (k *frontendCase) errors() {
	for _, form := range []object{{}, streamed} {
		what := "a request that the engine refuses, " + formName(form)
		prompt := k.prompt()
		k.speaker.plan(prompt, plan{refuse: errRefusedByPlan})
		r := k.attempt(what, k.route(), k.body(prompt, 5).with(form))
		k.Asserted++
		if r != nil && !r.Refused() {
			k.fail(check.Failed(CodeAccepted, "%s: status %d, finish_reason %q, %d tokens", what, r.Status, r.Finish, len(r.Tokens)).
				Within(-1, "choices[0].finish_reason").Compared("an error", r.Finish))
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
	a := k.ask("a bad request ("+name+")", http.MethodPost, k.route(), body)
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
