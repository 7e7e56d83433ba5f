package edge

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"
)

// A plan is what goes wrong with one answer.
type plan struct {
	refusal  *apiError
	delay    time.Duration
	outage   time.Duration // connections are refused
	vanish   FaultKind     // before the answer: FaultReset, FaultHang or ""
	inAnswer []Fault       // after the head
}

// injectedError is that of [FaultError].
var injectedError = apiError{status: http.StatusInternalServerError, message: "Injected error"}

func newPlan(faults []Fault, model string, stream bool) *plan {
	p := &plan{}
	for i := range faults {
		f := &faults[i]
		switch f.Kind {
		case FaultStatus, FaultFail:
			if a := f.answer(model); p.refusal == nil {
				if strings.HasPrefix(f.text, headerReturnError) {
					a.message = fmt.Sprintf("Simulated error triggered by %s header (code %d)", headerReturnError, f.Status)
				}
				p.refusal = &a
			}
		case FaultError:
			if stream {
				p.inAnswer = append(p.inAnswer, *f)
			} else if p.refusal == nil {
				p.refusal = &injectedError
			}
		case FaultDelay:
			p.delay += f.Time
		case FaultRefuse:
			p.outage, p.vanish = max(p.outage, f.Time), FaultReset
		case FaultReset, FaultHang:
			if !f.HasAfter && p.vanish == "" {
				p.vanish = f.Kind
			} else if f.HasAfter {
				p.inAnswer = append(p.inAnswer, *f)
			}
		default:
			p.inAnswer = append(p.inAnswer, *f)
		}
	}
	return p
}

// early does what comes before the request is sent on, and reports whether that was all.
func (e *Edge) early(w http.ResponseWriter, r *http.Request, p *plan) (done bool) {
	if p.delay > 0 && !wait(r.Context(), p.delay) {
		panic(http.ErrAbortHandler)
	}
	if p.outage > 0 {
		e.refuseFor(p.outage)
	}
	switch {
	case p.vanish == FaultReset:
		reset(r)
	case p.vanish == FaultHang:
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	case p.refusal != nil:
		p.refusal.write(w)
		return true
	}
	return false
}

// wait returns false when the client went first.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// reset ends the connection of a request with a TCP reset. Of an HTTP/2 connection, which other requests use too, it
// resets the stream.
func reset(r *http.Request) {
	conn, _ := r.Context().Value(connKey{}).(net.Conn)
	if outer, ok := conn.(interface{ NetConn() net.Conn }); ok { // of TLS
		conn = outer.NetConn()
	}
	if tcp, ok := conn.(*net.TCPConn); ok && r.ProtoMajor == 1 {
		_ = tcp.SetLinger(0)
		// The server would send the end of the chunks, or of TLS, before it closes the connection.
		_ = tcp.Close()
	}
	panic(http.ErrAbortHandler)
}

// inject answers with faults, where the options or the request ask for some.
func (e *Edge) inject(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := exchangeOf(r)
		own, err := e.ownFaults(r, x)
		if err != nil {
			apiError{status: http.StatusBadRequest, message: err.Error()}.write(w)
			return
		}
		faults := append(own, e.faults.Load().of(r, x)...)
		if len(faults) == 0 {
			next.ServeHTTP(w, r)
			return
		}
		if x.record != nil {
			for i := range faults {
				x.record.Faults = append(x.record.Faults, faults[i].text)
			}
		}
		p := newPlan(faults, x.asked.model, x.asked.stream || isCall(r))
		if e.opt.Policy.NoRetryAfter && p.refusal != nil && p.refusal.retryAfter > 0 {
			p.refusal.retryAfter = 0
		}
		if e.early(w, r, p) {
			return
		}
		if len(p.inAnswer) == 0 {
			next.ServeHTTP(w, r)
			return
		}
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		s := &spoiler{wrapper: wrapper{w}, r: r, faults: p.inAnswer}
		defer func() {
			if gone := recover(); gone != nil && (gone != http.ErrAbortHandler || !s.ended) {
				panic(gone)
			}
		}()
		next.ServeHTTP(s, r.WithContext(ctx))
		s.end()
	})
}

// A spoiler writes an answer with faults in it.
type spoiler struct {
	wrapper
	r      *http.Request
	faults []Fault
	cut    func(text []byte, seen int) ([]byte, error) // the first event of what has come, nil if it is not whole
	whole  bool                                        // the answer is not a stream: it is kept until its end
	rest   []byte                                      // what has come and was not sent
	events int                                         // that were sent
	ended  bool                                        // nothing more is sent, as if the answer was whole
}

