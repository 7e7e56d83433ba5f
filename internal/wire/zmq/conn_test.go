//go:build unix

package zmq

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// The bytes of frames, written out.
func TestBytesOnTheWire(t *testing.T) {
	c, r := rawPeer(t, Push, Options{}, "PULL")
	tests := []struct {
		name   string
		frames [][]byte
		want   string
	}{
		{name: "empty", frames: [][]byte{nil}, want: "\x00\x00"},
		{name: "two", frames: [][]byte{{0}, {}}, want: "\x01\x01\x00\x00\x00"},
		{name: "longest short", frames: [][]byte{make([]byte, 255)}, want: "\x00\xff" + strings.Repeat("\x00", 255)},
		{name: "shortest long", frames: [][]byte{make([]byte, 256)}, want: "\x02\x00\x00\x00\x00\x00\x00\x01\x00" + strings.Repeat("\x00", 256)},
		{name: "long with more", frames: [][]byte{make([]byte, 65536), {1}}, want: "\x03\x00\x00\x00\x00\x00\x01\x00\x00" + strings.Repeat("\x00", 65536) + "\x00\x01\x01"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			require.NoError(t, c.Send(tt.frames...))
			r.receives(tt.want)
		})
	}
}

// Only types that can be addressed announce an identity, as in libzmq, and a dialer of relays announces what its peer did.
// What a peer writes right behind its READY belongs to the first message.
func TestDialOnTheWire(t *testing.T) {
	const named = "\x08Identity\x00\x00\x00\x02\x02\x00"
	for _, tt := range []struct {
		typ, peer Type
		identity  string
		as        bool // by DialAs
	}{
		{typ: Dealer, peer: Router, identity: named},
		{typ: Router, peer: Dealer, identity: named},
		{typ: Push, peer: Pull},
		{typ: Dealer, peer: Router, identity: named, as: true},
		{typ: Push, peer: Pull, as: true},
		{typ: Sub, peer: XPub, as: true},
		{typ: XSub, peer: Pub, as: true},
	} {
		t.Run(fmt.Sprintf("%s %v", tt.typ, tt.as), func(t *testing.T) {
			endpoint, accept := rawListen(t, tcp)
			dialed := make(chan error, 1)
			go func() {
				open, opt := func(opt Options) (*Conn, error) { return Dial(patient(t), endpoint, tt.typ, opt) }, Options{Identity: []byte{2, 0}}
				if tt.as {
					open = func(opt Options) (*Conn, error) {
						return DialAs(patient(t), endpoint, Peer{Type: tt.typ, Identity: opt.Identity}, Options{})
					}
				}
				c, err := open(opt)
				if err == nil {
					if tt.typ == Dealer {
						receives(t, c, "a", "b")
					}
					err = c.Close()
				}
				dialed <- err
			}()
			r := accept()
			r.send(greeting + ready("Socket-Type", string(tt.peer)) + short(flagMore, "a") + short(0, "b"))
			want := "\xff" + strings.Repeat("\x00", 8) + "\x7f\x03\x00NULL"
			if got := r.receive(len(greeting)); !strings.HasPrefix(got, want) {
				t.Errorf("greeting is %x, want %x first", got, want)
			}
			head := r.receive(shortHeader)
			body := r.receive(int(head[1]))
			typ := "\x0bSocket-Type\x00\x00\x00" + string(rune(len(tt.typ))) + string(tt.typ)
			// The order of the properties has no meaning.
			if want := "\x05READY" + typ + tt.identity; head[0] != flagCommand || body != want && body != "\x05READY"+tt.identity+typ {
				t.Errorf("command is %x %q, want %q", head[0], body, want)
			}
			require.NoError(t, <-dialed)
		})
	}
}

// What is written waits for Flush. A PING between two frames of a message is answered and does not show.
func TestWriteFlushAndPing(t *testing.T) {
	c, r := rawPeer(t, Dealer, Options{}, "ROUTER")
	for _, frame := range []string{"a", "b"} {
		require.NoError(t, c.Write([]byte(frame)))
	}
	require.Equal(t, c.bw.Buffered(), 6, "bytes wait")
	require.NoError(t, c.Flush())
	r.receives(short(0, "a") + short(0, "b"))
	r.send(short(flagMore, "a") + short(flagCommand, "\x04PING\x00\x0actx") + short(0, "b") + short(flagCommand, "\x09SUBSCRIBEx"))
	receives(t, c, "a", "b")
	r.receives(short(flagCommand, "\x04PONGctx"))
}

