package zmq

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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

func frames(texts ...string) Message {
	var m Message
	for _, f := range texts {
		m = append(m, []byte(f))
	}
	return m
}

func TestPublishToLibzmq(t *testing.T) {
	for _, typ := range []Type{Sub, XSub} {
		t.Run(strings.ToLower(string(typ)), func(t *testing.T) {
			transports(t, func(t *testing.T, endpoint string) {
				py := startPyzmq(t)
				p := startPub(t, ListenPub, endpoint, PubOptions{})
				p.send("news", "before anybody came")
				subscribeLibzmq(py, typ, "a", p.Endpoint(), "news")
				p.await("news")
				subscribeLibzmq(py, typ, "b", p.Endpoint(), "")
				p.await("")
				for _, m := range messages() {
					require.NoError(t, p.Send(append(Message{[]byte("news of a")}, m...)))
				}
				p.send("olds", "not for a")
				p.send("news", "end")
				for _, m := range messages() {
					want := append([][]byte{[]byte("news of a")}, m...)
					for _, name := range []string{"a", "b"} {
						if d := diff(want, py.recv(name)); d != "" {
							t.Fatalf("%s received (-want +got):\n%.2000s", name, d)
						}
					}
				}
				if got := py.recv("b"); string(got[1]) != "not for a" {
					t.Errorf("b received %q", got)
				}
				for _, name := range []string{"a", "b"} {
					if got := py.recv(name); string(got[1]) != "end" {
						t.Errorf("%s received %q at the end", name, got)
					}
				}
			})
		})
	}
}

func subscribeLibzmq(py *pyzmq, typ Type, name, endpoint, prefix string) {
	py.t.Helper()
	if typ == Sub {
		py.do(command{"op": "open", "name": name, "type": Sub, "connect": endpoint, "subscribe": prefix})
		return
	}
	py.connect(name, XSub, endpoint, nil)
	py.send(name, []byte("\x01"+prefix))
}

// A subscriber takes back one of two prefixes, and what it does not want does not come.
func TestLibzmqUnsubscribes(t *testing.T) {
	py := startPyzmq(t)
	p := startPub(t, ListenPub, "tcp://127.0.0.1:0", PubOptions{})
	subscribeLibzmq(py, XSub, "s", p.Endpoint(), "a")
	p.await("a")
	py.send("s", []byte("\x01b"))
	p.await("b")
	p.send("a", "1")
	py.send("s", []byte("\x00a"))
	// What is subscribed behind it has been read behind it.
	py.send("s", []byte("\x01c"))
	p.await("c")
	for _, topic := range []string{"a", "b", "c", "ab", "d", ""} {
		p.send(topic, "2")
	}
	p.send("b", "end")
	var got []string
	for len(got) == 0 || got[len(got)-1] != "b end" {
		m := py.recv("s")
		got = append(got, string(m[0])+" "+string(m[1]))
	}
	require.NoDiff(t, cmp.Diff([]string{"a 1", "b 2", "c 2", "b end"}, got), "received (-want +got)")
	if p.Wanted([]byte("a")) || !p.Wanted([]byte("bc")) {
		t.Error("a is wanted, or bc is not")
	}
}

