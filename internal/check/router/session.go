package router

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/base/retry"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/check"
)

// session is the router under test before its fleet. It is used by one goroutine.
type session struct {
	line   string
	under  *check.RouterUnderTest
	fleet  *fleet
	router *check.RouterProcess
	picker *picker
	url    string // where requests go
	client *http.Client
	limit  time.Duration // for an answer
	took   time.Duration // by the last start of the router
	random *rand.Rand
	number int  // of requests, which marks them
	hangs  int  // answers that never came
	harmed bool // a case left the router in a state that another one must not meet
	corpus []exchange

	// Of the case:
	*check.Outcome
	ctx context.Context
}

// Cases lists the cases of the suite on a line.
func Cases(line compat.Line, gating bool) []check.Case {
	var cases []check.Case
	for _, k := range Checks {
		cases = append(cases, check.Case{Line: line, Suite: check.SuiteRouter, Assertion: k.Name, Gating: gating})
	}
	return cases
}

// judged makes the function of a check. harms says that the router may not be the same afterwards: the next case gets a new one.
func judged(judge func(*session) error, harms bool) func(context.Context, *check.Env, *check.Golden, check.Case) (check.Outcome, error) {
	return func(ctx context.Context, e *check.Env, _ *check.Golden, c check.Case) (out check.Outcome, err error) {
		s, err := sessionOf(ctx, e, c.Line)
		if err != nil {
			return out, err
		}
		s.Outcome, s.ctx = &out, ctx
		s.harmed = s.harmed || harms
		defer s.fleet.setScript(nil)
		err = out.End(judge(s))
		return out, err
	}
}

// fails records a failure.
func (s *session) fails(code check.Code, format string, args ...any) {
	s.Fail(check.Failed(code, format, args...))
}

// sessionOf is the session of the line: that of the case before, unless it is harmed.
func sessionOf(ctx context.Context, e *check.Env, line compat.Line) (*session, error) {
	if e.Router == nil {
		return nil, errors.New("no router is given")
	}
	s, ok := e.Kept.(*session)
	if ok {
		s.ctx = ctx
	}
	if ok && s.line == line.Name && !s.ended() && (!s.harmed || s.eventually(s.took, s.recovers)) {
		s.harmed = false
		return s, nil
	}
	if !ok || s.line != line.Name {
		f, err := startFleet(e.Context, e.Router, line.Name)
		if err != nil {
			return nil, err
		}
		s = &session{line: line.Name, under: e.Router, fleet: f, limit: e.Timeouts.Idle, random: rand.New(rand.NewPCG(1, 2))}
		s.client = &http.Client{Transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64}}
		e.Keep(s)
	}
	s.endRouter()
	if err := s.start(ctx, e.Timeouts.Connect); err != nil {
		e.Keep(nil)
		return nil, check.Infra(check.WithCode(check.CodeStart, err))
	}
	return s, nil
}

// start starts the router, and waits until it sends requests to all engines that generate.
func (s *session) start(ctx context.Context, limit time.Duration) (err error) {
	f, began := s.fleet, time.Now()
	if s.under.Launch != nil {
		s.router = s.under.Launch(f.addresses(), f.prefills)
	} else if s.router, err = s.under.Start(f.addresses(), f.model, f.discovery, f.events); err != nil {
		return fmt.Errorf("router: %w", err)
	}
	s.url, s.harmed = s.router.URL, false
	if address, grpc := strings.CutPrefix(s.url, "grpc://"); grpc {
		if s.picker, err = newPicker(address); err != nil {
			return err
		}
		s.url = s.picker.url
	}
	ctx, stop := context.WithTimeout(ctx, limit)
	defer stop()
	reached := map[int]bool{}
	for {
		a := s.touch(ctx, s.limit, reached)
		if a.ok() && len(reached) > 0 {
			s.took = time.Since(began)
			return nil
		}
		select {
		case <-s.router.Done():
			return fmt.Errorf("the router ended before it answered a request; %s", s.router.Said())
		case <-ctx.Done():
		default:
		}
		if ctx.Err() != nil || retry.Pause(ctx, 50*time.Millisecond) != nil {
			return s.unreachable(limit, a)
		}
	}
}

