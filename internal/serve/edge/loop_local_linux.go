package edge

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// An answering is a request of a client that a frontend in this process answers. It has a goroutine of its own, which writes to the
// connection itself: a token does not have to wait for the loop. It is the [http.ResponseWriter] of that goroutine. A client has one,
// for one request after the other.
type answering struct {
	client *clientSide
	fd     int
	state  atomic.Int32
	// writable gets something when epoll says that the client takes more.
	writable chan struct{}
	// ctx ends when the client leaves. All requests of the connection have it.
	ctx    context.Context
	cancel context.CancelFunc

	// Of the goroutine.
	header http.Header
	status int
	begun  bool       // the head was written
	left   int64      // of a body with a length, in bytes; -1 of one in chunks
	out    *outBuffer // what is to be written; nil of nothing
	last   bool       // no more requests of the connection are answered
	failed error      // the connection is broken
	ended  time.Time  // when the answer was written
}

// Who has an answering. The goroutine gives it back to the loop without a call, as the loop has nothing to do before the next request.
const (
	rests   int32 = iota // no request is answered
	answers              // the goroutine has it
	calls                // likewise, and it calls the loop at the end: there is something to do
	leaves               // likewise, and it closes the connection: the loop has given it up
)

// An outBuffer is what goes to a client with one call.
type outBuffer struct{ b []byte }

var outBuffers = sync.Pool{New: func() any { return &outBuffer{make([]byte, 0, 4<<10)} }}

func (o *outBuffer) WriteString(s string) (int, error) { o.b = append(o.b, s...); return len(s), nil }

func (o *outBuffer) Write(p []byte) (int, error) { o.b = append(o.b, p...); return len(p), nil }

// answering is that of the client.
func (c *clientSide) answering() *answering {
	if c.local == nil {
		a := &answering{client: c, fd: c.fd, writable: make(chan struct{}, 1), header: http.Header{}}
		a.ctx, a.cancel = context.WithCancel(context.Background())
		c.local = a
	}
	return c.local
}

// serve lets the frontend of a rank answer a request.
func (c *clientSide) serve(to *rank, r *http.Request, body []byte) {
	a := c.answering()
	clear(a.header)
	a.status, a.begun, a.left = 0, false, 0
	state := answers
	if c.readable || len(c.in) > 0 {
		state = calls // the next request may be here
	}
	a.state.Store(state)
	go a.run(r, &exchange{rank: to, id: requestID(r), body: body})
}

// requestOf is a plain request as package http would have read it, without its body. head is what readPlain has written of it.
func requestOf(ctx context.Context, h plainHead, head []byte) *http.Request {
	first, rest, _ := strings.Cut(string(head), "\r\n")
	method, _, _ := strings.Cut(first, " ")
	var empty http.Request
	r := empty.WithContext(ctx)
	r.Method, r.URL, r.RequestURI, r.Proto, r.ProtoMajor, r.ProtoMinor = method, &url.URL{Path: h.path}, h.path, "HTTP/1.1", 1, 1
	r.Header, r.Body, r.ContentLength = make(http.Header, 8), http.NoBody, int64(h.length)
	values := make([]string, 0, strings.Count(rest, "\r\n")) // of all headers
	for line := range strings.SplitSeq(strings.TrimSuffix(rest, "\r\n"), "\r\n") {
		name, value, _ := strings.Cut(line, ": ")
		if name = http.CanonicalHeaderKey(name); name == "Host" {
			r.Host = value
			continue
		}
		if r.Header[name] == nil {
			values = append(values, value)
			r.Header[name] = values[len(values)-1 : len(values) : len(values)]
		} else {
			r.Header[name] = append(r.Header[name], value)
		}
	}
	if h.id != "" {
		r.Header[headerRequestID] = []string{h.id}
	}
	return r
}

// growStack makes room on the stack of a goroutine for what most requests need. Later, when much is on it, this takes longer.
//
//go:noinline
func growStack() byte {
	var room [5 << 10]byte
	return room[len(os.Args)&1]
}

func (a *answering) run(r *http.Request, x *exchange) {
	growStack()
	defer func() {
		if reason := recover(); reason != nil {
			if reason != http.ErrAbortHandler {
				a.client.loop.of.edge.log.Error("a request could not be answered", "path", r.URL.Path, "reason", reason, "stack", string(debug.Stack()))
			}
			a.failed = cmp.Or(a.failed, http.ErrAbortHandler)
		}
		a.finish()
		a.end()
	}()
	a.client.loop.of.edge.answer(a, r, x)
}

// end gives the connection back to the loop.
func (a *answering) end() {
	c := a.client
	a.ended = time.Now()
	if a.failed == nil && !a.last && a.state.CompareAndSwap(answers, rests) {
		// From here on it is the loop's. Who began to drain before has passed over it.
		if c.loop.of.draining.Load() {
			c.loop.do(c.closeIdle)
		}
		return
	}
	a.state.CompareAndSwap(answers, calls)
	if !c.loop.do(a.back) {
		a.rest()
	}
}

// back is called by the loop when the request was answered.
func (a *answering) back() {
	switch c := a.client; {
	case !a.rest():
	case a.failed != nil:
		c.close()
	default:
		c.last = a.last
		c.done()
	}
}

// rest reports whether the loop has the connection again. If it has given it up meanwhile, it is closed.
func (a *answering) rest() bool {
	if a.state.CompareAndSwap(calls, rests) {
		return true
	}
	unix.Close(a.fd)
	a.client.loop.of.gone()
	return false
}

