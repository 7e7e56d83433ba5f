package player

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/frontends/vllmrs"
	"github.com/vllm-vcr/conformance/internal/testenv"
)

// hermes is a folder of the tiny model by whose name a frontend chooses its parser of
// tool calls.
func hermes(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "Hermes-3")
	must(t, os.CopyFS(dir, os.DirFS("../testdata/model/tiny")))
	return dir
}

// behindFrontend runs a player behind a real frontend until the test ends, and
// returns the frontend's address.
func behindFrontend(t *testing.T, version string, opt Options) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	server, err := vllmrs.Start(ctx, vllmrs.Options{Binary: testenv.Frontend(t, version), ModelDir: hermes(t)})
	must(t, err)
	opt.Handshake, opt.VLLMVersion, opt.Limits.MaxModelLen, opt.Vocab = server.Handshake(), version, 4096, 2048
	p, err := New(opt)
	must(t, err)
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		_ = server.Close()
	})
	healthy, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	must(t, server.Healthy(healthy))
	return server.URL()
}

// chat asks for a chat completion with some more members, and returns the status and
// the answer.
func chat(t *testing.T, url, members string) (int, map[string]any) {
	t.Helper()
	body := `{"model":"model","max_tokens":600,"messages":[{"role":"user","content":"hi"}],` + members + `}`
	resp, err := http.Post(url+"/v1/chat/completions", "application/json", strings.NewReader(body))
	must(t, err)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	must(t, err)
	var answer map[string]any
	if err := json.Unmarshal(raw, &answer); err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	return resp.StatusCode, answer
}

const weatherTool = `"tools":[{"type":"function","function":{"name":"get_weather","parameters":{"type":"object",` +
	`"properties":{"city":{"type":"string"},"days":{"type":"integer","minimum":1,"maximum":9}},"required":["city","days"]}}}]`

// Real frontends parse what is said to requests whose output they constrain.
func TestRealFrontendsParseStructuredOutputs(t *testing.T) {
	for _, version := range testenv.FrontendVersions() {
		t.Run(version, func(t *testing.T) {
			url := behindFrontend(t, version, Options{Source: structured(t, newByteEncoder(t))})
			t.Run("content", func(t *testing.T) { parseContent(t, url) })
			t.Run("tools", func(t *testing.T) { parseTools(t, url) })
			t.Run("refused", func(t *testing.T) { parseRefusals(t, url, version) })
		})
	}
}

func parseContent(t *testing.T, url string) {
	for _, tt := range []struct{ name, members, want string }{
		{
			"json_schema",
			`"response_format":{"type":"json_schema","json_schema":{"name":"x","strict":true,"schema":{"type":"object",` +
				`"properties":{"b":{"type":"integer"},"a":{"enum":["é","\n"]}},"required":["b","a"],"additionalProperties":false}}}`,
			`\{"b":\d+,"a":"(é|\\n)"\}`,
		},
		{"json_object", `"response_format":{"type":"json_object"}`, `\{.*\}`},
		{"regex", `"structured_outputs":{"regex":"[a-c]{5}"}`, `[a-c]{5}`},
		{"choice", `"structured_outputs":{"choice":["left","right"]}`, `left|right`},
		{"grammar", `"structured_outputs":{"grammar":"root ::= \"x\" [0-9]+"}`, `x\d+`},
		{
			"structural_tag",
			`"response_format":{"type":"structural_tag","structures":[{"begin":"<f>","schema":{"type":"integer"},"end":"</f>"}],"triggers":["<f"]}`,
			`<f>\d+</f>`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			status, answer := chat(t, url, tt.members)
			first := choiceOf(t, status, answer)
			content, _ := first["message"].(map[string]any)["content"].(string)
			if first["finish_reason"] != "stop" || !regexp.MustCompile(`\A(?:`+tt.want+`)\z`).MatchString(content) {
				t.Errorf("content %q, finished by %v, want %s", content, first["finish_reason"], tt.want)
			}
		})
	}
}

func choiceOf(t *testing.T, status int, answer map[string]any) map[string]any {
	t.Helper()
	choices, _ := answer["choices"].([]any)
	if status != http.StatusOK || len(choices) != 1 {
		t.Fatalf("HTTP %d: %v", status, answer)
	}
	return choices[0].(map[string]any)
}

func parseTools(t *testing.T, url string) {
	for _, tt := range []struct{ name, choice string }{
		{"required", `"required"`},
		{"named", `{"type":"function","function":{"name":"get_weather"}}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			status, answer := chat(t, url, weatherTool+`,"seed":3,"tool_choice":`+tt.choice)
			message := choiceOf(t, status, answer)["message"].(map[string]any)
			calls, _ := message["tool_calls"].([]any)
			if len(calls) == 0 {
				t.Fatalf("no tool is called: %v", answer)
			}
			for _, call := range calls {
				function := call.(map[string]any)["function"].(map[string]any)
				var arguments map[string]any
				if err := json.Unmarshal([]byte(fmt.Sprint(function["arguments"])), &arguments); err != nil || function["name"] != "get_weather" {
					t.Errorf("called %v: %v", function, err)
				}
			}
		})
	}
}

// parseRefusals: what cannot be honoured is an error at once, and no other request's. Before 0.33 vllm-rs asks for
// llguidance, which finds out too late, and only of a grammar in time; there is no place for the reason either.
func parseRefusals(t *testing.T, url, version string) {
	schema, grammar := http.StatusOK, http.StatusInternalServerError
	if strings.HasPrefix(version, "0.33.") {
		schema, grammar = http.StatusBadRequest, http.StatusBadRequest
	}
	status, answer := chat(t, url, `"structured_outputs":{"json":{"type":"integer","minimum":4,"maximum":2}}`)
	if status != schema {
		t.Errorf("HTTP %d, want %d: %v", status, schema, answer)
	}
	if schema == http.StatusBadRequest {
		message := answer["error"].(map[string]any)["message"]
		if diff := cmp.Diff("invalid structured outputs: no text conforms to it", message); diff != "" {
			t.Error(diff)
		}
	} else if first := choiceOf(t, status, answer); first["finish_reason"] != "stop" || first["message"].(map[string]any)["content"] != nil {
		t.Errorf("said %v, want nothing", first)
	}
	if status, answer := chat(t, url, `"structured_outputs":{"grammar":"root ::= nowhere"}`); status != grammar {
		t.Errorf("a grammar: HTTP %d, want %d: %v", status, grammar, answer)
	}
	if status, answer := chat(t, url, `"structured_outputs":{"regex":"ok"}`); status != http.StatusOK {
		t.Errorf("the next request: HTTP %d: %v", status, answer)
	}
}
