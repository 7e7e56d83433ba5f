// Package router is the suite of routers: a fleet of engines of ours behind the router under test. Each engine has a recorder before it,
// so what arrives at which engine, and what it answers, is known to the byte, and an answer can be held, cut or replaced.
package router

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
	"github.com/vllm-vcr/conformance/internal/check"
)

// fleet is the engines and their recorders.
type fleet struct {
	engines   []*engine
	model     string
	events    int    // port of the KV events
	discovery string // path of the list of engines
	prefills  int    // how many of the engines only compute prompts
	stop      func()

	mu      sync.Mutex
	calls   []*call
	script  script
	watch   func(io.Reader) io.Reader // of the bodies of requests; nil for none
	current *sent                     // a request whose mark a router may drop
}

// An engine is a server of ours behind a recorder.
type engine struct {
	index           int
	server, address string // URL of the server; HOST:PORT of the recorder
	fleet           *fleet

	mu       sync.Mutex
	web      *http.Server // nil while the engine is down
	draining bool
}

// A call is a request that reached an engine.
type call struct {
	engine, order int
	mark          string // of the request of the suite; empty for one of the router's own
	method, path  string
	header        http.Header
	body          []byte // the first 16 MB
	size          int64  // of the whole body

	left chan struct{} // closed when the router has left before the end of the answer
	done chan struct{} // closed after the answer
	// What the engine answered; to be read after done.
	status int
	sent   http.Header
	answer []byte
}

// A script answers a call in the place of the engine, or forwards it; nil forwards.
type script func(w http.ResponseWriter, r *http.Request, c *call)

// markHeader has the mark of each request. Where a router drops it, the mark in the prompt counts.
const markHeader = "X-Vllm-Vcr-Mark"

var markInBody = lazyregexp.New(`vcr-mark-\d+`)

// startFleet starts engines and recorders.
func startFleet(ctx context.Context, under *check.RouterUnderTest, line string) (f *fleet, err error) {
	f = &fleet{stop: func() {}}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	options := check.FleetOptions{Line: line, Engines: under.Backends}
	if f.prefills = under.PrefillEngines(); f.prefills > 0 {
		options.Transfer = `{"kv_connector": "NixlConnector", "kv_role": "kv_both"}`
	}
	f.events = f.freePort(under)
	options.Events = f.events
	urls, model, stop, err := under.Fleet(ctx, options)
	for range 2 { // another program may have taken the port of the KV events, or of the transfer
		if err == nil || ctx.Err() != nil {
			break
		}
		f.events = f.freePort(under)
		options.Events = f.events
		urls, model, stop, err = under.Fleet(ctx, options)
	}
	if err != nil {
		return f, check.Infra(fmt.Errorf("start the engines: %w", err))
	}
	f.stop, f.model = stop, model
	listeners, err := f.listen(under.Listen, len(urls))
	if err != nil {
		return f, check.Infra(fmt.Errorf("listen for the router: %w", err))
	}
	for i, u := range urls {
		e := &engine{index: i, server: u, address: listeners[i].Addr().String(), fleet: f}
		f.engines = append(f.engines, e)
		e.serve(listeners[i])
	}
	dir, err := os.MkdirTemp("", "vllm-vcr-engines")
	if err != nil {
		return f, err
	}
	f.discovery = filepath.Join(dir, "endpoints.json")
	if err := f.loadAdapters(ctx); err != nil {
		return f, err
	}
	return f, f.discover()
}

// freePort is a port for the KV events, if engines have addresses of their own, as pods have; else 0.
func (f *fleet) freePort(under *check.RouterUnderTest) int {
	probe, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		return 0
	}
	probe.Close()
	if under.Listen != "" || f.prefills > 0 { // a sidecar finds its engine by its port
		return 0
	}
	return check.FreePort()
}

