package builtin

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/internal/engine/tokenizer"
	"github.com/vllm-vcr/conformance/internal/serve/enginepb"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/player"
)

var update = flag.Bool("update", false, "write what was answered into the scripts")

// said is a source that answers with given texts, and then with the end. A text of "..." never ends.
type said struct {
	tok *tokenizer.Tokenizer

	mu   sync.Mutex
	text string
}

func (s *said) set(text string) {
	s.mu.Lock()
	s.text = text
	s.mu.Unlock()
}

func (s *said) Script(r *player.Request) (player.Script, error) {
	s.mu.Lock()
	text := s.text
	s.mu.Unlock()
	script := player.Script{Stops: true, CachedTokens: player.LookUp, Finish: player.FinishLength}
	if text == "error" {
		script.Finish = player.FinishError
		return script, nil
	}
	again := s.tok.Encode(" on")
	if text == "..." {
		script.Fill = func(int) uint32 { return again[0] }
		return script, nil
	}
	script.Tokens = append(s.tok.Encode(text), 2)
	script.Finish = player.FinishStop
	return script, nil
}

// serving starts a server of the tiny model whose answers are those of the source.
func serving(t testing.TB, change func(*player.Options), args ...string) (url string, s *Server, source *said) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"} {
		text, err := vcr.Files.ReadFile(vcr.ModelPath + "/" + name)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	return servingModel(t, dir, change, args...)
}

func servingModel(t testing.TB, dir string, change func(*player.Options), args ...string) (url string, s *Server, source *said) {
	t.Helper()
	tok, err := tokenizer.Load(dir)
	require.NoError(t, err)
	source = &said{tok: tok, text: "Hello there."}
	opt := player.Options{VLLMVersion: "0.33", Vocab: uint32(tok.VocabSize())}
	opt.Limits.MaxModelLen = 4096
	opt.Source = &player.Structured{Source: source, Encoder: tok, Answered: player.ToolAnswered(tok.Decode)}
	if change != nil {
		change(&opt)
	}
	group, err := player.NewGroup([]player.Options{opt})
	require.NoError(t, err)
	flags, err := ParseFlags(args)
	require.NoError(t, err)
	s, err = New(Options{Flags: flags, Tasks: opt.Pooling.Tasks, Group: group, Names: []string{"m", "alias"}, Dir: dir, Tokenizer: tok, Release: "0.33.0", LoRA: opt.LoRA.MaxLoRAs > 0, Env: []string{"VLLM_SERVER_DEV_MODE=1", "VLLM_ENABLE_SCALE_OUT_ENDPOINTS=1"}})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	server := httptest.NewServer(s)
	t.Cleanup(func() {
		server.Close()
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the engine ended: %v", err)
		}
	})
	return server.URL, s, source
}

var (
	times   = regexp.MustCompile(`"(created|created_at)":\d+`)
	callIDs = regexp.MustCompile(`call_[0-9a-f]{16}|((?:rs|msg|fc)_|chatcmpl-tool-|"signature":")[0-9a-f]{32}`)
	folders = regexp.MustCompile(`"root":"/[^"]*"`)
)

// TestScripts sends the requests of testdata/*.txt. The answer is below the line, but for times and random ids. The
// answers were compared with those of vllm-rs 0.33.0, as `vllm-vcr conform http` does it.
func TestScripts(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	if len(paths) == 0 {
		t.Fatal("no scripts")
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			var flags []string
			if filepath.Base(path) == "reasoning.txt" {
				flags = []string{"--reasoning-parser", "qwen3"}
			}
			start := serving
			if filepath.Base(path) == "images.txt" {
				flags = []string{"--enable-prompt-tokens-details", "--limit-mm-per-prompt", `{"image":2,"video":{"num_frames":8}}`}
				start = func(t testing.TB, change func(*player.Options), args ...string) (string, *Server, *said) {
					return servingModel(t, visionModel(t, ""), change, args...)
				}
			}
			url, _, source := start(t, func(o *player.Options) {
				o.LoRA.MaxLoRAs = 2
				if filepath.Base(path) == "embeddings.txt" {
					o.Pooling = player.PoolingOptions{Tasks: []string{"embed"}, Size: 2}
				}
			}, flags...)
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			var got bytes.Buffer
			for i, one := range strings.Split(string(text), "\n== ") {
				if i == 0 {
					got.WriteString(one)
					continue
				}
				name, rest, _ := strings.Cut(one, "\n")
				question, _, ok := strings.Cut(rest, "\n----\n")
				if !ok {
					t.Fatalf("%s: no ---- below the request", name)
				}
				fmt.Fprintf(&got, "\n== %s\n%s\n----\n%s\n", name, question, ask(t, url, source, question))
			}
			if *update {
				require.NoError(t, os.WriteFile(path, got.Bytes(), 0o600))
			} else if diff := cmp.Diff(string(text), got.String()); diff != "" {
				t.Errorf("answers (-want +got); go test -run TestScripts -update writes them:\n%s", diff)
			}
		})
	}
}

