package upstream

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/pypi"
)

// TestLimited: an index that never ends, and never stalls, ends with the reason.
func TestLimited(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/vnd.pypi.simple.v1+json")
		for {
			if _, err := w.Write([]byte(" ")); err != nil || http.NewResponseController(w).Flush() != nil {
				return
			}
			select {
			case <-r.Context().Done():
				return
			case <-time.After(time.Millisecond):
			}
		}
	}))
	defer server.Close()
	ctx, cancel := limited(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := Open(ctx, "0.33.0", Options{Index: &pypi.Index{URL: server.URL + "/simple"}})
	if err == nil || !strings.Contains(err.Error(), "the release could not be read within 100ms") {
		t.Errorf("error %v, want that it took too long", err)
	}
}
