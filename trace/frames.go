package trace

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
)

// The directions of a [Message].
const (
	EngineToFrontend = "e2f"
	FrontendToEngine = "f2e"
)

// Message is one line of a frames file: a message as it was on the wire, or a
// note of something that happened to the links.
//
// A frames file is JSON Lines, gzipped if its name ends in ".gz". Its first line
// may be {"meta":{…}}, with what its writer wants to keep with the file; others are
//
//	{"t":82375833164,"ch":"input0","dir":"f2e","frames":["AA==","3AAW…"]}
//	{"t":82375833164,"note":"the engine hung up"}
//
// with t in nanoseconds, frames in base64, and "rank" and "elided" where they are
// not zero. Unknown keys are skipped. The rules for lines, blanks, repeated keys
// and broken ends are those of a trace.
type Message struct {
	// At is when it passed, on the tap's clock.
	At time.Duration
	// Rank is the engine's index. Absent reads as 0.
	Rank int
	// Channel is handshake, input, output, coordinator_input, coordinator_output
	// or kv_events, and Client the index that inputs and outputs carry.
	Channel string
	Client  int
	// Direction is EngineToFrontend or FrontendToEngine.
	Direction string
	// Frames are the message without its routing id; nil if none of it was kept.
	Frames [][]byte
	// Elided is how many bytes were left out.
	Elided int64
	// Note is what happened, in words. A note has no channel, direction or
	// frames.
	Note string
	// Line is the physical line, 1-based; 0 if it was not read.
	Line int
}

// Clone is the message with frames of its own, which outlive the next call of its reader.
func (m *Message) Clone() Message {
	own := *m
	if m.Frames == nil {
		return own
	}
	own.Frames = make([][]byte, len(m.Frames))
	for i, frame := range m.Frames {
		own.Frames[i] = bytes.Clone(frame)
	}
	return own
}

// channelOf splits "output3" into its name and index.
func channelOf(text string) (name string, client int, ok bool) {
	switch text {
	case "handshake", "coordinator_input", "coordinator_output", "kv_events":
		return text, 0, true
	}
	for _, name := range [...]string{"input", "output"} {
		digits, found := strings.CutPrefix(text, name)
		if !found {
			continue
		}
		n, err := strconv.ParseUint(digits, 10, 16)
		return name, int(n), err == nil && strconv.FormatUint(n, 10) == digits
	}
	return "", 0, false
}

// FrameReader streams a frames file.
type FrameReader struct {
	in    stream
	meta  json.RawMessage
	arena []byte // backs the frames of the message last returned
}

// OpenFrames opens the frames file at path and reads its meta line. The caller
// closes the FrameReader. Errors name the path.
func OpenFrames(path string, opt Options) (*FrameReader, error) {
	return openAs(path, opt, NewFrameReader)
}

// NewFrameReader reads a frames file from r, and its meta line at once. name is
// for messages. Of Options, Strict asks for a whole gzip stream and last line,
// as for a trace.
func NewFrameReader(r io.Reader, name string, gzip bool, opt Options) (*FrameReader, error) {
	fr := &FrameReader{in: stream{lines: newLineReader(r, name, gzip, opt)}}
	err := fr.in.head(func(line []byte) (isMeta bool, err error) {
		fr.meta, err = parseFramesHead(line)
		return fr.meta != nil, err
	})
	if err != nil {
		return nil, err
	}
	return fr, nil
}

// parseFramesHead returns the value of "meta", nil if the line has no such key.
func parseFramesHead(line []byte) (meta json.RawMessage, err error) {
	c := &cursor{b: line}
	err = c.object(func(key []byte) error {
		if string(key) != "meta" {
			return inKey(c.skip(2), key)
		}
		if meta != nil {
			return within(c.fail("the key occurs twice"), "meta")
		}
		raw, err := c.value(2)
		if err == nil && raw[0] != '{' {
			err = c.fail("want an object")
		}
		meta = bytes.Clone(raw)
		return within(err, "meta")
	})
	if err == nil {
		err = c.end()
	}
	return meta, err
}

// Meta returns the meta object as its bytes, nil if the file has none.
func (r *FrameReader) Meta() json.RawMessage { return r.meta }

// Next fills m with the next message, or returns io.EOF after the last. Its
// frames are valid until the next call. After an error further calls return the
// same one.
func (r *FrameReader) Next(m *Message) (err error) {
	m.Line, err = r.in.next(func(line []byte) error {
		// Base64 is longer than the bytes that it encodes, so that the arena never moves.
		if most := len(line); cap(r.arena) < most {
			r.arena = make([]byte, 0, 2*most)
		}
		p := messageParser{cursor: cursor{b: line}, m: m, arena: r.arena[:0]}
		return p.parse()
	})
	return err
}

