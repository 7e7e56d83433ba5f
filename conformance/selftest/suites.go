package selftest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/process"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/live"
	"github.com/vllm-vcr/conformance/internal/engine/nixl/agent"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/player"
)

// suiteFault is a fault in front of a check of a suite other than replay. The check must report the code, with a message that has
// the words of finds.
type suiteFault struct {
	suite conformance.Suite
	check conformance.Assertion // empty in the control, which runs all
	code  conformance.Code
	finds string
	edits []edit
	// ends is how the engine ends when it is told to: not at all, or only when it is killed. Its index is that of its identity.
	ends  engineEnd
	index int
	// defect is that of the consumer of KV events, empty for none.
	defect string
	// transfer, unless nil, is how the engine moves KV caches.
	transfer *transferFault
}

type engineEnd int

const (
	endsNever engineEnd = iota + 1
	endsKilled
)

// RunningFrontend is a frontend that waits for an engine.
type RunningFrontend struct {
	Handshake, URL string
	Stop           func()
}

// suiteFaults are the faults of the suites other than replay, with a control each.
func (cfg *Config) suiteFaults() []Fault {
	all := []Fault{{Name: "live-no-fault", Says: "an engine that makes up tokens, behind the tamperer", suite: &suiteFault{suite: conformance.SuiteLive}}}
	all = slices.Concat(all, liveFaults(), generatedEngineFaults(), transferFaults())
	all = append(all, Fault{Name: "kv-consumer-no-fault", Says: "a consumer of KV events", suite: &suiteFault{suite: conformance.SuiteKVConsumer}})
	all = append(all, consumerFaults()...)
	if cfg.Frontend != nil {
		all = append(all, Fault{Name: "frontend-no-fault", Says: "a frontend behind the tamperer and a proxy", suite: &suiteFault{suite: conformance.SuiteFrontend}})
		all = append(append(all, frontendFaults()...), generatedFaults()...)
	}
	return all
}

// judgedSuite puts a fault in front of a check, and judges what it reports. A check that waits in vain is given little time first.
func (cfg *Config) judgedSuite(ctx context.Context, t *task) conformance.Result {
	idles := []time.Duration{500 * time.Millisecond, 10 * time.Second}
	if t.fault.suite.check == "" {
		idles = idles[1:]
	}
	run := func(line compat.Line, idle time.Duration) (*conformance.Report, error) {
		return cfg.runSuite(ctx, t.fault.suite, line, idle)
	}
	return judged(ctx, t, idles, run, t.fault.suite.judge)
}

// judged runs a suite before what has a fault, and judges each result. What waits in vain is given more time then.
func judged(ctx context.Context, t *task, idles []time.Duration, run func(compat.Line, time.Duration) (*conformance.Report, error), judge func(conformance.Result) conformance.Failure) conformance.Result {
	start := time.Now()
	line := t.scene.cases[0].Line
	result := conformance.Result{Case: t.fault.in(line)}
	for _, idle := range idles {
		report, err := run(line, idle)
		if err != nil {
			unplayed(ctx, &result, err)
			break
		}
		result.Asserted, result.Note = len(report.Results), seen(report.Results)
		result.Verdict, result.Failures = conformance.Pass, nil
		for _, r := range report.Results {
			if wrong := judge(r); wrong.Code != "" {
				result.Verdict, result.Failures = conformance.Fail, append(result.Failures, wrong)
			}
		}
		if result.Verdict == conformance.Pass {
			break
		}
	}
	result.Duration = time.Since(start)
	return result
}

// judge returns what is wrong with a result, a failure without code if nothing is.
func (f *suiteFault) judge(r conformance.Result) conformance.Failure {
	switch {
	case f.check == "" && r.Verdict.Red():
		return check.Failed(CodeWrongCheck, "%s must not be concerned: %s", r.Case.Name(), describe(r))
	case f.check == "":
	case !r.Verdict.Red():
		return check.Failed(CodeUncaught, "%s does not see it: %s", r.Case.Name(), describe(r))
	case !slices.ContainsFunc(r.Failures, func(failure conformance.Failure) bool {
		return failure.Code == f.code && strings.Contains(failure.Message, f.finds)
	}):
		var found []string
		for _, failure := range r.Failures {
			found = append(found, string(failure.Code)+" "+check.FirstLine(errors.New(failure.Message)))
		}
		return check.Failed(CodeUnclear, "%s: no failure has the code %s and the words %q: %s", r.Case.Name(), f.code, f.finds, strings.Join(found, "; "))
	}
	return conformance.Failure{}
}

