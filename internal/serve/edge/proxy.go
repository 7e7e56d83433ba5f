package edge

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"time"
)

// Proxy sends requests to a frontend at http://HOST:PORT. It connects when the first request comes.
func Proxy(to string, log *slog.Logger) (http.Handler, error) {
	u, err := url.Parse(to)
	if err != nil || u.Scheme != "http" || u.Host == "" || u.Path != "" && u.Path != "/" || u.User != nil || u.RawQuery != "" {
		return nil, fmt.Errorf("frontend URL %q: want http://HOST:PORT", to)
	}
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	proxy := &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host, p.Out.Host = u.Scheme, u.Host, p.In.Host
			p.Out.URL.RawQuery = p.In.URL.RawQuery // as it is, also where it cannot be parsed
			for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
				if values := p.In.Header[name]; values != nil {
					p.Out.Header[name] = values
				}
			}
			delete(p.Out.Header, "Expect") // the edge has answered it
		},
		Transport: &http.Transport{
			DialContext: (&net.Dialer{}).DialContext, DisableCompression: true, MaxIdleConnsPerHost: 1024, MaxResponseHeaderBytes: maxHeader,
			// The Python frontend closes a connection after 5 seconds.
			IdleConnTimeout: 2 * time.Second,
		},
		FlushInterval: -1, // a token does not wait for the next one
		ModifyResponse: func(answer *http.Response) error {
			delete(answer.Header, headerRequestID) // the edge has set it
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) { unanswered(w, r, log, err) },
		ErrorLog:     slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		BufferPool:   &buffers{sync.Pool{New: func() any { return new([4 << 10]byte) }}},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isCall(r) {
			apiError{status: http.StatusNotImplemented, message: "this frontend serves no gRPC on this port: start serve with --frontend builtin"}.write(w)
			return
		}
		proxy.ServeHTTP(w, r)
	}), nil
}

// buffers are those that answers are copied through. They are small, as each stream keeps one.
type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte  { return b.pool.Get().(*[4 << 10]byte)[:] }
func (b *buffers) Put(p []byte) { b.pool.Put((*[4 << 10]byte)(p)) }

// unanswered answers a request that the frontend did not answer.
func unanswered(w http.ResponseWriter, r *http.Request, log *slog.Logger, err error) {
	if r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // the client has left
	}
	a, level := apiError{status: http.StatusBadGateway, message: "the frontend ended the connection before it answered"}, slog.LevelWarn
	if op := (*net.OpError)(nil); errors.As(err, &op) && op.Op == "dial" {
		a = apiError{status: http.StatusServiceUnavailable, message: "the frontend does not accept connections: it starts or has ended", retryAfter: time.Second}
		level = slog.LevelInfo // a client that waits for the start asks again and again
	}
	log.Log(r.Context(), level, "the frontend does not answer", "path", r.URL.Path, "error", err)
	a.write(w)
}
