package load

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestMultiturn(t *testing.T) {
	server := newServer(t)
	report := mustLoad(t, server, Multiturn, 7)
	want := Report{Workload: Multiturn, Seed: 7, Model: "tiny", Shape: Shape{Concurrency: 8}, Requests: 180, Completed: 180, Tokens: 540, Duration: report.Duration}
	require.NoDiff(t, cmp.Diff(want, report), "report (-want +got)")
	require.True(t, server.atOnce.most <= 8, "%d requests at once, want 8 at most", server.atOnce.most)
	asked := server.questions()
	for _, part := range []struct {
		text string
		want int
	}{
		{`"model":"tiny"`, 180},
		{`"ignore_eos":true`, 60},
		{`"temperature":0}`, 90},
		{`"temperature":0.8`, 90},
		{`"seed":70`, 90},
		{`"stream":true`, 180},
	} {
		if got := count(asked, part.text); got != part.want {
			t.Errorf("%d requests have %s, want %d", got, part.text, part.want)
		}
	}
	// A turn has what was said before it.
	require.Equal(t, count(asked, `\nQ: `), 180, "requests ask something")
	longest := slices.MaxFunc(asked, func(a, b string) int { return strings.Count(a, `\nA:`) - strings.Count(b, `\nA:`) })
	require.Equal(t, strings.Count(longest, `\nA: `), 5, "the longest conversation has earlier answers")
}

// Conversations of given lengths are greedy, as long as asked, and as many as asked.
func TestLongMultiturn(t *testing.T) {
	tests := []struct {
		name  string
		shape Shape
		want  map[string]int // requests that have a part of text
		words int            // in the shortest prompt, at least
	}{
		{
			name: "opening and answers", shape: Shape{PromptTokens: 500, OutputTokens: 3, Requests: 14},
			want:  map[string]int{`"max_tokens":3,`: 14, `"ignore_eos":true`: 14, `"temperature":0}`: 14, `"seed"`: 0},
			words: 500,
		},
		{
			name: "opening", shape: Shape{PromptTokens: 300, Requests: 6},
			want: map[string]int{`"ignore_eos":true`: 6, `"temperature":0}`: 6, `"seed"`: 0}, words: 300,
		},
		{
			name: "answers", shape: Shape{OutputTokens: 2, Requests: 3},
			want: map[string]int{`"max_tokens":2,`: 3, `"ignore_eos":true`: 3, `"seed"`: 0},
		},
		{
			name: "requests", shape: Shape{Requests: 7},
			want: map[string]int{`"ignore_eos":true`: 2, `"temperature":0}`: 1, `"temperature":0.8`: 6},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server := newServer(t)
			server.exact = true
			cfg := config(server.URL, Multiturn, 7)
			cfg.Shape = test.shape
			report, err := Run(t.Context(), cfg)
			require.NoError(t, err)
			asked := server.questions()
			require.True(t, report.Completed == test.shape.Requests && len(asked) == test.shape.Requests, "%d of %d requests completed, want %d", report.Completed, len(asked), test.shape.Requests)
			for part, want := range test.want {
				if got := count(asked, part); got != want {
					t.Errorf("%d requests have %s, want %d", got, part, want)
				}
			}
			for _, a := range asked {
				if got := len(strings.Fields(a)); got < test.words {
					t.Errorf("a request has %d words, want %d or more", got, test.words)
				}
			}
		})
	}
}

func TestEdge(t *testing.T) {
	server := newServer(t)
	report := mustLoad(t, server, Edge, 1)
	want := 0
	for _, group := range edgeGroups(generator(1, 0)) {
		want += len(group)
	}
	require.True(t, report.Requests == want && report.Completed == want-6 && report.Aborted == 6 && len(report.Refused) == 0, "got %+v, want %d requests, 6 of them aborted", report, want)
	server.Close() // waits for all answers
	require.Equal(t, server.gone, 6, "clients left in the middle of an answer")
}

// What is asked depends on the seed, however the server's answers interleave.
func TestWorkloadsRepeat(t *testing.T) {
	for _, workload := range Workloads() {
		t.Run(string(workload), func(t *testing.T) {
			asked := func(seed uint64) []string {
				server := newServer(t)
				server.exact = workload != Multiturn && workload != Edge
				mustLoad(t, server, workload, seed)
				return server.questions()
			}
			first := asked(7)
			require.NoDiff(t, cmp.Diff(first, asked(7)), "the same seed asked something else")
			other := asked(13)
			same := 0
			for i := range other {
				if _, found := slices.BinarySearch(first, other[i]); found && strings.HasPrefix(other[i], "POST /v1/") {
					same++
				}
			}
			require.True(t, same <= 1 && len(other) == len(first), "another seed asked %d of the same among %d, %d", same, len(first), len(other))
		})
	}
}

