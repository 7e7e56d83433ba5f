package zmq

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// A passage is one way through a relay. It follows the framing of what passes, and
// keeps a copy of a message only for a observer.
type passage struct {
	from, to *Conn
	observer Observer // nil: the messages are not observed
	limit    int64    // bytes of a message that are kept
	tails    bool     // whether frames behind the second are kept

	mu     sync.Mutex  // deadlines against cut
	cut    bool        // the deadlines stay as they are
	ending atomic.Bool // the relay is to end

	drained  bool // it has ended because it was to
	extended bool // it is to pass on the rest of one message and no more
	lost     bool // to is gone

	chunk    []byte
	inPart   bool      // the last room was in part
	at       time.Time // when chunk was read
	reported bool      // the observer was given a message in this chunk

	head   [longHeader]byte
	headed int    // bytes of head that have arrived
	inBody bool   // the head is whole, and a body passes
	flags  byte   // of that frame
	left   uint64 // bytes of that body still to come

	begun   sighted     // the message that passes
	frames  int         // how many of its frames have begun
	leaving bool        // the body that passes is left out
	over    bool        // the message is above the limit
	part    []byte      // what is kept of it so far
	spare   chan []byte // what the observer gave back
}

// sighted is what is known of a message while it passes.
type sighted struct{ size, elided int64 }

const (
	// ownedSize is where a copy is given to the observer rather than reused.
	ownedSize = relayBuffer
	// bigBody is how much of a body must be outstanding for it to be read straight into
	// the copy, which then costs no time, and bodyRead how much of it is read at once:
	// what was read is best written while it is in the processor's cache.
	bigBody  = relayBuffer
	bodyRead = 256 << 10
	// partGrowth is by how much the copy grows when it is full. A 10 MB frame is moved
	// once, and a false length costs at most 256 KiB or 64 times what was sent.
	partGrowth = 64
	// spares is how many copies are kept for reuse, each of maxSpare bytes at most: one
	// fills while the observer has the other.
	spares   = 2
	maxSpare = 32 << 20
)

func newPassage(from, to *Conn, w Observer) *passage {
	p := &passage{from: from, to: to, observer: w, chunk: make([]byte, relayBuffer), spare: make(chan []byte, spares)}
	if w != nil {
		p.limit, p.tails = w.Limits()
	}
	return p
}

// between reports whether no message has begun and not ended.
func (p *passage) between() bool { return p.frames == 0 && p.headed == 0 && !p.inBody }

// keeps reports whether the body that passes is copied.
func (p *passage) keeps() bool {
	return p.observer != nil && p.flags&flagCommand == 0 && !p.over && !p.leaving
}

// room is where the next bytes are to be read.
func (p *passage) buffer() []byte {
	p.inPart = p.inBody && p.left >= bigBody && p.keeps()
	if !p.inPart {
		return p.chunk[:p.wanted()]
	}
	if cap(p.part)-len(p.part) < bigBody {
		p.growPart()
	}
	free := p.part[len(p.part):cap(p.part)]
	return free[:min(uint64(len(free)), p.left, bodyRead)]
}

// wanted is how much of chunk is to be filled: all, but nothing behind the message
// that is the last to pass.
func (p *passage) wanted() int {
	switch {
	case !p.extended:
		return len(p.chunk)
	case p.inBody:
		return int(min(p.left, uint64(len(p.chunk))))
	case p.headed < shortHeader:
		return shortHeader - p.headed
	}
	return longHeader - p.headed
}

// growPart makes room: in what the observer gave back, for clearing new memory takes as
// long as passing the frame on, else in proportion to what has arrived.
func (p *passage) growPart() {
	select {
	case spare := <-p.spare:
		if cap(spare) >= len(p.part)+bigBody {
			p.part = append(spare[:0], p.part...)
			return
		}
	default:
	}
	more := min(p.left, uint64(max(partGrowth*len(p.part), 4*bigBody)))
	part := make([]byte, len(p.part), len(p.part)+int(more))
	copy(part, p.part)
	p.part = part
}

func (p *passage) release(part []byte) {
	if cap(part) > maxSpare {
		return
	}
	select {
	case p.spare <- part:
	default:
	}
}

// took follows the n bytes that were read into room, and returns them. An error ends
// them: it is about the byte behind.
func (p *passage) received(n int) ([]byte, error) {
	p.reported = false
	if p.observer != nil {
		p.at = time.Now()
	}
	if !p.inPart {
		n, err := p.follow(p.chunk[:n])
		return p.chunk[:n], err
	}
	begin := len(p.part)
	p.part = p.part[:begin+n]
	read := p.part[begin:]
	if p.left -= uint64(n); p.left == 0 {
		p.endFrame()
	}
	return read, nil
}

// follow walks over the frames of chunk, and says how far it got.
func (p *passage) follow(chunk []byte) (at int, err error) {
	for at < len(chunk) {
		if p.between() {
			if n, size := p.whole(chunk[at:]); n > 0 {
				p.report(Relayed{Wire: chunk[at : at+n], Size: size})
				at += n
				continue
			}
		}
		n, err := p.step(chunk[at:])
		if err != nil {
			return at, err
		}
		at += n
	}
	return at, nil
}

