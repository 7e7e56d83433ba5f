package zmq

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// identities as vLLM and others use them: two bytes little-endian, the longest
// allowed, text.
var identities = [][]byte{{0, 0}, {2, 1}, {7}, bytes.Repeat([]byte{0xfe}, maxIdentity), []byte("client-a")}

// messages hold every shape of header: empty, short, the longest short, long. All begin with "m".
func messages() []Message {
	fill := func(n int) []byte { return bytes.Repeat([]byte{0xa5}, n) }
	all := []Message{
		{},
		{{0}},
		{{}, {}},
		{{1}, fill(254), fill(255), fill(256), fill(257), {}},
		{fill(bufferSize - 10), fill(bufferSize), fill(bufferSize + 1)},
		{{}, fill(firstGrow), fill(firstGrow + 1), {0}},
	}
	for i, m := range all {
		all[i] = append(frames("m"), m...)
	}
	return all
}

// An end is one side of a link: a socket of libzmq or one of ours.
type end struct {
	send func(Message)
	recv func() Message
}

func ourEnd(t *testing.T, c *Conn) end {
	return end{func(m Message) { require.NoError(t, c.Send(m...)) }, func() Message { return receive(t, c) }}
}

// listenerEnd is the side of a listener towards the peer that joins next.
func listenerEnd(t *testing.T, l *Listener) end {
	c := expect(t, l, Joined).Conn
	return end{func(m Message) { require.NoError(t, c.Send(m...)) }, func() Message { return expect(t, l, Received).Message }}
}

func libzmqEnd(py *pyzmq, name string) end {
	return end{func(m Message) { py.send(name, m) }, func() Message { return py.recv(name) }}
}

// addressed is the side of a ROUTER of libzmq towards the peer with that identity.
func addressed(t *testing.T, e end, identity []byte) end {
	return end{
		func(m Message) { e.send(append(Message{identity}, m...)) },
		func() Message {
			m := e.recv()
			if !bytes.Equal(m[0], identity) {
				t.Errorf("a message from %x, want %x", m[0], identity)
			}
			return m[1:]
		},
	}
}