// libzmq's SUB listens and ours dials, as an engine does whose endpoint names a host.
// What is published while the subscriber is away waits, up to the high-water mark.
func TestDialPub(t *testing.T) {
	transports(t, func(t *testing.T, endpoint string) {
		first := startPyzmq(t)
		open := func(py *pyzmq) string {
			return py.do(command{"op": "open", "name": "s", "type": Sub, "bind": endpoint, "subscribe": "kv"}).Endpoint
		}
		endpoint = strings.Replace(endpoint, ":0", ":*", 1)
		endpoint = open(first)
		p := startPub(t, DialPub, endpoint, PubOptions{HighWater: 10})
		if p.Endpoint() != endpoint {
			t.Errorf("endpoint %s, want %s", p.Endpoint(), endpoint)
		}
		// A libzmq that listens says what it wants when it is asked for a message.
		first.start(command{"op": "recv", "name": "s", "timeout": patience.Milliseconds()})
		p.await("kv")
		p.send("kv", "first")
		if got := first.finish().Frames; got[1] != "6669727374" {
			t.Fatalf("received %q", got)
		}
		first.kill()
		for p.connected() {
			// The connection ends when the kernel says so.
			p.send("other", "nothing")
		}
		for i := range 15 {
			p.send("kv", fmt.Sprint(i))
		}
		second := startPyzmq(t)
		open(second)
		for i := range 10 {
			if got := second.recv("s"); string(got[1]) != fmt.Sprint(i) {
				t.Fatalf("received %q, want what was published while nobody listened, %d", got, i)
			}
		}
		if got := p.Dropped(); got != 5 {
			t.Errorf("%d messages dropped, want 5 above the high-water mark", got)
		}
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
	transports(t, func(t *testing.T, endpoint string) {
		p := startPub(t, ListenPub, endpoint, PubOptions{HighWater: highWater})
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
		if fit < highWater {
			t.Errorf("%d messages before the first was dropped, want %d at least", fit, highWater)
		}
		for range 10 {
			say()
		}
		if got := p.Dropped(); got != 11 {
			t.Errorf("%d messages dropped, want 11 in one row", got)
		}
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
			p := startPub(t, ListenPub, "tcp://127.0.0.1:0", PubOptions{})
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
			if got := told + " " + left; got != tt.want {
				t.Errorf("told and left: %q, want %q", got, tt.want)
			}
		})
	}
}

// greetPub is a peer whose every byte the test writes, after the handshake.
func greetPub(t testing.TB, p *pub) *raw {
	t.Helper()
	nc, err := net.Dial("tcp", strings.TrimPrefix(p.Endpoint(), "tcp://"))
	require.NoError(t, err)
	r := newRaw(t, nc)
	r.greet("Socket-Type", "SUB")
	return r
}

func TestPublisherRefuses(t *testing.T) {
	many := strings.Repeat(short(0, "\x00x"), 1)
	for i := range maxPrefixes + 1 {
		many += short(0, "\x01"+fmt.Sprint(i))
	}
	tests := []struct {
		name, bytes string
		err         error
	}{
		{name: "http", bytes: "GET / HTTP/1.1\r\n\r\n", err: ErrProtocol},
		{name: "a puller", bytes: greeting + ready("Socket-Type", "PULL"), err: ErrIncompatible},
		{name: "too many prefixes", bytes: greeting + ready("Socket-Type", "SUB") + many, err: ErrTooLarge},
		{
			name: "a subscription too long", err: ErrTooLarge,
			bytes: greeting + ready("Socket-Type", "SUB") + long(0, maxSubscription+1, "\x01"),
		},
		{name: "a command without a name", bytes: greeting + ready("Socket-Type", "SUB") + short(flagCommand, ""), err: ErrProtocol},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := startPub(t, ListenPub, "tcp://127.0.0.1:0", PubOptions{})
			good := dialPub(t, p, "kv")
			nc, err := net.Dial("tcp", strings.TrimPrefix(p.Endpoint(), "tcp://"))
			require.NoError(t, err)
			r := newRaw(t, nc)
			r.send(tt.bytes)
			require.ErrorIs(t, <-p.refused, tt.err, p.Endpoint())
			if _, err := io.Copy(io.Discard, r); err != nil && !hungUp(err) {
				t.Errorf("the peer sees %v, want the end of the connection", err)
			}
			p.send("kv", "still")
			if got := receive(t, good); string(got[1]) != "still" {
				t.Errorf("the other subscriber received %q", got)
			}
		})
	}
}

// With a linger, Close returns when every subscriber has everything.
func TestClosedPublisherLingers(t *testing.T) {
	const count = 5000
	py := startPyzmq(t)
	p := startPub(t, ListenPub, "tcp://127.0.0.1:0", PubOptions{Options: Options{Linger: patience}})
	subscribeLibzmq(py, Sub, "s", p.Endpoint(), "")
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
			p := startPub(t, ListenPub, "tcp://127.0.0.1:0", PubOptions{Options: Options{Linger: tt.linger}})
			greetPub(t, p).send(short(0, "\x01"))
			p.await("")
			big := strings.Repeat("x", 1<<20)
			for range 64 {
				p.send(big)
			}
			require.ErrorIs(t, p.Close(), tt.want)
			unreached := startPub(t, DialPub, "tcp://127.0.0.1:1", PubOptions{Options: Options{Linger: tt.linger}})
			unreached.send("lost")
			if err := unreached.Close(); err != nil {
				t.Errorf("close of one that was never connected: %v", err)
			}
		})
	}
}

// A publisher that dials somebody who is no subscriber says so, once.
func TestDialPubToAnother(t *testing.T) {
	endpoint, accept := rawListen(t)
	p := startPub(t, DialPub, endpoint, PubOptions{})
	accept().greet("Socket-Type", "PULL")
	require.ErrorIs(t, <-p.refused, ErrIncompatible, endpoint)
	p.send("lost")
}

