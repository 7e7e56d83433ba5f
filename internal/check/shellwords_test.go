package check

import (
	"slices"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/player"
)

func TestSplitWords(t *testing.T) {
	tests := []struct {
		name, command string
		want          []string
		err           string
	}{
		{"nothing", "", nil, ""},
		{"blanks", " \t\n", nil, ""},
		{"words", " a  b\tc\nd ", []string{"a", "b", "c", "d"}, ""},
		{"single quotes", `a 'b  "c" \' d`, []string{"a", `b  "c" \`, "d"}, ""},
		{"double quotes", `"a b" "c\"d\\e\f" "$x"`, []string{"a b", `c"d\e\f`, "$x"}, ""},
		{"quotes within a word", `a'b c'd"e f"`, []string{"ab cde f"}, ""},
		{"an empty word", `a '' ""`, []string{"a", "", ""}, ""},
		{"backslashes", `a\ b \' \\ c\` + "\n" + `d`, []string{"a b", "'", `\`, "cd"}, ""},
		{"what a shell would expand", `$HOME *.go ~ a;b|c >d`, []string{"$HOME", "*.go", "~", "a;b|c", ">d"}, ""},
		{"JSON", `--config '{"method": "ngram"}'`, []string{"--config", `{"method": "ngram"}`}, ""},
		{"an open single quote", "a 'b", nil, "a single quote is not closed: 'b"},
		{"an open double quote", `a "b\"`, nil, `a double quote is not closed: "b\"`},
		{"a last backslash", `a \`, nil, "it ends with a backslash"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := splitWords(test.command)
			if test.err != "" {
				if err == nil || err.Error() != test.err {
					t.Errorf("got %v, want %q", err, test.err)
				}
				return
			}
			if err != nil || !slices.Equal(got, test.want) {
				t.Errorf("got %q, %v, want %q", got, err, test.want)
			}
		})
	}
}

func FuzzSplitWords(f *testing.F) {
	for _, command := range []string{"", "a b", `a'b "c`, `"a\`, `'\''"'"`, "a\\\nb"} {
		f.Add(command)
	}
	f.Fuzz(func(t *testing.T, command string) {
		words, err := splitWords(command)
		if err != nil {
			return
		}
		// What was split is split again when each word stands in single quotes.
		var quoted []string
		for _, word := range words {
			quoted = append(quoted, "'"+strings.ReplaceAll(word, "'", `'\''`)+"'")
		}
		again, err := splitWords(strings.Join(quoted, " "))
		if err != nil || !slices.Equal(words, again) {
			t.Errorf("%q gives %q, which gives %q, %v", command, words, again, err)
		}
	})
}

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
		{"a quote", "./engine '{handshake}", SuiteReplay, "a single quote is not closed"},
		{"unknown", "./engine {handshake} {adress}", SuiteReplay, "unknown placeholder {adress}: want one of {handshake}, {handshake_host}"},
		{"nowhere to dial", "./engine {trace}", SuiteReplay, "neither {handshake} nor {handshake_port}"},
		{"nothing to play", "./engine {handshake} {trace}", SuiteLive, "{trace} is of the replay suite"},
		{"nothing to find", "./engine {handshake} {match}", SuiteLive, "{match} is of the replay suite"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := CommandEngine{Template: test.template}.Check(test.suite)
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %v, want %q", err, test.want)
			}
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
