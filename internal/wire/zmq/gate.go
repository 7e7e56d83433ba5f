package zmq

import (
	"context"
	"fmt"
	"net"
	"sync"
)

// Gate accepts connections one by one, for a [Relay] or a protocol of its own on
// each: unlike [Listener] it merges nothing and keeps no identities apart.
type Gate struct {
	ln       net.Listener
	endpoint string
	opt      Options
	refused  func(error)
	waiting  strangers

	ready  chan *Conn
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	closing  sync.Once
	closeErr error
}

// OpenGate binds endpoint, as [Listen] does, and shakes hands with every peer that connects
// until Close, each within [Options.HandshakeTimeout] and without holding up others.
// typ is ROUTER, PULL or XPUB. Why a connection did not become one is passed to refused,
// if that is not nil, by any goroutine until Close returns.
func OpenGate(endpoint string, typ Type, opt Options, refused func(error)) (*Gate, error) {
	if typ != Router && typ != Pull && typ != XPub {
		return nil, fmt.Errorf("open gate on %s: socket type %q, want ROUTER, PULL or XPUB", endpoint, string(typ))
	}
	opt, err := opt.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("open gate on %s: %w", endpoint, err)
	}
	addr, err := parseEndpoint(endpoint)
	if err != nil {
		return nil, fmt.Errorf("open gate on %w", err)
	}
	ln, err := addr.forListening().listen()
	if err != nil {
		return nil, fmt.Errorf("open gate on %s: %w", endpoint, err)
	}
	g := &Gate{ln: ln, endpoint: endpointOf(ln.Addr()), opt: opt, refused: refused, ready: make(chan *Conn)}
	g.waiting = strangers{typ: typ, opt: opt}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	g.wg.Go(func() { acceptAll(g.ctx, ln, &g.wg, &g.waiting, g.serve, g.refuse) })
	return g, nil
}

// Endpoint is what a peer dials, with the port that was chosen.
func (g *Gate) Endpoint() string { return g.endpoint }

// Accept waits for the next connection whose handshake is done. The caller closes
// it. With [Options.MaxStranger] it is a stranger until [Conn.Trust] is called. The error is
// the cause of ctx's end, or [net.ErrClosed].
func (g *Gate) Accept(ctx context.Context) (*Conn, error) {
	select {
	case c := <-g.ready:
		if g.opt.MaxStranger == 0 {
			c.Trust()
		}
		return c, nil
	case <-g.ctx.Done():
		return nil, fmt.Errorf("accept on %s: %w", g.endpoint, net.ErrClosed)
	case <-ctx.Done():
		return nil, fmt.Errorf("accept on %s: %w", g.endpoint, context.Cause(ctx))
	}
}

// Close stops accepting and ends the connections that Accept has not returned.
func (g *Gate) Close() error {
	g.closing.Do(func() {
		g.cancel()
		g.closeErr = g.ln.Close()
		g.wg.Wait()
	})
	return g.closeErr
}

func (g *Gate) serve(c *Conn) {
	stop := hangUp(g.ctx, c.nc)
	err := c.handshake(func(*Peer) error { return nil })
	if !stop() || err != nil {
		c.hangUp()
		if err != nil && g.ctx.Err() == nil {
			g.refuse(fmt.Errorf("%s on %s: %w", c.peer, g.endpoint, err))
		}
		return
	}
	select {
	case g.ready <- c:
	case <-c.crowded:
		g.refuse(fmt.Errorf("%s on %s: %w", c.peer, g.endpoint, ErrCrowded))
	case <-g.ctx.Done():
		c.hangUp()
	}
}

func (g *Gate) refuse(err error) {
	if g.refused != nil {
		g.refused(err)
	}
}
