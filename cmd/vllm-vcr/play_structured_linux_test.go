package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/frontends/vllmrs"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// constrainedAnswer is what a frontend made of an answer.
type constrainedAnswer struct {
	status          int
	content, reason string // content is that of an error if status is not 200
	calls           []toolCall
}

type toolCall struct {
	Index     int // in a stream
	Name      string
	Arguments string
}

// chatMessage is a message, or a part of one in a stream.
type chatMessage struct {
	Content   string
	ToolCalls []struct {
		Index    int
		Function toolCall
	} `json:"tool_calls"`
}

// askConstrained asks for a chat completion, whole or as a stream, and puts it together.
func askConstrained(t *testing.T, url, members string, stream bool) (answer constrainedAnswer) {
	t.Helper()
	body := fmt.Sprintf(`{"model":"model","max_tokens":600,"stream":%v,"messages":[{"role":"user","content":"hi"}],%s}`, stream, members)
	resp, err := http.Post(url+"/v1/chat/completions", "application/json", strings.NewReader(body))
	require.NoError(t, err)
	defer resp.Body.Close()
	if answer.status = resp.StatusCode; answer.status != http.StatusOK {
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		answer.content = string(text)
		return answer
	}
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		line := strings.TrimPrefix(lines.Text(), "data: ")
		if !strings.HasPrefix(line, "{") {
			continue
		}
		var part struct {
			Choices []struct {
				Message, Delta chatMessage
				FinishReason   string `json:"finish_reason"`
			}
		}
		if err := json.Unmarshal([]byte(line), &part); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		for _, c := range part.Choices {
			answer.add(c.Message, stream)
			answer.add(c.Delta, stream)
			if c.FinishReason != "" {
				answer.reason = c.FinishReason
			}
		}
	}
	return answer
}

func (a *constrainedAnswer) add(m chatMessage, stream bool) {
	a.content += m.Content
	for i, c := range m.ToolCalls {
		if !stream {
			c.Index = i
		}
		for len(a.calls) <= c.Index {
			a.calls = append(a.calls, toolCall{Index: len(a.calls)})
		}
		a.calls[c.Index].Name += c.Function.Name
		a.calls[c.Index].Arguments += c.Function.Arguments
	}
}

const weatherTools = `"tools":[{"type":"function","function":{"name":"get_weather","strict":true,"parameters":{"type":"object",` +
	`"properties":{"city":{"type":"string"},"days":{"type":"integer","minimum":1,"maximum":9}},"required":["city","days"],` +
	`"additionalProperties":false}}},{"type":"function","function":{"name":"stop_rain","strict":true,"parameters":{"type":"object",` +
	`"properties":{},"additionalProperties":false}}}]`

// The binary with a tokenizer says what frontends can parse: of released ones, whole and
// as a stream.
func TestPlayConformsToStructuredOutputs(t *testing.T) {
	for _, version := range testenv.FrontendVersions() {
		t.Run(version, func(t *testing.T) {
			model := filepath.Join(t.TempDir(), "Hermes-3") // a frontend chooses its parser of tool calls by the name
			require.NoError(t, os.CopyFS(model, os.DirFS(testenv.ModelDir(t))))
			server, err := vllmrs.Start(t.Context(), vllmrs.Options{Binary: testenv.Frontend(t, version), ModelDir: model, ServedName: "model"})
			require.NoError(t, err)
			t.Cleanup(func() { server.Close() })
			player := start(t, "play", "--frontend-handshake", server.Handshake(), "--vllm-version", version,
				"--tokenizer", model, "--max-model-len", "4096")
			if err := server.Healthy(t.Context()); err != nil {
				t.Fatalf("%v; the player said %s", err, &player.stderr)
			}
			for _, stream := range []bool{false, true} {
				name := map[bool]string{false: "whole", true: "stream"}[stream]
				t.Run("content/"+name, func(t *testing.T) { conformingContent(t, server.URL(), stream) })
				t.Run("tools/"+name, func(t *testing.T) { conformingCalls(t, server.URL(), stream) })
			}
			t.Run("refused", func(t *testing.T) { refusedConstraints(t, server.URL(), version) })
		})
	}
}