// What libzmq sends to us, to libzmq through a relay of ours, or gets from us, is what arrives.
func TestLibzmq(t *testing.T) {
	relayed := func(t *testing.T, free func() string, typ Type, to string) string {
		return startRelays(t, free(), typ, to, func() Observer { return newQueue(patient(t), 1<<30) })
	}
	tests := []struct {
		name       string
		open       func(t *testing.T, py *pyzmq, free func() string, id []byte) (near, far end)
		identities bool // with each of them
		oneWay     bool // from near to far
	}{
		{name: "dealer to ROUTER", identities: true, open: func(t *testing.T, py *pyzmq, free func() string, id []byte) (near, far end) {
			c := dial(t, py.bind("router", Router, free()), Dealer, Options{Identity: id})
			if c.Peer().Type != Router {
				t.Errorf("the peer is %s", c.Peer())
			}
			return ourEnd(t, c), addressed(t, libzmqEnd(py, "router"), id)
		}},
		{name: "DEALER to router", identities: true, open: func(t *testing.T, py *pyzmq, free func() string, id []byte) (near, far end) {
			l := listen(t, free(), Router, Options{})
			py.connect("dealer", Dealer, l.Endpoint(), id)
			far = listenerEnd(t, l)
			return libzmqEnd(py, "dealer"), end{func(m Message) { require.NoError(t, l.Send(id, m...)) }, far.recv}
		}},
		{name: "DEALER without identity to router", open: func(t *testing.T, py *pyzmq, free func() string, _ []byte) (near, far end) {
			l := listen(t, free(), Router, Options{})
			py.connect("dealer", Dealer, l.Endpoint(), nil)
			return libzmqEnd(py, "dealer"), listenerEnd(t, l)
		}},
		{name: "dealer to REP", open: func(t *testing.T, py *pyzmq, free func() string, _ []byte) (near, far end) {
			near = ourEnd(t, dial(t, py.bind("rep", "REP", free()), Dealer, Options{}))
			return addressed(t, near, []byte{}), libzmqEnd(py, "rep")
		}},
		{name: "push to PULL", oneWay: true, open: func(t *testing.T, py *pyzmq, free func() string, _ []byte) (near, far end) {
			return ourEnd(t, dial(t, py.bind("pull", Pull, free()), Push, Options{})), libzmqEnd(py, "pull")
		}},
		{name: "PUSH to pull", oneWay: true, open: func(t *testing.T, py *pyzmq, free func() string, _ []byte) (near, far end) {
			l := listen(t, free(), Pull, Options{})
			py.connect("push", Push, l.Endpoint(), nil)
			return libzmqEnd(py, "push"), listenerEnd(t, l)
		}},
		{name: "DEALER to ROUTER", identities: true, open: func(t *testing.T, py *pyzmq, free func() string, id []byte) (near, far end) {
			py.connect("near", Dealer, relayed(t, free, Router, py.bind("far", Router, free())), id)
			return libzmqEnd(py, "near"), addressed(t, libzmqEnd(py, "far"), id)
		}},
		{name: "PUSH to PULL", oneWay: true, open: func(t *testing.T, py *pyzmq, free func() string, _ []byte) (near, far end) {
			py.connect("near", Push, relayed(t, free, Pull, py.bind("far", Pull, free())), nil)
			return libzmqEnd(py, "near"), libzmqEnd(py, "far")
		}},
	}
	for _, typ := range []Type{Sub, XSub} { // they say no more than what they subscribe to
		for name, open := range map[string]func(t *testing.T, py *pyzmq, free func() string) (subscriber, publisher end){
			"XPUB to our": func(t *testing.T, py *pyzmq, free func() string) (subscriber, publisher end) {
				return ourEnd(t, dial(t, py.bind("pub", XPub, free()), typ, Options{})), libzmqEnd(py, "pub")
			},
			"XPUB to libzmq's": func(t *testing.T, py *pyzmq, free func() string) (subscriber, publisher end) {
				py.connect("sub", typ, relayed(t, free, XPub, py.bind("pub", XPub, free())), nil)
				subscriber = libzmqEnd(py, "sub")
				if typ == Sub {
					subscriber.send = func(m Message) {
						py.do(command{"op": map[byte]string{0: "unsubscribe", 1: "subscribe"}[m[0][0]], "name": "sub", "prefix": string(m[0][1:])})
					}
				}
				return subscriber, libzmqEnd(py, "pub")
			},
		} {
			tests = append(tests, struct {
				name       string
				open       func(t *testing.T, py *pyzmq, free func() string, id []byte) (near, far end)
				identities bool
				oneWay     bool
			}{name: name + " " + string(typ), oneWay: true, open: func(t *testing.T, py *pyzmq, free func() string, _ []byte) (near, far end) {
				subscriber, publisher := open(t, py, free)
				for _, m := range []string{"\x01a", "\x01m", "\x00a"} {
					subscriber.send(frames(m))
					require.NoDiff(t, diff(frames(m), publisher.recv()), "the publisher received (-want +got)")
				}
				publisher.send(frames("a", "not wanted any more"))
				return publisher, subscriber
			}})
		}
	}
	for _, tt := range tests {
		ids := identities
		if !tt.identities {
			ids = ids[:1]
		}
		for _, id := range ids {
			t.Run(fmt.Sprintf("%s/%.4x", tt.name, id), func(t *testing.T) {
				transports(t, func(t *testing.T, free func() string) {
					near, far := tt.open(t, startPyzmq(t), free, id)
					for _, m := range messages() {
						near.send(m)
						require.NoDiff(t, diff(m, far.recv()), "there (-want +got)")
						if !tt.oneWay {
							far.send(m)
							require.NoDiff(t, diff(m, near.recv()), "back (-want +got)")
						}
					}
				})
			})
		}
	}
}

// Each peer without an identity gets one as libzmq makes them.
func TestIdentitiesOfTheNameless(t *testing.T) {
	py := startPyzmq(t)
	l := listen(t, tcp, Router, Options{})
	seen := map[string]bool{}
	for _, name := range []string{"a", "b"} {
		py.connect(name, Dealer, l.Endpoint(), nil)
		id := expect(t, l, Joined).Peer.Identity
		require.True(t, len(id) == 5 && id[0] == 0 && !seen[string(id)], "identity %x, want 5 bytes, the first 0, of its own", id)
		seen[string(id)] = true
		require.NoError(t, l.Send(id, []byte(name)))
		require.NoDiff(t, diff(frames(name), py.recv(name)), "libzmq received (-want +got)")
	}
}

