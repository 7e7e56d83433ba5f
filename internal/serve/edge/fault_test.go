package edge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestParseFaults(t *testing.T) {
	for _, test := range []struct{ name, text, want, engine, err string }{
		{name: "nothing", text: ""},
		{name: "blank", text: " "},
		{name: "of the player", text: "refuse@0.01, delay:50ms@0.1,stall:20~*slow*", engine: "refuse@0.01,delay:50ms@0.1,stall:20~*slow*"},
		{name: "both", text: "status:429,kill:3,http-reset", want: "status:429 http-reset", engine: "kill:3"},
		{
			name: "every form", text: "status:503:2s@0.5~model=a*~path=/v1/*,http-fail:3,http-fail:3:429:5s,http-delay:1s,http-reset:0,http-truncate:2,http-slow:1ms:4,http-malformed,http-hang,http-refuse:1s,rate_limit~header.x-a=b",
			want: "status:503:2s@0.5~model=a*~path=/v1/* http-fail:3 http-fail:3:429:5s http-delay:1s http-reset:0 http-truncate:2 http-slow:1ms:4 http-malformed http-hang http-refuse:1s rate_limit~header.x-a=b",
		},
		{name: "status of success", text: "status:200", err: `fault 1, "status:200": status "200" is none from 300 to 599: want status:CODE[:RETRY-AFTER]`},
		{name: "no status", text: "status", err: `status "" is none`},
		{name: "no time", text: "refuse,http-delay", err: `fault 2, "http-delay": time "" is none such as 50ms`},
		{name: "negative time", text: "http-slow:-1s", err: "time"},
		{name: "no number", text: "http-fail:x", err: `number of requests "x"`},
		{name: "negative position", text: "http-reset:-1", err: `number of events "-1"`},
		{name: "too much", text: "http-refuse:1s:2", err: `"2" is too much: want http-refuse:TIME`},
		{name: "value of a failure", text: "rate_limit:1", err: `value "1": want rate_limit`},
		{name: "probability", text: "http-hang@1.5", err: `probability "1.5"`},
		{name: "NaN", text: "http-hang@NaN", err: "probability"},
		{name: "empty pattern", text: "http-hang~", err: "cannot match"},
		{name: "broken pattern", text: "http-hang~[", err: "cannot match"},
		{name: "unknown field", text: "http-hang~user=me", err: "want PATTERN, or one of id, path"},
	} {
		t.Run(test.name, func(t *testing.T) {
			faults, engine, err := ParseFaults(test.text)
			if test.err != "" {
				require.ErrorContains(t, err, test.err)
				return
			}
			var texts []string
			for i := range faults {
				texts = append(texts, faults[i].String())
			}
			if got := strings.Join(texts, " "); err != nil || got != test.want || engine != test.engine {
				t.Errorf("got %q, %q, %v; want %q, %q", got, engine, err, test.want, test.engine)
			}
		})
	}
}

func FuzzParseFaults(f *testing.F) {
	for _, seed := range []string{"", "status:429:2s@0.1~model=a", "http-fail:2:503,kill", "rate_limit~header.x=[a-b]*", "http-slow:1s:2@1e-3,refuse"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		faults, engine, err := ParseFaults(text)
		if err != nil {
			return
		}
		for i := range faults {
			again, rest, err := ParseFaults(faults[i].text)
			if err != nil || rest != "" || len(again) != 1 || fmt.Sprintf("%#v", again[0]) != fmt.Sprintf("%#v", faults[i]) {
				t.Errorf("%q is not read as before: %v %q %v", faults[i].text, again, rest, err)
			}
			r := &http.Request{Method: "POST", URL: mustURL("/v1/completions"), Header: http.Header{}}
			faults[i].concerns(r, &exchange{id: "x"})
			if a := faults[i].answer("m"); faults[i].Kind == FaultStatus && (a.status < 300 || a.message == "") {
				t.Errorf("%q answers %+v", faults[i].text, a)
			}
		}
		if _, rest, err := ParseFaults(engine); err != nil || rest != engine {
			t.Errorf("of %q, %q is left for the engine, and then %q %v", text, engine, rest, err)
		}
	})
}