// listen opens the ports of the recorders: the same port at 127.0.0.1, 127.0.0.2 and so on where KV events need it, else ports in a row,
// or any.
func (f *fleet) listen(first string, n int) (all []net.Listener, err error) {
	host, number, _ := net.SplitHostPort(cmp.Or(first, "127.0.0.1:0"))
	port, err := strconv.Atoi(number)
	if err != nil {
		return nil, fmt.Errorf("%q: want HOST:PORT", first)
	}
	for tries := 0; len(all) < n; {
		at := host
		if f.events > 0 {
			at = fmt.Sprintf("127.0.0.%d", len(all)+1)
		}
		l, err := net.Listen("tcp", net.JoinHostPort(at, strconv.Itoa(port)))
		switch {
		case err == nil:
			all = append(all, l)
			if f.events > 0 {
				port = l.Addr().(*net.TCPAddr).Port
			} else if first != "" {
				port++
			}
			continue
		case f.events > 0 && tries < 10: // the port is in use at another address
			tries, port = tries+1, 0
		}
		for _, l := range all {
			l.Close()
		}
		if all = nil; port != 0 || f.events == 0 || tries == 10 {
			return nil, err
		}
	}
	return all, nil
}

// discover writes the list of engines that can be asked.
func (f *fleet) discover() error {
	type endpoint struct {
		Name      string            `json:"name"`
		Namespace string            `json:"namespace"`
		Address   string            `json:"address"`
		Port      string            `json:"port"`
		Labels    map[string]string `json:"labels,omitempty"`
	}
	list := []endpoint{}
	for _, e := range f.engines {
		host, port, _ := net.SplitHostPort(e.address)
		if e.mu.Lock(); e.web != nil && !e.draining {
			list = append(list, endpoint{Name: fmt.Sprintf("engine-%d", e.index), Namespace: "default", Address: host, Port: port})
		}
		e.mu.Unlock()
	}
	text, err := json.Marshal(map[string]any{"endpoints": list})
	if err != nil {
		return err
	}
	return atomicfile.Write(f.discovery, text, 0o644)
}

func (f *fleet) Close() {
	for _, e := range f.engines {
		e.down()
	}
	f.stop()
	if f.discovery != "" {
		_ = os.RemoveAll(filepath.Dir(f.discovery))
	}
}

func (f *fleet) addresses() (all []string) {
	for _, e := range f.engines {
		all = append(all, e.address)
	}
	return all
}

func (f *fleet) setScript(s script) {
	f.mu.Lock()
	f.script = s
	f.mu.Unlock()
}

func (f *fleet) setWatch(watch func(io.Reader) io.Reader) {
	f.mu.Lock()
	f.watch = watch
	f.mu.Unlock()
}

// of are the calls that a request led to, in the order in which they arrived. Those that only computed its prompt are left out.
func (f *fleet) of(mark string) (all []*call) {
	return slices.DeleteFunc(f.all(mark), func(c *call) bool { return c.engine < f.prefills })
}

func (f *fleet) all(mark string) (all []*call) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.calls {
		if c.mark == mark {
			all = append(all, c)
		}
	}
	return all
}

// note records the arrival of a call.
func (e *engine) note(r *http.Request, body []byte, size int64) (*call, script) {
	f := e.fleet
	c := &call{
		engine: e.index, method: r.Method, path: r.URL.RequestURI(), header: r.Header.Clone(), body: body, size: size,
		left: make(chan struct{}), done: make(chan struct{}), mark: r.Header.Get(markHeader),
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.mark == "" && !strings.HasSuffix(r.URL.Path, "/render") { // with which pickers get token ids
		c.mark = string(markInBody().Find(body[:min(len(body), 64<<10)]))
	}
	if c.mark == "" && f.current != nil && r.Method == http.MethodPost && r.URL.Path == f.current.route() {
		c.mark = f.current.mark
	}
	c.order = len(f.calls)
	f.calls = append(f.calls, c)
	if c.mark == "" {
		return c, nil
	}
	return c, f.script
}

// maxKept is how much of the body of a request is kept, in bytes; the rest is counted.
const maxKept = 16 << 20

func (e *engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var kept bytes.Buffer
	body := io.Reader(r.Body)
	e.fleet.mu.Lock()
	if e.fleet.watch != nil {
		body = e.fleet.watch(body)
	}
	e.fleet.mu.Unlock()
	_, err := io.CopyN(&kept, body, maxKept)
	var more int64
	if err == nil {
		more, err = io.Copy(io.Discard, body)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return // the router did not send all of it
	}
	c, script := e.note(r, kept.Bytes(), int64(kept.Len())+more)
	defer close(c.done)
	unwatch := context.AfterFunc(r.Context(), func() { close(c.left) })
	defer unwatch()
	e.mu.Lock()
	draining := e.draining
	e.mu.Unlock()
	switch {
	case draining && c.mark == "" && r.URL.Path != "/metrics":
		answer(w, c, http.StatusServiceUnavailable, nil, `{"error": {"message": "the server is draining", "code": 503}}`)
	case script != nil:
		script(w, r, c)
	default:
		e.forward(w, r, c, nil)
	}
}

// answer answers a call in the place of the engine.
func answer(w http.ResponseWriter, c *call, status int, header http.Header, body string) {
	c.status, c.sent, c.answer = status, header.Clone(), []byte(body)
	if c.sent == nil {
		c.sent = http.Header{}
	}
	if c.sent.Get("Content-Type") == "" {
		c.sent.Set("Content-Type", "application/json")
	}
	for name, values := range c.sent {
		w.Header()[name] = values
	}
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
}

var forwarding = &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64}