func (s *spoiler) WriteHeader(status int) {
	if status >= http.StatusOK {
		s.begin()
	}
	s.ResponseWriter.WriteHeader(status)
}

// begin finds out what the answer is.
func (s *spoiler) begin() {
	if s.cut != nil || s.whole {
		return
	}
	switch kind := s.Header().Get("Content-Type"); {
	case strings.HasPrefix(kind, "application/grpc"):
		s.cut = cutMessage
	case strings.HasPrefix(kind, "text/event-stream"):
		s.cut = cutEvent
	default:
		s.whole = true
	}
	if slices.ContainsFunc(s.faults, func(f Fault) bool { return f.Kind == FaultTruncate || f.Kind == FaultMalformed }) {
		s.Header().Del("Content-Length") // it shall look whole
	}
}

func (s *spoiler) Write(p []byte) (int, error) {
	s.begin()
	if len(s.rest)+len(p) > maxAnswer {
		return 0, errTooLong
	}
	seen := len(s.rest)
	s.rest = append(s.rest, p...)
	for !s.whole {
		event, err := s.cut(s.rest, seen)
		if err != nil {
			return 0, err
		}
		if event == nil {
			break
		}
		if err := s.send(event); err != nil {
			return 0, err
		}
		s.rest, seen = s.rest[len(event):], 0
	}
	return len(p), nil
}

// send sends an event, with the faults that are for it.
func (s *spoiler) send(event []byte) error {
	for _, f := range s.faults {
		if s.events < f.After || f.Kind != FaultSlow && s.events > f.After {
			continue
		}
		switch f.Kind {
		case FaultSlow:
			if !wait(s.r.Context(), f.Time) {
				return s.r.Context().Err()
			}
		case FaultMalformed:
			if strings.HasPrefix(s.Header().Get("Content-Type"), "application/grpc") {
				event = malformMessage(event)
			} else {
				event = append(bytes.Clone(event[:len(event)/2]), "\n\n"...)
			}
		default:
			if f.Kind == FaultError {
				_, _ = s.ResponseWriter.Write(s.errorEvent())
			}
			if err := s.FlushError(); err != nil {
				return err
			}
			if f.Kind == FaultError {
				s.ended = true
				panic(http.ErrAbortHandler)
			}
			if s.ended = f.Kind == FaultTruncate; s.ended {
				panic(http.ErrAbortHandler) // ends the work at the answer, and what would be sent at its end
			}
			vanish(s.r, f.Kind)
		}
	}
	s.events++
	if _, err := s.ResponseWriter.Write(event); err != nil {
		return err
	}
	return s.FlushError()
}

// errorEvent is how vLLM ends a stream with an error.
func (s *spoiler) errorEvent() []byte {
	if strings.HasSuffix(s.r.URL.Path, "/v1/messages") {
		return []byte("event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"Injected error\"}}\n\n")
	}
	return fmt.Appendf(nil, "data: %s\n\ndata: [DONE]\n\n", injectedError.json())
}

// end sends what is left. Of an answer that is not a stream, what happens at a position happens after half of the body.
func (s *spoiler) end() {
	if !s.whole {
		if len(s.rest) > 0 {
			_ = s.send(s.rest)
		}
		return
	}
	half := s.rest[:len(s.rest)/2]
	for _, f := range s.faults {
		switch f.Kind {
		case FaultSlow:
			if !wait(s.r.Context(), f.Time) {
				panic(http.ErrAbortHandler)
			}
		case FaultMalformed, FaultTruncate:
			_, _ = s.ResponseWriter.Write(half)
			return
		default:
			_, _ = s.ResponseWriter.Write(half)
			_ = s.FlushError()
			vanish(s.r, f.Kind)
		}
	}
	_, _ = s.ResponseWriter.Write(s.rest)
}

// cutEvent returns the first event of a stream with the empty line after it, nil if it is not whole. The first seen bytes
// were looked at before and have no end.
func cutEvent(text []byte, seen int) ([]byte, error) {
	from := max(0, seen-len("\n\r"))
	end := bytes.Index(text[from:], []byte("\n\n"))
	if crlf := bytes.Index(text[from:], []byte("\n\r\n")); crlf >= 0 && (end < 0 || crlf < end) {
		return text[:from+crlf+3], nil
	}
	if end < 0 {
		return nil, nil
	}
	return text[:from+end+2], nil
}

// vanish ends a request in the middle of its answer.
func vanish(r *http.Request, kind FaultKind) {
	if kind == FaultReset {
		reset(r)
	}
	<-r.Context().Done()
	panic(http.ErrAbortHandler)
}