// whole is the length of the message that chunk begins with, if all of it is there
// and all of it is kept; else 0. It is the common case, and copies nothing.
func (p *passage) whole(chunk []byte) (n int, size int64) {
	for frame := 1; ; frame++ {
		flags, body, header, ok := parseHeader(chunk[n:])
		switch {
		case !ok || flags&^(flagMore|flagLong) != 0 || frame > maxFrames,
			uint64(len(chunk)-n-header) < body,
			frame > 2 && !p.tails && body > 0 && p.observer != nil,
			p.observer != nil && int64(body) > p.limit-size:
			return 0, 0
		}
		n += header + int(body)
		size += int64(body)
		if flags&flagMore == 0 {
			return n, size
		}
	}
}

// parseHeader reads the header of a frame, if it is all there.
func parseHeader(b []byte) (flags byte, body uint64, header int, ok bool) {
	if len(b) < shortHeader {
		return 0, 0, 0, false
	}
	if b[0]&flagLong == 0 {
		return b[0], uint64(b[1]), shortHeader, true
	}
	if len(b) < longHeader {
		return 0, 0, 0, false
	}
	return b[0], binary.BigEndian.Uint64(b[1:]), longHeader, true
}

// step follows the next piece of chunk: of a header or of a body.
func (p *passage) step(chunk []byte) (n int, err error) {
	if !p.inBody {
		return p.stepHeader(chunk)
	}
	n = int(min(uint64(len(chunk)), p.left))
	if p.keeps() {
		p.part = append(p.part, chunk[:n]...)
	}
	if p.left -= uint64(n); p.left == 0 {
		p.endFrame()
	}
	return n, nil
}

func (p *passage) stepHeader(chunk []byte) (n int, err error) {
	p.head[p.headed] = chunk[0]
	p.headed++
	if p.headed == 1 {
		return 1, checkFlags(chunk[0])
	}
	flags, body, n, ok := parseHeader(p.head[:p.headed])
	if ok {
		p.headed = 0
		p.beginFrame(p.head[:n], flags, body)
	}
	return 1, nil
}

// beginFrame decides what is kept of a frame. Nothing is refused for its size: a
// relay needs no memory for what it does not keep.
func (p *passage) beginFrame(header []byte, flags byte, body uint64) {
	p.flags, p.left, p.inBody, p.leaving = flags, body, true, false
	if flags&flagCommand == 0 {
		p.frames++
		p.begun.size += int64(min(body, 1<<62))
		p.over = p.over || p.observer != nil && p.tooMuch()
		p.keepHeader(header, body)
	}
	if p.left == 0 {
		p.endFrame()
	}
}

// tooMuch reports whether the message, as far as it has begun, is above the limit.
func (p *passage) tooMuch() bool {
	kept := p.tails || p.frames <= 2
	return p.frames > maxFrames || kept && p.begun.size-p.begun.elided > p.limit
}

// keepHeader copies the header of a frame that is kept, and an empty frame in place
// of one that is left out.
func (p *passage) keepHeader(header []byte, body uint64) {
	switch {
	case p.observer == nil:
		return
	case p.over:
		p.part = nil
		return
	case p.frames > 2 && !p.tails && body > 0:
		p.leaving = true
		p.begun.elided += int64(min(body, 1<<62))
		header = []byte{p.flags & flagMore, 0}
	}
	p.part = append(p.part, header...)
}

// endFrame ends a frame, and perhaps the message.
func (p *passage) endFrame() {
	p.inBody = false
	if p.flags&(flagCommand|flagMore) != 0 {
		return
	}
	s := Relayed{Wire: p.part, Size: p.begun.size, Elided: p.begun.elided, Owned: len(p.part) >= ownedSize}
	if p.over {
		s.Wire, s.Elided = nil, s.Size
	}
	if part := p.part; s.Owned {
		s.Release = func() { p.release(part) }
		p.part = nil
	}
	p.report(s)
	p.part = p.part[:0]
	p.begun, p.frames, p.over = sighted{}, 0, false
}

func (p *passage) report(s Relayed) {
	if p.observer == nil {
		return
	}
	s.At = p.at
	p.observer.Message(s)
	p.reported = true
}

// SplitFrames appends the frames of a message as [Relayed.Wire] has them to dst.
// They lie in wire. The error says where wire is not whole frames.
func SplitFrames(dst [][]byte, wire []byte) ([][]byte, error) {
	for at := 0; at < len(wire); {
		flags, body, header, ok := parseHeader(wire[at:])
		if !ok || uint64(len(wire)-at-header) < body {
			return dst, fmt.Errorf("%w: byte %d of %d: frame cut short", ErrProtocol, at, len(wire))
		}
		begin := at + header
		at = begin + int(body)
		dst = append(dst, wire[begin:at:at])
		if flags&flagMore == 0 && at < len(wire) {
			return dst, fmt.Errorf("%w: byte %d of %d: bytes behind the last frame", ErrProtocol, at, len(wire))
		}
	}
	return dst, nil
}

// JoinFrames appends the frames of a message to dst as they are on the wire, the
// reverse of [SplitFrames].
func JoinFrames(dst []byte, msg Message) []byte {
	var h [longHeader]byte
	for i, frame := range msg {
		var flags byte
		if i < len(msg)-1 {
			flags = flagMore
		}
		n := putHeader(&h, flags, len(frame))
		dst = append(append(dst, h[:n]...), frame...)
	}
	return dst
}
