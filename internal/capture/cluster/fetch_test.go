package cluster

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"github.com/vllm-vcr/conformance/internal/base/retry"
	"github.com/vllm-vcr/conformance/internal/capture/load"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// content is the file that is fetched: several messages of the stream.
var content = []byte(strings.Repeat("0123456789abcdef", 10_000))

// A sending is what a program in a container does.
type sending struct {
	head   func(h *load.Header) // changes the header; nil sends it as it is
	raw    string               // in place of everything
	cut    int                  // bytes after which it stops; 0 sends all
	extra  string               // after the end
	other  bool                 // sends other bytes than the file's
	hang   bool                 // does not end
	broken bool                 // the connection breaks
	code   int                  // exit code
	stderr string
	status int // HTTP, in place of all that
}

// execServer is an API server whose containers send, each time another of the sendings, and the last ever after.
type execServer struct {
	t        *testing.T
	sendings []sending
	spdy     bool
	calls    atomic.Int32
	hung     chan struct{} // closed at the end of the test
}

func (s *execServer) start() *Client {
	s.t.Helper()
	s.hung = make(chan struct{})
	server := httptest.NewServer(s)
	s.t.Cleanup(server.Close)
	s.t.Cleanup(func() { close(s.hung) })
	// Only who waits for a stall has a short one: on a busy machine everything stands still for a while.
	stall := time.Hour
	if slices.ContainsFunc(s.sendings, func(next sending) bool { return next.hang }) {
		stall = 400 * time.Millisecond
	}
	c := newClient(Options{Stall: stall}, nil, server.URL, "default")
	c.config, c.http = &rest.Config{Host: server.URL}, server.Client()
	c.backoff = noWait
	return c
}

func noWait(int) time.Duration { return 0 }

func (s *execServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.spdy && websocket.IsWebSocketUpgrade(r) {
		http.Error(w, "no WebSockets here", http.StatusBadRequest)
		return
	}
	next := s.sendings[min(int(s.calls.Add(1)), len(s.sendings))-1]
	command := r.URL.Query()["command"]
	want := []string{Program, "capture", "pod", "send", "--dir", "/trace", "file"}
	if !slices.Equal(command, want) || r.URL.Query().Get("container") != "c" {
		s.t.Errorf("asked for %q", r.URL)
	}
	switch {
	case next.status != 0:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(next.status)
		json.NewEncoder(w).Encode(metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: int32(next.status),
			Reason: metav1.StatusReasonForbidden, Message: "pods \"p\" is forbidden",
		})
	case s.spdy:
		s.overSPDY(w, r, next)
	default:
		s.overWebSocket(w, r, next)
	}
}

func (s *execServer) overWebSocket(w http.ResponseWriter, r *http.Request, next sending) {
	upgrader := websocket.Upgrader{Subprotocols: []string{"v5.channel.k8s.io"}}
	conn, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		s.t.Error(err)
		return
	}
	defer conn.Close()
	s.send(next, func(channel byte, data []byte) {
		_ = conn.WriteMessage(websocket.BinaryMessage, append([]byte{channel}, data...)) // the client may be gone
	})
	if !next.broken {
		_ = conn.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""))
	}
}

func (s *execServer) overSPDY(w http.ResponseWriter, r *http.Request, next sending) {
	if _, err := httpstream.Handshake(r, w, []string{"v4.channel.k8s.io"}); err != nil {
		s.t.Error(err)
		return
	}
	made := make(chan httpstream.Stream, 3)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(stream httpstream.Stream, _ <-chan struct{}) error {
		made <- stream
		return nil
	})
	if conn == nil {
		s.t.Error("no SPDY connection")
		return
	}
	defer conn.Close()
	streams := map[byte]httpstream.Stream{}
	channels := map[string]byte{"stdout": 1, "stderr": 2, "error": 3}
	for range channels {
		stream := <-made
		streams[channels[stream.Headers().Get("streamType")]] = stream
	}
	s.send(next, func(channel byte, data []byte) { _, _ = streams[channel].Write(data) })
	for _, stream := range streams {
		stream.Close()
	}
}

// send writes what the program does to the channels: 1 is stdout, 2 stderr, 3 the status at the end.
func (s *execServer) send(next sending, write func(channel byte, data []byte)) {
	sum := sha256.Sum256(content)
	h := load.Header{File: "file", Size: int64(len(content)), SHA256: hex.EncodeToString(sum[:])}
	if next.head != nil {
		next.head(&h)
	}
	line, _ := json.Marshal(h)
	body := slices.Clone(content)
	if next.other {
		body[len(body)-1]++
	}
	if next.cut > 0 {
		body = body[:next.cut]
	}
	out := append(append(line, '\n'), append(body, next.extra...)...)
	if next.raw != "" || next.code != 0 && next.cut == 0 {
		out = []byte(next.raw)
	}
	for part := range slices.Chunk(out, 30_000) {
		write(1, part)
	}
	if next.stderr != "" {
		write(2, []byte(next.stderr))
	}
	if next.hang {
		<-s.hung
	}
	if next.broken {
		return
	}
	status := metav1.Status{Status: metav1.StatusSuccess}
	if next.code != 0 {
		status = metav1.Status{Status: metav1.StatusFailure, Reason: "NonZeroExitCode", Details: &metav1.StatusDetails{
			Causes: []metav1.StatusCause{{Type: "ExitCode", Message: fmt.Sprint(next.code)}},
		}}
	}
	end, _ := json.Marshal(status)
	write(3, end)
}

