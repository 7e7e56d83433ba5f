package zmq

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
)

// Kind is what a [Delivery] reports.
type Kind int

const (
	// Joined: a peer finished its handshake. Messages may be sent to it from now on.
	Joined Kind = iota + 1
	// Received: a message.
	Received
	// Gone: a peer's connection ended, and its last message came before this.
	Gone
	// Refused: a connection that never became a peer: its handshake failed or took
	// too long, or its identity is taken. Also a failure to accept one at all.
	Refused
)

var kindNames = [...]string{Joined: "joined", Received: "received", Gone: "gone", Refused: "refused"}

func (k Kind) String() string {
	if k < Joined || k > Refused {
		return fmt.Sprintf("kind %d", int(k))
	}
	return kindNames[k]
}

// Delivery is one event of one peer.
type Delivery struct {
	Kind Kind
	// Peer is the one it is about. When Refused, only what was learnt before the
	// refusal: always the address, if there is one.
	Peer Peer
	// Conn leads to the peer, for sending to it without looking it up. It is nil
	// when Refused.
	Conn *Conn
	// Message of a peer that Received names.
	Message Message
	// Err is why the peer is Gone ([ErrPeerGone] when it hung up) or was Refused.
	Err error
}

// Listener accepts peers and merges what they send. Its methods are safe for
// concurrent use, but the order of messages means little to several receivers.
type Listener struct {
	ln       net.Listener
	endpoint string
	typ      Type
	opt      Options
	inbox    *inbox
	table    *table // nil unless ROUTER
	waiting  strangers

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	conns  map[*Conn]bool
	lifted bool // by LiftLimit
	closed bool

	closing  sync.Once
	closeErr error
}

// Listen binds endpoint and accepts peers until Close. Besides what Dial takes,
// tcp://*:port is every IPv4 address and port 0 or * any free port. An ipc path
// that a dead process left behind is taken over.
func Listen(endpoint string, typ Type, opt Options) (*Listener, error) {
	addr, opt, err := prepare(endpoint, typ, opt, pipelineTypes)
	if err != nil {
		return nil, fmt.Errorf("listen on %w", err)
	}
	ln, err := addr.forListening().listen()
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", endpoint, err)
	}
	return serveOn(ln, typ, opt), nil
}