// ask sends a request: a line "answer TEXT" if it wants another one, METHOD PATH, and the body.
func ask(t *testing.T, url string, source *said, question string) string {
	t.Helper()
	source.set("Hello there.")
	if rest, ok := strings.CutPrefix(question, "answer "); ok {
		text, after, _ := strings.Cut(rest, "\n")
		source.set(text)
		question = after
	}
	head, body, _ := strings.Cut(question, "\n")
	method, path, _ := strings.Cut(head, " ")
	r, err := http.NewRequest(method, url+path, strings.NewReader(body))
	require.NoError(t, err)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Request-Id", "r")
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	if kind := answer.Header.Get("Content-Type"); strings.HasPrefix(kind, "text/event-stream") && answer.ContentLength >= 0 {
		t.Errorf("%s: a stream has a length of %d bytes, want chunks as from other frontends", body, answer.ContentLength)
	}
	out := strings.TrimSpace(fmt.Sprintf("%d %s\n%s", answer.StatusCode, answer.Header.Get("Content-Type"), text))
	out = times.ReplaceAllString(out, `"$1":0`)
	out = callIDs.ReplaceAllStringFunc(out, func(id string) string { return strings.TrimRight(id, "0123456789abcdef") + "0" })
	return folders.ReplaceAllString(out, `"root":"/model"`)
}

// post sends a body to a path of the server.
func post(ctx context.Context, url, path, body string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	return http.DefaultClient.Do(r)
}

// value is that of a metric without other labels than model and engine.
func value(s *Server, name string) string {
	for line := range strings.Lines(string(s.metrics.render())) {
		if rest, ok := strings.CutPrefix(line, name+`{model_name="m",engine="0"`); ok {
			_, number, _ := strings.Cut(rest, "} ")
			return strings.TrimSpace(number)
		}
	}
	return ""
}

// await waits until a metric has a value.
func await(t *testing.T, s *Server, name, want string) {
	t.Helper()
	for value(s, name) != want {
		select {
		case <-t.Context().Done():
			t.Fatalf("%s is %s, want %s", name, value(s, name), want)
		default:
			_, _ = s.call(t.Context(), "is_sleeping") // the engine has done something then
		}
	}
}

func TestClientLeaves(t *testing.T) {
	for _, stream := range []bool{true, false} {
		t.Run(fmt.Sprintf("stream=%t", stream), func(t *testing.T) {
			url, s, source := serving(t, func(o *player.Options) {
				o.Timing.Pace, o.Timing.Latency = player.PaceModelled, &player.LatencyTimes{InterTokenLatency: 1e6, LoadFactor: 1}
			})
			source.set("...")
			ctx, cancel := context.WithCancel(t.Context())
			left := make(chan struct{})
			go func() {
				defer close(left)
				answer, err := post(ctx, url, "/v1/completions", fmt.Sprintf(`{"prompt":"a","max_tokens":4000,"n":2,"stream":%t}`, stream))
				if err == nil {
					_, _ = io.Copy(io.Discard, answer.Body)
					answer.Body.Close()
				}
			}()
			await(t, s, "vllm:num_requests_running", "2")
			cancel()
			<-left
			await(t, s, "vllm:num_requests_running", "0")
			require.Equal(t, value(s, "vllm:kv_cache_usage_perc"), "0", "the KV cache is used to after the client left")
		})
	}
}

