package zmq

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

const (
	// relayBuffer is how much one read of a relay takes at most, unless it is the
	// inside of a frame that is observed.
	relayBuffer = 64 << 10
	// drainTime is how long a relay that is to end still passes on what keeps coming.
	drainTime = 100 * time.Millisecond
)

// finishTime is how long a relay that is to end waits for the rest of a message it has begun. Tests change it.
var finishTime = 5 * time.Second

// An Observer sees the messages that pass one way through a relay. Its methods are
// called by one goroutine, and hold up what they observe.
type Observer interface {
	// Message gets each message before its last byte is passed on, so that one that
	// observes both ways sees a question before its answer.
	Message(Relayed)
	// Passed: everything that Message was given is on its way. The moment to wake
	// the goroutine that works on it, at no cost to the peers.
	Passed()
	// HungUp: the peer will say no more, and the other side does not know it yet.
	HungUp()
	// Limits says how much of a message is kept for Message.
	Limits() (message int64, tails bool)
}

// A Relayed is one message as a Observer sees it.
type Relayed struct {
	// At is when its last byte was read.
	At time.Time
	// Wire is the message as it is on the wire, for [SplitFrames]: commands are left
	// out. It must not be changed, and is valid until Message returns, unless it is
	// Owned. Nil if the message was above the limit.
	Wire  []byte
	Owned bool
	// Release gives Wire back, for a later message. It may be called once, by any
	// goroutine, or never: that only costs the allocation. Nil unless Owned.
	Release func()
	// Size is the bytes in its frames, Elided how many of them Wire does not have.
	Size, Elided int64
}

// Relay passes on what a and b say to each other, byte for byte: no frame is
// taken apart and put together again, a large message is passed on while it is
// still arriving, and a slow peer holds up the other through the kernel's buffers.
// A observer may be nil.
//
// When one side hangs up, the other one learns of it, and what it still sends is passed
// on; what can no longer be delivered is dropped, as libzmq does, and not an error.
// Relay returns when both have hung up, when a connection fails, or when ctx ends:
// then it first passes on what is in flight, at most 5 s long. Both connections are
// closed, without losing what is on its way to a peer that takes it within 100 ms.
// The error is nil after orderly ends, and names the peer otherwise; first is the
// connection that ended first, nil if ctx did.
//
// Nothing else may use the connections from here on. What was received by
// [Conn.Recv] before is not relayed.
func Relay(ctx context.Context, a, b *Conn, fromA, fromB Observer) (first *Conn, err error) {
	ways := []*passage{newPassage(a, b, fromA), newPassage(b, a, fromB)}
	stop := context.AfterFunc(ctx, func() {
		now := time.Now()
		for _, p := range ways {
			p.ending.Store(true)
			p.allow(now.Add(drainTime), now.Add(finishTime))
		}
	})
	defer stop()

	type end struct {
		p   *passage
		err error
	}
	ends := make(chan end, len(ways))
	for _, p := range ways {
		go func() { ends <- end{p, p.run()} }()
	}
	one := <-ends
	switch {
	case one.err != nil:
		// The other way is over too: there is no connection to send it on.
		interrupt(ways)
	case !one.p.drained:
		// The other way stays open. That to is gone already is for the other way to learn.
		if half, ok := one.p.to.nc.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
	}
	two := <-ends
	interrupt(ways)
	letGo(a, b)
	if !one.p.drained {
		first = one.p.blame(one.err)
	}
	// The second error is a consequence if there is a first.
	if one.err != nil {
		return first, one.err
	}
	return first, two.err
}

// allow sets until when from may be read, and written by the other way.
func (p *passage) allow(read, write time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut {
		return
	}
	// Errors are those of a connection that already ended.
	_ = p.from.nc.SetReadDeadline(read)
	if !write.IsZero() {
		_ = p.from.nc.SetWriteDeadline(write)
	}
}

