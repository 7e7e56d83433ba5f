package servetest_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/player"
	"github.com/vllm-vcr/conformance/servetest"
)

// answer is what a test reads of a completion.
type answer struct {
	Choices []struct {
		Text    string
		Message struct {
			Content, Reasoning string
			Calls              []struct {
				Function struct{ Name, Arguments string }
			} `json:"tool_calls"`
		}
		Reason string `json:"finish_reason"`
	}
	Usage struct {
		Tokens int `json:"completion_tokens"`
	}
}

func post(t *testing.T, url string, body map[string]any) (status int, a answer, text string) {
	t.Helper()
	encoded, err := json.Marshal(body)
	require.NoError(t, err)
	got, err := http.Post(url, "application/json", bytes.NewReader(encoded))
	require.NoError(t, err)
	defer got.Body.Close()
	read, err := io.ReadAll(got.Body)
	require.NoError(t, err)
	if got.StatusCode == http.StatusOK && body["stream"] != true && len(read) > 0 && read[0] == '{' {
		require.NoErrorf(t, json.Unmarshal(read, &a), "%s", read)
	}
	return got.StatusCode, a, string(read)
}

// A model that exists nowhere answers chats in sentences, streamed too, calls tools by their schema, takes adapters,
// and has data-parallel engines: with the released frontend and with the one of this process.
func TestServer(t *testing.T) {
	t.Run("vllm-rs", func(t *testing.T) { testServer(t, testenv.Frontend(t, "0.33.0")) })
	t.Run("builtin", func(t *testing.T) { testServer(t, "builtin") })
}

func testServer(t *testing.T, frontend string) {
	server := servetest.Start(t, servetest.Options{Model: "nobody/has-this-model", Frontend: frontend, Engines: 2})
	require.True(t, server.Model == "nobody/has-this-model" && server.Line == "0.33", "model %q, line %q", server.Model, server.Line)
	hello := []map[string]any{{"role": "user", "content": "Hello"}}
	chat := map[string]any{"model": server.Model, "messages": hello, "temperature": 0}
	_, first, text := post(t, server.URL+"/v1/chat/completions", chat)
	if len(first.Choices) != 1 || first.Choices[0].Reason != "stop" || !strings.HasSuffix(first.Choices[0].Message.Content, ".") {
		t.Fatalf("not a sentence: %s", text)
	}
	_, again, _ := post(t, server.URL+"/v1/chat/completions", chat)
	if one, two := first.Choices[0].Message.Content, again.Choices[0].Message.Content; one != two {
		t.Errorf("temperature 0 gave two answers: %q and %q", one, two)
	}
	chat["stream"] = true
	if _, _, text := post(t, server.URL+"/v1/chat/completions", chat); !strings.HasSuffix(strings.TrimSpace(text), "data: [DONE]") {
		t.Errorf("the stream is not whole: %s", text)
	}
	_, long, text := post(t, server.URL+"/v1/completions", map[string]any{"model": server.Model, "prompt": "Hi", "max_tokens": 500, "ignore_eos": true})
	require.Equal(t, long.Usage.Tokens, 500, "ignore_eos: tokens: %s", text)
	tool := map[string]any{"type": "function", "function": map[string]any{"name": "weather", "parameters": map[string]any{
		"type": "object", "properties": map[string]any{"city": map[string]any{"type": "string"}}, "required": []string{"city"},
	}}}
	for _, choice := range []string{"auto", "required"} {
		_, called, text := post(t, server.URL+"/v1/chat/completions", map[string]any{"model": server.Model, "messages": hello, "tools": []any{tool}, "tool_choice": choice})
		if len(called.Choices) != 1 || len(called.Choices[0].Message.Calls) == 0 {
			t.Fatalf("tool_choice %s: no call: %s", choice, text)
		}
		var arguments struct{ City *string }
		if err := json.Unmarshal([]byte(called.Choices[0].Message.Calls[0].Function.Arguments), &arguments); err != nil || arguments.City == nil {
			t.Errorf("tool_choice %s: the required key is missing: %v: %s", choice, err, text)
		}
	}
	// An agent that returns the result of a call gets a text.
	turns := append(hello, map[string]any{"role": "assistant", "tool_calls": []any{map[string]any{
		"id": "call", "type": "function", "function": map[string]any{"name": "weather", "arguments": `{"city":"Rome"}`},
	}}}, map[string]any{"role": "tool", "tool_call_id": "call", "content": "sunny"})
	_, after, text := post(t, server.URL+"/v1/chat/completions", map[string]any{"model": server.Model, "messages": turns, "tools": []any{tool}})
	require.True(t, len(after.Choices) == 1 && len(after.Choices[0].Message.Calls) == 0 && after.Choices[0].Reason == "stop", "after the result of a tool: want a text: %s", text)
	adapter := map[string]any{"lora_name": "adapter", "lora_path": t.TempDir()}
	if status, _, text := post(t, server.URL+"/v1/load_lora_adapter", adapter); status != http.StatusOK {
		t.Errorf("load an adapter: %d: %s", status, text)
	}
	if status, _, text := post(t, server.URL+"/v1/completions", map[string]any{"model": "adapter", "prompt": "Hi", "max_tokens": 1}); status != http.StatusOK {
		t.Errorf("use an adapter: %d: %s", status, text)
	}
	if status, _, text := post(t, server.URL+"/v1/unload_lora_adapter", adapter); status != http.StatusOK {
		t.Errorf("unload an adapter: %d: %s", status, text)
	}
	metrics, err := http.Get(server.URL + "/metrics")
	require.NoError(t, err)
	defer metrics.Body.Close()
	if text, err := io.ReadAll(metrics.Body); err != nil || !strings.Contains(string(text), `num_gpu_blocks="8192"`) || !strings.Contains(string(text), `max_lora="16"`) {
		t.Errorf("the metrics lack values of the engine: %v: %s", err, text)
	}
	server.Close()
	require.NoErrorf(t, server.Wait(t.Context()), "after Close")
}

