package zmq

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// A pub is a publisher and what it tells.
type pub struct {
	*Publisher
	t          testing.TB
	subscribed chan string // the prefixes
	refused    chan error
}

func startPub(t testing.TB, open func(string, PubOptions) (*Publisher, error), endpoint string, opt PubOptions) *pub {
	t.Helper()
	p := &pub{t: t, subscribed: make(chan string, 4096), refused: make(chan error, 64)}
	opt.Subscribed = func(_ Peer, prefix []byte) { p.subscribed <- string(prefix) }
	opt.Refused = func(err error) { p.refused <- err }
	var err error
	p.Publisher, err = open(endpoint, opt)
	require.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

// await waits for a new subscription to prefix.
func (p *pub) await(prefix string) {
	p.t.Helper()
	select {
	case got := <-p.subscribed:
		if got != prefix {
			p.t.Fatalf("subscribed to %q, want %q", got, prefix)
		}
	case err := <-p.refused:
		p.t.Fatalf("refused: %v, want a subscription to %q", err, prefix)
	case <-patient(p.t).Done():
		p.t.Fatalf("nobody subscribed to %q", prefix)
	}
}

func (p *pub) send(texts ...string) {
	p.t.Helper()
	require.NoError(p.t, p.Send(frames(texts...)))
}

// Subscribers of libzmq get what they asked for and from then on, and may take it back.
func TestPublishToLibzmq(t *testing.T) {
	for _, typ := range []Type{Sub, XSub} {
		t.Run(string(typ), func(t *testing.T) {
			transports(t, func(t *testing.T, free func() string) {
				py := startPyzmq(t)
				p := startPub(t, ListenPub, free(), PubOptions{})
				py.connect("s", typ, p.Endpoint(), nil)
				subscribe := func(op, prefix string) {
					if typ == Sub {
						py.do(command{"op": op, "name": "s", "prefix": prefix})
					} else {
						py.send("s", frames(map[string]string{"subscribe": "\x01", "unsubscribe": "\x00"}[op]+prefix))
					}
				}
				p.send("m", "before anybody came")
				subscribe("subscribe", "m")
				p.await("m")
				for _, m := range messages() {
					require.NoError(t, p.Send(m))
				}
				p.send("olds", "not wanted")
				for _, m := range messages() {
					require.NoDiff(t, diff(m, py.recv("s")), "received (-want +got)")
				}
				subscribe("subscribe", "b")
				p.await("b")
				subscribe("unsubscribe", "m")
				// What is subscribed behind it has been read behind it.
				subscribe("subscribe", "c")
				p.await("c")
				for _, topic := range []string{"m", "b", "mb", ""} {
					p.send(topic, "2")
				}
				p.send("c", "end")
				for _, topic := range []string{"b", "c"} {
					if got := py.recv("s"); string(got[0]) != topic {
						t.Errorf("received %q, want topic %s", got, topic)
					}
				}
				require.True(t, !p.Wanted([]byte("m")) && p.Wanted([]byte("bc")), "m is wanted, or bc is not")
			})
		})
	}
}

// libzmq's SUB listens and ours dials, as an engine does whose endpoint names a host.
// What is published while the subscriber is away waits, up to the high-water mark.
func TestDialPub(t *testing.T) {
	transports(t, func(t *testing.T, free func() string) {
		py := startPyzmq(t)
		bind := func(endpoint string) string {
			endpoint = py.bind("s", Sub, endpoint)
			py.do(command{"op": "subscribe", "name": "s", "prefix": "kv"})
			return endpoint
		}
		endpoint := bind(free())
		p := startPub(t, DialPub, endpoint, PubOptions{HighWater: 10})
		require.Equal(t, p.Endpoint(), endpoint, "endpoint")
		// A libzmq that listens says what it wants when it is asked for a message.
		py.start(command{"op": "recv", "name": "s", "timeout": patience.Milliseconds()})
		p.await("kv")
		p.send("kv", "first")
		if got := py.finish().Frames; got[1] != "6669727374" {
			t.Fatalf("received %q", got)
		}
		py.do(command{"op": "close", "name": "s"})
		for p.connected() {
			// The connection ends when the kernel says so.
			p.send("other", "nothing")
		}
		for i := range 15 {
			p.send("kv", fmt.Sprint(i))
		}
		bind(endpoint)
		for i := range 10 {
			if got := py.recv("s"); string(got[1]) != fmt.Sprint(i) {
				t.Fatalf("received %q, want what was published while nobody listened, %d", got, i)
			}
		}
		require.Equal(t, p.Dropped(), 5, "messages dropped: those above the high-water mark")
	})
}

func (p *pub) connected() bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for s := range p.all {
		if s.now != nil {
			return true
		}
	}
	return false
}

