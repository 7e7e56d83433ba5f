package player

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/vllm-vcr/conformance/internal/wire/zmq"
)

// outbox keeps messages to one peer until they are written, so that a peer that reads
// slowly, or not at all, delays no other. The engine puts and flushes, which
// writes what the kernel takes at once; write runs in a goroutine of its own, and waits for the rest.
//
// What is kept is bounded: beyond half of limit bytes the outbox is full, and drained is
// called when it no longer is. Beyond limit bytes put waits, as a message is never dropped.
type outbox struct {
	conn    *zmq.Conn
	limit   int
	drained func()
	crowded atomic.Bool // full

	mu      sync.Mutex
	changed sync.Cond // of everything below
	kept    []*chunk  // what the writer has not taken yet, oldest first
	size    int       // bytes in chunks that are not written yet
	flushed bool      // the writer may take what is kept
	writing bool      // the writer has taken something that is not written yet
	closed  bool      // nothing more will be put
	failed  bool      // nothing more can be written
}

// chunk is some messages behind each other, as they are on the wire.
type chunk struct {
	bytes []byte
	sent  int // of bytes
}

// chunkSize is where a chunk is full. A longer message gets one of its own.
const chunkSize = 64 << 10

// chunks are those that are not in use, of all outboxes.
var chunks = sync.Pool{New: func() any { return &chunk{bytes: make([]byte, 0, chunkSize)} }}

func newOutbox(conn *zmq.Conn, limit int, drained func()) *outbox {
	b := &outbox{conn: conn, limit: limit, drained: drained}
	b.changed.L = &b.mu
	return b
}

// put adds a message, which may be reused when put returns. It waits while too much
// is kept, and drops the message when the peer takes no more.
func (b *outbox) put(frames [][]byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.size > b.limit && !b.failed {
		b.release()
		b.changed.Wait()
	}
	if b.failed || b.closed {
		return
	}
	need := 0
	for _, frame := range frames {
		need += len(frame)
	}
	c := b.room(need)
	before := len(c.bytes)
	c.bytes = zmq.AppendMessage(c.bytes, frames)
	b.size += len(c.bytes) - before
	if b.size > b.limit/2 && !b.crowded.Load() {
		b.crowded.Store(true)
		b.release() // what is not flushed now may have to wait for a step that does not come
	}
}

// room returns the chunk that a message of so many bytes goes into.
func (b *outbox) room(need int) *chunk {
	if n := len(b.kept); n > 0 {
		if last := b.kept[n-1]; len(last.bytes)+need <= chunkSize {
			return last
		}
		b.release() // a full one need not wait for the flush
	}
	c := chunks.Get().(*chunk)
	b.kept = append(b.kept, c)
	return c
}

// release lets the writer take what is kept.
func (b *outbox) release() {
	if len(b.kept) > 0 && !b.flushed {
		b.flushed = true
		b.changed.Broadcast()
	}
}

// flush lets go what was put. What the kernel takes at once is written here: to wake up
// the writer would take longer.
func (b *outbox) flush() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.flushed || b.writing || b.failed {
		b.release()
		return
	}
	for len(b.kept) > 0 {
		c := b.kept[0]
		n, err := b.conn.TryWire(c.bytes)
		c.sent = n
		if err != nil || n < len(c.bytes) {
			b.release() // the writer waits, or finds out
			return
		}
		b.kept = slices.Delete(b.kept, 0, 1)
		b.wrote(c)
	}
}

// close ends the puts. What was put is still written.
func (b *outbox) close() {
	b.mu.Lock()
	b.closed = true
	b.changed.Broadcast()
	b.mu.Unlock()
}

// fail drops what is kept and all that is put from now on.
func (b *outbox) fail() {
	b.mu.Lock()
	b.failed = true
	b.relax()
	for _, c := range b.kept {
		c.recycle()
	}
	b.kept = nil
	b.changed.Broadcast()
	b.mu.Unlock()
}

// full reports whether so much is kept that the peer should get no more.
func (b *outbox) full() bool { return b.crowded.Load() }

// relax reports whether the outbox is not full, if it was.
func (b *outbox) relax() {
	if b.crowded.CompareAndSwap(true, false) {
		b.drained()
	}
}

// write writes what is put until the outbox is closed and empty, or until the peer
// takes no more: then it returns why, and whatever is put later is dropped.
func (b *outbox) write() error {
	var taken []*chunk
	for {
		var more bool
		if taken, more = b.take(taken); !more {
			return nil
		}
		for i, c := range taken {
			if err := b.conn.WriteWire(c.bytes[c.sent:]); err != nil {
				b.fail()
				return err
			}
			b.mu.Lock()
			b.wrote(c)
			b.mu.Unlock()
			taken[i] = nil
		}
	}
}

// take waits for something to write. The slice of the last call is used again.
func (b *outbox) take(last []*chunk) (taken []*chunk, more bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.writing = false
	for !b.flushed && !b.closed && !b.failed {
		b.changed.Wait()
	}
	if b.failed || len(b.kept) == 0 {
		return nil, false
	}
	taken, b.kept, b.flushed, b.writing = b.kept, last[:0], false, true
	return taken, true
}

// wrote takes a chunk out of the count. Who waits to put goes on.
func (b *outbox) wrote(c *chunk) {
	held := b.size > b.limit
	b.size -= len(c.bytes)
	if b.size <= b.limit/2 {
		b.relax()
	}
	if held && b.size <= b.limit {
		b.changed.Broadcast()
	}
	c.recycle()
}

// recycle gives the chunk back, unless it was made for one huge message.
func (c *chunk) recycle() {
	if cap(c.bytes) > chunkSize {
		return
	}
	c.bytes, c.sent = c.bytes[:0], 0
	chunks.Put(c)
}
