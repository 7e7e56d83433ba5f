package zmq

import (
	"context"
	"net"
	"sync"
)

// An inbox is full at either bound; a message above the second one passes alone.
// What the receiver took and has not handed out counts apart, so at most twice as
// much is in memory.
const (
	inboxEvents = 1024
	inboxBytes  = 16 << 20
)

// inbox hands what all peers' goroutines found to one receiver, in the order of
// each peer. The receiver takes everything there is at once, which costs one lock
// for many messages when they come fast. A full inbox blocks the goroutines, and
// so, through TCP, the peers.
type inbox struct {
	mu     sync.Mutex
	room   sync.Cond
	events []Delivery
	bytes  int
	closed bool

	arrived chan struct{} // holds a token when events may be non-empty
	done    chan struct{} // closed by close

	recv  sync.Mutex // one receiver at a time
	taken []Delivery
	next  int // in taken
}

func newInbox() *inbox {
	b := &inbox{arrived: make(chan struct{}, 1), done: make(chan struct{})}
	b.room.L = &b.mu
	return b
}

// put appends d, waiting for room. It reports false when the inbox is closed.
func (b *inbox) put(d Delivery) bool {
	size := d.Message.size()
	b.mu.Lock()
	for !b.closed && b.full(size) {
		b.room.Wait()
	}
	if b.closed {
		b.mu.Unlock()
		return false
	}
	b.events = append(b.events, d)
	b.bytes += size
	first := len(b.events) == 1
	b.mu.Unlock()
	if first {
		select {
		case b.arrived <- struct{}{}:
		default:
		}
	}
	return true
}

func (b *inbox) full(size int) bool {
	return len(b.events) >= inboxEvents || len(b.events) > 0 && b.bytes+size > inboxBytes
}

// take waits for the next event.
func (b *inbox) take(ctx context.Context) (Delivery, error) {
	b.recv.Lock()
	defer b.recv.Unlock()
	for b.next == len(b.taken) {
		if b.refill() {
			break
		}
		select {
		case <-b.arrived:
		case <-ctx.Done():
			return Delivery{}, context.Cause(ctx)
		case <-b.done:
			return Delivery{}, net.ErrClosed
		}
	}
	d := b.taken[b.next]
	b.taken[b.next] = Delivery{} // the receiver owns the message now
	b.next++
	return d, nil
}

// refill swaps what has been received for what has arrived, if anything.
func (b *inbox) refill() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.events) == 0 || b.closed {
		return false
	}
	b.taken, b.events = b.events, b.taken[:0]
	b.next, b.bytes = 0, 0
	b.room.Broadcast()
	return true
}

// close drops what has not been received and lets everybody go.
func (b *inbox) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.events = nil
	b.room.Broadcast()
	close(b.done)
}
