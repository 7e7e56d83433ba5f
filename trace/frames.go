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
	// or kv_events, and Client the index that inputs and outputs carry. nixl_request
	// and nixl_reply are those of a side channel, nixl_notification is of NIXL itself;
	// there, the engine of the rank is one side, and whoever is the other has the
	// place of the frontend.
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
	case "handshake", "coordinator_input", "coordinator_output", "kv_events", "nixl_request", "nixl_reply", "nixl_notification":
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
	stream
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
	fr := &FrameReader{stream: stream{lines: newLineReader(r, name, gzip, opt)}}
	_, err := fr.head(func(c *cursor) error {
		raw, err := c.value(2)
		if err == nil && raw[0] != '{' {
			err = c.fail("want an object")
		}
		fr.meta = bytes.Clone(raw)
		return err
	})
	if err != nil {
		return nil, err
	}
	return fr, nil
}

// Meta returns the meta object as its bytes, nil if the file has none.
func (r *FrameReader) Meta() json.RawMessage { return r.meta }

// Next fills m with the next message, or returns io.EOF after the last. Its
// frames are valid until the next call. After an error further calls return the
// same one.
func (r *FrameReader) Next(m *Message) (err error) {
	m.Line, err = r.next(func(line []byte) error {
		// Base64 is longer than the bytes that it encodes, so that the arena never moves.
		if most := len(line); cap(r.arena) < most {
			r.arena = make([]byte, 0, 2*most)
		}
		p := messageParser{cursor: cursor{b: line}, m: m, arena: r.arena[:0]}
		return p.parse()
	})
	return err
}

// messageParser fills one message from one line.
type messageParser struct {
	cursor
	m       *Message
	spare   [][]byte // storage of the frames
	arena   []byte
	sawMeta bool
}

var messageMembers = []member[messageParser]{
	{"t", false, func(c *cursor, p *messageParser) error {
		t, err := c.count()
		p.m.At = time.Duration(t)
		return err
	}},
	{"ch", false, func(_ *cursor, p *messageParser) error { return p.channel() }},
	{"dir", false, func(_ *cursor, p *messageParser) error { return p.direction() }},
	{"frames", false, func(_ *cursor, p *messageParser) error { return p.frameList() }},
	{"rank", false, func(c *cursor, p *messageParser) error {
		n, err := c.uint(math.MaxUint16)
		p.m.Rank = int(n)
		return err
	}},
	{"elided", false, func(c *cursor, p *messageParser) error {
		n, err := c.count()
		p.m.Elided = int64(n)
		return err
	}},
	{"note", false, func(c *cursor, p *messageParser) (err error) {
		if p.m.Note, err = c.str(); err == nil && p.m.Note == "" {
			err = c.fail("want some text, got an empty string")
		}
		return err
	}},
	{"meta", false, func(c *cursor, p *messageParser) error {
		p.sawMeta = true
		return c.skip(2)
	}},
}

func (p *messageParser) parse() error {
	p.spare = p.m.Frames[:0]
	*p.m = Message{At: -1}
	if err := members(&p.cursor, 2, p, messageMembers); err != nil {
		return err
	}
	if err := p.end(); err != nil {
		return err
	}
	return p.complete()
}

func (p *messageParser) complete() error {
	switch m := p.m; {
	case m.At < 0 && p.sawMeta:
		return invalid("t", "missing: a meta line is only allowed first; were files concatenated?")
	case m.Note != "" && (m.Channel != "" || m.Direction != "" || m.Frames != nil):
		return invalid("note", "a note has no ch, dir or frames")
	case m.At < 0:
		return invalid("t", "missing")
	case m.Note == "" && m.Channel == "":
		return invalid("ch", "missing")
	case m.Note == "" && m.Direction == "":
		return invalid("dir", "missing")
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
		return at.fail("want handshake, input0 …, output0 …, coordinator_input, coordinator_output, kv_events, nixl_request, nixl_reply or nixl_notification, got %s", clip([]byte(text)))
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
func (p *messageParser) frameList() error {
	frames := p.spare
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
	p.m.Frames = frames
	return err
}

// FrameWriter writes a frames file. Lines are gathered: they are on their way to
// the operating system after Flush or Close, or when enough have come together.
type FrameWriter struct{ *lineWriter }

// NewFrameWriter returns a writer of a frames file to w. meta, a JSON object,
// becomes the first line; with nil there is none. With gzip the stream depends
// on the calls alone, of Flush too.
func NewFrameWriter(w io.Writer, gzip bool, meta json.RawMessage) (*FrameWriter, error) {
	fw := &FrameWriter{newLineWriter(w, gzip, "message")}
	if meta == nil {
		return fw, nil
	}
	line, err := appendRaw([]byte(`{"meta":`), meta, 2)
	if err != nil {
		return nil, fmt.Errorf("trace: the meta line is not written: %w", err)
	}
	return fw, fw.writeMeta(append(line, '}'))
}

// Write writes one message. A *WriteError is final, other errors are not.
func (w *FrameWriter) Write(m *Message) error {
	return w.add(func(b []byte) ([]byte, error) { return appendMessage(b, m) })
}

// Messages returns how many messages were written.
func (w *FrameWriter) Messages() int { return w.records + w.waiting }

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
