package zmq

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// What one peer breaks is its own connection.
func TestBrokenPeerLeavesOthersAlone(t *testing.T) {
	tests := []struct {
		name  string
		bytes string
		err   error
		text  string
	}{
		{name: "too large", bytes: long(0, 1<<62, "xxxx"), err: ErrTooLarge, text: "the limit is 5000"},
		{name: "message too large", bytes: long(flagMore, 5000, strings.Repeat("x", 5000)) + short(0, "x"), err: ErrTooLarge, text: "frame 2"},
		{name: "not a frame", bytes: "\x77\x00", err: ErrProtocol},
		{name: "killed in a header", bytes: "\x02\x00", err: ErrPeerGone, text: "in the header of frame 1"},
		{name: "killed in a frame", bytes: long(0, 4000, "xxxx"), err: ErrPeerGone, text: "after 4 of 4000 bytes of frame 1"},
		{name: "killed in a message", bytes: short(flagMore, "x"), err: ErrPeerGone, text: "in the header of frame 2"},
	}
	l := listen(t, tcp, Router, Options{MaxFrame: 5000})
	other := dial(t, l.Endpoint(), Dealer, Options{Identity: []byte("other")})
	expect(t, l, Joined)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := rawDial(t, l.Endpoint())
			r.greet("Socket-Type", "DEALER", "Identity", "\x00\x00")
			expect(t, l, Joined)
			r.send(short(0, "fine") + tt.bytes)
			if tt.err == ErrPeerGone {
				r.Close()
			}
			require.NoDiff(t, diff(frames("fine"), expect(t, l, Received).Message), "received (-want +got)")
			require.ErrorIs(t, expect(t, l, Gone).Err, tt.err, tt.text, "DEALER 0000")
			require.ErrorIs(t, l.Send([]byte{0, 0}, []byte("x")), ErrNoPeer)
			require.NoError(t, l.Send([]byte("other"), []byte("x")))
			receives(t, other, "x")
		})
	}
}

func TestSameIdentity(t *testing.T) {
	l := listen(t, tcp, Router, Options{})
	id := []byte{0, 0}
	first := dial(t, l.Endpoint(), Dealer, Options{Identity: id})
	expect(t, l, Joined)

	r := rawDial(t, l.Endpoint())
	r.send(greeting + ready("Socket-Type", "DEALER", "Identity", string(id)))
	d := expect(t, l, Refused)
	if !errors.Is(d.Err, ErrIdentityTaken) || !bytes.Equal(d.Peer.Identity, id) || !strings.Contains(d.Err.Error(), "0000, by DEALER 0000 at 127.0.0.1") {
		t.Errorf("refused %x: %v, want ErrIdentityTaken naming who has it", d.Peer.Identity, d.Err)
	}
	r.receive(len(greeting)) // and no READY
	if b, err := io.ReadAll(r); len(b) > 0 || err != nil && !hungUp(err) {
		t.Errorf("after the greeting: %x, %v, want the end of the connection", b, err)
	}
	require.NoError(t, l.Send(id, []byte("to the first")))
	receive(t, first)

	// The newcomer's Dial goes on trying, until the first has left.
	dialed := dialLater(t, l.Endpoint(), Dealer, Options{Identity: id})
	expect(t, l, Refused)
	first.Close()
	gone := false
	for d.Kind != Joined {
		var err error
		d, err = l.Recv(patient(t))
		require.NoError(t, err)
		gone = gone || d.Kind == Gone
	}
	require.True(t, gone, "the second joined before the first was gone")
	second := dialed()
	require.NoError(t, l.Send(id, []byte("to the second")))
	receive(t, second)
}

// The identity of a peer that hung up is free as soon as its Gone is in the
// inbox; until then a newcomer waits in its handshake.
func TestNewcomerWaitsForGone(t *testing.T) {
	table := newTable()
	peer := Peer{Identity: []byte{0, 0}}
	old, young := &Conn{}, &Conn{}
	require.NoError(t, table.claim(context.Background(), &peer, old))
	old.gone.Store(true)
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, table.claim(ended, &peer, young), ErrIdentityTaken)
	claimed := make(chan error)
	go func() { claimed <- table.claim(context.Background(), &peer, young) }()
	table.leave(peer.Identity, young) // not its own
	select {
	case err := <-claimed:
		t.Fatalf("claimed (%v) before the old peer had left", err)
	default:
	}
	table.leave(peer.Identity, old)
	require.NoError(t, <-claimed)
	require.True(t, table.find(peer.Identity) == nil, "a peer may be sent to before its handshake is over")
	table.join(peer.Identity)
	require.Equal(t, table.find(peer.Identity), young, "the identity does not lead to the peer that joined")
}

// flaky fails to accept before it accepts.
type flaky struct {
	net.Listener
	failures int
}

func (f *flaky) Accept() (net.Conn, error) {
	if f.failures > 0 {
		f.failures--
		return nil, syscall.EMFILE
	}
	return f.Listener.Accept()
}

func TestAcceptFailsAndRecovers(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	opt, err := Options{}.withDefaults()
	require.NoError(t, err)
	l := serveOn(&flaky{Listener: ln, failures: 2}, Pull, opt)
	t.Cleanup(func() { l.Close() })
	for range 2 {
		require.ErrorIs(t, expect(t, l, Refused).Err, syscall.EMFILE, l.Endpoint())
	}
	dial(t, l.Endpoint(), Push, Options{})
	expect(t, l, Joined)
}