// leave ends the work at a request whose client has left, and has the goroutine close the connection. It returns false if there is
// no such request.
func (a *answering) leave() bool {
	if a.state.Swap(leaves) == rests {
		return false
	}
	_ = unix.Shutdown(a.fd, unix.SHUT_RDWR) // so that an answer that was cut does not look whole
	a.cancel()
	return true
}

// busy reports whether a goroutine answers a request of the client.
func (c *clientSide) busy() bool { return c.local != nil && c.local.state.Load() != rests }

// tell tells the goroutine of a request what epoll says. It returns false if there is none.
func (c *clientSide) tell(events uint32) bool {
	if !c.busy() {
		return false
	}
	a := c.local
	if events&unix.EPOLLOUT != 0 {
		select {
		case a.writable <- struct{}{}:
		default:
		}
	}
	switch {
	case c.ended:
		c.close() // nobody reads the answer
	case c.readable:
		return a.state.CompareAndSwap(answers, calls) || c.busy()
	}
	return true
}

func (a *answering) Header() http.Header { return a.header }

func (a *answering) WriteHeader(status int) {
	if a.status == 0 && status >= 200 {
		a.status = status
	}
}

// httpDate is the value of the header Date in a second.
type httpDate struct {
	second int64
	text   string
}

var lastDate atomic.Pointer[httpDate]

func dateNow() string {
	now := time.Now()
	d := lastDate.Load()
	if d == nil || d.second != now.Unix() {
		d = &httpDate{now.Unix(), now.UTC().Format(http.TimeFormat)}
		lastDate.Store(d)
	}
	return d.text
}

// begin writes the head of the answer. body is the beginning of its body, whose end it is not if more follows.
func (a *answering) begin(body []byte, more bool) {
	a.begun, a.status = true, cmp.Or(a.status, http.StatusOK)
	a.out = outBuffers.Get().(*outBuffer)
	hasBody := a.status != http.StatusNoContent && a.status != http.StatusNotModified
	length, err := int64(-1), error(nil)
	if declared := a.header["Content-Length"]; len(declared) > 0 {
		if length, err = strconv.ParseInt(declared[0], 10, 64); err != nil || length < 0 {
			length = -1
		}
		delete(a.header, "Content-Length")
	}
	if length < 0 && !more {
		length = int64(len(body))
	}
	if len(body) > 0 && hasBody && a.header["Content-Type"] == nil {
		a.header["Content-Type"] = []string{http.DetectContentType(body)}
	}
	b := strconv.AppendInt(append(a.out.b[:0], "HTTP/1.1 "...), int64(a.status), 10)
	b = append(append(append(b, ' '), http.StatusText(a.status)...), "\r\n"...)
	b = append(append(append(b, "Date: "...), dateNow()...), "\r\n"...)
	a.out.b = b
	_ = a.header.Write(a.out) // cannot fail
	b = a.out.b
	switch a.left = length; {
	case !hasBody:
		a.left = 0
	case length >= 0:
		b = append(strconv.AppendInt(append(b, "Content-Length: "...), length, 10), "\r\n"...)
	default:
		b = append(b, "Transfer-Encoding: chunked\r\n"...)
	}
	if a.last = a.client.loop.of.draining.Load(); a.last {
		b = append(b, "Connection: close\r\n"...)
	}
	a.out.b = append(b, "\r\n"...)
}

func (a *answering) Write(p []byte) (int, error) {
	if !a.begun {
		a.begin(p, true)
	}
	if a.out == nil {
		a.out = outBuffers.Get().(*outBuffer)
		a.out.b = a.out.b[:0]
	}
	switch b := a.out.b; {
	case a.failed != nil:
		return 0, a.failed
	case len(p) == 0:
	case a.left < 0:
		b = append(strconv.AppendInt(b, int64(len(p)), 16), "\r\n"...)
		a.out.b = append(append(b, p...), "\r\n"...)
	case int64(len(p)) > a.left:
		return 0, http.ErrContentLength
	default:
		a.left -= int64(len(p))
		a.out.b = append(b, p...)
	}
	if len(a.out.b) >= loopBuffer {
		return len(p), a.send()
	}
	return len(p), nil
}

// FlushError writes what there is.
func (a *answering) FlushError() error {
	if !a.begun {
		a.begin(nil, true)
	}
	return a.send()
}

func (a *answering) Flush() { _ = a.FlushError() }

// finish writes the end of the answer.
func (a *answering) finish() {
	if a.failed == nil && !a.begun {
		a.begin(nil, false)
	}
	switch {
	case a.failed != nil:
	case a.left > 0:
		a.failed = io.ErrShortWrite // the client has to notice
	case a.left < 0:
		if a.out == nil {
			a.out = outBuffers.Get().(*outBuffer)
			a.out.b = a.out.b[:0]
		}
		a.out.b = append(a.out.b, "0\r\n\r\n"...)
	}
	_ = a.send()
}

var errLeft = errors.New("the client has left")

// send writes what is in out, and waits while the client takes no more.
func (a *answering) send() error {
	if a.out == nil {
		return a.failed
	}
	for rest := a.out.b; len(rest) > 0 && a.failed == nil; {
		n, err := unix.Write(a.fd, rest)
		switch {
		case err == nil:
			rest = rest[n:]
		case err == unix.EAGAIN:
			select {
			case <-a.writable:
			case <-a.ctx.Done():
				a.failed = errLeft
			}
		case err != unix.EINTR:
			a.failed = os.NewSyscallError("write", err)
		}
	}
	if cap(a.out.b) <= 2*loopBuffer {
		outBuffers.Put(a.out)
	}
	a.out = nil
	return a.failed
}
