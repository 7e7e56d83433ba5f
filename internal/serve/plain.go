package serve

import (
	"context"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
)

// Plain forwards all requests to one frontend.
type Plain struct{ server *http.Server }

func NewPlain(upstream string) (*Plain, error) {
	to, err := url.Parse(upstream)
	if err != nil {
		return nil, err
	}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }, FlushInterval: -1,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusServiceUnavailable) },
	}
	return &Plain{&http.Server{Handler: proxy}}, nil
}

func (p *Plain) Serve(_ context.Context, l net.Listener) error {
	if err := p.server.Serve(l); err != http.ErrServerClosed {
		return err
	}
	return nil
}

func (p *Plain) Shutdown(ctx context.Context) error {
	err := p.server.Shutdown(ctx)
	if err != nil {
		p.server.Close()
	}
	return err
}