// stream answers with five events and the end, or with a body of JSON.
func stream(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	if !strings.Contains(string(body), `"stream":true`) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"id":"whole"}`)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for i := range 5 {
		fmt.Fprintf(w, "data: {\"id\":%d}\n\n", i)
		flush(w)
	}
	_, _ = io.WriteString(w, "data: [DONE]\n\n")
}

const (
	asked1 = `{"model":"org/tiny","stream":true}`
	asked2 = `{"model":"org/tiny"}`
)

// outcome is what a client sees.
func outcome(t *testing.T, client *http.Client, method, url, body string, headers ...string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	require.NoError(t, err)
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	answer, err := client.Do(request)
	if err != nil {
		return failure(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	out := strings.NewReplacer("\n\n", "|", "data: ", "").Replace(string(text))
	if answer.StatusCode != 200 {
		out = fmt.Sprintf("%d %s", answer.StatusCode, out)
	}
	if after := answer.Header.Get("Retry-After"); after != "" {
		out += " after " + after
	}
	if err != nil {
		out += " " + failure(err)
	}
	return out
}

func failure(err error) string {
	switch {
	case errors.Is(err, syscall.ECONNRESET):
		return "reset"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return "cut"
	case strings.Contains(err.Error(), "stream error"):
		return "stream reset"
	}
	return err.Error()
}

func TestFaults(t *testing.T) {
	const all = `{"id":0}|{"id":1}|{"id":2}|{"id":3}|{"id":4}|[DONE]|`
	limited := `429 {"error":{"message":"Rate limit reached for org/tiny in organization org-xxx on requests per min (RPM): Limit 3, Used 3, Requested 1.","type":"RateLimitError","param":null,"code":429}}`
	overloaded := `503 {"error":{"message":"The server is overloaded or not ready yet.","type":"InternalServerError","param":null,"code":503}}`
	for _, test := range []struct{ name, faults, body, want, http2 string }{
		{name: "none", body: asked1, want: all},
		{name: "429", faults: "status:429", body: asked1, want: limited + " after 1"},
		{name: "429 with a time", faults: "status:429:2500ms", body: asked1, want: limited + " after 3"},
		{name: "401", faults: "status:401", body: asked1, want: `401 {"error":{"message":"Incorrect API key provided.","type":"AuthenticationError","param":null,"code":401}}`},
		{name: "403", faults: "status:403", body: asked1, want: `403 {"error":{"message":"Injected error with status 403 (Forbidden)","type":"PermissionDeniedError","param":null,"code":403}}`},
		{name: "404", faults: "model_not_found", body: asked1, want: `404 {"error":{"message":"The model 'org/tiny-nonexistent' does not exist","type":"NotFoundError","param":null,"code":404}}`},
		{name: "400", faults: "context_length", body: asked1, want: `400 {"error":{"message":"This model's maximum context length is 4096 tokens. However, your messages resulted in 4500 tokens. Please reduce the length of the messages.","type":"BadRequestError","param":"messages","code":400}}`},
		{name: "500", faults: "status:500", body: asked1, want: `500 {"error":{"message":"Injected error with status 500 (Internal Server Error)","type":"InternalServerError","param":null,"code":500}}`},
		{name: "server error", faults: "server_error", body: asked2, want: overloaded},
		{name: "the first of two", faults: "server_error,status:429", body: asked2, want: overloaded},
		{name: "slash in a pattern", faults: "server_error~model=org*y", body: asked2, want: overloaded},
		{name: "another model", faults: "server_error~model=big*", body: asked2, want: `{"id":"whole"}`},
		{name: "another path", faults: "server_error~path=/v1/chat/*", body: asked2, want: `{"id":"whole"}`},
		{name: "both conditions", faults: "server_error~model=*tiny~id=my*", body: asked2, want: overloaded},
		{name: "one of both conditions", faults: "server_error~model=*tiny~your*", body: asked2, want: `{"id":"whole"}`},
		{name: "a header", faults: "server_error~header.x-request-id=my-id", body: asked2, want: overloaded},
		{name: "delay", faults: "http-delay:1ms", body: asked1, want: all},
		{name: "slow", faults: "http-slow:1ms:3", body: asked1, want: all},
		{name: "slow whole", faults: "http-slow:1ms", body: asked2, want: `{"id":"whole"}`},
		{name: "reset before the head", faults: "http-reset", body: asked1, want: "reset", http2: "stream reset"},
		{name: "reset of a whole", faults: "http-reset:1", body: asked2, want: `{"id":" reset`, http2: `{"id":" stream reset`},
		{name: "truncated", faults: "http-truncate:2", body: asked1, want: `{"id":0}|{"id":1}|`},
		{name: "truncated at once", faults: "http-truncate", body: asked1, want: ""},
		{name: "truncated whole", faults: "http-truncate", body: asked2, want: `{"id":"`},
		{name: "malformed", faults: "http-malformed:1", body: asked1, want: `{"id":0}|{"|{"id":2}|{"id":3}|{"id":4}|[DONE]|`},
		{name: "behind the end", faults: "http-truncate:9", body: asked1, want: all},
	} {
		for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
			t.Run(test.name+" "+proto, func(t *testing.T) {
				faults, _, err := ParseFaults(test.faults)
				require.NoError(t, err)
				e := before(t, Options{Faults: faults}, stream)
				want := test.want
				if proto == "HTTP/2.0" && test.http2 != "" {
					want = test.http2
				}
				if got := outcome(t, clientOf(proto), "POST", e.url+"/v1/completions", test.body, "X-Request-Id", "my-id"); got != want {
					t.Errorf("got  %s\nwant %s", got, want)
				}
				require.Equal(t, outcome(t, clientOf(proto), "GET", e.url+"/v1/models", ""), `{"id":"whole"}`, "another endpoint")
			})
		}
	}
}

