// Package edge is the HTTP server that clients of `vllm-vcr serve` talk to. It forwards requests to a frontend of vLLM and adds
// what no frontend has: faults, the parts of the API and of the metrics that the frontend lacks, a log of requests.
package edge

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Bounds of what a client may send.
const (
	// DefaultMaxBody is the default of [Options].MaxBody, in bytes.
	DefaultMaxBody = 64 << 20
	maxHeader      = 64 << 10
	headerTimeout  = 30 * time.Second
	idleTimeout    = 5 * time.Minute
	maxStreams     = 1000 // of an HTTP/2 connection
)

// An Upstream is one frontend.
type Upstream struct {
	// URL is where it listens, http://HOST:PORT.
	URL string
	// Dial opens a connection to it; nil connects to the host of URL. With Dial the URL says only what the frontend sees as Host.
	Dial func(context.Context) (net.Conn, error)
	// Local is a frontend in this process. It needs no URL.
	Local http.Handler
}

// Options configures an edge. Upstreams are needed; the zero value of everything else is a default.
type Options struct {
	// Upstreams are the frontends. With several of them, [Edge.Serve] gives each request to the next one, and [Edge.ServeRank]
	// all requests to one.
	Upstreams []Upstream
	// MaxBody bounds the body of a request, in bytes.
	MaxBody int64
	// TLS makes the edge speak TLS. Without it, the edge speaks HTTP/1.1 and unencrypted HTTP/2 on the same port.
	TLS *tls.Config
	// APIKeys are the keys of which a client has to give one as "Authorization: Bearer KEY"; without any, everybody is served.
	// Health and metrics need none.
	APIKeys []string

	// Faults go wrong on purpose. FailureRate is the share of requests, of 100, that fail with one of FailureTypes, which are
	// of [Failures]; by default any of them. Seed is that of what is drawn.
	Faults       []Fault
	FailureRate  float64
	FailureTypes []string
	Seed         uint64
	// RequestFaults lets a request ask for faults of its own, by the headers X-Fault and X-Return-Error. Without it, such a
	// request is refused.
	RequestFaults bool

	// FanOut sends a request for several answers (n above 1, several prompts) as several requests and merges their answers, for
	// a frontend that refuses it.
	FanOut bool

	// StartupDuration is how long /ready and /health/ready answer with 503 after [New].
	StartupDuration time.Duration
	// PodName and PodNamespace are sent with generated answers as x-inference-pod and x-inference-namespace.
	PodName, PodNamespace string

	// Engines says what the engines behind rank n are, for metrics that the frontend does not have; nil adds no metrics.
	Engines func(rank int) []Engine
	// FakeMetrics are shown in the place of the real ones.
	FakeMetrics *FakeMetrics
	// ModelName is the label of fake metrics.
	ModelName string

	// AdminToken switches /admin/config on, for clients that give it as "Authorization: Bearer TOKEN".
	AdminToken string
	// Simulator makes the edge do as llm-d-inference-sim where that differs; nil is as vLLM.
	Simulator *Simulator
	// RequestLog gets a line of JSON for each request, see [Record]; nil logs none.
	RequestLog io.Writer
	// Log takes what the edge logs; nil drops it.
	Log *slog.Logger
}

// Edge is a reverse proxy before frontends. It is safe for use by several goroutines.
type Edge struct {
	opt   Options
	ranks []*rank
	next  atomic.Uint64 // rank
	log   *slog.Logger

	started time.Time
	faults  atomic.Pointer[faultDraws]
	own     ownDraws
	fake    atomic.Pointer[fakeState]
	keys    [][sha256.Size]byte
	admin   admin
	records records

	mu      sync.Mutex
	servers []*server
	closed  bool
}

// A rank is a frontend as the edge sees it.
type rank struct {
	url       *url.URL
	index     int
	local     http.Handler // nil of a frontend in another process
	transport *transport
	upgrades  *httputil.ReverseProxy
}

