package zmq

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-zeromq/zmq4"
)

// Conn is one ZMTP connection to one peer. One goroutine may receive while any
// number send.
//
// There is no envelope: a ROUTER's connection leads to one peer, whose messages
// neither begin with an identity nor need one.
type Conn struct {
	nc   net.Conn
	typ  Type
	opt  Options
	peer Peer

	// owner is the listener whose goroutine receives, nil for a dialed connection.
	owner *Listener
	// handle takes the commands that are not about the connection itself; nil ignores them.
	handle func(command []byte) error

	rmu sync.Mutex // held while receiving
	fr  *frameReader
	end error // why nothing more can be received; under rmu

	wmu    sync.Mutex // held while sending
	bw     *bufio.Writer
	header [longHeader]byte // scratch, under wmu
	torn   bool             // a message is written in part, see TryWire; under wmu

	gone    atomic.Bool   // the connection ended, at whichever end
	among   *strangers    // of the socket that accepted it, nil if it was dialed
	crowded chan struct{} // closed when it made way for another stranger
	ponging atomic.Bool   // a PONG is on its way
	bg      sync.WaitGroup

	dmu      sync.Mutex // deadlines against Close
	closed   atomic.Bool
	closing  sync.Once
	closeErr error
}

func newConn(nc net.Conn, typ Type, opt Options, addr string) *Conn {
	return &Conn{
		nc: nc, typ: typ, opt: opt, peer: Peer{Addr: addr}, crowded: make(chan struct{}),
		fr: newFrameReader(nc, opt.MaxFrame),
		bw: bufio.NewWriterSize(nc, bufferSize),
	}
}

// Peer is the other end of the connection. Its identity must not be changed.
func (c *Conn) Peer() Peer { return c.peer }

// LocalHost is the address by which the peer reached this end, without the port;
// empty for ipc.
func (c *Conn) LocalHost() string {
	host, _, err := net.SplitHostPort(c.nc.LocalAddr().String())
	if err != nil {
		return ""
	}
	return host
}

// Send writes one message and flushes. It blocks while the peer is slow and never
// drops: nil means the kernel has the message. The frames may be reused after it
// returns. An error is final for sending; [ErrPeerGone] when the peer went.
func (c *Conn) Send(frames ...[]byte) error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	err := c.writeLocked(frames)
	if err == nil {
		err = c.bw.Flush()
	}
	return c.sent(err)
}

// Write is Send without the flush, for a writer that has more to say at once. The
// message leaves with the next Flush, the next Send, or when the buffer is full.
func (c *Conn) Write(frames ...[]byte) error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	return c.sent(c.writeLocked(frames))
}

// Flush lets everything written leave.
func (c *Conn) Flush() error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	return c.sent(c.bw.Flush())
}

var errNoFrames = errors.New("a message has at least one frame")

func (c *Conn) writeLocked(frames [][]byte) error {
	switch {
	case len(frames) == 0:
		return errNoFrames
	case c.typ == Pull:
		return errors.New("a PULL socket does not send")
	case c.typ == Sub && !isSubscription(frames):
		return errors.New("a SUB socket does not send: it subscribes")
	case c.torn:
		return errTorn
	}
	if err := c.endedLocked(); err != nil {
		return err
	}
	last := len(frames) - 1
	for _, frame := range frames[:last] {
		if err := c.frameLocked(flagMore, frame); err != nil {
			return err
		}
	}
	return c.frameLocked(0, frames[last])
}

func (c *Conn) frameLocked(flags byte, body []byte) error {
	n := putHeader(&c.header, flags, len(body))
	if _, err := c.bw.Write(c.header[:n]); err != nil {
		return err
	}
	_, err := c.bw.Write(body)
	return err
}

// sent words an error of sending.
func (c *Conn) sent(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("send to %s: %w", c.peer, c.cause(err))
}

// Recv waits for the next message. When the peer went, the error is [ErrPeerGone]
// and [io.EOF]; in the middle of a message it also is [io.ErrUnexpectedEOF].
// After a read deadline Recv may be called again and nothing is lost; any other
// error is final.
//
// Only its listener receives from a connection that a listener accepted.
func (c *Conn) Recv() (Message, error) {
	if c.owner != nil {
		return nil, fmt.Errorf("recv from %s: its listener receives from it", c.peer)
	}
	return c.recv()
}

func (c *Conn) recv() (Message, error) {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	for c.end == nil && !c.closed.Load() {
		msg, command, err := c.fr.next()
		if err == nil && msg != nil {
			if c.typ != Push {
				return msg, nil
			}
			err = fmt.Errorf("%w: a message from a %s", ErrProtocol, c.peer.Type)
		}
		if err == nil {
			err = c.answer(command)
		}
		if err != nil {
			return nil, c.received(err)
		}
	}
	if c.end == nil {
		return nil, c.received(net.ErrClosed)
	}
	return nil, c.end
}

// received words an error of receiving and, unless it is a deadline, makes it the
// end: the socket is closed at once, so that a peer lingering in its Close is let
// go.
func (c *Conn) received(err error) error {
	err = fmt.Errorf("recv from %s: %w", c.peer, c.cause(err))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	c.end = err
	if !c.closed.Load() {
		c.gone.Store(true)
		c.nc.Close()
	}
	return err
}

// cause says what an error of the socket means.
func (c *Conn) cause(err error) error {
	switch {
	case c.closed.Load():
		return net.ErrClosed
	case c.isCrowded():
		return ErrCrowded
	case errors.Is(err, ErrPeerGone):
		return err
	case err == io.EOF:
		return ErrPeerGone
	case hungUp(err):
		return fmt.Errorf("%w: %w", ErrPeerGone, err)
	case c.gone.Load() && errors.Is(err, net.ErrClosed):
		return ErrPeerGone
	}
	return err
}

