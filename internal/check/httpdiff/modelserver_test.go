package httpdiff

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// TestGateway: what a gateway adds is left out, and what it loses is found.
func TestGateway(t *testing.T) {
	a, b := newFake(t), newFake(t)
	a.headers["Vary"], a.headers["X-Served-By"], a.headers["X-Request-Id"], b.headers["X-Request-Id"] = "origin", "me", "cmpl-0123456789abcdef", "0123456789abcdef"
	a.status["/v1/nothing"], a.replace["/v1/nothing"] = 422, "no such path"
	a.replace["/v1/chat/completions"] = strings.Replace(fakeStream, `"usage"`, `"use"`, 1)
	a.replace["/metrics"] = "# TYPE gateway gauge\n"
	corpus, err := ParseCorpus("fake", strings.Replace(fakeCorpus, "a/metrics", "server/metrics", 1))
	require.NoError(t, err)
	opt := Options{A: Side{URL: a.URL}, B: Side{URL: b.URL}, Requests: corpus, Gateway: true}
	r, err := Run(t.Context(), opt)
	require.NoError(t, err)
	if want := []string{
		`a/stream stream order: choices no choice [DONE] | choices usage [DONE]`,
		`a/stream stream usage: missing | {"completion_tokens":2}`,
		`a/stream stream use: {"completion_tokens":2} | missing`,
		`a/error status: 422 | 404`,
	}; cmp.Diff(want, shown(r)) != "" || r.Requests != 3 {
		t.Errorf("%d requests: %s", r.Requests, cmp.Diff(want, shown(r)))
	}

	// The differences can be written down. Without reasons they cannot be read, with reasons they are known.
	text, added, err := r.WriteKnown()
	require.NoError(t, err)
	if _, err := ReadKnown("known.toml", text); added != 4 || err == nil || !strings.Contains(err.Error(), "reason must not be empty") {
		t.Errorf("%d added: %v:\n%s", added, err, text)
	}
	opt.Known, err = ReadKnown("known.toml", strings.ReplaceAll(text, `reason = ""`, `reason = "a test"`))
	require.NoError(t, err)
	r, err = Run(t.Context(), opt)
	require.NoError(t, err)
	if len(r.Unknown()) != 0 || len(r.Unused) != 0 || r.Expected != 2 {
		t.Errorf("%d unknown, %d unused, %d requests with known differences", len(r.Unknown()), len(r.Unused), r.Expected)
	}
	if again, added, err := r.WriteKnown(); err != nil || added != 0 || strings.Count(again, "a test") != 4 {
		t.Errorf("what is known is not written again: %v\n%s", err, again)
	}
}

func shown(r *Report) (all []string) {
	for _, d := range r.Differences {
		all = append(all, fmt.Sprintf("%s %s: %s | %s", d.Request, d.What, d.A, strings.Split(d.B, ": ")[0]))
	}
	return all
}

const fakeMetrics = `# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{model_name="m"} 0
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="m"} {{running}}
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{model_name="m"} 0.{{running}}
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1
# TYPE vllm:lora_requests_info gauge
vllm:lora_requests_info{max_lora="1",running_lora_adapters="",waiting_lora_adapters=""} 10
vllm:lora_requests_info{max_lora="1",running_lora_adapters="b,a",waiting_lora_adapters=""} 20
`

// TestModelServer: each thing that a picker reads is found if it is wrong.
func TestModelServer(t *testing.T) {
	for _, tt := range []struct {
		name     string
		from, to string // in the metrics, or in the answers
		want     []string
	}{
		{name: "nothing"},
		{"a metric is missing", "vllm:num_requests_waiting", "other", []string{"GET /metrics vllm:num_requests_waiting metric vllm:num_requests_waiting: missing | gauge"}},
		{"another type", "kv_cache_usage_perc gauge", "kv_cache_usage_perc counter", []string{"GET /metrics vllm:kv_cache_usage_perc metric vllm:kv_cache_usage_perc (type): counter | gauge"}},
		{"percent", "0.{{running}}", "{{running}}0", []string{"GET /metrics vllm:kv_cache_usage_perc metric vllm:kv_cache_usage_perc (value): 10 | 0 to 1"}},
		{"never free", "0.{{running}}", "0.5", []string{
			"GET /metrics vllm:kv_cache_usage_perc metric vllm:kv_cache_usage_perc while nothing runs: 0.5 | 0",
			"GET /metrics vllm:kv_cache_usage_perc metric vllm:kv_cache_usage_perc when its client has left: 0.5 | 0",
		}},
		{"no number", `block_size="16"`, `block_size="None"`, []string{`GET /metrics vllm:cache_config_info metric vllm:cache_config_info (label block_size): "None" | a number`}},
		{"no label", `waiting_lora_adapters`, `waiting`, []string{`GET /metrics vllm:lora_requests_info metric vllm:lora_requests_info (label waiting_lora_adapters): missing | this label`}},
		{"another adapter", `"b,a"`, `"b"`, []string{`GET /metrics vllm:lora_requests_info metric vllm:lora_requests_info while a request with an adapter runs: "b" | a`}},
		{"no usage", `"usage"`, `"use"`, []string{"POST /v1/completions body usage: missing | an answer with usage", "POST /v1/chat/completions body usage: missing | an answer with usage"}},
		{"no endpoint", "/render", "/rendered", []string{"POST /v1/completions/render status: 404:  | 200"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			running := make(chan struct{}, 1)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				edit := func(text string) string { return strings.ReplaceAll(text, tt.from, tt.to) }
				body, _ := io.ReadAll(r.Body)
				path := r.URL.Path
				if tt.from != "" {
					path = edit(path)
				} else {
					edit = func(text string) string { return text }
				}
				switch path {
				case "/metrics":
					_, _ = io.WriteString(w, strings.ReplaceAll(edit(fakeMetrics), "{{running}}", fmt.Sprint(len(running))))
				case "/health":
				case "/v1/models":
					_, _ = io.WriteString(w, `{"object": "list", "data": [{"id": "m", "parent": null}, {"id": "a", "parent": "m"}]}`)
				case "/v1/completions", "/v1/chat/completions", "/v1/completions/render":
					if strings.Contains(string(body), `"stream": true`) {
						running <- struct{}{}
						<-r.Context().Done()
						<-running
						return
					}
					_, _ = io.WriteString(w, edit(`{"choices": [], "usage": {}}`))
				default:
					w.WriteHeader(http.StatusNotFound)
				}
			}))
			defer server.Close()
			r, err := ModelServer(t.Context(), Options{A: Side{URL: server.URL}, Timeout: time.Minute, Settle: 30 * time.Second})
			require.NoError(t, err)
			require.NoDiff(t, cmp.Diff(tt.want, shown(r)), "differences (-want +got)")
			require.True(t, r.Requests == 10 && r.Note == "", "%d checks, note %q", r.Requests, r.Note)
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := ModelServer(ctx, Options{A: Side{URL: "http://127.0.0.1:1"}, Timeout: time.Minute}); err == nil {
		t.Error("no error without a server")
	}
}
