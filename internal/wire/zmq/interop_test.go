package zmq

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// identities as vLLM and others use them: two bytes little-endian, the longest
// allowed, text.
var identities = []struct {
	name string
	id   []byte
}{
	{name: "engine 0", id: []byte{0, 0}},
	{name: "engine 1", id: []byte{1, 0}},
	{name: "engine 258", id: []byte{2, 1}},
	{name: "one byte", id: []byte{7}},
	{name: "longest", id: bytes.Repeat([]byte{0xfe}, maxIdentity)},
	{name: "text", id: []byte("client-a")},
}

// messages hold every shape of header: empty, short, the longest short, long.
func messages() [][][]byte {
	fill := func(n int) []byte { return bytes.Repeat([]byte{0xa5}, n) }
	return [][][]byte{
		{{}},
		{{0}},
		{{}, {}, {}},
		{{1}, fill(254), fill(255), fill(256), fill(257), {}},
		{fill(bufferSize - 10), fill(bufferSize), fill(bufferSize + 1)},
		{{}, fill(firstGrow), fill(firstGrow + 1), {0}},
	}
}

func TestDealerToLibzmqRouter(t *testing.T) {
	transports(t, func(t *testing.T, endpoint string) {
		py := startPyzmq(t)
		endpoint = py.bind("router", Router, endpoint)
		for _, tt := range identities {
			t.Run(tt.name, func(t *testing.T) {
				py := py.within(t)
				c := dial(t, endpoint, Dealer, Options{Identity: tt.id})
				if got := c.Peer().Type; got != Router {
					t.Errorf("peer is a %s, want ROUTER", got)
				}
				for _, want := range messages() {
					require.NoError(t, c.Send(want...))
					enveloped := append([][]byte{tt.id}, want...)
					if d := diff(enveloped, py.recv("router")); d != "" {
						t.Fatalf("libzmq received (-want +got):\n%s", d)
					}
					py.send("router", enveloped...)
					if d := diff(Message(want), receive(t, c)); d != "" {
						t.Fatalf("received (-want +got):\n%s", d)
					}
				}
			})
		}
	})
}

func TestRouterToLibzmqDealer(t *testing.T) {
	transports(t, func(t *testing.T, endpoint string) {
		py := startPyzmq(t)
		l := listen(t, endpoint, Router, Options{})
		for _, tt := range identities {
			t.Run(tt.name, func(t *testing.T) {
				py := py.within(t)
				py.connect("dealer", Dealer, l.Endpoint(), tt.id)
				d := expect(t, l, Joined)
				if !bytes.Equal(d.Peer.Identity, tt.id) || d.Peer.Type != Dealer {
					t.Errorf("joined: %s, want DEALER %x", d.Peer, tt.id)
				}
				for _, want := range messages() {
					py.send("dealer", want...)
					d := expect(t, l, Received)
					if d := diff(Message(want), d.Message); d != "" {
						t.Fatalf("received (-want +got):\n%s", d)
					}
					require.NoError(t, l.Send(tt.id, want...))
					if d := diff(want, py.recv("dealer")); d != "" {
						t.Fatalf("libzmq received (-want +got):\n%s", d)
					}
				}
				py.do(command{"op": "close", "name": "dealer"})
				if d := expect(t, l, Gone); !errors.Is(d.Err, ErrPeerGone) || !bytes.Equal(d.Peer.Identity, tt.id) {
					t.Errorf("gone: %s, %v", d.Peer, d.Err)
				}
			})
		}
	})
}

func TestRouterNamesTheNameless(t *testing.T) {
	py := startPyzmq(t)
	l := listen(t, "tcp://127.0.0.1:0", Router, Options{})
	seen := map[string]bool{}
	for _, name := range []string{"a", "b"} {
		py.connect(name, Dealer, l.Endpoint(), nil)
		id := expect(t, l, Joined).Peer.Identity
		if len(id) != 5 || id[0] != 0 || seen[string(id)] {
			t.Errorf("identity %x, want 5 bytes, the first 0, of its own", id)
		}
		seen[string(id)] = true
		require.NoError(t, l.Send(id, []byte(name)))
		require.NoDiff(t, cmp.Diff([][]byte{[]byte(name)}, py.recv(name)), "libzmq received (-want +got)")
	}
}

