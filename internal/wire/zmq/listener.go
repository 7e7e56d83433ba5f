package zmq

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
)

// Kind is what a [Delivery] tells.
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
	// Peer is who it is about. When Refused, only what was learnt before the
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

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	conns  map[*Conn]bool
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
// up once about 1000 messages or 16 MiB wait. The error is the cause of ctx's
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
	c, err := l.peer(identity)
	if err != nil {
		return err
	}
	return l.sent(identity, c.Send(frames...))
}

// Write is Send without the flush, as [Conn.Write].
func (l *Listener) Write(identity []byte, frames ...[]byte) error {
	c, err := l.peer(identity)
	if err != nil {
		return err
	}
	return l.sent(identity, c.Write(frames...))
}

// Flush lets everything written to the peer leave.
func (l *Listener) Flush(identity []byte) error {
	c, err := l.peer(identity)
	if err != nil {
		return err
	}
	return l.sent(identity, c.Flush())
}

func (l *Listener) peer(identity []byte) (*Conn, error) {
	if l.table == nil {
		return nil, fmt.Errorf("send on %s: a %s listener has no identities, send through Delivery.Conn", l.endpoint, l.typ)
	}
	if c := l.table.find(identity); c != nil {
		return c, nil
	}
	return nil, fmt.Errorf("send to %x on %s: %w", identity, l.endpoint, ErrNoPeer)
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
	conns := make([]*Conn, 0, len(l.conns))
	for c := range l.conns {
		conns = append(conns, c)
	}
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
