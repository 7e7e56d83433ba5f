package serve

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/player"
)

// The list of requests answers at once, or when the time of a client that waits is over; wrong parameters are named.
func TestServeRequests(t *testing.T) {
	for _, c := range []struct {
		name, method, query string
		status              int
		part                string
	}{
		{"all", "GET", "", 200, `{"complete":true,"requests":[]}`},
		{"too few", "GET", "?ended=1&timeout=0s", 200, `{"complete":false,"requests":[]}`},
		{"forget", "DELETE", "", 200, `"requests":[]`},
		{"not a number", "GET", "?ended=x", 400, "takes ended, a number"},
		{"too long", "GET", "?timeout=11m", 400, "up to 10m"},
		{"another method", "PUT", "", 405, "takes GET and DELETE"},
	} {
		w := httptest.NewRecorder()
		ServeRequests(&player.RequestLog{}).ServeHTTP(w, httptest.NewRequest(c.method, RequestsPath+c.query, http.NoBody))
		require.True(t, w.Code == c.status && strings.Contains(w.Body.String(), c.part), "%s: %d %s", c.name, w.Code, w.Body)
	}
}
