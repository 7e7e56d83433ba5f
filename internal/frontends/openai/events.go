package openai

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// Done is the data of the last event of a stream.
const Done = "[DONE]"

// Events reads the data of server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html). Lines
// end in LF or CR LF; a frontend does not use the third form, CR alone.
type Events struct {
	r    *bufio.Reader
	data []byte
	line []byte
}

// NewEvents reads events from r.
func NewEvents(r io.Reader) *Events { return &Events{r: bufio.NewReaderSize(r, 16<<10)} }

// Next returns the data of the next event that has any, valid until the next call, or io.EOF. An event that the end of
// the stream cuts off is dropped; if the end comes in a line, the error is an io.ErrUnexpectedEOF that quotes it.
func (e *Events) Next() ([]byte, error) {
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
		if len(e.data) > MaxAnswer {
			return nil, fmt.Errorf("an event is longer than %d bytes", MaxAnswer)
		}
	}
}

// readLine returns a line without its end. Long lines are no error: an event has all its token ids in one.
func (e *Events) readLine() ([]byte, error) {
	e.line = e.line[:0]
	for {
		piece, err := e.r.ReadSlice('\n')
		e.line = append(e.line, piece...)
		switch {
		case err == nil:
			return bytes.TrimSuffix(e.line[:len(e.line)-1], []byte("\r")), nil
		case len(e.line) > MaxAnswer:
			return nil, fmt.Errorf("a line is longer than %d bytes", MaxAnswer)
		case errors.Is(err, io.EOF) && len(e.line) > 0:
			return nil, fmt.Errorf("within the line %s: %w", Quote(e.line), io.ErrUnexpectedEOF)
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}

// Drain reads what is left behind the last event, within reason, so that the connection can serve another request.
func (e *Events) Drain() { _, _ = io.Copy(io.Discard, io.LimitReader(e.r, MaxQuote)) }
