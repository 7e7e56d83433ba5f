package frontendsuite

import (
	_ "embed"
	"fmt"
	"slices"

	"github.com/vllm-vcr/conformance/internal/check"
)

// Codes of what the check reports.
const (
	CodeEvents   check.Code = "H010" // a stream is not framed as server-sent events, or does not end once
	CodeStreamed check.Code = "H011" // an answer differs between streamed and whole
)

//go:embed streaming.md
var streamingCodes string

var streaming = check.Check{Name: Streaming, Codes: streamingCodes, Levels: []check.Level{check.LevelCore}, Run: judged((*frontendCase).streaming)}

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
		if parts.Text != whole.Text {
			k.fail(check.Failed(CodeStreamed, "stream %d: the text is %q whole and %q streamed", i, excerpt(whole.Text), excerpt(parts.Text)).
				Within(-1, "choices[0].text").Compared(excerpt(whole.Text), excerpt(parts.Text)))
		}
		if !slices.Equal(parts.Tokens, whole.Tokens) {
			k.fail(check.Failed(CodeStreamed, "stream %d: %d token ids streamed, %d whole", i, len(parts.Tokens), len(whole.Tokens)).
				Within(-1, "choices[0].token_ids").Compared(len(whole.Tokens), len(parts.Tokens)))
		}
		if parts.Stop != whole.Stop && parts.Stop+whole.Stop != "null" {
			k.fail(check.Failed(CodeStreamed, "stream %d: stop_reason is %s whole and %s streamed", i, whole.Stop, parts.Stop).
				Within(-1, "choices[0].stop_reason").Compared(whole.Stop, parts.Stop))
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
