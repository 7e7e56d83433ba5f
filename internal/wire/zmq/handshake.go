package zmq

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"
)

// signature is the first byte every ZMTP peer sends.
const signature = 0xff

// claim is what a listener says to a peer before the peer is answered. What it
// refuses sees its connection closed in the middle of the handshake, upon which
// libzmq tries again later.
type claim func(*Peer) error

// handshake greets the peer and learns who it is. Only a listener has a claim.
func (c *Conn) handshake(admit claim) error {
	if err := c.nc.SetDeadline(time.Now().Add(c.opt.HandshakeTimeout)); err != nil {
		return err
	}
	c.fr.max = maxCommand
	g := &greeter{Conn: c.nc, c: c}
	sec := nullSecurity{Security: null.Security(), greeter: g, admit: admit}
	_, err := zmq4.Open(g, sec, zmq4.SocketType(c.typ), c.opt.Identity, admit != nil, nil)
	if err == nil {
		err = c.bw.Flush()
	}
	if err != nil {
		return fmt.Errorf("handshake: %w", g.explain(err))
	}
	c.fr.max = c.opt.MaxFrame
	return c.nc.SetDeadline(time.Time{})
}

// greeter gives zmq4 the buffers of the connection, so that whatever a peer sends
// right behind its READY is kept. What was written leaves when an answer is
// awaited.
type greeter struct {
	net.Conn
	c     *Conn
	begun bool  // the peer's first byte has been judged
	cause error // found here, plainer than what zmq4 wraps around it
}

func (g *greeter) Write(p []byte) (int, error) { return g.c.bw.Write(p) }

func (g *greeter) Read(p []byte) (n int, err error) {
	if err = g.c.bw.Flush(); err == nil && !g.begun {
		err = g.begin()
	}
	if err == nil {
		n, err = g.c.fr.br.Read(p)
	}
	if err != nil {
		g.cause = err
	}
	return n, err
}

// begin judges the first byte as soon as it is there. zmq4 would wait for all 64
// bytes of a greeting that an HTTP client never sends.
func (g *greeter) begin() error {
	head, err := g.c.fr.br.Peek(1)
	if err != nil {
		return err
	}
	if head[0] != signature {
		return fmt.Errorf("%w: the first byte is %#02x (%q), want %#02x", ErrProtocol, head[0], head[0], signature)
	}
	g.begun = true
	return nil
}

// explain turns the error of zmq4.Open into one that says what the peer did.
func (g *greeter) explain(err error) error {
	switch {
	case g.cause == nil: // zmq4 did not like the greeting
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	case errors.Is(g.cause, os.ErrDeadlineExceeded):
		return fmt.Errorf("not finished within %v: %w", g.c.opt.HandshakeTimeout, g.cause)
	case hungUp(g.cause):
		return fmt.Errorf("%w during the handshake: %w", ErrPeerGone, g.cause)
	}
	return g.cause
}

// nullSecurity is security/null with an exchange of READY that survives hostile
// metadata and lets a listener refuse a peer before answering it.
type nullSecurity struct {
	zmq4.Security
	greeter *greeter
	admit   claim
}

// Handshake implements [zmq4.Security].
func (s nullSecurity) Handshake(z *zmq4.Conn, listening bool) error {
	steps := []func(*zmq4.Conn) error{s.announce, s.meet}
	if listening {
		steps[0], steps[1] = steps[1], steps[0]
	}
	for _, step := range steps {
		if err := step(z); err != nil {
			s.greeter.cause = err
			return err
		}
	}
	return nil
}

// announce sends READY. As in libzmq, only types that can be addressed carry an
// identity.
func (s nullSecurity) announce(z *zmq4.Conn) error {
	if t := s.greeter.c.typ; t != Dealer && t != Router {
		delete(z.Meta, propertyIdentity)
	}
	body, err := z.Meta.MarshalZMTP()
	if err != nil {
		return err
	}
	return z.SendCmd(zmq4.CmdReady, body)
}

// meet reads the peer's READY.
func (s nullSecurity) meet(z *zmq4.Conn) error {
	c := s.greeter.c
	if err := c.bw.Flush(); err != nil {
		return err
	}
	msg, command, err := c.fr.next()
	if err != nil {
		return err
	}
	if msg != nil {
		return fmt.Errorf("%w: a message where READY was due", ErrProtocol)
	}
	peer, err := parseReady(command)
	if err != nil {
		return err
	}
	if !c.typ.pairs(peer.Type) {
		return fmt.Errorf("%w: we are %s, the peer is %q", ErrIncompatible, c.typ, peer.Type)
	}
	peer.Addr = c.peer.Addr
	c.peer = peer
	if s.admit != nil {
		if err := s.admit(&c.peer); err != nil {
			return err
		}
	}
	z.Peer.Meta[propertySocketType] = string(peer.Type)
	return nil
}
