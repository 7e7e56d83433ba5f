package frontendsuite

import (
	"net/http"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/frontends/openai"
)

// What a frontend answers is read to its end whatever it is, and what is quoted of it
// is bounded.
func FuzzReadReply(f *testing.F) {
	const event = `data: {"choices":[{"index":0,"text":"a","token_ids":[5],"finish_reason":"length"}],"usage":{"prompt_tokens":1}}` + "\n\n"
	for _, seed := range []string{
		event + "data: [DONE]\n\n", event, strings.ReplaceAll(event, "\n", "\r\n"), "data:\n\n", ": comment\n\n", "data: [DONE]\n\n" + event,
		`{"choices":[{"message":{"role":"assistant","content":null}}]}`, `{"error":{"message":"no"}}`, `{"choices":[{"index":7}]}`, "\n\n\n", "",
	} {
		f.Add([]byte(seed), true)
		f.Add([]byte(seed), false)
	}
	f.Fuzz(func(t *testing.T, body []byte, streamed bool) {
		r := readReply(openai.Answer{Status: http.StatusOK, Type: "text/event-stream", Body: body}, streamed)
		if streamed && len(r.wrong) == 0 && !strings.Contains(string(body), "data: [DONE]") {
			t.Error("a stream without [DONE] was taken for whole")
		}
		if len(r.tokens) > len(body) || len(r.text) > 3*len(body) {
			t.Errorf("%d tokens and %d bytes of text out of %d bytes", len(r.tokens), len(r.text), len(body))
		}
		for _, text := range append(r.wrong, r.failure) {
			if len(text) > 2000 {
				t.Errorf("quoted %d bytes", len(text))
			}
		}
	})
}
