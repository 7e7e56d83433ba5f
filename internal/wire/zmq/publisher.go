package zmq

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// PubOptions are the settings of a [Publisher].
type PubOptions struct {
	Options
	// HighWater is how many messages may wait for one subscriber, those in the kernel's
	// buffers not counted. As in libzmq, what comes when so many wait is dropped for
	// that subscriber, until it has taken half of them. 0 means no limit.
	HighWater int
	// Subscribed gets each prefix that a subscriber newly asks for, and may not
	// change it; from then on it is said what it asked for. Like Refused it is called by
	// any goroutine until Close returns, and may be nil.
	Subscribed func(p Peer, prefix []byte)
	// Refused gets the reason why a connection did not become a subscriber, or that none could
	// be accepted.
	Refused func(error)
}

// maxSubscription is [Options.MaxFrame] of a publisher unless something else was asked
// for: nothing but subscriptions is received.
const maxSubscription = 64 << 10

// Publisher is a PUB socket: it says each message to every subscriber, SUB or XSUB,
// that asked for it, and to none that comes later. Publishing never waits.
type Publisher struct {
	endpoint string
	opt      PubOptions
	ln       net.Listener // nil if it dials
	waiting  strangers

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
	p.wg.Go(func() { acceptAll(p.ctx, p.ln, &p.wg, &p.waiting, p.accept, p.refuse) })
	return p, nil
}

// DialPub publishes to the one subscriber that listens at endpoint. It returns at once
// and connects behind the caller's back, again when the connection is lost. As in
// libzmq, messages are dropped before the first subscription has come, and afterwards
// wait while there is no connection. A peer that is not a subscriber is not dialed again.
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
	opt.MaxFrame = cmp.Or(opt.MaxFrame, maxSubscription)
	addr, common, err := prepare(endpoint, Pub, opt.Options, []Type{Pub})
	if err != nil {
		return nil, address{}, err
	}
	opt.Options = common
	p := &Publisher{opt: opt, waiting: strangers{typ: Pub, opt: opt.Options}, ending: make(chan struct{}), all: make(map[*subscriber]struct{})}
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
func (p *Publisher) accept(c *Conn) {
	stop := hangUp(p.ctx, c.nc)
	err := c.handshake(func(*Peer) error { return nil })
	if !stop() || err != nil {
		c.hangUp()
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

// pause is between two connections of a publisher that dials. It reports false when
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
	c.handle = func(command []byte) error {
		w, err := readCommand(command)
		if err != nil {
			return err
		}
		return s.handle(c, w)
	}
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
	p.mu.Lock()
	defer p.mu.Unlock()
	s.now = nil
	if p.ln != nil { // what waits for one that is dialed stays
		delete(p.all, s)
	}
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

// Close stops accepting. With [Options.Linger] it lets the subscribers take what waits
// for them, each for so long at most, and reports those that did not; without, that is dropped.
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
		if err = s.handle(c, readMessage(m)); err != nil {
			c.gone.Store(true)
			c.nc.Close()
			return err
		}
	}
}

// handle changes what the peer is said.
func (s *subscriber) handle(c *Conn, w wish) error {
	s.mu.Lock()
	added, err := s.asked.change(w)
	s.mu.Unlock()
	if added {
		c.Trust()
	}
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

// What the first byte of a message to a publisher means; the prefix follows.
// https://rfc.zeromq.org/spec/23/ "The Publish-Subscribe Pattern".
const (
	cancelByte    = 0
	subscribeByte = 1
)

// Names of the commands that say the same from version 3.1 of ZMTP on. Publishers
// understand both; what we dial is sent version 3.0, and is sent messages.
const (
	subscribeCommand = "SUBSCRIBE"
	cancelCommand    = "CANCEL"
)

// Subscribe asks the publisher that a SUB or XSUB connection leads to for the messages
// whose first frame begins with prefix; an empty one asks for all. What is published
// before the publisher has read this is missed, and nothing says when it has.
func (c *Conn) Subscribe(prefix []byte) error {
	if c.typ != Sub && c.typ != XSub {
		return fmt.Errorf("subscribe at %s: a %s socket does not subscribe", c.peer, c.typ)
	}
	return c.Send(append([]byte{subscribeByte}, prefix...))
}

// isSubscription reports whether frames ask for a prefix, or take that back.
func isSubscription(frames [][]byte) bool {
	return len(frames) == 1 && len(frames[0]) > 0 && frames[0][0] <= subscribeByte
}

// A subscriptions is the set of prefixes a subscriber asked for. As in libzmq,
// subscribing twice is subscribing once.
type subscriptions struct {
	prefixes [][]byte
	size     int // bytes of all prefixes
}

// What a subscriber may ask for: far above any use, and no more than a misled peer
// may make a publisher keep and compare.
const (
	maxPrefixes    = 1024
	maxPrefixBytes = 1 << 20
)

// A wish is what a subscriber says: that it wants a prefix, or no more. The zero wish
// is none: as in libzmq, what is not a subscription is ignored.
type wish struct {
	kind   byte // subscribeByte or cancelByte, if some
	some   bool
	prefix []byte
}

func readMessage(m Message) wish {
	if !isSubscription(m) {
		return wish{}
	}
	return wish{some: true, kind: m[0][0], prefix: m[0][1:]}
}

func readCommand(body []byte) (wish, error) {
	name, prefix, err := splitCommand(body)
	switch {
	case err != nil:
		return wish{}, err
	case name == subscribeCommand:
		return wish{some: true, kind: subscribeByte, prefix: prefix}, nil
	case name == cancelCommand:
		return wish{some: true, kind: cancelByte, prefix: prefix}, nil
	}
	return wish{}, nil
}

// change grants a wish and reports whether there is a prefix more.
func (s *subscriptions) change(w wish) (added bool, err error) {
	at := slices.IndexFunc(s.prefixes, func(p []byte) bool { return bytes.Equal(p, w.prefix) })
	switch {
	case !w.some || (w.kind == subscribeByte) == (at >= 0):
		return false, nil
	case w.kind == cancelByte:
		s.size -= len(w.prefix)
		s.prefixes = append(s.prefixes[:at], s.prefixes[at+1:]...)
		return false, nil
	case len(s.prefixes) == maxPrefixes || s.size+len(w.prefix) > maxPrefixBytes:
		return false, fmt.Errorf("%w: more than %d subscriptions, or %d bytes of them", ErrTooLarge, maxPrefixes, maxPrefixBytes)
	}
	s.size += len(w.prefix)
	s.prefixes = append(s.prefixes, bytes.Clone(w.prefix))
	return true, nil
}

// match reports whether topic, the first frame of a message, begins with a prefix that
// was asked for.
func (s *subscriptions) match(topic []byte) bool {
	return slices.ContainsFunc(s.prefixes, func(p []byte) bool { return bytes.HasPrefix(topic, p) })
}
