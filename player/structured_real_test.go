package player

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

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

// chat asks for a chat completion with some more members, and returns the status and
// the answer.
func (f *played) chat(members string) (int, object) {
	f.t.Helper()
	return f.post("/v1/chat/completions", json.RawMessage(`{"model":"model","max_tokens":600,"messages":[{"role":"user","content":"hi"}],`+members+`}`))
}

const weatherTool = `"tools":[{"type":"function","function":{"name":"get_weather","parameters":{"type":"object",` +
	`"properties":{"city":{"type":"string"},"days":{"type":"integer","minimum":1,"maximum":9}},"required":["city","days"]}}}]`

// Real frontends parse what is said to requests whose output they constrain.
func TestRealFrontendsParseStructuredOutputs(t *testing.T) {
	for _, version := range testenv.FrontendVersions() {
		t.Run(version, func(t *testing.T) {
			f := frontedWith(t, version, hermes(t), Options{Source: structured(t, newByteEncoder(t))})
			t.Run("content", func(t *testing.T) { parseContent(t, f) })
			t.Run("tools", func(t *testing.T) { parseTools(t, f) })
			t.Run("refused", func(t *testing.T) { parseRefusals(t, f, version) })
		})
	}
}

func parseContent(t *testing.T, f *played) {
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
			status, answer := f.chat(tt.members)
			first := choiceOf(t, status, answer)
			content, _ := first["message"].(object)["content"].(string)
			if first["finish_reason"] != "stop" || !regexp.MustCompile(`\A(?:`+tt.want+`)\z`).MatchString(content) {
				t.Errorf("content %q, finished by %v, want %s", content, first["finish_reason"], tt.want)
			}
		})
	}
}

func choiceOf(t *testing.T, status int, answer object) object {
	t.Helper()
	choices, _ := answer["choices"].([]any)
	if status != http.StatusOK || len(choices) != 1 {
		t.Fatalf("HTTP %d: %v", status, answer)
	}
	return choices[0].(object)
}

func parseTools(t *testing.T, f *played) {
	for _, tt := range []struct{ name, choice string }{
		{"required", `"required"`},
		{"named", `{"type":"function","function":{"name":"get_weather"}}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			status, answer := f.chat(weatherTool + `,"seed":3,"tool_choice":` + tt.choice)
			message := choiceOf(t, status, answer)["message"].(object)
			calls, _ := message["tool_calls"].([]any)
			if len(calls) == 0 {
				t.Fatalf("no tool is called: %v", answer)
			}
			for _, call := range calls {
				function := call.(object)["function"].(object)
				var arguments object
				if err := json.Unmarshal([]byte(fmt.Sprint(function["arguments"])), &arguments); err != nil || function["name"] != "get_weather" {
					t.Errorf("called %v: %v", function, err)
				}
			}
		})
	}
}

// parseRefusals: what cannot be honoured is an error at once, and no other request's. Before 0.33 vllm-rs asks for
// llguidance, which finds out too late, and only of a grammar in time; there is no place for the reason either.
func parseRefusals(t *testing.T, f *played, version string) {
	schema, grammar := http.StatusOK, http.StatusInternalServerError
	if strings.HasPrefix(version, "0.33.") {
		schema, grammar = http.StatusBadRequest, http.StatusBadRequest
	}
	status, answer := f.chat(`"structured_outputs":{"json":{"type":"integer","minimum":4,"maximum":2}}`)
	if status != schema {
		t.Errorf("HTTP %d, want %d: %v", status, schema, answer)
	}
	if schema == http.StatusBadRequest {
		message := answer["error"].(object)["message"]
		if diff := cmp.Diff("invalid structured outputs: no text conforms to it", message); diff != "" {
			t.Error(diff)
		}
	} else if first := choiceOf(t, status, answer); first["finish_reason"] != "stop" || first["message"].(object)["content"] != nil {
		t.Errorf("said %v, want nothing", first)
	}
	if status, answer := f.chat(`"structured_outputs":{"grammar":"root ::= nowhere"}`); status != grammar {
		t.Errorf("a grammar: HTTP %d, want %d: %v", status, grammar, answer)
	}
	if status, answer := f.chat(`"structured_outputs":{"regex":"ok"}`); status != http.StatusOK {
		t.Errorf("the next request: HTTP %d: %v", status, answer)
	}
}
