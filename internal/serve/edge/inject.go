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

func newPlan(faults []Fault, model string) *plan {
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

// reset ends the connection of a request with a TCP reset. Of an HTTP/2 connection, which other requests use too, it resets the
// stream.
func reset(r *http.Request) {
	conn, _ := r.Context().Value(connKey{}).(net.Conn)
	if outer, ok := conn.(interface{ NetConn() net.Conn }); ok { // of TLS, or of a loop
		conn = outer.NetConn()
	}
	if tcp, ok := conn.(*net.TCPConn); ok && r.ProtoMajor == 1 {
		_ = tcp.SetLinger(0)
		// The server would send the end of the chunks, or of TLS, before it closes the connection.
		_ = tcp.Close()
	}
	panic(http.ErrAbortHandler)
}

// spoil relays an answer with faults in it.
func (e *Edge) spoil(w http.ResponseWriter, r *http.Request, answer *http.Response, faults []Fault) error {
	read, malform := readEvent, malformEvent
	switch kind := answer.Header.Get("Content-Type"); {
	case strings.HasPrefix(kind, "application/grpc"):
		read, malform = readMessage, malformMessage
	case !strings.HasPrefix(kind, "text/event-stream"):
		return e.spoilWhole(w, r, answer, faults)
	}
	flusher := http.NewResponseController(w)
	events := bufio.NewReaderSize(answer.Body, 4<<10)
	for n := 0; ; n++ {
		event, err := read(events)
		if len(event) == 0 && err != nil {
			return ignoreEOF(err)
		}
		for _, f := range faults {
			if n < f.After || f.Kind != FaultSlow && n > f.After {
				continue
			}
			switch f.Kind {
			case FaultSlow:
				if !wait(r.Context(), f.Time) {
					return r.Context().Err()
				}
			case FaultMalformed:
				event = malform(event)
			default:
				if err := flusher.Flush(); err != nil {
					return err
				}
				if f.Kind == FaultTruncate {
					return nil
				}
				vanish(r, f.Kind)
			}
		}
		if _, err := w.Write(event); err != nil {
			return err
		}
		if err := flusher.Flush(); err != nil {
			return err
		}
		if err != nil {
			return ignoreEOF(err)
		}
	}
}

func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// vanish ends a request in the middle of its answer.
func vanish(r *http.Request, kind FaultKind) {
	if kind == FaultReset {
		reset(r)
	}
	<-r.Context().Done()
	panic(http.ErrAbortHandler)
}

// maxEvent bounds one event of a stream and one answer that faults are put into, in bytes.
const maxEvent = 64 << 20

// readEvent reads up to and with the empty line after an event.
func readEvent(r *bufio.Reader) ([]byte, error) {
	var event []byte
	for {
		line, err := r.ReadSlice('\n')
		event = append(event, line...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull) && len(event) < maxEvent:
			continue
		case err != nil:
			return event, err
		case bytes.HasSuffix(event, []byte("\n\n")), bytes.HasSuffix(event, []byte("\n\r\n")):
			return event, nil
		case len(event) > maxEvent:
			return event, fmt.Errorf("an event of the stream has more than %d bytes", maxEvent)
		}
	}
}

// spoilWhole is spoil of an answer that is no stream: what happens at a position happens after half of the body.
func (e *Edge) spoilWhole(w http.ResponseWriter, r *http.Request, answer *http.Response, faults []Fault) error {
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxEvent))
	if err != nil {
		return err
	}
	half := body[:len(body)/2]
	for _, f := range faults {
		switch f.Kind {
		case FaultSlow:
			if !wait(r.Context(), f.Time) {
				return r.Context().Err()
			}
		case FaultMalformed, FaultTruncate:
			_, err := w.Write(half)
			return err
		default:
			if _, err := w.Write(half); err != nil {
				return err
			}
			if err := http.NewResponseController(w).Flush(); err != nil {
				return err
			}
			vanish(r, f.Kind)
		}
	}
	_, err = w.Write(body)
	return err
}
