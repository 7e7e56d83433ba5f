package edge

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// TestRateLimits: with rates that refill nothing during the test, a client gets what a second has, and others their own.
func TestRateLimits(t *testing.T) {
	e, err := New(Options{Frontends: []http.Handler{http.NotFoundHandler()}, Limit: RateLimits{Requests: 2e-6, Tokens: 1e-9}})
	require.NoError(t, err)
	server := httptest.NewServer(e.Handler(0))
	defer server.Close()
	for _, step := range []struct {
		key, path string
		status    int
	}{{"a", "/v1/completions", 404}, {"a", "/v1/completions", 429}, {"a", "/health", 404}, {"b", "/v1/completions", 404}} {
		r, err := http.NewRequest(http.MethodPost, server.URL+step.path, strings.NewReader(`{"max_tokens": 5}`))
		require.NoError(t, err)
		r.Header.Set("Authorization", "Bearer "+step.key)
		w, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		w.Body.Close()
		require.Equal(t, w.StatusCode, step.status, "%v: status", step)
		h := w.Header
		got := []string{h.Get("X-Ratelimit-Limit-Requests"), h.Get("X-Ratelimit-Remaining-Requests"), h.Get("X-Ratelimit-Remaining-Tokens")}
		require.True(t, step.path == "/health" || slices.Equal(got, []string{"1", "0", "0"}), "%v: headers %v", step, h)
		require.True(t, step.status != 429 || h.Get("Retry-After") != "", "%v: %v", step, h)
	}
}

// TestFullQueue: while one request is answered, another one is refused.
func TestFullQueue(t *testing.T) {
	begun, end := make(chan bool), make(chan bool)
	e, err := New(Options{Limit: RateLimits{Open: 1}, Frontends: []http.Handler{http.HandlerFunc(func(http.ResponseWriter, *http.Request) { begun <- true; <-end })}})
	require.NoError(t, err)
	server := httptest.NewServer(e.Handler(0))
	defer server.Close()
	ask := func() int {
		w, err := http.Post(server.URL+"/v1/completions", "application/json", strings.NewReader("{}"))
		if err != nil {
			return 0
		}
		w.Body.Close()
		return w.StatusCode
	}
	first := make(chan int)
	go func() { first <- ask() }()
	<-begun
	require.Equal(t, ask(), http.StatusTooManyRequests, "the second request got status")
	end <- true
	require.Equal(t, <-first, http.StatusOK, "the first request got status")
}
