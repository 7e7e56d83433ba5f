package edge

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// idleUpstream is for how long a connection to a frontend may be idle. The Python frontend closes one after 5 seconds; a
// request that is sent at that moment is lost.
const idleUpstream = 2 * time.Second

// maxIdle bounds the idle connections to a frontend.
const maxIdle = 4096

// A transport speaks HTTP/1.1 with one frontend. Unlike http.Transport it has no goroutines: the one that serves the client writes
// the request and reads the answer, which takes about half of the processor time. It follows no redirects, has no proxies, and
// changes nothing in an answer.
type transport struct {
	dial func(context.Context) (net.Conn, error)

	mu   sync.Mutex
	idle []*upstreamConn // the one that was used last at the end
}

type upstreamConn struct {
	net.Conn
	r     *bufio.Reader
	left  int       // bytes that may be read before the end of the head
	body  bool      // the head was read: nothing is counted
	since time.Time // when it became idle
}

// Read bounds the head of an answer.
func (c *upstreamConn) Read(p []byte) (int, error) {
	if c.body {
		return c.Conn.Read(p)
	}
	if c.left <= 0 {
		return 0, fmt.Errorf("the head of an answer has more than %d bytes", maxHeader)
	}
	n, err := c.Conn.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}

func newTransport(host string, dial func(context.Context) (net.Conn, error)) *transport {
	if dial == nil {
		dial = func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "tcp", host) }
	}
	return &transport{dial: dial}
}

// take returns an idle connection, or nil.
func (t *transport) take() *upstreamConn {
	t.mu.Lock()
	defer t.mu.Unlock()
	last := len(t.idle) - 1
	if last < 0 {
		return nil
	}
	c := t.idle[last]
	if time.Since(c.since) > idleUpstream { // and the others too
		for _, c := range t.idle {
			c.Close()
		}
		t.idle = nil
		return nil
	}
	t.idle[last], t.idle = nil, t.idle[:last]
	return c
}

func (t *transport) put(c *upstreamConn) {
	c.since = time.Now()
	t.mu.Lock()
	var old *upstreamConn
	if len(t.idle) < maxIdle {
		t.idle = append(t.idle, c)
	} else {
		old = c
	}
	if first := t.idle[0]; c.since.Sub(first.since) > idleUpstream { // one each time is enough
		old, t.idle = first, t.idle[1:]
	}
	t.mu.Unlock()
	if old != nil {
		old.Close()
	}
}

var errEarlyEnd = errors.New("the frontend closed the connection before it answered")

// RoundTrip sends a request and returns at the head of the answer. The end of the request's context closes the connection, so
// that the frontend knows at once.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx := r.Context()
	for c := t.take(); ; c = nil {
		reused := c != nil
		if c == nil {
			conn, err := t.dial(ctx)
			if err != nil {
				return nil, err
			}
			c = &upstreamConn{Conn: conn}
			c.r = bufio.NewReaderSize(c, 2<<10) // which a stream keeps; larger reads do not need it
		}
		stop := context.AfterFunc(ctx, func() { c.Close() })
		answer, err := c.roundTrip(r)
		if err == nil {
			return t.ending(answer, c, stop), nil
		}
		stop()
		c.Close()
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case reused && errors.Is(err, errEarlyEnd) && (r.GetBody != nil || r.Body == nil || r.Body == http.NoBody):
			// The frontend closed the connection while it was idle. Another one that was idle would fail in the same way.
			if r.GetBody != nil {
				r.Body, _ = r.GetBody() // never fails
			}
			continue
		}
		return nil, err
	}
}

var requests = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// maxJoined bounds a request that is written at once. It also bounds what is kept for the next one.
const maxJoined = 64 << 10

func (c *upstreamConn) roundTrip(r *http.Request) (*http.Response, error) {
	c.left, c.body = maxHeader, false
	to := &requestWriter{conn: c.Conn}
	from := &requestBody{ReadCloser: r.Body}
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = from
	}
	if err := to.write(r); err != nil && to.err == nil {
		if from.err != nil {
			err = from.err
		}
		return nil, err
	}
	// The frontend may have answered before it read everything.
	if _, err := c.r.Peek(1); err != nil {
		return nil, fmt.Errorf("%w: %w", errEarlyEnd, err)
	}
	for {
		answer, err := http.ReadResponse(c.r, r)
		if err != nil {
			return nil, fmt.Errorf("the frontend sent no HTTP: %w", err)
		}
		if answer.StatusCode >= 200 || answer.StatusCode == http.StatusSwitchingProtocols {
			c.body = true
			return answer, nil
		}
	}
}

// A requestBody keeps the error of a body: package http does not pass it on.
type requestBody struct {
	io.ReadCloser
	err error
}

func (b *requestBody) Read(p []byte) (n int, err error) {
	n, err = b.ReadCloser.Read(p)
	if err != io.EOF {
		b.err = err
	}
	return n, err
}

// A requestWriter knows whether the connection failed, or the body of the request.
type requestWriter struct {
	conn net.Conn
	err  error // of the connection
}

func (w *requestWriter) Write(p []byte) (n int, err error) {
	n, err = w.conn.Write(p)
	w.err = err
	return n, err
}

func (w *requestWriter) write(r *http.Request) error {
	if r.ContentLength < 0 || r.ContentLength > maxJoined {
		return r.Write(w)
	}
	b := requests.Get().(*bytes.Buffer)
	defer requests.Put(b)
	b.Reset()
	if err := r.Write(b); err != nil {
		return err
	}
	_, err := w.Write(b.Bytes())
	return err
}

// ending makes the end of an answer give its connection back.
func (t *transport) ending(answer *http.Response, c *upstreamConn, stop func() bool) *http.Response {
	body := &upstreamBody{transport: t, conn: c, stop: stop, rest: answer.Body, keep: !answer.Close, chunked: answer.ContentLength < 0 && !answer.Close}
	if answer.Body == http.NoBody {
		body.end()
		return answer
	}
	answer.Body = body
	return answer
}

// An upstreamBody is the body of an answer.
type upstreamBody struct {
	transport *transport
	conn      *upstreamConn // nil when it was given back
	stop      func() bool
	rest      io.Reader
	keep      bool
	chunked   bool
}

// await returns when a Read does not have to wait, so that a stream needs no buffer while nothing comes. The end of chunks is
// read together with it, so something always comes.
func (b *upstreamBody) await() {
	if b.conn != nil && b.chunked {
		_, _ = b.conn.r.Peek(1) // Read returns the error
	}
}

func (b *upstreamBody) Read(p []byte) (int, error) {
	if b.conn == nil {
		return 0, io.EOF
	}
	n, err := b.rest.Read(p)
	if err == io.EOF {
		b.end()
	}
	return n, err
}

func (b *upstreamBody) end() {
	c := b.conn
	b.conn = nil
	// What follows an answer belongs to no request.
	if b.stop() && b.keep && c.r.Buffered() == 0 {
		b.transport.put(c)
	} else {
		c.Close()
	}
}

// Close ends an answer, whole or not.
func (b *upstreamBody) Close() error {
	if b.conn == nil {
		return nil
	}
	b.stop()
	b.conn.Close()
	b.conn = nil
	return nil
}