func conformingContent(t *testing.T, url string, stream bool) {
	for _, tt := range []struct{ name, members, want string }{
		{
			"json_schema",
			`"response_format":{"type":"json_schema","json_schema":{"name":"x","strict":true,"schema":{"type":"object","properties":` +
				`{"b":{"type":"integer"},"a":{"enum":["é","\n"]}},"required":["b","a"],"additionalProperties":false}}}`,
			`\{"b":-?\d+,"a":"(é|\\n)"\}`,
		},
		{"regex", `"structured_outputs":{"regex":"[a-c]{5} (wörld|日本)"}`, `[a-c]{5} (wörld|日本)`},
		{"choice", `"structured_outputs":{"choice":["left","right"]}`, `left|right`},
		{"json_object", `"response_format":{"type":"json_object"}`, `\{.*\}`},
		{"grammar", `"structured_outputs":{"grammar":"root ::= \"x\" [0-9]+"}`, `x\d+`},
		{
			"structural_tag",
			`"response_format":{"type":"structural_tag","structures":[{"begin":"<f>","schema":{"type":"integer"},"end":"</f>"}],"triggers":["<f"]}`,
			`<f>-?\d+</f>`,
		},
	} {
		for seed := range 3 {
			got := askConstrained(t, url, fmt.Sprintf(`"seed":%d,%s`, seed, tt.members), stream)
			if !regexp.MustCompile(`\A(?:`+tt.want+`)\z`).MatchString(got.content) || got.reason != "stop" {
				t.Errorf("%s, seed %d: said %q, finished by %s, want %s", tt.name, seed, got.content, got.reason, tt.want)
			}
		}
	}
}

func conformingCalls(t *testing.T, url string, stream bool) {
	arguments := map[string]*regexp.Regexp{
		"get_weather": regexp.MustCompile(`\A\{"city":\s*".*",\s*"days":\s*[1-9]\}\z`),
		"stop_rain":   regexp.MustCompile(`\A\{\}\z`),
	}
	named := map[string]bool{}
	for seed := range 6 {
		got := askConstrained(t, url, fmt.Sprintf(`"seed":%d,"tool_choice":"required",%s`, seed, weatherTools), stream)
		if len(got.calls) == 0 {
			t.Errorf("seed %d: no tool is called: %+v", seed, got)
		}
		for _, c := range got.calls {
			named[c.Name] = true
			if a := arguments[c.Name]; a == nil || !a.MatchString(c.Arguments) {
				t.Errorf("seed %d: called %+v", seed, c)
			}
		}
	}
	require.NoDiff(t, cmp.Diff(map[string]bool{"get_weather": true, "stop_rain": true}, named), "required: called (-want +got)")
	choice := `"tool_choice":{"type":"function","function":{"name":"get_weather"}},`
	got := askConstrained(t, url, choice+weatherTools, stream)
	if other := slices.IndexFunc(got.calls, func(c toolCall) bool { return c.Name != "get_weather" }); len(got.calls) == 0 || other >= 0 {
		t.Errorf("named: called %+v", got)
	}
	for _, c := range got.calls {
		if !arguments["get_weather"].MatchString(c.Arguments) {
			t.Errorf("named: called %+v", c)
		}
	}
}

// refusedConstraints: a constraint that cannot be compiled is an error of its request alone. Before 0.33 vllm-rs has the engine use
// llguidance, which finds out too late, and has no place for the reason.
func refusedConstraints(t *testing.T, url, version string) {
	schema, grammar, reason := http.StatusOK, http.StatusInternalServerError, ""
	if strings.HasPrefix(version, "0.33.") {
		schema, grammar, reason = http.StatusBadRequest, http.StatusBadRequest, "invalid structured outputs: no text conforms to it"
	}
	got := askConstrained(t, url, `"structured_outputs":{"json":{"type":"integer","minimum":4,"maximum":2}}`, false)
	if got.status != schema || !strings.Contains(got.content, reason) || schema == http.StatusOK && (got.reason != "stop" || got.content != "") {
		t.Errorf("a schema: %+v, want HTTP %d and %q", got, schema, reason)
	}
	if got := askConstrained(t, url, `"structured_outputs":{"grammar":"root ::= nowhere"}`, false); got.status != grammar {
		t.Errorf("a grammar: %+v, want HTTP %d", got, grammar)
	}
	if got := askConstrained(t, url, `"structured_outputs":{"regex":"ok"}`, false); got.content != "ok" {
		t.Errorf("the next request: %+v", got)
	}
}
