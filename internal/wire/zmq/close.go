package zmq

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

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
	c.nc.Close()
	// Whoever receives is out of the socket by now; it alone starts goroutines.
	c.rmu.Lock()
	//lint:ignore SA2001 the wait is all that is wanted
	c.rmu.Unlock()
	c.bg.Wait()
	return err
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
