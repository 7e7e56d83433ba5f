package main

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// TestSimulatorServes starts the command as the simulator is started, and uses what only the simulator has.
func TestSimulatorServes(t *testing.T) {
	config := t.TempDir() + "/config.yaml"
	require.NoError(t, os.WriteFile(config, []byte("model: some/model\nlatencies:\n  time-to-first-token: 0\nkvcache:\n  block-size: 8\nlora-modules:\n- '{\"name\":\"l1\",\"path\":\"/no/such/path\"}'\n"), 0o600))
	s := startServe(t, "--host", "127.0.0.1", "--config", config, "--served-model-name", "m", "n", "--mode", "echo", "--enable-kvcache", "true",
		"--max-tool-call-integer-param", "7", "--min-tool-call-integer-param", "7", "--omni", "--frontend", "builtin", "--quiet")
	if want := []string{"m", "n"}; !slices.Equal(s.Models, want) || s.Frontend != "builtin" {
		t.Fatalf("models %q of %s", s.Models, s.Frontend)
	}
	const chat = `{"model": "m", "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Say this, and no more."}]`
	const tools = `, "tool_choice": "required", "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}}}]}`
	for _, test := range []struct {
		name, path, body string
		headers          []string
		status           int
		want             string
	}{
		{"a chat is echoed", "/v1/chat/completions", chat + "}", nil, 200, `"content":"Say this, and no more."`},
		{"in a stream", "/v1/chat/completions", chat + `, "stream": true}`, nil, 200, `"delta":{"content":"more"}`},
		{"an adapter of the configuration", "/v1/completions", `{"model": "l1", "prompt": "one two three", "max_tokens": 3}`, nil, 200, `"text":"one two three"`},
		{"ids are echoed as a text", "/v1/completions", `{"model": "n", "prompt": [1, 22, 3]}`, nil, 200, `"text":"1,22,3"`},
		{"arguments of a tool", "/v1/chat/completions", chat + tools, nil, 200, `"arguments":"{\"n\":7}"`},
		{"a schema that it does not know", "/v1/chat/completions", chat + strings.Replace(tools, `"type": "object"`, `"type": "object", "$comment": "c"`, 1), nil, 400, `Tool validation failed: `},
		{"an image", "/v1/chat/completions", chat + "}", []string{"X-Send-Image", "true"}, 200, `"image_url":{"url":"data:image/png;base64,`},
		{"a threshold", "/v1/chat/completions", chat + "}", []string{"X-Cache-Threshold-Finish-Reason", "true"}, 200, `"finish_reason":"cache_threshold"`},
		{"a prompt that is not cached", "/v1/completions", `{"model": "m", "prompt": "a b c d e f g h i j", "cache_hit_threshold": 0.9}`, nil, 200, `"finish_reason":"cache_threshold"`},
		{"one that is computed", "/v1/completions", `{"model": "m", "prompt": "a b c d e f g h i"}`, nil, 200, `"finish_reason":"stop"`},
		{"and one that is cached", "/v1/completions", `{"model": "m", "prompt": "a b c d e f g h i", "cache_hit_threshold": 0.8}`, nil, 200, `"text":"a b c d e f g h i"`},
		{"an error that is asked for", "/v1/completions", `{"model": "m", "prompt": "a"}`, []string{"X-Return-Error", "422"}, 422, `Simulated error triggered by X-Return-Error header (code 422)`},
		{"max_tokens", "/v1/completions", `{"model": "m", "prompt": "a", "max_tokens": 0}`, nil, 400, `Max completion tokens and max tokens should be positive`},
		{"an empty prompt", "/v1/completions", `{"model": "m", "prompt": ["a", ""]}`, nil, 400, `prompt must not contain an empty string`},
		{"the context", "/v1/completions", `{"model": "m", "prompt": "a b", "max_tokens": 1023}`, nil, 400, `This model's maximum context length is 1024 tokens. However, you requested 1025 tokens (2 in the messages, 1023 in the completion).`},
		{"prefill for another server", "/v1/completions", `{"model": "m", "prompt": "a", "kv_transfer_params": {"do_remote_decode": true}}`, nil, 200, `"remote_host":"DUMMY"`},
		{"embeddings", "/v1/embeddings", `{"model": "any", "input": "a b", "dimensions": 2}`, nil, 200, `"object":"embedding"`},
		{"ids", "/inference/v1/generate", `{"sampling_params": {}}`, nil, 400, `Missing input token_ids`},
		{"ids are echoed as ids", "/inference/v1/generate", `{"token_ids": [7, 8, 9], "sampling_params": {"max_tokens": 3}}`, nil, 200, `"finish_reason":"length","stop_reason":null,"token_ids":[7,8,9]`},
		{"a prompt that is none", "/v1/completions", `{"model": "m", "prompt": 123}`, nil, 400, `prompt must be a string, an array of strings, an array of token ids`},
		{"tokens", "/tokenize", `{"model": "m", "prompt": "Hello, world!"}`, nil, 200, `"count":4`},
		{"Mooncake", "/query", "", nil, 200, `{"0":{"engine_id":"`},
		{"sleep without an effect", "/sleep", "{}", nil, 200, ``},
		{"awake", "/is_sleeping", "", nil, 200, `{"is_sleeping":false}`},
		{"an adapter that is not there", "/v1/unload_lora_adapter", `{"lora_name": "none"}`, nil, 200, ``},
		{"the configuration", "/admin/config", "", nil, 200, `"time-to-first-token":"0s"`},
		{"a change of it", "/admin/config", `{"time-to-first-token": "1ms", "failure-injection-rate": 0}`, nil, 200, `"time-to-first-token":"1ms"`},
		{"one that is refused", "/admin/config", `{"image-emission-rate": 101}`, nil, 400, `image emission rate should be between 0 and 100`},
		{"one of which a part is refused", "/admin/config", `{"latency-calculator": "per-token", "time-to-generate-image": -1}`, nil, 400, `time to generate image`},
		{"after which all is as before", "/admin/config", "", nil, 200, `"latency-calculator":""`},
		{"a key that cannot be changed", "/admin/config", `{"port": 1}`, nil, 400, `field 'port' is not admin-configurable`},
		{"fake metrics where there are real ones", "/fake_metrics", `{"running-requests": 1}`, nil, 500, `Failed to update fake metrics: `},
		{"an image in a response", "/v1/responses", `{"model": "m", "input": [{"role": "user", "content": [{"type": "input_text", "text": "See"}, {"type": "input_image", "image_url": "http://a/b.png"}]}]}`, nil, 200, `"text":"See\nimage: http://a/b.png"`},
		{"a video in a response", "/v1/responses", `{"model": "m", "input": [{"role": "user", "content": [{"type": "input_video"}]}]}`, nil, 400, `unsupported input content type: input_video`},
		{"a tool in a response is called", "/v1/responses", `{"model": "m", "input": "a", "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}]}`, nil, 200, `"call_id":"call_`},
		{"one that has answered is not", "/v1/responses", `{"model": "m", "input": [{"type": "function_call_output", "call_id": "c", "output": "done"}, {"role": "user", "content": "and?"}], "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}]}`, nil, 200, `"text":"and?"`},
		{"the places of images", "/v1/chat/completions/render", `{"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "See"}, {"type": "image_url", "image_url": {"url": "http://a/b.png"}}]}]}`, nil, 200, `"mm_placeholders":{"image":[{"offset":6,"length":`},
		{"blocks", "/metrics", "", nil, 200, `vllm:cache_config_info{block_size="8",num_gpu_blocks="1024"} 1`},
		{"metrics", "/metrics", "", nil, 200, `vllm:request_success_total{finish_reason="stop",model_name="m"} `},
		{"a name that metrics had", "/metrics", "", nil, 200, `vllm:time_per_output_token_seconds_bucket{model_name="m",le="1"} `},
	} {
		t.Run(test.name, func(t *testing.T) {
			status, header, answer := s.ask(t, test.path, test.body, test.headers...)
			if header.Get("X-Request-Id") != "" {
				t.Error("the answer has X-Request-Id")
			}
			if status != test.status || !strings.Contains(answer, test.want) {
				t.Errorf("status %d, want %d with %s: %s", status, test.status, test.want, answer)
			}
		})
	}
	_, _, answer := s.ask(t, "/v1/models", "")
	var models struct{ Data []struct{ ID, Root string } }
	if err := json.Unmarshal([]byte(answer), &models); err != nil || len(models.Data) != 3 || models.Data[2].Root != "/no/such/path" {
		t.Errorf("models: %v, %s", err, answer)
	}
}
