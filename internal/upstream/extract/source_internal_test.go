package extract

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/upstream/pypi"
)

// TestLimited: an index that never answers ends with the reason.
func TestLimited(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer server.Close()
	ctx, cancel := limited(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := Open(ctx, "0.33.0", Options{Index: &pypi.Index{URL: server.URL + "/simple"}})
	if err == nil || !strings.Contains(err.Error(), "the release could not be read within 100ms") {
		t.Errorf("error %v, want that it took too long", err)
	}
}
