package httpdiff

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// A fake is a small server of the API. Each of its texts can be replaced.
type fake struct {
	*httptest.Server
	replace  map[string]string // by path; "" closes the connection
	headers  map[string]string
	status   map[string]int
	prompts  int // tokens
	finished int
}

const (
	fakeText   = `{"id": "cmpl-0123456789abcdef", "created": 1700000000, "model": "m", "choices": [{"index": 0, "text": "Hi", "logprobs": {"tokens": ["Hi"], "token_logprobs": [-0.5]}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 3}}`
	fakeStream = `data: {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": null}]}

data: {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {"content": "Hel"}, "finish_reason": null}]}

data: {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {"content": "lo"}, "finish_reason": null}]}

data: {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "stop"}]}

data: {"id": "chatcmpl-1", "choices": [], "usage": {"completion_tokens": 2}}

data: [DONE]

`
	fakeError = `{"error": {"message": "the model nothing at http://{{host}} is request 0123456789abcdef", "type": "NotFoundError", "code": 404}}`
)

func newFake(t *testing.T) *fake {
	f := &fake{replace: map[string]string{}, headers: map[string]string{}, status: map[string]int{}}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		status, kind, text := 200, "application/json", ""
		switch r.URL.Path {
		case "/v1/models":
			text = `{"data": [{"id": "m"}]}`
		case "/v1/completions":
			f.prompts += 3
			f.finished++
			text = fakeText
		case "/v1/chat/completions":
			f.finished++
			kind, text = "text/event-stream; charset=utf-8", fakeStream
		case "/metrics":
			kind = "text/plain; version=0.0.4"
			text = fmt.Sprintf("# TYPE vllm:prompt_tokens counter\nvllm:prompt_tokens_total{engine=\"0\",model_name=\"m\"} %d\n"+
				"# TYPE vllm:request_success counter\nvllm:request_success_total{finished_reason=\"stop\"} %d.0\n# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 0\n", f.prompts, f.finished)
		case "/health":
			kind = ""
		default:
			status, text = 404, strings.ReplaceAll(fakeError, "{{host}}", r.Host)
		}
		if replaced, ok := f.replace[r.URL.Path]; ok {
			if text = replaced; text == "" {
				panic(http.ErrAbortHandler)
			}
		}
		if replaced, ok := f.status[r.URL.Path]; ok {
			status = replaced
		}
		w.Header().Set("Content-Type", kind)
		for name, value := range f.headers {
			w.Header().Set(name, value)
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	}))
	t.Cleanup(f.Close)
	return f
}

const fakeCorpus = `### a/text: one
POST /v1/completions

{"model": "{{model}}"}

### a/stream: two
POST /v1/chat/completions

{"stream": true}

### a/error: three
GET /v1/nothing

### a/metrics: four
GET /metrics
`

