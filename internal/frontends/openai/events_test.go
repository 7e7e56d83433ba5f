package openai

import (
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestEvents(t *testing.T) {
	tests := []struct {
		name, text string
		want       []string
	}{
		{name: "none"},
		{name: "one", text: "data: a\n\n", want: []string{"a"}},
		{name: "CR LF", text: "data: a\r\n\r\ndata: b\r\n\r\n", want: []string{"a", "b"}},
		{name: "lines of one event", text: "data: a\ndata: b\ndata\n\n", want: []string{"a\nb\n"}},
		{name: "one space is cut", text: "data:  a \n\ndata:b\n\n", want: []string{" a ", "b"}},
		{name: "colons in the data", text: "data: a:b: c\n\n", want: []string{"a:b: c"}},
		{name: "empty data", text: "data\n\ndata:\n\n", want: []string{"", ""}},
		{name: "comments and other fields", text: ": a\nevent: b\nid: 1\n\nretry: 5\ndata: c\nDATA: d\n\n", want: []string{"c"}},
		{name: "cut off", text: "data: a\n\ndata: b\n", want: []string{"a"}},
		{name: "cut off in a line", text: "data: a\n\ndata: b", want: []string{"a"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var got []string
			events := NewEvents(strings.NewReader(test.text))
			for {
				data, err := events.Next()
				if err != nil {
					if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
						t.Error(err)
					}
					break
				}
				got = append(got, string(data))
			}
			require.True(t, slices.Equal(got, test.want), "got %q, want %q", got, test.want)
		})
	}
}

func TestLongLinesAreNoError(t *testing.T) {
	const n = 1 << 20
	ids := strings.TrimSuffix(strings.Repeat("12345,", n), ",")
	body := `data: {"choices":[{"index":0,"token_ids":[` + ids + `],"finish_reason":"stop"}]}` + "\n\n" + usageEvent + done
	got, err := serve(t, http.StatusOK, body).Complete(t.Context(), Request{Prompt: []uint32{5}, Stream: true})
	require.True(t, err == nil && len(got.Tokens) == n, "got %d tokens, %v; want %d in one line of %d bytes", len(got.Tokens), err, n, len(body))
}

func next(r io.Reader) ([]byte, error) { return NewEvents(r).Next() }

// endless is a body that goes on for ever without a line end.
type endless struct{ start string }

func (e *endless) Read(p []byte) (int, error) {
	n := copy(p, e.start)
	e.start = e.start[n:]
	for i := n; i < len(p); i++ {
		p[i] = '1'
	}
	return len(p), nil
}

func TestEndlessBodiesEnd(t *testing.T) {
	tests := []struct {
		name string
		read func(io.Reader) ([]byte, error)
		body io.Reader
	}{
		{name: "answer", read: ReadAll, body: &endless{}},
		{name: "line", read: next, body: &endless{start: "data: "}},
		{name: "event", read: next, body: &lines{}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if _, err := test.read(test.body); err == nil || !strings.Contains(err.Error(), "longer than 67108864 bytes") {
				t.Errorf("got %v", err)
			}
		})
	}
}

// lines is an event of endless lines.
type lines struct{}

func (lines) Read(p []byte) (int, error) {
	const line = "data: 11111111111111111111111111111111111111111111111111111111111\n"
	n := 0
	for n+len(line) <= len(p) {
		n += copy(p[n:], line)
	}
	return n, nil
}

// stubConn takes and answers anything.
type stubConn struct {
	net.Conn
	written int
}

func (c *stubConn) Read(p []byte) (int, error) { return len(p), nil }

func (c *stubConn) Write(p []byte) (int, error) {
	c.written += len(p)
	return len(p), nil
}

// A connection that was idle for too long takes no byte of a new request, which package http then sends on another one;
// a request of several parts is not cut, however long they take.
func TestFreshConn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stub := &stubConn{}
		conn := &freshConn{Conn: stub}
		for _, step := range []struct {
			pause   time.Duration // before
			read    bool          // the answer, after
			written int
			err     error
		}{
			{idleTimeout + 1, false, 1, nil},
			{idleTimeout + 1, true, 2, nil},
			{idleTimeout, true, 3, nil},
			{idleTimeout + 1, true, 3, errIdle},
		} {
			time.Sleep(step.pause)
			if _, err := conn.Write([]byte("x")); !errors.Is(err, step.err) || stub.written != step.written {
				t.Errorf("%v: %v, %d bytes written, want %v, %d", step.pause, err, stub.written, step.err, step.written)
			}
			if step.read {
				_, _ = conn.Read(nil)
			}
		}
	})
}
