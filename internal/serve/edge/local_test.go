package edge

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// A frontend in this process answers as one behind a URL does, through the ways of an answer that is sent on as it is, that a fault
// changes, and that the edge reads.
func TestLocalFrontend(t *testing.T) {
	local := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.URL.Path == "/health" {
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for range 3 {
			_, _ = io.WriteString(w, "data: "+r.Header.Get(headerRequestID)+string(body)+"\n\n")
			w.(http.Flusher).Flush()
		}
	})
	e, err := New(Options{Frontends: []http.Handler{local}, RequestFaults: true})
	require.NoError(t, err)
	server := httptest.NewServer(e.Handler(0))
	defer server.Close()
	for range 50 { // the handler may end before the edge has read what it wrote
		for fault, want := range map[string]int{"": 3, "http-slow:1us": 3, "http-truncate:2": 2} {
			r, _ := http.NewRequest(http.MethodPost, server.URL+"/v1/completions", strings.NewReader("{}"))
			r.Header.Set(headerRequestID, "r")
			if fault != "" {
				r.Header.Set("X-Fault", fault)
			}
			answer, err := http.DefaultClient.Do(r)
			require.NoError(t, err)
			text, err := io.ReadAll(answer.Body)
			answer.Body.Close()
			if n := strings.Count(string(text), "data: r{}\n\n"); err != nil || n != want {
				t.Fatalf("%s: %d events, want %d: %v: %s", fault, n, want, err, text)
			}
		}
		answer, err := http.Get(server.URL + "/ready")
		require.NoError(t, err)
		answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			t.Fatalf("/ready: status %d", answer.StatusCode)
		}
	}
}
