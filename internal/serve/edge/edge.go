// Package edge is the HTTP server that clients of `vllm-vcr serve` talk to. It is a chain of middlewares around the
// handler of a frontend: [Proxy] of a released one, or the builtin one. They add what no frontend has: API keys,
// faults, limits of what a client may send, the parts of the API and of the metrics that the frontend lacks, a log of
// requests.
package edge

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Limits of what a client may send.
const (
	maxHeader   = 64 << 10 // bytes
	idleTimeout = 5 * time.Minute
	maxStreams  = 1000 // of an HTTP/2 connection
)

// Options configures an edge. Frontends are needed; the zero value of everything else is a default.
type Options struct {
	// Frontends answer requests, by rank.
	Frontends []http.Handler
	// Limits are those of the bodies of requests.
	Limits Limits
	// TLS makes the edge speak TLS. Without it, the edge speaks HTTP/1.1 and unencrypted HTTP/2 on the same port.
	TLS *tls.Config
	// APIKeys are the keys of which a client has to give one as "Authorization: Bearer KEY"; without any, every client
	// is served. Health and metrics need none.
	APIKeys []string

	// Faults go wrong on purpose. FailureRate is the share of requests, of 100, that fail with one of FailureTypes,
	// which are of [Failures]; by default any of them. Seed is that of what is drawn.
	Faults       []Fault
	FailureRate  float64
	FailureTypes []string
	Seed         uint64
	// RequestFaults lets a request ask for faults of its own, by the headers X-Fault and X-Return-Error. Without it,
	// such a request is refused.
	RequestFaults bool

	// Limit is what a client may ask for.
	Limit RateLimits

	// FanOut sends a request for several answers (n above 1, several prompts) as several requests and merges their
	// answers, for a frontend that refuses it.
	FanOut bool

	// StartupDuration is how long /ready and /health/ready answer with 503 after [New].
	StartupDuration time.Duration
	// PodName and PodNamespace are sent with generated answers as x-inference-pod and x-inference-namespace.
	PodName, PodNamespace string
	// Echo answers requests with what arrived, in the place of the frontends, see [Edge.serveEcho].
	Echo bool
	// OnDrain is called when draining begins and when it is taken back; nil for none.
	OnDrain func(draining bool)

	// Engines returns the engines behind a rank, for metrics that the frontend does not have; nil adds no metrics.
	Engines func(rank int) []Engine
	// ModelName is a label of metrics.
	ModelName string

	// AdminToken switches /admin/config on, for clients that give it as "Authorization: Bearer TOKEN".
	AdminToken string
	// Admin are further endpoints for clients with that token, by their paths below /admin/.
	Admin map[string]http.Handler
	// Wrap makes the handler behind all faults around that of a frontend; nil leaves it as it is.
	Wrap func(frontend http.Handler) http.Handler
	// Settings are shown and changed by /admin/config, next to those of faults.
	Settings []Settings
	// Policy changes what the edge does by itself.
	Policy Policy
	// RequestLog gets a line of JSON for each request, see [Record]; nil logs none.
	RequestLog io.Writer
	// Log takes what the edge logs; nil drops it.
	Log *slog.Logger
}

// Policy has the places where a server that imitates another one than vLLM does otherwise. The zero value is vLLM.
type Policy struct {
	// NewID makes the id of a POST request without one; nil makes random ones.
	NewID func() string
	// HideID leaves X-Request-Id out of answers.
	HideID bool
	// OpenAdmin lets every client use /admin/config, unless there is an admin token.
	OpenAdmin bool
	// ReturnError lets a request ask for an error with X-Return-Error, also without Options.RequestFaults.
	ReturnError bool
	// NoRetryAfter leaves Retry-After out of the failures of llm-d-inference-sim.
	NoRetryAfter bool
	// Metrics returns the text that /metrics shows in the place of the frontend's, nil for the frontend's own. If it is
	// complete, nothing is added to it. The function may be nil.
	Metrics func() (text []byte, complete bool)
	// Endpoints are answered without an API key, by method and path ("POST /x").
	Endpoints map[string]http.Handler
}

