package zmq

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// A door is a socket that accepts peers. opened has its endpoint, the next refusal and the next peer with what receives from it.
type (
	door struct {
		name      string
		typ, peer Type
		open      func(t *testing.T, endpoint string, opt Options) opened
	}
	opened struct {
		endpoint string
		refused  func() error
		joined   func() (c *Conn, receive func() (Message, error))
		close    func() error
	}
)

var doors = []door{
	{"listener", Router, Dealer, func(t *testing.T, endpoint string, opt Options) opened {
		l := listen(t, endpoint, Router, opt)
		next := func(kind Kind) Delivery {
			for {
				d, err := l.Recv(patient(t))
				require.NoError(t, err)
				if d.Kind == kind || kind == Received && d.Kind == Gone {
					return d
				}
			}
		}
		return opened{l.Endpoint(), func() error { return next(Refused).Err }, func() (*Conn, func() (Message, error)) {
			return next(Joined).Conn, func() (Message, error) { d := next(Received); return d.Message, d.Err }
		}, l.Close}
	}},
	{"gate", Router, Dealer, func(t *testing.T, endpoint string, opt Options) opened {
		refused := make(chan error, 64)
		gate := openGate(t, endpoint, Router, opt, func(err error) { refused <- err })
		return opened{gate.Endpoint(), func() error { return <-refused }, func() (*Conn, func() (Message, error)) {
			c := accept(t, gate)
			return c, c.Recv
		}, gate.Close}
	}},
	{"publisher", Pub, Sub, func(t *testing.T, endpoint string, opt Options) opened {
		p := startPub(t, ListenPub, endpoint, PubOptions{Options: opt})
		return opened{p.Endpoint(), func() error { return <-p.refused }, func() (*Conn, func() (Message, error)) { return nil, nil }, p.Close}
	}},
}

// What arrives instead of a handshake is refused with its reason and the endpoint, and the next peer is served.
func TestRefusedHandshakes(t *testing.T) {
	withMechanism := func(name string) string {
		return greeting[:12] + name + strings.Repeat("\x00", 20-len(name)) + greeting[32:]
	}
	many := ""
	for i := range maxPrefixes + 1 {
		many += short(0, "\x01"+fmt.Sprint(i))
	}
	tests := []struct {
		name  string
		bytes string
		err   error
		text  string
		only  string // of one kind of door
	}{
		{name: "nothing", err: ErrPeerGone},
		{name: "half a greeting", bytes: greeting[:30], err: ErrPeerGone},
		{name: "no READY", bytes: greeting, err: ErrPeerGone},
		{name: "http", bytes: "GET / HTTP/1.1\r\n\r\n", err: ErrProtocol, text: `first byte is 0x47 ('G')`},
		{name: "no end of signature", bytes: greeting[:9] + "\x00" + greeting[10:], err: ErrProtocol},
		{name: "ZMTP 2", bytes: greeting[:10] + "\x02\x00" + greeting[12:], err: ErrProtocol, text: "version"},
		{name: "PLAIN", bytes: withMechanism("PLAIN"), err: ErrProtocol, text: "mechanism"},
		{name: "message for READY", bytes: greeting + short(0, "hello"), err: ErrProtocol, text: "a message where READY was due"},
		{name: "huge READY", bytes: greeting + long(flagCommand, 1<<62, "\x05READY"), err: ErrTooLarge},
		{name: "large message", bytes: greeting + long(0, maxCommand+1, ""), err: ErrTooLarge},
		{name: "empty command", bytes: greeting + short(flagCommand, ""), err: ErrProtocol},
		{name: "broken metadata", bytes: greeting + short(flagCommand, "\x05READY\xffSocket-Type"), err: ErrProtocol, text: "cut short"},
		{name: "no socket type", bytes: greeting + ready("Identity", "a"), err: ErrProtocol, text: "no socket type"},
		{name: "unknown socket type", bytes: greeting + ready("Socket-Type", "CHANNEL"), err: ErrIncompatible, text: `the peer is "CHANNEL"`},
		{name: "other socket type", bytes: greeting + ready("Socket-Type", "PUSH"), err: ErrIncompatible, text: `"PUSH"`},
		{name: "ERROR", bytes: greeting + short(flagCommand, "\x05ERROR\x04nope"), err: ErrProtocol, text: "nope"},
		{name: "many prefixes", only: "publisher", bytes: greeting + ready("Socket-Type", "SUB") + many, err: ErrTooLarge},
		{name: "a long subscription", only: "publisher", bytes: greeting + ready("Socket-Type", "SUB") + long(0, maxSubscription+1, "\x01"), err: ErrTooLarge},
		{name: "a command without a name", only: "publisher", bytes: greeting + ready("Socket-Type", "SUB") + short(flagCommand, ""), err: ErrProtocol},
	}
	for _, d := range doors {
		t.Run(d.name, func(t *testing.T) {
			transports(t, func(t *testing.T, free func() string) {
				o := d.open(t, free(), Options{HandshakeTimeout: patience})
				for _, tt := range tests {
					if tt.only != "" && tt.only != d.name {
						continue
					}
					t.Run(tt.name, func(t *testing.T) {
						r := rawDial(t, o.endpoint)
						r.send(tt.bytes)
						if tt.err == ErrPeerGone {
							r.Close()
						}
						require.ErrorIs(t, o.refused(), tt.err, tt.text, o.endpoint)
						dial(t, o.endpoint, d.peer, Options{})
						o.joined()
					})
				}
			})
		})
	}
}