func TestRefusals(t *testing.T) {
	server := newServer(t)
	server.refuse = func(path string, body map[string]any) int {
		switch {
		case body["n"] != nil:
			return http.StatusBadRequest
		case path == "/is_paused":
			return http.StatusNotFound
		}
		return 0
	}
	report := mustLoad(t, server, Edge, 1)
	want := []Refusal{
		{"n", 400, "I do not know that"},
		{"chat, n", 400, "I do not know that"},
		{"GET /is_paused", 404, "I do not know that"},
		{"GET /is_paused", 404, "I do not know that"},
	}
	require.NoDiff(t, cmp.Diff(want, report.Refused), "refused (-want +got)")

	server.refuse = func(_ string, body map[string]any) int {
		if body["stop_token_ids"] != nil {
			return http.StatusBadRequest
		}
		return 0
	}
	report, err := Run(t.Context(), config(server.URL, Edge, 1))
	if report.Failed != 1 || err == nil || err.Error() != "edge: stop_token_ids: status 400: I do not know that" {
		t.Errorf("got %v, %d failed; want one refusal that is a failure", err, report.Failed)
	}
}

const (
	opening = "data: {\"choices\":[{\"index\":0,\"text\":\" a\"}]}\n\n"
	ending  = "data: {\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"stop\"}]}\n\n"
	usage   = "data: {\"choices\":[],\"usage\":{\"completion_tokens\":2}}\n\n"
	done    = "data: [DONE]\n\n"
)

// Whatever is wrong with an answer ends the workload, named.
func TestMisbehavingServers(t *testing.T) {
	stream := func(parts ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, strings.Join(parts, ""))
		}
	}
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no luck", code) }
	}
	tests := []struct {
		name    string
		handler http.HandlerFunc
		want    string
		idle    time.Duration
	}{
		{name: "says nothing", handler: hang, idle: time.Millisecond, want: "the server was silent for 1ms, after 0 events"},
		{
			name: "falls silent", idle: 100 * time.Millisecond, want: "the server was silent for 100ms, after ",
			handler: func(w http.ResponseWriter, r *http.Request) {
				stream(opening)(w, r)
				_ = http.NewResponseController(w).Flush()
				hang(w, r)
			},
		},
		{
			name: "falls silent in an error", idle: 100 * time.Millisecond, want: "the server was silent for 100ms",
			handler: func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(http.StatusBadRequest)
				_ = http.NewResponseController(w).Flush()
				hang(w, r)
			},
		},
		{name: "status 500", handler: status(500), want: "status 500: no luck"},
		{name: "status 503", handler: status(503), want: "status 503: no luck"},
		{name: "status 404", handler: status(404), want: "status 404: no luck"},
		{name: "redirects", handler: http.RedirectHandler("/elsewhere", http.StatusTemporaryRedirect).ServeHTTP, want: "status 307"},
		{name: "closes the connection", handler: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, want: "EOF"},
		{name: "cut off", handler: stream(opening, opening), want: "before [DONE], after 2 events: EOF"},
		{name: "cut off after the usage", handler: stream(opening, ending, usage), want: "before [DONE], after 2 events: EOF"},
		{
			name: "half a line", handler: stream(opening, `data: {"choices":[{"ind`),
			want: `after 1 events: within the line data: {"choices":[{"ind: unexpected EOF`,
		},
		{name: "half a JSON text", handler: stream("data: {\"choices\":[{\"ind\n\n", done), want: `after 0 events: unexpected end of JSON`},
		{name: "not JSON", handler: stream("data: oops\n\n", done), want: "invalid character 'o'"},
		{name: "fails in the middle", handler: stream(opening, "data: {\"error\":{\"message\":\"dead\",\"code\":500}}\n\n", done), want: `the server failed: {"message":"dead"`},
		{name: "refuses in the middle", handler: stream(opening, "data: {\"error\":{\"message\":\"no\",\"code\":400}}\n\n", done), want: "status 400: "},
		{name: "no end", handler: stream(opening, usage, done), want: "0 of 1 choices finished, after 1 events"},
		{name: "two ends", handler: stream(opening, ending, ending, usage, done), want: "choice 0 finished twice"},
		{name: "gave up", handler: stream(strings.Replace(ending, "stop", "abort", 1), usage, done), want: `choice 0 finished by "abort"`},
		{name: "another choice", handler: stream(strings.Replace(opening, ":0", ":1", 1)), want: "choice 1 of 1"},
		{name: "a choice below zero", handler: stream(strings.Replace(opening, ":0", ":-1", 1)), want: "choice -1 of 1"},
		{name: "no usage", handler: stream(opening, ending, done), want: "no usage in an answer of 2 events"},
		{name: "no tokens", handler: stream(ending, strings.Replace(usage, ":2", ":0", 1), done), want: "0 tokens for 1 choices"},
		{
			name: "an answer in one piece", want: `the answer is "application/json", stream: true`,
			handler: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				whole(w, nil)
			},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server := httptest.NewServer(test.handler)
			defer server.Close()
			cfg := config(server.URL, Edge, 1)
			cfg.Idle = test.idle
			report, err := Run(t.Context(), cfg)
			if err == nil || !strings.HasPrefix(err.Error(), "edge: chat: ") || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want it to name the request and have %q", err, test.want)
			}
			require.True(t, report.Requests == 1 && report.Failed == 1, "got %+v, want one request, which failed", report)
		})
	}
}

