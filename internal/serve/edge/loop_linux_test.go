package edge

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// given is how many connections the loops of an edge gave to package http.
func (r *running) given() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.servers[0].forwards.(*loops).given.Load()
}

// unwritten is how much waits for clients that read slowly, in bytes.
func (r *running) unwritten() (n int) {
	r.mu.Lock()
	all := r.servers[0].forwards.(*loops)
	r.mu.Unlock()
	counted := make(chan int, len(all.all))
	all.each(func(l *loop) {
		waits := 0
		for _, s := range l.socks {
			if c, ok := s.(*clientSide); ok {
				waits += len(c.out)
			}
		}
		counted <- waits
	})
	for range all.all {
		n += <-counted
	}
	return n
}

// dial connects to an edge.
func (r *running) dial(t *testing.T) (net.Conn, *bufio.Reader) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn, bufio.NewReader(conn)
}

// next reads the next answer.
func next(t *testing.T, from *bufio.Reader) string {
	t.Helper()
	answer, err := http.ReadResponse(from, nil)
	require.NoError(t, err)
	body, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	if answer.Header.Get(headerRequestID) == "" || answer.Header.Get("Connection") == "keep-alive" {
		t.Errorf("headers: %v", answer.Header)
	}
	return fmt.Sprint(answer.StatusCode, " ", string(body))
}

// everywhere runs a test with the toy in another process, as far as an edge can tell, and in this one.
func everywhere(t *testing.T, name string, opt Options, run func(t *testing.T, start func(http.HandlerFunc) *running)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		run(t, func(handle http.HandlerFunc) *running { return before(t, opt, handle) })
	})
	t.Run(name+" in this process", func(t *testing.T) {
		run(t, func(handle http.HandlerFunc) *running {
			opt.Upstreams = []Upstream{{Local: handle}}
			return start(t, opt)
		})
	})
}

// Plain requests are forwarded by a loop. The others of the same connection are answered too, by package http.
func TestLoopForwards(t *testing.T) {
	const (
		health = "GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
		chat   = "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"
		chunks = "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
		close  = "GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
		many   = "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 7\r\n\r\n{\"n\":2}"
	)
	large := strings.Repeat("x", 2*maxPlainBody)
	post := "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: "
	for _, test := range []struct {
		name  string
		sent  []string // before each answer
		want  []string
		given int64 // -1 where that depends on how the text arrives
	}{
		{"one after the other", []string{health, chat, health}, []string{"200 GET ", "200 POST hello", "200 GET "}, 0},
		{"all at once", []string{chat + health + chat, "", ""}, []string{"200 POST hello", "200 GET ", "200 POST hello"}, 0},
		{"in parts", []string{chat[:20], "", chat[20:]}, []string{"", "", "200 POST hello"}, 0},
		{"the body later", []string{chat[:len(chat)-5], chat[len(chat)-5:] + health[:10], health[10:]}, []string{"", "200 POST hello", "200 GET "}, 0},
		{"a large body", []string{post + fmt.Sprint(len(large)) + "\r\n\r\n" + large, health}, []string{"200 POST " + large, "200 GET "}, 1},
		{"bytes", strings.Split(chat, ""), append(make([]string, len(chat)-1), "200 POST hello"), -1},
		{"chunks", []string{health, chunks, health}, []string{"200 GET ", "200 POST hello", "200 GET "}, 1},
		{"chunks behind", []string{health + chunks + health, "", ""}, []string{"200 GET ", "200 POST hello", "200 GET "}, 1},
		{"another path", []string{"GET /else HTTP/1.1\r\nHost: a\r\n\r\n", health}, []string{"200 GET ", "200 GET "}, 1},
		{"the last one", []string{close}, []string{"200 GET "}, 1},
		{"100-continue", []string{strings.Replace(chat, "\r\n\r\n", "\r\nExpect: 100-continue\r\n\r\n", 1), ""}, []string{"100 ", "200 POST hello"}, 1},
		{"a bad one", []string{strings.Replace(chat, "5", "-5", 1)}, []string{"400 "}, 1},
		{"several answers", []string{many}, []string{"400 "}, 1},
	} {
		everywhere(t, test.name, Options{FanOut: true}, func(t *testing.T, start func(http.HandlerFunc) *running) {
			e := start(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				switch {
				case r.Host != "a" || r.Header.Get(headerRequestID) == "" || strings.Contains(string(body), "{"):
					w.WriteHeader(http.StatusBadRequest)
				default:
					if len(body)%2 == 0 {
						flush(w) // in chunks
					}
					fmt.Fprintf(w, "%s %s", r.Method, body)
				}
			})
			conn, from := e.dial(t)
			for i, text := range test.sent {
				if _, err := io.WriteString(conn, text); err != nil {
					t.Fatal(err)
				}
				if test.want[i] == "" {
					continue
				}
				var got string
				if strings.HasPrefix(test.want[i], "4") || strings.HasPrefix(test.want[i], "1") {
					answer, err := http.ReadResponse(from, nil)
					require.NoError(t, err)
					got = fmt.Sprint(answer.StatusCode, " ")
				} else {
					got = next(t, from)
				}
				if got != test.want[i] {
					t.Fatalf("answer %d is %.80q, want %.80q", i, got, test.want[i])
				}
			}
			want := test.given
			if test.sent[0] == many && e.ranks[0].local != nil {
				want = 0 // such a frontend takes it as it is
			}
			if got := e.given(); want >= 0 && got != want {
				t.Errorf("package http got %d connections, want %d", got, want)
			}
		})
	}
}