// New checks the options. It connects to nothing.
func New(opt Options) (*Edge, error) {
	if len(opt.Upstreams) == 0 {
		return nil, errors.New("the edge has no frontend to forward requests to")
	}
	opt.MaxBody = cmp.Or(opt.MaxBody, DefaultMaxBody)
	e := &Edge{opt: opt, log: opt.Log, started: time.Now(), records: records{to: opt.RequestLog}}
	if e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	if err := CheckFailures(opt.FailureRate, opt.FailureTypes); err != nil {
		return nil, err
	}
	e.faults.Store(newFaultDraws(opt.Faults, opt.FailureRate/100, opt.FailureTypes, opt.Seed))
	if opt.FakeMetrics != nil {
		e.fake.Store(newFakeState(opt.FakeMetrics, e.started))
	}
	for _, key := range opt.APIKeys {
		e.keys = append(e.keys, sha256.Sum256([]byte(key)))
	}
	for i, u := range opt.Upstreams {
		r, err := e.newRank(u, i)
		if err != nil {
			return nil, err
		}
		e.ranks = append(e.ranks, r)
	}
	return e, nil
}

func (e *Edge) newRank(u Upstream, index int) (*rank, error) {
	if u.Local != nil {
		return &rank{url: &url.URL{Scheme: "http", Host: "localhost"}, index: index, local: u.Local}, nil
	}
	to, err := url.Parse(u.URL)
	if err != nil || to.Scheme != "http" || to.Host == "" || to.Path != "" && to.Path != "/" || to.User != nil || to.RawQuery != "" {
		return nil, fmt.Errorf("frontend URL %q: want http://HOST:PORT", u.URL)
	}
	r := &rank{url: to, index: index, transport: newTransport(address(to), u.Dial)}
	r.upgrades = &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(to)
			p.Out.Host = p.In.Host
			p.Out.Header.Set(headerRequestID, requestID(p.In))
		},
		Transport:    upgradeTransport(r.transport),
		ErrorHandler: func(w http.ResponseWriter, in *http.Request, err error) { e.answerAway(w, in, err) },
		ErrorLog:     slog.NewLogLogger(e.log.Handler(), slog.LevelDebug),
	}
	return r, nil
}

// upgradeTransport is for connections that change their protocol: the frontend's side of one has to be written to.
func upgradeTransport(t *transport) *http.Transport {
	return &http.Transport{
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return t.dial(ctx) },
		DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxHeader,
	}
}

// address is the host of a URL with its port.
func address(u *url.URL) string { return net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "80")) }

// ServeHTTP answers a request with the help of the next frontend.
func (e *Edge) ServeHTTP(w http.ResponseWriter, r *http.Request) { e.handle(w, r, e.nextRank()) }

func (e *Edge) nextRank() *rank {
	if len(e.ranks) == 1 {
		return e.ranks[0]
	}
	return e.ranks[int(e.next.Add(1)-1)%len(e.ranks)]
}

// Serve answers the connections of l until [Edge.Shutdown], which makes it return nil, or until ctx ends, which cuts all
// connections.
func (e *Edge) Serve(ctx context.Context, l net.Listener) error { return e.serve(ctx, l, e.nextRank) }

// ServeRank is [Edge.Serve] with the requests of l for one frontend alone.
func (e *Edge) ServeRank(ctx context.Context, n int, l net.Listener) error {
	if n < 0 || n >= len(e.ranks) {
		return fmt.Errorf("rank %d: the edge has %d frontends", n, len(e.ranks))
	}
	return e.serve(ctx, l, func() *rank { return e.ranks[n] })
}

// ServeAll serves each frontend on a listener of its own, or all of them on the only listener. It returns when one listener fails,
// or as [Edge.Serve] does.
func (e *Edge) ServeAll(ctx context.Context, listeners []net.Listener) error {
	if len(listeners) == 1 {
		return e.Serve(ctx, listeners[0])
	}
	ended := make(chan error)
	for n, l := range listeners {
		go func() { ended <- e.ServeRank(ctx, n, l) }()
	}
	var first error
	for range listeners {
		if err := <-ended; err != nil && first == nil {
			first = err
			e.mu.Lock()
			servers := e.servers
			e.mu.Unlock()
			for _, s := range servers {
				s.Close()
			}
		}
	}
	return first
}