// TestSlowReader lets a client read nothing: its request stops, others go on, and it gets everything in the end.
func TestSlowReader(t *testing.T) {
	url, s, source := serving(t, func(o *player.Options) { o.Limits.MaxModelLen = 1 << 20; o.KVCache.NumGPUBlocks = 1 << 17 })
	s.maxModelLen = 1 << 20
	source.set("...")
	const wanted = 400_000 // tokens, more than sockets and buffers hold
	slow, err := post(t.Context(), url, "/v1/completions", fmt.Sprintf(`{"prompt":"a","max_tokens":%d,"stream":true}`, wanted))
	require.NoError(t, err)
	defer slow.Body.Close()
	// The engine waits for the reader when it makes no token in many turns.
	now := ""
	for turns := 0; turns < 200; turns++ {
		if n := value(s, "vllm:generation_tokens_total"); n != now || n == "0" {
			now, turns = n, 0
		}
		_, err := s.call(t.Context(), "is_sleeping")
		require.NoError(t, err)
	}
	if now == fmt.Sprint(wanted) {
		t.Fatalf("%s tokens were generated for a client that reads nothing", now)
	}
	text, err := io.ReadAll(slow.Body)
	require.NoError(t, err)
	if n := strings.Count(string(text), `"text":" on"`); n != wanted || !strings.HasSuffix(string(text), "data: [DONE]\n\n") {
		t.Errorf("%d tokens, want %d and [DONE]", n, wanted)
	}
}

// A request that the engine refuses is not counted, as in other frontends.
func TestRefusedIsNotCounted(t *testing.T) {
	url, s, _ := serving(t, nil)
	answer, err := post(t.Context(), url, "/v1/completions", `{"prompt":"a","structured_outputs":{"json":{"type":"strange"}}}`)
	require.NoError(t, err)
	answer.Body.Close()
	if n := value(s, "vllm:e2e_request_latency_seconds_count"); answer.StatusCode != http.StatusBadRequest || n != "0" {
		t.Errorf("status %d, and %s requests are counted", answer.StatusCode, n)
	}
}

// A request is aborted by its id with all its answers, whichever API it came by, and is forgotten then.
func TestAbortOfAllAnswers(t *testing.T) {
	url, s, source := serving(t, func(o *player.Options) {
		o.Timing.Pace, o.Timing.Latency = player.PaceModelled, &player.LatencyTimes{InterTokenLatency: 1e6, LoadFactor: 1}
	})
	source.set("...")
	answered := make(chan string)
	go func() {
		r, err := post(context.Background(), url, "/v1/chat/completions", `{"request_id":"a","n":2,"max_tokens":4000,"messages":[{"role":"user","content":"Hi"}]}`)
		if err != nil {
			answered <- err.Error()
			return
		}
		defer r.Body.Close()
		text, _ := io.ReadAll(r.Body)
		answered <- string(text)
	}()
	await(t, s, "vllm:num_requests_running", "2")
	if _, err := s.rpc.Abort(t.Context(), &enginepb.AbortRequest{RequestIds: []string{"chatcmpl-a"}}); err != nil {
		t.Fatal(err)
	}
	if text := <-answered; strings.Count(text, `"finish_reason":"abort"`) != 2 {
		t.Errorf("got %s", text)
	}
	for noted := true; noted; { // until the handler has ended
		_, _ = s.call(t.Context(), "is_sleeping")
		s.open.mu.Lock()
		noted = len(s.open.byID) != 0
		s.open.mu.Unlock()
	}
}

// What ends an answer comes from generation_config.json, else from config.json, and from the name of a token in
// tokenizer_config.json.
func TestEndsOfAModel(t *testing.T) {
	for _, test := range []struct {
		name, config, generation string
		want                     []uint32
	}{
		{"none", `{}`, `{}`, nil},
		{"without one", `{"eos_token_id": null}`, `{"eos_token_id": null}`, nil},
		{"one", `{"eos_token_id": 7}`, `{}`, []uint32{7}},
		{"several", `{"eos_token_id": [7, 8, 7]}`, `{}`, []uint32{7, 8}},
		{"of the generation", `{"eos_token_id": 7}`, `{"eos_token_id": 9}`, []uint32{9}},
		{"of the text", `{"text_config": {"eos_token_id": 3}}`, `{}`, []uint32{3}},
		{"no ids", `{"eos_token_id": [-1, 5000000000, "x"]}`, `{}`, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			tokenizerJSON, err := vcr.Files.ReadFile(vcr.ModelPath + "/tokenizer.json")
			require.NoError(t, err)
			for name, text := range map[string]string{"config.json": test.config, "generation_config.json": test.generation, "tokenizer_config.json": "{}", "tokenizer.json": string(tokenizerJSON)} {
				require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
			}
			tok, err := tokenizer.Load(dir)
			require.NoError(t, err)
			m, err := readModel(dir, tok)
			require.NoError(t, err)
			require.NoDiff(t, cmp.Diff(test.want, m.eos), "ends")
		})
	}
}