// TestRun: whatever differs is found, and nothing else is reported.
func TestRun(t *testing.T) {
	tests := []struct {
		name   string
		change func(*fake)
		want   []string // request what: a | b
	}{
		{"nothing", func(*fake) {}, nil},
		{"ids and times", func(f *fake) {
			f.replace["/v1/completions"] = strings.NewReplacer("0123456789abcdef", "fedcba9876543210", "1700000000", "1800000000", "-0.5", "-0.50000002").Replace(fakeText)
			f.replace["/v1/chat/completions"] = strings.ReplaceAll(fakeStream, "chatcmpl-1", "chatcmpl-2")
		}, []string{`a/stream stream id: "chatcmpl-2" | "chatcmpl-1"`}},
		{"other chunks", func(f *fake) {
			f.replace["/v1/chat/completions"] = strings.NewReplacer(`"Hel"`, `"H"`, `"lo"`, `"ello"`).Replace(fakeStream)
		}, nil},
		{"another status", func(f *fake) { f.status["/v1/completions"] = 201 }, []string{`a/text status: 201 | 200`}},
		{"a refusal", func(f *fake) {
			f.status["/v1/completions"], f.replace["/v1/completions"] = 400, `{"error": {"message": "n is too large"}}`
		}, []string{`a/text status: 400: n is too large | 200`}},
		{"a header", func(f *fake) { f.headers["Retry-After"] = "1" }, []string{
			`a/text header retry-after: 1 | missing`, `a/stream header retry-after: 1 | missing`,
			`a/error header retry-after: 1 | missing`, `a/metrics header retry-after: 1 | missing`,
		}},
		{"a missing key", func(f *fake) {
			f.replace["/v1/completions"] = strings.Replace(fakeText, `, "finish_reason": "stop"`, "", 1)
		}, []string{`a/text body choices[].finish_reason: missing | "stop"`}},
		{"another kind", func(f *fake) {
			f.replace["/v1/completions"] = strings.Replace(fakeText, `"prompt_tokens": 3`, `"prompt_tokens": "3"`, 1)
		}, []string{`a/text body usage.prompt_tokens: "3" | 3`}},
		{"a log-probability", func(f *fake) {
			f.replace["/v1/completions"] = strings.Replace(fakeText, `-0.5`, `-0.51`, 1)
		}, []string{`a/text body choices[].logprobs.token_logprobs: [-0.51] | [-0.5]`}},
		{"a choice too many", func(f *fake) {
			f.replace["/v1/completions"] = strings.Replace(fakeText, `"choices": [`, `"choices": [{"index": 1}, `, 1)
		}, []string{`a/text body choices (length): 2 | 1`}},
		{"no JSON", func(f *fake) { f.replace["/v1/completions"] = "Hi" }, []string{`a/text body: no JSON: Hi | JSON: ` + fakeText[:200]}},
		{"an error's text", func(f *fake) {
			f.replace["/v1/nothing"] = `{"error": {"message": "no", "type": "NotFoundError", "code": "404"}}`
		}, []string{`a/error body error.code: "404" | 404`, `a/error body error.message: "no" | "the model nothing at {{url}} is request *"`}},
		{"another text in a stream", func(f *fake) {
			f.replace["/v1/chat/completions"] = strings.Replace(fakeStream, `"lo"`, `"p"`, 1)
		}, []string{`a/stream stream choices[].delta.content: "Help" | "Hello"`}},
		{"no role", func(f *fake) {
			f.replace["/v1/chat/completions"] = strings.Replace(fakeStream, `"role": "assistant", `, "", 1)
		}, []string{`a/stream stream order of choice 0: text finish | role text finish`, `a/stream stream choices[].delta.role: missing | "assistant"`}},
		{"a key in some events", func(f *fake) {
			f.replace["/v1/chat/completions"] = strings.Replace(fakeStream, `"content": "Hel"}, "finish_reason": null`, `"content": "Hel"}`, 1)
		}, []string{`a/stream stream text event: choices[].finish_reason: missing | null`}},
		{"usage before the end", func(f *fake) {
			parts := strings.SplitAfter(fakeStream, "\n\n")
			parts[3], parts[4] = parts[4], parts[3]
			f.replace["/v1/chat/completions"] = strings.Join(parts, "")
		}, []string{`a/stream stream order: choices usage choices [DONE] | choices usage [DONE]`}},
		{"no end", func(f *fake) {
			f.replace["/v1/chat/completions"] = strings.Replace(fakeStream, "data: [DONE]\n\n", "", 1)
		}, []string{`a/stream stream order: choices usage | choices usage [DONE]`}},
		{"other lines", func(f *fake) {
			f.replace["/v1/chat/completions"] = ": ping\r\n\r\n" + fakeStream
		}, []string{`a/stream stream framing: CR LF, a comment, data | data`}},
		{"the connection ends", func(f *fake) { f.replace["/v1/completions"] = "" }, []string{`a/text answer: the connection ended without an answer | 200`}},
		{"a metric", func(f *fake) {
			f.replace["/metrics"] = "# TYPE vllm:prompt_tokens gauge\nvllm:prompt_tokens_total{engine=\"0\",rank=\"1\"} 0\n"
		}, []string{
			`a/text metric vllm:prompt_tokens_total: +0 | +3`,
			`a/metrics metrics vllm:num_requests_running: missing | gauge {}`,
			`a/metrics metrics vllm:prompt_tokens: gauge {engine,rank} | counter {engine,model_name}`,
			`a/metrics metrics vllm:request_success: missing | counter {finished_reason}`,
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			a, b := newFake(t), newFake(t)
			test.change(a)
			report, err := run(t, a, b, "")
			require.NoError(t, err)
			var got []string
			for _, d := range report.Differences {
				got = append(got, fmt.Sprintf("%s %s: %s | %s", d.Request, d.What, d.A, d.B))
			}
			require.NoDiff(t, cmp.Diff(test.want, got), "differences (-want +got)")
			// The same the other way round, and expected by patterns.
			report, err = run(t, b, a, "", Known{Request: "a/*", What: "*", Reason: "a test"})
			require.NoError(t, err)
			if len(report.Differences) != len(test.want) || len(report.Unknown()) != 0 || (len(report.Unused) == 0) != (len(test.want) > 0) {
				t.Errorf("the other way round: %d differences, %d unknown, %d unused: want %d, 0, and unused if there are none",
					len(report.Differences), len(report.Unknown()), len(report.Unused), len(test.want))
			}
		})
	}
}

