package zmq

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func openGate(t testing.TB, endpoint string, typ Type, opt Options, refused func(error)) *Gate {
	t.Helper()
	gate, err := OpenGate(endpoint, typ, opt, refused)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { gate.Close() })
	return gate
}

func accept(t testing.TB, gate *Gate) *Conn {
	t.Helper()
	c, err := gate.Accept(patient(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func gateDial(t testing.TB, gate *Gate) *raw {
	t.Helper()
	nc, err := net.Dial(gate.ln.Addr().Network(), gate.ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return newRaw(t, nc)
}

func TestGateAccepts(t *testing.T) {
	tests := []struct {
		name     string
		gate     Type
		peer     Type
		identity string
	}{
		{name: "dealer", gate: Router, peer: Dealer, identity: "\x00\x00"},
		{name: "dealer without identity", gate: Router, peer: Dealer},
		{name: "req", gate: Router, peer: "REQ", identity: "r"},
		{name: "push", gate: Pull, peer: Push},
		{name: "sub", gate: XPub, peer: Sub},
		{name: "xsub", gate: XPub, peer: XSub},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			transports(t, func(t *testing.T, endpoint string) {
				gate := openGate(t, endpoint, tt.gate, Options{}, nil)
				gateDial(t, gate).greet("Socket-Type", string(tt.peer), "Identity", tt.identity)
				got := accept(t, gate).Peer()
				if got.Type != tt.peer || string(got.Identity) != tt.identity {
					t.Errorf("accepted %s", got)
				}
			})
		})
	}
}

// The same identity twice is nobody's business here.
func TestGateKeepsNoIdentities(t *testing.T) {
	gate := openGate(t, "tcp://127.0.0.1:0", Router, Options{}, nil)
	for range 3 {
		gateDial(t, gate).greet("Socket-Type", "DEALER", "Identity", "same")
		if got := accept(t, gate).Peer(); string(got.Identity) != "same" {
			t.Errorf("accepted %s", got)
		}
	}
}

func TestGateRefuses(t *testing.T) {
	tests := []struct {
		name  string
		bytes string
		err   error
		text  string
	}{
		{name: "silent", err: os.ErrDeadlineExceeded, text: "within 20ms"},
		{name: "half a greeting", bytes: greeting[:20], err: os.ErrDeadlineExceeded, text: "within 20ms"},
		{name: "http", bytes: "GET / HTTP/1.1\r\n\r\n", err: ErrProtocol, text: `0x47 ('G')`},
		{name: "wrong socket type", bytes: greeting + ready("Socket-Type", "PULL"), err: ErrIncompatible, text: `we are ROUTER, the peer is "PULL"`},
		{name: "a message for READY", bytes: greeting + short(0, "hello"), err: ErrProtocol},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			refused := make(chan error, 1)
			gate := openGate(t, "tcp://127.0.0.1:0", Router, Options{HandshakeTimeout: 20 * time.Millisecond}, func(err error) { refused <- err })
			r := gateDial(t, gate)
			r.say(tt.bytes)
			err := <-refused
			if !errors.Is(err, tt.err) || !strings.Contains(err.Error(), tt.text) || !strings.Contains(err.Error(), gate.Endpoint()) {
				t.Errorf("refused with %v, want %v with %q on %s", err, tt.err, tt.text, gate.Endpoint())
			}
			if _, err := io.Copy(io.Discard, r); err != nil && !hungUp(err) {
				t.Errorf("the client sees %v, want the end of the connection", err)
			}
		})
	}
}

func TestGateOfManyIsHeldUpByNobody(t *testing.T) {
	const many = 200
	gate := openGate(t, "tcp://127.0.0.1:0", Router, Options{HandshakeTimeout: patience}, nil)
	for range 50 {
		gateDial(t, gate).say(greeting[:20])
	}
	var wg sync.WaitGroup
	for i := range many {
		wg.Go(func() {
			c, err := DialAs(patient(t), gate.Endpoint(), Peer{Type: Dealer, Identity: []byte{byte(i), 1}}, Options{})
			if err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(func() { c.Close() })
		})
	}
	seen := map[string]bool{}
	for range many {
		seen[string(accept(t, gate).Peer().Identity)] = true
	}
	wg.Wait()
	if len(seen) != many {
		t.Errorf("%d identities were accepted, want %d", len(seen), many)
	}
}

