package edge

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// dialEdge opens a connection to an edge and writes to it.
func dialEdge(t *testing.T, e *running, text string) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(e.url, "http://"))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	_, err = io.WriteString(conn, text)
	require.NoError(t, err)
	return conn.(*net.TCPConn)
}

func postOf(path string, length int, body string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", path, length, body)
}

// A body that comes too slowly ends its request, for each endpoint that takes one.
func TestSlowBody(t *testing.T) {
	e := before(t, Options{Limits: Limits{Head: 20 * time.Millisecond}, AdminToken: "t"}, stream)
	for _, path := range []string{"/v1/completions", "/other"} {
		answer, err := http.ReadResponse(bufio.NewReader(dialEdge(t, e, postOf(path, 9, "{"))), nil)
		require.NoError(t, err)
		body, _ := io.ReadAll(answer.Body)
		wantError(t, answer, string(body), 408, "APIConnectionError", "too slowly")
	}
	conn := dialEdge(t, e, strings.Replace(postOf("/admin/config", 9, "{"), "Host", "Authorization: Bearer t\r\nHost", 1))
	if answer, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil || answer.StatusCode != 408 {
		t.Error(answer, err)
	}
}

// Half a change of the configuration keeps no one else from it.
func TestAdminIsNotLocked(t *testing.T) {
	e := before(t, Options{Policy: Policy{OpenAdmin: true}}, stream)
	dialEdge(t, e, postOf("/admin/config", 9, "{"))
	dialEdge(t, e, "POST /admin/config HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n")
	for range 3 { // one of these comes after the halves
		if answer, body := fetch(t, "POST", e.url+"/admin/config", `{"seed":7}`); answer.StatusCode != 200 || !strings.Contains(body, `"seed":7`) {
			t.Errorf("%d %s", answer.StatusCode, body)
		}
	}
}

// All bodies together have a limit. A body counts from its first byte until its request is decoded.
func TestBodies(t *testing.T) {
	answer, next := make(chan struct{}), make(chan struct{})
	frontend := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		flush(w)
		answer <- struct{}{}
		<-next
	})
	e := start(t, Options{Frontends: []http.Handler{frontend}, Limits: Limits{Bodies: 1000}})
	body := strings.Repeat("x", 600)
	half := dialEdge(t, e, postOf("/v1/completions", 601, body))
	for e.bodies.held.Load() != 600 {
		runtime.Gosched()
	}
	refused, text := fetch(t, "POST", e.url+"/v1/completions", body)
	wantError(t, refused, text, 503, "InternalServerError", "take all the memory")
	require.Equal(t, refused.Header.Get("Retry-After"), "1", "headers: %v", refused.Header)
	_, _ = io.WriteString(half, "x")
	<-answer // the first one is a stream now, and holds nothing
	require.Equal(t, e.bodies.held.Load(), 0, "bytes are held while the answer is a stream")
	go func() { <-answer; close(next); <-answer }()
	if again, text := fetch(t, "POST", e.url+"/v1/completions", body); again.StatusCode != 200 {
		t.Errorf("%d %s", again.StatusCode, text)
	}
	// A call of gRPC counts too, also while it is read.
	client := clientOf("HTTP/2.0")
	require.Equal(t, outcome(t, client, "POST", e.url+callGenerate, strings.Repeat("x", 2000), "Content-Type", "application/grpc"), "", "a call")
	require.Equal(t, e.bodies.held.Load(), 0, "bytes are held at the end")
}

// A request for many answers has one body in memory, and a limited number of parts are sent at once.
func TestFanOutIsBounded(t *testing.T) {
	var now, most, parts, bytes atomic.Int64
	var mu sync.Mutex
	full := sync.NewCond(&mu)
	frontend := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		if n := now.Add(1); n > most.Load() {
			most.Store(n)
		}
		if parts.Add(1) >= partsAtOnce {
			full.Broadcast()
		}
		for parts.Load() < partsAtOnce { // until as many are here as may be
			full.Wait()
		}
		mu.Unlock()
		n, _ := io.Copy(io.Discard, r.Body)
		bytes.Add(n)
		now.Add(-1)
		_, _ = io.WriteString(w, `{"choices":[{"index":0}]}`)
	})
	e, err := New(Options{Frontends: []http.Handler{frontend}, FanOut: true})
	require.NoError(t, err)
	h := e.Handler(0)
	ask := func(size, n int) (int, uint64) {
		r := httptest.NewRequest("POST", "/v1/completions", strings.NewReader(fmt.Sprintf(`{"prompt":%q,"n":%d,"seed":1}`, strings.Repeat("x", size), n)))
		w := httptest.NewRecorder()
		var memory runtime.MemStats
		runtime.ReadMemStats(&memory)
		begun := memory.TotalAlloc
		h.ServeHTTP(deadlines{w}, r)
		runtime.ReadMemStats(&memory)
		return w.Code, memory.TotalAlloc - begun
	}
	const size, n = 100 << 10, 1024
	status, allocated := ask(size, n)
	if status != 200 || parts.Load() != n || most.Load() > 128 || bytes.Load() < size*n {
		t.Errorf("status %d, %d parts of %d bytes, %d at once", status, parts.Load(), bytes.Load(), most.Load())
	}
	require.True(t, allocated <= 64*size+n*40<<10, "%d bytes were allocated for a body of %d", allocated, size)
	if status, _ := ask(1<<20, n); status != 400 || parts.Load() != n {
		t.Errorf("more than all parts may have: status %d, %d parts", status, parts.Load())
	}
}

// deadlines lets a recorder pass for a connection.
type deadlines struct{ *httptest.ResponseRecorder }

func (deadlines) SetReadDeadline(time.Time) error { return nil }

// A client that closes its side gets no status 200 for an answer that was given up.
func TestHalfClosed(t *testing.T) {
	gone := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done() // and then nothing is written
	}
	for name, e := range map[string]*running{
		"in this process": start(t, Options{Frontends: []http.Handler{http.HandlerFunc(gone)}}),
		"proxied":         before(t, Options{}, gone),
		"fan-out":         before(t, Options{FanOut: true}, gone),
		"with a fault":    before(t, Options{Faults: []Fault{{Kind: FaultTruncate, Probability: 1}}}, gone),
	} {
		t.Run(name, func(t *testing.T) {
			const body = `{"prompt":"a","n":2}`
			conn := dialEdge(t, e, postOf("/v1/completions", len(body), body))
			require.NoError(t, conn.CloseWrite())
			if got, _ := io.ReadAll(conn); len(got) > 0 {
				t.Errorf("got %q", got)
			}
		})
	}
}

// A head of HTTP/2 whose frames go on without end ends with its connection.
func TestEndlessHead(t *testing.T) {
	e := before(t, Options{Limits: Limits{Head: 20 * time.Millisecond}}, stream)
	conn := dialEdge(t, e, http2.ClientPreface)
	frames := http2.NewFramer(conn, conn)
	require.NoError(t, frames.WriteSettings())
	require.NoError(t, frames.WriteHeaders(http2.HeadersFrameParam{StreamID: 1}))
	go func() { _, _ = io.Copy(io.Discard, conn) }()
	for frames.WriteContinuation(1, false, nil) == nil {
	}
}