func TestSendRefusals(t *testing.T) {
	pull, _ := rawPeer(t, Pull, Options{}, "PUSH")
	require.ErrorContains(t, pull.Send([]byte("a")), "PULL socket does not send")
	sub, _ := rawPeer(t, Sub, Options{}, "PUB")
	for _, m := range []Message{frames("hello"), frames(""), frames("\x01a", "")} {
		require.ErrorContains(t, sub.Send(m...), "a SUB socket does not send")
	}
	push, r := rawPeer(t, Push, Options{}, "PULL")
	require.ErrorContains(t, push.Subscribe(nil), "a PUSH socket does not subscribe")
	require.ErrorIs(t, push.Send(), errNoFrames)
	require.NoError(t, push.Send([]byte("a"))) // a refusal is not the end
	r.receives(short(0, "a"))
	r.Close()
	_, err := push.Recv() // learns of the peer's departure
	require.ErrorIs(t, err, ErrPeerGone)
	for _, err := range []error{push.Send([]byte("a")), push.Write([]byte("a"))} {
		require.ErrorIs(t, err, ErrPeerGone)
	}
}

func TestNoDelay(t *testing.T) {
	c, _ := rawPeer(t, Dealer, Options{}, "ROUTER")
	sc, err := c.nc.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	value := 0
	if err := sc.Control(func(fd uintptr) {
		value, err = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_NODELAY)
	}); err != nil || value == 0 {
		t.Errorf("TCP_NODELAY is %d, %v", value, err)
	}
}

func TestRecvErrors(t *testing.T) {
	tests := []struct {
		name  string
		typ   Type
		peer  string
		bytes string
		errs  []error
		text  string
	}{
		{name: "hung up", typ: Pull, peer: "PUSH", errs: []error{ErrPeerGone, io.EOF}, text: "PUSH at 127.0.0.1"},
		{name: "hung up in a message", typ: Pull, peer: "PUSH", bytes: long(0, 1000, "some"), errs: []error{ErrPeerGone, io.EOF, io.ErrUnexpectedEOF}, text: "after 4 of 1000 bytes of frame 1"},
		{name: "too large", typ: Pull, peer: "PUSH", bytes: long(0, 5001, ""), errs: []error{ErrTooLarge}, text: "5001 bytes after 0 before it, the limit is 5000"},
		{name: "not a frame", typ: Pull, peer: "PUSH", bytes: "HTTP/1.1 200 OK", errs: []error{ErrProtocol}, text: "reserved"},
		{name: "message from a PULL", typ: Push, peer: "PULL", bytes: short(0, "?"), errs: []error{ErrProtocol}, text: "a message from a PULL"},
		{name: "broken command", typ: Push, peer: "PULL", bytes: short(flagCommand, "\x20PING"), errs: []error{ErrProtocol}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, r := rawPeer(t, tt.typ, Options{MaxFrame: 5000}, tt.peer)
			r.send(tt.bytes)
			if tt.errs[0] == ErrPeerGone {
				r.Close()
			}
			for range 2 { // the end stays
				_, err := c.Recv()
				for _, want := range tt.errs {
					require.ErrorIs(t, err, want, tt.text)
				}
			}
			if tt.errs[0] != ErrPeerGone {
				r.ends()
			}
			require.NoError(t, c.Close())
			if _, err := c.Recv(); err == nil {
				t.Error("recv after close: no error")
			}
		})
	}
}

// A deadline loses nothing, wherever in a message it strikes.
func TestReadDeadline(t *testing.T) {
	body := strings.Repeat("b", 200_000)
	for _, cut := range []int{0, 1, 5, 9, 100, 100_000} {
		t.Run(fmt.Sprint(cut), func(t *testing.T) {
			c, r := rawPeer(t, Pull, Options{}, "PUSH")
			stream := long(0, uint64(len(body)), body)
			r.send(stream[:cut])
			require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Millisecond)))
			if m, err := c.Recv(); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("recv: %d frames, %v, want a deadline", len(m), err)
			}
			r.send(stream[cut:] + short(0, "next"))
			receives(t, c, body)
			receives(t, c, "next")
		})
	}
}

// The raw peer reads nothing: sending blocks until the deadline, and is over.
func TestWriteDeadline(t *testing.T) {
	c, _ := rawPeer(t, Push, Options{}, "PULL")
	require.NoError(t, c.SetWriteDeadline(time.Now().Add(50*time.Millisecond)))
	require.ErrorIs(t, c.Send(make([]byte, 64<<20)), os.ErrDeadlineExceeded)
	require.NoError(t, c.SetWriteDeadline(time.Time{}))
	if err := c.Send([]byte("more")); err == nil {
		t.Error("send after half a message: no error")
	}
}

