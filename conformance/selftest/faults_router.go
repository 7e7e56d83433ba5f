package selftest

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/check/router"
)

// routerFaults are faults of a router, with two controls.
func (cfg *Config) routerFaults() []Fault {
	if cfg.Fleet == nil {
		return nil
	}
	all := []Fault{
		{Name: "router-no-fault", Says: "a small router", router: &routerFault{}},
		{Name: "router-prefill-no-fault", Says: "a small router with engines that compute prompts", router: &routerFault{prefills: 1}},
	}
	for _, f := range []struct {
		check      conformance.Assertion
		name, says string
		code       conformance.Code
		wrong      misrouting
	}{
		{"reaches", "unknown-route", "it does not know a route", router.CodeNotPassed, misrouting{client: func(w http.ResponseWriter, r *http.Request) *http.Request {
			if r.URL.Path != "/tokenize" {
				return r
			}
			w.WriteHeader(http.StatusNotFound)
			return nil
		}}},
		{"request-fields", "drops-unknown-fields", "it drops fields that it does not know", router.CodeRequestField, misrouting{route: func(_ *smallRouter, a *ask) { delete(a.body, "x_unknown") }}},
		{"request-headers", "drops-header", "it drops a header", router.CodeRequestHeader, client(func(r *http.Request) { r.Header.Del("X-Priority") })},
		{"once", "counts-double", "it sends refused requests again", router.CodeTwice, misrouting{answers: func(got *http.Response) {
			if got.StatusCode == http.StatusBadRequest {
				again := got.Request.Clone(got.Request.Context())
				again.Body, _ = again.GetBody()
				if second, err := http.DefaultTransport.RoundTrip(again); err == nil {
					second.Body.Close()
				}
			}
		}}},
		{"answers", "drops-answer-field", "it drops a field of answers", router.CodeAnswer, whole(func(text []byte) []byte {
			return bytes.ReplaceAll(text, []byte(`"finish_reason":"length"`), []byte(`"finish_reason":"stop"`))
		})},
		{"answer-headers", "drops-answer-header", "it drops a header of answers", router.CodeAnswerHeader, misrouting{answers: func(got *http.Response) { got.Header.Del("X-Request-Id") }}},
		{"streams", "strips-usage", "it strips the usage from streams", router.CodeEvent, parts(func(text []byte) []byte {
			if bytes.HasPrefix(text, []byte("data: ")) {
				text = bytes.ReplaceAll(text, []byte(`,"usage":{`), []byte(`,"used":{`))
			}
			return text
		})},
		{"chunks", "buffers", "it buffers streams", router.CodeBuffered, misrouting{answers: func(got *http.Response) {
			if isStream(got) {
				text, err := io.ReadAll(got.Body)
				got.Body = io.NopCloser(io.MultiReader(bytes.NewReader(text), failing{err}))
			}
		}}},
		{"unicode", "breaks-characters", "it decodes each part of an answer on its own", router.CodeUnicode, parts(func(text []byte) []byte { return bytes.ToValidUTF8(text, []byte("\ufffd")) })},
		{"cancellation", "forgets-abort", "it goes on when the client has left", router.CodeNoAbort, client(nil)},
		{"spread", "first-engine-only", "it sends everything to one engine", router.CodeUneven, misrouting{route: func(_ *smallRouter, a *ask) { a.key = "" }}},
		{"spread", "mixes-up", "it gives clients other answers where many wait", router.CodeMixedUp, crowded(whole(func(text []byte) []byte {
			return bytes.Replace(text, []byte(`"id":"cmpl-`), []byte(`"id":"cmpl_`), 1)
		}).answers)},
		{"large-bodies", "limits-bodies", "it takes 2 MB at most", router.CodeLarge, client(func(r *http.Request) { r.Body = http.MaxBytesReader(nil, r.Body, 2<<20) })},
		{"large-bodies", "cuts-bodies", "it cuts requests after 2 MB", router.CodeLarge, client(func(r *http.Request) { r.Body = io.NopCloser(io.LimitReader(r.Body, 2<<20)) })},
		{"large-bodies", "cuts-answers", "it cuts answers after 1 MB", router.CodeLarge, cut(false)},
		{"slow-client", "limits-streams", "it cuts streams of more than 1 MB", router.CodeSlowClient, cut(true)},
		{"scrapes", "unknown-scrape", "it asks engines for a route that they do not have", router.CodeScrape, misrouting{answers: func(got *http.Response) {
			if got.Request.URL.Path == "/detokenize" {
				if other, err := http.Get("http://" + got.Request.URL.Host + "/get_server_info"); err == nil {
					other.Body.Close()
				}
			}
		}}},
		{"transfer", "loses-kv-transfer-params", "it loses fields of kv_transfer_params", router.CodeTransfer, misrouting{route: func(_ *smallRouter, a *ask) {
			a.failed = false
			if params, is := a.params.(map[string]any); is {
				delete(params, "remote_num_tokens")
			}
		}}},
		{"transfer", "computes-more", "it has the engine that computes the prompt generate more", router.CodeTransfer, misrouting{prefill: func(body map[string]any) { body["max_tokens"] = 2 }}},
		{"transfer", "keeps-nothing", "it does not ask for blocks to be kept", router.CodeTransfer, misrouting{prefill: func(body map[string]any) { delete(body, "kv_transfer_params") }}},
		{"prefill-fails", "needs-prefill", "it fails where no engine computes the prompt", router.CodeTransfer, misrouting{route: func(*smallRouter, *ask) {}}},
		{"prefix-affinity", "forgets-prefixes", "it chooses engines at random, without a session", router.CodeAffinity, misrouting{route: func(_ *smallRouter, a *ask) {
			if !strings.HasPrefix(a.key, "session-") && !strings.HasPrefix(a.key, "adapter-") {
				a.key = strconv.Itoa(rand.Int())
			}
		}}},
		{"session-affinity", "forgets-sessions", "it chooses engines at random, for sessions", router.CodeAffinity, client(func(r *http.Request) { r.Header.Del("X-Session-Id") })},
		{"lora-affinity", "forgets-adapters", "it chooses engines at random, for adapters", router.CodeLoRA, misrouting{route: func(_ *smallRouter, a *ask) {
			if strings.HasPrefix(a.key, "adapter-") {
				a.key = strconv.Itoa(rand.Int())
			}
		}}},
		{"lora-affinity", "knows-no-adapters", "it has no engine for adapters", router.CodeLoRA, misrouting{route: func(_ *smallRouter, a *ask) { a.failed = strings.HasPrefix(a.key, "adapter-") }}},
		{"errors", "hides-errors", "it answers with 502 for errors of engines", router.CodeError, misrouting{answers: func(got *http.Response) {
			if got.StatusCode >= 500 {
				got.StatusCode = http.StatusBadGateway
			}
		}}},
		{"errors", "rewrites-errors", "it has other words for errors of engines", router.CodeError, misrouting{answers: func(got *http.Response) {
			if got.StatusCode >= 500 {
				got.Body = io.NopCloser(strings.NewReader("no engine serves"))
				got.Header.Del("Content-Length")
			}
		}}},
		{"errors", "loses-retry-after", "it loses Retry-After", router.CodeError, misrouting{answers: func(got *http.Response) { got.Header.Del("Retry-After") }}},
		{"cut-stream", "retries-after-first-byte", "it goes on with another engine after the first byte", router.CodeCut, misrouting{resends: true}},
		{"cut-stream", "ends-cut-streams", "it ends a cut stream as if it were complete", router.CodeCut, misrouting{answers: func(got *http.Response) { got.Body = forgiving{got.Body} }}},
		{"no-answer", "never-retries", "it sends no request again", router.CodeDown, misrouting{fails: func(*smallRouter, int, error) bool { return false }}},
		{"draining", "ignores-draining", "it sends requests to an engine that drains", router.CodeDraining, misrouting{healthy: func(_ int, err error) bool { return err == nil }}},
		{"engine-gone", "sticks-to-a-dead-engine", "it does not leave an engine that has ended", router.CodeDown, misrouting{
			healthy: func(status int, err error) bool { return err != nil || status == http.StatusOK },
			fails:   func(_ *smallRouter, _ int, err error) bool { return !strings.Contains(err.Error(), "refused") },
		}},
		{"engine-gone", "never-returns", "it never asks an engine again that was gone", router.CodeUnused, misrouting{
			healthy: func(status int, err error) bool { return err != nil || status == http.StatusOK },
			fails: func(r *smallRouter, n int, err error) bool {
				r.mu.Lock()
				r.dead[n] = strings.Contains(err.Error(), "refused")
				r.mu.Unlock()
				return true
			},
		}},
	} {
		fault := &routerFault{check: f.check, code: f.code, wrong: f.wrong}
		if f.code == router.CodeTransfer {
			fault.prefills = 1
		}
		all = append(all, Fault{Name: "router-" + f.name, Says: "a router: " + f.says, router: fault})
	}
	return all
}