// hang keeps a client waiting until it leaves. A server does not notice that before it has read the request.
func hang(_ http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
}

// One failure ends all conversations, of which the others are unfinished and not to blame.
func TestOneFailureEndsAll(t *testing.T) {
	server := newServer(t)
	server.refuse = func(_ string, body map[string]any) int {
		if body["ignore_eos"] == true {
			return http.StatusInternalServerError
		}
		return 0
	}
	report, err := Run(t.Context(), config(server.URL, Multiturn, 7))
	require.ErrorContains(t, err, "turn 2: status 500")
	require.True(t, report.Failed >= 1 && report.Failed <= 8 && report.Requests < 60, "got %+v, want an early end", report)
	if sum := report.Completed + report.Failed + report.Unfinished; sum != report.Requests {
		t.Errorf("%d requests, %d accounted for", report.Requests, sum)
	}
}

func TestParallel(t *testing.T) {
	const n, limit = 20, 4
	var full sync.WaitGroup // of those that are there at a time
	full.Add(limit)
	var running, most, sum atomic.Int64
	err := parallel(t.Context(), n, limit, func(_ context.Context, i int) error {
		now := running.Add(1)
		defer running.Add(-1)
		for most.Load() < now {
			most.Store(now)
		}
		if i < limit {
			full.Done()
			full.Wait()
		}
		sum.Add(int64(i))
		return nil
	})
	if err != nil || sum.Load() != n*(n-1)/2 || most.Load() != limit {
		t.Errorf("got %v, sum %d, %d at a time; want %d, %d", err, sum.Load(), most.Load(), n*(n-1)/2, limit)
	}
}

func TestLoadEndsWithItsContext(t *testing.T) {
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		cancel(enough)
		hang(w, r)
	}))
	defer server.Close()
	report, err := Run(ctx, config(server.URL, Multiturn, 7))
	require.True(t, errors.Is(err, enough) && report.Failed == 0 && report.Unfinished != 0, "got %v, %+v; want the cause, and nothing failed", err, report)
}

func TestBadConfigurations(t *testing.T) {
	tests := []struct {
		name, want string
		change     func(*Config)
	}{
		{name: "no scheme", change: func(c *Config) { c.URL = "127.0.0.1:8000" }, want: `"127.0.0.1:8000": want http://HOST:PORT`},
		{name: "no host", change: func(c *Config) { c.URL = "http://" }, want: `"http://": want http://HOST:PORT`},
		{name: "another scheme", change: func(c *Config) { c.URL = "tcp://127.0.0.1:1" }, want: "want http://HOST:PORT"},
		{name: "no model", change: func(c *Config) { c.Model = "" }, want: "--model is not given"},
		{name: "no workload", change: func(c *Config) { c.Workload = "" }, want: "want one of multiturn, edge, concurrency, stairs, bursts, arrivals"},
		{name: "shape", change: func(c *Config) { c.Shape.Stairs = []int{1} }, want: "--stairs: workload edge has one shape only"},
		{name: "trace", change: func(c *Config) { c.Workload, c.Shape.Arrivals = Arrivals, "none" }, want: "open none: "},
		{name: "idle", change: func(c *Config) { c.Idle = -1 }, want: "want more than 0"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			cfg := config("http://127.0.0.1:1", Edge, 1)
			test.change(&cfg)
			require.ErrorContains(t, cfg.Check(), test.want)
			if report, err := Run(t.Context(), cfg); err == nil || report.Requests != 0 {
				t.Errorf("Run: got %v after %d requests, want an error and none", err, report.Requests)
			}
		})
	}
}

func config(url string, workload Workload, seed uint64) Config {
	cfg := Config{URL: url, Model: "tiny", Workload: workload, Seed: seed}
	switch workload {
	case Bursts:
		cfg.Shape.Every = time.Millisecond
	case Arrivals:
		cfg.Shape = Shape{Arrivals: capturedMultiturn, Speed: 100}
	}
	return cfg
}

func mustLoad(t *testing.T, server *fakeServer, workload Workload, seed uint64) Report {
	t.Helper()
	report, err := Run(t.Context(), config(server.URL, workload, seed))
	require.NoError(t, err)
	return report
}

// capturedMultiturn is a recorded load: 180 requests whose prompts share prefixes.
const capturedMultiturn = "../../../testdata/captures/0.33.0-multiturn-s7.trace.jsonl.gz"

// serve is the address of a server that does one thing.
func serve(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL
}

func count(texts []string, part string) int {
	n := 0
	for _, text := range texts {
		if strings.Contains(text, part) {
			n++
		}
	}
	return n
}
