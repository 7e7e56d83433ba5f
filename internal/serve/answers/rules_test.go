package answers

import (
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestParseRefuses(t *testing.T) {
	for _, tt := range []struct{ name, rules, want string }{
		{"not JSON", `{"rules": [`, "unexpected EOF"},
		{"no rules", `{}`, `want {"rules": [`},
		{"another key", `{"rule": []}`, `unknown field "rule"`},
		{"two texts", `{"rules": []} {}`, "more than one JSON text"},
		{"another key of a rule", `{"rules": [{"answer": {"text": "x"}}, {"match": {"last": "x"}}]}`, `rule 2: json: unknown field "last"`},
		{"a broken expression", `{"rules": [{"match": {"last_user": "("}, "answer": {"text": "x"}}]}`, "rule 1: error parsing regexp: missing closing )"},
		{"nothing", `{"rules": [{"match": {"nth": 1}}]}`, "rule 1: the answer is empty"},
		{"an end that no engine has", `{"rules": [{"answer": {"text": "x", "finish_reason": "content_filter"}}]}`, `finish_reason "content_filter": want stop`},
		{"arguments that are a list", `{"rules": [{"answer": {"tool_calls": [{"name": "f", "arguments": [1]}]}}]}`, "want a call of a tool with a name"},
		{"a probability", `{"rules": [{"answer": {"text": "x", "logprobs": [0.5]}}]}`, "want numbers up to 0"},
		{"no tokens", `{"rules": [{"answer": {"text": "x", "chunk": 0}}]}`, "want numbers of tokens"},
		{"a time below 0", `{"rules": [{"answer": {"text": "x", "delay": "-1s"}}]}`, "the time -1s is below 0"},
		{"a number below 0", `{"rules": [{"match": {"nth": -1}, "answer": {"text": "x"}}]}`, "nth is -1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse([]byte(tt.rules))
			require.ErrorContains(t, err, tt.want)
		})
	}
}

func TestSetRefuses(t *testing.T) {
	for _, tt := range []struct {
		name, rules, want string
		opt               Options
	}{
		{"a refusal without the builtin frontend", `{"rules": [{"answer": {"refusal": "no"}}]}`, "add --frontend builtin", Options{}},
		{"reasoning without a parser", `{"rules": [{"answer": {"reasoning": "x"}}]}`, "give one behind --", Options{}},
		{"a parser that is not known", `{"rules": [{"answer": {"tool_calls": [{"name": "f"}]}}]}`, "the parser mine reads calls is not known", Options{ToolParser: "mine"}},
		{"no tokenizer", `{"rules": [{"answer": {"text": "x"}}]}`, "cannot read the tokenizer", Options{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, err := New(tt.opt)
			require.NoError(t, err)
			rules, err := Parse([]byte(tt.rules))
			require.NoError(t, err)
			require.ErrorContains(t, s.Set(rules), "rule 1: ", tt.want)
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"rules": [{"match": {"last_user": "x", "header": {"A": "b"}}, "answer": {"text": "x", "chunk": [1, 2], "delay": "1ms", "tool_calls": [{"name": "f"}]}}]}`))
	f.Fuzz(func(_ *testing.T, text []byte) {
		if rules, err := Parse(text); err == nil && len(rules) > 0 {
			q := question{last: string(text)}
			rules[0].Match.fits(&q)
		}
		lastUser(string(text))
	})
}
