package trace

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"time"
)

// FrameReader streams a frames file.
type FrameReader struct {
	lines   *lineReader
	meta    json.RawMessage
	pending []byte // the first line, when it is a message
	arena   []byte // backs the frames of the message last returned
	err     error  // sticky
	file    io.Closer
}

// OpenFrames opens the frames file at path and reads its meta line. The caller
// closes the FrameReader. Errors name the path.
func OpenFrames(path string, opt Options) (*FrameReader, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	r, err := NewFrameReader(f, path, IsGzip(path), opt)
	if err != nil {
		f.Close()
		return nil, err
	}
	r.file = f
	return r, nil
}

// NewFrameReader reads a frames file from r, and its meta line at once. name is
// for messages. Of Options, Strict asks for a whole gzip stream and last line,
// as for a trace.
func NewFrameReader(r io.Reader, name string, gzip bool, opt Options) (*FrameReader, error) {
	fr := &FrameReader{lines: newLineReader(r, name, gzip, opt)}
	line, err := fr.lines.next()
	if err == io.EOF {
		fr.err = io.EOF
		return fr, nil
	}
	if err != nil {
		return nil, err
	}
	if fr.meta, err = parseFramesHead(line); err != nil {
		return nil, fr.lines.locate(err)
	}
	if fr.meta == nil {
		fr.pending = line
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

// Meta returns the meta object as it stands, nil if the file has none.
func (r *FrameReader) Meta() json.RawMessage { return r.meta }

// Next fills m with the next message, or returns io.EOF after the last. Its
// frames are valid until the next call. After an error further calls return the
// same one.
func (r *FrameReader) Next(m *Message) error {
	if r.err == nil {
		r.err = r.next(m)
	}
	return r.err
}

func (r *FrameReader) next(m *Message) (err error) {
	line := r.pending
	r.pending = nil
	if line == nil {
		if line, err = r.lines.next(); err != nil {
			return err
		}
	}
	// Base64 is longer than what it stands for, so that the arena never moves.
	if most := len(line); cap(r.arena) < most {
		r.arena = make([]byte, 0, 2*most)
	}
	p := messageParser{cursor: cursor{b: line}, m: m, arena: r.arena[:0]}
	if err := p.parse(); err != nil {
		return r.lines.locate(err)
	}
	m.Line = r.lines.line
	return nil
}

// Truncated tells whether the gzip stream ended without its trailer, once Next
// has returned io.EOF.
func (r *FrameReader) Truncated() bool { return r.lines.cut }

// Warnings returns what was tolerated so far, each naming file and line.
func (r *FrameReader) Warnings() []string { return r.lines.warnings }

// Close closes the file, if OpenFrames opened it.
func (r *FrameReader) Close() error {
	if r.file == nil {
		return nil
	}
	return r.file.Close()
}

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
		return at.fail("want handshake, input0 …, output0 …, coordinator_input or coordinator_output, got %s", clip([]byte(text)))
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
