package edge

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// A toy is a frontend whose answers a test writes.
type toy struct {
	*httptest.Server
}

func newToy(t *testing.T, handle http.HandlerFunc) *toy {
	t.Helper()
	s := httptest.NewServer(handle)
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return &toy{s}
}

// A running is an edge that listens.
type running struct {
	*Edge
	url  string
	done chan error
}

func start(t *testing.T, opt Options) *running {
	t.Helper()
	e, err := New(opt)
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &running{Edge: e, url: "http://" + l.Addr().String(), done: make(chan error, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	go func() { r.done <- e.Serve(ctx, l) }()
	t.Cleanup(cancel)
	return r
}

// before starts an edge before a toy.
func before(t *testing.T, opt Options, handle http.HandlerFunc) *running {
	t.Helper()
	opt.Frontends = []http.Handler{proxyTo(t, newToy(t, handle).URL)}
	return start(t, opt)
}

func proxyTo(t testing.TB, url string) http.Handler {
	t.Helper()
	h, err := Proxy(url, nil)
	require.NoError(t, err)
	return h
}

func fetch(t *testing.T, method, url, body string, headers ...string) (*http.Response, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	require.NoError(t, err)
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	answer, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return answer, string(text)
}

func flush(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() }

func TestForwards(t *testing.T) {
	e := before(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Request-Id", "of the frontend")
		w.Header().Set("Connection", "X-Hop")
		w.Header().Set("X-Hop", "1")
		w.WriteHeader(http.StatusTeapot)
		fmt.Fprintf(w, "%s %s host=%t hop=%q secret=%q agent=%q id=%q body=%s", r.Method, r.RequestURI, strings.HasPrefix(r.Host, "127."),
			r.Header.Get("Keep-Alive"), r.Header.Get("X-Secret"), r.Header.Get("User-Agent"), r.Header.Get("X-Request-Id"), body)
	})
	answer, body := fetch(t, "PUT", e.url+"/a%2Fb?q=1&q=2", "hello", "Keep-Alive", "x", "X-Secret", "s", "Connection", "X-Secret", "User-Agent", "me", "X-Request-Id", "mine")
	want := `PUT /a%2Fb?q=1&q=2 host=true hop="" secret="" agent="me" id="mine" body=hello`
	require.True(t, answer.StatusCode == http.StatusTeapot && body == want, "got %d %s\nwant 418 %s", answer.StatusCode, body, want)
	if ids := answer.Header["X-Request-Id"]; len(ids) != 1 || ids[0] != "mine" || answer.Header.Get("X-Hop") != "" {
		t.Errorf("headers: %v", answer.Header)
	}
}

func TestRequestID(t *testing.T) {
	for _, test := range []struct {
		name, id string
		kept     bool
	}{
		{"a word", "req-1", true},
		{"none", "", false},
		{"with a space", "a b", false},
		{"not of ASCII", "\u00e9", false},
		{"too long", strings.Repeat("x", 129), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			require.Equal(t, validID(test.id), test.kept, "kept")
		})
	}
}

// Each event reaches the client while the frontend has not yet made the next one, by each protocol.
func TestStreams(t *testing.T) {
	for _, test := range []struct{ proto, path string }{{"HTTP/1.1", "/"}, {"HTTP/2.0", "/"}, {"HTTP/1.1", "/health"}} {
		proto := test.proto
		t.Run(proto+test.path, func(t *testing.T) {
			read := make(chan struct{})
			e := before(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				for i := range 3 {
					fmt.Fprintf(w, "data: %d\n\n", i)
					flush(w)
					<-read
				}
			})
			client := clientOf(proto)
			answer, err := client.Get(e.url + test.path)
			require.NoError(t, err)
			defer answer.Body.Close()
			require.Equal(t, answer.Proto, proto, "the edge speaks")
			lines := bufio.NewScanner(answer.Body)
			for i := range 3 {
				if !lines.Scan() || lines.Text() != fmt.Sprintf("data: %d", i) || !lines.Scan() {
					t.Fatalf("event %d: %q %v", i, lines.Text(), lines.Err())
				}
				read <- struct{}{}
			}
			if lines.Scan() || lines.Err() != nil {
				t.Errorf("after the end: %q %v", lines.Text(), lines.Err())
			}
		})
	}
}

func clientOf(proto string) *http.Client {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(proto == "HTTP/1.1")
	protocols.SetUnencryptedHTTP2(proto == "HTTP/2.0")
	return &http.Client{Transport: &http.Transport{Protocols: protocols}}
}