func TestGateClose(t *testing.T) {
	refused := make(chan error, 8)
	gate := openGate(t, "tcp://127.0.0.1:0", Router, Options{HandshakeTimeout: patience}, func(err error) { refused <- err })
	shaking, waiting := gateDial(t, gate), gateDial(t, gate)
	shaking.say(greeting)
	shaking.hear(len(greeting))
	waiting.greet("Socket-Type", "DEALER")
	failed := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if c, err := gate.Accept(ctx); err == nil {
		// Both were so: whoever is ready is a fair answer too.
		c.Close()
	} else if !errors.Is(err, context.Canceled) {
		t.Errorf("Accept after its context: %v", err)
	}
	for range 2 {
		if err := gate.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, r := range []*raw{shaking, waiting} {
		if _, err := io.Copy(io.Discard, r); err != nil && !hungUp(err) {
			t.Errorf("the client sees %v, want the end of the connection", err)
		}
	}
	go func() { _, err := gate.Accept(patient(t)); failed <- err }()
	if err := <-failed; !errors.Is(err, net.ErrClosed) || !strings.Contains(err.Error(), gate.Endpoint()) {
		t.Errorf("Accept after Close: %v", err)
	}
	if _, err := net.Dial("tcp", gate.ln.Addr().String()); err == nil {
		t.Error("the port is still open")
	}
	if len(refused) > 0 {
		t.Errorf("Close was told as %v", <-refused)
	}
}

func TestGateArguments(t *testing.T) {
	tests := []struct {
		name     string
		endpoint string
		typ      Type
		opt      Options
		text     string
	}{
		{name: "type", endpoint: "tcp://127.0.0.1:0", typ: Dealer, text: `socket type "DEALER", want ROUTER, PULL or XPUB`},
		{name: "endpoint", endpoint: "udp://127.0.0.1:0", typ: Router, text: "udp://127.0.0.1:0"},
		{name: "option", endpoint: "tcp://127.0.0.1:0", typ: Router, opt: Options{Linger: -1}, text: "negative option"},
		{name: "address", endpoint: "ipc:///nowhere/at/all", typ: Router, text: "ipc:///nowhere/at/all"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			gate, err := OpenGate(tt.endpoint, tt.typ, tt.opt, nil)
			if err == nil {
				gate.Close()
				t.Fatal("the gate opened")
			}
			if !strings.HasPrefix(err.Error(), "open gate on ") || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("error %q, want %q in it", err, tt.text)
			}
		})
	}
}

// A dialer says READY as the peer it stands for did, byte by byte.
func TestDialAsOnTheWire(t *testing.T) {
	tests := []struct {
		name string
		peer Peer
		to   string
		want string
	}{
		{name: "dealer", peer: Peer{Type: Dealer, Identity: []byte{0, 0}}, to: "ROUTER", want: "Identity\x00\x00\x00\x02\x00\x00"},
		{name: "dealer without identity", peer: Peer{Type: Dealer}, to: "ROUTER", want: "Socket-Type\x00\x00\x00\x06DEALER"},
		{name: "push", peer: Peer{Type: Push}, to: "PULL", want: "Socket-Type\x00\x00\x00\x04PUSH"},
		{name: "sub", peer: Peer{Type: Sub}, to: "XPUB", want: "Socket-Type\x00\x00\x00\x03SUB"},
		{name: "xsub", peer: Peer{Type: XSub}, to: "XPUB", want: "Socket-Type\x00\x00\x00\x04XSUB"},
		{name: "xsub at pub", peer: Peer{Type: XSub}, to: "PUB", want: "Socket-Type\x00\x00\x00\x04XSUB"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			endpoint, accept := rawListen(t)
			dialed := make(chan error, 1)
			go func() {
				c, err := DialAs(patient(t), endpoint, tt.peer, Options{})
				if err == nil {
					t.Cleanup(func() { c.Close() })
				}
				dialed <- err
			}()
			r := accept()
			r.say(greeting + ready("Socket-Type", tt.to))
			r.hear(len(greeting))
			head := r.hear(shortHeader)
			if said := r.hear(int(head[1])); !strings.Contains(said, tt.want) {
				t.Errorf("said %q, want %q in it", said, tt.want)
			}
			if err := <-dialed; err != nil {
				t.Error(err)
			}
		})
	}
	if _, err := DialAs(patient(t), "tcp://127.0.0.1:1", Peer{Type: Router}, Options{}); err == nil || !strings.Contains(err.Error(), "want one of [DEALER PUSH SUB XSUB]") {
		t.Errorf("dial as ROUTER: %v", err)
	}
}

// libzmq on both ends: what arrives is what was sent.
func TestRelayBetweenLibzmq(t *testing.T) {
	transports(t, func(t *testing.T, endpoint string) {
		t.Run("dealer and router", func(t *testing.T) { relayRouter(t, endpoint) })
		t.Run("push and pull", func(t *testing.T) { relayPull(t, endpoint) })
		for _, typ := range []Type{Sub, XSub} {
			t.Run(strings.ToLower(string(typ))+" and xpub", func(t *testing.T) { relayXPub(t, typ, endpoint) })
		}
	})
}

