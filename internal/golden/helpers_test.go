package golden

import (
	"bytes"
	"crypto/tls"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// What these tests share with those of package s3store.
var (
	content, patience, newScript          = testenv.Content, testenv.Patience, testenv.NewScript
	serve, status, cut, drop, hang, reset = testenv.Serve, testenv.Status, testenv.Cut, testenv.Drop, testenv.Hang, testenv.Reset
	withoutAWS, setenv                    = testenv.WithoutAWS, testenv.Setenv
	write, contentFile, noise             = testenv.WriteFile, testenv.ContentFile, testenv.Noise
	wantMismatch                          = testenv.WantError[*MismatchError]
	wantFetchError, wantPublishError      = testenv.WantError[*FetchError], testenv.WantError[*PublishError]
)

type step = testenv.Step

// newStore returns a store with a cache of its own that retries at once.
func newStore(t *testing.T) *Store {
	t.Helper()
	return &Store{Cache: t.TempDir(), Backoff: func(int) time.Duration { return 0 }}
}

// fetchContent fetches content, or something else, under the digest of content.
func fetchContent(t *testing.T, s *Store, location string) ([]byte, error) {
	t.Helper()
	return s.Fetch(t.Context(), contentAt(location))
}

// contentAt is content as it is registered at a location, and at mirrors.
func contentAt(location string, mirrors ...string) Object {
	return Object{Location: location, Mirrors: mirrors, SHA256: digest(content), Size: int64(len(content))}
}

func wantContent(t *testing.T, s *Store, location string) {
	t.Helper()
	got, err := fetchContent(t, s, location)
	require.NoError(t, err)
	if !bytes.Equal(got, content) {
		t.Fatalf("got %d bytes, want %d, or others", len(got), len(content))
	}
}

// logTo makes the store log into the returned buffer, which is to be read once the store is idle.
func logTo(s *Store) *bytes.Buffer {
	log, out := testenv.Log()
	s.Log = log
	return out
}

func glob(dir, pattern string) ([]string, error) {
	return filepath.Glob(filepath.Join(dir, filepath.FromSlash(pattern)))
}

// anyCertificate talks to several of the servers of these tests.
func anyCertificate() http.RoundTripper {
	return &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
}
