package golden

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// content is a golden of these tests; its bytes are as good as any.
var content = []byte(strings.Repeat(`{"meta":{"vllm_version":"0.33.0"}}`+"\n", 100))

// patience is long enough for a busy machine to answer, and short enough to wait for where nobody does.
const patience = time.Second

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
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, content) {
		t.Fatalf("got %d bytes, want %d, or others", len(got), len(content))
	}
}

// wantMismatch returns err as the error about the golden.
func wantMismatch(t *testing.T, err error) *MismatchError {
	t.Helper()
	var mismatch *MismatchError
	if !errors.As(err, &mismatch) {
		t.Fatalf("got error %v, want a *MismatchError", err)
	}
	return mismatch
}

// wantFetchError returns err as the error about what is around the golden. Its text must have all of want.
func wantFetchError(t *testing.T, err error, want ...string) *FetchError {
	t.Helper()
	var failed *FetchError
	if !errors.As(err, &failed) {
		t.Fatalf("got error %v, want a *FetchError", err)
	}
	for _, part := range want {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error lacks %q: %v", part, err)
		}
	}
	return failed
}

// A script is a server that answers the n-th request with its n-th step, and all further ones with its last.
type script struct {
	*httptest.Server
	mu       sync.Mutex
	requests []*http.Request
}

type step func(http.ResponseWriter, *http.Request)

func newScript(t *testing.T, tls bool, steps ...step) *script {
	t.Helper()
	s := &script{}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		step := steps[min(len(s.requests), len(steps)-1)]
		s.requests = append(s.requests, r)
		s.mu.Unlock()
		step(w, r)
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // clients that leave are what is tested
	if tls {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return s
}

func (s *script) asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.requests)
}

func serve(data []byte) step {
	return func(w http.ResponseWriter, _ *http.Request) { w.Write(data) }
}

func status(code int) step {
	return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", code) }
}

// cut promises all of content and breaks the connection after half of it.
func cut(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Length", "3500")
	w.Write(content[:len(content)/2])
	w.(http.Flusher).Flush()
	panic(http.ErrAbortHandler)
}

// drop breaks the connection before there is an answer.
func drop(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// hang sends half of content, and no more until the client has gone.
func hang(w http.ResponseWriter, r *http.Request) {
	w.Write(content[:len(content)/2])
	w.(http.Flusher).Flush()
	<-r.Context().Done()
}

// logTo makes the store log into the returned buffer, which is to be read once the store is idle.
func logTo(s *Store) *bytes.Buffer {
	var out bytes.Buffer
	s.Log = slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	return &out
}

// withoutAWS hides the AWS environment of the machine.
func withoutAWS(t testing.TB) {
	t.Helper()
	for _, setting := range os.Environ() {
		if name, _, _ := strings.Cut(setting, "="); strings.HasPrefix(name, "AWS_") {
			t.Setenv(name, "") // so that it is restored
			os.Unsetenv(name)
		}
	}
	setenv(t, map[string]string{
		"AWS_CONFIG_FILE": os.DevNull, "AWS_SHARED_CREDENTIALS_FILE": os.DevNull, "AWS_EC2_METADATA_DISABLED": "true",
	})
}

func setenv(t testing.TB, env map[string]string) {
	t.Helper()
	for name, value := range env {
		t.Setenv(name, value)
	}
}

func glob(dir, pattern string) ([]string, error) {
	return filepath.Glob(filepath.Join(dir, filepath.FromSlash(pattern)))
}

// anyCertificate talks to several of the servers of these tests.
func anyCertificate() http.RoundTripper {
	return &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
}
