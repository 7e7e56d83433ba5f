package edge

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
)

// serveLocal lets the frontend in this process answer.
func (e *Edge) serveLocal(w http.ResponseWriter, r *http.Request, x *exchange) {
	x.shown[0] = x.id
	r.Header[headerRequestID] = x.shown[:]
	if x.body != nil {
		body := new(knownBody)
		body.Reset(x.body)
		r.Body, r.ContentLength = body, int64(len(x.body))
	}
	x.rank.local.ServeHTTP(w, r)
}

// A knownBody is one that was read.
type knownBody struct{ bytes.Reader }

func (*knownBody) Close() error { return nil }

// roundTripLocal is the answer of a frontend in this process as one that can be changed on its way. The end of its body, or of the
// request, ends the work at it.
func roundTripLocal(h http.Handler, r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	from, to := io.Pipe()
	w := &localWriter{header: http.Header{}, trailer: http.Header{}, to: to, begun: make(chan struct{})}
	stop := context.AfterFunc(ctx, func() { from.CloseWithError(context.Cause(ctx)) })
	go func() {
		h.ServeHTTP(w, r.WithContext(ctx))
		w.WriteHeader(http.StatusOK) // if nothing was written
		stop()                       // what was written can still be read
		for name, values := range w.header {
			if name, is := strings.CutPrefix(name, http.TrailerPrefix); is {
				w.trailer[name] = values
			}
		}
		to.Close()
		cancel()
	}()
	<-w.begun // the handler ends with the request
	size := int64(-1)
	if n, err := strconv.ParseInt(w.sent.Get("Content-Length"), 10, 64); err == nil {
		size = n
	}
	answer := &http.Response{
		StatusCode: w.status, Status: strconv.Itoa(w.status) + " " + http.StatusText(w.status), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.sent, ContentLength: size, Request: r,
	}
	answer.Body = &localBody{from, func() { stop(); cancel() }, func() { answer.Trailer = w.trailer }}
	return answer, nil
}

// A localWriter takes what a handler writes.
type localWriter struct {
	header http.Header
	to     *io.PipeWriter
	once   sync.Once
	status int
	sent   http.Header
	begun  chan struct{} // closed when status and sent are set
	// trailer is set before the end of the body.
	trailer http.Header
}

func (w *localWriter) Header() http.Header { return w.header }

func (w *localWriter) WriteHeader(status int) {
	w.once.Do(func() {
		w.status, w.sent = status, w.header.Clone()
		close(w.begun)
	})
}

func (w *localWriter) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.to.Write(p)
}

// Flush sends the head. What was written has been read.
func (w *localWriter) Flush() { w.WriteHeader(http.StatusOK) }

type localBody struct {
	*io.PipeReader
	end, ended func()
}

func (b *localBody) Read(p []byte) (int, error) {
	n, err := b.PipeReader.Read(p)
	if err == io.EOF {
		b.ended()
	}
	return n, err
}

func (b *localBody) Close() error {
	err := b.PipeReader.Close()
	b.end()
	return err
}
