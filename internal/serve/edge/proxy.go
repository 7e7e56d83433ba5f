package edge

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"sync"
	"time"
)

const headerRequestID = "X-Request-Id"

// idleUpstream is for how long a connection to a frontend may be idle. The Python frontend closes one after 5 seconds; a
// request that is sent at that moment is lost.
const idleUpstream = 2 * time.Second

func newTransport(dial func(context.Context) (net.Conn, error)) http.RoundTripper {
	t := &http.Transport{
		MaxIdleConns: 4096, MaxIdleConnsPerHost: 4096, IdleConnTimeout: idleUpstream,
		DisableCompression: true, WriteBufferSize: 4 << 10, ReadBufferSize: 4 << 10,
		MaxResponseHeaderBytes: maxHeader,
	}
	if dial != nil {
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }
	}
	return t
}

// requestID is the id that the client gave the request, if it is one that can be logged and sent on, else a new one.
func requestID(r *http.Request) string {
	id := r.Header.Get(headerRequestID)
	ok := id != "" && len(id) <= 128
	for i := 0; ok && i < len(id); i++ {
		ok = id[i] > ' ' && id[i] < 0x7f
	}
	if ok {
		return id
	}
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// hopByHop are the headers that belong to a connection and not to a message.
var hopByHop = []string{
	"Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer",
	"Transfer-Encoding", "Upgrade",
}

func removeHopByHop(h http.Header) {
	for _, value := range h["Connection"] {
		for name := range strings.SplitSeq(value, ",") {
			h.Del(textproto.TrimString(name))
		}
	}
	for _, name := range hopByHop {
		delete(h, name)
	}
}

// An exchange is a request on its way.
type exchange struct {
	rank *rank
	id   string
	body []byte // of a request whose body the edge has to know, else nil
}

func (e *Edge) handle(w http.ResponseWriter, r *http.Request, to *rank) {
	x := &exchange{rank: to, id: requestID(r)}
	w.Header().Set(headerRequestID, x.id)
	if r.Header.Get("Upgrade") != "" && r.ProtoMajor == 1 {
		r.Header.Set(headerRequestID, x.id)
		to.upgrades.ServeHTTP(w, r)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, e.opt.MaxBody)
	answer, err := e.send(r, x)
	if err != nil {
		e.answerAway(w, r, err)
		return
	}
	defer answer.Body.Close()
	e.relay(w, answer, x)
}

// send forwards a request and returns at the head of the answer.
func (e *Edge) send(r *http.Request, x *exchange) (*http.Response, error) {
	target := *r.URL
	target.Scheme, target.Host = x.rank.url.Scheme, x.rank.url.Host
	out := (&http.Request{
		Method: r.Method, URL: &target, Host: r.Host, Header: make(http.Header, len(r.Header)+1),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Body: r.Body, ContentLength: r.ContentLength,
	}).WithContext(r.Context())
	for name, values := range r.Header {
		out.Header[name] = values
	}
	removeHopByHop(out.Header)
	delete(out.Header, "Expect") // the edge has answered it
	if _, has := out.Header["User-Agent"]; !has {
		out.Header["User-Agent"] = nil // or package http sends its own
	}
	out.Header[headerRequestID] = []string{x.id}
	switch {
	case x.body != nil:
		out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(x.body)), int64(len(x.body))
		out.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(x.body)), nil }
	case r.ContentLength == 0:
		out.Body = http.NoBody
	}
	return x.rank.transport.RoundTrip(out)
}

// chunks are the buffers that answers are copied through. A stream has one for as long as it runs.
var chunks = sync.Pool{New: func() any { return new([4 << 10]byte) }}

// relay sends an answer on to the client.
func (e *Edge) relay(w http.ResponseWriter, answer *http.Response, x *exchange) {
	removeHopByHop(answer.Header)
	header := w.Header()
	for name, values := range answer.Header {
		header[name] = values
	}
	header[headerRequestID] = []string{x.id}
	w.WriteHeader(answer.StatusCode)
	err := copyBody(w, answer)
	if err != nil {
		e.log.Debug("an answer was cut", "id", x.id, "error", err)
		// The client has to notice that the answer is not whole, which it does when its connection ends.
		panic(http.ErrAbortHandler)
	}
	for name, values := range answer.Trailer {
		header[http.TrailerPrefix+name] = values
	}
}

// copyBody copies each part of the body as it comes: a token does not wait for the next one.
func copyBody(w http.ResponseWriter, answer *http.Response) error {
	streams := answer.ContentLength < 0
	buf := chunks.Get().(*[4 << 10]byte)
	defer chunks.Put(buf)
	flusher := http.NewResponseController(w)
	if streams { // the head does not wait for the first token
		if err := flusher.Flush(); err != nil {
			return err
		}
	}
	for {
		n, err := answer.Body.Read(buf[:])
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return err
			}
			if streams {
				if err := flusher.Flush(); err != nil {
					return err
				}
			}
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
	}
}

// answerAway answers a request that the frontend did not answer.
func (e *Edge) answerAway(w http.ResponseWriter, r *http.Request, err error) {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		apiError{status: http.StatusRequestEntityTooLarge, message: "the body of the request has more than " +
			strconv.FormatInt(tooLarge.Limit, 10) + " bytes"}.write(w)
	case r.Context().Err() != nil:
		panic(http.ErrAbortHandler) // nobody reads an answer
	default:
		e.log.Warn("the frontend does not answer", "path", r.URL.Path, "error", err)
		a := apiError{status: http.StatusBadGateway, message: "the frontend ended the connection before it answered"}
		if op := (*net.OpError)(nil); errors.As(err, &op) && op.Op == "dial" {
			a = apiError{status: http.StatusServiceUnavailable, message: "the frontend does not accept connections, it starts or has ended", retryAfter: time.Second}
		}
		a.write(w)
	}
}