// A reset after some events shows those that the client has read before.
func TestResetInStream(t *testing.T) {
	next := make(chan struct{})
	faults, _, _ := ParseFaults("http-reset:1")
	e := before(t, Options{Faults: faults}, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: 1\n\n")
		flush(w)
		<-next
		_, _ = io.WriteString(w, "data: 2\n\n")
	})
	answer, err := http.Post(e.url+"/v1/completions", "application/json", strings.NewReader(asked1))
	require.NoError(t, err)
	first := make([]byte, len("data: 1\n\n"))
	if _, err := io.ReadFull(answer.Body, first); err != nil {
		t.Fatal(err)
	}
	close(next)
	if rest, err := io.ReadAll(answer.Body); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %q %v", rest, err)
	}
}

// A request that hangs ends with its client, before and after the head.
func TestHang(t *testing.T) {
	for _, text := range []string{"http-hang", "http-hang:1"} {
		t.Run(text, func(t *testing.T) {
			var log lockedBuffer
			faults, _, _ := ParseFaults(text)
			e := before(t, Options{Faults: faults, RequestLog: &log}, stream)
			ctx, leave := context.WithCancel(t.Context())
			request, _ := http.NewRequestWithContext(ctx, "POST", e.url+"/v1/completions", strings.NewReader(asked1))
			if text == "http-hang" {
				time.AfterFunc(20*time.Millisecond, leave) // nothing can be waited for
			}
			answer, err := http.DefaultClient.Do(request)
			if err == nil {
				first := make([]byte, len("data: {\"id\":0}\n\n"))
				_, err = io.ReadFull(answer.Body, first)
				require.NoError(t, err)
				leave()
				_, err = io.ReadAll(answer.Body)
			}
			leave()
			if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			line := log.wait(t, `"aborted":true`)
			if !strings.Contains(line, `"faults":["`+text+`"]`) {
				t.Error(line)
			}
		})
	}
}

// Of each client the first requests fail.
// A fault that a request could have had is not reported, whether it was drawn or not.
func TestUnmatchedFaults(t *testing.T) {
	faults, _, err := ParseFaults("status:429~path=/helth,status:429@1e-12")
	require.NoError(t, err)
	e := before(t, Options{Faults: faults}, stream)
	for range 2 {
		fetch(t, "POST", e.url+"/v1/completions", asked2)
	}
	if unmatched, requests := e.UnmatchedFaults(); fmt.Sprint(unmatched) != "[status:429~path=/helth]" || requests != 2 {
		t.Errorf("got %v of %d requests", unmatched, requests)
	}
}

func TestFailThenServe(t *testing.T) {
	faults, _, _ := ParseFaults("http-fail:2:429:7s")
	e := before(t, Options{Faults: faults}, stream)
	var got []string
	for _, key := range []string{"a", "a", "b", "a", "b", "b", ""} {
		headers := []string{}
		if key != "" {
			headers = []string{"Authorization", "Bearer " + key}
		}
		answer, _ := fetch(t, "POST", e.url+"/v1/completions", asked2, headers...)
		got = append(got, fmt.Sprint(key, answer.StatusCode, answer.Header.Get("Retry-After")))
	}
	if want := "[a4297 a4297 b4297 a200 b4297 b200 4297]"; fmt.Sprint(got) != want {
		t.Errorf("got  %v\nwant %s", got, want)
	}
}

// The share of requests that fail is that of the rule, the same for the same seed, and other for another one.
func TestSeed(t *testing.T) {
	run := func(opt Options, seed uint64) (pattern string) {
		opt.Seed = seed
		e := before(t, opt, stream)
		for range 40 {
			answer, _ := fetch(t, "POST", e.url+"/v1/completions", asked2)
			if answer.StatusCode == 200 {
				pattern += "."
			} else {
				pattern += fmt.Sprint(answer.StatusCode % 100 / 2 % 10)
			}
		}
		return pattern
	}
	faults, _, _ := ParseFaults("status:503@0.3")
	for _, opt := range []Options{{Faults: faults}, {FailureRate: 30}, {FailureRate: 30, FailureTypes: []string{"rate_limit"}}} {
		first, again, other := run(opt, 1), run(opt, 1), run(opt, 2)
		served := strings.Count(first, ".")
		require.True(t, first == again && first != other && served >= 15 && served <= 39, "%v: %s, again %s, with another seed %s", opt, first, again, other)
	}
}

