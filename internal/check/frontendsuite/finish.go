package frontendsuite

import (
	_ "embed"
	"fmt"
	"strings"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/player"
)

const CodeHTTPFinish check.Code = "H009" // the finish reason or stop reason through HTTP is not the engine's

//go:embed finish.md
var finishCodes string

var finish = check.Check{Name: Finish, Codes: finishCodes, Levels: []check.Level{check.LevelCore}, Run: judged((*frontendCase).finishReasons)}

// finishReasons has the engine end in every way, and the frontend by a stop string.
func (k *frontendCase) finishReasons() {
	tokens := k.words(4)
	k.finish("length", plainly(tokens), nil, "length", "")
	last := tokens[len(tokens)-1]
	stopped := plainly(tokens)
	stopped.Finish = protocol.FinishStop
	k.finish("a stop token", stopped, object{"max_tokens": 20, "stop_token_ids": []uint32{last}}, "stop", fmt.Sprint(last))
	k.finish("end of sequence", k.endOfSequence(tokens), object{"max_tokens": 20}, "stop", "")
	for reason, finish := range map[string]protocol.FinishReason{"abort": protocol.FinishAbort, "repetition": protocol.FinishRepetition} {
		script := plainly(tokens)
		script.Finish = finish
		k.finish("the engine's "+reason, script, object{"max_tokens": 20}, reason, anyStop)
	}
	k.stopString()
}

// endOfSequence ends with the token that the frontend itself named as the end.
func (k *frontendCase) endOfSequence(tokens []uint32) (script player.Script) {
	script = plainly(tokens)
	script.Finish = protocol.FinishStop
	prompt, body := k.says(plainly(tokens))
	mark := k.ledger.mark()
	k.attempt("end of sequence", k.route(), body)
	if h := first(k.ledger.since(mark, asks(prompt))); h != nil && h.request.Sampling.EOSTokenID >= 0 {
		script.Tokens = append(script.Tokens[:len(tokens):len(tokens)], uint32(h.request.Sampling.EOSTokenID))
	}
	return script
}

// anyStop leaves the stop_reason open: frontends have words of their own for an end
// that neither a token nor a text brought about.
const anyStop = "*"

// finish checks one finish reason, whole and streamed. stop is the stop_reason as
// JSON, empty for none.
func (k *frontendCase) finish(name string, script player.Script, more object, want, stop string) {
	for _, form := range []object{{}, streamed} {
		what := fmt.Sprintf("finish by %s, %s", name, formName(form))
		prompt, body := k.says(script)
		r := k.post(what, body.with(more).with(form))
		if r == nil {
			continue
		}
		k.ended(what, r, want)
		k.counted(what, r, len(prompt), len(script.Tokens))
		k.Asserted++
		if stop != anyStop && r.Stop != stop && (stop != "" || r.Stop != "null") {
			k.fail(check.Failed(CodeHTTPFinish, "%s: stop_reason is %q, expected %q", what, r.Stop, stop).Within(-1, "choices[0].stop_reason").Compared(stop, r.Stop))
		}
	}
}

// stopString has the engine echo a text that holds a stop string, and then say
// nothing more: the frontend must find the string and let go of the request.
func (k *frontendCase) stopString() {
	if k.form == promptChat {
		return // what the template adds to the text is not known
	}
	const text, word = "one two three four five", "three"
	mark := k.ledger.mark()
	if k.post("a stop string: its text", object{"model": k.model, "prompt": text, "max_tokens": 1}) == nil {
		return
	}
	h := k.single("a stop string: its text", "EngineCoreRequest", mark, isAdd)
	if h == nil {
		return
	}
	for _, form := range []object{{}, streamed} {
		what := "finish by a stop string, " + formName(form)
		prompt, body := k.says(stalling(h.request.PromptTokenIDs))
		mark := k.ledger.mark()
		r := k.post(what, body.with(object{"max_tokens": 50, "stop": []string{word}}).with(form))
		request := k.sent(what, mark, prompt)
		if r == nil || request == nil {
			continue
		}
		k.ended(what, r, "stop")
		k.Asserted++
		if r.Stop != asJSON(word) {
			k.fail(check.Failed(CodeHTTPFinish, "%s: stop_reason is %s, expected %q", what, r.Stop, word).Within(-1, "choices[0].stop_reason").Compared(asJSON(word), r.Stop))
		}
		// Some tokenizers begin every word with its blank, the first one too.
		if want := "one two "; strings.TrimPrefix(r.Text, " ") != want {
			k.fail(check.Failed(CodeHTTPText, "%s: the text is %q, expected %q", what, r.Text, want).Within(-1, "choices[0].text").Compared(want, r.Text))
		}
		k.aborted(what, mark, request)
	}
}
