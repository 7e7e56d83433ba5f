package zmq

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"time"
)

// Type is a socket type by its name on the wire.
type Type string

// The socket types of a request and reply pipeline. A peer may also be a REQ or a
// REP, which pair with ROUTER and DEALER.
const (
	Dealer Type = "DEALER"
	Router Type = "ROUTER"
	Push   Type = "PUSH"
	Pull   Type = "PULL"
)

// The socket types of publishing. [Dial] can be a SUB or an XSUB and a [Publisher] is a
// PUB. A [Gate] and [DialAs] only relay what XPUB, SUB and XSUB say, subscriptions too.
const (
	Pub  Type = "PUB"
	XPub Type = "XPUB"
	Sub  Type = "SUB"
	XSub Type = "XSUB"
)

// pipelineTypes are the types that Listen can be, dialTypes those that Dial can be.
var (
	pipelineTypes = []Type{Dealer, Router, Push, Pull}
	dialTypes     = []Type{Dealer, Router, Push, Pull, Sub, XSub}
)

// Message is the frames of one message, at least one, each possibly empty but
// never nil. The receiver owns it and may keep or change it.
type Message [][]byte

// Peer is the other end of a connection.
type Peer struct {
	// Identity is the routing id the peer announced, up to 255 bytes of any value,
	// or empty. A ROUTER listener gives a peer without one 5 bytes of its own, the
	// first zero, as libzmq does.
	Identity []byte
	// Type is the peer's socket type.
	Type Type
	// Addr is where the connection leads: host:port for tcp, the path of the socket
	// for a dialed ipc endpoint. A listener sees no address on ipc.
	Addr string
}

// String names the peer in errors.
func (p Peer) String() string {
	name := string(p.Type)
	name = cmp.Or(name, "peer")
	if len(p.Identity) > 0 {
		name = fmt.Sprintf("%s %x", name, p.Identity)
	}
	if p.Addr != "" {
		name += " at " + p.Addr
	}
	return name
}

// Options are the settings of a connection, or of all connections of a listener.
// The zero value is ready to use.
type Options struct {
	// Identity is the routing id announced to peers, at most 255 bytes. Empty
	// announces none. As in libzmq, PUSH and PULL announce none anyway.
	Identity []byte
	// HandshakeTimeout bounds the handshake of one connection. 0 means 5 s.
	HandshakeTimeout time.Duration
	// MaxFrame is the most bytes a received frame, and all frames of one received
	// message together, may hold. 0 means 1 GiB: above any tensor seen on the wire,
	// below what takes a machine down. Sending is not limited.
	MaxFrame int64
	// MaxStranger is MaxFrame for a peer that the socket accepted until [Conn.Trust] is called for it. 0 means that peers
	// are trusted as soon as they have shaken hands.
	MaxStranger int64
	// MaxStrangers is how many connections that have not shaken hands, or are not trusted yet, a socket that accepts holds
	// at once; 0 means 1024. The oldest makes way for the next, with [ErrCrowded].
	MaxStrangers int
	// NoFiles, if not nil, is called when a [Listener] cannot accept a connection because of [OutOfFiles], which whoever
	// receives from another socket would not learn. It must not block.
	NoFiles func(error)
	// Linger is how long Close waits at most for written bytes to reach the peer.
	// 0 means Close drops what was not flushed, and leaves the rest to the kernel,
	// which may drop it too when unread input was pending.
	Linger time.Duration
}

const (
	defaultHandshakeTimeout = 5 * time.Second
	defaultMaxFrame         = 1 << 30
	maxIdentity             = 255 // octets, by ZMTP 3.0
)

// withDefaults checks o and fills in what was left zero.
func (o Options) withDefaults() (Options, error) {
	if len(o.Identity) > maxIdentity {
		return o, fmt.Errorf("identity of %d bytes: ZeroMQ allows at most %d", len(o.Identity), maxIdentity)
	}
	if o.HandshakeTimeout < 0 || o.MaxFrame < 0 || o.MaxStranger < 0 || o.MaxStrangers < 0 || o.Linger < 0 {
		return o, fmt.Errorf("negative option: handshake timeout %v, max frame %d, max stranger %d, max strangers %d, linger %v",
			o.HandshakeTimeout, o.MaxFrame, o.MaxStranger, o.MaxStrangers, o.Linger)
	}
	o.HandshakeTimeout = cmp.Or(o.HandshakeTimeout, defaultHandshakeTimeout)
	o.MaxFrame = cmp.Or(o.MaxFrame, defaultMaxFrame)
	o.MaxStrangers = cmp.Or(o.MaxStrangers, maxStrangers)
	return o, nil
}

// Errors a caller may branch on with [errors.Is]. After a local Close every call
// reports [net.ErrClosed]; a deadline that passed reports [os.ErrDeadlineExceeded].
var (
	// ErrPeerGone: the peer closed the connection or died. It is also [io.EOF].
	ErrPeerGone error = peerGone{}
	// ErrNoPeer: no connected peer has the identity a message was addressed to.
	ErrNoPeer = errors.New("no such peer")
	// ErrTooLarge: the peer sent a frame or a message above [Options.MaxFrame].
	ErrTooLarge = errors.New("frame too large")
	// ErrProtocol: what the peer sent is not ZMTP 3 with the NULL mechanism.
	ErrProtocol = errors.New("protocol error")
	// ErrIdentityTaken: a peer announced an identity another peer is connected with.
	ErrIdentityTaken = errors.New("identity already connected")
	// ErrIncompatible: the peer's socket type does not pair with ours.
	ErrIncompatible = errors.New("socket types do not pair")
)

type peerGone struct{}

func (peerGone) Error() string { return "peer gone" }

func (peerGone) Unwrap() error { return io.EOF }