// forward has the engine answer. after is called after each event of a stream was written, with its number from 1.
func (e *engine) forward(w http.ResponseWriter, r *http.Request, c *call, after func(n int)) {
	r2, err := http.NewRequestWithContext(r.Context(), r.Method, e.server+r.URL.RequestURI(), bytes.NewReader(c.body))
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	r2.Header, r2.Host = r.Header.Clone(), r.Host
	r2.Header.Del("Connection")
	r2.Header.Del(markHeader)
	got, err := forwarding.RoundTrip(r2)
	if err != nil {
		panic(http.ErrAbortHandler) // the router left, or the engine is gone
	}
	defer got.Body.Close()
	got.Header.Del("Connection")
	c.status, c.sent = got.StatusCode, got.Header.Clone()
	for name, values := range got.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(got.StatusCode)
	buffer, n := make([]byte, 32<<10), 0
	for {
		size, err := got.Body.Read(buffer)
		for rest := buffer[:size]; len(rest) > 0; {
			part, ends := rest, false
			if at := bytes.Index(rest, []byte("\n\n")); at >= 0 && after != nil {
				part, ends = rest[:at+2], true
			}
			rest = rest[len(part):]
			c.answer = append(c.answer, part...)
			if _, err := w.Write(part); err != nil {
				return
			}
			_ = http.NewResponseController(w).Flush()
			if ends {
				n++
				after(n)
			}
		}
		if err == io.EOF {
			return
		} else if err != nil {
			panic(http.ErrAbortHandler)
		}
	}
}

// serve listens for the router.
func (e *engine) serve(l net.Listener) {
	web := &http.Server{Handler: e, ErrorLog: log.New(io.Discard, "", 0)}
	e.mu.Lock()
	e.web = web
	e.mu.Unlock()
	go func() { _ = web.Serve(l) }()
}

// down ends the engine as a killed pod: connections end, and new ones are refused.
func (e *engine) down() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.web != nil {
		_ = e.web.Close()
		e.web = nil
	}
}

// up lets the engine return.
func (e *engine) up() error {
	l, err := net.Listen("tcp", e.address)
	if err != nil {
		return check.Infra(err)
	}
	e.serve(l)
	return nil
}

// drain has the engine ask for no new requests, by its health and by its absence from the list, or takes that back.
func (e *engine) drain(on bool) error {
	e.mu.Lock()
	e.draining = on
	e.mu.Unlock()
	return e.fleet.discover()
}

// direct sends a request to the engine, past the router and the recorder.
func (e *engine) direct(ctx context.Context, method, path, body string) (status int, text []byte, err error) {
	r, err := http.NewRequestWithContext(ctx, method, e.server+path, strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	got, err := forwarding.RoundTrip(r)
	if err != nil {
		return 0, nil, err
	}
	defer got.Body.Close()
	text, err = io.ReadAll(got.Body)
	return got.StatusCode, text, err
}