func TestFetch(t *testing.T) {
	other := func(h *load.Header) { h.SHA256 = strings.Repeat("0", 64) }
	tests := []struct {
		name     string
		sendings []sending
		spdy     bool
		calls    int
		want     []string // of the error
	}{
		{name: "whole", sendings: []sending{{}}, calls: 1},
		{name: "over SPDY", spdy: true, sendings: []sending{{}}, calls: 1},
		{name: "cut over SPDY", spdy: true, sendings: []sending{{cut: 70_000}, {}}, calls: 2},
		{name: "cut silently", sendings: []sending{{cut: 70_000}, {cut: 100}, {}}, calls: 3},
		{name: "broken", sendings: []sending{{cut: 50_000, broken: true}, {}}, calls: 2},
		{name: "killed", sendings: []sending{{cut: 50_000, code: 137}, {}}, calls: 2},
		{name: "hangs once", sendings: []sending{{cut: 50_000, hang: true}, {}}, calls: 2},
		{name: "hangs at the end", sendings: []sending{{hang: true}}, calls: 1},
		{name: "other bytes once", sendings: []sending{{other: true}, {}}, calls: 2},
		{
			name: "cut for ever", sendings: []sending{{cut: 100}}, calls: 5,
			want: []string{"after 5 tries: the stream ended early, at 100 of 160000 bytes"},
		},
		{
			name: "hangs for ever", sendings: []sending{{cut: 100}, {raw: "{", hang: true}},
			calls: 5, want: []string{retry.ErrStalled.Error()},
		},
		{name: "other bytes", sendings: []sending{{other: true}}, calls: 5, want: []string{errDigest.Error()}},
		{name: "another digest", sendings: []sending{{head: other}}, calls: 5, want: []string{errDigest.Error()}},
		{
			name: "more than announced", sendings: []sending{{extra: "x"}}, calls: 1,
			want: []string{"more than the 160000 bytes"},
		},
		{
			name: "another file", sendings: []sending{{head: func(h *load.Header) { h.File = "other" }}}, calls: 1,
			want: []string{`it sends "other"`},
		},
		{
			name: "a negative size", sendings: []sending{{head: func(h *load.Header) { h.Size = -1 }}}, calls: 1,
			want: []string{"it sends -1 bytes"},
		},
		{
			name: "no digest", sendings: []sending{{head: func(h *load.Header) { h.SHA256 = "ABC" }}}, calls: 1,
			want: []string{`"ABC" is not a sha256`},
		},
		{name: "no header", sendings: []sending{{raw: "hello\n"}}, calls: 1, want: []string{"no header", "hello"}},
		{
			name: "no line", sendings: []sending{{raw: strings.Repeat("x", maxHeader+1)}}, calls: 1,
			want: []string{"the first 4096 bytes are no header"},
		},
		{
			name: "no such file", sendings: []sending{{code: 2, stderr: "no file\n::error::x\n"}}, calls: 1,
			want: []string{"capture pod send", "exit code 2: no file ::error::x"},
		},
		{
			name: "nothing", sendings: []sending{{raw: "{"}}, calls: 5,
			want: []string{"the stream ended early, without a header"},
		},
		{
			name: "forbidden", sendings: []sending{{status: http.StatusForbidden}}, calls: 2, // and over SPDY
			want: []string{"pods \"p\" is forbidden", "deploy/"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := &execServer{t: t, sendings: test.sendings, spdy: test.spdy}
			c := s.start()
			dst := filepath.Join(t.TempDir(), "file")
			got, err := c.Fetch(t.Context(), "p", "c", "/trace", "file", dst)
			if got := int(s.calls.Load()); got != test.calls {
				t.Errorf("asked %d times, want %d", got, test.calls)
			}
			if len(test.want) == 0 {
				sum := sha256.Sum256(content)
				have, readErr := os.ReadFile(dst)
				if err != nil || readErr != nil || string(have) != string(content) ||
					got != (Fetched{Size: int64(len(content)), SHA256: hex.EncodeToString(sum[:])}) {
					t.Errorf("%+v, %v, %v", got, err, readErr)
				}
				return
			}
			for _, part := range test.want {
				require.ErrorContains(t, err, part)
			}
			require.True(t, err == nil || !strings.ContainsAny(err.Error(), "\n"), "more than a line: %q", err)
			if left, err := os.ReadDir(filepath.Dir(dst)); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
}

// TestFetchKeepsWhatIsThere also when the file appears while another is fetched.
func TestFetchKeepsWhatIsThere(t *testing.T) {
	dst := filepath.Join(t.TempDir(), "file")
	s := &execServer{t: t, sendings: []sending{{head: func(*load.Header) {
		if err := os.WriteFile(dst, []byte("mine"), 0o600); err != nil {
			t.Error(err)
		}
	}}}}
	c := s.start()
	for range 2 {
		_, err := c.Fetch(t.Context(), "p", "c", "/trace", "file", dst)
		require.ErrorIs(t, err, fs.ErrExist)
	}
	if have, err := os.ReadFile(dst); err != nil || string(have) != "mine" || s.calls.Load() != 1 {
		t.Errorf("%q, %v after %d calls", have, err, s.calls.Load())
	}
}
