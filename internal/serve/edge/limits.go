package edge

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Limits are those of the bodies of requests. The zero value of each is its default.
type Limits struct {
	// Body is the maximum size of one body in bytes (64 MiB). A longer one gets status 413.
	Body int64
	// Bodies is the maximum size of all bodies together that are being read or answered, in bytes (256 MiB). A request
	// beyond it gets status 503.
	Bodies int64
	// Head is the time that the head of a request may take (30 s). A body may take this time, and one second more for
	// each Rate bytes (16 KiB). A slower one gets status 408.
	Head time.Duration
	Rate int64
}

func (l Limits) withDefaults() Limits {
	return Limits{
		Body: cmp.Or(l.Body, 64<<20), Bodies: cmp.Or(l.Bodies, max(256<<20, 4*l.Body)), Head: cmp.Or(l.Head, 30*time.Second), Rate: cmp.Or(l.Rate, 16<<10),
	}
}

// bodies counts what the bodies of all requests hold.
type bodies struct {
	limits Limits
	held   atomic.Int64
}

var (
	errTooMany = errors.New("the bodies of other requests take all the memory that there is for them")
	errTooLong = errors.New("the answer is too long")
)

// A limitedBody is the body of a request as its client sends it.
type limitedBody struct {
	io.ReadCloser
	all        *bodies
	controller *http.ResponseController
	end        time.Time // of the time that it may take, for what has come

	mu       sync.Mutex
	held     int64
	released bool
}

func (b *limitedBody) Read(p []byte) (int, error) {
	if err := b.controller.SetReadDeadline(b.end); err != nil {
		return 0, err
	}
	n, err := b.ReadCloser.Read(p)
	if !b.end.IsZero() {
		b.end = b.end.Add(time.Duration(n) * time.Second / time.Duration(b.all.limits.Rate))
	}
	if err != nil {
		_ = b.controller.SetReadDeadline(time.Time{}) // the server reads on, to notice when the client leaves
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.released {
		return n, err
	}
	b.held += int64(n)
	if b.all.held.Add(int64(n)) > b.all.limits.Bodies {
		return n, errTooMany
	}
	return n, err
}

// release gives back what the body holds.
func (b *limitedBody) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all.held.Add(-b.held)
	b.held, b.released = 0, true
}

// A storedBody is a body that was read. It keeps nothing of what is read of it.
type storedBody struct {
	mu   sync.Mutex // a transport reads while an answer begins
	rest []byte
}

func (b *storedBody) Read(p []byte) (n int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n = copy(p, b.rest); n < len(b.rest) {
		b.rest = b.rest[n:]
		return n, nil
	}
	b.rest = nil
	return n, io.EOF
}

func (b *storedBody) Close() error { return nil }

func (b *storedBody) empty() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.rest == nil
}

// readBody reads the bodies of requests within the limits, before any other work. A call of gRPC reads its own.
func (e *Edge) readBody(next http.Handler) http.Handler {
	limits := e.bodies.limits
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body == nil || r.Body == http.NoBody || isWebSocket(r) {
			next.ServeHTTP(w, r)
			return
		}
		x := exchangeOf(r)
		body := &limitedBody{
			ReadCloser: http.MaxBytesReader(w, r.Body, limits.Body), all: &e.bodies, controller: http.NewResponseController(w),
			end: time.Now().Add(limits.Head),
		}
		defer body.release()
		if isCall(r) {
			body.end = time.Time{} // a stream of messages may have pauses
			r.Body = body
			next.ServeHTTP(w, r)
			return
		}
		if r.ContentLength > limits.Body {
			refuseBody(w, r, &http.MaxBytesError{Limit: limits.Body})
			return
		}
		var text bytes.Buffer
		text.Grow(int(min(max(r.ContentLength, 0), 64<<10)) + bytes.MinRead)
		if _, err := text.ReadFrom(body); err != nil {
			refuseBody(w, r, err)
			return
		}
		x.body, x.size = text.Bytes(), text.Len()
		if isGeneration(r) && strings.HasPrefix(cmp.Or(r.Header.Get("Content-Type"), "application/json"), "application/json") {
			if e.reads() || bytes.Contains(x.body, []byte(`"request_id"`)) {
				x.ask()
			}
			if !x.given && validID(x.asked.id) {
				x.id = x.asked.id // a header of ours would count more than the body
				e.setID(r, x)
			}
		}
		stored := &storedBody{rest: x.body}
		r.Body, r.ContentLength, r.TransferEncoding = stored, int64(len(x.body)), nil
		r.GetBody = func() (io.ReadCloser, error) { return &storedBody{rest: x.body}, nil }
		x.release = func() {
			if stored.empty() {
				x.body = nil
				body.release()
			}
		}
		next.ServeHTTP(w, r)
	})
}

func refuseBody(w http.ResponseWriter, r *http.Request, err error) {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		apiError{status: http.StatusRequestEntityTooLarge, message: "the body of the request has more than " +
			strconv.FormatInt(tooLarge.Limit, 10) + " bytes"}.write(w)
	case errors.Is(err, errTooMany):
		apiError{status: http.StatusServiceUnavailable, message: err.Error(), retryAfter: time.Second}.write(w)
	case errors.Is(err, os.ErrDeadlineExceeded):
		w.Header().Set("Connection", "close")
		apiError{status: http.StatusRequestTimeout, message: "the body of the request comes too slowly"}.write(w)
	case r.Context().Err() != nil || errors.Is(err, io.ErrUnexpectedEOF):
		panic(http.ErrAbortHandler) // the client has left
	default:
		apiError{status: http.StatusBadRequest, message: "the body of the request cannot be read: " + err.Error()}.write(w)
	}
}