// A peer that is silent, or ends in the middle of its greeting, is refused when the time is up.
func TestSilentPeersAreRefused(t *testing.T) {
	for _, d := range doors {
		for _, bytes := range []string{"", greeting[:20], greeting} {
			o := d.open(t, tcp, Options{HandshakeTimeout: 10 * time.Millisecond})
			r := rawDial(t, o.endpoint)
			r.send(bytes)
			require.ErrorIs(t, o.refused(), os.ErrDeadlineExceeded, "within 10ms", r.LocalAddr().String())
			r.ends()
		}
	}
}

// Peers that are silent hold nobody up, and many get in at once.
func TestSilentPeersBlockNobody(t *testing.T) {
	const many = 100
	for _, d := range doors[:2] {
		t.Run(d.name, func(t *testing.T) {
			o := d.open(t, tcp, Options{HandshakeTimeout: patience})
			for i := range 50 {
				rawDial(t, o.endpoint).send(greeting[:20*(i%2)])
			}
			dialed := make([]func() *Conn, many)
			for i := range many {
				dialed[i] = dialLater(t, o.endpoint, Dealer, Options{Identity: []byte{byte(i), 1}})
			}
			seen := map[string]bool{}
			for i := range many {
				c, _ := o.joined()
				seen[string(c.Peer().Identity)] = true
				dialed[i]()
			}
			require.True(t, len(seen) == many, "%d identities were accepted, want %d", len(seen), many)
		})
	}
}

func TestGateAccepts(t *testing.T) {
	for _, tt := range []struct {
		gate, peer Type
		identity   string
	}{
		{gate: Router, peer: Dealer, identity: "\x00\x00"},
		{gate: Router, peer: Dealer},
		{gate: Router, peer: "REQ", identity: "r"},
		{gate: Pull, peer: Push},
		{gate: XPub, peer: Sub},
		{gate: XPub, peer: XSub},
	} {
		gate := openGate(t, tcp, tt.gate, Options{}, nil)
		for range 2 { // identities are not kept apart
			rawDial(t, gate.Endpoint()).greet("Socket-Type", string(tt.peer), "Identity", tt.identity)
			if got := accept(t, gate).Peer(); got.Type != tt.peer || string(got.Identity) != tt.identity {
				t.Errorf("%s accepted %s, want %s %x", tt.gate, got, tt.peer, tt.identity)
			}
		}
	}
}

