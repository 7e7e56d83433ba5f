package zmq

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// PubOptions are the settings of a [Publisher].
type PubOptions struct {
	Options
	// HighWater is how many messages may wait for one subscriber, those in the kernel's
	// buffers not counted. As in libzmq, what comes when so many wait is dropped for
	// that subscriber, until it has taken half of them. 0 is no limit.
	HighWater int
	// Subscribed is told of each prefix that a subscriber newly asks for, and may not
	// change it; from then on it is said what it asked for. Like Refused it is called by
	// any goroutine until Close returns, and may be nil.
	Subscribed func(p Peer, prefix []byte)
	// Refused is told why a connection did not become a subscriber, or that none could
	// be accepted.
	Refused func(error)
}

// maxSubscription is [Options.MaxFrame] of a publisher unless something else was asked
// for: nothing but subscriptions is received.
const maxSubscription = 64 << 10

// Publisher is a PUB socket: it says each message to every subscriber, SUB or XSUB,
// that asked for it, and to nobody who comes later. Saying never waits for anybody.
type Publisher struct {
	endpoint string
	opt      PubOptions
	ln       net.Listener // nil if it dials

	ctx    context.Context // ends when Close has lingered
	cancel context.CancelFunc
	ending chan struct{} // closed when Close begins
	wg     sync.WaitGroup

	mu      sync.RWMutex
	all     map[*subscriber]struct{}
	closed  bool
	dropped atomic.Uint64

	closing  sync.Once
	closeErr error
}

// ListenPub binds endpoint, as [Listen] does, for subscribers to connect.
func ListenPub(endpoint string, opt PubOptions) (*Publisher, error) {
	p, addr, err := newPublisher(endpoint, opt)
	if err != nil {
		return nil, fmt.Errorf("publish on %w", err)
	}
	if p.ln, err = addr.forListening().listen(); err != nil {
		p.cancel()
		return nil, fmt.Errorf("publish on %s: %w", endpoint, err)
	}
	p.endpoint = endpointOf(p.ln.Addr())
	p.wg.Go(func() { acceptAll(p.ctx, p.ln, &p.wg, p.accept, p.refuse) })
	return p, nil
}

// DialPub publishes to the one subscriber that listens at endpoint. It returns at once
// and connects behind the caller's back, again when the connection is lost. As in
// libzmq, messages are dropped before the first subscription has come, and afterwards
// wait while there is no connection. A peer that is no subscriber is not dialed again.
func DialPub(endpoint string, opt PubOptions) (*Publisher, error) {
	p, _, err := newPublisher(endpoint, opt)
	if err != nil {
		return nil, fmt.Errorf("publish to %w", err)
	}
	p.endpoint = endpoint
	s := newSubscriber(p.opt)
	p.all[s] = struct{}{}
	p.wg.Go(func() { p.keepConnected(s) })
	return p, nil
}

func newPublisher(endpoint string, opt PubOptions) (*Publisher, address, error) {
	if opt.HighWater < 0 {
		return nil, address{}, fmt.Errorf("%s: high-water mark %d, want 0 for none or how many messages may wait", endpoint, opt.HighWater)
	}
	if opt.MaxFrame == 0 {
		opt.MaxFrame = maxSubscription
	}
	addr, common, err := prepare(endpoint, Pub, opt.Options, []Type{Pub})
	if err != nil {
		return nil, address{}, err
	}
	opt.Options = common
	p := &Publisher{opt: opt, ending: make(chan struct{}), all: make(map[*subscriber]struct{})}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p, addr, nil
}

// Endpoint is what a subscriber dials, with the port that was chosen, or what is dialed.
func (p *Publisher) Endpoint() string { return p.endpoint }

// Send says m to every subscriber that asked for it: that asked for a prefix of its
// first frame. It keeps m, which must not be changed any more. The error is
// [net.ErrClosed] after Close; that a subscriber is slow or gone is none.
func (p *Publisher) Send(m Message) error {
	if len(m) == 0 {
		return fmt.Errorf("publish on %s: %w", p.endpoint, errNoFrames)
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed {
		return fmt.Errorf("publish on %s: %w", p.endpoint, net.ErrClosed)
	}
	for s := range p.all {
		if !s.offer(m) {
			p.dropped.Add(1)
		}
	}
	return nil
}

// Wanted reports whether anybody has asked for messages that begin with topic.
func (p *Publisher) Wanted(topic []byte) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for s := range p.all {
		if s.wants(topic) {
			return true
		}
	}
	return false
}

