package edge

import (
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
)

// name sends the names of the pod with answers to POST requests.
func (e *Edge) name(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		if r.Method == http.MethodPost && e.opt.PodName != "" {
			h["X-Inference-Pod"] = []string{e.opt.PodName}
			if local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok {
				h["X-Inference-Port"] = []string{strconv.Itoa(local.Port)}
			}
		}
		if r.Method == http.MethodPost && e.opt.PodNamespace != "" {
			h["X-Inference-Namespace"] = []string{e.opt.PodNamespace}
		}
		next.ServeHTTP(w, r)
	})
}

// open are the endpoints that need no API key, as probes and Prometheus have none.
var open = []string{"/health", "/health/ready", "/ready", "/metrics", "/ping", "/version", "/load"}

// authorize wants an API key, if there are any.
func (e *Edge) authorize(next http.Handler) http.Handler {
	if len(e.opt.APIKeys) == 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		get := r.Method == http.MethodGet || r.Method == http.MethodHead
		probe := strings.HasPrefix(r.URL.Path, "/grpc.health.v1.Health/") && isCall(r)
		if get && slices.Contains(open, r.URL.Path) || probe || r.Method == http.MethodOptions || bears(r, e.opt.APIKeys...) {
			next.ServeHTTP(w, r)
			return
		}
		apiError{status: http.StatusUnauthorized, message: "Unauthorized"}.write(w)
	})
}

// bears reports whether a request has one of the tokens. The time that it takes does not depend on how much of one is
// right, nor on which one it is.
func bears(r *http.Request, tokens ...string) bool {
	text, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	given, known := sha256.Sum256([]byte(text)), 0
	for _, token := range tokens {
		want := sha256.Sum256([]byte(token))
		known |= subtle.ConstantTimeCompare(given[:], want[:])
	}
	return ok && known == 1
}

// administer answers /admin/config, the endpoints of Options.Admin, and those of the policy.
func (e *Edge) administer(config, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h := e.opt.Policy.Endpoints[r.Method+" "+r.URL.Path]; h != nil {
			e.readBody(h).ServeHTTP(w, r)
			return
		}
		at := path.Clean(r.URL.Path)
		h := e.opt.Admin[at]
		if h != nil {
			h = e.readBody(h)
		} else if at == adminPath {
			h = config
		}
		switch {
		case h == nil:
			next.ServeHTTP(w, r)
		case e.opt.AdminToken == "" && e.opt.Policy.OpenAdmin:
			h.ServeHTTP(w, r)
		case e.opt.AdminToken == "":
			apiError{status: http.StatusNotFound, message: at + " is off: it needs an admin token"}.write(w)
		case !bears(r, e.opt.AdminToken):
			apiError{status: http.StatusUnauthorized, message: "the admin token is wrong or missing"}.write(w)
		default:
			h.ServeHTTP(w, r)
		}
	})
}