// A frontend learns that a client is gone while it waits for the next token, and before the first one.
func TestClientGone(t *testing.T) {
	for _, headFirst := range []bool{true, false} {
		t.Run(fmt.Sprint("head first ", headFirst), func(t *testing.T) {
			arrived, gone := make(chan struct{}), make(chan struct{})
			e := before(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.ReadAll(r.Body)
				if headFirst {
					flush(w)
				}
				close(arrived)
				<-r.Context().Done()
				close(gone)
			})
			ctx, leave := context.WithCancel(t.Context())
			request, _ := http.NewRequestWithContext(ctx, "POST", e.url+"/v1/completions", strings.NewReader("{}"))
			go func() {
				<-arrived
				leave()
			}()
			answer, err := http.DefaultClient.Do(request)
			if err == nil {
				_, err = io.ReadAll(answer.Body)
			}
			require.ErrorIs(t, err, context.Canceled)
			<-gone
		})
	}
}

// A client notices that the frontend has cut an answer.
func TestFrontendCuts(t *testing.T) {
	for _, path := range []string{"/", "/health"} {
		t.Run(path, func(t *testing.T) { testFrontendCuts(t, path) })
	}
}

func testFrontendCuts(t *testing.T, path string) {
	e := before(t, Options{}, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "data: 1\n\n")
		flush(w)
		panic(http.ErrAbortHandler)
	})
	answer, err := http.Get(e.url + path)
	require.NoError(t, err)
	if body, err := io.ReadAll(answer.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got %q, %v", body, err)
	}
}

func wantError(t *testing.T, answer *http.Response, body string, status int, kind, part string) {
	t.Helper()
	var got struct {
		Error struct {
			Message, Type string
			Code          int
		}
	}
	require.NoErrorf(t, json.Unmarshal([]byte(body), &got), "%d %q", answer.StatusCode, body)
	if answer.StatusCode != status || got.Error.Code != status || got.Error.Type != kind || !strings.Contains(got.Error.Message, part) {
		t.Errorf("got %d %s, want %d %s %q", answer.StatusCode, body, status, kind, part)
	}
	require.True(t, answer.Header.Get("Content-Type") == "application/json" && answer.Header.Get("X-Request-Id") != "", "headers: %v", answer.Header)
}

