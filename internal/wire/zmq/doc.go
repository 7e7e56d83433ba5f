// Package zmq speaks ZeroMQ over tcp:// and ipc:// for the four socket types of
// a request and reply pipeline: DEALER, ROUTER, PUSH and PULL.
//
// # Which call first
//
// [Dial] gives a [Conn]: one connection to one peer, retried until its context
// ends. [Listen] gives a [Listener]: every peer that connects, its messages and
// its coming and going in one stream of [Delivery] values.
//
//	l, err := zmq.Listen("tcp://127.0.0.1:0", zmq.Router, zmq.Options{})
//	…
//	d, err := l.Recv(ctx)                  // Joined, Received, Gone or Refused
//	err = l.Send(d.Peer.Identity, frames…) // to that peer alone
//
// # What differs from libzmq, on purpose
//
//   - A connection is visible. A peer that went away is an event ([ErrPeerGone],
//     [Gone]); nothing reconnects behind the caller's back, and nothing that was
//     sent is kept for a later peer.
//   - Nothing is dropped. There is no high-water mark: a slow peer fills the
//     kernel's buffers and then Send blocks. A caller that must never block
//     sends from a goroutine of its own.
//   - The identity of a ROUTER's peer is [Delivery.Peer], not the first frame.
//   - A peer announcing an identity that is already connected is refused before
//     the handshake is answered and sees its connection closed. libzmq's ROUTER
//     keeps such a connection open and never reads from it; closed, the
//     newcomer's own retry gets in once the first peer has left.
//
// # The wire
//
// ZMTP 3.0 with the NULL mechanism (https://rfc.zeromq.org/spec/23/). Peers of
// minor version 1 (libzmq 4.3) are fine: they fall back. zmq4.Open does the
// greeting; everything after it is read here, because zmq4 allocates what a
// frame's length claims and panics on malformed metadata and on socket types it
// does not know. Here a frame is held in memory as far as it has arrived, and
// one above [Options.MaxFrame] ends the connection with [ErrTooLarge].
//
// Commands never reach the caller: PING is answered, the rest is ignored.
package zmq
