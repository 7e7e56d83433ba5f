package frontendsuite

import (
	_ "embed"
	"fmt"
	"strings"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/player"
	"github.com/vllm-vcr/conformance/trace"
)

// Codes of what the check reports.
const (
	CodeHTTP       check.Code = "H006" // an HTTP request that should succeed does not
	CodeHTTPTokens check.Code = "H007" // the token ids through HTTP are not those that the engine said
	CodeHTTPText   check.Code = "H008" // the text through HTTP is not that of the tokens
)

//go:embed completions.md
var completionsCodes string

var completions = check.Check{Name: Completions, Codes: completionsCodes, Levels: []check.Level{check.LevelCore}, Run: judged((*frontendCase).completions)}

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
	if k.learn(); k.form == promptChat {
		return // see the check chat
	}
	r := k.post("the echo of a text", object{"model": k.model, "prompt": sampler, "max_tokens": 200, "temperature": 0})
	if r == nil {
		return
	}
	k.Asserted++
	if strings.TrimSpace(r.Text) != sampler {
		k.fail(check.Failed(CodeHTTPText, "the engine sent the tokens of the prompt: the text is %q, expected %q", excerpt(r.Text), sampler).
			Within(-1, "choices[0].text").Compared(sampler, excerpt(r.Text)))
	}
}