// Embeddings of the builtin frontend: a vector of the model's size for each input, the same for the same text, as
// numbers or in base64.
func TestEmbeddings(t *testing.T) {
	server := servetest.Start(t, servetest.Options{Frontend: "builtin", Player: player.Options{Pooling: player.PoolingOptions{Tasks: []string{"embed"}}}})
	embed := func(format string) (vectors []json.RawMessage, tokens int) {
		status, _, text := post(t, server.URL+"/v1/embeddings", map[string]any{"model": server.Model, "input": []string{"one", "two", "one"}, "encoding_format": format})
		var answer struct {
			Data []struct {
				Index     int
				Embedding json.RawMessage
			}
			Usage struct {
				Tokens int `json:"prompt_tokens"`
			}
		}
		if err := json.Unmarshal([]byte(text), &answer); err != nil || status != http.StatusOK || len(answer.Data) != 3 {
			t.Fatalf("status %d, %v: %s", status, err, text)
		}
		for i, d := range answer.Data {
			require.True(t, d.Index == i, "embedding %d has index %d", i, d.Index)
			vectors = append(vectors, d.Embedding)
		}
		return vectors, answer.Usage.Tokens
	}
	numbers, tokens := embed("float")
	var first, second []float32
	require.NoError(t, errors.Join(json.Unmarshal(numbers[0], &first), json.Unmarshal(numbers[1], &second)))
	if tokens < 3 || len(first) == 0 || len(first) != len(second) || slices.Equal(first, second) || string(numbers[0]) != string(numbers[2]) {
		t.Errorf("%d tokens, vectors of %d and %d numbers", tokens, len(first), len(second))
	}
	encoded, _ := embed("base64")
	var raw []byte
	if err := json.Unmarshal(encoded[0], &raw); err != nil || len(raw) != 4*len(first) || math.Float32frombits(binary.LittleEndian.Uint32(raw)) != first[0] {
		t.Errorf("base64: %d bytes of %d numbers, %v", len(raw), len(first), err)
	}
}

// A fault that kills the player ends the frontend too, with an error that says why.
func TestKilledPlayer(t *testing.T) {
	t.Run("vllm-rs", func(t *testing.T) { testKilledPlayer(t, testenv.Frontend(t, "0.33.0")) })
	t.Run("builtin", func(t *testing.T) { testKilledPlayer(t, "builtin") })
}

func testKilledPlayer(t *testing.T, frontend string) {
	server := servetest.Start(t, servetest.Options{Frontend: frontend, Faults: "http-fail:1:429:1s,kill:2"})
	status, _, text := post(t, server.URL+"/v1/completions", map[string]any{"model": server.Model, "prompt": "Hi", "max_tokens": 9})
	require.Equal(t, status, http.StatusTooManyRequests, "status of a request that fails: %s", text)
	status, _, _ = post(t, server.URL+"/v1/completions", map[string]any{"model": server.Model, "prompt": "Hi", "max_tokens": 9})
	require.True(t, status != http.StatusOK, "the request was answered")
	require.ErrorIs(t, server.Wait(t.Context()), player.ErrKilled)
}

