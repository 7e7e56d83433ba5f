package selftest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"hash/fnv"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/check"
)

// routerFault is a fault of a small router. Exactly one case of the suite router must see it.
type routerFault struct {
	check    conformance.Assertion // empty in the control
	code     conformance.Code
	prefills int // engines that compute prompts only
	wrong    misrouting
}

// misrouting is what the router does wrong.
type misrouting struct {
	route   func(*smallRouter, *ask)                               // before an engine is chosen
	client  func(http.ResponseWriter, *http.Request) *http.Request // to the request of the client; nil: it was answered
	answers func(*http.Response)                                   // to the answer of the engine
	prefill func(body map[string]any)                              // to what the engine that computes the prompt is asked for
	fails   func(r *smallRouter, tries int, err error) (again bool)
	healthy func(status int, err error) bool
	resends bool // a cut stream
}

// ask is what the router looks at in a request.
type ask struct {
	key    string // of the engine
	body   map[string]any
	params any // kv_transfer_params of the engine that computed the prompt
	failed bool
}

// smallRouter chooses an engine by the beginning of the prompt, the session or the adapter, if it is healthy.
type smallRouter struct {
	engines  []string
	prefills int
	wrong    misrouting
	mu       sync.Mutex
	dead     map[int]bool // engines that failed once
}

func (r *smallRouter) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	if r.wrong.client != nil {
		if request = r.wrong.client(w, request); request == nil {
			return
		}
	}
	body, err := io.ReadAll(request.Body)
	if err != nil {
		w.WriteHeader(http.StatusRequestEntityTooLarge)
		return
	}
	a := &ask{}
	reader := json.NewDecoder(bytes.NewReader(body))
	reader.UseNumber()
	isJSON := reader.Decode(&a.body) == nil
	model, _ := a.body["model"].(string)
	prompt, _ := a.body["prompt"].(string)
	switch session := request.Header.Get("X-Session-Id"); {
	case session != "":
		a.key = session
	case strings.HasPrefix(model, "adapter-"):
		a.key = model
	default:
		a.key = prompt[:min(8, len(prompt))]
	}
	if isJSON && r.prefills > 0 && request.URL.Path == "/v1/completions" {
		r.prefill(request, a)
	}
	if r.wrong.route != nil {
		r.wrong.route(r, a)
	}
	if isJSON && (a.params != nil || r.wrong.route != nil) {
		body, _ = json.Marshal(a.body)
	}
	if a.failed {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	r.forward(w, request, a.key, body)
}

// prefill has an engine compute the prompt.
func (r *smallRouter) prefill(request *http.Request, a *ask) {
	first := map[string]any{}
	for key, value := range a.body {
		first[key] = value
	}
	first["max_tokens"], first["stream"] = 1, false
	first["kv_transfer_params"] = map[string]any{"do_remote_decode": true}
	if r.wrong.prefill != nil {
		r.wrong.prefill(first)
	}
	body, _ := json.Marshal(first)
	one, _ := http.NewRequestWithContext(request.Context(), http.MethodPost, "http://"+r.engines[0]+request.URL.Path, bytes.NewReader(body))
	one.Header = request.Header.Clone()
	got, err := http.DefaultTransport.RoundTrip(one)
	if err != nil {
		return
	}
	defer got.Body.Close()
	var answer map[string]any
	if json.NewDecoder(got.Body).Decode(&answer) == nil && got.StatusCode == http.StatusOK && answer["kv_transfer_params"] != nil {
		a.params = answer["kv_transfer_params"]
		a.body["kv_transfer_params"] = a.params
	} else {
		a.failed = r.wrong.route != nil && got.StatusCode >= 500
	}
}

