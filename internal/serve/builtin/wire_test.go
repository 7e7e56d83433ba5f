package builtin

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/internal/engine/tokenizer"
	"github.com/vllm-vcr/conformance/internal/serve/enginepb"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/player"
)

// distant are engines that are none of this process. It keeps what the last request would be as a message.
type distant struct {
	*player.Group
	codec *protocol.Codec
	sent  string // JSON
}

func (d *distant) Submit(engine int, r *player.EngineRequest) {
	cur := pack.NewCursor(d.codec.AppendRequest(nil, r))
	text, _ := cur.AppendJSON(nil)
	d.sent = string(text)
	r.Receiver.Receive(&protocol.Output{Finish: protocol.FinishStop}, 0)
}

// before makes a server before engines of a line that are in another process. vocab is that of config.json.
func before(t *testing.T, line string, vocab int, args ...string) (*Server, *distant) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"config.json", "tokenizer.json", "tokenizer_config.json"} {
		text, err := vcr.Files.ReadFile(vcr.ModelPath + "/" + name)
		require.NoError(t, err)
		if name == "config.json" {
			var config map[string]any
			require.NoError(t, json.Unmarshal(text, &config))
			config["vocab_size"] = vocab
			text, err = json.Marshal(config)
			require.NoError(t, err)
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	tok, err := tokenizer.Load(dir)
	require.NoError(t, err)
	opt := player.Options{VLLMVersion: line, Vocab: uint32(vocab)}
	opt.Limits.MaxModelLen = 4096
	group, err := player.NewGroup([]player.Options{opt})
	require.NoError(t, err)
	codec, err := protocol.CodecFor(line)
	require.NoError(t, err)
	engines := &distant{Group: group, codec: codec}
	flags, err := ParseFlags(args)
	require.NoError(t, err)
	s, err := New(Options{Group: engines, Names: []string{"m"}, Dir: dir, Tokenizer: tok, Release: line, Flags: flags})
	require.NoError(t, err)
	return s, engines
}

func answerTo(t *testing.T, s *Server, path, header, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	if name, value, ok := strings.Cut(header, ": "); ok {
		r.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

// The messages are those of vllm-rs of the line, which the frontend suite compares field by field. Here is one request
// for each way in which lines differ.
func TestMessages(t *testing.T) {
	const (
		tools  = `"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}]`
		strict = `"tools":[{"type":"function","function":{"name":"f","strict":true,"parameters":{"type":"object"}}}]`
	)
	for _, test := range []struct{ line, chat, header, want string }{
		{"0.33", `"structured_outputs":{"json":{"b":1,"a":2.0}}`, "", `"structured_outputs":{"json":{"b":1,"a":2.0},"_backend":"xgrammar"}`},
		{"0.33", `"structured_outputs":{"json":"{}"}`, "", `{"json":"{}","_backend":"xgrammar"}`},
		{"0.32", `"response_format":{"type":"json_object"}`, "", `{"json_object":true,"_backend":"guidance"}`},
		{"0.33", `"structured_outputs":{"regex":"a","whitespace_pattern":" ?","disable_any_whitespace":true}`, "", `{"regex":"a","disable_any_whitespace":true,"whitespace_pattern":" ?","_backend"`},
		{"0.33", tools, "", `!structured_outputs`},
		{"0.27", tools + `,"tool_choice":"auto"`, "", `!structured_outputs`},
		{"0.33", tools + `,"tool_choice":"required","parallel_tool_calls":false`, "", `tags_with_separator`},
		{"0.33", tools + `,"tool_choice":"required","parallel_tool_calls":false`, "", `\"json_schema\":true,\"style\":\"json\",\"any_order\":false,\"max_whitespace_cnt\":null,\"excludes\":[]}`},
		{"0.33", tools + `,"tool_choice":"required","parallel_tool_calls":false`, "", `\"at_least_one\":true,\"stop_after_first\":true}}","_backend":"xgrammar"}`},
		{"0.30", tools + `,"tool_choice":"required","parallel_tool_calls":false`, "", `\"json_schema\":{\"type\":\"object\"},\"style\":\"json\",\"any_order\":false,\"max_whitespace_cnt\":null},`},
		{"0.30", tools + `,"tool_choice":"required","parallel_tool_calls":false`, "", `\"at_least_one\":true,\"stop_after_first\":false}}","_backend":"xgrammar"}`},
		{"0.26", tools + `,"tool_choice":"required"`, "", `{\"begin\":\"<tool_call>\\n{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": \",\"content\":{\"type\":\"json_schema\",\"json_schema\":{\"type\":\"object\"},\"style\":\"json\"},\"end\"`},
		{"0.33", strict, "", `\"triggers\":[\"<tool_call>\"],\"tags\":[{\"type\":\"tag\"`},
		{"0.32", tools + `,"structured_outputs":{"choice":["a"]}`, "", `{\"type\":\"or\",\"elements\":[{\"type\":\"const_string\",\"value\":\"a\"}]}]}}`},
		{"0.31", tools + `,"structured_outputs":{"choice":["a"]}`, "", `{"choice":["a"],"_backend":"guidance"}`},
		{"0.33", `"reasoning_effort":"low"`, "", `{"chat_template_kwargs":{"reasoning_effort":"low","enable_thinking":true}}`},
		{"0.31", `"seed":1`, "", `{"chat_template_kwargs":{}}`},
		{"0.30", `"seed":1`, "", `!chat_template_kwargs`},
		{"0.30", `"response_format":{"type":"json_object"}`, "", `{"chat_template_kwargs":{}}`},
		{"0.33", `"bad_words":[" d"]`, "", `"_bad_words_token_ids":[[70],[408]]`},
		{"0.32", `"bad_words":[" d"]`, "", `"_bad_words_token_ids":[[408]]`},
		{"0.32", `"logprobs":true,"logprob_token_ids":[5]`, "", `"logprob_token_ids":[5]`},
		{"0.31", `"logprobs":true,"logprob_token_ids":[5]`, "", `!logprob_token_ids`},
		{"0.33", `"thinking_token_budget":5,"watermarking":false`, "", `"thinking_token_budget":5`},
		{"0.33", `"watermarking":false`, "", `"watermarking":false`},
		{"0.33", `"seed":1`, "X-data-parallel-rank: 0", `,null,null,0,null,null,0,0,0,`},
		{"0.33", `"priority":2`, "X-Vllm-Priority: 4", `,null,null,null,null,null,0,0,4,`},
		{"0.27", `"priority":2`, "X-Vllm-Priority: 4", `,null,null,null,null,null,0,0,2,`},
		{"0.33", `"seed":1`, "X-Session-ID: talk", `"talk"`},
		{"0.33", `"truncate_prompt_tokens":2`, "", `,[536,201],`},
	} {
		t.Run(test.line+" "+test.chat, func(t *testing.T) {
			s, engines := before(t, test.line, 2048)
			w := answerTo(t, s, "/v1/chat/completions", test.header, `{"messages":[{"role":"user","content":"a"}],"max_tokens":3,`+test.chat+`}`)
			unwanted, absent := strings.CutPrefix(test.want, "!")
			switch {
			case w.Code != http.StatusOK:
				t.Errorf("status %d: %s", w.Code, w.Body)
			case absent && strings.Contains(engines.sent, unwanted), !absent && !strings.Contains(engines.sent, test.want):
				t.Errorf("want %s in %s", test.want, engines.sent)
			}
		})
	}
}

// A request that would end a real engine, or that vllm-rs of the line refuses, has status 400 and is not sent.
func TestRefused(t *testing.T) {
	const f = `{"type":"function","function":{"name":"f","parameters":{}}}`
	for _, test := range []struct{ line, path, body string }{
		{"0.33", "completions", `"logit_bias":{"2000":1}`}, // as config.json has it; the tokenizer has more ids
		{"0.27", "completions", `"logit_bias":{"2000":1}`},
		{"0.33", "chat/completions", `"logit_bias":{"2000":1}`},
		{"0.33", "responses", `"input":"a","logit_bias":{"2000":1}`},
		{"0.33", "completions", `"stop_token_ids":[2000]`},
		{"0.33", "completions", `"allowed_token_ids":[2000]`},
		{"0.33", "completions", `"logprobs":1,"logprob_token_ids":[2000]`},
		{"0.33", "completions", `"prompt":[2000]`},
		{"0.33", "completions", `"structured_outputs":{"json":5}`},
		{"0.33", "completions", `"structured_outputs":{"json":true}`},
		{"0.27", "completions", `"structured_outputs":{"choice":[]}`},
		{"0.33", "completions", `"structured_outputs":{"structural_tag":"x"}`},
		{"0.33", "completions", `"repetition_penalty":1e40`},
		{"0.33", "completions", `"stop":["a","a","a","a","a"]`},
		{"0.33", "completions", `"cache_salt":""`},
		{"0.32", "completions", `"length_penalty":1`},
		{"0.28", "completions", `"truncate_prompt_tokens":5`},
		{"0.32", "completions", `"truncate_prompt_tokens":4096`},
		{"0.28", "completions", `"top_k":-1`},
		{"0.33", "completions", `"logprob_token_ids":[5]`},
		{"0.33", "completions", `"prompt_embeds":"a"`},
		{"0.33", "completions", `"response_format":{}`},
		{"0.33", "chat/completions", `"response_format":{"type":"json_schema","json_schema":{"schema":{}}}`},
		{"0.33", "chat/completions", `"n":0`},
		{"0.33", "chat/completions", `"repetition_penalty":3`},
		{"0.33", "chat/completions", `"bad_words":[" "]`},
		{"0.33", "chat/completions", `"tools":[]`},
		{"0.33", "chat/completions", `"tool_choice":"auto"`},
		{"0.33", "chat/completions", `"tools":[` + f + `,` + f + `]`},
		{"0.33", "chat/completions", `"tools":[{"type":"function"}]`},
		{"0.28", "chat/completions", `"tools":[{"type":"function","function":{"name":"f"}}]`},
		{"0.33", "chat/completions", `"truncate_prompt_tokens":0`},
		{"0.33", "chat/completions", `"messages":[{"role":"tool","content":"a"}]`},
		{"0.31", "chat/completions", `"top_logprobs":0`},
	} {
		t.Run(test.line+" "+test.path+" "+test.body, func(t *testing.T) {
			s, engines := before(t, test.line, 2000)
			first := `"prompt":"a",`
			if test.path == "chat/completions" {
				first = `"messages":[{"role":"user","content":"a"}],`
			}
			if w := answerTo(t, s, "/v1/"+test.path, "", "{"+first+test.body+"}"); w.Code != http.StatusBadRequest || engines.sent != "" {
				t.Errorf("status %d %s, and the engine got %s", w.Code, w.Body, engines.sent)
			}
		})
	}
	s, _ := before(t, "0.33", 2000)
	p, err := generateParams(&enginepb.GenerateRequest{SamplingParams: &enginepb.SamplingParams{LogitBias: map[int32]float32{2000: 1}}})
	require.NoError(t, err)
	if wrong := p.check(s); wrong == nil {
		t.Error("gRPC takes an id outside of the vocabulary")
	}
}

// Arguments of a call that are no object are shown as text, as by vllm-rs.
func TestPlainArguments(t *testing.T) {
	for _, size := range []int{1, 1000} {
		var p callParser
		var text, name strings.Builder
		show := func(e callEvent) { text.WriteString(e.text + e.arguments); name.WriteString(e.name) }
		for rest := "<tool_call>\n{\"name\": \"f\", \"arguments\": 165}</tool_call>"; rest != ""; rest = rest[min(size, len(rest)):] {
			p.add(rest[:min(size, len(rest))], size >= len(rest), show)
		}
		require.True(t, text.String() == "165}</tool_call>" && name.String() == "f" && len(p.calls) == 1 && p.calls[0].arguments == nil, "%d bytes at once: %q, %+v", size, text.String(), p.calls)
	}
}