// A subscriber that does not read holds nobody up and misses the newest messages, once
// the kernel and its queue are full; then it gets what comes after the gap.
func TestSlowSubscriberMisses(t *testing.T) {
	const highWater, size = 100, 64 << 10
	transports(t, func(t *testing.T, free func() string) {
		p := startPub(t, ListenPub, free(), PubOptions{HighWater: highWater})
		slow, quick := dialPub(t, p, "kv"), dialPub(t, p, "")
		said := 0
		say := func() {
			body := bytes.Repeat([]byte{byte(said)}, size)
			body[0], body[1] = byte(said>>8), byte(said)
			p.send("kv", string(body))
			if got := receive(t, quick); !bytes.Equal(got[1], body) {
				t.Fatalf("the quick subscriber received another message than number %d", said)
			}
			said++
		}
		for p.Dropped() == 0 {
			say()
		}
		fit := said - 1
		require.True(t, fit >= highWater, "%d messages before the first was dropped, want %d at least", fit, highWater)
		for range 10 {
			say()
		}
		require.Equal(t, p.Dropped(), 11, "messages dropped in one row")
		for i := range fit {
			if got := receive(t, slow)[1]; int(got[0])<<8|int(got[1]) != i {
				t.Fatalf("message %d, want %d", int(got[0])<<8|int(got[1]), i)
			}
		}
		say()
		if got := receive(t, slow)[1]; int(got[0])<<8|int(got[1]) != said-1 {
			t.Errorf("message %d after the gap, want %d", int(got[0])<<8|int(got[1]), said-1)
		}
	})
}

// dialPub is a subscriber of ours whose subscription p knows.
func dialPub(t testing.TB, p *pub, prefix string) *Conn {
	t.Helper()
	c := dial(t, p.Endpoint(), Sub, Options{})
	require.NoError(t, c.Subscribe([]byte(prefix)))
	p.await(prefix)
	return c
}

// ZMTP 3.1 has commands for what 3.0 says by messages.
func TestSubscriptionForms(t *testing.T) {
	cmd := func(name, prefix string) string { return short(flagCommand, string(rune(len(name)))+name+prefix) }
	tests := []struct {
		name        string
		bytes, want string // want are the prefixes told, and those left, one letter each
	}{
		{name: "messages", bytes: short(0, "\x01a") + short(0, "\x01b") + short(0, "\x00a"), want: "ab b"},
		{name: "commands", bytes: cmd("SUBSCRIBE", "a") + cmd("SUBSCRIBE", "b") + cmd("CANCEL", "a"), want: "ab b"},
		{name: "subscribed twice", bytes: short(0, "\x01a") + cmd("SUBSCRIBE", "a") + short(0, "\x00a"), want: "a "},
		{name: "cancelled before", bytes: short(0, "\x00a") + short(0, "\x01a"), want: "a a"},
		{name: "other bytes", bytes: short(0, "\x02a") + short(0, "") + short(0, "a"), want: " "},
		{name: "a message of two frames", bytes: short(flagMore, "\x01a") + short(0, ""), want: " "},
		{name: "other commands", bytes: cmd("PING", "\x00\x00") + cmd("HELLO", "a"), want: " "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := startPub(t, ListenPub, tcp, PubOptions{})
			r := greetPub(t, p)
			r.send(tt.bytes + short(0, "\x01end"))
			told := ""
			for prefix := ""; prefix != "end"; {
				prefix = <-p.subscribed
				told += strings.TrimSuffix(prefix, "end")
			}
			left := ""
			for _, topic := range []string{"a", "b"} {
				if p.Wanted([]byte(topic)) {
					left += topic
				}
			}
			require.Equal(t, told+" "+left, tt.want, "told and left")
		})
	}
}