func TestOwnFaults(t *testing.T) {
	e := before(t, Options{RequestFaults: true}, stream)
	closed := before(t, Options{}, stream)
	for _, test := range []struct {
		name, url, header, value, want string
	}{
		{"status", e.url, "X-Fault", "status:404", "404 "},
		{"of the simulator", e.url, "X-Return-Error", "429", `429 {"error":{"message":"Simulated error triggered by X-Return-Error header (code 429)","type":"RateLimitError"`},
		{"no number", e.url, "X-Return-Error", "x", `400 {"error":{"message":"Invalid X-Return-Error header value \"x\": must be an integer"`},
		{"no status", e.url, "X-Return-Error", "99", "want a status from 300 to 599"},
		{"truncated", e.url, "X-Fault", "http-truncate", `{"id":"`},
		{"fails once", e.url, "X-Fault", "http-fail:1", "503 "},
		{"and then not", e.url, "X-Fault", "http-fail:1", `{"id":"whole"}`},
		{"of the player", e.url, "X-Fault", "kill", `not a fault of HTTP`},
		{"broken", e.url, "X-Fault", "status:1", "X-Fault: fault 1"},
		{"long", e.url, "X-Fault", strings.Repeat("x", maxOwnFaults+1), "want at most 1024"},
		{"not allowed", closed.url, "X-Fault", "status:404", "--allow-request-faults"},
		{"not allowed either", closed.url, "X-Return-Error", "404", "--allow-request-faults"},
	} {
		t.Run(test.name, func(t *testing.T) {
			require.Contains(t, outcome(t, clientOf("HTTP/1.1"), "POST", test.url+"/v1/completions", asked2, test.header, test.value), test.want)
		})
	}
	require.True(t, len(e.own.draws) <= maxOwnDraws, "%d headers are remembered", len(e.own.draws))
}

// Connections are refused for a while, and then accepted again, also idle ones are closed.
func TestRefuse(t *testing.T) {
	faults, _, _ := ParseFaults("http-refuse:30ms~key=down")
	e := before(t, Options{Faults: faults}, stream)
	client := clientOf("HTTP/1.1")
	url := e.url + "/v1/completions"
	if got := outcome(t, client, "POST", url, asked2, "Authorization", "Bearer down"); got != "reset" {
		t.Fatalf("got %s", got)
	}
	refused := false
	for {
		got := outcome(t, client, "POST", url, asked2)
		if got == `{"id":"whole"}` {
			break
		}
		if got != "refused" {
			t.Fatalf("got %s", got)
		}
		refused = true
	}
	if !refused {
		t.Log("this machine was too slow to see the outage") // it has an end by itself
	}
	require.NoError(t, e.Shutdown(t.Context()))
	require.NoError(t, <-e.done)
}

// A shutdown ends an outage.
func TestRefuseThenShutdown(t *testing.T) {
	e := before(t, Options{}, stream)
	if _, body := fetch(t, "GET", e.url, ""); body == "" {
		t.Fatal("it does not serve")
	}
	http.DefaultClient.CloseIdleConnections()
	e.refuseFor(time.Hour)
	require.Equal(t, outcome(t, clientOf("HTTP/1.1"), "GET", e.url, ""), "refused", "outcome")
	require.NoError(t, e.Shutdown(t.Context()))
	require.NoError(t, <-e.done)
}

// Events are found wherever the parts in which they come are cut.
func TestCutEvent(t *testing.T) {
	const text = "data: 1\n\ndata: 2\r\n\r\ndata: 3\n\r\ndata: 4"
	for size := 1; size < len(text); size++ {
		var rest []byte
		var events []string
		for at := 0; at < len(text); at += size {
			seen := len(rest)
			rest = append(rest, text[at:min(at+size, len(text))]...)
			for event, _ := cutEvent(rest, seen); event != nil; event, _ = cutEvent(rest, seen) {
				events = append(events, string(event))
				rest, seen = rest[len(event):], 0
			}
		}
		require.Equal(t, fmt.Sprintf("%q %q", events, rest), `["data: 1\n\n" "data: 2\r\n\r\n" "data: 3\n\r\n"] "data: 4"`, "in parts of %d bytes", size)
	}
}