// Truncated reports whether the gzip stream ended without its trailer. It is
// only known once Next has returned io.EOF.
func (r *FrameReader) Truncated() bool { return r.in.lines.cut }

// Warnings returns what was tolerated so far, each naming file and line.
func (r *FrameReader) Warnings() []string { return r.in.lines.warnings }

// Close closes the file, if OpenFrames opened it.
func (r *FrameReader) Close() error { return r.in.close() }

func (r *FrameReader) stream() *stream { return &r.in }

// messageParser fills one message from one line.
type messageParser struct {
	cursor
	m     *Message
	arena []byte

	t, ch, dir, rank, frames, elided, note once
	sawMeta                                bool
}

func (p *messageParser) parse() error {
	*p.m = Message{Frames: p.m.Frames[:0]}
	spare := p.m.Frames
	p.m.Frames = nil
	err := p.object(func(key []byte) error { return inKey(p.member(string(key), spare), key) })
	if err != nil {
		return err
	}
	if err := p.end(); err != nil {
		return err
	}
	return p.complete()
}

func (p *messageParser) complete() error {
	switch {
	case !bool(p.t) && p.sawMeta:
		return invalid("t", "missing: a meta line is only allowed first; were files concatenated?")
	case bool(p.note) && (bool(p.ch) || bool(p.dir) || bool(p.frames)):
		return invalid("note", "a note has no ch, dir or frames")
	case bool(p.note):
		return p.t.need("t")
	}
	for _, needed := range [...]struct {
		seen *once
		key  string
	}{{&p.t, "t"}, {&p.ch, "ch"}, {&p.dir, "dir"}} {
		if err := needed.seen.need(needed.key); err != nil {
			return err
		}
	}
	return nil
}

func (p *messageParser) member(key string, spare [][]byte) (err error) {
	seen := p.seen(key)
	if seen == nil {
		p.sawMeta = p.sawMeta || key == "meta"
		return p.skip(2)
	}
	if err := seen.mark(&p.cursor); err != nil {
		return err
	}
	m := p.m
	switch key {
	case "t":
		var t int
		t, err = p.count()
		m.At = time.Duration(t)
	case "rank":
		var n uint64
		n, err = p.uint(math.MaxUint16)
		m.Rank = int(n)
	case "elided":
		var n int
		n, err = p.count()
		m.Elided = int64(n)
	case "ch":
		err = p.channel()
	case "dir":
		err = p.direction()
	case "frames":
		m.Frames, err = p.frameList(spare)
	case "note":
		if m.Note, err = p.str(); err == nil && m.Note == "" {
			err = p.fail("want some text, got an empty string")
		}
	}
	return err
}

// seen returns where to mark a key of this package, nil for others.
func (p *messageParser) seen(key string) *once {
	switch key {
	case "t":
		return &p.t
	case "ch":
		return &p.ch
	case "dir":
		return &p.dir
	case "rank":
		return &p.rank
	case "frames":
		return &p.frames
	case "elided":
		return &p.elided
	case "note":
		return &p.note
	}
	return nil
}

func (p *messageParser) channel() (err error) {
	p.space()
	at := p.cursor
	text, err := p.str()
	if err != nil {
		return err
	}
	var ok bool
	if p.m.Channel, p.m.Client, ok = channelOf(text); !ok {
		return at.fail("want handshake, input0 …, output0 …, coordinator_input, coordinator_output or kv_events, got %s", clip([]byte(text)))
	}
	return nil
}

func (p *messageParser) direction() (err error) {
	p.space()
	at := p.cursor
	if p.m.Direction, err = p.str(); err != nil {
		return err
	}
	if p.m.Direction != EngineToFrontend && p.m.Direction != FrontendToEngine {
		return at.fail("want %s or %s, got %s", EngineToFrontend, FrontendToEngine, clip([]byte(p.m.Direction)))
	}
	return nil
}

// frameList reads the array of base64 strings into the arena.
func (p *messageParser) frameList(frames [][]byte) ([][]byte, error) {
	if frames == nil {
		frames = [][]byte{}
	}
	err := p.array(func() error {
		p.space()
		at := p.cursor
		raw, escaped, err := p.raw("a string")
		if err == nil && escaped {
			raw, err = p.unquote(raw)
		}
		if err != nil {
			return err
		}
		start := len(p.arena)
		if p.arena, err = base64.StdEncoding.Strict().AppendDecode(p.arena, raw); err != nil {
			return at.fail("frame %d is not base64: %v", len(frames), err)
		}
		frames = append(frames, p.arena[start:len(p.arena):len(p.arena)])
		return nil
	})
	return frames, err
}

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

// Messages returns how many messages were written.
func (w *FrameWriter) Messages() int { return w.lines.records + w.waiting }

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