func TestMadeUpIdentitiesAvoidTaken(t *testing.T) {
	table := newTable()
	table.next = 1<<32 - 1
	taken := Peer{Identity: []byte{0, 0, 0, 0, 0}}
	require.NoError(t, table.claim(context.Background(), &taken, &Conn{}))
	for _, want := range [][]byte{{0, 0xff, 0xff, 0xff, 0xff}, {0, 0, 0, 0, 1}} {
		var peer Peer
		if err := table.claim(context.Background(), &peer, &Conn{}); err != nil || !bytes.Equal(peer.Identity, want) {
			t.Errorf("identity %x, %v, want %x", peer.Identity, err, want)
		}
	}
}

func TestListenerSend(t *testing.T) {
	router := listen(t, tcp, Router, Options{})
	id := []byte{1, 0}
	require.ErrorIs(t, router.Send(id, nil), ErrNoPeer, "0100")
	c := dial(t, router.Endpoint(), Dealer, Options{Identity: id})
	joined := expect(t, router, Joined)
	for _, text := range []string{"a", "b"} {
		require.NoError(t, router.Send(id, []byte(text)))
	}
	require.NoError(t, joined.Conn.Send([]byte("c")))
	for _, want := range []string{"a", "b", "c"} {
		receives(t, c, want)
	}
	_, recvErr := joined.Conn.Recv()
	require.ErrorContains(t, recvErr, "its listener receives")
	joined.Conn.Close()
	require.ErrorIs(t, expect(t, router, Gone).Err, net.ErrClosed) // as we closed it
	_, err := c.Recv()
	require.ErrorIs(t, err, ErrPeerGone)
	require.ErrorIs(t, joined.Conn.Send(nil), net.ErrClosed)

	// Whoever ended the connection, for a listener's caller there is no peer.
	for cause, want := range map[error]bool{nil: false, ErrPeerGone: true, net.ErrClosed: true, os.ErrDeadlineExceeded: false} {
		if err := router.sent(id, cause); !errors.Is(err, cause) || errors.Is(err, ErrNoPeer) != want {
			t.Errorf("send that ended with %v: %v, want ErrNoPeer: %v", cause, err, want)
		}
	}

	pull := listen(t, tcp, Pull, Options{})
	require.ErrorContains(t, pull.Send(nil, nil), "no identities")
}

func TestListenerClose(t *testing.T) {
	l := listen(t, tcp, Router, Options{HandshakeTimeout: time.Hour})
	c := dial(t, l.Endpoint(), Dealer, Options{})
	d := expect(t, l, Joined)
	silent := rawDial(t, l.Endpoint())
	silent.send(greeting)
	silent.receive(len(greeting)) // its handshake is under way
	sent := make(chan error, 1)
	go func() { sent <- d.Conn.Send(make([]byte, 64<<20)) }()
	go func() { // more than the inbox holds: the peer's goroutine is stuck in it
		for c.Send([]byte("x")) == nil {
		}
	}()
	for held(l.inbox) < inboxEvents {
		if _, err := c.nc.Write(nil); err != nil {
			t.Fatal(err)
		}
	}
	require.NoError(t, l.Close())
	require.ErrorIs(t, <-sent, net.ErrClosed)
	silent.ends()
	for {
		if _, err := l.Recv(patient(t)); err != nil {
			require.ErrorIs(t, err, net.ErrClosed, l.Endpoint())
			break
		}
	}
	require.ErrorIs(t, l.Send(d.Peer.Identity, nil), ErrNoPeer)
	require.NoError(t, l.Close())
}

func TestRecvEndsWithContext(t *testing.T) {
	l := listen(t, tcp, Pull, Options{})
	reason := errors.New("enough")
	ctx, cancel := context.WithCancelCause(context.Background())
	go cancel(reason)
	if _, err := l.Recv(ctx); !errors.Is(err, reason) {
		t.Errorf("recv: %v, want %v", err, reason)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := l.Recv(context.Background())
		ended <- err
	}()
	l.Close()
	require.ErrorIs(t, <-ended, net.ErrClosed)
}

// 16 MiB wait at most, or one message alone.
func TestInboxCountsBytes(t *testing.T) {
	b := newInbox()
	require.True(t, !b.full(inboxBytes+1), "an empty inbox has no room")
	event := Delivery{Kind: Received, Message: Message{make([]byte, inboxBytes+1)}}
	b.put(event)
	require.True(t, b.full(1), "there is room beyond the bound")
	second := make(chan bool)
	go func() { second <- b.put(event) }()
	for range 2 {
		if _, err := b.take(patient(t)); err != nil {
			t.Fatal(err)
		}
	}
	require.True(t, <-second, "put found the inbox closed")
	b.close()
	require.True(t, !b.put(event), "put into a closed inbox")
}

func TestKindString(t *testing.T) {
	for kind, want := range map[Kind]string{Joined: "joined", Received: "received", Gone: "gone", Refused: "refused", 0: "kind 0", 9: "kind 9"} {
		if got := kind.String(); got != want {
			t.Errorf("kind %d is %q, want %q", int(kind), got, want)
		}
	}
}
