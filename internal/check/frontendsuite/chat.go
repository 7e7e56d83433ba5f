package frontendsuite

import (
	"fmt"
	"strings"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/frontends/openai"
)

var chat = check.Check{Name: Chat, Levels: []check.Level{check.LevelCore}, Run: judged((*frontendCase).chat)}

// chat asks for a chat completion, whole and streamed. The prompt is what the
// frontend makes of the messages, and the answer its echo.
func (k *frontendCase) chat() {
	body := object{
		"model": k.model, "messages": []object{{"role": "user", "content": sampler}}, "max_tokens": 500, "temperature": 0, "ignore_eos": true, "return_token_ids": true,
	}
	var texts []string
	for _, form := range []object{{}, streamed} {
		what := "chat, " + formName(form)
		mark := k.ledger.mark()
		r := k.attempt(what, chatRoute, body.with(form))
		if r == nil {
			return
		}
		if r.Status == 400 || r.Status == 404 {
			k.Asserted = 0
			k.AddNote(fmt.Sprintf("no chat: status %d: %s", r.Status, r.Failure))
			return
		}
		if r.Failure != "" {
			k.fail(check.Failed(CodeHTTP, "%s: status %d: %s", what, r.Status, r.Failure).Compared(200, r.Status))
			continue
		}
		h := k.single(what, "EngineCoreRequest", mark, isAdd)
		if h == nil {
			continue
		}
		k.chatted(what, r, h.request.PromptTokenIDs)
		texts = append(texts, r.Text)
	}
	if len(texts) == 2 && texts[0] != texts[1] {
		k.fail(check.Failed(CodeStreamed, "chat: the text is %q whole and %q streamed", excerpt(texts[0]), excerpt(texts[1])).
			Within(-1, "choices[0].message.content").Compared(excerpt(texts[0]), excerpt(texts[1])))
	}
}

// chatted checks one answer that echoes its prompt.
func (k *frontendCase) chatted(what string, r *openai.Reply, prompt []uint32) {
	k.framed(what, r)
	k.answered(what, r, prompt, prompt, "length")
	k.Asserted++
	if r.Role != "assistant" {
		k.fail(check.Failed(CodeHTTP, "%s: the role is %q, expected \"assistant\"", what, r.Role).Within(-1, "choices[0].message.role").Compared("assistant", r.Role))
	}
	if !strings.Contains(r.Text, sampler) {
		k.fail(check.Failed(CodeHTTPText, "%s: the engine sent the tokens of the prompt, but their text %q is not in %q", what, sampler, excerpt(r.Text)).
			Within(-1, "choices[0].message.content").Compared(sampler, excerpt(r.Text)))
	}
}