// greetPub is a peer whose every byte the test writes, after the handshake.
func greetPub(t testing.TB, p *pub) *raw {
	t.Helper()
	r := rawDial(t, p.Endpoint())
	r.greet("Socket-Type", "SUB")
	return r
}

// With a linger, Close returns when every subscriber has everything.
func TestClosedPublisherLingers(t *testing.T) {
	const count = 5000
	py := startPyzmq(t)
	p := startPub(t, ListenPub, tcp, PubOptions{Options: Options{Linger: patience}})
	py.connect("s", Sub, p.Endpoint(), nil)
	py.do(command{"op": "subscribe", "name": "s", "prefix": ""})
	p.await("")
	for i := range count {
		p.send(string([]byte{byte(i), byte(i >> 8), 0, 0, 0, 0, 0, 0}))
	}
	require.NoError(t, p.Close())
	if a := py.do(command{"op": "drain", "name": "s", "count": count}); a.Wrong != 0 {
		t.Errorf("%d messages out of order", a.Wrong)
	}
	require.ErrorIs(t, p.Send(frames("late")), net.ErrClosed)
}

// Neither a subscriber that does not read nor one that was never reached holds Close
// up for longer than the linger, or at all without one.
func TestClosedPublisherEnds(t *testing.T) {
	tests := []struct {
		name   string
		linger time.Duration
		want   error
	}{
		{name: "no linger"},
		{name: "linger", linger: 20 * time.Millisecond, want: os.ErrDeadlineExceeded},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := startPub(t, ListenPub, tcp, PubOptions{Options: Options{Linger: tt.linger}})
			greetPub(t, p).send(short(0, "\x01"))
			p.await("")
			big := strings.Repeat("x", 1<<20)
			for range 64 {
				p.send(big)
			}
			require.ErrorIs(t, p.Close(), tt.want)
			unreached := startPub(t, DialPub, "tcp://127.0.0.1:1", PubOptions{Options: Options{Linger: tt.linger}})
			unreached.send("lost")
			require.NoErrorf(t, unreached.Close(), "close of one that was never connected")
		})
	}
}

// A publisher that dials somebody who is no subscriber says so, once.
func TestDialPubToAnother(t *testing.T) {
	endpoint, accept := rawListen(t, tcp)
	p := startPub(t, DialPub, endpoint, PubOptions{})
	accept().greet("Socket-Type", "PULL")
	require.ErrorIs(t, <-p.refused, ErrIncompatible, endpoint)
	p.send("lost")
}

func TestPublishingAllocatesNothing(t *testing.T) {
	p := startPub(t, ListenPub, tcp, PubOptions{HighWater: 100_000})
	for range 3 {
		r := greetPub(t, p)
		r.send(short(0, "\x01kv"))
		p.await("kv")
		go func() { _, _ = io.Copy(io.Discard, r.Conn) }()
	}
	m := frames("kv", "12345678", strings.Repeat("x", 1000))
	// The queues grow before it counts. They never are full: a message that is dropped proves nothing.
	for range 10_000 {
		require.NoError(t, p.Send(m))
	}
	// Those of other goroutines count too, such as of an earlier test that is ending. What Send allocated would be there each time.
	fewest := math.Inf(1)
	for range 10 {
		fewest = min(fewest, testing.AllocsPerRun(1000, func() { require.NoError(t, p.Send(m)) }))
	}
	if p.Dropped() > 0 {
		t.Errorf("%d messages were dropped", p.Dropped())
	}
	if fewest != 0 {
		t.Errorf("%v allocations a message, want none", fewest)
	}
}
