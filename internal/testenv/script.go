package testenv

import (
	"bytes"
	"errors"
	"io"
	"log"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// Content is what the steps of a [Script] send.
var Content = []byte(strings.Repeat(`{"meta":{"vllm_version":"0.33.0"}}`+"\n", 100))

// Patience is a time in which a busy machine answers, and which a test can wait where nothing answers.
const Patience = time.Second

// WantError returns err as an error of a type. Its text must have all of parts.
func WantError[T error](t *testing.T, err error, parts ...string) T {
	t.Helper()
	var failed T
	if !errors.As(err, &failed) {
		t.Fatalf("got error %v, want a %T", err, failed)
	}
	require.ErrorContains(t, err, parts...)
	return failed
}

// ContentFile is [Content] as a file.
func ContentFile(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "run.jsonl")
	WriteFile(t, name, Content)
	return name
}

// Noise returns bytes of which no two parts are alike.
func Noise(size int) []byte {
	data := make([]byte, size)
	source := rand.NewChaCha8([32]byte{1})
	source.Read(data)
	return data
}

// A Script is a server that answers the n-th request with its n-th step, and all further ones with its last.
type Script struct {
	*httptest.Server
	Requests []*http.Request // to be read once the server is idle
	mu       sync.Mutex
}

// A Step is an answer.
type Step func(http.ResponseWriter, *http.Request)

// NewScript starts a server that ends with the test.
func NewScript(t *testing.T, tls bool, steps ...Step) *Script {
	t.Helper()
	s := &Script{}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		step := steps[min(len(s.Requests), len(steps)-1)]
		s.Requests = append(s.Requests, r)
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

// Asked returns the number of requests.
func (s *Script) Asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.Requests)
}

// Serve sends data.
func Serve(data []byte) Step {
	return func(w http.ResponseWriter, _ *http.Request) { w.Write(data) }
}

// Status refuses.
func Status(code int) Step {
	return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", code) }
}

// Cut promises all of Content and breaks the connection after half of it.
func Cut(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Length", "3500")
	w.Write(Content[:len(Content)/2])
	w.(http.Flusher).Flush()
	panic(http.ErrAbortHandler)
}

// Drop breaks the connection before there is an answer.
func Drop(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// Hang sends half of Content, and no more until the client has gone.
func Hang(w http.ResponseWriter, r *http.Request) {
	w.Write(Content[:len(Content)/2])
	w.(http.Flusher).Flush()
	<-r.Context().Done()
}

// Reset makes the client's side see ECONNRESET.
func Reset(w http.ResponseWriter, _ *http.Request) {
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

// Log returns a log and the buffer that it writes to, which may be read once nothing logs any more.
func Log() (*slog.Logger, *bytes.Buffer) {
	var out bytes.Buffer
	return slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})), &out
}

// WithoutAWS hides the AWS environment of the machine.
func WithoutAWS(t testing.TB) {
	t.Helper()
	for _, setting := range os.Environ() {
		if name, _, _ := strings.Cut(setting, "="); strings.HasPrefix(name, "AWS_") {
			t.Setenv(name, "") // so that it is restored
			os.Unsetenv(name)
		}
	}
	Setenv(t, map[string]string{
		"AWS_CONFIG_FILE": os.DevNull, "AWS_SHARED_CREDENTIALS_FILE": os.DevNull, "AWS_EC2_METADATA_DISABLED": "true",
	})
}

// Setenv sets variables for the test.
func Setenv(t testing.TB, env map[string]string) {
	t.Helper()
	for name, value := range env {
		t.Setenv(name, value)
	}
}

// WriteFile writes a file, and makes its folder.
func WriteFile(t testing.TB, name string, data []byte) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
	require.NoError(t, os.WriteFile(name, data, 0o644))
}

// WriteProgram writes a program that can be started at once. A child process that is forked meanwhile would have it open for writing
// (https://go.dev/issue/22315), so none is.
func WriteProgram[T string | []byte](t testing.TB, path string, text T) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	require.NoError(t, os.WriteFile(path, []byte(text), 0o755))
}
