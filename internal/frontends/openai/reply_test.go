package openai

import (
	"net/http"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// What a frontend answers is read to its end whatever it is, and what is quoted of it
// is bounded.
func FuzzReadReply(f *testing.F) {
	const event = `data: {"choices":[{"index":0,"text":"a","token_ids":[5],"finish_reason":"length"}],"usage":{"prompt_tokens":1}}` + "\n\n"
	for _, seed := range []string{
		stream027, stream033, failure033, answer027,
		event + "data: [DONE]\n\n", event, strings.ReplaceAll(event, "\n", "\r\n"), "data:\n\n", ": comment\n\n", "data: [DONE]\n\n" + event,
		`{"choices":[{"message":{"role":"assistant","content":null}}]}`, `{"error":{"message":"no"}}`, `{"choices":[{"index":7}]}`, "\n\n\n", "",
	} {
		f.Add([]byte(seed), true)
		f.Add([]byte(seed), false)
	}
	f.Fuzz(func(t *testing.T, body []byte, streamed bool) {
		r := ReadReply(Answer{Status: http.StatusOK, Type: "text/event-stream", Body: body}, streamed)
		require.True(t, !streamed || len(r.Wrong) != 0 || strings.Contains(string(body), "[DONE]"), "a stream without [DONE] was taken for whole")
		sum := 0
		for _, n := range r.Chunks {
			sum += n
		}
		require.True(t, sum == len(r.Tokens), "chunks of %d tokens, %d tokens", sum, len(r.Tokens))
		require.True(t, len(r.Tokens) <= len(body) && len(r.Text) <= 3*len(body), "%d tokens and %d bytes of text out of %d bytes", len(r.Tokens), len(r.Text), len(body))
		for _, text := range append(r.Wrong, r.Failure) {
			require.True(t, len(text) <= 2000, "quoted %d bytes", len(text))
		}
	})
}
