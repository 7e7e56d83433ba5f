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
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// The bytes of frames, written out.
func TestBytesOnTheWire(t *testing.T) {
	c, r := rawPeer(t, Push, Options{}, "Socket-Type", "PULL")
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
			if got := r.receive(len(tt.want)); got != tt.want {
				t.Errorf("sent %x, want %x", got, tt.want)
			}
		})
	}
}

// Only types that can be addressed announce an identity, as in libzmq.
func TestReadyOnTheWire(t *testing.T) {
	for _, tt := range []struct {
		typ      Type
		peer     string
		identity bool
	}{{Dealer, "ROUTER", true}, {Router, "DEALER", true}, {Push, "PULL", false}} {
		t.Run(string(tt.typ), func(t *testing.T) {
			endpoint, accept := rawListen(t)
			done := make(chan error, 1)
			go func() {
				c, err := Dial(patient(t), endpoint, tt.typ, Options{Identity: []byte{2, 0}})
				if err == nil {
					err = c.Close()
				}
				done <- err
			}()
			r := accept()
			r.send(greeting)
			want := "\xff" + strings.Repeat("\x00", 8) + "\x7f\x03\x00NULL"
			if got := r.receive(len(greeting)); !strings.HasPrefix(got, want) {
				t.Errorf("greeting is %x, want %x first", got, want)
			}
			head := r.receive(shortHeader)
			body := r.receive(int(head[1]))
			if head[0] != flagCommand || !strings.Contains(body, "\x0bSocket-Type\x00\x00\x00"+string(rune(len(tt.typ)))+string(tt.typ)) {
				t.Errorf("command is %x %q", head[0], body)
			}
			if got := strings.Contains(body, "\x08Identity\x00\x00\x00\x02\x02\x00"); got != tt.identity {
				t.Errorf("identity announced: %v, want %v: %q", got, tt.identity, body)
			}
			r.send(ready("Socket-Type", tt.peer))
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

// What a peer writes right behind its READY belongs to the first message.
func TestBytesBehindReady(t *testing.T) {
	endpoint, accept := rawListen(t)
	dialed := dialLater(t, endpoint, Pull, Options{})
	accept().send(greeting + ready("Socket-Type", "PUSH") + short(flagMore, "a") + short(0, "b"))
	c := dialed()
	if m := receive(t, c); len(m) != 2 || string(m[0])+string(m[1]) != "ab" {
		t.Errorf("received %q", m)
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
			c, r := rawPeer(t, tt.typ, Options{MaxFrame: 5000}, "Socket-Type", tt.peer)
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
				// The peer is told by the end of the connection.
				if _, err := io.Copy(io.Discard, r); err != nil && !strings.Contains(err.Error(), "reset") {
					t.Error(err)
				}
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
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
			c, r := rawPeer(t, Pull, Options{}, "Socket-Type", "PUSH")
			stream := long(0, uint64(len(body)), body)
			r.send(stream[:cut])
			require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Millisecond)))
			if m, err := c.Recv(); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("recv: %d frames, %v, want a deadline", len(m), err)
			}
			r.send(stream[cut:] + short(0, "next"))
			if m := receive(t, c); string(m[0]) != body {
				t.Errorf("received %d bytes, want %d", len(m[0]), len(body))
			}
			if m := receive(t, c); string(m[0]) != "next" {
				t.Errorf("received %q, want next", m)
			}
		})
	}
}

// The raw peer reads nothing: sending blocks until the deadline, and is over.
func TestWriteDeadline(t *testing.T) {
	c, _ := rawPeer(t, Push, Options{}, "Socket-Type", "PULL")
	require.NoError(t, c.SetWriteDeadline(time.Now().Add(50*time.Millisecond)))
	require.ErrorIs(t, c.Send(make([]byte, 64<<20)), os.ErrDeadlineExceeded)
	require.NoError(t, c.SetWriteDeadline(time.Time{}))
	if err := c.Send([]byte("more")); err == nil {
		t.Error("send after half a message: no error")
	}
}

func TestWriteWaitsForFlush(t *testing.T) {
	c, r := rawPeer(t, Push, Options{}, "Socket-Type", "PULL")
	for _, frame := range []string{"a", "b"} {
		require.NoError(t, c.Write([]byte(frame)))
	}
	if got := c.bw.Buffered(); got != 6 {
		t.Errorf("%d bytes wait, want 6", got)
	}
	require.NoError(t, c.Flush())
	if got, want := r.receive(6), "\x00\x01a\x00\x01b"; got != want {
		t.Errorf("heard %x, want %x", got, want)
	}
}

func TestManyWriters(t *testing.T) {
	const writers, count = 8, 500
	l := listen(t, "tcp://127.0.0.1:0", Pull, Options{})
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

// A PING between two frames of a message is answered and does not show.
func TestPingInsideMessage(t *testing.T) {
	c, r := rawPeer(t, Dealer, Options{}, "Socket-Type", "ROUTER")
	r.send(short(flagMore, "a") + short(flagCommand, "\x04PING\x00\x0actx") + short(0, "b") + short(flagCommand, "\x09SUBSCRIBEx"))
	if m := receive(t, c); len(m) != 2 || string(m[0])+string(m[1]) != "ab" {
		t.Errorf("received %q, want a and b", m)
	}
	if got, want := r.receive(10), short(flagCommand, "\x04PONGctx"); got != want {
		t.Errorf("heard %q, want %q", got, want)
	}
}

// Were receiving to wait for a PONG to leave, two peers that send to each other
// before they receive would wait forever.
func TestPingDoesNotHoldUpReceiving(t *testing.T) {
	c, r := rawPeer(t, Dealer, Options{}, "Socket-Type", "ROUTER")
	sent := make(chan error, 1)
	go func() { sent <- c.Send(make([]byte, 64<<20)) }()
	r.receive(longHeader) // sending has begun and will not end by itself
	for range 3 {
		r.send(short(flagCommand, "\x04PING\x00\x0a") + short(0, "a"))
		receive(t, c)
	}
	r.receive(64 << 20)
	require.NoError(t, <-sent)
	if got, want := r.receive(7), short(flagCommand, "\x04PONG"); got != want {
		t.Errorf("heard %q, want %q", got, want)
	}
}

func TestSendRefusals(t *testing.T) {
	pull, _ := rawPeer(t, Pull, Options{}, "Socket-Type", "PUSH")
	require.ErrorContains(t, pull.Send([]byte("a")), "PULL socket does not send")
	push, r := rawPeer(t, Push, Options{}, "Socket-Type", "PULL")
	require.ErrorIs(t, push.Send(), errNoFrames)
	if err := push.Send([]byte("a")); err != nil {
		t.Errorf("send after a refusal: %v", err)
	}
	r.receive(3)
}

// A PUSH connection learns of its peer's departure although nobody receives.
func TestPushNoticesDeparture(t *testing.T) {
	c, r := rawPeer(t, Push, Options{}, "Socket-Type", "PULL")
	r.Close()
	if _, err := c.Recv(); !errors.Is(err, ErrPeerGone) {
		t.Errorf("recv: %v, want ErrPeerGone", err)
	}
	for _, err := range []error{c.Send([]byte("a")), c.Write([]byte("a"))} {
		require.ErrorIs(t, err, ErrPeerGone)
	}
}

func TestCloseUnblocks(t *testing.T) {
	for _, linger := range []time.Duration{0, time.Millisecond} {
		c, r := rawPeer(t, Dealer, Options{Linger: linger}, "Socket-Type", "ROUTER")
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