// Dropped is how many messages were not said to a subscriber because
// [PubOptions.HighWater] others were waiting for it, counted for each subscriber.
func (p *Publisher) Dropped() uint64 { return p.dropped.Load() }

// accept is the life of one connection to a publisher that listens.
func (p *Publisher) accept(nc net.Conn) {
	c := newConn(nc, Pub, p.opt.Options, remote(nc))
	stop := hangUp(p.ctx, nc)
	err := c.handshake(func(*Peer) error { return nil })
	if !stop() || err != nil {
		nc.Close()
		if p.ctx.Err() == nil {
			p.refuse(fmt.Errorf("%s on %s: %w", c.peer, p.endpoint, err))
		}
		return
	}
	s := newSubscriber(p.opt)
	p.serve(c, s)
}

// keepConnected is the life of a publisher that dials.
func (p *Publisher) keepConnected(s *subscriber) {
	for p.ctx.Err() == nil {
		c, err := connect(p.ctx, p.endpoint, Pub, p.opt.Options, []Type{Pub}, func(*Conn) {})
		if err != nil {
			if p.ctx.Err() == nil {
				p.refuse(err)
			}
			return
		}
		p.serve(c, s)
		if !p.pause() {
			return
		}
	}
}

// redial is how long a publisher waits before it dials a lost subscriber again, as
// libzmq does.
const redial = 100 * time.Millisecond

// pause lies between two connections of a publisher that dials. It reports false when
// there is to be no other.
func (p *Publisher) pause() bool {
	timer := time.NewTimer(redial)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-p.ending:
		return false
	}
}

func (p *Publisher) refuse(err error) {
	if p.opt.Refused != nil {
		p.opt.Refused(err)
	}
}

// serve says to s over c what it asks for, until the peer goes or Close ends it.
func (p *Publisher) serve(c *Conn, s *subscriber) {
	c.heed = func(command []byte) error { return s.heedCommand(c, command) }
	end := &session{conn: c, written: make(chan struct{}), gone: make(chan struct{})}
	if p.join(s, end) {
		p.wg.Go(func() { s.write(end, p.ending) })
		err := s.read(c)
		close(end.gone)
		<-end.written
		if !errors.Is(err, ErrPeerGone) && !errors.Is(err, net.ErrClosed) {
			p.refuse(fmt.Errorf("%s on %s: %w", c.peer, p.endpoint, err))
		}
	}
	// Close, if it is under way, gets the error.
	_ = c.Close()
	p.leave(s)
}

// join makes s one that is said to, unless the publisher was closed.
func (p *Publisher) join(s *subscriber, now *session) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.all[s] = struct{}{}
	s.now = now
	return true
}

// leave forgets s if it will not come back: what waits for one that is dialed stays.
func (p *Publisher) leave(s *subscriber) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.now = nil
	if p.ln != nil {
		delete(p.all, s)
	}
}

// Close stops accepting. With [Options.Linger] it lets the subscribers take what waits
// for them, each for so long at most, and reports who did not; without, that is dropped.
func (p *Publisher) Close() error {
	p.closing.Do(func() { p.closeErr = p.close() })
	return p.closeErr
}

func (p *Publisher) close() error {
	p.mu.Lock()
	p.closed = true
	var sessions []*session
	for s := range p.all {
		if s.now != nil {
			sessions = append(sessions, s.now)
		}
	}
	p.mu.Unlock()
	close(p.ending)
	errs := make([]error, len(sessions)+1)
	if p.ln != nil {
		errs[len(sessions)] = p.ln.Close()
	}
	var ends sync.WaitGroup
	for i, s := range sessions {
		ends.Go(func() { errs[i] = s.end(p.opt.Linger) })
	}
	ends.Wait()
	p.cancel()
	p.wg.Wait()
	return errors.Join(errs...)
}