// serveOn accepts peers from ln.
func serveOn(ln net.Listener, typ Type, opt Options) *Listener {
	l := &Listener{
		ln: ln, endpoint: endpointOf(ln.Addr()), typ: typ, opt: opt,
		inbox: newInbox(), conns: make(map[*Conn]bool),
	}
	l.waiting = strangers{typ: typ, opt: opt, madeWay: l.inbox.wake}
	if typ == Router {
		l.table = newTable()
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.wg.Go(l.accept)
	return l
}

// Endpoint is what a peer dials, with the port that was chosen.
func (l *Listener) Endpoint() string { return l.endpoint }

// Recv waits for the next event of any peer. Unless it is called, peers are held
// up once about 1000 messages or 16 MiB wait, and what is Refused is not reported. The error is the cause of ctx's
// end, or [net.ErrClosed].
func (l *Listener) Recv(ctx context.Context) (Delivery, error) {
	d, err := l.inbox.take(ctx)
	if err != nil {
		return d, fmt.Errorf("recv on %s: %w", l.endpoint, err)
	}
	return d, nil
}

// Send writes one message to the peer with that identity and flushes, as
// [Conn.Send]. Only a ROUTER has identities; peers of other types are sent to
// through [Delivery.Conn]. [ErrNoPeer] when no such peer is connected, or no more.
func (l *Listener) Send(identity []byte, frames ...[]byte) error {
	if l.table == nil {
		return fmt.Errorf("send on %s: a %s listener has no identities, send through Delivery.Conn", l.endpoint, l.typ)
	}
	c := l.table.find(identity)
	if c == nil {
		return fmt.Errorf("send to %x on %s: %w", identity, l.endpoint, ErrNoPeer)
	}
	return l.sent(identity, c.Send(frames...))
}

// sent makes a peer found gone or closed while sending to it no peer at all.
func (l *Listener) sent(identity []byte, err error) error {
	if err == nil || !errors.Is(err, ErrPeerGone) && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return fmt.Errorf("send to %x on %s: %w: %w", identity, l.endpoint, ErrNoPeer, err)
}

// Close stops accepting, closes every peer as [Conn.Close], in parallel, and
// waits for all goroutines. Events not received are dropped.
func (l *Listener) Close() error {
	l.closing.Do(func() { l.closeErr = l.close() })
	return l.closeErr
}

func (l *Listener) close() error {
	l.mu.Lock()
	l.closed = true
	conns := slices.Collect(maps.Keys(l.conns))
	l.mu.Unlock()

	l.cancel()
	errs := make([]error, len(conns)+1)
	errs[len(conns)] = l.ln.Close()
	l.inbox.close()
	for i, c := range conns {
		l.wg.Go(func() { errs[i] = c.Close() })
	}
	l.wg.Wait()
	return errors.Join(errs...)
}

// acceptAll serves the connections of ln, each in a goroutine of wg, until ln is
// closed. A failure is reported and tried again, until ctx ends; when there are no more file
// descriptors, a stranger of this socket gives up its own.
func acceptAll(ctx context.Context, ln net.Listener, wg *sync.WaitGroup, waiting *strangers, serve func(*Conn), failed func(error)) {
	pause := firstBackoff
	for {
		nc, err := ln.Accept()
		switch {
		case err == nil:
			pause = firstBackoff
			c := waiting.enter(nc)
			wg.Go(func() { serve(c) })
		case errors.Is(err, net.ErrClosed):
			return
		default:
			if OutOfFiles(err) {
				waiting.makeWay()
			}
			failed(fmt.Errorf("accept on %s: %w", endpointOf(ln.Addr()), err))
			if !wait(ctx, pause) {
				return
			}
			pause = min(2*pause, maxBackoff)
		}
	}
}

// accept takes connections until Close.
func (l *Listener) accept() {
	acceptAll(l.ctx, l.ln, &l.wg, &l.waiting, l.serve, func(err error) {
		if l.opt.NoFiles != nil && OutOfFiles(err) {
			l.opt.NoFiles(err)
		}
		l.inbox.put(Delivery{Kind: Refused, Err: err})
	})
}

// serve is the life of one connection.
func (l *Listener) serve(c *Conn) {
	c.owner = l
	if err := l.admit(c); err != nil {
		l.refuse(c, err)
		return
	}
	if l.inbox.put(Delivery{Kind: Joined, Peer: c.peer, Conn: c}) {
		l.inbox.put(Delivery{Kind: Gone, Peer: c.peer, Conn: c, Err: l.pump(c)})
	}
	// The caller that began to close the peer gets the error, if there is one.
	_ = c.Close()
	l.leave(c)
}

// refuse hangs up first: the peer shall not wait for a receiver.
func (l *Listener) refuse(c *Conn, cause error) {
	c.gone.Store(true)
	_ = c.Close()
	l.leave(c)
	err := fmt.Errorf("%s on %s: %w", c.peer, l.endpoint, cause)
	l.inbox.put(Delivery{Kind: Refused, Peer: c.peer, Err: err})
}

// admit shakes hands and makes c one of the listener's connections.
func (l *Listener) admit(c *Conn) error {
	stop := hangUp(l.ctx, c.nc)
	defer stop()
	ctx, cancel := context.WithTimeout(l.ctx, l.opt.HandshakeTimeout)
	defer cancel()
	if err := c.handshake(func(p *Peer) error { return l.claim(ctx, p, c) }); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return net.ErrClosed
	}
	l.conns[c] = true
	if l.table != nil {
		l.table.join(c.peer.Identity)
	}
	switch {
	case l.opt.MaxStranger == 0:
		c.Trust()
	case l.lifted:
		c.fr.max.Store(l.opt.MaxFrame)
	}
	return nil
}

// LiftLimit takes messages up to [Options.MaxFrame] from all peers, connected ones and those to come. They are
// strangers all the same, of which there are [Options.MaxStrangers] at most.
func (l *Listener) LiftLimit() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lifted = true
	for c := range l.conns {
		c.fr.max.Store(l.opt.MaxFrame)
	}
}

