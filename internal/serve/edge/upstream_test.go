package edge

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// A raw frontend answers each connection with texts, one for each request, and then closes it.
func rawFrontend(t *testing.T, answers ...[]string) (dial func(context.Context) (net.Conn, error), dials *int) {
	t.Helper()
	dials = new(int)
	return func(context.Context) (net.Conn, error) {
		if *dials >= len(answers) {
			return nil, errors.New("no more connections")
		}
		texts := answers[*dials]
		*dials++
		ours, theirs := net.Pipe()
		go func() {
			defer theirs.Close()
			r := bufio.NewReader(theirs)
			for _, text := range texts {
				request, err := http.ReadRequest(r)
				if err != nil {
					return
				}
				_, _ = io.Copy(io.Discard, request.Body)
				_, _ = io.WriteString(theirs, text)
			}
		}()
		return ours, nil
	}, dials
}

func TestTransport(t *testing.T) {
	const (
		ok       = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
		chunked  = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
		trailing = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n2\r\nok\r\n0\r\nX-T: 1\r\n\r\n"
	)
	for _, test := range []struct {
		name    string
		answers [][]string
		want    []string // of each request
		dials   int
	}{
		{"kept", [][]string{{ok, ok, chunked, chunked}}, []string{"200 ok", "200 ok", "200 ok", "200 ok"}, 1},
		{"trailer", [][]string{{trailing, ok}}, []string{"200 ok 1", "200 ok"}, 1},
		{"no body", [][]string{{"HTTP/1.1 204 No Content\r\n\r\n", ok}}, []string{"204 ", "200 ok"}, 1},
		{"early hints", [][]string{{"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n" + ok}}, []string{"200 ok"}, 1},
		{"closed while idle", [][]string{{ok}, {ok}}, []string{"200 ok", "200 ok"}, 2},
		{"asked to close", [][]string{{"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"}, {ok}}, []string{"200 ok", "200 ok"}, 2},
		{"ends with its connection", [][]string{{"HTTP/1.1 200 OK\r\n\r\nok"}, {ok}}, []string{"200 ok", "200 ok"}, 2},
		{"more than the answer", [][]string{{ok + "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad", ok}, {ok}}, []string{"200 ok", "200 ok"}, 2},
		{"cut", [][]string{{"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok"}, {ok}}, []string{"200 ok unexpected EOF", "200 ok"}, 2},
		{"no answer", [][]string{{""}, {ok}}, []string{"the frontend closed the connection before it answered: EOF", "200 ok"}, 2},
		{"no HTTP", [][]string{{"SSH-2.0\r\n"}}, []string{"the frontend sent no HTTP"}, 1},
		{"large head", [][]string{{"HTTP/1.1 200 OK\r\nX-A: " + strings.Repeat("a", maxHeader) + "\r\n\r\n"}}, []string{"the head of an answer has more than 65536 bytes"}, 1},
		{"head beside a large body", [][]string{{fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", 2*maxHeader, strings.Repeat("a", 2*maxHeader))}}, []string{"200 aaa"}, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			dial, dials := rawFrontend(t, test.answers...)
			transport := newTransport("", dial)
			for i, want := range test.want {
				r, _ := http.NewRequestWithContext(t.Context(), "POST", "http://a/", strings.NewReader("body"))
				got := ""
				if answer, err := transport.RoundTrip(r); err != nil {
					got = err.Error()
				} else {
					body, err := io.ReadAll(answer.Body)
					got = strings.TrimSpace(fmt.Sprint(answer.StatusCode, " ", string(body), " ", answer.Trailer.Get("X-T")))
					if len(body) == 0 {
						got += " "
					}
					if err != nil {
						got += " " + err.Error()
					}
					answer.Body.Close()
				}
				if !strings.Contains(got, want) || len(want) < 10 && len(got) > len(want) && !strings.HasPrefix(got, "200 aaa") {
					t.Errorf("request %d: got %.200q, want %q", i, got, want)
				}
			}
			if *dials != test.dials {
				t.Errorf("%d connections, want %d", *dials, test.dials)
			}
		})
	}
}

// A connection that was idle for too long is not used: the frontend may be about to close it.
func TestTransportIdle(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
	dial, dials := rawFrontend(t, []string{ok, ok}, []string{ok})
	transport := newTransport("", dial)
	for range 2 {
		r, _ := http.NewRequestWithContext(t.Context(), "GET", "http://a/", nil)
		answer, err := transport.RoundTrip(r)
		require.NoError(t, err)
		if _, err := io.ReadAll(answer.Body); err != nil {
			t.Fatal(err)
		}
		if len(transport.idle) != 1 {
			t.Fatalf("%d idle connections", len(transport.idle))
		}
		transport.idle[0].since = time.Now().Add(-2 * idleUpstream)
	}
	if *dials != 2 {
		t.Errorf("%d connections, want 2", *dials)
	}
}