// forward tries one engine after the other.
func (r *smallRouter) forward(w http.ResponseWriter, request *http.Request, key string, body []byte) {
	hash := fnv.New32a()
	_, _ = io.WriteString(hash, key)
	engines := r.engines[r.prefills:]
	for tries := range engines {
		n := (int(hash.Sum32()%1_000_003) + tries) % len(engines)
		r.mu.Lock()
		dead := r.dead[n]
		r.mu.Unlock()
		if dead || !r.healthy(request.Context(), engines[n]) {
			continue
		}
		var failed error
		proxy := &httputil.ReverseProxy{
			FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0),
			Rewrite: func(p *httputil.ProxyRequest) {
				p.SetURL(&url.URL{Scheme: "http", Host: engines[n]})
				p.Out.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
				p.Out.Body, _ = p.Out.GetBody()
				p.Out.ContentLength = int64(len(body))
			},
			ModifyResponse: func(got *http.Response) error {
				if r.wrong.answers != nil {
					r.wrong.answers(got)
				}
				if r.wrong.resends {
					got.Body = &resender{ReadCloser: got.Body, again: func() (*http.Response, error) {
						one, _ := http.NewRequestWithContext(request.Context(), request.Method, "http://"+engines[(n+1)%len(engines)]+request.URL.Path, bytes.NewReader(body))
						one.Header = request.Header.Clone()
						return http.DefaultTransport.RoundTrip(one)
					}}
				}
				return nil
			},
			ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, err error) { failed = err },
		}
		proxy.ServeHTTP(w, request)
		if failed == nil || request.Context().Err() != nil {
			return
		}
		if r.wrong.fails != nil && !r.wrong.fails(r, n, failed) {
			break
		}
	}
	w.WriteHeader(http.StatusBadGateway)
}

// healthy asks an engine whether it takes requests.
func (r *smallRouter) healthy(ctx context.Context, engine string) bool {
	one, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+engine+"/health", nil)
	got, err := http.DefaultTransport.RoundTrip(one)
	status := 0
	if err == nil {
		got.Body.Close()
		status = got.StatusCode
	}
	if r.wrong.healthy != nil {
		return r.wrong.healthy(status, err)
	}
	return status == http.StatusOK
}

// resender goes on with another answer where one is cut.
type resender struct {
	io.ReadCloser
	again func() (*http.Response, error)
}

func (b *resender) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		if got, failed := b.again(); failed == nil {
			b.ReadCloser = got.Body
			return n, nil
		}
	}
	return n, err
}

// sharedFleets starts engines once for all routers that want the same ones. Each router has recorders of its own before them, so nothing
// that one does wrong is seen behind another one.
func sharedFleets(ctx context.Context, start startFleet) (shared startFleet, end func()) {
	type fleet struct {
		urls  []string
		model string
		stop  func()
	}
	var mu sync.Mutex
	running := map[check.FleetOptions]fleet{}
	shared = func(_ context.Context, o check.FleetOptions) ([]string, string, func(), error) {
		mu.Lock()
		defer mu.Unlock()
		key := o
		key.Events = 0
		f, ok := running[key]
		if !ok {
			var err error
			if f.urls, f.model, f.stop, err = start(ctx, o); err != nil {
				return nil, "", nil, err
			}
			running[key] = f
		}
		return f.urls, f.model, func() {}, nil
	}
	return shared, func() {
		for _, f := range running {
			f.stop()
		}
	}
}

// judgedRouter runs the suite router before a router with a fault.
func (cfg *Config) judgedRouter(ctx context.Context, t *task) conformance.Result {
	f := t.fault.router
	run := func(line compat.Line, idle time.Duration) (*conformance.Report, error) {
		cases, err := conformance.NewPlan(cfg.Matrix, cfg.Manifest, conformance.Selection{
			Suite: conformance.SuiteRouter, Lines: []string{line.Name}, Enforce: conformance.EnforceAll,
			Skip: []string{"**/kv-events"}, // the small router reads none
		})
		if err != nil {
			return nil, err
		}
		under := &conformance.RouterUnderTest{Backends: 3 + f.prefills, Prefills: f.prefills, Fleet: cfg.Fleet, LargeBody: 3 << 20, Launch: func(addresses []string, prefills int) *check.RouterProcess {
			server := httptest.NewServer(&smallRouter{engines: addresses, prefills: prefills, wrong: f.wrong, dead: map[int]bool{}})
			return &check.RouterProcess{URL: server.URL, Stop: func() {
				server.CloseClientConnections()
				server.Close()
			}}
		}}
		if f.check != "" {
			under.Every = 3
		}
		report := cfg.runner(conformance.Runner{Log: cfg.Log, NoCoverage: true, Router: under, Timeouts: conformance.Timeouts{Connect: 10 * idle, Idle: idle}}).Run(ctx, cases)
		return report, context.Cause(ctx)
	}
	judge := func(r conformance.Result) conformance.Failure {
		if r.Case.Assertion == f.check {
			return (&suiteFault{check: f.check, code: f.code}).judge(r)
		}
		return (&suiteFault{}).judge(r)
	}
	return judged(ctx, t, []time.Duration{3 * time.Second, 15 * time.Second}, run, judge)
}
