package router

import (
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"

	"github.com/vllm-vcr/conformance/internal/frontends/extproc"
)

// A picker is an endpoint picker with a proxy of ours before it.
type picker struct {
	*extproc.Picker
	url    string
	server *http.Server
}

// newPicker starts the proxy.
func newPicker(address string) (*picker, error) {
	asked, err := extproc.Dial(address)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		asked.Close()
		return nil, err
	}
	p := &picker{Picker: asked, url: "http://" + l.Addr().String()}
	p.server = &http.Server{Handler: p, ErrorLog: log.New(io.Discard, "", 0)}
	go func() { _ = p.server.Serve(l) }()
	return p, nil
}

func (p *picker) Close() {
	_ = p.server.Close()
	_ = p.Picker.Close()
}

// ServeHTTP asks the picker for the engine of a request, and sends it there.
func (p *picker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	answer, err := p.Pick(r.Context(), r, body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	if answer.Endpoint == "" {
		w.WriteHeader(answer.Status)
		_, _ = w.Write(answer.Body)
		return
	}
	if answer.Request != nil {
		body = answer.Request
	}
	proxy := &httputil.ReverseProxy{FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0), Transport: forwarding, Rewrite: func(out *httputil.ProxyRequest) {
		out.SetURL(&url.URL{Scheme: "http", Host: answer.Endpoint})
		for name, value := range answer.Headers {
			if !strings.HasPrefix(name, ":") { // what a request line has
				out.Out.Header.Set(name, value)
			}
		}
		out.Out.Body, out.Out.ContentLength = io.NopCloser(strings.NewReader(string(body))), int64(len(body))
	}}
	proxy.ServeHTTP(w, r)
}
