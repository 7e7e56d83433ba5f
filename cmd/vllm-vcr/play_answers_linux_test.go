package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/vllm-vcr/conformance/internal/frontends/openai"
	"github.com/vllm-vcr/conformance/internal/frontends/vllmrs"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// A pairOfTexts is a row of the dataset of these tests.
type pairOfTexts struct {
	Prompt     string `json:"prompt"`
	Completion string `json:"completion"`
}

// spelling are texts that a tokenizer or a template could spoil: white space at their ends, letters of several tokens,
// what looks like special tokens, and long ones.
var spelling = []pairOfTexts{
	{"Say hello", "Hello, wörld! 😀"},
	{"Count\nto three", "1\n2\n3\n"},
	{"  with space  ", "\n\n  indented\n\tand tabbed  "},
	{"Write the end", "It is <|im_end|>, and then <|im_start|>user\nno more <|endoftext|>"},
	{"日本語で", "はい、日本語です。👩‍👩‍👧 e\u0301 é \u00a0\u2028x"},
	{"Be long", strings.Repeat("All work and no play makes Jack a dull boy. ", 60)},
	{"Write JSON", `{"a": [1, 2.5, null], "b": "\"\\\u0000"}`},
	{"One letter", "x"},
}

// answeringServer starts a frontend with the player of the binary behind it, which has the model's tokenizer.
func answeringServer(t *testing.T, version string, args ...string) (server *vllmrs.Server, player *command) {
	t.Helper()
	return playingServer(t, version, append([]string{"--tokenizer", testenv.ModelDir(t)}, args...)...)
}

func playingServer(t *testing.T, version string, args ...string) (server *vllmrs.Server, player *command) {
	t.Helper()
	server, err := vllmrs.Start(t.Context(), vllmrs.Options{
		Binary: testenv.Frontend(t, version), ModelDir: testenv.ModelDir(t), ServedName: "tiny",
	})
	require.NoError(t, err)
	t.Cleanup(func() { server.Close() })
	player = start(t, append([]string{
		"play", "--frontend-handshake", server.Handshake(), "--vllm-version", version,
	}, args...)...)
	require.NoErrorf(t, server.Healthy(t.Context()), "the player said %s", &player.stderr)
	return server, player
}

// stop ends a player as a user does, and returns what it has said.
func (c *command) stop(t *testing.T) string {
	t.Helper()
	require.NoError(t, c.Process.Signal(syscall.SIGTERM))
	require.NoErrorf(t, c.Wait(), "the player ended with: %s", &c.stderr)
	return c.stderr.String()
}

// textOf asks for a text, and returns it with the reason why it ended.
func textOf(t *testing.T, server *vllmrs.Server, path string, body map[string]any, stream bool) (text, reason string) {
	t.Helper()
	client := openai.NewClient(server.URL(), "tiny")
	defer client.Close()
	asked := map[string]any{"model": "tiny", "max_tokens": 2000, "temperature": 0, "stream": stream}
	for key, value := range body {
		asked[key] = value
	}
	if !stream {
		answer, err := client.Send(t.Context(), "POST", path, asked)
		require.True(t, err == nil && answer.Status == 200, "%s: %v, %d: %s", path, err, answer.Status, answer.Body)
		return piece(t, answer.Body)
	}
	events, err := client.Open(t.Context(), path, asked)
	if err != nil {
		t.Errorf("%s: %v", path, err)
		return "", ""
	}
	defer events.Close()
	for {
		data, err := events.Next()
		if errors.Is(err, io.EOF) || string(data) == openai.Done {
			return text, reason
		}
		if err != nil {
			t.Error(err)
			return text, reason
		}
		more, why := piece(t, data)
		text, reason = text+more, reason+why
	}
}

// piece is what an answer or an event says, of completions or of chat.
func piece(t *testing.T, body []byte) (text, reason string) {
	t.Helper()
	var got openai.Response
	require.NoErrorf(t, json.Unmarshal(body, &got), "%s", body)
	if len(got.Choices) == 0 {
		return "", ""
	}
	c := got.Choices[0]
	if c.FinishReason != nil {
		reason = *c.FinishReason
	}
	return c.Content(), reason
}

func user(text string) map[string]any {
	return map[string]any{"messages": []any{map[string]any{"role": "user", "content": text}}}
}

// writeAnswers writes the dataset in which a format a player reads it.
func writeAnswers(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "answers.jsonl")
	var b strings.Builder
	for _, a := range spelling {
		line, err := json.Marshal(a)
		require.NoError(t, err)
		b.Write(append(line, '\n'))
	}
	require.NoError(t, os.WriteFile(path, []byte(b.String()), 0o600))
	return path
}

// TestPlayDataset: behind a real frontend the player gives each completion of a dataset back exactly, as a completion
// and in a chat, streamed and not.
func TestPlayDataset(t *testing.T) {
	for _, version := range testenv.FrontendVersions() {
		t.Run(version, func(t *testing.T) {
			server, player := answeringServer(t, version, "--dataset", writeAnswers(t), "--strict")
			var asking sync.WaitGroup
			for _, a := range spelling {
				for _, stream := range []bool{false, true} {
					for path, body := range map[string]map[string]any{
						"/v1/completions": {"prompt": a.Prompt}, "/v1/chat/completions": user(a.Prompt),
					} {
						asking.Go(func() {
							text, reason := textOf(t, server, path, body, stream)
							require.True(t, text == a.Completion && reason == "stop", "%s, stream %v: %q was answered with %q (%s), want %q", path, stream, a.Prompt, text, reason, a.Completion)
						})
					}
				}
			}
			asking.Wait()
			const want = "\nvllm-vcr: 32 requests: 0 matched by tokens, 16 by text, 16 by their last message, 0 by a beginning, 0 nothing\n"
			require.Contains(t, player.stop(t), want)
		})
	}
}

// TestPlayRewinds: a record that may answer once answers once more after SIGHUP.
func TestPlayRewinds(t *testing.T) {
	recording := filepath.Join(t.TempDir(), "once.jsonl")
	const records = `{"meta":{"block_size":16}}
{"prompt_tokens":1,"output_tokens":3,"ttft_ms":1.0,"itl_ms":[1.0,1.0],"arrival_ms":1.0,"output_token_ids":[70,71,72],"finish_reason":"length","request_id":"cmpl-named-0"}
`
	require.NoError(t, os.WriteFile(recording, []byte(records), 0o644))
	version := testenv.FrontendVersions()[0]
	server, player := playingServer(t, version, "--trace", recording, "--replay-match", "index", "--replay-once", "--strict")
	client := openai.NewClient(server.URL(), "tiny")
	defer client.Close()
	ctx, done := context.WithTimeout(t.Context(), patience)
	defer done()
	ask := func() ([]uint32, error) {
		got, err := client.Complete(ctx, openai.Request{ID: "replay-0", Prompt: []uint32{5}, MaxTokens: 3, IgnoreEOS: true})
		return got.Tokens, err
	}
	want := []uint32{70, 71, 72}
	if got, err := ask(); err != nil || !slices.Equal(got, want) {
		t.Fatalf("got %v, %v; want %v", got, err, want)
	}
	if got, err := ask(); err == nil {
		t.Fatalf("the record has answered twice: %v", got)
	}
	require.NoError(t, player.Process.Signal(syscall.SIGHUP))
	for {
		got, err := ask()
		if err == nil {
			require.True(t, slices.Equal(got, want), "after SIGHUP: %v, want %v", got, want)
			break
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
	player.stop(t)
}