// runSuite runs the checks that a fault is in front of.
func (cfg *Config) runSuite(ctx context.Context, f *suiteFault, line compat.Line, idle time.Duration) (*conformance.Report, error) {
	sel := conformance.Selection{Suite: f.suite, Lines: []string{line.Name}, Enforce: conformance.EnforceAll}
	if f.check != "" {
		sel.Assertions = []conformance.Assertion{f.check}
	}
	cases, err := conformance.NewPlan(cfg.Matrix, cfg.Manifest, sel)
	if err != nil {
		return nil, err
	}
	codec, err := check.CodecFor(line)
	if err != nil {
		return nil, err
	}
	runner := conformance.Runner{Store: cfg.Store, Log: cfg.Log, NoCoverage: true, Timeouts: conformance.Timeouts{Connect: 4 * idle, Idle: idle}, Generate: check.Generate{Sessions: 40, Seed: 1}}
	tampered := tampers(codec, f.edits)
	switch {
	case f.suite == conformance.SuiteKVConsumer:
		runner.Consumer = &conformance.ConsumerUnderTest{Inside: flawed(f.defect)}
	case f.suite == conformance.SuiteLive, f.suite == conformance.SuitePrefill, f.suite == conformance.SuiteDecode, f.check == live.Sessions:
		runner.Generate.Replays = true
		tidy := func() {}
		defer func() { tidy() }()
		runner.NIXL = agent.InMemory
		runner.Engine = func(opt player.Options) (conformance.Subject, error) {
			opt.EngineIndex += f.index
			if f.transfer != nil {
				remove, err := f.transfer.into(&opt)
				if err != nil {
					return nil, err
				}
				tidy = remove
			}
			t := &tamperer{opt: opt, tamper: tampered, identity: protocol.Identity(opt.EngineIndex)}
			if f.ends != 0 {
				return endless{t, f.ends}, nil
			}
			return t, nil
		}
	default:
		front, stop, err := cfg.faultyFrontend(ctx, f.edits, tampered, line.Name)
		for range 2 { // another program may have taken the address of its handshake
			if !errors.Is(err, errUnready) {
				break
			}
			front, stop, err = cfg.faultyFrontend(ctx, f.edits, tampered, line.Name)
		}
		if err != nil {
			return nil, err
		}
		defer stop()
		runner.Frontend = front
	}
	report := cfg.runner(runner).Run(ctx, cases)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return report, nil
}

// endless is an engine that does not end as it should.
type endless struct {
	*tamperer
	ends engineEnd
}

// End is how the engine ended, and whether it had to be killed.
func (e endless) End() (*process.ExitError, bool) {
	if e.ends == endsNever {
		return nil, false
	}
	return &process.ExitError{Status: "signal: killed"}, true
}

// readyWithin is how long a frontend may take to answer the handshake.
const readyWithin = 10 * time.Second

var errUnready = errors.New("the frontend does not answer the handshake")

// faultyFrontend starts a frontend, with the tamperer on the side of its engine and a proxy on its HTTP side.
func (cfg *Config) faultyFrontend(ctx context.Context, edits []edit, tampered tamper, line string) (*conformance.FrontendUnderTest, func(), error) {
	behind, err := cfg.Frontend(ctx, line)
	if err != nil {
		return nil, nil, err
	}
	target, err := url.Parse(behind.URL)
	if err != nil {
		return nil, nil, err
	}
	proxy := httptest.NewUnstartedServer(nil)
	forward := &httputil.ReverseProxy{
		FlushInterval:  -1,
		Rewrite:        func(r *httputil.ProxyRequest) { r.SetURL(target) },
		ModifyResponse: modifier(edits),
		ErrorLog:       log.New(io.Discard, "", 0), // of answers that are lost
	}
	proxy.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Otherwise the server closes the body once the answer begins, and the transport, which looks for more of it, ends the connection.
		_ = http.NewResponseController(w).EnableFullDuplex()
		forward.ServeHTTP(w, r)
	})
	for _, e := range edits {
		proxy.Config.Handler = e.before(proxy, proxy.Config.Handler)
	}
	proxy.Start()
	running, cancel := context.WithCancel(ctx)
	relay := &tamperer{
		opt: player.Options{Handshake: behind.Handshake}, tamper: tampered, identity: protocol.Identity(0), listening: make(chan struct{}),
	}
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(running) }()
	stop := func() {
		cancel()
		<-ended
		behind.Stop()
		proxy.CloseClientConnections()
		proxy.Close()
	}
	select {
	case <-relay.listening:
	case err := <-ended:
		ended <- err
		stop()
		return nil, nil, fmt.Errorf("the tamperer: %w", err)
	case <-time.After(readyWithin):
		stop()
		return nil, nil, errUnready
	}
	return &conformance.FrontendUnderTest{Handshake: relay.endpoint, URL: proxy.URL}, stop, nil
}