func TestGateClose(t *testing.T) {
	gate := openGate(t, tcp, Router, Options{HandshakeTimeout: patience}, func(err error) { t.Errorf("refused: %v", err) })
	shaking, waiting := rawDial(t, gate.Endpoint()), rawDial(t, gate.Endpoint())
	shaking.send(greeting)
	shaking.receive(len(greeting))
	waiting.greet("Socket-Type", "DEALER")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if c, err := gate.Accept(ctx); err == nil {
		c.Close() // both were ready, either is a fair answer
	} else if !errors.Is(err, context.Canceled) {
		t.Errorf("Accept after its context: %v", err)
	}
	for range 2 {
		require.NoError(t, gate.Close())
	}
	shaking.ends()
	waiting.ends()
	_, err := gate.Accept(patient(t))
	require.ErrorIs(t, err, net.ErrClosed, gate.Endpoint())
	if _, err := net.Dial("tcp", gate.ln.Addr().String()); err == nil {
		t.Error("the port is still open")
	}
}

func TestRefusedArguments(t *testing.T) {
	pub := func(open func(string, PubOptions) (*Publisher, error)) func(string, Type, Options) error {
		return func(endpoint string, _ Type, opt Options) error {
			_, err := open(endpoint, PubOptions{Options: opt})
			return err
		}
	}
	opens := map[string]func(endpoint string, typ Type, opt Options) error{
		"dial": func(endpoint string, typ Type, opt Options) error {
			_, err := Dial(patient(t), endpoint, typ, opt)
			return err
		},
		"dial as": func(endpoint string, typ Type, opt Options) error {
			_, err := DialAs(patient(t), endpoint, Peer{Type: typ}, opt)
			return err
		},
		"listen": func(endpoint string, typ Type, opt Options) error { _, err := Listen(endpoint, typ, opt); return err },
		"gate": func(endpoint string, typ Type, opt Options) error {
			_, err := OpenGate(endpoint, typ, opt, nil)
			return err
		},
		"publish on": pub(ListenPub), "publish to": pub(DialPub),
	}
	typed := []string{"dial", "dial as", "listen", "gate"}
	all := append([]string{"publish on", "publish to"}, typed...)
	taken := listen(t, tcp, Router, Options{}).Endpoint()
	for _, tt := range []struct {
		name     string
		of       []string
		endpoint string
		typ      Type
		opt      Options
		text     string
	}{
		{name: "transport", of: all, endpoint: "udp://a:1", typ: Router, text: `"udp"`},
		{name: "type", of: typed, endpoint: tcp, typ: "CHANNEL", text: `socket type "CHANNEL", want`},
		{name: "router", of: []string{"dial as"}, endpoint: tcp, typ: Router, text: "want one of [DEALER PUSH SUB XSUB]"},
		{name: "identity", of: []string{"dial", "listen"}, endpoint: tcp, typ: Router, opt: Options{Identity: make([]byte, 256)}, text: "identity of 256 bytes"},
		{name: "negative", of: all, endpoint: tcp, typ: Router, opt: Options{MaxFrame: -1}, text: "max frame -1"},
		{name: "no folder", of: []string{"listen", "gate", "publish on"}, endpoint: "ipc:///nowhere/at/all", typ: Router, text: "no such file"},
		{name: "taken", of: []string{"listen", "gate", "publish on"}, endpoint: taken, typ: Router, text: "address already in use"},
	} {
		for _, open := range tt.of {
			typ := tt.typ
			if open == "dial as" && typ == Router && tt.name != "router" {
				typ = Dealer
			}
			t.Run(tt.name+"/"+open, func(t *testing.T) {
				require.ErrorContains(t, opens[open](tt.endpoint, typ, tt.opt), tt.text, tt.endpoint)
			})
		}
	}
	_, err := ListenPub(tcp, PubOptions{HighWater: -1})
	require.ErrorContains(t, err, "high-water mark -1")
}
