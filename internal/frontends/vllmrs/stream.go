package vllmrs

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// readStream reads an answer that comes as server-sent events, up to [DONE].
func readStream(r io.Reader) (Completion, error) {
	var a assembly
	for events := newEvents(r); ; {
		data, err := events.next()
		switch {
		case errors.Is(err, io.EOF):
			return a.Completion, fmt.Errorf("the stream ended before [DONE], after %d events and %d tokens: %w",
				a.parts, len(a.Tokens), io.ErrUnexpectedEOF)
		case err != nil:
			return a.Completion, fmt.Errorf("read the stream after %d events and %d tokens: %w", a.parts, len(a.Tokens), err)
		case string(data) == "[DONE]":
			// To read the end of the body gives the connection back.
			_, _ = io.Copy(io.Discard, io.LimitReader(events.r, maxQuote))
			return a.finish()
		}
		if err := a.add(data); err != nil {
			return a.Completion, err
		}
	}
}

// events reads the data of server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html). Lines
// end in LF or CR LF; a frontend does not use the third form, CR alone.
type events struct {
	r    *bufio.Reader
	data []byte
	line []byte
}

func newEvents(r io.Reader) *events { return &events{r: bufio.NewReaderSize(r, 16<<10)} }

// next returns the data of the next event that has any, valid until the next call, or io.EOF. An event that the end of
// the stream cuts off is dropped.
func (e *events) next() ([]byte, error) {
	e.data = e.data[:0]
	for some := false; ; {
		line, err := e.readLine()
		if err != nil {
			return nil, err
		}
		if len(line) == 0 {
			if some {
				return e.data, nil
			}
			continue
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		if string(field) != "data" {
			continue // a comment, or a field that carries nothing of ours
		}
		if some {
			e.data = append(e.data, '\n')
		}
		some = true
		e.data = append(e.data, bytes.TrimPrefix(value, []byte(" "))...)
		if len(e.data) > maxAnswer {
			return nil, fmt.Errorf("an event is longer than %d bytes", maxAnswer)
		}
	}
}

// readLine returns a line without its end. Long lines are no error: an event has all its token ids in one.
func (e *events) readLine() ([]byte, error) {
	e.line = e.line[:0]
	for {
		piece, err := e.r.ReadSlice('\n')
		e.line = append(e.line, piece...)
		switch {
		case err == nil:
			return bytes.TrimSuffix(e.line[:len(e.line)-1], []byte("\r")), nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		case len(e.line) > maxAnswer:
			return nil, fmt.Errorf("a line is longer than %d bytes", maxAnswer)
		}
	}
}