// client changes the request of the client. Without a change the engine does not notice its end.
func client(change func(*http.Request)) misrouting {
	return misrouting{client: func(_ http.ResponseWriter, r *http.Request) *http.Request {
		if change == nil {
			ctx, end := context.WithTimeout(context.WithoutCancel(r.Context()), time.Minute)
			context.AfterFunc(ctx, end)
			return r.WithContext(ctx)
		}
		change(r)
		return r
	}}
}

// cut ends answers after 1 MB: streams, or all others.
func cut(streams bool) misrouting {
	return misrouting{answers: func(got *http.Response) {
		if isStream(got) == streams {
			got.Body = io.NopCloser(io.LimitReader(got.Body, 1<<20))
			got.Header.Del("Content-Length")
		}
	}}
}

// crowded changes answers while more than four clients wait.
func crowded(answers func(*http.Response)) misrouting {
	var waiting atomic.Int32
	return misrouting{
		client: func(_ http.ResponseWriter, r *http.Request) *http.Request {
			waiting.Add(1)
			context.AfterFunc(r.Context(), func() { waiting.Add(-1) })
			return r
		},
		answers: func(got *http.Response) {
			if waiting.Load() > 4 {
				answers(got)
			}
		},
	}
}

func isStream(got *http.Response) bool {
	return strings.HasPrefix(got.Header.Get("Content-Type"), "text/event-stream")
}

