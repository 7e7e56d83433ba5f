package openai

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
)

// Done is the data of the last event of a stream.
const Done = "[DONE]"

// Events reads the data of server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html). Lines
// end in LF or CR LF; a frontend does not use the third form, CR alone.
type Events struct {
	r       *bufio.Reader
	name    string
	data    []byte
	line    []byte
	framing []string
}

// NewEvents reads events from r.
func NewEvents(r io.Reader) *Events { return &Events{r: bufio.NewReaderSize(r, 16<<10)} }

// Next returns the data of the next event that has any, valid until the next call, or io.EOF. An event that the end of
// the stream cuts off is dropped; if the end comes in a line, the error is an io.ErrUnexpectedEOF that quotes it.
func (e *Events) Next() ([]byte, error) {
	e.name, e.data = "", e.data[:0]
	for some := false; ; {
		line, err := e.readLine()
		if err != nil {
			if some || errors.Is(err, io.ErrUnexpectedEOF) {
				e.note("no empty line at the end")
			}
			return nil, err
		}
		if len(line) == 0 {
			if some {
				return e.data, nil
			}
			e.name = ""
			continue
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		e.note(cmp.Or(string(field), "a comment"))
		value, spaced := bytes.CutPrefix(value, []byte(" "))
		if string(field) == "event" {
			e.name = string(value)
		}
		if string(field) != "data" {
			continue
		}
		if !spaced {
			e.note("data without a space")
		}
		if some {
			e.data = append(e.data, '\n')
		}
		some = true
		e.data = append(e.data, value...)
		if len(e.data) > MaxAnswer {
			return nil, fmt.Errorf("an event is longer than %d bytes", MaxAnswer)
		}
	}
}

// Name returns the name of the event that Next returned last, "" if it has none.
func (e *Events) Name() string { return e.name }

// Framing returns what the lines up to here consist of, sorted: the names of their fields, "a comment", "CR LF",
// "data without a space" and "no empty line at the end".
func (e *Events) Framing() []string { return e.framing }

func (e *Events) note(what string) {
	if at, found := slices.BinarySearch(e.framing, what); !found {
		e.framing = slices.Insert(e.framing, at, what)
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
			line, cr := bytes.CutSuffix(e.line[:len(e.line)-1], []byte("\r"))
			if cr {
				e.note("CR LF")
			}
			return line, nil
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