func TestPubMistakes(t *testing.T) {
	tests := []struct {
		name, endpoint string
		opt            PubOptions
		text           string
	}{
		{name: "no scheme", endpoint: "5557", text: "want tcp://"},
		{name: "inproc", endpoint: "inproc://x", text: `transport "inproc" is not supported`},
		{name: "high water", endpoint: "tcp://127.0.0.1:0", opt: PubOptions{HighWater: -1}, text: "high-water mark -1"},
		{name: "linger", endpoint: "tcp://127.0.0.1:0", opt: PubOptions{Options: Options{Linger: -1}}, text: "negative option"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, open := range []func(string, PubOptions) (*Publisher, error){ListenPub, DialPub} {
				if _, err := open(tt.endpoint, tt.opt); err == nil || !strings.Contains(err.Error(), tt.text) {
					t.Errorf("%v, want %q", err, tt.text)
				}
			}
		})
	}
	taken := startPub(t, ListenPub, "tcp://127.0.0.1:0", PubOptions{})
	if _, err := ListenPub(taken.Endpoint(), PubOptions{}); err == nil || !strings.Contains(err.Error(), taken.Endpoint()) {
		t.Errorf("listening where another does: %v", err)
	}
	if err := taken.Send(nil); err == nil {
		t.Error("a message of no frames was sent")
	}
}

// Our SUB and XSUB at libzmq's publishers.
func TestSubscribeToLibzmq(t *testing.T) {
	for _, typ := range []Type{Sub, XSub} {
		t.Run(strings.ToLower(string(typ)), func(t *testing.T) {
			transports(t, func(t *testing.T, endpoint string) {
				py := startPyzmq(t)
				c := dial(t, py.bind("pub", XPub, strings.Replace(endpoint, ":0", ":*", 1)), typ, Options{})
				hear := func(want string) {
					t.Helper()
					if got := py.recv("pub"); len(got) != 1 || string(got[0]) != want {
						t.Fatalf("the publisher is told %q, want %q", got, want)
					}
				}
				require.NoError(t, c.Subscribe(nil))
				hear("\x01")
				want := [][]byte{[]byte("READY")}
				py.send("pub", want...)
				if d := diff(Message(want), receive(t, c)); d != "" {
					t.Errorf("received (-want +got):\n%s", d)
				}
				require.NoError(t, errors.Join(c.Subscribe([]byte("a")), c.Unsubscribe(nil)))
				hear("\x01a")
				hear("\x00")
				py.send("pub", []byte("b"))
				py.send("pub", []byte("a"))
				if got := receive(t, c); string(got[0]) != "a" {
					t.Errorf("received %q", got)
				}
			})
		})
	}
}

func TestWhoMaySubscribe(t *testing.T) {
	py := startPyzmq(t)
	sub := dial(t, py.bind("pub", Pub, "tcp://127.0.0.1:*"), Sub, Options{})
	for _, m := range []Message{frames("hello"), frames(""), frames("\x01a", "")} {
		require.ErrorContains(t, sub.Send(m...), "a SUB socket does not send")
	}
	push := dial(t, py.bind("pull", Pull, "tcp://127.0.0.1:*"), Push, Options{})
	require.ErrorContains(t, push.Subscribe(nil), "a PUSH socket does not subscribe")
}

func TestPublishingAllocatesNothing(t *testing.T) {
	p := startPub(t, ListenPub, "tcp://127.0.0.1:0", PubOptions{HighWater: 100_000})
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

// BenchmarkPublish is what saying a message costs the one who says it.
func BenchmarkPublish(b *testing.B) {
	for _, subscribers := range []int{0, 1, 8} {
		b.Run(fmt.Sprint(subscribers), func(b *testing.B) {
			p := startPub(b, ListenPub, "tcp://127.0.0.1:0", PubOptions{HighWater: 100_000})
			for range subscribers {
				r := greetPub(b, p)
				r.send(short(0, "\x01kv"))
				p.await("kv")
				go func() { _, _ = io.Copy(io.Discard, r.Conn) }()
			}
			m := frames("kv", "12345678", strings.Repeat("x", 1000))
			b.ReportAllocs()
			for b.Loop() {
				require.NoError(b, p.Send(m))
			}
			b.ReportMetric(float64(p.Dropped())/float64(b.N), "dropped/op")
		})
	}
}
