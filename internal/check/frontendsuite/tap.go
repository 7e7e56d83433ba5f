package frontendsuite

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/internal/wire/zmq"
)

// tap is between a frontend under test and the player and keeps a copy of what
// the frontend says. It passes bytes, so that neither side can tell.
type tap struct {
	upstream string     // the frontend's handshake address
	gate     *zmq.Gate  // nil of a frontend that makes no handshake
	direct   []*tapLink // of such a frontend
	ledger   *ledger
	running  sync.WaitGroup

	ready chan struct{} // closed when a process of the frontend has taken the engine's output socket

	mu      sync.Mutex
	outputs map[int]*zmq.Conn // of the frontend, by the index of its process
}

// say sends a message to a process of the frontend, between those of the player.
func (t *tap) say(client int, frames ...[]byte) error {
	t.mu.Lock()
	conn := t.outputs[client]
	t.mu.Unlock()
	if conn == nil {
		return fmt.Errorf("the frontend has no process %d", client)
	}
	t.ledger.say(frames)
	return conn.Send(frames...)
}

func openTap(f *check.FrontendProcess, l *ledger) (t *tap, err error) {
	t = &tap{upstream: f.Handshake, ledger: l, ready: make(chan struct{}), outputs: map[int]*zmq.Conn{}}
	if f.Handshake != "" {
		t.gate, err = zmq.OpenGate("tcp://127.0.0.1:0", zmq.Router, zmq.Options{MaxStranger: protocol.MaxStatus}, nil)
		return t, err
	}
	for i, key := range []protocol.AddressKey{protocol.InputAddresses, protocol.OutputAddresses} {
		link, err := t.link(key, 0, f.Addresses[i])
		if err != nil {
			t.close()
			return nil, err
		}
		t.direct = append(t.direct, link)
	}
	return t, nil
}

// endpoints are what the player is to dial.
func (t *tap) endpoints() (handshake string, inputs, outputs []string) {
	if t.gate != nil {
		return t.gate.Endpoint(), nil, nil
	}
	return "", []string{t.direct[0].gate.Endpoint()}, []string{t.direct[1].gate.Endpoint()}
}

func (t *tap) close() {
	closeGates(t.direct)
	if t.gate != nil {
		t.gate.Close()
	}
}

// run serves one engine until ctx ends, or one of the two hangs up. The frontend is
// dialed until it listens, which may take it as long as ctx lasts.
func (t *tap) run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer t.running.Wait()
	defer stop()
	defer t.close()
	if t.gate == nil {
		return serveLinks(ctx, &t.running, t.direct)
	}
	engine, err := t.gate.Accept(ctx)
	if err != nil {
		return err
	}
	defer engine.Close()
	hello, err := within(ctx, engine)
	if err != nil {
		return fmt.Errorf("HELLO: %w", err)
	}
	frontend, err := zmq.DialAs(ctx, t.upstream, engine.Peer(), zmq.Options{MaxFrame: protocol.MaxInit})
	if err != nil {
		return err
	}
	defer frontend.Close()
	if err := frontend.Send(hello...); err != nil {
		return fmt.Errorf("HELLO to the frontend: %w", err)
	}
	answer, err := within(ctx, frontend)
	if err != nil {
		return fmt.Errorf("the frontend's answer to HELLO: %w", err)
	}
	links, rewritten, err := t.links(answer)
	if err != nil {
		return err
	}
	defer closeGates(links)
	if err := engine.Send(rewritten); err != nil {
		return err
	}
	t.running.Go(func() { _, _ = zmq.Relay(ctx, engine, frontend, nil, nil) }) // over when both are ready
	return serveLinks(ctx, &t.running, links)
}

// within receives, but not beyond the end of ctx.
func within(ctx context.Context, c *zmq.Conn) (zmq.Message, error) {
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	m, err := c.Recv()
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return m, err
}

// tapLink is one socket of the player, and the frontend's that it belongs to.
type tapLink struct {
	tap      *tap
	client   int // the index of the frontend's process
	gate     *zmq.Gate
	upstream string
	witness  zmq.Observer // of the frontend; nil on an output socket
}

// links opens a socket for each address of INIT and puts its own address there.
func (t *tap) links(answer zmq.Message) (links []*tapLink, rewritten []byte, err error) {
	if len(answer) != 1 {
		return nil, nil, fmt.Errorf("the frontend's answer to HELLO has %d frames, want 1", len(answer))
	}
	t.ledger.setInit(answer[0])
	rewritten, err = protocol.RewriteInit(answer[0], func(key protocol.AddressKey, client int, address string) (string, error) {
		if key != protocol.InputAddresses && key != protocol.OutputAddresses { // a coordinator, which the player refuses
			return address, nil
		}
		l, err := t.link(key, client, address)
		if err != nil {
			return "", err
		}
		links = append(links, l)
		return l.gate.Endpoint(), nil
	})
	if err != nil {
		closeGates(links)
	}
	return links, rewritten, err
}

// link opens a socket for an address of the frontend.
func (t *tap) link(key protocol.AddressKey, client int, address string) (l *tapLink, err error) {
	l, typ := &tapLink{tap: t, client: client, upstream: address}, zmq.Pull
	if key == protocol.InputAddresses {
		typ, l.witness = zmq.Router, hearing{t.ledger, client}
	}
	l.gate, err = zmq.OpenGate("tcp://127.0.0.1:0", typ, zmq.Options{}, nil)
	return l, err
}

func closeGates(links []*tapLink) {
	for _, l := range links {
		l.gate.Close()
	}
}

// errHungUp is why the links end when one of them has.
var errHungUp = errors.New("the frontend or the player hung up")

// serveLinks relays on all links until the first has ended.
func serveLinks(ctx context.Context, running *sync.WaitGroup, links []*tapLink) error {
	ends := make(chan error, len(links))
	for _, l := range links {
		running.Go(func() { ends <- l.serve(ctx) })
	}
	if err := <-ends; err != nil {
		return err
	}
	return errHungUp
}

func (l *tapLink) serve(ctx context.Context) error {
	engine, err := l.gate.Accept(ctx)
	if err != nil {
		return err
	}
	frontend, err := zmq.DialAs(ctx, l.upstream, engine.Peer(), zmq.Options{Linger: outputLinger})
	if err != nil {
		engine.Close()
		return fmt.Errorf("a socket that the frontend named: %w", err)
	}
	if l.witness == nil {
		return l.passOn(ctx, engine, frontend)
	}
	_, err = zmq.Relay(ctx, engine, frontend, nil, l.witness)
	return err
}

// outputLinger is how long what the player said last may take to reach the frontend.
const outputLinger = time.Second

// passOn passes on what the player says. Message by message, so that more can be said in between.
func (l *tapLink) passOn(ctx context.Context, engine, frontend *zmq.Conn) error {
	defer frontend.Close()
	defer engine.Close()
	l.tap.mu.Lock()
	if len(l.tap.outputs) == 0 {
		close(l.tap.ready)
	}
	l.tap.outputs[l.client] = frontend
	l.tap.mu.Unlock()
	for {
		m, err := within(ctx, engine)
		if err != nil {
			return nil // the player has ended, or is to
		}
		l.tap.ledger.say(m)
		if err := frontend.Send(m...); err != nil {
			return err
		}
	}
}
