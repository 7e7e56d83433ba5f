package s3store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vllm-vcr/conformance/internal/golden"
)

// content is a golden of these tests; its bytes are as good as any.
var content = []byte(strings.Repeat(`{"meta":{"vllm_version":"0.33.0"}}`+"\n", 100))

// patience is long enough for a busy machine to answer, and short enough to wait for where nobody does.
const patience = time.Second

// A goldenStore is a store of goldens whose S3 is as its options say when it is first used.
type goldenStore struct {
	golden.Store
	S3              Options
	roleTimeout     time.Duration
	maxPut, minPart int64
	once            sync.Once
	connected       *store
}

// Connect implements [golden.Connector].
func (s *goldenStore) Connect(t golden.Transport) golden.ObjectStore {
	s.once.Do(func() {
		s.connected = &store{opt: s.S3, Transport: t, roleTimeout: s.roleTimeout, maxPut: s.maxPut, minPart: s.minPart}
	})
	return s.connected
}

// s3 is what reads and writes objects, past the store of goldens.
func (s *goldenStore) s3(ctx context.Context) (*client, error) {
	s.Connect(golden.Transport{HTTP: s.HTTP, Backoff: s.Backoff, Stall: s.Stall, Log: s.Log})
	return s.connected.connect(ctx)
}

// newStore returns a store with a cache of its own that retries at once.
func newStore(t testing.TB) *goldenStore {
	t.Helper()
	s := &goldenStore{}
	s.Log = slog.New(slog.DiscardHandler)
	s.Cache, s.Backoff, s.Store.S3 = t.TempDir(), func(int) time.Duration { return 0 }, s
	return s
}

// fetchContent fetches content, or something else, under the digest of content.
func fetchContent(t *testing.T, s *goldenStore, location string) ([]byte, error) {
	t.Helper()
	return s.Fetch(t.Context(), contentAt(location))
}

// contentAt is content as it is registered at a location, and at mirrors.
func contentAt(location string, mirrors ...string) golden.Object {
	return golden.Object{Location: location, Mirrors: mirrors, SHA256: digest(content), Size: int64(len(content))}
}

func wantContent(t *testing.T, s *goldenStore, location string) {
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
func wantMismatch(t *testing.T, err error) *golden.MismatchError {
	t.Helper()
	var mismatch *golden.MismatchError
	if !errors.As(err, &mismatch) {
		t.Fatalf("got error %v, want a *golden.MismatchError", err)
	}
	return mismatch
}

// wantFetchError returns err as the error about what is around the golden. Its text must have all of want.
func wantFetchError(t *testing.T, err error, want ...string) *golden.FetchError {
	t.Helper()
	var failed *golden.FetchError
	if !errors.As(err, &failed) {
		t.Fatalf("got error %v, want a *golden.FetchError", err)
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
func logTo(s *goldenStore) *bytes.Buffer {
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

// contentFile is content as a file that can be published.
func contentFile(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "run.jsonl")
	write(t, name, content)
	return name
}

func wantPublished(t *testing.T, s *goldenStore, location, file string, existed bool) {
	t.Helper()
	got, err := s.Publish(t.Context(), location, file)
	if err != nil {
		t.Fatal(err)
	}
	want := golden.Published{Location: location, SHA256: digest(content), Size: int64(len(content)), Existed: existed}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// wantPublishError returns err as the error of a file that was not published. Its text must have all of want.
func wantPublishError(t *testing.T, err error, want ...string) *golden.PublishError {
	t.Helper()
	var failed *golden.PublishError
	if !errors.As(err, &failed) {
		t.Fatalf("got error %v, want a *golden.PublishError", err)
	}
	for _, part := range want {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error lacks %q: %v", part, err)
		}
	}
	return failed
}

func write(t testing.TB, name string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

func wantNoEntries(t *testing.T, s *goldenStore) {
	t.Helper()
	for _, pattern := range []string{"tmp/*", "sha256/*/*"} {
		if left, _ := filepath.Glob(filepath.Join(s.Cache, pattern)); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// reset makes the client's side see ECONNRESET.
func reset(w http.ResponseWriter, _ *http.Request) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err)
	}
	if inner, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = inner.NetConn()
	}
	conn.(*net.TCPConn).SetLinger(0)
	conn.Close()
}
