package zmq

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func openGate(t testing.TB, endpoint string, typ Type, opt Options, refused func(error)) *Gate {
	t.Helper()
	gate, err := OpenGate(endpoint, typ, opt, refused)
	require.NoError(t, err)
	t.Cleanup(func() { gate.Close() })
	return gate
}

func accept(t testing.TB, gate *Gate) *Conn {
	t.Helper()
	c, err := gate.Accept(patient(t))
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func gateDial(t testing.TB, gate *Gate) *raw {
	t.Helper()
	nc, err := net.Dial(gate.ln.Addr().Network(), gate.ln.Addr().String())
	require.NoError(t, err)
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
			r.send(tt.bytes)
			err := <-refused
			require.ErrorIs(t, err, tt.err, tt.text, gate.Endpoint())
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
		gateDial(t, gate).send(greeting[:20])
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
	shaking.send(greeting)
	shaking.receive(len(greeting))
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
	require.ErrorIs(t, <-failed, net.ErrClosed, gate.Endpoint())
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
			r.send(greeting + ready("Socket-Type", tt.to))
			r.receive(len(greeting))
			head := r.receive(shortHeader)
			if said := r.receive(int(head[1])); !strings.Contains(said, tt.want) {
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
