package zmq

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
)

// acceptAll serves the connections of ln, each in a goroutine of wg, until ln is
// closed. A failure (out of file descriptors) is told and tried again, until ctx ends.
func acceptAll(ctx context.Context, ln net.Listener, wg *sync.WaitGroup, serve func(net.Conn), failed func(error)) {
	pause := firstBackoff
	for {
		nc, err := ln.Accept()
		switch {
		case err == nil:
			pause = firstBackoff
			wg.Go(func() { serve(nc) })
		case errors.Is(err, net.ErrClosed):
			return
		default:
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
	acceptAll(l.ctx, l.ln, &l.wg, l.serve, func(err error) { l.inbox.put(Delivery{Kind: Refused, Err: err}) })
}

// serve is the life of one connection.
func (l *Listener) serve(nc net.Conn) {
	c := newConn(nc, l.typ, l.opt, remote(nc))
	c.owner = l
	if err := l.admit(c); err != nil {
		l.refuse(c, err)
		return
	}
	if l.inbox.put(Delivery{Kind: Joined, Peer: c.peer, Conn: c}) {
		l.inbox.put(Delivery{Kind: Gone, Peer: c.peer, Conn: c, Err: l.pump(c)})
	}
	// Whoever began to close the peer gets the error, if there is one.
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

// remote is where a connection comes from; a Unix socket does not say.
func remote(nc net.Conn) string {
	if addr := nc.RemoteAddr(); addr.Network() != "unix" {
		return addr.String()
	}
	return ""
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
	return nil
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