// TestRunKnownEverywhere: a header that every answer has more of makes none of them another one, and only that.
func TestRunKnownEverywhere(t *testing.T) {
	a, b := newFake(t), newFake(t)
	a.headers["X-Request-Id"] = "7"
	known := []Known{{Request: "*", What: "header x-request-id", B: "missing", Reason: "a test"}, {Request: "*", What: "body *", Reason: "a test"}}
	r, err := run(t, a, b, "", known...)
	require.NoError(t, err)
	if r.Same != r.Requests || len(r.Differences) != r.Requests {
		t.Errorf("%d requests, %d the same, %d differences: want the same in all, with one difference each", r.Requests, r.Same, len(r.Differences))
	}
	a.replace["/v1/completions"] = strings.Replace(fakeText, `"stop"`, `"length"`, 1)
	r, err = run(t, a, b, "", known...)
	require.NoError(t, err)
	require.True(t, r.Same == r.Requests-1 && r.Expected == 1, "%d requests, %d the same, %d expected: want one expected", r.Requests, r.Same, r.Expected)
}

// run sends the corpus of fakes to two servers.
func run(t *testing.T, a, b *fake, model string, known ...Known) (*Report, error) {
	t.Helper()
	corpus, err := ParseCorpus("fake", fakeCorpus)
	require.NoError(t, err)
	return Run(t.Context(), Options{A: Side{URL: a.URL}, B: Side{URL: b.URL}, Model: model, Requests: corpus, Known: known, Settle: time.Millisecond})
}

// TestRunEnds: a server that is gone, and a model that no server has.
func TestRunEnds(t *testing.T) {
	a, b := newFake(t), newFake(t)
	a.replace["/v1/completions"], a.replace["/health"] = "", ""
	_, err := run(t, a, b, "")
	var ended *EndedError
	require.True(t, errors.As(err, &ended) && ended.Tested && ended.Request == "a/text", "a server that died: %v", err)
	if _, err = run(t, b, b, "other"); !errors.Is(err, ErrModel) {
		t.Errorf("a model that is not there: %v", err)
	}
	b.Close()
	if _, err = run(t, a, b, ""); !errors.As(err, &ended) || ended.Tested {
		t.Errorf("a reference that is not there: %v", err)
	}
}

// TestText: equal differences are one, those of most requests first.
func TestText(t *testing.T) {
	reason, named := &Known{Reason: "known"}, &Known{Request: "*", What: "header x-request-id", Reason: "named"}
	r := &Report{Requests: 4, Same: 1, Expected: 1, Differences: []Difference{
		{Request: "a/1", What: "status", A: "400", B: "200"},
		{Request: "a/1", What: "header server", A: "missing", B: "x"},
		{Request: "a/2", What: "header server", A: "missing", B: "x", More: 2},
		{Request: "a/3", What: "body", A: "1", B: "\x1b[31m2", Known: reason},
		{Request: "a/3", What: "header x-request-id", A: "7", B: "missing", Known: named},
	}, Unused: []Known{{Request: "b/*", What: "status"}}}
	var out strings.Builder
	require.NoError(t, r.Text(&out))
	want := `2 requests: a/1, a/2
  header server
    tested:    missing
    reference: x
1 request: a/1
  status
    tested:    400
    reference: 200
known difference that did not occur: request b/*, status: remove the entry
known in all answers, and not counted below: header x-request-id
4 requests: 1 the same, 1 with known differences, 2 with others
`
	require.NoDiff(t, cmp.Diff(want, out.String()), "text (-want +got)")
}

