package trace

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// frameBatch is how many bytes a FrameWriter gathers before it hands them on
// without being asked to.
const frameBatch = 256 << 10

// FrameWriter writes a frames file. Lines are gathered: they are on their way to
// the operating system after Flush or Close, or when enough have come together.
type FrameWriter struct {
	lines   *lineWriter
	waiting int // messages since the last flush
}

// NewFrameWriter returns a writer of a frames file to w. meta, a JSON object,
// becomes the first line; with nil there is none. With gzip the stream depends
// on the calls alone, of Flush too.
func NewFrameWriter(w io.Writer, gzip bool, meta json.RawMessage) (*FrameWriter, error) {
	fw := &FrameWriter{lines: newLineWriter(w, gzip)}
	if meta == nil {
		return fw, nil
	}
	line, err := appendRaw([]byte(`{"meta":`), meta, 2)
	if err != nil {
		return nil, fmt.Errorf("trace: the meta line is not written: %w", err)
	}
	return fw, fw.lines.write(append(line, "}\n"...), "the meta line")
}

// Write writes one message. A *WriteError is final, other errors are not.
func (w *FrameWriter) Write(m *Message) error {
	l := w.lines
	if l.err != nil {
		return l.err
	}
	line, err := appendMessage(l.buf[:0], m)
	if err != nil {
		return fmt.Errorf("trace: message %d not written: %w", w.Messages()+1, err)
	}
	l.buf = append(line, '\n')
	w.waiting++
	l.gather(l.buf)
	if l.err == nil && l.out.Len() < frameBatch {
		return nil
	}
	return l.deflated(l.err, w.what())
}

// Flush hands on what was gathered. What was written before it is readable
// whatever happens then.
func (w *FrameWriter) Flush() error {
	if w.lines.err != nil || w.waiting == 0 {
		return w.lines.err
	}
	if err := w.lines.flush(w.what()); err != nil {
		return err
	}
	w.lines.records += w.waiting
	w.waiting = 0
	return nil
}

func (w *FrameWriter) what() string { return fmt.Sprintf("message %d", w.Messages()) }

// Messages returns how many messages were written, Safe how many of them were
// flushed.
func (w *FrameWriter) Messages() int { return w.lines.records + w.waiting }

// Safe is how many messages are in the hands of the operating system.
func (w *FrameWriter) Safe() int { return w.lines.records }

// Close writes what was gathered and the gzip trailer, if there is one; see
// [Writer.Close].
func (w *FrameWriter) Close() error {
	if err := w.Flush(); err != nil {
		return err
	}
	return w.lines.close()
}

// validate checks a message that is to be written.
func (m *Message) validate() error {
	switch {
	case m.At < 0:
		return invalid("t", "want at least 0, got %d", m.At)
	case m.Rank < 0:
		return invalid("rank", "want at least 0, got %d", m.Rank)
	case m.Elided < 0:
		return invalid("elided", "want at least 0, got %d", m.Elided)
	case m.Note != "":
		return nil
	case m.Direction != EngineToFrontend && m.Direction != FrontendToEngine:
		return invalid("dir", "want %s or %s, got %q", EngineToFrontend, FrontendToEngine, m.Direction)
	}
	if _, _, ok := channelOf(string(m.appendChannel(nil))); !ok {
		return invalid("ch", "no channel %q with client %d", m.Channel, m.Client)
	}
	return nil
}

func (m *Message) appendChannel(b []byte) []byte {
	b = append(b, m.Channel...)
	if m.Client != 0 || m.Channel == "input" || m.Channel == "output" {
		b = strconv.AppendInt(b, int64(m.Client), 10)
	}
	return b
}

func appendMessage(b []byte, m *Message) ([]byte, error) {
	if err := m.validate(); err != nil {
		return nil, err
	}
	b = strconv.AppendInt(append(b, `{"t":`...), int64(m.At), 10)
	if m.Note != "" {
		return m.appendNote(b)
	}
	b = m.appendChannel(append(b, `,"ch":"`...))
	b = append(append(b, `","dir":"`...), m.Direction...)
	b = append(b, '"')
	if m.Rank > 0 {
		b = strconv.AppendInt(append(b, `,"rank":`...), int64(m.Rank), 10)
	}
	if m.Frames != nil {
		b = append(b, `,"frames":[`...)
		for i, frame := range m.Frames {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(base64.StdEncoding.AppendEncode(append(b, '"'), frame), '"')
		}
		b = append(b, ']')
	}
	if m.Elided > 0 {
		b = strconv.AppendInt(append(b, `,"elided":`...), m.Elided, 10)
	}
	return append(b, '}'), nil
}

func (m *Message) appendNote(b []byte) ([]byte, error) {
	if m.Rank > 0 {
		b = strconv.AppendInt(append(b, `,"rank":`...), int64(m.Rank), 10)
	}
	b, err := appendString(append(b, `,"note":`...), strings.ToValidUTF8(m.Note, "\ufffd"))
	return append(b, '}'), err
}
