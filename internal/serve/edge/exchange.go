package edge

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"
)

const headerRequestID = "X-Request-Id"

// An exchange is a request and its answer, as the middlewares know them. It writes the answer.
type exchange struct {
	wrapper
	id      string
	given   bool   // the client has given an id in a header
	body    []byte // nil of a request without one, of a call of gRPC, and once the frontend has read it and answers
	size    int    // of the body in bytes
	release func() // gives back the memory of the body, if the frontend has read it; nil without a body
	asked   asked
	begun   bool    // the answer
	record  *Record // nil without a log
	tail    []byte  // the last of the answer, for the log
}

func (x *exchange) WriteHeader(status int) {
	if status >= http.StatusOK && !x.begun {
		x.begun = true
		if x.release != nil {
			x.release()
		}
		if x.record != nil {
			x.record.Status, x.record.FirstByteMS = status, milliseconds(time.Since(x.record.Time))
		}
	}
	x.ResponseWriter.WriteHeader(status)
}

func (x *exchange) Write(p []byte) (int, error) {
	if !x.begun {
		x.WriteHeader(http.StatusOK)
	}
	if x.record != nil {
		x.record.BytesOut += int64(len(p))
		x.record.Events += bytes.Count(p, []byte("\n\n"))
		x.tail = append(x.tail, p[max(0, len(p)-tailSize):]...)
		if extra := len(x.tail) - tailSize; extra > 0 {
			x.tail = append(x.tail[:0], x.tail[extra:]...)
		}
	}
	return x.ResponseWriter.Write(p)
}

// Flush implements [http.Flusher].
func (x *exchange) Flush() { _ = x.FlushError() }

// FlushError is for [http.ResponseController]. It sends the head, if that is not sent yet.
func (x *exchange) FlushError() error {
	if !x.begun {
		x.WriteHeader(http.StatusOK)
	}
	return x.wrapper.FlushError()
}

// Hijack is for WebSockets.
func (x *exchange) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	x.begun = true
	return http.NewResponseController(x.ResponseWriter).Hijack()
}

type exchangeKey struct{}

func exchangeOf(r *http.Request) *exchange { return r.Context().Value(exchangeKey{}).(*exchange) }

// asked is what the middlewares read of a body. A member of another type has its zero value: the frontend refuses the
// request.
type asked struct {
	model  string
	stream bool
	id     string
	// members are all of the body, by their exact names.
	members map[string]json.RawMessage
}

// ask decodes the body, once.
func (x *exchange) ask() *asked {
	a := &x.asked
	if a.members == nil && json.Unmarshal(x.body, &a.members) == nil {
		_ = json.Unmarshal(a.members["model"], &a.model)
		_ = json.Unmarshal(a.members["stream"], &a.stream)
		_ = json.Unmarshal(a.members["request_id"], &a.id)
	}
	return a
}

func newID() string {
	var b [16]byte // an id is not a secret
	binary.LittleEndian.PutUint64(b[:], rand.Uint64())
	binary.LittleEndian.PutUint64(b[8:], rand.Uint64())
	return hex.EncodeToString(b[:])
}

// validID reports whether an id can be logged and sent on.
func validID(id string) bool {
	return id != "" && len(id) <= 128 && !strings.ContainsFunc(id, func(c rune) bool { return c <= ' ' || c >= 0x7f })
}

// isWebSocket reports whether a request asks for a change of the protocol that is passed on.
func isWebSocket(r *http.Request) bool {
	return r.ProtoMajor == 1 && strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
}

// methods are those that are passed on to a frontend.
var methods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}

// identify gives a request its id, and refuses methods that no frontend has. It is the outermost middleware.
func (e *Edge) identify(rank int, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := &exchange{wrapper: wrapper{w}, id: r.Header.Get(headerRequestID), given: true}
		if !validID(x.id) {
			x.given = r.Header.Get(headerRequestID) != ""
			if x.id = newID(); e.opt.Policy.NewID != nil && r.Method == http.MethodPost {
				x.id = e.opt.Policy.NewID()
			}
		}
		r = r.WithContext(context.WithValue(r.Context(), exchangeKey{}, x))
		e.setID(r, x)
		if !isWebSocket(r) {
			// Headers of the connection: they change nothing here, and are for no frontend.
			delete(r.Header, "Upgrade")
			delete(r.Header, "Http2-Settings")
		}
		if e.opt.RequestLog != nil {
			x.begin(r, rank)
			defer e.record(r, x)
		}
		if !slices.Contains(methods, r.Method) {
			x.Header()["Allow"] = []string{strings.Join(methods, ", ")}
			apiError{status: http.StatusMethodNotAllowed, message: "the method of the request is not supported"}.write(x)
			return
		}
		next.ServeHTTP(x, r)
		if !x.begun && r.Context().Err() != nil {
			// The client has left, or closed its side. Silence must not become status 200.
			panic(http.ErrAbortHandler)
		}
	})
}

// setID puts the id of a request into what the frontend gets and into the answer.
func (e *Edge) setID(r *http.Request, x *exchange) {
	shown := []string{x.id}
	r.Header[headerRequestID] = shown
	if !e.opt.Policy.HideID {
		x.Header()[headerRequestID] = shown
	}
}

// A wrapper is a ResponseWriter around another one.
type wrapper struct{ http.ResponseWriter }

// Unwrap is for [http.ResponseController].
func (w wrapper) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Flush implements [http.Flusher].
func (w wrapper) Flush() { _ = w.FlushError() }

// FlushError is for [http.ResponseController].
func (w wrapper) FlushError() error { return http.NewResponseController(w.ResponseWriter).Flush() }

// A capture keeps an answer of at most maxAnswer bytes.
type capture struct {
	header http.Header
	status int
	body   bytes.Buffer
	over   bool // there was more
}

// maxAnswer is the maximum size of an answer that is kept as a whole, and of one event of a stream, in bytes.
const maxAnswer = 64 << 20

// fetchFrom returns the answer of a handler to a GET request on behalf of a client's request.
func fetchFrom(h http.Handler, r *http.Request, path string) *capture {
	own := r.Clone(r.Context())
	own.Method, own.URL.Path, own.URL.RawPath, own.URL.RawQuery = http.MethodGet, path, "", ""
	own.Body, own.ContentLength = http.NoBody, 0
	own.Header = http.Header{"Authorization": r.Header["Authorization"], headerRequestID: r.Header[headerRequestID]}
	c := &capture{header: http.Header{}}
	h.ServeHTTP(c, own)
	return c
}

func (c *capture) Header() http.Header { return c.header }
func (c *capture) WriteHeader(status int) {
	if c.status == 0 && status >= http.StatusOK {
		c.status = status
	}
}
func (c *capture) Flush() {}

func (c *capture) Write(p []byte) (int, error) {
	c.WriteHeader(http.StatusOK)
	if c.over = c.over || len(p) > maxAnswer-c.body.Len(); c.over {
		return 0, errTooLong
	}
	return c.body.Write(p)
}