// hungUp reports whether err of a socket means that the peer ended the connection.
func hungUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// answer handles a command. The PONG is written by a goroutine of its own: were
// receiving to wait for sending, two peers busy sending to each other could wait
// forever. A PING that comes while a PONG is still being written gets none, as
// the peer sees traffic anyway, and so does one that comes in the middle of a message.
func (c *Conn) answer(command []byte) error {
	body, err := pong(command)
	if err == nil && body == nil && c.handle != nil {
		return c.handle(command)
	}
	if err != nil || body == nil || !c.ponging.CompareAndSwap(false, true) {
		return err
	}
	c.bg.Go(func() {
		defer c.ponging.Store(false)
		c.wmu.Lock()
		defer c.wmu.Unlock()
		// What goes wrong here stays with the writer and comes up in the next Send.
		if !c.torn && c.frameLocked(flagCommand, body) == nil {
			_ = c.bw.Flush()
		}
	})
	return nil
}

// Watch calls gone, once and from a goroutine of its own, when the peer leaves before stop is called: for a caller that waits for
// something else and does not receive. Nothing that the peer sends is lost, and nothing is watched behind it.
func (c *Conn) Watch(gone func()) (stop func()) {
	ended := make(chan struct{})
	var stopped atomic.Bool
	go func() {
		defer close(ended)
		c.rmu.Lock()
		_, err := c.fr.br.Peek(1)
		c.rmu.Unlock()
		if err != nil && !stopped.Load() {
			gone()
		}
	}()
	return sync.OnceFunc(func() {
		stopped.Store(true)
		// Errors are those of a connection that already ended.
		_ = c.SetReadDeadline(time.Now())
		<-ended
		_ = c.SetReadDeadline(time.Time{})
	})
}

// SetReadDeadline bounds Recv, as [net.Conn] does; the zero time lifts it.
func (c *Conn) SetReadDeadline(t time.Time) error {
	return c.setDeadline(t, c.nc.SetReadDeadline)
}

// SetWriteDeadline bounds Send, Write and Flush. A deadline that passes in the
// middle of a message leaves half of it on the wire: sending is over then.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	return c.setDeadline(t, c.nc.SetWriteDeadline)
}

func (c *Conn) setDeadline(t time.Time, set func(time.Time) error) error {
	c.dmu.Lock()
	defer c.dmu.Unlock()
	if c.closed.Load() {
		return fmt.Errorf("set deadline for %s: %w", c.peer, net.ErrClosed)
	}
	return set(t)
}

// Close ends the connection and whatever is blocked in it. With
// [Options.Linger] it first flushes and waits for the peer to take everything,
// and reports when the peer did not. Closing again gives the same answer.
func (c *Conn) Close() error {
	c.closing.Do(func() { c.closeErr = c.close() })
	return c.closeErr
}

func (c *Conn) close() error {
	deadline := time.Now().Add(c.opt.Linger)
	c.dmu.Lock()
	c.closed.Store(true)
	// Errors of deadlines are those of a connection that already ended.
	_ = c.nc.SetReadDeadline(time.Now())
	_ = c.nc.SetWriteDeadline(deadline)
	c.dmu.Unlock()

	var err error
	if c.opt.Linger > 0 && !c.gone.Load() {
		err = c.leave(deadline)
	}
	c.hangUp()
	// Receiving has ended by now, and nothing else starts goroutines.
	c.rmu.Lock()
	//lint:ignore SA2001 the wait is all that is wanted
	c.rmu.Unlock()
	c.bg.Wait()
	return err
}

// hangUp ends a connection that is not used any more.
func (c *Conn) hangUp() {
	c.nc.Close()
	if c.among != nil {
		c.among.leave(c)
	}
}

// leave flushes, says that no more will come and waits for the peer to hang up in
// turn. A peer does so once it has read everything, which the kernel would not
// tell; and input that arrives until then is read, because closing a TCP socket
// with unread input discards what the peer has not read yet.
func (c *Conn) leave(deadline time.Time) error {
	c.wmu.Lock()
	err := c.bw.Flush()
	c.wmu.Unlock()
	if err == nil {
		err = c.drain(deadline)
	}
	if err == nil {
		return nil
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("close %s: not everything was taken within %v: %w", c.peer, c.opt.Linger, err)
	}
	return fmt.Errorf("close %s: %w: %w", c.peer, ErrPeerGone, err)
}

func (c *Conn) drain(deadline time.Time) error {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	half, ok := c.nc.(interface{ CloseWrite() error })
	if !ok || c.end != nil && errors.Is(c.end, io.EOF) {
		return nil
	}
	if err := half.CloseWrite(); err != nil {
		return err
	}
	if err := c.nc.SetReadDeadline(deadline); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, onlyReader{c.nc})
	return err
}

// onlyReader hides the fast paths of io.Copy that would splice between sockets.
type onlyReader struct{ net.Conn }

// pong is the answer to a command, or nil when it wants none.
// https://rfc.zeromq.org/spec/37/ "Heartbeat": a PONG returns the PING's context.
func pong(command []byte) ([]byte, error) {
	name, data, err := splitCommand(command)
	if err != nil || name != zmq4.CmdPing {
		return nil, err
	}
	if len(data) < pingTTL {
		return nil, fmt.Errorf("%w: PING without a time to live", ErrProtocol)
	}
	context := data[pingTTL:]
	if len(context) > maxContext {
		return nil, fmt.Errorf("%w: PING with %d bytes of context, at most %d are allowed", ErrProtocol, len(context), maxContext)
	}
	answer := append([]byte{byte(len(zmq4.CmdPong))}, zmq4.CmdPong...)
	return append(answer, context...), nil
}
