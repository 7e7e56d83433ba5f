package zmq

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
)

// Flag bits of a frame, https://rfc.zeromq.org/spec/23/ "Framing".
const (
	flagMore    = 1 << 0 // another frame of the same message follows
	flagLong    = 1 << 1 // the length has 8 bytes, not 1
	flagCommand = 1 << 2 // the frame is a command
	flagsKnown  = flagMore | flagLong | flagCommand
)

const (
	shortHeader = 2
	longHeader  = 9
	maxShort    = 255 // bytes a short frame holds

	// bufferSize of a connection, each way: some 300 messages of 100 bytes a system
	// call, and 32 MiB for 500 peers.
	bufferSize = 32 << 10

	// firstGrow is how much of a frame is allocated before any of it arrived, growth
	// by how much the buffer grows when it is full: a 10 MB frame is moved twice, and
	// a false length costs at most 64 KiB or 16 times what was sent.
	firstGrow = 64 << 10
	growth    = 16

	// maxCommand bounds commands. READY with a 255 byte identity needs 300 bytes.
	maxCommand = 8 << 10
	// maxFrames bounds the index of a message whose frames are empty.
	maxFrames = 1 << 16

	// indexChunk is how many frame slots are allocated at once. A message that is
	// kept keeps at most this many frames of its neighbours alive.
	indexChunk = 8
	// maxChunked is the largest frame whose slot may share a chunk.
	maxChunked = 16 << 10

	// Frames of at most maxSlabbed bytes share the memory of slabSize bytes with their neighbours, which a message that is
	// kept keeps alive.
	maxSlabbed = 2 << 10
	slabSize   = 16 << 10
)

// frameReader reads ZMTP frames. An error of the underlying reader leaves it
// where it was: after a read deadline next continues in the middle of a frame.
type frameReader struct {
	br  *bufio.Reader
	max atomic.Int64 // bytes in a message

	msg     Message // frames of the message being read
	msgSize int64

	inFrame bool // a header has been read, its body not yet
	flags   byte
	size    int64
	body    []byte // as far as it arrived

	spare [][]byte // unused slots
	slab  []byte   // unused memory for small frames
}

func newFrameReader(r io.Reader, maxMessage int64) *frameReader {
	reader := &frameReader{br: bufio.NewReaderSize(r, bufferSize)}
	reader.max.Store(maxMessage)
	return reader
}

// next returns a message or the body of a command, never both. Commands may
// stand between the frames of a message: libzmq queues a PING there.
func (r *frameReader) next() (msg Message, command []byte, err error) {
	for {
		if err := r.readFrame(); err != nil {
			return nil, nil, err
		}
		body, flags := r.body, r.flags
		r.inFrame, r.body = false, nil
		if flags&flagCommand != 0 {
			return nil, body, nil
		}
		r.add(body)
		if flags&flagMore == 0 {
			msg, r.msg, r.msgSize = r.msg, nil, 0
			return msg, nil, nil
		}
	}
}

// add appends a frame to the message being read.
func (r *frameReader) add(body []byte) {
	r.msgSize += int64(len(body))
	switch {
	case r.msg != nil:
		r.msg = append(r.msg, body)
	case r.flags&flagMore != 0:
		r.msg = append(make(Message, 0, 2), body)
	case len(body) > maxChunked:
		r.msg = Message{body}
	default:
		r.msg = r.chunked(body)
	}
}

// chunked makes a message of one frame without an allocation of its own.
func (r *frameReader) chunked(body []byte) Message {
	if len(r.spare) == 0 {
		r.spare = make([][]byte, indexChunk)
	}
	msg := r.spare[:1:1]
	msg[0], r.spare = body, r.spare[1:]
	return msg
}

func (r *frameReader) readFrame() error {
	if !r.inFrame {
		if err := r.readHeader(); err != nil {
			return err
		}
	}
	for int64(len(r.body)) < r.size {
		if len(r.body) == cap(r.body) {
			room := max(firstGrow, growth*int64(cap(r.body)))
			body := make([]byte, len(r.body), min(room, r.size))
			copy(body, r.body)
			r.body = body
		}
		n, err := r.br.Read(r.body[len(r.body):cap(r.body)])
		r.body = r.body[:len(r.body)+n]
		if err != nil {
			return r.inMessage(err)
		}
	}
	return nil
}

func (r *frameReader) readHeader() error {
	head, err := r.br.Peek(shortHeader)
	if err != nil {
		if len(head) > 0 || r.msg != nil {
			err = r.inMessage(err)
		}
		return err
	}
	flags, size, n := head[0], uint64(head[1]), shortHeader
	if err := checkFlags(flags); err != nil {
		return err
	}
	if flags&flagLong != 0 {
		if head, err = r.br.Peek(longHeader); err != nil {
			return r.inMessage(err)
		}
		size, n = binary.BigEndian.Uint64(head[1:]), longHeader
	}
	if err := r.checkSize(flags, size); err != nil {
		return err
	}
	// What was peeked can be discarded.
	_, _ = r.br.Discard(n)
	r.inFrame, r.flags, r.size, r.body = true, flags, int64(size), []byte{}
	if size > 0 && size <= maxSlabbed {
		if uint64(len(r.slab)) < size {
			r.slab = make([]byte, slabSize)
		}
		r.body, r.slab = r.slab[:0:size], r.slab[size:]
	}
	return nil
}

func checkFlags(flags byte) error {
	switch {
	case flags&^flagsKnown != 0:
		return fmt.Errorf("%w: frame flags %#02x, bits %#02x are reserved", ErrProtocol, flags, flags&^flagsKnown)
	case flags&flagCommand != 0 && flags&flagMore != 0:
		return fmt.Errorf("%w: frame flags %#02x, a command of several frames", ErrProtocol, flags)
	}
	return nil
}

// checkSize refuses a frame by its header, before any of its body is read.
func (r *frameReader) checkSize(flags byte, size uint64) error {
	limit := r.max.Load()
	switch {
	case flags&flagCommand != 0 && size > maxCommand:
		return fmt.Errorf("%w: command of %d bytes, the limit is %d", ErrTooLarge, size, maxCommand)
	case flags&flagCommand != 0:
		return nil
	case size > uint64(max(limit-r.msgSize, 0)):
		return fmt.Errorf("%w: frame %d of a message has %d bytes after %d before it, the limit is %d",
			ErrTooLarge, len(r.msg)+1, size, r.msgSize, limit)
	case len(r.msg) == maxFrames:
		return fmt.Errorf("%w: message of more than %d frames", ErrTooLarge, maxFrames)
	}
	return nil
}

// inMessage says how much of a message had arrived when the stream ended.
func (r *frameReader) inMessage(err error) error {
	if !errors.Is(err, io.EOF) {
		return err
	}
	if !r.inFrame {
		return fmt.Errorf("in the header of frame %d of a message: %w", len(r.msg)+1, io.ErrUnexpectedEOF)
	}
	return fmt.Errorf("after %d of %d bytes of frame %d of a message: %w",
		len(r.body), r.size, len(r.msg)+1, io.ErrUnexpectedEOF)
}

// putHeader writes the header of a frame of size bytes to h and returns its length.
func putHeader(h *[longHeader]byte, flags byte, size int) int {
	if size <= maxShort {
		h[0], h[1] = flags, byte(size)
		return shortHeader
	}
	h[0] = flags | flagLong
	binary.BigEndian.PutUint64(h[1:], uint64(size))
	return longHeader
}