// Requests of a connection that was forwarded get the faults that are switched on later.
func TestLoopThenFaults(t *testing.T) { everywhere(t, "frontend", Options{}, testLoopThenFaults) }

func testLoopThenFaults(t *testing.T, start func(http.HandlerFunc) *running) {
	e := start(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	conn, from := e.dial(t)
	const text = "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"
	_, _ = io.WriteString(conn, text)
	if got := next(t, from); got != "200 ok" {
		t.Error(got)
	}
	require.NoError(t, e.configure([]byte(`{"faults": "status:418"}`)))
	_, _ = io.WriteString(conn, text)
	if got := next(t, from); !strings.HasPrefix(got, "418 ") {
		t.Error(got)
	}
}

// scripted is a frontend that answers its connections with these texts, each after a request, and then closes them.
func scripted(t *testing.T, answers ...[]string) Upstream {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for _, texts := range answers {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			from := bufio.NewReader(conn)
			for _, text := range texts {
				request, err := http.ReadRequest(from)
				if err != nil {
					break
				}
				_, _ = io.Copy(io.Discard, request.Body)
				_, _ = io.WriteString(conn, text)
			}
			conn.Close()
		}
	}()
	return Upstream{URL: "http://" + l.Addr().String()}
}

// What frontends may do with their connections.
func TestLoopOfFrontend(t *testing.T) {
	const (
		ok       = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
		health   = "GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
		chunked  = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
		tooShort = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok"
	)
	for _, test := range []struct {
		name    string
		answers [][]string
		want    []string // of each request; "" is an answer that is cut
	}{
		{"kept", [][]string{{ok, ok}}, []string{"200 ok", "200 ok"}},
		{"closed after each", [][]string{{ok}, {ok}}, []string{"200 ok", "200 ok"}},
		{"closed instead of an answer", [][]string{{ok, ""}, {ok}}, []string{"200 ok", "200 ok"}},
		{"asked to close", [][]string{{"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"}, {ok}}, []string{"200 ok", "200 ok"}},
		{"up to the end", [][]string{{"HTTP/1.1 200 OK\r\n\r\nall of it"}}, []string{"200 all of it"}},
		{"interim", [][]string{{"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n" + ok, ok}}, []string{"200 ok", "200 ok"}},
		{"no body", [][]string{{"HTTP/1.1 204 No Content\r\n\r\n", ok}}, []string{"204 ", "200 ok"}},
		{"trailer", [][]string{{chunked + "2;a=b\r\nok\r\n0\r\nX-T: 1\r\n\r\n", ok}}, []string{"200 ok", "200 ok"}},
		{"more than asked for", [][]string{{ok + ok, strings.Replace(ok, "\nok", "\nno", 1)}, {ok}}, []string{"200 ok", "200 ok"}},
		{"nothing", [][]string{{""}}, []string{"502 "}},
		{"half of a head", [][]string{{"HTTP/1.1 200"}}, []string{"502 "}},
		{"no HTTP", [][]string{{"SSH-2.0\r\n\r\n"}}, []string{"502 "}},
		{"two lengths", [][]string{{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"}}, []string{"502 "}},
		{"too short", [][]string{{tooShort}}, []string{""}},
		{"half of the chunks", [][]string{{chunked + "2\r\nok\r\n"}}, []string{""}},
		{"no chunks", [][]string{{chunked + "hello"}}, []string{""}},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := start(t, Options{Upstreams: []Upstream{scripted(t, test.answers...)}})
			conn, from := e.dial(t)
			for i, want := range test.want {
				_, _ = io.WriteString(conn, health)
				answer, err := http.ReadResponse(from, nil)
				var body []byte
				if err == nil {
					body, err = io.ReadAll(answer.Body)
				}
				if (err != nil) != (want == "") {
					t.Fatalf("answer %d: %q, %v", i, body, err)
				}
				if err == nil && !strings.HasPrefix(fmt.Sprint(answer.StatusCode, " ", string(body)), want) {
					t.Errorf("answer %d: %d %s, want %s", i, answer.StatusCode, body, want)
				}
			}
		})
	}
}

// A client that reads slowly gets all of a large answer, and the frontend is not read faster.
func TestLoopWaitsForClient(t *testing.T) {
	everywhere(t, "frontend", Options{}, testLoopWaitsForClient)
}

func testLoopWaitsForClient(t *testing.T, start func(http.HandlerFunc) *running) {
	const size = 16 << 20
	e := start(func(w http.ResponseWriter, _ *http.Request) {
		for i := range size >> 16 {
			_, _ = w.Write(bytes.Repeat([]byte{byte(i)}, 1<<16))
		}
	})
	conn, from := e.dial(t)
	for range 2 {
		_, _ = io.WriteString(conn, "GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n")
		answer, err := http.ReadResponse(from, nil)
		require.NoError(t, err)
		part := make([]byte, 1<<10)
		for at := 0; at < size; at += len(part) {
			if at%(1<<20) == 0 {
				if waits := e.unwritten(); waits > 2*loopBuffer {
					t.Fatalf("at %d, %d bytes wait in the edge", at, waits)
				}
			}
			if _, err := io.ReadFull(answer.Body, part); err != nil || part[0] != byte(at>>16) || part[len(part)-1] != byte(at>>16) {
				t.Fatalf("at %d: %d %v", at, part[0], err)
			}
		}
		if n, err := answer.Body.Read(part); n != 0 || err != io.EOF {
			t.Fatalf("at the end: %d bytes, %v", n, err)
		}
	}
	if e.given() != 0 {
		t.Error("package http got the connection")
	}
}

// A stream that waits takes little memory. Package http takes 34 KB for it.
func TestLoopMemory(t *testing.T) {
	const streams = 500
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	e := start(t, Options{Upstreams: []Upstream{{URL: "http://" + l.Addr().String()}}})
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	buffer := make([]byte, 4<<10)
	open := func() {
		client, err := net.Dial("tcp", strings.TrimPrefix(e.url, "http://"))
		require.NoError(t, err)
		_, _ = io.WriteString(client, "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody")
		frontend, err := l.Accept()
		require.NoError(t, err)
		for n := 0; !bytes.HasSuffix(buffer[:n], []byte("body")); {
			more, err := frontend.Read(buffer[n:])
			require.NoError(t, err)
			n += more
		}
		_, _ = io.WriteString(frontend, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
		for n := 0; !bytes.HasSuffix(buffer[:n], []byte("hello\r\n")); {
			more, err := client.Read(buffer[n:])
			require.NoError(t, err)
			n += more
		}
		conns = append(conns, client, frontend)
	}
	open()
	inUse := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	first := inUse()
	for range streams {
		open()
	}
	// Of this, about 700 bytes are those of the two connections of this test.
	if each := (int64(inUse()) - int64(first)) / streams; each > 4<<10 {
		t.Errorf("a stream takes %d bytes", each)
	} else {
		t.Logf("a stream takes %d bytes", each)
	}
	now, cancel := context.WithCancel(t.Context())
	cancel()
	_ = e.Shutdown(now)
}

// What a frontend in this process may do with a request, and what its client gets. Behind each answer the connection is used again,
// unless it was cut.
func TestLoopAnswers(t *testing.T) {
	long := strings.Repeat("x", 3*loopBuffer)
	for _, test := range []struct {
		name   string
		handle http.HandlerFunc
		want   string // status, kind of the framing, and body; "" is an answer that is cut
	}{
		{"nothing", func(http.ResponseWriter, *http.Request) {}, "200 [] 0 "},
		{"a status", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }, "418 [] 0 "},
		{"the first status", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusTeapot)
			w.WriteHeader(http.StatusOK)
		}, "418 [] 0 "},
		{"no content", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }, "204 [] 0 "},
		{"a length", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "4")
			_, _ = io.WriteString(w, "he")
			_, _ = io.WriteString(w, "re")
		}, "200 [] 4 here"},
		{"a long text", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(len(long)))
			_, _ = io.WriteString(w, long)
		}, fmt.Sprintf("200 [] %d %s", len(long), long)},
		{"chunks", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "he")
			flush(w)
			_, _ = io.WriteString(w, "")
			_, _ = io.WriteString(w, "re")
		}, "200 [chunked] -1 here"},
		{"long chunks", func(w http.ResponseWriter, _ *http.Request) {
			flush(w)
			_, _ = io.WriteString(w, long)
			_, _ = io.WriteString(w, "!")
		}, "200 [chunked] -1 " + long + "!"},
		{"more than said", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "2")
			_, _ = io.WriteString(w, "he")
			if _, err := io.WriteString(w, "re"); err == nil {
				panic("it was written")
			}
		}, "200 [] 2 he"},
		{"less than said", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "9")
			_, _ = io.WriteString(w, "here")
		}, ""},
		{"given up", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "he")
			flush(w)
			panic(http.ErrAbortHandler)
		}, ""},
		{"a panic", func(http.ResponseWriter, *http.Request) { panic("a test") }, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := start(t, Options{Upstreams: []Upstream{{Local: test.handle}}})
			conn, from := e.dial(t)
			for range 2 {
				_, _ = io.WriteString(conn, "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}")
				answer, err := http.ReadResponse(from, nil)
				var body []byte
				if err == nil {
					body, err = io.ReadAll(answer.Body)
				}
				switch {
				case test.want == "" && err == nil:
					t.Fatalf("got all of %q", body)
				case test.want == "":
					return
				case err != nil:
					t.Fatal(err)
				}
				if got := fmt.Sprint(answer.StatusCode, " ", answer.TransferEncoding, " ", answer.ContentLength, " ", string(body)); got != test.want {
					t.Errorf("got %.200q, want %.200q", got, test.want)
				}
				if answer.Header.Get("Date") == "" || answer.Header.Get(headerRequestID) == "" {
					t.Errorf("headers: %v", answer.Header)
				}
			}
			if e.given() != 0 {
				t.Error("package http got the connection")
			}
		})
	}
}

// A client that leaves ends its request, also one that waits for the client to read, and its descriptor is closed.
func TestLoopClientLeaves(t *testing.T) {
	for _, writes := range []bool{false, true} {
		t.Run(fmt.Sprintf("writes=%t", writes), func(t *testing.T) {
			ended := make(chan error, 1)
			e := start(t, Options{Upstreams: []Upstream{{Local: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				flush(w)
				for err := error(nil); writes && err == nil; {
					_, err = w.Write(make([]byte, loopBuffer))
				}
				<-r.Context().Done()
				ended <- r.Context().Err()
			})}}})
			conn, from := e.dial(t)
			_, _ = io.WriteString(conn, "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}")
			if _, err := http.ReadResponse(from, nil); err != nil {
				t.Fatal(err)
			}
			conn.Close()
			if err := <-ended; err == nil {
				t.Error("the context of the request has not ended")
			}
			if err := e.Shutdown(t.Context()); err != nil { // it waits for all connections
				t.Error(err)
			}
		})
	}
}