// A forwarder takes plain requests from package http, for less memory and processor time. See loop_linux.go.
type forwarder interface {
	// listen returns a listener with the connections that are for package http.
	listen(net.Listener) (net.Listener, error)
	// shutdown lets requests end, close does not; closeIdle closes connections that wait for a request.
	shutdown(context.Context) error
	close()
	closeIdle()
}

// newForwarder is nil where there is none.
var newForwarder func(e *Edge, pick func() *rank) forwarder

// changesNothing reports whether the edge may have nothing to add to requests and answers, as far as the options say.
func (e *Edge) changesNothing() bool {
	o := &e.opt
	return o.TLS == nil && len(o.APIKeys) == 0 && o.PodName == "" && o.PodNamespace == "" && o.RequestLog == nil &&
		!slices.ContainsFunc(o.Upstreams, func(u Upstream) bool { return u.Dial != nil || (u.Local == nil) != (o.Upstreams[0].Local == nil) })
}

// A server is what answers on one listener.
type server struct {
	*http.Server
	listener *listener
	forwards forwarder // nil if everything is for package http
}

// Shutdown lets requests end until ctx ends.
func (s *server) Shutdown(ctx context.Context) error {
	var forwarding error
	var waiting sync.WaitGroup
	if s.forwards != nil {
		waiting.Go(func() { forwarding = s.forwards.shutdown(ctx) })
	}
	err := s.Server.Shutdown(ctx)
	waiting.Wait()
	return errors.Join(err, forwarding)
}

// Close cuts all connections.
func (s *server) Close() {
	_ = s.Server.Close()
	if s.forwards != nil {
		s.forwards.close()
	}
}

// closeIdle closes the connections that wait for a request.
func (s *server) closeIdle() {
	s.SetKeepAlivesEnabled(false)
	s.SetKeepAlivesEnabled(true)
	if s.forwards != nil {
		s.forwards.closeIdle()
	}
}

func (e *Edge) serve(ctx context.Context, l net.Listener, pick func() *rank) error {
	server := &server{Server: &http.Server{
		Handler:        http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { e.handle(w, r, pick()) }),
		ErrorLog:       slog.NewLogLogger(e.log.Handler(), slog.LevelDebug),
		MaxHeaderBytes: maxHeader, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout,
		Protocols:   new(http.Protocols),
		HTTP2:       &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
		TLSConfig:   e.opt.TLS,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
	}, listener: newListener(l)}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetHTTP2(e.opt.TLS != nil)
	server.Protocols.SetUnencryptedHTTP2(e.opt.TLS == nil)
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return errors.Join(l.Close(), errors.New("the edge was shut down before"))
	}
	listening, err := net.Listener(server.listener), error(nil)
	if newForwarder != nil && e.changesNothing() {
		server.forwards = newForwarder(e, pick)
		if listening, err = server.forwards.listen(listening); err != nil {
			e.mu.Unlock()
			return errors.Join(l.Close(), err)
		}
	}
	e.servers = append(e.servers, server)
	e.mu.Unlock()
	defer context.AfterFunc(ctx, func() { server.Close() })()
	if e.opt.TLS != nil {
		err = server.ServeTLS(listening, "", "")
	} else {
		err = server.Serve(listening)
	}
	if errors.Is(err, http.ErrServerClosed) {
		return context.Cause(ctx)
	}
	return err
}

// connKey is the key of the connection in the context of a request.
type connKey struct{}

// Shutdown accepts no more connections and waits for the requests that run. The end of ctx cuts those that are left, and is
// returned.
func (e *Edge) Shutdown(ctx context.Context) error {
	e.mu.Lock()
	e.closed = true
	servers := e.servers
	e.mu.Unlock()
	errs := make([]error, len(servers))
	var waiting sync.WaitGroup
	for i, s := range servers {
		waiting.Go(func() {
			if errs[i] = s.Shutdown(ctx); errs[i] != nil {
				s.Close()
			}
		})
	}
	waiting.Wait()
	return errors.Join(errs...)
}