// interrupt ends what is blocked in either connection, for good.
func interrupt(ways []*passage) {
	for _, p := range ways {
		p.mu.Lock()
		if !p.cut {
			p.cut = true
			_ = p.from.nc.SetDeadline(time.Now())
		}
		p.mu.Unlock()
	}
}

// letGo closes connections that are not used any more, and first waits a little for
// the peers to hang up: closing a TCP socket with unread input would discard what
// its peer has not read yet.
func letGo(conns ...*Conn) {
	deadline := time.Now().Add(drainTime)
	var wg sync.WaitGroup
	for _, c := range conns {
		c.gone.Store(true)
		wg.Go(func() {
			defer c.nc.Close()
			_ = c.drain(deadline)
		})
	}
	wg.Wait()
}

// blame is the connection whose end err is about.
func (p *passage) blame(err error) *Conn {
	var w *writeError
	if p.lost || errors.As(err, &w) {
		return p.to
	}
	return p.from
}

type writeError struct{ err error }

func (e *writeError) Error() string { return e.err.Error() }
func (e *writeError) Unwrap() error { return e.err }

// run passes bytes on until from hangs up. It returns nil then, and when it is
// to end and is between two messages.
func (p *passage) run() error {
	// A PONG that Recv owes is whole before anything else is written.
	p.to.bg.Wait()
	if err := p.to.Flush(); err != nil {
		return &writeError{err}
	}
	for {
		n, err := p.read()
		if n > 0 {
			if err := p.pass(n); err != nil {
				return err
			}
		}
		switch {
		case p.lost:
			// The way back is not ended: to may have said something before it went, and how it went is what that way learns.
			_, _ = io.Copy(io.Discard, onlyReader{p.from.nc})
			return nil
		case err == nil && p.extended && p.between():
			p.drained = true
			return nil
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded) && p.ending.Load():
			if p.drained = p.between() || !p.extend(); p.drained {
				if p.between() {
					return nil
				}
				return fmt.Errorf("relay from %s: the rest of a message did not come within %v: %w", p.from.peer, finishTime, err)
			}
		case errors.Is(err, io.EOF) && p.between():
			p.hungUp()
			return nil
		case errors.Is(err, io.EOF):
			p.hungUp()
			return fmt.Errorf("relay from %s: %w in the middle of a message: %w", p.from.peer, ErrPeerGone, io.ErrUnexpectedEOF)
		default:
			p.hungUp()
			return fmt.Errorf("relay from %s: %w", p.from.peer, p.from.cause(err))
		}
	}
}

// read reads into room, first what the handshake or Recv has read ahead.
func (p *passage) read() (int, error) {
	if p.from.fr.br.Buffered() > 0 {
		return p.from.fr.br.Read(p.buffer())
	}
	return p.from.nc.Read(p.buffer())
}

// pass shows the n bytes just read into room to the observer and passes them on, up to
// a byte that is no ZMTP.
func (p *passage) pass(n int) error {
	chunk, wrong := p.received(n)
	if _, err := p.to.nc.Write(chunk); hungUp(err) {
		p.lost = true
	} else if err != nil {
		return &writeError{fmt.Errorf("relay to %s: %w", p.to.peer, p.to.cause(err))}
	}
	if p.reported {
		p.observer.Passed()
	}
	if wrong != nil {
		return fmt.Errorf("relay from %s: %w", p.from.peer, wrong)
	}
	return nil
}

// extend gives a message that has begun the time to end, once.
func (p *passage) extend() bool {
	if p.extended {
		return false
	}
	p.extended = true
	p.allow(time.Now().Add(finishTime), time.Time{})
	return true
}

// hungUp reports to the observer that from has, unless it is the relay that ends.
func (p *passage) hungUp() {
	if p.observer != nil && !p.ending.Load() && !p.isCut() {
		p.observer.HungUp()
	}
}

func (p *passage) isCut() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cut
}