// before does to requests what an edit of the whole route wants.
func (e edit) before(server *httptest.Server, serve http.Handler) http.Handler {
	var requested atomic.Bool
	var met atomic.Int32
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		is := e.of == r.Method+" "+r.URL.Path
		if is {
			n := int(met.Add(1))
			is = e.nth == 0 || n == e.nth
			requested.Store(true)
		}
		hang := func() {
			_, _ = io.Copy(io.Discard, r.Body) // else the end of the connection is not noticed
			<-r.Context().Done()
		}
		switch {
		case e.value == unsent && is:
			hang()
		case e.value == severed && is:
			panic(http.ErrAbortHandler)
		case e.value == silent && requested.Load():
			hang()
		case e.value == gone && requested.Load():
			server.Listener.Close()
			server.Config.SetKeepAlivesEnabled(false)
			panic(http.ErrAbortHandler)
		case e.value == refusing && requested.Load():
			w.WriteHeader(http.StatusServiceUnavailable)
		case e.value == corrected && is:
			body, _ := io.ReadAll(r.Body)
			body = bytes.ReplaceAll(body, []byte(`"five"`), []byte("5"))
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
			serve.ServeHTTP(w, r)
		case e.value == healthy && requested.Load() && r.URL.Path == "/health":
		default:
			serve.ServeHTTP(w, r)
		}
	})
}

// ofRequests reports whether an edit is of what becomes of requests, and of no answer.
func (e edit) ofRequests() bool {
	s, is := e.value.(special)
	return is && gone <= s && s < late
}

// modifier makes edits in HTTP answers.
func modifier(edits []edit) func(*http.Response) error {
	met := make([]atomic.Int32, len(edits))
	return func(r *http.Response) error {
		for i, e := range edits {
			streams := strings.HasPrefix(r.Header.Get("Content-Type"), "text/event-stream")
			switch {
			case e.of != r.Request.Method+" "+r.Request.URL.Path, e.ofRequests(), streams && e.whole, !streams && e.streamed:
				continue
			case e.field == "status" && e.where != nil && e.where != r.StatusCode:
				continue
			}
			if n := met[i].Add(1); e.nth > 0 && int(n) != e.nth {
				continue
			}
			if err := e.modify(r, streams); err != nil {
				return err
			}
		}
		return nil
	}
}

// modify makes the edit in an HTTP answer.
func (e edit) modify(r *http.Response, streams bool) error {
	body := r.Body
	switch {
	case e.value == lost:
		<-r.Request.Context().Done()
		return r.Request.Context().Err()
	case e.field == "status":
		r.StatusCode, _ = e.value.(int)
	case e.field == "type":
		r.Header.Set("Content-Type", e.value.(string))
	case streams && e.value != late:
		read, write := io.Pipe()
		r.Body = read
		go func() {
			defer body.Close()
			lines := bufio.NewScanner(body)
			lines.Buffer(nil, 16<<20)
			for lines.Scan() {
				if _, err := fmt.Fprintf(write, "%s\n", e.line(lines.Text())); err != nil {
					return
				}
			}
			write.CloseWithError(lines.Err())
		}()
	default:
		defer body.Close()
		text, err := io.ReadAll(body)
		if err != nil {
			return err
		}
		if !streams {
			text = e.text(text)
			r.ContentLength = int64(len(text))
			r.Header.Set("Content-Length", strconv.Itoa(len(text)))
		}
		r.Body = io.NopCloser(bytes.NewReader(text))
	}
	return nil
}

// line is a line of a stream with the edit.
func (e edit) line(line string) string {
	data, isData := strings.CutPrefix(line, "data: ")
	switch {
	case !isData:
		return line
	case data == "[DONE]":
		if e.field == "[DONE]" {
			line, _ = e.value.(string)
		}
		return line
	}
	return "data: " + string(e.text([]byte(data)))
}

// text is a JSON text with the edit. Another text stays.
func (e edit) text(text []byte) []byte {
	var v any
	if json.Unmarshal(text, &v) != nil || e.field == "[DONE]" || e.value == late {
		return text
	}
	out, err := json.Marshal(e.inJSON(v, strings.Split(e.field, ".")))
	if err != nil {
		return text
	}
	return out
}