func TestDealerWithoutIdentityAtLibzmqRouter(t *testing.T) {
	py := startPyzmq(t)
	c := dial(t, py.bind("router", Router, "tcp://127.0.0.1:*"), Dealer, Options{})
	require.NoError(t, c.Send([]byte("hello")))
	got := py.recv("router")
	if len(got) != 2 || len(got[0]) != 5 || got[0][0] != 0 {
		t.Errorf("libzmq received %x, want its own 5 byte identity and one frame", got)
	}
}

func TestBigFrames(t *testing.T) {
	sizes := []int{1, 10 << 20, 0, 10<<20 + 1, 300}
	transports(t, func(t *testing.T, endpoint string) {
		py := startPyzmq(t)
		l := listen(t, endpoint, Router, Options{})
		py.connect("dealer", Dealer, l.Endpoint(), []byte{0, 0})
		expect(t, l, Joined)

		py.start(command{"op": "send_big", "name": "dealer", "sizes": sizes})
		msg := expect(t, l, Received).Message
		want := py.finish().Digests
		if diff := cmp.Diff(want, digests(msg)); diff != "" {
			t.Fatalf("received (-want +got):\n%s", diff)
		}
		py.start(command{"op": "recv_big", "name": "dealer"})
		require.NoError(t, l.Send([]byte{0, 0}, msg...))
		require.NoDiff(t, cmp.Diff(want, py.finish().Digests), "libzmq received (-want +got)")
	})
}

func digests(m Message) []string {
	sums := make([]string, len(m))
	for i, frame := range m {
		sum := sha256.Sum256(frame)
		sums[i] = hex.EncodeToString(sum[:])
	}
	return sums
}

