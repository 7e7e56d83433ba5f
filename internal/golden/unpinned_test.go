package golden

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// TestRead: what a person named is read from where goldens are, without a digest, and is neither looked for in the cache nor put there.
func TestRead(t *testing.T) {
	half := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000000")
		w.Write(content)
	}
	file := filepath.Join(t.TempDir(), "a.jsonl")
	require.NoError(t, os.WriteFile(file, content, 0o600))
	tests := []struct {
		name     string
		location string // empty: of the server
		steps    []step
		max      int64
		requests int
		want     string // of the error, empty for none
	}{
		{name: "at once", steps: []step{serve(content)}, requests: 1},
		{name: "after a fault of the server", steps: []step{status(503), status(502), serve(content)}, requests: 3},
		{name: "after a broken answer", steps: []step{half, serve(content)}, requests: 2},
		{name: "as large as may be", steps: []step{serve(content)}, max: int64(len(content)), requests: 1},
		{name: "too large", steps: []step{serve(content)}, max: int64(len(content)) - 1, requests: 1, want: "more than the 3499 bytes"},
		{name: "refused", steps: []step{status(403)}, requests: 1, want: "HTTP status 403 Forbidden: the server wants credentials, but https locations are read without [web-credentials]"},
		{name: "a file", location: "file://" + filepath.ToSlash(file)},
		{name: "a large file", location: "file://" + filepath.ToSlash(file), max: 10, want: "download the trace and name the file"},
		{name: "no file", location: "file:///nowhere/at/all", want: "check the location [no-key]"},
		{name: "plain http", location: "http://host.invalid/a", want: "it is plain http"},
		{name: "no scheme of ours", location: "ftp://host.invalid/a", want: `scheme "ftp" is not one of`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := newStore(t)
			s.MaxSize = test.max
			var asked *testenv.Script
			if test.location == "" {
				asked = newScript(t, false, test.steps...)
				test.location = asked.URL + "/a.jsonl"
			}
			data, err := s.Read(t.Context(), test.location)
			switch {
			case test.want == "" && (err != nil || string(data) != string(content)):
				t.Errorf("got %d bytes and %v", len(data), err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want) || !strings.HasPrefix(err.Error(), "trace ") || !errors.As(err, new(*FetchError))):
				t.Errorf("got %v, want %q", err, test.want)
			}
			if asked != nil {
				require.Equal(t, len(asked.Requests), test.requests, "requests")
			}
			entries, err := os.ReadDir(s.Cache)
			require.NoError(t, err)
			require.True(t, len(entries) == 0, "the cache has %v", entries)
		})
	}
}