// through starts a libzmq socket and a tap before it.
func through(t *testing.T, py *pyzmq, far Type, gate Type, endpoint string) string {
	t.Helper()
	return tapped{Listen: endpoint, Type: gate, To: py.bind("far", far, another(t, endpoint)), witness: func() (Witness, Witness) {
		return newQueue(patient(t), 1<<30), newQueue(patient(t), 1<<30)
	}}.start(t)
}

func relayRouter(t *testing.T, endpoint string) {
	py := startPyzmq(t)
	endpoint = through(t, py, Router, Router, endpoint)
	identity := []byte{0, 1}
	py.connect("near", Dealer, endpoint, identity)
	for _, m := range append(messages(), [][]byte{{}, {1}, {}, {2, 3}, {}}) {
		py.send("near", m...)
		enveloped := append([][]byte{identity}, m...)
		if d := diff(enveloped, py.recv("far")); d != "" {
			t.Fatalf("there (-want +got):\n%.2000s", d)
		}
		py.send("far", enveloped...)
		if d := diff(m, py.recv("near")); d != "" {
			t.Fatalf("back (-want +got):\n%.2000s", d)
		}
	}
	py.start(command{"op": "echo", "name": "far", "count": 20 * 50})
	crowd := startPyzmq(t)
	if a := crowd.do(command{"op": "crowd", "connect": endpoint, "peers": 20, "messages": 50}); a.Wrong > 0 {
		t.Errorf("%d of 1000 messages did not come back as they were", a.Wrong)
	}
	py.finish()
}

func relayPull(t *testing.T, endpoint string) {
	py := startPyzmq(t)
	near := startPyzmq(t)
	near.connect("near", Push, through(t, py, Pull, Pull, endpoint), nil)
	for _, m := range messages() {
		near.send("near", m...)
		if d := diff(m, py.recv("far")); d != "" {
			t.Fatalf("(-want +got):\n%.2000s", d)
		}
	}
	near.start(command{"op": "blast", "name": "near", "count": 20_000, "size": 200})
	if a := py.do(command{"op": "drain", "name": "far", "count": 20_000}); a.Wrong > 0 {
		t.Errorf("%d of 20000 messages are not the one that was due", a.Wrong)
	}
	near.finish()
	py.start(command{"op": "recv_big", "name": "far"})
	sent := near.do(command{"op": "send_big", "name": "near", "sizes": []int{1, 10 << 20, 0, 10<<20 + 1, 300}})
	if d := cmp.Diff(sent.Digests, py.finish().Digests); d != "" {
		t.Errorf("big frames (-sent +received):\n%s", d)
	}
}

func relayXPub(t *testing.T, typ Type, endpoint string) {
	py := startPyzmq(t)
	endpoint = through(t, py, XPub, XPub, endpoint)
	if typ == Sub {
		py.do(command{"op": "open", "name": "near", "type": Sub, "connect": endpoint, "subscribe": "news"})
	} else {
		py.connect("near", XSub, endpoint, nil)
		py.send("near", []byte("\x01news"))
	}
	if got := py.recv("far"); len(got) != 1 || string(got[0]) != "\x01news" {
		t.Errorf("the publisher is told %q, want the subscription", got)
	}
	py.send("far", []byte("olds"), []byte("not wanted"))
	py.send("far", []byte("news"), []byte("wanted"))
	if d := diff([][]byte{[]byte("news"), []byte("wanted")}, py.recv("near")); d != "" {
		t.Errorf("published (-want +got):\n%s", d)
	}
	if typ == XSub {
		py.send("near", []byte("\x00news"))
		if got := py.recv("far"); len(got) != 1 || !bytes.Equal(got[0], []byte("\x00news")) {
			t.Errorf("the publisher is told %q, want the end of the subscription", got)
		}
	}
}

// PINGs and PONGs pass like everything else, so both ends notice each other's death
// and not the relay's.
func TestRelayHeartbeat(t *testing.T) {
	beat := map[string]int{"HEARTBEAT_IVL": 10, "HEARTBEAT_TIMEOUT": 30_000}
	py := startPyzmq(t)
	far := py.do(command{"op": "open", "name": "far", "type": Pull, "bind": "tcp://127.0.0.1:*", "options": beat}).Endpoint
	behind := startRelay(t, tcpAddr(t, far))
	endpoint := tapped{Listen: "tcp://127.0.0.1:0", Type: Pull, To: behind.endpoint}.start(t)
	before := startRelay(t, tcpAddr(t, endpoint))
	py.do(command{"op": "open", "name": "near", "type": Push, "connect": before.endpoint, "options": beat})
	for range 5 {
		for _, way := range []*relay{before, behind} {
			way.wait(t, "\x04PING")
			way.wait(t, "\x04PONG")
		}
	}
	py.send("near", []byte("alive"))
	if got := py.recv("far"); len(got) != 1 || string(got[0]) != "alive" {
		t.Errorf("received %q", got)
	}
}
