package zmq

import (
	"errors"
	"net"
)

// AppendMessage appends a message of at least one frame as it is on the wire. What
// several calls appended can be written by one [Conn.WriteWire].
func AppendMessage(b []byte, frames [][]byte) []byte {
	var header [longHeader]byte
	for i, frame := range frames {
		flags := byte(flagMore)
		if i == len(frames)-1 {
			flags = 0
		}
		b = append(b, header[:putHeader(&header, flags, len(frame))]...)
		b = append(b, frame...)
	}
	return b
}

// WriteWire writes whole messages in the form of [AppendMessage], or what TryWire left
// of them. It blocks while the peer is slow, and b may be reused when it returns. Its
// errors are those of [Conn.Send].
func (c *Conn) WriteWire(b []byte) error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	err := c.endedLocked()
	if err == nil && !c.torn {
		err = c.bw.Flush()
	}
	if err == nil {
		_, err = c.nc.Write(b)
		c.torn = err != nil
	}
	return c.sent(err)
}

// TryWire writes as much of whole messages in the form of [AppendMessage] as the kernel
// takes at once, and returns how many bytes that were. What is left goes to WriteWire,
// before anything else is sent.
func (c *Conn) TryWire(b []byte) (n int, err error) {
	if !c.wmu.TryLock() {
		return 0, nil // a PONG is on its way, which may have to wait
	}
	defer c.wmu.Unlock()
	if err := c.endedLocked(); err != nil {
		return 0, c.sent(err)
	}
	if c.torn || c.bw.Buffered() > 0 {
		return 0, nil
	}
	n, err = writeNow(c.nc, b)
	c.torn = 0 < n && n < len(b)
	return n, c.sent(err)
}

// errTorn is the error of sending before the rest of what TryWire left.
var errTorn = errors.New("the rest of a message has to be written first")

// endedLocked is why nothing can be sent any more.
func (c *Conn) endedLocked() error {
	switch {
	case c.closed.Load():
		return net.ErrClosed
	case c.gone.Load():
		return ErrPeerGone
	}
	return nil
}