func TestManyWriters(t *testing.T) {
	const writers, count = 8, 500
	l := listen(t, tcp, Pull, Options{})
	c := dial(t, l.Endpoint(), Push, Options{})
	expect(t, l, Joined)
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			tail := make([]byte, 100*w)
			for i := range count {
				head := binary.LittleEndian.AppendUint32([]byte{byte(w)}, uint32(i))
				send := c.Send
				if i%3 == 0 {
					send = c.Write
				}
				if err := send(head, tail); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	go func() {
		wg.Wait()
		if err := c.Flush(); err != nil {
			t.Error(err)
		}
	}()
	var next [writers]uint32
	for range writers * count {
		m := expect(t, l, Received).Message
		w, i := m[0][0], binary.LittleEndian.Uint32(m[0][1:])
		if i != next[w] || len(m) != 2 || len(m[1]) != 100*int(w) {
			t.Fatalf("writer %d: message %d of %d frames, want message %d", w, i, len(m), next[w])
		}
		next[w]++
	}
}

// Were receiving to wait for a PONG to leave, two peers that send to each other
// before they receive would wait forever.
func TestPingDoesNotHoldUpReceiving(t *testing.T) {
	c, r := rawPeer(t, Dealer, Options{}, "ROUTER")
	sent := make(chan error, 1)
	go func() { sent <- c.Send(make([]byte, 64<<20)) }()
	r.receive(longHeader) // sending has begun and will not end by itself
	for range 3 {
		r.send(short(flagCommand, "\x04PING\x00\x0a") + short(0, "a"))
		receive(t, c)
	}
	r.receive(64 << 20)
	require.NoError(t, <-sent)
	r.receives(short(flagCommand, "\x04PONG"))
}

func TestCloseUnblocks(t *testing.T) {
	for _, linger := range []time.Duration{0, time.Millisecond} {
		c, r := rawPeer(t, Dealer, Options{Linger: linger}, "ROUTER")
		received, sent := make(chan error, 1), make(chan error, 1)
		go func() {
			_, err := c.Recv()
			received <- err
		}()
		go func() { sent <- c.Send(make([]byte, 64<<20)) }()
		r.receive(longHeader)
		first := c.Close()
		for _, ch := range []chan error{received, sent} {
			require.ErrorIs(t, <-ch, net.ErrClosed)
		}
		if again := c.Close(); again != first {
			t.Errorf("closing again: %v, the first time %v", again, first)
		}
		for _, err := range []error{c.Send(nil), c.Flush(), c.SetReadDeadline(time.Time{})} {
			require.ErrorIs(t, err, net.ErrClosed)
		}
	}
}

// Everything written before Close arrives, flushed or not, although the peer had
// sent what nobody received: a plain close would reset the connection.
func TestLingerDeliversEverything(t *testing.T) {
	body := strings.Repeat("b", 8<<20)
	c, r := rawPeer(t, Dealer, Options{Linger: patience}, "ROUTER")
	r.send(short(0, "unread"))
	closed := make(chan error, 1)
	go func() {
		closed <- errors.Join(c.Send([]byte(body)), c.Write([]byte("last")), c.Close())
	}()
	r.receive(longHeader)
	r.receives(body + short(0, "last"))
	r.send(short(0, "still unread"))
	if _, err := r.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("after the last message: %v, want EOF", err)
	}
	select {
	case err := <-closed:
		t.Fatalf("close returned (%v) before the peer hung up", err)
	default:
	}
	r.Close()
	require.NoError(t, <-closed)
}

func TestLingerEnds(t *testing.T) {
	tests := []struct {
		name  string
		bytes int
		hears bool
	}{
		{name: "peer reads nothing", bytes: 64 << 20},
		{name: "peer does not hang up", bytes: 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, _ := rawPeer(t, Push, Options{Linger: 20 * time.Millisecond}, "PULL")
			go func() { _ = c.Send(make([]byte, tt.bytes)) }()
			require.ErrorIs(t, c.Close(), os.ErrDeadlineExceeded, "within 20ms")
		})
	}
}

// Nobody waits for a peer that is not there.
func TestLingerWithoutPeer(t *testing.T) {
	c, r := rawPeer(t, Dealer, Options{Linger: time.Hour}, "ROUTER")
	r.Close()
	if _, err := c.Recv(); !errors.Is(err, ErrPeerGone) {
		t.Fatal(err)
	}
	require.NoError(t, c.Close())
}

// Two of ours that close at once let each other go.
func TestLingerOnBothSides(t *testing.T) {
	l := listen(t, tcp, Router, Options{Linger: time.Hour})
	c := dial(t, l.Endpoint(), Dealer, Options{Linger: time.Hour})
	expect(t, l, Joined)
	closed := make(chan error, 1)
	go func() { closed <- l.Close() }()
	require.NoError(t, c.Close())
	require.NoError(t, <-closed)
}
