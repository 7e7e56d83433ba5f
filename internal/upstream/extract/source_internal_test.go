package extract

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/upstream/pypi"
	"github.com/vllm-vcr/conformance/internal/upstream/sources"
)

// TestOpenEnds: an index that never answers ends with the reason.
func TestOpenEnds(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer server.Close()
	late := errors.New("it took too long")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, late)
	defer cancel()
	_, err := Open(ctx, &pypi.Index{URL: server.URL + "/simple"}, sources.Request{Name: "0.33.0"})
	if !errors.Is(err, late) {
		t.Errorf("error %v, want that it took too long", err)
	}
}

// TestBounds: what a release makes us parse is bounded, file by file and in all.
func TestBounds(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a.py"), make([]byte, maxFile+1), 0o600))
	if _, err := (&Folder{path: dir}).Read(t.Context(), []string{"a.py"}); err == nil || !strings.Contains(err.Error(), "a.py has more than 1048576 bytes") {
		t.Errorf("a large file: %v", err)
	}

	l := &library{ctx: t.Context(), source: &Folder{path: dir}, modules: map[string]*module{}}
	text := append([]byte("# coding: latin-1\n"), bytes.Repeat([]byte("#"), maxFile-100)...) // it is read, and not parsed
	for n := 0; l.err == nil; n++ {
		if l.parse("m", "m.py", text); n > 5 {
			t.Fatal("there is no bound on all files")
		}
	}
	if want := "more than 4194304 bytes of Python are of the wire: this is no vLLM"; !strings.Contains(l.err.Error(), want) {
		t.Errorf("error %v, want %q", l.err, want)
	}
}