// touch sends a small request, and notes which engine it reaches.
func (s *session) touch(ctx context.Context, limit time.Duration, reached map[int]bool) *answered {
	ctx, stop := context.WithTimeout(ctx, limit)
	defer stop()
	a := s.send(ctx, s.completion("", 1))
	for _, c := range s.fleet.of(a.mark) {
		reached[c.engine] = true
	}
	return a
}

// unreachable explains why the router never answered by an engine.
func (s *session) unreachable(limit time.Duration, a *answered) error {
	contacts := map[int]bool{}
	s.fleet.mu.Lock()
	for _, c := range s.fleet.calls {
		contacts[c.engine] = true
	}
	s.fleet.mu.Unlock()
	why := fmt.Sprintf("it has asked %s for something", safetext.Count(len(contacts), "engine"))
	switch {
	case a.refused():
		why = "nothing listens there: does the router listen on {port}, or at --router-url?"
	case len(contacts) == 0:
		why = fmt.Sprintf("no request of any kind has reached an engine: are %s the router's backends, and can it reach them?", strings.Join(s.fleet.addresses(), ", "))
	case a.status == http.StatusOK:
		why = "the answer is of no engine of this fleet: does another program listen there?"
	}
	return fmt.Errorf("the router at %s has answered no completion within %v: %s\nThe last answer: %s; %s", s.router.URL, limit, why, a, s.router.Said())
}

// recovers reports whether a router still sends requests to all engines. It has as long as a new one would take to start.
func (s *session) recovers() bool {
	reached := map[int]bool{}
	for range 6 * len(s.fleet.engines) {
		if !s.touch(s.ctx, time.Second, reached).ok() {
			return false
		}
	}
	return len(reached) == len(s.fleet.engines)-s.fleet.prefills
}

func (s *session) ended() bool {
	select {
	case <-s.router.Done():
		return true
	default:
		return false
	}
}

func (s *session) endRouter() {
	if s.picker != nil {
		s.picker.Close()
		s.picker = nil
	}
	if s.router != nil {
		s.router.Close()
	}
	s.client.CloseIdleConnections()
}

// Close ends the router and its engines.
func (s *session) Close() {
	s.endRouter()
	s.fleet.Close()
}

// Done is closed when the router has ended.
func (s *session) Done() <-chan struct{} { return s.router.Done() }

// sent is a request of the suite.
type sent struct {
	mark         string
	method, path string
	header       http.Header
	body         string
	large        io.Reader // in the place of body
}

func (r *sent) route() string {
	path, _, _ := strings.Cut(r.path, "?")
	return path
}

// newMark names a request.
func (s *session) newMark() string {
	s.number++
	return fmt.Sprintf("vcr-mark-%d", s.number)
}

type object = map[string]any

// completion makes a request for so many tokens. Its prompt begins with a word of its own, unless one is given, and ends with the mark.
func (s *session) completion(prompt string, tokens int, with ...object) *sent {
	r := &sent{mark: s.newMark(), method: http.MethodPost, path: "/v1/completions"}
	if prompt == "" {
		prompt = fmt.Sprintf("%08x begins a prompt of its own.", s.random.Uint32())
	}
	body := object{"model": s.fleet.model, "prompt": prompt + " " + r.mark, "max_tokens": tokens, "ignore_eos": true, "temperature": 0}
	for _, more := range with {
		for key, value := range more {
			body[key] = value
		}
	}
	text, _ := json.Marshal(body) // of strings and numbers
	r.body = string(text)
	return r
}

// streamed asks for a stream.
var streamed = object{"stream": true}

// answered is what the client got.
type answered struct {
	mark   string
	status int
	header http.Header
	body   []byte
	err    error // of the connection
}

func (a *answered) refused() bool {
	var op *net.OpError
	return errors.As(a.err, &op) && op.Op == "dial"
}

