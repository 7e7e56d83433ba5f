package zmq

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
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

// handshake greets the peer and learns its name. Only a listener has a claim.
func (c *Conn) handshake(admit claim) error {
	// A connection that makes way may be closed before and after what zmq4 does, too.
	setDeadline := func(t time.Time) error {
		err := c.nc.SetDeadline(t)
		if err != nil && c.isCrowded() {
			return ErrCrowded
		}
		return err
	}
	if err := setDeadline(time.Now().Add(c.opt.HandshakeTimeout)); err != nil {
		return err
	}
	c.fr.max.Store(maxCommand)
	g := &greeter{Conn: c.nc, c: c}
	sec := nullSecurity{Security: null.Security(), greeter: g, admit: admit}
	_, err := zmq4.Open(g, sec, zmq4.SocketType(c.typ), c.opt.Identity, admit != nil, nil)
	if err == nil {
		err = c.bw.Flush()
	}
	if err != nil {
		return fmt.Errorf("handshake: %w", g.explain(err))
	}
	if admit != nil && c.opt.MaxStranger > 0 {
		c.fr.max.Store(c.opt.MaxStranger)
	} else {
		c.fr.max.Store(c.opt.MaxFrame)
	}
	return setDeadline(time.Time{})
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
	case g.c.isCrowded():
		return ErrCrowded
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

// Names of the metadata properties READY carries; names compare without case.
const (
	propertySocketType = "Socket-Type"
	propertyIdentity   = "Identity"
)

// splitCommand separates the name of a command from its data.
func splitCommand(body []byte) (name string, data []byte, err error) {
	if len(body) == 0 || int(body[0]) > len(body)-1 {
		return "", nil, fmt.Errorf("%w: command whose name does not fit its %d bytes", ErrProtocol, len(body))
	}
	end := 1 + int(body[0])
	return string(body[1:end]), body[end:], nil
}

// parseReady reads the peer's name from the first command of the handshake.
func parseReady(body []byte) (Peer, error) {
	name, data, err := splitCommand(body)
	switch {
	case err != nil:
		return Peer{}, err
	case name == zmq4.CmdError:
		return Peer{}, fmt.Errorf("%w: refused by the peer: %q", ErrProtocol, reason(data))
	case name != zmq4.CmdReady:
		return Peer{}, fmt.Errorf("%w: command %q, want READY", ErrProtocol, name)
	}
	return parseMetadata(data)
}

// reason is the text of an ERROR command: one length byte, then the text.
func reason(data []byte) string {
	if len(data) == 0 {
		return ""
	}
	return string(data[1:min(len(data), 1+int(data[0]))])
}

func parseMetadata(data []byte) (Peer, error) {
	var p Peer
	for rest := data; len(rest) > 0; {
		name, value, tail, ok := cutProperty(rest)
		if !ok {
			return p, fmt.Errorf("%w: READY metadata cut short at byte %d of %d", ErrProtocol, len(data)-len(rest), len(data))
		}
		switch {
		case strings.EqualFold(name, propertySocketType):
			p.Type = Type(value)
		case strings.EqualFold(name, propertyIdentity):
			p.Identity = value
		}
		rest = tail
	}
	if p.Type == "" {
		return p, fmt.Errorf("%w: READY names no socket type", ErrProtocol)
	}
	if len(p.Identity) > maxIdentity {
		return p, fmt.Errorf("%w: identity of %d bytes, at most %d are allowed", ErrProtocol, len(p.Identity), maxIdentity)
	}
	return p, nil
}

// cutProperty takes one property off data: the length of the name in one byte,
// the name, the length of the value in four, the value.
func cutProperty(data []byte) (name string, value, rest []byte, ok bool) {
	n := int(data[0])
	if len(data) < 1+n+4 {
		return "", nil, nil, false
	}
	name, data = string(data[1:1+n]), data[1+n:]
	size := uint64(binary.BigEndian.Uint32(data))
	if data = data[4:]; size > uint64(len(data)) {
		return "", nil, nil, false
	}
	return name, data[:size:size], data[size:], true
}

const (
	pingTTL    = 2  // bytes before the context of a PING
	maxContext = 16 // bytes of context a PONG returns
)

// pairs reports whether t may talk to peer, by the table of ZMTP 3.0.
// It is asked of our own type: zmq4 panics when asked of one it does not know.
func (t Type) pairs(peer Type) bool {
	return zmq4.SocketType(t).IsCompatible(zmq4.SocketType(peer))
}
