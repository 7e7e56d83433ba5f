package edge

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func mustURL(text string) *url.URL {
	u, err := url.Parse(text)
	if err != nil {
		panic(err)
	}
	return u
}

// A lockedBuffer is a log that a test waits for.
type lockedBuffer struct {
	mu   sync.Mutex
	text []byte
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text = append(b.text, p...)
	return len(p), nil
}

// wait returns the first line that has part in it.
func (b *lockedBuffer) wait(t *testing.T, part string) string {
	t.Helper()
	for t.Context().Err() == nil {
		b.mu.Lock()
		text := string(b.text)
		b.mu.Unlock()
		for line := range strings.Lines(text) {
			if strings.Contains(line, part) {
				return line
			}
		}
		time.Sleep(time.Millisecond)
	}
	return ""
}

// frontend answers like vllm-rs: one choice for one prompt.
func frontend(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var asked struct {
		Prompt json.RawMessage
		N      *int
		Seed   int
		Stream bool
	}
	if err := json.Unmarshal(body, &asked); err != nil || asked.N != nil || bytes.HasPrefix(asked.Prompt, []byte(`["`)) || bytes.HasPrefix(asked.Prompt, []byte("[[")) {
		apiError{status: 400, message: "one prompt and one answer"}.write(w)
		return
	}
	if string(asked.Prompt) == `"bad"` {
		apiError{status: 400, message: "bad prompt"}.write(w)
		return
	}
	id, size := r.Header.Get("X-Request-Id"), len(asked.Prompt)
	usage := fmt.Sprintf(`{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":1},"completion_tokens_details":null}`, size, size+2)
	if !asked.Stream {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"id":"cmpl-%s","created":1,"choices":[{"index":0,"text":%q,"seed":%d}],"usage":%s,"last":null}`, id, asked.Prompt, asked.Seed, usage)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for range 2 {
		fmt.Fprintf(w, `data: {"id":"cmpl-%s","created":%d,"choices":[{"index":0,"text":%q}]}`+"\n\n", id, size, asked.Prompt)
		flush(w)
	}
	if string(asked.Prompt) == `"fails"` {
		_, _ = io.WriteString(w, `data: {"error":{"message":"failed"}}`+"\n\n")
	}
	if string(asked.Prompt) == `"cut"` {
		panic(http.ErrAbortHandler)
	}
	fmt.Fprintf(w, `data: {"id":"cmpl-%s","created":%d,"choices":[],"usage":%s}`+"\n\ndata: [DONE]\n\n", id, size, usage)
}

func TestFanOut(t *testing.T) {
	for _, test := range []struct{ name, path, body, want string }{
		{"one", "/v1/completions", `{"prompt":"a"}`, `{"id":"cmpl-rid","created":1,"choices":[{"index":0,"text":"\"a\"","seed":0}],"usage":{"prompt_tokens":3,"total_tokens":5,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":1},"completion_tokens_details":null},"last":null}`},
		{"two answers", "/v1/completions", `{"prompt":"a","n":2,"seed":7}`, `{"id":"cmpl-rid","created":1,"choices":[{"index":0,"text":"\"a\"","seed":7},{"index":1,"text":"\"a\"","seed":8}],"usage":{"prompt_tokens":3,"total_tokens":7,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":1},"completion_tokens_details":null},"last":null}`},
		{"two prompts", "/v1/completions", `{"prompt":["a","bb"]}`, `{"id":"cmpl-rid","created":1,"choices":[{"index":0,"text":"\"a\"","seed":0},{"index":1,"text":"\"bb\"","seed":0}],"usage":{"prompt_tokens":7,"total_tokens":11,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":2},"completion_tokens_details":null},"last":null}`},
		{"both, of tokens", "/v1/completions", `{"prompt":[[1],[2,3]],"n":2,"best_of":2,"seed":1}`, `{"id":"cmpl-rid","created":1,"choices":[{"index":0,"text":"[1]","seed":1},{"index":1,"text":"[1]","seed":2},{"index":2,"text":"[2,3]","seed":1},{"index":3,"text":"[2,3]","seed":2}],"usage":{"prompt_tokens":8,"total_tokens":16,"completion_tokens":8,"prompt_tokens_details":{"cached_tokens":2},"completion_tokens_details":null},"last":null}`},
		{"an array of one", "/v1/completions", `{"prompt":["a"]}`, `"text":"\"a\""`},
		{"a prompt of tokens", "/v1/completions", `{"prompt":[1,2]}`, `"text":"[1,2]"`},
		{"chat", "/v1/chat/completions", `{"prompt":"a","n":2}`, `{"index":1,`},
		{"a bad prompt", "/v1/completions", `{"prompt":["a","bad","c"]}`, `400 {"error":{"message":"bad prompt"`},
		{"no prompts", "/v1/completions", `{"prompt":[]}`, `"text":"[]"`},
		{"no answers", "/v1/completions", `{"prompt":"a","n":0}`, "400 "},
		{"too many answers", "/v1/completions", `{"prompt":"a","n":1025}`, "400 "},
		{"more than is returned", "/v1/completions", `{"prompt":"a","n":2,"best_of":3}`, "400 "},
		{"no JSON", "/v1/completions", `{"prompt":["a"`, "400 "},
		{"another endpoint", "/v1/responses", `{"prompt":["a"]}`, "400 "},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := before(t, Options{FanOut: true}, frontend)
			got := outcome(t, clientOf("HTTP/1.1"), "POST", e.url+test.path, test.body, "X-Request-Id", "rid")
			if want := sortedJSON(test.want); !strings.Contains(sortedJSON(got), want) {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
	e := before(t, Options{}, frontend)
	if got := outcome(t, clientOf("HTTP/1.1"), "POST", e.url+"/v1/completions", `{"prompt":"a","n":2}`); !strings.HasPrefix(got, "400") {
		t.Errorf("switched off: %s", got)
	}
}

// sortedJSON is an object with its members in order; another text is returned as it is.
func sortedJSON(text string) string {
	var value map[string]any
	if json.Unmarshal([]byte(text), &value) != nil {
		return text
	}
	sorted, _ := json.Marshal(value)
	return string(sorted)
}

// The events of all parts come in one stream, with one id, one time, one usage and one end.
func TestFanOutStream(t *testing.T) {
	for _, test := range []struct{ name, body, want string }{
		{"both", `{"prompt":["a","bb"],"n":2,"stream":true}`, `[DONE]|
{"id":"cmpl-rid","created":3,"choices":[],"usage":{"prompt_tokens":7,"total_tokens":15,"completion_tokens":8,"prompt_tokens_details":{"cached_tokens":2},"completion_tokens_details":null}}|
{"id":"cmpl-rid","created":3,"choices":[{"index":0,"text":"\"a\""}]}|
{"id":"cmpl-rid","created":3,"choices":[{"index":0,"text":"\"a\""}]}|
{"id":"cmpl-rid","created":3,"choices":[{"index":1,"text":"\"a\""}]}|
{"id":"cmpl-rid","created":3,"choices":[{"index":1,"text":"\"a\""}]}|
{"id":"cmpl-rid","created":3,"choices":[{"index":2,"text":"\"bb\""}]}|
{"id":"cmpl-rid","created":3,"choices":[{"index":2,"text":"\"bb\""}]}|
{"id":"cmpl-rid","created":3,"choices":[{"index":3,"text":"\"bb\""}]}|
{"id":"cmpl-rid","created":3,"choices":[{"index":3,"text":"\"bb\""}]}|`},
		{"refused", `{"prompt":["a","bad"],"stream":true}`, `400 {"error":{"message":"bad prompt","type":"BadRequestError","param":null,"code":400}}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := before(t, Options{FanOut: true}, frontend)
			got := outcome(t, clientOf("HTTP/1.1"), "POST", e.url+"/v1/completions", test.body, "X-Request-Id", "rid")
			require.True(t, test.name != "both" || strings.HasSuffix(got, `}}|[DONE]|`), "the usage is not the last event: %s", got)
			got = strings.ReplaceAll(got, `"created":4`, `"created":3`) // the time is that of any part
			lines := strings.SplitAfter(got, "|")
			for i, line := range lines {
				lines[i] = sortedJSON(strings.TrimSuffix(line, "|"))
			}
			var want []string
			for line := range strings.SplitSeq(test.want, "\n") {
				want = append(want, sortedJSON(strings.TrimSuffix(line, "|")))
			}
			slices.Sort(lines)
			slices.Sort(want)
			if got, want := strings.TrimSpace(strings.Join(lines, "\n")), strings.Join(want, "\n"); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
	e := before(t, Options{FanOut: true}, frontend)
	if got := outcome(t, clientOf("HTTP/1.1"), "POST", e.url+"/v1/completions", `{"prompt":["fails","a"],"stream":true}`); !strings.HasSuffix(got, `{"error":{"message":"failed"}}|[DONE]|`) {
		t.Errorf("a part that fails: %s", got)
	}
	if got := outcome(t, clientOf("HTTP/1.1"), "POST", e.url+"/v1/completions", `{"prompt":["cut","a"],"stream":true}`); !strings.HasSuffix(got, "cut") || strings.Contains(got, "[DONE]") {
		t.Errorf("a part that is cut: %s", got)
	}
}

// All parts end with their client.
func TestFanOutClientGone(t *testing.T) {
	var gone sync.WaitGroup
	gone.Add(3)
	e := before(t, Options{FanOut: true}, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: {\"id\":\"x\",\"choices\":[{\"index\":0}]}\n\n")
		flush(w)
		<-r.Context().Done()
		gone.Done()
	})
	answer, err := http.Post(e.url+"/v1/completions", "application/json", strings.NewReader(`{"prompt":"a","n":3,"stream":true}`))
	require.NoError(t, err)
	if _, err := answer.Body.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	gone.Wait()
}

func TestReady(t *testing.T) {
	for _, test := range []struct {
		name    string
		startup time.Duration
		health  int
		status  int
	}{
		{"ready", 0, 200, 200},
		{"starting", time.Hour, 200, 503},
		{"ill", 0, 500, 503},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := before(t, Options{StartupDuration: test.startup}, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/health" {
					w.WriteHeader(test.health)
				}
			})
			for _, path := range []string{"/ready", "/health/ready"} {
				if answer, body := fetch(t, "GET", e.url+path, ""); answer.StatusCode != test.status {
					t.Errorf("%s: %d %s", path, answer.StatusCode, body)
				}
			}
			if answer, _ := fetch(t, "GET", e.url+"/v1/models", ""); answer.StatusCode != 200 {
				t.Errorf("a request: %d", answer.StatusCode)
			}
		})
	}
	var told []bool
	draining := before(t, Options{AdminToken: "t", OnDrain: func(d bool) { told = append(told, d) }}, stream)
	for _, step := range []struct {
		change string
		ready  int
	}{{`{"draining":true}`, 503}, {`{"draining":true}`, 503}, {`{"draining":false}`, 200}} {
		fetch(t, "POST", draining.url+"/admin/config", step.change, "Authorization", "Bearer t")
		ready, body := fetch(t, "GET", draining.url+"/ready", "")
		health, _ := fetch(t, "GET", draining.url+"/health", "")
		request, _ := fetch(t, "POST", draining.url+"/v1/completions", asked2)
		if ready.StatusCode != step.ready || health.StatusCode != 200 || request.StatusCode != 200 {
			t.Errorf("%s: /ready %d %s, /health %d, a request %d", step.change, ready.StatusCode, body, health.StatusCode, request.StatusCode)
		}
	}
	require.True(t, slices.Equal(told, []bool{true, false}), "calls: %v", told)
	faults, _, _ := ParseFaults("status:503~path=/ready")
	e := before(t, Options{Faults: faults}, stream)
	if answer, _ := fetch(t, "GET", e.url+"/ready", ""); answer.StatusCode != 503 {
		t.Errorf("with a fault: %d", answer.StatusCode)
	}
}

// The body is that of echo-basic, and faults and probes stay as they are.
func TestEcho(t *testing.T) {
	faults, _, _ := ParseFaults("status:503~key=bad")
	e := before(t, Options{Echo: true, PodName: "pod-1", PodNamespace: "ns", Faults: faults}, stream)
	for _, test := range []struct {
		name, method, path, body string
		headers                  []string
		status                   int
		want                     string
	}{
		{
			"any path", "POST", "/primary-gateway-test?a=b", `{"model": "m"}`,
			[]string{"X-Test", "1", "Accept-Encoding", "identity", "User-Agent", "u"},
			200,
			`{"path":"/primary-gateway-test?a=b","host":"HOST","method":"POST","proto":"HTTP/1.1","headers":{"Accept-Encoding":["identity"],"Content-Length":["14"],"User-Agent":["u"],"X-Test":["1"]},"namespace":"ns","ingress":"","service":"","pod":"pod-1"}`,
		},
		{"with an id", "GET", "/", "", []string{"X-Request-Id", "mine", "Accept-Encoding", "identity", "User-Agent", "u"}, 200, `{"path":"/","host":"HOST","method":"GET","proto":"HTTP/1.1","headers":{"Accept-Encoding":["identity"],"User-Agent":["u"],"X-Request-Id":["mine"]},"namespace":"ns","ingress":"","service":"","pod":"pod-1"}`},
		{"a fault", "POST", "/v1/completions", asked2, []string{"Authorization", "Bearer bad"}, 503, ""},
		{"a probe", "GET", "/ready", "", nil, 200, ""},
	} {
		answer, body := fetch(t, test.method, e.url+test.path, test.body, test.headers...)
		var got bytes.Buffer
		want := strings.Replace(test.want, "HOST", strings.TrimPrefix(e.url, "http://"), 1)
		if want != "" && json.Compact(&got, []byte(body)) != nil || answer.StatusCode != test.status || want != "" && got.String() != want {
			t.Errorf("%s: %d %s, want\n%s", test.name, answer.StatusCode, body, want)
		}
	}
}

func TestMetrics(t *testing.T) {
	const real = "# HELP vllm:num_requests_running r\n# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine=\"0\"} 3\n"
	const loraHead = "# HELP vllm:lora_requests_info Running stats on lora requests..\n# TYPE vllm:lora_requests_info gauge\n"
	const cache = "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig\n# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{block_size=\"16\",engine=\"0\"} 1\n"
	engine := Engine{CacheConfig: []Label{{"block_size", "16"}, {"engine", "0"}}}
	lora := engine
	lora.MaxLoRAs = 4
	now := time.Unix(1000, 0)
	for _, test := range []struct {
		name, text string
		engine     Engine
		want       []string
		not        string
	}{
		{"cache", real, engine, []string{real, cache, `vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="awake"} 1`, `sleep_state="discard_all"} 0`}, "lora"},
		{"asleep", real, Engine{SleepLevel: 1}, []string{`sleep_state="awake"} 0`, `sleep_state="weights_offloaded"} 1`}, "cache_config"},
		{"the frontend has it", cache, engine, []string{cache}, "cache_config_info{block_size=\"16\",engine=\"0\"} 1\nvllm:cache"},
		{"no adapter runs", real + loraHead, lora, []string{"vllm:lora_requests_info{max_lora=\"4\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"} 1000\n"}, "requests.."},
		{"an adapter runs", loraHead + "vllm:lora_requests_info{engine=\"0\",running_lora_adapters=\"a\"} 5\n" + real, lora, []string{"# TYPE vllm:lora_requests_info gauge\nvllm:lora_requests_info{max_lora=\"4\",engine=\"0\",running_lora_adapters=\"a\"} 5\n" + real}, "adapters=\"\""},
		{"no line end", strings.TrimSuffix(real, "\n"), engine, []string{real + "# "}, "lora"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := string(complete([]byte(test.text), []Engine{test.engine}, "m", now))
			for _, want := range test.want {
				require.Equal(t, strings.Count(got, want), 1, "want once\n%s", want)
			}
			require.True(t, !strings.Contains(got, test.not), "want no %q", test.not)
			if t.Failed() {
				t.Logf("got\n%s", got)
			}
		})
	}
	e := before(t, Options{ModelName: "m", Engines: func(rank int) []Engine { return []Engine{engine} }}, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, real) })
	if answer, body := fetch(t, "GET", e.url+"/metrics", ""); !strings.HasPrefix(body, real+cache) || answer.Header.Get("Content-Type") != MetricsType {
		t.Errorf("%v %s", answer.Header, body)
	}
}

func jsonEqual(a, b any) bool {
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	return bytes.Equal(x, y)
}

func TestAdmin(t *testing.T) {
	faults, _, _ := ParseFaults("status:503@0.5")
	e := before(t, Options{AdminToken: "t", Faults: faults, APIKeys: []string{"k"}}, stream)
	steps := []struct {
		name, method, token, body string
		status                    int
		part                      string
	}{
		{"no token", "GET", "", "", 401, "the admin token is wrong or missing"},
		{"API key", "GET", "k", "", 401, ""},
		{"shown", "GET", "t", "", 200, `"faults":"status:503@0.5"`},
		{"a fault", "POST", "t", `{"faults":"status:429:3s"}`, 200, `"faults":"status:429:3s"`},
		{"unknown", "POST", "t", `{"faults":"","port":1}`, 400, "field 'port' is not admin-configurable"},
		{"and nothing changed", "GET", "t", "", 200, `"faults":"status:429:3s"`},
		{"of the engine", "POST", "t", `{"faults":"kill"}`, 400, "only faults of HTTP"},
		{"broken", "POST", "t", `{"faults":"status:1"}`, 400, "faults: fault 1"},
		{"no JSON", "POST", "t", `x`, 400, "want a JSON object"},
		{"rate", "POST", "t", `{"failure-injection-rate":101}`, 400, "between 0 and 100"},
		{"type", "POST", "t", `{"failure-types":["x"]}`, 400, "invalid failure type 'x'"},
		{"rates", "POST", "t", `{"faults":"","failure-injection-rate":100,"failure-types":["rate_limit"]}`, 200, `"failure-injection-rate":100`},
		{"too large", "POST", "t", `{"faults":"` + strings.Repeat(" ", MaxAdmin) + `"}`, 400, "too large"},
		{"another method", "DELETE", "t", "", 405, "takes GET and POST"},
	}
	for _, step := range steps {
		answer, body := fetch(t, step.method, e.url+"/admin/config", step.body, "Authorization", "Bearer "+step.token)
		require.True(t, answer.StatusCode == step.status && strings.Contains(body, step.part), "%s: got %d %.300s", step.name, answer.StatusCode, body)
	}
	if answer, _ := fetch(t, "POST", e.url+"/v1/completions", asked2, "Authorization", "Bearer k"); answer.StatusCode != 429 {
		t.Errorf("the rate does not apply: %d", answer.StatusCode)
	}
	off := before(t, Options{}, stream)
	for _, path := range []string{"/admin/config", "//admin/config", "/admin/./config", "/admin/config/"} {
		if answer, body := fetch(t, "GET", off.url+path, "", "Authorization", "Bearer "); answer.StatusCode != 404 {
			t.Errorf("%s without a token: %d %s", path, answer.StatusCode, body)
		}
	}
}

// The id in a body is that of the request, unless a header has another one: a header of ours would replace it.
func TestRequestIDInBody(t *testing.T) {
	for _, fanOut := range []bool{false, true} {
		var log lockedBuffer
		e := before(t, Options{FanOut: fanOut, RequestLog: &log}, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(w, r.Header.Get("X-Request-Id"))
		})
		for _, path := range []string{"/v1/completions", "/v1/chat/completions"} {
			for body, want := range map[string]string{`{"request_id": "mine"}`: "mine", `{"request_id": "not one"}`: "", `{}`: ""} {
				answer, got := fetch(t, "POST", e.url+path, body)
				if header := answer.Header.Get("X-Request-Id"); header != got || want != "" && got != want || want == "" && len(got) != 32 {
					t.Errorf("fan-out %v: %s %s: the frontend got %q, the client %q", fanOut, path, body, got, header)
				}
				log.wait(t, `"request_id":"`+got+`"`)
			}
			if _, got := fetch(t, "POST", e.url+path, `{"request_id": "mine"}`, "X-Request-Id", "header"); got != "header" {
				t.Errorf("a header goes before the body: %q", got)
			}
		}
	}
}

func TestRequestLog(t *testing.T) {
	var log lockedBuffer
	faults, _, _ := ParseFaults("status:503~model=down")
	e := before(t, Options{RequestLog: &log, FanOut: true, Faults: faults}, frontend)
	fetch(t, "POST", e.url+"/v1/completions", `{"model":"m\n","prompt":["a","bb"],"stream":true}`, "X-Request-Id", "one")
	fetch(t, "POST", e.url+"/v1/completions", `{"model":"down","prompt":"secret"}`, "X-Request-Id", "two")
	fetch(t, "POST", e.url+"/v1/completions", `{"model":"m","prompt":"secret"}`, "X-Request-Id", "three")
	for _, test := range []struct {
		id   string
		want Record
	}{
		{"one", Record{Method: "POST", Path: "/v1/completions", Model: "m\n", Stream: true, Status: 200, Events: 6, PromptTokens: 7, CompletionTokens: 4, BytesIn: 49}},
		{"two", Record{Method: "POST", Path: "/v1/completions", Model: "down", Status: 503, Faults: []string{"status:503~model=down"}, BytesIn: 34}},
		{"three", Record{Method: "POST", Path: "/v1/completions", Model: "m", Status: 200, PromptTokens: 8, CompletionTokens: 2, BytesIn: 31}},
	} {
		line := log.wait(t, `"request_id":"`+test.id+`"`)
		var got Record
		require.NoError(t, json.Unmarshal([]byte(line), &got))
		require.True(t, got.DurationMS >= got.FirstByteMS && got.FirstByteMS > 0 && got.Client != "" && got.BytesOut != 0 && !strings.Contains(line, "secret"), "%s", line)
		got.Time, got.ID, got.Client, got.FirstByteMS, got.DurationMS, got.BytesOut = time.Time{}, "", "", 0, 0, 0
		require.True(t, jsonEqual(got, test.want), "got %+v\nwant %+v", got, test.want)
	}
}

func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := ListenUnix(path)
	require.NoError(t, err)
	if _, err := ListenUnix(path); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("a second listener: %v", err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close() // as after a crash
	if l, err = ListenUnix(path); err != nil {
		t.Fatal(err)
	}
	e, err := New(Options{Frontends: []http.Handler{http.HandlerFunc(stream)}})
	require.NoError(t, err)
	go func() { _ = e.Serve(t.Context(), l) }()
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}}
	for range 2 {
		require.Equal(t, outcome(t, client, "GET", "http://any", ""), `{"id":"whole"}`, "outcome")
		client.CloseIdleConnections()
		e.refuseFor(time.Millisecond)
		for failed := true; failed; { // until it listens again
			conn, err := net.Dial("unix", path)
			if failed = err != nil; !failed {
				conn.Close()
			}
		}
	}
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, []byte("x"), 0o600))
	if _, err := ListenUnix(file); err == nil {
		t.Error("a file was replaced")
	}
}

func TestTLS(t *testing.T) {
	cert, key, pool := certificate(t)
	config, err := LoadTLS(cert, key)
	require.NoError(t, err)
	faults, _, _ := ParseFaults("http-reset~path=/reset")
	e := before(t, Options{TLS: config, Faults: faults}, stream)
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		protocols := new(http.Protocols)
		protocols.SetHTTP1(proto == "HTTP/1.1")
		protocols.SetHTTP2(proto == "HTTP/2.0")
		client := &http.Client{Transport: &http.Transport{Protocols: protocols, TLSClientConfig: &tls.Config{RootCAs: pool}}}
		answer, err := client.Get(strings.Replace(e.url, "http:", "https:", 1))
		if err != nil || answer.Proto != proto {
			t.Fatal(answer, err)
		}
		answer.Body.Close()
		want := "reset"
		if proto == "HTTP/2.0" {
			want = "stream reset"
		}
		require.Equal(t, outcome(t, client, "GET", strings.Replace(e.url, "http:", "https:", 1)+"/reset", ""), want, "%s", proto)
	}
	if _, err := LoadTLS(cert, ""); err == nil || !strings.Contains(err.Error(), "must be provided together") {
		t.Error(err)
	}
	if _, err := LoadTLS(key, cert); err == nil {
		t.Error("a key as a certificate")
	}
}

func certificate(t *testing.T) (certFile, keyFile string, pool *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	for name, data := range map[string][]byte{certFile: cert, keyFile: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})} {
		require.NoError(t, os.WriteFile(name, data, 0o600))
	}
	pool = x509.NewCertPool()
	pool.AppendCertsFromPEM(cert)
	return certFile, keyFile, pool
}