func TestDialIncompatiblePeer(t *testing.T) {
	py := startPyzmq(t)
	for typ, peer := range map[Type]Type{Push: Router, Dealer: Pull, Pull: Pull, Router: "XPUB"} {
		endpoint := py.bind(string(peer)+string(typ), peer, tcp)
		_, err := Dial(patient(t), endpoint, typ, Options{})
		require.ErrorIs(t, err, ErrIncompatible, string(peer), endpoint)
	}
}

func TestBigFrames(t *testing.T) {
	py := startPyzmq(t)
	l := listen(t, tcp, Router, Options{})
	py.connect("dealer", Dealer, l.Endpoint(), []byte{0, 0})
	expect(t, l, Joined)
	py.start(command{"op": "send_big", "name": "dealer", "sizes": []int{1, 10 << 20, 0, 10<<20 + 1, 300}})
	msg := expect(t, l, Received).Message
	var got []string
	for _, frame := range msg {
		sum := sha256.Sum256(frame)
		got = append(got, hex.EncodeToString(sum[:]))
	}
	want := py.finish().Digests
	require.NoDiff(t, cmp.Diff(want, got), "received (-want +got)")
	py.start(command{"op": "recv_big", "name": "dealer"})
	require.NoError(t, l.Send([]byte{0, 0}, msg...))
	require.NoDiff(t, cmp.Diff(want, py.finish().Digests), "libzmq received (-want +got)")
}

// Our own slow reader holds libzmq up: the inbox is bounded, nothing is lost.
func TestPullHoldsUpLibzmqPush(t *testing.T) {
	const count, size = 40_000, 2000
	transports(t, func(t *testing.T, free func() string) {
		l := listen(t, free(), Pull, Options{})
		py := startPyzmq(t)
		py.connect("push", Push, l.Endpoint(), nil, "SNDHWM", 10)
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

// Many peers at once, each with its own messages in order, directly and through relays.
func TestCrowd(t *testing.T) {
	const peers, count = 300, 20
	for _, relays := range []bool{false, true} {
		t.Run(fmt.Sprintf("relays %v", relays), func(t *testing.T) {
			l := listen(t, tcp, Router, Options{HandshakeTimeout: patience})
			endpoint := l.Endpoint()
			if relays {
				endpoint = startRelays(t, tcp, Router, endpoint, func() Observer { return newQueue(patient(t), 1<<20) })
			}
			py := startPyzmq(t)
			py.start(command{"op": "crowd", "connect": endpoint, "peers": peers, "messages": count})
			next := make(map[string]uint64)
			for gone := 0; gone < peers; {
				d, err := l.Recv(patient(t))
				require.NoError(t, err)
				id := string(d.Peer.Identity)
				switch d.Kind {
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
			if a := py.finish(); a.Wrong != 0 || len(next) != peers {
				t.Errorf("%d answers lost, doubled or out of order, of %d peers, want %d", a.Wrong, len(next), peers)
			}
		})
	}
}

// libzmq reads what is written partly at once and partly later, with the answers to its
// PINGs in between.
func TestWireToLibzmq(t *testing.T) {
	const messages = 50_000
	py := startPyzmq(t)
	pull := py.bind("pull", Pull, tcp, "HEARTBEAT_IVL", 1, "HEARTBEAT_TIMEOUT", 30_000, "RCVHWM", 10)
	c := dial(t, pull, Push, Options{})
	partly, b := 0, []byte(nil)
	for i := range messages {
		body := make([]byte, 8+i%900)
		binary.LittleEndian.PutUint64(body, uint64(i))
		b = AppendMessage(b, [][]byte{body})
		if len(b) < 64<<10 && i < messages-1 {
			continue
		}
		n, err := c.TryWire(b)
		if err == nil && n < len(b) {
			if partly++; partly == 1 {
				py.start(command{"op": "drain", "name": "pull", "count": messages, "pause_every": 10_000, "pause": 0.02})
			}
			err = c.WriteWire(b[n:])
		}
		require.NoError(t, err)
		b = b[:0]
	}
	if partly == 0 {
		t.Fatal("nothing was left to write later, although libzmq did not read")
	}
	if a := py.finish(); a.Wrong != 0 {
		t.Errorf("%d of %d messages are not in order", a.Wrong, messages)
	}
}