// whole changes answers that are no streams.
func whole(change func([]byte) []byte) misrouting {
	return misrouting{answers: func(got *http.Response) {
		if !isStream(got) && got.ContentLength >= 0 {
			text, err := io.ReadAll(got.Body)
			got.Body = io.NopCloser(io.MultiReader(bytes.NewReader(change(text)), failing{err}))
			got.Header.Del("Content-Length")
		}
	}}
}

// parts changes each part of an answer as it comes.
func parts(change func([]byte) []byte) misrouting {
	return misrouting{answers: func(got *http.Response) {
		got.Body = &changed{ReadCloser: got.Body, change: change}
		got.Header.Del("Content-Length")
	}}
}

type changed struct {
	io.ReadCloser
	change func([]byte) []byte
	rest   []byte
}

func (c *changed) Read(p []byte) (int, error) {
	var err error
	if len(c.rest) == 0 {
		part := make([]byte, 32<<10)
		var n int
		n, err = c.ReadCloser.Read(part)
		c.rest = c.change(part[:n])
	}
	n := copy(p, c.rest)
	if c.rest = c.rest[n:]; len(c.rest) > 0 {
		err = nil
	}
	return n, err
}

// failing reads as an error, or as the end.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) {
	if f.err != nil {
		return 0, f.err
	}
	return 0, io.EOF
}

// forgiving takes each error for the end.
type forgiving struct{ io.ReadCloser }

func (f forgiving) Read(p []byte) (int, error) {
	n, err := f.ReadCloser.Read(p)
	if err != nil {
		err = io.EOF
	}
	return n, err
}
