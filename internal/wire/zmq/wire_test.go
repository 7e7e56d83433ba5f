//go:build unix

package zmq

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// tooMuch is more than the kernel keeps for a peer that does not read.
const tooMuch = 32 << 20

// wires is a stream of messages whose frames are distinguished by their content, of
// changing lengths around the limits of headers, and at least n bytes in all.
func wires(n int) []byte {
	var b []byte
	for i := 0; len(b) < n; i++ {
		number := binary.LittleEndian.AppendUint32(nil, uint32(i))
		b = AppendMessage(b, [][]byte{number, bytes.Repeat(number, i%100), {}, bytes.Repeat(number, 5000)})
	}
	return b
}

// What the kernel does not take at once is written later, and nothing comes between:
// no message, and no PONG. Afterwards everything is as before.
func TestWireInParts(t *testing.T) {
	ping, pong := short(flagCommand, "\x04PING\x00\x0a"), short(flagCommand, "\x04PONG")
	c, r := rawPeer(t, Dealer, Options{}, "ROUTER")
	stream := wires(tooMuch)
	n, err := c.TryWire(stream)
	if err != nil || n == 0 || n >= len(stream) {
		t.Fatalf("%d bytes of %d written to a peer that reads nothing, %v", n, len(stream), err)
	}
	if n, err := c.TryWire(stream); n != 0 || err != nil {
		t.Errorf("%d bytes written in the middle of a message, %v", n, err)
	}
	require.ErrorIs(t, c.Send([]byte("between")), errTorn)
	r.send(ping + short(0, "after the ping"))
	receive(t, c)

	heard := make(chan string)
	go func() { heard <- r.receive(len(stream)) }()
	c.bg.Wait() // for the PONG that may not be written
	require.NoError(t, c.WriteWire(stream[n:]))
	if got := <-heard; got != string(stream) {
		t.Errorf("the %d bytes heard are not the %d written, of them %d at once", len(got), len(stream), n)
	}

	require.NoErrorf(t, c.Send([]byte("next")), "send after the rest")
	r.send(ping + short(0, "after the ping"))
	receive(t, c)
	want := short(0, "next") + pong
	r.receives(want)
}

// The rest of one message may be written behind others: what is buffered goes first, and
// who sends at the moment is not disturbed.
func TestTryWireGivesWay(t *testing.T) {
	c, r := rawPeer(t, Push, Options{}, "PULL")
	wire := AppendMessage(nil, [][]byte{[]byte("wire")})
	c.wmu.Lock()
	if n, err := c.TryWire(wire); n != 0 || err != nil {
		t.Errorf("%d bytes written while another one sends, %v", n, err)
	}
	c.wmu.Unlock()
	require.NoError(t, c.Write([]byte("buffered")))
	if n, err := c.TryWire(wire); n != 0 || err != nil {
		t.Errorf("%d bytes written before what is buffered, %v", n, err)
	}
	require.NoError(t, c.WriteWire(wire))
	if n, err := c.TryWire(wire); n != len(wire) || err != nil {
		t.Errorf("%d bytes written, %v; want %d", n, err, len(wire))
	}
	want := short(0, "buffered") + short(0, "wire") + short(0, "wire")
	r.receives(want)
}

// Once a part is written the rest must be, or nothing can.
func TestWireThatEnds(t *testing.T) {
	wire := AppendMessage(nil, [][]byte{[]byte("wire")})
	for _, tt := range []struct {
		name string
		end  func(*Conn, *raw)
		want error
	}{
		{"the peer left", func(c *Conn, r *raw) { r.Close(); _, _ = c.Recv() }, ErrPeerGone},
		{"closed", func(c *Conn, _ *raw) { c.Close() }, net.ErrClosed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, r := rawPeer(t, Push, Options{}, "PULL")
			tt.end(c, r)
			if n, err := c.TryWire(wire); n != 0 || !errors.Is(err, tt.want) {
				t.Errorf("TryWire: %d, %v; want %v", n, err, tt.want)
			}
			require.ErrorIs(t, c.WriteWire(wire), tt.want)
		})
	}
	t.Run("in the middle", func(t *testing.T) {
		c, r := rawPeer(t, Push, Options{}, "PULL")
		stream := wires(tooMuch)
		n, err := c.TryWire(stream)
		require.NoError(t, err)
		require.NoError(t, c.SetWriteDeadline(time.Unix(1, 0)))
		require.ErrorIs(t, c.WriteWire(stream[n:]), os.ErrDeadlineExceeded)
		require.NoError(t, c.SetWriteDeadline(time.Time{}))
		require.ErrorIs(t, c.Send([]byte("between")), errTorn)
		require.Equal(t, r.receive(n), string(stream[:n]), "the %d bytes heard are not those written", n)
	})
}
