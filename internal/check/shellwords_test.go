package check

import (
	"slices"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/player"
)

func TestCheckCommand(t *testing.T) {
	tests := []struct {
		name, template string
		suite          Suite
		want           string
	}{
		{"good", "./engine --dial {handshake} --trace {trace}", SuiteReplay, ""},
		{"by port", "./engine {handshake_host} {handshake_port}", SuiteLive, ""},
		{"other braces", `./engine {handshake} '{"a": 1}' {} {a-b}`, SuiteReplay, ""},
		{"empty", "  ", SuiteReplay, "it is empty"},
		{"a quote", "./engine '{handshake}", SuiteReplay, "engine command: Unterminated single-quoted string"},
		{"unknown", "./engine {handshake} {adress}", SuiteReplay, "unknown placeholder {adress}: want one of {handshake}, {handshake_host}"},
		{"nowhere to dial", "./engine {trace}", SuiteReplay, "neither {handshake} nor {handshake_port}"},
		{"nothing to play", "./engine {handshake} {trace}", SuiteLive, "{trace} is of the replay suite"},
		{"nothing to find", "./engine {handshake} {match}", SuiteLive, "{match} is of the replay suite"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := CommandEngine{Template: test.template}.Check(test.suite)
			require.ErrorText(t, err, test.want)
		})
	}
}

func TestCommandMatches(t *testing.T) {
	if got := (CommandEngine{Template: "x {handshake} {trace}"}).Matches(); !slices.Equal(got, []player.Match{player.MatchIndex}) {
		t.Errorf("an engine that is not told how to match: %v", got)
	}
	if got := (CommandEngine{Template: "x {match}"}).Matches(); len(got) != 2 {
		t.Errorf("an engine that is told how to match: %v", got)
	}
}

// TestPlaceholders: values stand within words, and are not looked through again.
func TestPlaceholders(t *testing.T) {
	values, err := placeholderValues(player.Options{Handshake: "tcp://127.0.0.1:29550", VLLMVersion: "v0.33.0", EngineIndex: 3})
	require.NoError(t, err)
	values["trace"] = "/tmp/a {line} b/trace.jsonl.gz"
	word := "{handshake}|{handshake_host}|{handshake_port}|{trace}|{match}|{line}|{tag}|{index}|{}"
	want := "tcp://127.0.0.1:29550|127.0.0.1|29550|/tmp/a {line} b/trace.jsonl.gz|index|0.33|v0.33.0|3|{}"
	if got := fillPlaceholders(word, values); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
