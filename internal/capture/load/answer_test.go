package load

import (
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestAnswersAreReadTwoWays(t *testing.T) {
	tests := []struct {
		name, stream, whole, want string
		choices, hangUp, tokens   int
	}{
		{name: "completion", stream: opening + opening + ending + usage + done, choices: 1, want: " a a", tokens: 2},
		{name: "CR LF and comments", stream: ": hello\r\nevent: x\r\n" + strings.ReplaceAll(opening+ending+usage+done, "\n", "\r\n"), choices: 1, want: " a", tokens: 2},
		{
			name: "chat", choices: 1, want: "hi", tokens: 2,
			stream: "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n" +
				"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hi\"},\"finish_reason\":\"stop\"}],\"error\":null}\n\n" + usage + done,
		},
		{name: "hung up", stream: opening + opening + opening, choices: 1, hangUp: 2, want: " a a", tokens: 2},
		{name: "end before the client hangs up", stream: opening + ending + usage + done, choices: 1, hangUp: 7, want: " a", tokens: 2},
		{
			name: "choices", choices: 2, want: "ab", tokens: 5,
			whole: `{"choices":[{"index":1,"text":"a","finish_reason":"stop"},{"index":0,"text":"b","finish_reason":"length"}],"usage":{"completion_tokens":5}}`,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := &answer{wanted: test.choices}
			err := got.readWhole(strings.NewReader(test.whole))
			if test.stream != "" {
				got = &answer{wanted: test.choices}
				err = got.readStream(strings.NewReader(test.stream), test.hangUp)
			}
			if err != nil || got.text.String() != test.want || got.tokens != test.tokens {
				t.Errorf("got %q, %d tokens, %v; want %q, %d", got.text.String(), got.tokens, err, test.want, test.tokens)
			}
		})
	}
}

// endless is a line without an end.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

func TestEndlessAnswersEnd(t *testing.T) {
	const want = "longer than 67108864 bytes"
	got := &answer{wanted: 1}
	require.ErrorContains(t, got.readStream(endless{}, 0), want)
	if err := got.readWhole(endless{}); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("whole: got %v", err)
	}
}

func FuzzReadStream(f *testing.F) {
	for _, seed := range []string{
		opening + ending + usage + done, opening, done, "data:\n", ":\n\n", "data: {\"error\":{\"code\":400}}\n\n", "data: 1", "data: null\n",
	} {
		f.Add([]byte(seed), 1, 0)
		f.Add([]byte(seed), 2, 1)
	}
	f.Fuzz(func(t *testing.T, body []byte, choices, hangUp int) {
		got := &answer{wanted: min(max(choices, 1), 4)}
		err := got.readStream(strings.NewReader(string(body)), hangUp)
		require.True(t, err != nil || got.events >= hangUp || hangUp <= 0 || strings.Contains(string(body), "[DONE]"), "an answer without [DONE] was taken for whole")
		require.True(t, err != nil || hangUp > 0 || len(got.ended) == got.wanted, "%d of %d choices ended and all is well", len(got.ended), got.wanted)
		require.True(t, got.events <= len(body), "%d events out of %d bytes", got.events, len(body))
	})
}
