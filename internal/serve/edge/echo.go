package edge

import (
	"crypto/tls"
	"encoding/json"
	"net/http"
	"slices"
)

// echoed is a request as the echo server of the Gateway API's conformance tests shows it (conformance/echo-basic).
type echoed struct {
	Path    string      `json:"path"`
	Host    string      `json:"host"`
	Method  string      `json:"method"`
	Proto   string      `json:"proto"`
	Headers http.Header `json:"headers"`

	Namespace string `json:"namespace"`
	Ingress   string `json:"ingress"`
	Service   string `json:"service"`
	Pod       string `json:"pod"`

	TLS *echoedTLS `json:"tls,omitempty"`
}

type echoedTLS struct {
	Version            string `json:"version"`
	ServerName         string `json:"serverName"`
	NegotiatedProtocol string `json:"negotiatedProtocol,omitempty"`
	CipherSuite        string `json:"cipherSuite"`
}

// serveEcho answers all requests but those for health and metrics, and calls of gRPC, with an [echoed].
func (e *Edge) serveEcho(frontend http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if slices.Contains(open, r.URL.Path) || isCall(r) {
			frontend.ServeHTTP(w, r)
			return
		}
		shown := echoed{
			Path: r.RequestURI, Host: r.Host, Method: r.Method, Proto: r.Proto, Headers: r.Header.Clone(), Pod: e.opt.PodName, Namespace: e.opt.PodNamespace,
		}
		if !exchangeOf(r).given {
			shown.Headers.Del(headerRequestID) // which is this server's
		}
		if r.TLS != nil {
			shown.TLS = &echoedTLS{tlsVersions[r.TLS.Version], r.TLS.ServerName, r.TLS.NegotiatedProtocol, tls.CipherSuiteName(r.TLS.CipherSuite)}
		}
		text, err := json.MarshalIndent(shown, "", " ")
		if err != nil {
			apiError{status: http.StatusInternalServerError, message: err.Error()}.write(w)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_, _ = w.Write(text) // the client may be gone
	})
}

var tlsVersions = map[uint16]string{tls.VersionTLS12: "TLSv1.2", tls.VersionTLS13: "TLSv1.3"}