func (l *Listener) claim(ctx context.Context, p *Peer, c *Conn) error {
	if l.table == nil {
		return nil
	}
	return l.table.claim(ctx, p, c)
}

// pump moves messages to the inbox and returns why there are no more.
func (l *Listener) pump(c *Conn) error {
	for {
		msg, err := c.recv()
		if err != nil {
			return err
		}
		if !l.inbox.put(Delivery{Kind: Received, Peer: c.peer, Conn: c, Message: msg}) {
			return net.ErrClosed
		}
	}
}

func (l *Listener) leave(c *Conn) {
	l.mu.Lock()
	delete(l.conns, c)
	l.mu.Unlock()
	if l.table != nil {
		l.table.leave(c.peer.Identity, c)
	}
}

// table is a ROUTER's way from an identity to a connection.
type table struct {
	mu      sync.RWMutex
	entries map[string]*entry
	next    uint32 // of the identities given to peers that have none
}

// entry holds an identity from before the peer's READY is answered until after
// its Gone is in the inbox, so that Gone of one peer comes before Joined of the
// next.
type entry struct {
	conn   *Conn
	joined bool          // may be sent to
	left   chan struct{} // closed when the identity is free again
}

func newTable() *table {
	// As in libzmq, made-up identities begin at random: those of an earlier run are
	// unlikely to mean somebody else now.
	return &table{entries: make(map[string]*entry), next: rand.Uint32()}
}

// claim reserves the identity peer announced, or gives it one. A peer that is on
// its way out is waited for until ctx ends; one that is connected keeps the
// identity.
func (t *table) claim(ctx context.Context, peer *Peer, conn *Conn) error {
	for {
		holder := t.reserve(peer, conn)
		if holder == nil {
			return nil
		}
		if !holder.conn.gone.Load() && !holder.conn.closed.Load() {
			return fmt.Errorf("%w: %x, by %s", ErrIdentityTaken, peer.Identity, holder.conn.peer)
		}
		select {
		case <-holder.left:
		case <-ctx.Done():
			return fmt.Errorf("%w: %x, by a peer that is leaving", ErrIdentityTaken, peer.Identity)
		}
	}
}

// reserve returns the holder of the identity, or nil when conn has become it.
func (t *table) reserve(peer *Peer, conn *Conn) *entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(peer.Identity) == 0 {
		peer.Identity = t.unusedLocked()
	}
	if holder := t.entries[string(peer.Identity)]; holder != nil {
		return holder
	}
	t.entries[string(peer.Identity)] = &entry{conn: conn, left: make(chan struct{})}
	return nil
}

// unusedLocked makes up an identity as libzmq does: a zero byte and a number.
func (t *table) unusedLocked() []byte {
	for {
		id := binary.BigEndian.AppendUint32([]byte{0}, t.next)
		t.next++
		if t.entries[string(id)] == nil {
			return id
		}
	}
}

// join opens the way to a peer whose handshake is over.
func (t *table) join(identity []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.entries[string(identity)].joined = true
}

// leave frees the identity if conn holds it.
func (t *table) leave(identity []byte, conn *Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.entries[string(identity)]; e != nil && e.conn == conn {
		delete(t.entries, string(identity))
		close(e.left)
	}
}

// find returns the connection to a peer, nil when there is none.
func (t *table) find(identity []byte) *Conn {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if e := t.entries[string(identity)]; e != nil && e.joined {
		return e.conn
	}
	return nil
}

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

// put appends d, waiting for room unless d is a refusal or of a connection that made way for another. It reports false
// when it did not append d: the inbox is closed, or there was no room.
func (b *inbox) put(d Delivery) bool {
	size := d.Message.size()
	b.mu.Lock()
	for !b.closed && b.full(size) && d.Kind != Refused && !(d.Conn != nil && d.Conn.isCrowded()) {
		b.room.Wait()
	}
	if b.closed || b.full(size) {
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

// wake lets all that wait for room look again whether to.
func (b *inbox) wake() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.room.Broadcast()
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

// size is the number of bytes in all frames.
func (m Message) size() int {
	n := 0
	for _, frame := range m {
		n += len(frame)
	}
	return n
}