func TestFrontendAway(t *testing.T) {
	away := httptest.NewServer(nil)
	away.Close()
	e := start(t, Options{Frontends: []http.Handler{proxyTo(t, away.URL)}})
	answer, body := fetch(t, "POST", e.url+"/v1/completions", "{}")
	wantError(t, answer, body, 503, "InternalServerError", "does not accept connections")
	require.Equal(t, answer.Header.Get("Retry-After"), "1", "Retry-After")
	e = before(t, Options{}, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	answer, body = fetch(t, "POST", e.url+"/v1/completions", "{}")
	wantError(t, answer, body, 502, "InternalServerError", "before it answered")
}

func TestBodyTooLarge(t *testing.T) {
	e := before(t, Options{Limits: Limits{Body: 8}}, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	if answer, body := fetch(t, "POST", e.url, "12345678"); answer.StatusCode != 200 || body != "12345678" {
		t.Errorf("8 bytes: %d %q", answer.StatusCode, body)
	}
	answer, body := fetch(t, "POST", e.url, "123456789")
	wantError(t, answer, body, 413, "APIConnectionError", "more than 8 bytes")
}

// What a client writes between requests reaches no frontend as a request of its own.
func TestSmuggling(t *testing.T) {
	for _, test := range []struct{ name, request, want string }{
		{"two lengths", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx", "400"},
		{"length and chunks", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", "body=x"},
		{"unknown coding", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", "501"},
		{"line end in a header", "GET / HTTP/1.1\r\nHost: a\r\nX-A: b\rGET /admin\r\n\r\n", "400"},
		{"space before the colon", "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n", "400"},
		{"large header", "GET / HTTP/1.1\r\nHost: a\r\nX-A: " + strings.Repeat("a", 2*maxHeader) + "\r\n\r\n", "431"},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := before(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				fmt.Fprintf(w, "body=%s", body)
			})
			conn, err := net.Dial("tcp", strings.TrimPrefix(e.url, "http://"))
			require.NoError(t, err)
			defer conn.Close()
			go func() {
				_, _ = io.WriteString(conn, strings.Replace(test.request, "\r\n", "\r\nConnection: close\r\n", 1))
			}()
			if got, _ := io.ReadAll(conn); !bytes.Contains(got, []byte(test.want)) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// Shutdown waits for a stream, and no longer than it is told to.
func TestShutdown(t *testing.T) {
	for _, path := range []string{"/", "/health"} {
		t.Run(path, func(t *testing.T) {
			testShutdown(t, path, func(handle http.HandlerFunc) *running { return before(t, Options{}, handle) })
		})
		t.Run(path+" in this process", func(t *testing.T) {
			testShutdown(t, path, func(handle http.HandlerFunc) *running {
				return start(t, Options{Frontends: []http.Handler{handle}})
			})
		})
	}
}

func testShutdown(t *testing.T, path string, start func(http.HandlerFunc) *running) {
	t.Run("waits", func(t *testing.T) {
		next := make(chan struct{})
		e := start(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "1")
			flush(w)
			<-next
			_, _ = io.WriteString(w, "2")
		})
		answer, err := http.Get(e.url + path)
		require.NoError(t, err)
		down := make(chan error, 1)
		go func() { down <- e.Shutdown(context.Background()) }()
		if err := <-e.done; err != nil { // it accepts nothing any more
			t.Error(err)
		}
		close(next)
		if body, err := io.ReadAll(answer.Body); err != nil || string(body) != "12" {
			t.Errorf("got %q, %v", body, err)
		}
		require.NoError(t, <-down)
	})
	t.Run("cuts", func(t *testing.T) {
		e := start(func(w http.ResponseWriter, r *http.Request) {
			flush(w)
			<-r.Context().Done()
		})
		answer, err := http.Get(e.url + path)
		require.NoError(t, err)
		now, cancel := context.WithCancel(context.Background())
		cancel()
		if err := e.Shutdown(now); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if body, err := io.ReadAll(answer.Body); err == nil {
			t.Errorf("got %q to its end", body)
		}
	})
}

// Each port has the frontend of its number.
func TestRanks(t *testing.T) {
	var opt Options
	var listeners []net.Listener
	for i := range 3 {
		opt.Frontends = append(opt.Frontends, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, i) }))
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		listeners = append(listeners, l)
	}
	e, err := New(opt)
	require.NoError(t, err)
	go func() { _ = e.Serve(t.Context(), listeners...) }()
	for i, l := range listeners {
		if _, body := fetch(t, "GET", "http://"+l.Addr().String(), ""); body != fmt.Sprint(i) {
			t.Errorf("port %d has frontend %s", i, body)
		}
	}
}

// A WebSocket passes. Every other change of the protocol is a wish that nothing has to follow: the request is answered
// as without it.
func TestUpgrade(t *testing.T) {
	faults, _, _ := ParseFaults("status:503~path=/v1/*")
	e := before(t, Options{Faults: faults}, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			return
		}
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil || r.Header.Get("Upgrade") != "websocket" {
			t.Error(err, r.Header)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		line, _ := rw.ReadString('\n')
		_, _ = io.WriteString(conn, line)
	})
	for _, test := range []struct {
		path, upgrade, fault string
		status               int
	}{
		{"/realtime", "websocket", "", 101},
		{"/v1/realtime", "websocket", "", 503},
		{"/v1/completions", "h2c", "", 503},
		{"/other", "h2c", "", 200},
		{"/other", "h2c", "\r\nX-Fault: status:404", 400},
	} {
		t.Run(test.path+" "+test.upgrade+test.fault, func(t *testing.T) {
			conn, err := net.Dial("tcp", strings.TrimPrefix(e.url, "http://"))
			require.NoError(t, err)
			defer conn.Close()
			fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk\r\nUpgrade: %s%s\r\n\r\n", test.path, test.upgrade, test.fault)
			rd := bufio.NewReader(conn)
			answer, err := http.ReadResponse(rd, nil)
			if err != nil || answer.StatusCode != test.status {
				t.Fatal(answer, err)
			}
			if test.status == 101 {
				_, _ = io.WriteString(conn, "hello\n")
				if got, err := io.ReadAll(rd); err != nil || string(got) != "hello\n" {
					t.Errorf("got %q %v", got, err)
				}
			}
		})
	}
}

// Methods that no frontend has are not sent on.
func TestMethods(t *testing.T) {
	e := before(t, Options{}, func(http.ResponseWriter, *http.Request) { t.Error("the frontend gets it") })
	for _, request := range []string{"PRI /x", "CONNECT a:80", "CONNECT /v1/completions", "TRACE /", "BREW /pot", "get /"} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(e.url, "http://"))
		require.NoError(t, err)
		_, _ = io.WriteString(conn, request+" HTTP/1.1\r\nHost: a:80\r\nConnection: close\r\n\r\n")
		got, _ := io.ReadAll(conn)
		conn.Close()
		require.True(t, bytes.HasPrefix(got, []byte("HTTP/1.1 405 ")) || bytes.HasPrefix(got, []byte("HTTP/1.1 400 ")), "%s: %s", request, got)
	}
}

func TestBadFrontends(t *testing.T) {
	if _, err := New(Options{}); err == nil || !strings.Contains(err.Error(), "no frontend") {
		t.Error(err)
	}
	for _, url := range []string{"", "https://a", "http://a/b", "http://u@a", "http://a?b=c"} {
		if _, err := Proxy(url, nil); err == nil || !strings.Contains(err.Error(), "want http://HOST:PORT") {
			t.Errorf("%q: %v", url, err)
		}
	}
}