// A slow libzmq reader with the smallest buffers makes Write block; everything
// arrives, in order.
func TestPushHeldUpBySlowLibzmqPull(t *testing.T) {
	const count, size = 20_000, 2000
	transports(t, func(t *testing.T, endpoint string) {
		py := startPyzmq(t)
		endpoint = py.do(command{
			"op": "open", "name": "pull", "type": Pull, "bind": endpoint,
			"options": map[string]int{"RCVHWM": 1, "RCVBUF": 4096},
		}).Endpoint
		c := dial(t, endpoint, Push, Options{Linger: patience})
		sent := make(chan error, 1)
		go func() { sent <- sequence(c, count, size) }()

		// Nobody drains yet: 40 MB cannot be on their way.
		blocked := command{"op": "drain", "name": "pull", "count": 10, "pause_every": 1, "pause": 0.01}
		if a := py.do(blocked); a.Wrong != 0 {
			t.Fatalf("%d of the first 10 messages out of order", a.Wrong)
		}
		select {
		case err := <-sent:
			t.Fatalf("sending ended (%v) while the peer had taken 10 of %d messages", err, count)
		default:
		}
		py.start(command{"op": "drain", "name": "pull", "first": 10, "count": count - 10, "pause_every": 1000, "pause": 0.005})
		require.NoError(t, <-sent)
		if a := py.finish(); a.Wrong != 0 {
			t.Errorf("%d messages out of order", a.Wrong)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		// The connection is over at both ends, so nothing more can come.
		if a := py.do(command{"op": "recv", "name": "pull", "timeout": 0}); !a.Timeout {
			t.Errorf("a message too many: %q", a.Frames)
		}
	})
}

// sequence sends numbered messages as peer.py's drain wants them.
func sequence(c *Conn, count, size int) error {
	body := make([]byte, size)
	for i := range count {
		binary.LittleEndian.PutUint64(body, uint64(i))
		if err := c.Write(body); err != nil {
			return err
		}
	}
	return c.Flush()
}

// Our own slow reader holds libzmq up: the inbox is bounded, nothing is lost.
func TestPullHoldsUpLibzmqPush(t *testing.T) {
	const count, size = 40_000, 2000
	transports(t, func(t *testing.T, endpoint string) {
		l := listen(t, endpoint, Pull, Options{})
		py := startPyzmq(t)
		py.do(command{
			"op": "open", "name": "push", "type": Push, "connect": l.Endpoint(),
			"options": map[string]int{"SNDHWM": 10},
		})
		py.start(command{"op": "blast", "name": "push", "count": count, "size": size})
		expect(t, l, Joined)
		for i := range count {
			msg := expect(t, l, Received).Message
			if n := binary.LittleEndian.Uint64(msg[0]); n != uint64(i) || len(msg[0]) != size {
				t.Fatalf("message %d of %d bytes, want message %d of %d", n, len(msg[0]), i, size)
			}
			if held := held(l.inbox); held > inboxEvents {
				t.Fatalf("%d messages wait, the bound is %d", held, inboxEvents)
			}
		}
		py.finish()
		py.do(command{"op": "close", "name": "push"})
		expect(t, l, Gone)
	})
}

func TestCrowd(t *testing.T) {
	const peers, count = 500, 20
	transports(t, func(t *testing.T, endpoint string) {
		l := listen(t, endpoint, Router, Options{HandshakeTimeout: patience})
		py := startPyzmq(t)
		py.start(command{"op": "crowd", "connect": l.Endpoint(), "peers": peers, "messages": count})
		next := make(map[string]uint64)
		joined, gone := 0, 0
		for gone < peers {
			d, err := l.Recv(patient(t))
			require.NoError(t, err)
			id := string(d.Peer.Identity)
			switch d.Kind {
			case Joined:
				joined++
			case Gone:
				gone++
			case Refused:
				t.Fatal(d.Err)
			case Received:
				if n := binary.LittleEndian.Uint64(d.Message[0]); n != next[id] || string(d.Message[1]) != id {
					t.Fatalf("peer %x: message %d of peer %x, want message %d", id, n, d.Message[1], next[id])
				}
				next[id]++
				require.NoError(t, l.Send(d.Peer.Identity, d.Message...))
			}
		}
		if a := py.finish(); a.Wrong != 0 {
			t.Errorf("%d answers lost, doubled or out of order", a.Wrong)
		}
		for id, n := range next {
			if n != count {
				t.Errorf("peer %x: %d messages, want %d", id, n, count)
			}
		}
		if joined != peers || len(next) != peers {
			t.Errorf("%d peers joined, %d spoke, want %d", joined, len(next), peers)
		}
	})
}

func TestLibzmqPeerKilled(t *testing.T) {
	transports(t, func(t *testing.T, endpoint string) {
		l := listen(t, endpoint, Router, Options{})
		first := startPyzmq(t)
		first.connect("dealer", Dealer, l.Endpoint(), []byte{0, 0})
		expect(t, l, Joined)
		// It dies with a long row of 10 MB frames half sent.
		first.start(command{"op": "send_big", "name": "dealer", "sizes": []int{10 << 20}, "count": 1000})
		expect(t, l, Received)
		first.kill()
		d, err := l.Recv(patient(t))
		for ; err == nil && d.Kind == Received; d, err = l.Recv(patient(t)) {
		}
		if err != nil || d.Kind != Gone || !errors.Is(d.Err, ErrPeerGone) {
			t.Fatalf("after the kill: %s, %v, %v, want gone", d.Kind, d.Err, err)
		}
		second := startPyzmq(t)
		second.connect("dealer", Dealer, l.Endpoint(), []byte{0, 0})
		second.send("dealer", []byte("again"))
		expect(t, l, Joined)
		if got := expect(t, l, Received).Message; string(got[0]) != "again" {
			t.Errorf("received %q from the new peer", got)
		}
		require.NoError(t, l.Send([]byte{0, 0}, []byte("welcome")))
		if got := second.recv("dealer"); string(got[0]) != "welcome" {
			t.Errorf("the new peer received %q", got)
		}
	})
}

func TestDialedLibzmqPeerKilled(t *testing.T) {
	transports(t, func(t *testing.T, endpoint string) {
		py := startPyzmq(t)
		endpoint = py.bind("pull", Pull, endpoint)
		push := dial(t, endpoint, Push, Options{})
		dealerEnd := py.bind("router", Router, "tcp://127.0.0.1:*")
		dealer := dial(t, dealerEnd, Dealer, Options{Identity: []byte{0, 0}})
		py.kill()
		for _, c := range []*Conn{push, dealer} {
			if _, err := c.Recv(); !errors.Is(err, ErrPeerGone) || !errors.Is(err, io.EOF) {
				t.Errorf("recv: %v, want ErrPeerGone and io.EOF", err)
			}
			require.ErrorIs(t, c.Send([]byte("lost?")), ErrPeerGone)
		}
		// Somebody else serves the endpoint again: dialing reaches it.
		again := startPyzmq(t)
		again.bind("pull", Pull, endpoint)
		c := dial(t, endpoint, Push, Options{})
		require.NoError(t, c.Send([]byte("found")))
		if got := again.recv("pull"); string(got[0]) != "found" {
			t.Errorf("the new peer received %q", got)
		}
	})
}

// libzmq retries when it is refused, so a newcomer gets in when the holder of its
// identity has left.
func TestLibzmqNewcomerWaitsForItsIdentity(t *testing.T) {
	py := startPyzmq(t)
	l := listen(t, "tcp://127.0.0.1:0", Router, Options{})
	py.connect("first", Dealer, l.Endpoint(), []byte{0, 0})
	expect(t, l, Joined)
	py.connect("second", Dealer, l.Endpoint(), []byte{0, 0})
	py.send("second", []byte("second"))
	if d := expect(t, l, Refused); !errors.Is(d.Err, ErrIdentityTaken) {
		t.Fatalf("refused: %v, want ErrIdentityTaken", d.Err)
	}
	py.send("first", []byte("first"))
	kinds, got := map[Kind]int{}, ""
	for kinds[Joined] == 0 || kinds[Received] < 2 {
		d, err := l.Recv(patient(t))
		require.NoError(t, err)
		kinds[d.Kind]++
		if d.Kind == Received {
			got += string(d.Message[0]) + " "
			if kinds[Received] == 1 {
				py.do(command{"op": "close", "name": "first"})
			}
		}
		if d.Kind == Joined && kinds[Gone] == 0 {
			t.Fatal("the second peer joined before the first was gone")
		}
	}
	if got != "first second " {
		t.Errorf("received %q, want the first peer's message and then the second's", got)
	}
}

// A heartbeating libzmq has its PINGs answered, on both sides of a link, and
// none of them is a message.
func TestLibzmqHeartbeat(t *testing.T) {
	beat := map[string]int{"HEARTBEAT_IVL": 10, "HEARTBEAT_TIMEOUT": 30_000}
	py := startPyzmq(t)
	l := listen(t, "tcp://127.0.0.1:0", Pull, Options{})
	answered := startRelay(t, l.ln.Addr())
	py.do(command{"op": "open", "name": "push", "type": Push, "connect": answered.endpoint, "options": beat})
	expect(t, l, Joined)
	pull := py.do(command{"op": "open", "name": "pull", "type": Pull, "bind": "tcp://127.0.0.1:*", "options": beat}).Endpoint
	relayed := startRelay(t, tcpAddr(t, pull))
	c := dial(t, relayed.endpoint, Push, Options{})

	for range 5 {
		answered.wait(t, "\x04PONG")
		relayed.wait(t, "\x04PONG")
	}
	py.send("push", []byte("alive"))
	if got := expect(t, l, Received).Message; string(got[0]) != "alive" {
		t.Errorf("received %q", got)
	}
	require.NoError(t, c.Send([]byte("alive")))
	if got := py.recv("pull"); string(got[0]) != "alive" {
		t.Errorf("libzmq received %q", got)
	}
}