// Edge answers requests with the help of frontends. It is safe for use by several goroutines.
type Edge struct {
	opt     Options
	log     *slog.Logger
	started time.Time
	faults  atomic.Pointer[faultDraws]
	own     ownDraws
	admin   sync.Mutex // held while the configuration changes
	records sync.Mutex // held while a line is written to the log
	bodies  bodies
	limiter rateLimiter

	draining atomic.Bool

	mu      sync.Mutex
	servers []*server
	closed  bool
}

// New checks the options.
func New(opt Options) (*Edge, error) {
	if len(opt.Frontends) == 0 {
		return nil, errors.New("the edge has no frontend to forward requests to")
	}
	if err := CheckFailures(opt.FailureRate, opt.FailureTypes); err != nil {
		return nil, err
	}
	e := &Edge{opt: opt, log: opt.Log, started: time.Now(), bodies: bodies{limits: opt.Limits.withDefaults()}}
	e.log = cmp.Or(e.log, slog.New(slog.DiscardHandler))
	e.limiter.RateLimits = opt.Limit
	e.faults.Store(newFaultDraws(opt.Faults, opt.FailureRate/100, opt.FailureTypes, opt.Seed))
	e.opt.Settings = append([]Settings{faultSettings{e}, drainSettings{e}}, opt.Settings...)
	return e, nil
}

// Handler answers the requests to the frontend of a rank.
func (e *Edge) Handler(rank int) http.Handler {
	h := e.opt.Frontends[rank]
	if e.opt.FanOut {
		h = e.fanOut(h)
	}
	if e.opt.Wrap != nil {
		h = e.opt.Wrap(h)
	}
	if e.opt.Echo {
		h = e.serveEcho(h)
	}
	h = e.endpoints(rank, h)
	h = e.inject(h)
	h = e.readBody(e.limiter.limitRate(h))
	h = e.authorize(h)
	h = e.administer(e.readBody(http.HandlerFunc(e.serveAdmin)), h)
	h = e.name(h)
	return e.identify(rank, translateErrors(h))
}

// Serve answers the connections of listeners, each with the frontend of its number, until [Edge.Shutdown], which makes
// it return nil, or until ctx ends or a listener fails, which cut all connections.
func (e *Edge) Serve(ctx context.Context, listeners ...net.Listener) error {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return errors.New("the edge was shut down before")
	}
	ended := make(chan error)
	for rank, l := range listeners {
		s := e.newServer(rank, l)
		e.servers = append(e.servers, s)
		go func() { ended <- s.serve() }()
	}
	e.mu.Unlock()
	defer context.AfterFunc(ctx, e.close)()
	var first error
	for range listeners {
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) && first == nil {
			first = err
			e.close()
		}
	}
	if first == nil {
		first = context.Cause(ctx)
	}
	return first
}

// A server is what answers on one listener.
type server struct {
	http.Server
	listener *listener
}

func (e *Edge) newServer(rank int, l net.Listener) *server {
	limits := e.bodies.limits
	s := &server{listener: newListener(l), Server: http.Server{
		Handler: e.Handler(rank), ReadHeaderTimeout: limits.Head, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(e.log.Handler(), slog.LevelDebug), Protocols: new(http.Protocols),
		// A ping ends a connection that sends the frames of a head without end.
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxStreams, SendPingTimeout: limits.Head, PingTimeout: limits.Head}, TLSConfig: e.opt.TLS,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
	}}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetHTTP2(e.opt.TLS != nil)
	s.Protocols.SetUnencryptedHTTP2(e.opt.TLS == nil)
	return s
}

// connKey is the key of the connection in the context of a request.
type connKey struct{}

func (s *server) serve() error {
	if s.TLSConfig != nil {
		return s.ServeTLS(s.listener, "", "")
	}
	return s.Serve(s.listener)
}

func (e *Edge) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.servers {
		_ = s.Close()
	}
}

// Drain makes /ready and /health/ready answer with 503, so that no more requests are sent here, or takes that back.
// Requests are answered all the same.
func (e *Edge) Drain(draining bool) {
	if e.draining.Swap(draining) != draining && e.opt.OnDrain != nil {
		e.opt.OnDrain(draining)
	}
}

// Shutdown accepts no more connections and waits for the requests that run. The end of ctx cuts those that are left,
// and is returned.
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
				_ = s.Close()
			}
		})
	}
	waiting.Wait()
	return errors.Join(errs...)
}
