package builtin

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/player"
)

// allocating returns how many bytes are allocated while f runs.
func allocating(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// measured answers a request in this process, and returns how many bytes were allocated meanwhile.
func measured(s *Server, ctx context.Context, method, path, body string) (*httptest.ResponseRecorder, uint64) {
	r := httptest.NewRequestWithContext(ctx, method, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	return w, allocating(func() {
		defer func() {
			if reason := recover(); reason != nil && reason != http.ErrAbortHandler {
				panic(reason)
			}
		}()
		s.ServeHTTP(w, r)
	})
}

// Numbers, lists and texts that are too large are refused before memory is taken for them.
func TestLimits(t *testing.T) {
	_, s, _ := serving(t, func(o *player.Options) { o.LoRA.MaxLoRAs = 1 })
	list := func(one string, n int) string { return strings.Repeat(one+",", n-1) + one }
	ids, words := list("7", 1<<20), list(`"x"`, 1025)
	biases := make([]string, 1025)
	for i := range biases {
		biases[i] = fmt.Sprintf(`"%d":1`, i)
	}
	deep := strings.Repeat("[", 100) + strings.Repeat("]", 100)
	const completions, chat = "/v1/completions", "/v1/chat/completions"
	for _, test := range []struct{ name, path, body, param, want string }{
		{"an overflow of n", completions, `{"prompt":["a","b"],"n":4611686018427387904}`, "null", ""},
		{"an overflow of n in 32 bits", completions, `{"prompt":["a","b"],"n":2147483648}`, `"n"`, "at most 1024"},
		{"n of a chat", chat, `{"messages":[{"role":"user","content":"a"}],"n":4294967295}`, `"n"`, "at most 1024"},
		{"prompts times n", completions, `{"prompt":["a","b","c"],"n":512}`, `"prompt"`, "more than 1024 answers"},
		{"prompts alone", completions, `{"prompt":[` + list(`"a"`, 1025) + `]}`, `"prompt"`, "more than 1024 answers"},
		{"lists of ids", completions, `{"prompt":[` + list("[1]", 1025) + `]}`, `"prompt"`, "more than 1024 answers"},
		{"max_tokens", completions, `{"prompt":"a","max_tokens":9223372036854775807}`, "null", ""},
		{"top_k", completions, `{"prompt":"a","top_k":4294967296}`, "null", ""},
		{"logprobs below -1", completions, `{"prompt":"a","logprobs":-2}`, `"logprobs"`, "at least 0"},
		{"logprobs below -1 of a chat", chat, `{"messages":[{"role":"user","content":"a"}],"logprobs":true,"top_logprobs":-5}`, `"top_logprobs"`, "at least 0"},
		{"logprobs below -1 of a response", "/v1/responses", `{"input":"a","include":["message.output_text.logprobs"],"top_logprobs":-2147483648}`, `"top_logprobs"`, "at least 0"},
		{"logprobs below -1 of ids", "/inference/v1/generate", `{"token_ids":[1],"sampling_params":{"logprobs":-2}}`, `"logprobs"`, "at least 0"},
		{"logprobs below -1 of a prompt", completions, `{"prompt":"a","prompt_logprobs":-3}`, `"prompt_logprobs"`, "at least 0"},
		{"truncate_prompt_tokens", completions, `{"prompt":"a","truncate_prompt_tokens":-9223372036854775808}`, "null", ""},
		{"stop_token_ids", completions, `{"prompt":"a","n":1024,"stop_token_ids":[` + ids + `]}`, `"stop_token_ids"`, "at most 1024"},
		{"stop_token_ids of one answer", completions, `{"prompt":"a","stop_token_ids":[` + ids + `,7]}`, `"stop_token_ids"`, "at most 1048576"},
		{"allowed_token_ids", completions, `{"prompt":"a","n":1024,"allowed_token_ids":[` + ids + `]}`, `"allowed_token_ids"`, "at most 1024"},
		{"bad_words", chat, `{"messages":[{"role":"user","content":"a"}],"bad_words":[` + words + `]}`, `"bad_words"`, "at most 1024"},
		{"a long bad word", chat, `{"messages":[{"role":"user","content":"a"}],"bad_words":["` + strings.Repeat("a", 1<<20) + `"]}`, `"bad_words"`, "more than 16384 tokens"},
		{"logit_bias", completions, `{"prompt":"a","logit_bias":{` + strings.Join(biases, ",") + `}}`, `"logit_bias"`, "at most 1024"},
		{"a prompt that does not fit", completions, `{"prompt":"` + strings.Repeat("a", 1<<20) + `"}`, `"input_tokens"`, "maximum context length is 4096"},
		{"a chat that does not fit", chat, `{"messages":[{"role":"user","content":"` + strings.Repeat("a", 1<<20) + `"}]}`, `"input_tokens"`, "maximum context length is 4096"},
		{"deep vllm_xargs", completions, `{"prompt":"a","vllm_xargs":{"a":` + deep + `}}`, "null", "nested more than 64 deep"},
		{"deep kv_transfer_params", chat, `{"messages":[{"role":"user","content":"a"}],"kv_transfer_params":{"a":` + deep + `}}`, "null", "nested more than 64 deep"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w, allocated := measured(s, t.Context(), http.MethodPost, test.path, test.body)
			text := w.Body.String()
			require.True(t, w.Code == http.StatusBadRequest && strings.Contains(text, test.want) && strings.Contains(text, `"param":`+test.param), "got %d %.300s", w.Code, text)
			if limit := uint64(1<<20 + 30*len(test.body)); allocated > limit {
				t.Errorf("%d bytes were allocated for a body of %d, want at most %d", allocated, len(test.body), limit)
			}
		})
	}
}

// Lists of a request are not copied for each of its answers.
func TestListsAreShared(t *testing.T) {
	_, s, _ := serving(t, nil)
	text := `{"messages":[{"role":"user","content":"a"}],"max_tokens":1,"temperature":1,"n":%d,"bad_words":["` + strings.Repeat("word ", 2000) + `"]}`
	_, one := measured(s, t.Context(), http.MethodPost, "/v1/chat/completions", fmt.Sprintf(text, 1))
	w, many := measured(s, t.Context(), http.MethodPost, "/v1/chat/completions", fmt.Sprintf(text, 512))
	require.True(t, w.Code == http.StatusOK && many <= one+512*(16<<10), "status %d: 512 answers take %d bytes, and one %d", w.Code, many, one)
}

// Answers that are not streamed are refused when they have more bytes together than the server holds, also that of
// another request; what they had is free again.
func TestHeldAnswers(t *testing.T) {
	_, s, source := serving(t, nil)
	source.set(strings.Repeat("a ", 100))
	s.maxHeld = 100 * (heldToken + 6*heldCandidate)
	for _, test := range []struct {
		body string
		code int
	}{
		{`{"prompt":"a","max_tokens":90,"logprobs":5,"ignore_eos":true}`, http.StatusOK},
		{`{"prompt":"a","max_tokens":90,"logprobs":20,"ignore_eos":true}`, http.StatusServiceUnavailable},
		{`{"prompt":"a","max_tokens":90,"logprobs":5,"ignore_eos":true,"n":2,"stop":["nothing"]}`, http.StatusServiceUnavailable},
		{`{"prompt":"a","max_tokens":90,"logprobs":20,"ignore_eos":true,"stream":true}`, http.StatusOK},
		{`{"prompt":"a","max_tokens":90,"logprobs":5,"ignore_eos":true}`, http.StatusOK},
	} {
		w, _ := measured(s, t.Context(), http.MethodPost, "/v1/completions", test.body)
		require.Equal(t, w.Code, test.code, "%s: %.300s", test.body, w.Body)
		require.Equal(t, s.held.Load(), 0, "%s: bytes are counted after it", test.body)
	}
	s.held.Store(s.maxHeld)
	w, _ := measured(s, t.Context(), http.MethodPost, "/v1/completions", `{"prompt":"a","max_tokens":1}`)
	require.Equal(t, w.Code, http.StatusServiceUnavailable, "beside others: %.300s", w.Body)
}

// A client that closes its side of the connection, which ends its request, must not get a success.
func TestHalfClosed(t *testing.T) {
	for _, stream := range []bool{false, true} {
		t.Run(fmt.Sprintf("stream=%t", stream), func(t *testing.T) {
			url, s, source := serving(t, func(o *player.Options) {
				o.Timing.Pace, o.Timing.Latency = player.PaceModelled, &player.LatencyTimes{InterTokenLatency: 1e6, LoadFactor: 1}
			})
			source.set("...")
			conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
			require.NoError(t, err)
			defer conn.Close()
			body := fmt.Sprintf(`{"prompt":"a","max_tokens":4000,"stream":%t}`, stream)
			_, err = fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			require.NoError(t, err)
			await(t, s, "vllm:num_requests_running", "1")
			require.NoError(t, conn.(*net.TCPConn).CloseWrite())
			text, _ := io.ReadAll(conn)
			if stream && strings.HasSuffix(string(text), "0\r\n\r\n") || !stream && len(text) > 0 {
				t.Errorf("got %q", text[max(len(text)-300, 0):])
			}
		})
	}
}

// FuzzEndpoints sends any body to every endpoint: what is allocated for it, and how long it takes, has a bound.
func FuzzEndpoints(f *testing.F) {
	_, s, _ := serving(f, func(o *player.Options) { o.LoRA.MaxLoRAs, o.Limits.MaxModelLen = 2, 64 })
	paths := slices.DeleteFunc(slices.Sorted(maps.Keys(s.routes)), func(path string) bool {
		return path == "/sleep" || path == "/pause" // requests wait for their contrary
	})
	for i := range paths {
		for _, body := range []string{
			`{"prompt":["a","b"],"n":4611686018427387904}`, `{"prompt":"a","n":1024,"stop_token_ids":[1,2,3],"max_tokens":-1}`,
			`{"messages":[{"role":"user","content":"Hi"}],"max_tokens":3,"stream":true,"tools":[{"type":"function","function":{"name":"f"}}]}`,
			`{"prompt":[1,2,3],"logprobs":2147483647,"prompt_logprobs":-2147483649,"temperature":1e308}`,
			`{"model":"m","input":"Hi","max_output_tokens":1e3,"top_logprobs":20,"include":["message.output_text.logprobs"]}`,
			`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"Hi"}]}],"max_tokens":4}`,
			`{"token_ids":[1,2,3],"sampling_params":{"max_tokens":4,"logit_bias":{"18446744073709551616":1}}}`,
			`{"prompt":"a","vllm_xargs":{"a":[[[[{}]]]]},"bad_words":["a","b"],"allowed_token_ids":[4294967295]}`,
			`{"input":"a","messages":[{"role":"user","content":"a"}],"logprobs":true,"top_logprobs":-5,"include":["message.output_text.logprobs"]}`,
			`{"token_ids":[1],"sampling_params":{"max_tokens":0,"repetition_detection":{"max_pattern_size":4294967295,"min_pattern_size":1,"min_count":4294967295}}}`,
			`{"lora_name":"a","lora_path":"b"}`, `{"tokens":[1,4294967295]}`, `{"request_ids":["a"]}`, `{"method":"m","args":[1e999]}`,
		} {
			f.Add(uint8(i), body)
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, body string) {
		path := paths[int(which)%len(paths)]
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		_, allocated := measured(s, ctx, s.routes[path].method, path, body)
		require.True(t, ctx.Err() == nil, "%s did not answer in time", path)
		if limit := uint64(96<<20 + 2000*len(body)); allocated > limit {
			t.Errorf("%s: %d bytes were allocated for a body of %d, want at most %d", path, allocated, len(body), limit)
		}
	})
}