func (a *answered) ok() bool { return a.err == nil && a.status == http.StatusOK }

// String shows the answer in a message.
func (a *answered) String() string {
	if a.err != nil && a.status == 0 {
		return safetext.Line(a.err.Error())
	}
	text := fmt.Sprintf("status %d: %s", a.status, safetext.Clip(safetext.Line(string(a.body)), 200))
	if a.err != nil {
		text += ", then " + safetext.Line(a.err.Error())
	}
	return text
}

// open sends a request and returns when the headers of the answer are there. cancel ends the request.
func (s *session) open(ctx context.Context, r *sent) (got *http.Response, cancel context.CancelFunc, err error) {
	ctx, cancel = context.WithCancel(ctx)
	var body io.Reader = strings.NewReader(r.body)
	if r.large != nil {
		body = r.large
	}
	one, err := http.NewRequestWithContext(ctx, r.method, s.url+r.path, body)
	if err != nil {
		return nil, cancel, err
	}
	for name, values := range r.header {
		if values[0] != "" { // of the corpus: leave it out
			one.Header[name] = values
		}
	}
	if _, given := r.header["Content-Type"]; !given && r.method == http.MethodPost {
		one.Header.Set("Content-Type", "application/json")
	}
	one.Header.Set(markHeader, r.mark)
	for _, h := range s.router.Headers {
		one.Header.Set(h[0], h[1])
	}
	got, err = s.client.Do(one)
	return got, cancel, err
}

// send sends a request and reads all of the answer.
func (s *session) send(ctx context.Context, r *sent) *answered {
	a := &answered{mark: r.mark}
	got, cancel, err := s.open(ctx, r)
	defer cancel()
	if err != nil {
		a.err = err
		return a
	}
	defer got.Body.Close()
	a.status, a.header = got.StatusCode, got.Header
	a.body, a.err = io.ReadAll(got.Body)
	return a
}

// maxHangs is how many answers that never come are waited for in full.
const maxHangs = 2

// patience bounds the wait for an answer.
func (s *session) patience() (context.Context, context.CancelFunc) {
	limit := s.limit
	if s.hangs >= maxHangs {
		limit /= 10
	}
	return context.WithTimeout(s.ctx, limit)
}

// ask sends a request; no answer in time is a failure.
func (s *session) ask(r *sent) *answered {
	ctx, stop := s.patience()
	defer stop()
	s.Asserted++
	a := s.send(ctx, r)
	if a.err != nil && ctx.Err() != nil && s.ctx.Err() == nil {
		if s.hangs++; s.hangs <= maxHangs || len(s.Failures) == 0 {
			s.fails(CodeHangs, "%s %s: no complete answer within %v; %s", r.method, r.path, s.limit, a)
		}
	}
	return a
}

// pause is how long something may take that happens at once in a router that works: an event passes, an abort arrives.
func (s *session) pause() time.Duration { return s.limit / 5 }

// happens waits for a channel that is closed.
func (s *session) happens(event <-chan struct{}) bool {
	timer := time.NewTimer(s.pause())
	defer timer.Stop()
	select {
	case <-event:
		return true
	case <-timer.C:
	case <-s.ctx.Done():
	}
	return false
}

// eventually asks until something holds, for so long at most. It asks now and then only: each time may be many requests.
func (s *session) eventually(limit time.Duration, holds func() bool) bool {
	ctx, stop := context.WithTimeout(s.ctx, limit)
	defer stop()
	for !holds() {
		if retry.Pause(ctx, limit/50) != nil {
			return false
		}
	}
	return true
}

// events splits a stream of server-sent events into their data.
func events(body []byte) (all []string) {
	lines := bufio.NewScanner(bytes.NewReader(body))
	lines.Buffer(nil, len(body)+1)
	for lines.Scan() {
		if data, is := strings.CutPrefix(lines.Text(), "data:"); is {
			all = append(all, strings.TrimSpace(data))
		}
	}
	return all
}
