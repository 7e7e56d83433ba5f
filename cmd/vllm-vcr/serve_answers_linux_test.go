package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/serve/answers"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// TestAnswers asks servers for answers that rules choose. The file of requests has the answers, too.
func TestAnswers(t *testing.T) {
	tests := []struct {
		name, rules, asked string
		args               []string
	}{
		{"builtin", "rules.toml", "asked.txt", []string{"--frontend", "builtin"}},
		{"vllm-rs", "rules.toml", "asked.txt", nil},
		{"what only the builtin frontend has", "builtin.json", "builtin.txt", []string{"--frontend", "builtin", "--", "--reasoning-parser", "qwen3"}},
		{"an image", "rules.toml", "image.txt", []string{"tiny-vl", "--served-model-name", "tiny"}},
		{"embeddings and a chat about an image", "builtin.json", "embeddings.txt", []string{"tiny-vl", "--served-model-name", "tiny", "--frontend", "builtin", "--pooling-tasks", "embed,generate", "--", "--reasoning-parser", "qwen3"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := startServe(t, append([]string{"--answers", filepath.Join("testdata/answers", tt.rules)}, tt.args...)...)
			checkAnswers(t, s, tt.asked)
		})
	}
}

func checkAnswers(t *testing.T, s *served, file string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata/answers", file))
	require.NoError(t, err)
	for i, one := range strings.Split(string(text), "== ") {
		if i == 0 {
			continue
		}
		name, rest, _ := strings.Cut(one, "\n")
		question, want, _ := strings.Cut(rest, "----\n")
		head, body, _ := strings.Cut(question, "\n")
		path, header, _ := strings.Cut(head, " ")
		key, value, _ := strings.Cut(header, ": ")
		status, _, answer := s.ask(t, path, strings.Replace(body, "{", `{"model": "tiny", `, 1), key, value)
		got := fmt.Sprintf("status: %d\n", status)
		if status == http.StatusOK {
			got = shownAnswer(t, answer)
		}
		require.NoDiff(t, cmp.Diff(want, got), "%s (-want +got)", name)
	}
}

// shownAnswer is what a person would look at in an answer, or in the events of one.
func shownAnswer(t *testing.T, text string) string {
	t.Helper()
	type message struct {
		Content, Refusal, Reasoning string
		Calls                       []struct {
			Index    int
			Function struct{ Name, Arguments string }
		} `json:"tool_calls"`
	}
	type choice struct {
		Message  message
		Delta    message
		Text     string
		Finish   string `json:"finish_reason"`
		Logprobs *struct {
			Content []struct{ Logprob float64 }
		}
	}
	var all struct {
		Choices []choice
		Data    []struct{ Embedding []float64 }
		Output  []struct {
			Content []struct{ Text string }
		}
	}
	var b strings.Builder
	if strings.HasPrefix(text, "data: ") {
		var sum message
		for line := range strings.Lines(text) {
			data, _ := strings.CutPrefix(strings.TrimSpace(line), "data: ")
			if all.Choices = nil; json.Unmarshal([]byte(data), &all) == nil && len(all.Choices) > 0 {
				d := all.Choices[0].Delta
				sum.Content, sum.Refusal = sum.Content+d.Content, sum.Refusal+d.Refusal
				if finish := all.Choices[0].Finish; finish != "" {
					all.Choices[0].Message = sum
					break
				}
			}
		}
	} else {
		require.NoError(t, json.Unmarshal([]byte(text), &all))
	}
	for _, c := range all.Choices {
		for _, part := range [][2]string{{"reasoning", c.Message.Reasoning}, {"content", c.Message.Content}, {"refusal", c.Message.Refusal}, {"text", c.Text}} {
			if part[1] != "" {
				fmt.Fprintf(&b, "%s: %s\n", part[0], part[1])
			}
		}
		for _, call := range c.Message.Calls {
			fmt.Fprintf(&b, "call: %s %s\n", call.Function.Name, call.Function.Arguments)
		}
		fmt.Fprintf(&b, "finish: %s\n", c.Finish)
		if c.Logprobs != nil {
			b.WriteString("logprobs:")
			for _, p := range c.Logprobs.Content {
				fmt.Fprintf(&b, " %v", p.Logprob)
			}
			b.WriteByte('\n')
		}
	}
	for _, one := range all.Data {
		fmt.Fprintf(&b, "embedding: %v\n", one.Embedding)
	}
	for _, one := range all.Output {
		for _, part := range one.Content {
			fmt.Fprintf(&b, "output: %s\n", part.Text)
		}
	}
	return b.String()
}

// TestAnswersOfParsers: the parsers of a released frontend read the calls that are written for them.
func TestAnswersOfParsers(t *testing.T) {
	testenv.Slow(t, "starts a frontend for each parser of tools")
	for _, parser := range slices.DeleteFunc(answers.Parsers(), func(p string) bool { return p == "pythonic" }) { // of the Python server alone
		t.Run(parser, func(t *testing.T) {
			s := startServe(t, "--answers", "testdata/answers/calls.json", "--frontend", testenv.Frontend(t, "0.33.0"), "--", "--tool-call-parser", parser, "--reasoning-parser", "none")
			checkAnswers(t, s, "calls.txt")
		})
	}
}