func TestCorpus(t *testing.T) {
	requests := Corpus()
	require.True(t, len(requests) >= 150, "%d requests: want at least 150", len(requests))
	for _, path := range []string{
		"/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/models", "/tokenize", "/detokenize",
		"/inference/v1/generate", "/v1/chat/completions/render", "/health", "/ping", "/version", "/load", "/metrics", "/v1/load_lora_adapter",
		"/v1/unload_lora_adapter", "/sleep?level=1", "/wake_up", "/is_sleeping", "/reset_prefix_cache",
	} {
		require.True(t, slices.ContainsFunc(requests, func(r Request) bool { return r.Path == path }), "no request for %s", path)
	}
	for _, r := range requests {
		require.True(t, !strings.Contains(Expand(r.Body, "m"), "{{repeat") && !strings.Contains(Expand(r.Body, "m"), "{{model"), "corpus.http:%d: %s: a variable is not replaced", r.Line, r.Name)
	}
	for text, want := range map[string]string{
		"":                                     "no request",
		"GET /":                                "is before",
		"### a/b\nGET /":                       "group/name",
		"### a/b: c":                           "has no METHOD",
		"### a/b: c\nGET /\n### a/b: d\nGET /": "that of line 1",
		"### a/b: c\nGET":                      "METHOD /path",
		"### a/b: c\n# @depth deep\nGET /":     "# @depth",
		"### a/b: c\n# @abort 0\nGET /":        "# @abort",
		"### a/b: c\nGET /\nX\n":               "NAME: VALUE",
	} {
		if _, err := ParseCorpus("f", text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseCorpus(%q): %v, want %q", text, err, want)
		}
	}
}

func TestMatch(t *testing.T) {
	for _, test := range []struct {
		pattern, text string
		want          bool
	}{
		{"a", "a", true},
		{"a", "ab", false},
		{"*", "", true},
		{"*", "a/b", true},
		{"a/*", "a/b", true},
		{"a/*", "b/a", false},
		{"a*c", "abc", true},
		{"a*c", "abcd", false},
		{"*b*", "abc", true},
		{"*b*d", "abcd", true},
		{"*b*d", "abc", false},
		{"", "a", false},
	} {
		require.Equal(t, Match(test.pattern, test.text), test.want, "Match(%q, %q)", test.pattern, test.text)
	}
}

func TestReadKnown(t *testing.T) {
	known, err := ReadKnown("f", "[[difference]]\nrequest = 'a/*'\nwhat = 'status'\na = '400*'\nreason = 'so'\n")
	if err != nil || len(known) != 1 || !known[0].matches(Difference{Request: "a/b", What: "status", A: "400: no", B: "200"}) ||
		known[0].matches(Difference{Request: "a/b", What: "status", A: "404", B: "200"}) {
		t.Errorf("%v, %v", known, err)
	}
	for text, want := range map[string]string{
		"[[difference": "f: ",
		"[[difference]]\nrequest = 'a'\nwho = 'b'": "unknown key difference.who",
		"[[difference]]\nrequest = 'a'":            "must not be empty",
	} {
		if _, err := ReadKnown("f", text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ReadKnown(%q): %v, want %q", text, err, want)
		}
	}
}

// The lists of known differences in this program can be read.
func TestKnownDifferences(t *testing.T) {
	for name, text := range map[string]string{"builtin.toml": builtinText, "builtin-python.toml": builtinPythonText} {
		if known, err := ReadKnown(name, text); err != nil || len(known) == 0 {
			t.Errorf("%s: %d entries, %v", name, len(known), err)
		}
	}
}
