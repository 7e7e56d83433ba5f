package zmq

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// A subscriber is one that a [Publisher] says its messages to. It outlives the
// connection if that is one the publisher dials again.
type subscriber struct {
	highWater  int64
	subscribed func(Peer, []byte)
	wake       chan struct{} // holds a token when queue may be non-empty
	now        *session      // nil between connections; under the publisher's mu

	mu      sync.Mutex
	asked   subscriptions
	queue   []Message
	stalled bool // high water was reached, and half of it not yet again

	waiting atomic.Int64 // queued or taken, and not written

	// What the writer took from the queue and has written of it.
	taken []Message
	next  int
}

func newSubscriber(opt PubOptions) *subscriber {
	return &subscriber{highWater: int64(opt.HighWater), subscribed: opt.Subscribed, wake: make(chan struct{}, 1)}
}

// A session is one connection of a subscriber.
type session struct {
	conn    *Conn
	gone    chan struct{} // closed when the peer went
	written chan struct{} // closed when nothing more will be written
}

// end waits at most linger until everything is written, and closes the connection.
func (s *session) end(linger time.Duration) error {
	if linger == 0 {
		return s.conn.Close()
	}
	timer := time.NewTimer(linger)
	defer timer.Stop()
	select {
	case <-s.written:
		return s.conn.Close()
	case <-timer.C:
		// Closing would linger once more.
		s.conn.gone.Store(true)
		_ = s.conn.Close()
		return fmt.Errorf("close %s: not everything was taken within %v: %w", s.conn.peer, linger, os.ErrDeadlineExceeded)
	}
}

// offer queues m if the subscriber asked for it, and reports false if it had to drop it.
func (s *subscriber) offer(m Message) bool {
	s.mu.Lock()
	if !s.asked.match(m[0]) {
		s.mu.Unlock()
		return true
	}
	if s.fullLocked() {
		s.mu.Unlock()
		return false
	}
	s.queue = append(s.queue, m)
	s.waiting.Add(1)
	first := len(s.queue) == 1
	s.mu.Unlock()
	if first {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
	return true
}

// fullLocked reports whether the subscriber is to miss a message. It then misses those
// behind it too until half of what waits is written, so that there is one gap to close
// and not many.
func (s *subscriber) fullLocked() bool {
	if s.highWater == 0 {
		return false
	}
	if waiting := s.waiting.Load(); s.stalled {
		s.stalled = waiting > s.highWater/2
	} else {
		s.stalled = waiting >= s.highWater
	}
	return s.stalled
}

func (s *subscriber) wants(topic []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked.match(topic)
}

// read takes the messages of the peer and returns why there are no more.
func (s *subscriber) read(c *Conn) error {
	for {
		m, err := c.recv()
		if err != nil {
			return err
		}
		if err = s.heed(c, readMessage(m)); err != nil {
			c.gone.Store(true)
			c.nc.Close()
			return err
		}
	}
}

// heedCommand takes a command of the peer.
func (s *subscriber) heedCommand(c *Conn, command []byte) error {
	w, err := readCommand(command)
	if err != nil {
		return err
	}
	return s.heed(c, w)
}

// heed changes what the peer is said.
func (s *subscriber) heed(c *Conn, w wish) error {
	s.mu.Lock()
	added, err := s.asked.change(w)
	s.mu.Unlock()
	if added && s.subscribed != nil {
		s.subscribed(c.peer, w.prefix)
	}
	return err
}

// write writes what is queued until the peer goes, or until everything is written and
// the publisher is ending.
func (s *subscriber) write(now *session, ending <-chan struct{}) {
	defer close(now.written)
	for {
		for s.more() {
			if now.conn.Write(s.taken[s.next]...) != nil {
				return
			}
			s.taken[s.next] = nil
			s.next++
			s.waiting.Add(-1)
		}
		if now.conn.Flush() != nil {
			return
		}
		select {
		case <-s.wake:
		case <-now.gone:
			return
		case <-ending:
			if !s.more() {
				return
			}
		}
	}
}

// more reports whether there is a message to write, and takes all that are queued when
// those taken before are written.
func (s *subscriber) more() bool {
	if s.next < len(s.taken) {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken, s.queue = s.queue, s.taken[:0]
	s.next = 0
	return len(s.taken) > 0
}