// A test chooses answers at the start and later.
func TestAnswers(t *testing.T) {
	server := servetest.Start(t, servetest.Options{
		Frontend: "builtin", Answers: `{"rules": [{"match": {"last_user": "weather"}, "answer": {"text": "Rain."}}]}`,
	})
	ask := func() string {
		_, got, text := post(t, server.URL+"/v1/chat/completions", map[string]any{"model": server.Model, "messages": []map[string]any{{"role": "user", "content": "Which weather?"}}})
		if len(got.Choices) != 1 {
			t.Fatal(text)
		}
		return got.Choices[0].Message.Content
	}
	first := ask()
	require.NoError(t, server.SetAnswers(`{"rules": [{"answer": {"text": "Sun."}}]}`))
	if second := ask(); first != "Rain." || second != "Sun." {
		t.Errorf("got %q and %q", first, second)
	}
	if err := server.SetAnswers(`{"rules": [{"answer": {"reasoning": "why"}}]}`); err == nil || !strings.Contains(err.Error(), "reasoning-parser") {
		t.Errorf("reasoning without a parser: %v", err)
	}
}

// What reached the engine is listed with its prompt, its parameters and its end, whether it was answered, taken back by a client
// that leaves, or refused.
func TestRequests(t *testing.T) {
	t.Run("vllm-rs", func(t *testing.T) { testRequests(t, testenv.Frontend(t, "0.33.0")) })
	t.Run("builtin", func(t *testing.T) { testRequests(t, "builtin") })
}

func testRequests(t *testing.T, frontend string) {
	var args []string
	if frontend == "builtin" { // vllm-rs wants the tokens of a model that thinks
		args = []string{"--reasoning-parser", "qwen3"}
	}
	server := servetest.Start(t, servetest.Options{
		Frontend: frontend, FrontendArgs: args,
		Player: player.Options{Timing: player.Timing{Pace: player.PaceModelled, Latency: &player.LatencyTimes{InterTokenLatency: time.Millisecond}}},
	})
	status, first, text := post(t, server.URL+"/v1/chat/completions", map[string]any{
		"model": server.Model, "messages": []map[string]any{{"role": "user", "content": "Hello"}}, "temperature": 0.25, "max_tokens": 100,
	})
	if status != http.StatusOK || len(first.Choices) != 1 || (first.Choices[0].Message.Reasoning == "") != (args == nil) {
		t.Fatalf("status %d, want an answer, with reasoning if FrontendArgs has its parser: %s", status, text)
	}
	ctx, leave := context.WithCancel(t.Context())
	body := `{"model": "` + server.Model + `", "prompt": "Hi", "max_tokens": 30000, "ignore_eos": true, "stream": true}`
	asked, err := http.NewRequestWithContext(ctx, "POST", server.URL+"/v1/completions", strings.NewReader(body))
	require.NoError(t, err)
	asked.Header.Set("Content-Type", "application/json")
	stream, err := http.DefaultClient.Do(asked)
	require.NoError(t, err)
	_, err = stream.Body.Read(make([]byte, 1))
	require.NoError(t, err)
	leave()
	stream.Body.Close()
	all, err := server.AwaitRequests(t.Context(), 2)
	require.NoError(t, err)
	if len(all) != 2 {
		t.Fatalf("%d requests, want 2", len(all))
	}
	var params struct {
		Temperature float64
		MaxTokens   int `json:"max_tokens"`
	}
	require.NoError(t, json.Unmarshal(all[0].Params, &params))
	if chat := all[0]; !strings.Contains(chat.Prompt, "user\nHello<") || params.Temperature != 0.25 || params.MaxTokens != 100 ||
		!strings.Contains(chat.Output, first.Choices[0].Message.Content) || chat.FinishReason != first.Choices[0].Reason || chat.TTFTMs == nil || *chat.DurationMs <= *chat.TTFTMs {
		t.Errorf("the first request: %+v, params %s", chat, chat.Params)
	}
	if left := all[1]; left.Prompt != "Hi" || left.FinishReason != "abort" || len(left.OutputTokenIDs) == 0 {
		t.Errorf("the request of the client that left: %q, %s, %d tokens", left.Prompt, left.FinishReason, len(left.OutputTokenIDs))
	}
}
