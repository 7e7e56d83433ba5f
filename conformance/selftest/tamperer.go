package selftest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/internal/wire/zmq"
	"github.com/vllm-vcr/conformance/player"
)

// socket is where a message of the engine goes.
type socket int

const (
	handshake socket = iota // HELLO and READY
	input                   // the registration
	output                  // everything that is said of requests
	initial                 // of the frontend: its answer to HELLO
	requests                // of the frontend: everything that it asks for
	published               // of the engine: its KV events, in recorded sessions only
)

// message is one message of the engine or of the frontend.
type message struct {
	to     socket
	frames [][]byte
}

// tamper is given every message of the engine and of the frontend, in order, and returns what goes out
// in its place. An error ends the engine after that.
type tamper func(message) ([]message, error)

// faithful passes everything on.
func faithful(m message) ([]message, error) { return []message{m}, nil }

// tamperer is between a player and its frontend.
type tamperer struct {
	// listening, unless nil, is closed when an engine that is not a player of ours may dial endpoint.
	listening chan struct{}
	endpoint  string
	opt       player.Options
	tamper    tamper
	// identity is what the input socket is dialed with.
	identity []byte
	ownTime  bool

	// Towards the player:
	shakes, inputs, outputs *zmq.Listener
	// Towards the frontend:
	shake, input, output *zmq.Conn

	events  chan event
	readers sync.WaitGroup
}

// OwnTime reports whether the runner is to take it for an engine with a time of its own.
func (t *tamperer) OwnTime() bool { return t.ownTime }

// errGone is the end of an engine that is not a player of ours.
var errGone = errors.New("the engine is gone")

// event is a message that came in, or why none will.
type event struct {
	from   origin
	frames zmq.Message
	err    error
}

// origin is where a message came from.
type origin int

const (
	fromShakes  origin = iota // the player's handshake
	fromInputs                // its registration
	fromOutputs               // its outputs
	fromShake                 // the frontend's answer to HELLO
	fromInput                 // its requests
	fromPlayer                // no message: the player has ended
)

// lingers is how long the end of an engine waits for the frontend to take what
// was said before.
const lingers = time.Second

// burst is how many messages may wait here. Outputs leave together once none does.
const burst = 64

// Run serves the frontend until ctx ends, or the fault ends the engine.
func (t *tamperer) Run(ctx context.Context) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	t.events = make(chan event, burst)
	defer func() {
		cancel()
		t.close()
		t.readers.Wait()
	}()
	if err := t.open(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-t.events:
			err := t.handle(ctx, e)
			if err == nil && len(t.events) == 0 && t.output != nil {
				err = t.output.Flush()
			}
			if err != nil && ctx.Err() == nil {
				return err
			}
		}
	}
}

// open listens for the player, starts it, and dials the frontend's handshake.
func (t *tamperer) open(ctx context.Context) (err error) {
	for _, l := range []struct {
		listener **zmq.Listener
		typ      zmq.Type
	}{{&t.shakes, zmq.Router}, {&t.inputs, zmq.Router}, {&t.outputs, zmq.Pull}} {
		if *l.listener, err = zmq.Listen("tcp://127.0.0.1:0", l.typ, zmq.Options{}); err != nil {
			return err
		}
	}
	if t.shake, err = t.dial(ctx, t.opt.Handshake, zmq.Dealer, protocol.Identity(t.opt.EngineIndex)); err != nil {
		return err
	}
	t.listen(ctx, fromShakes, t.shakes)
	t.listen(ctx, fromInputs, t.inputs)
	t.listen(ctx, fromOutputs, t.outputs)
	t.receive(ctx, fromShake, t.shake)
	if t.listening != nil {
		t.endpoint = t.shakes.Endpoint()
		close(t.listening)
		return nil
	}
	opt := t.opt
	opt.Handshake = t.shakes.Endpoint()
	p, err := player.New(opt)
	if err != nil {
		return err
	}
	t.readers.Go(func() { t.tell(ctx, event{from: fromPlayer, err: p.Run(ctx)}) })
	return nil
}

func (t *tamperer) dial(ctx context.Context, endpoint string, typ zmq.Type, identity []byte) (*zmq.Conn, error) {
	return zmq.Dial(ctx, endpoint, typ, zmq.Options{Identity: identity, Linger: lingers})
}

// tell hands an event to the loop, unless that has ended.
func (t *tamperer) tell(ctx context.Context, e event) {
	select {
	case t.events <- e:
	case <-ctx.Done():
	}
}

// listen passes on what the player says on one of its sockets. That it hangs up is
// known from the player itself.
func (t *tamperer) listen(ctx context.Context, from origin, l *zmq.Listener) {
	t.readers.Go(func() {
		for {
			d, err := l.Recv(ctx)
			if err != nil {
				return
			}
			switch {
			case d.Kind == zmq.Received:
				t.tell(ctx, event{from: from, frames: d.Message})
			case d.Kind == zmq.Gone && from == fromOutputs && t.listening != nil:
				t.tell(ctx, event{from: from, err: errGone})
			}
		}
	})
}

// receive passes on what the frontend says on one of its sockets.
func (t *tamperer) receive(ctx context.Context, from origin, c *zmq.Conn) {
	t.readers.Go(func() {
		for {
			m, err := c.Recv()
			if err != nil {
				t.tell(ctx, event{from: from, err: err})
				return
			}
			t.tell(ctx, event{from: from, frames: m})
		}
	})
}

func (t *tamperer) handle(ctx context.Context, e event) error {
	switch {
	case e.from == fromPlayer && e.err == nil:
		return errors.New("the player ended while it was needed")
	case e.from == fromShake && e.err != nil:
		return nil // a frontend may close its handshake socket once that is over
	case e.err != nil:
		return e.err
	}
	switch e.from {
	case fromShakes:
		return t.pass(message{handshake, e.frames})
	case fromInputs:
		return t.pass(message{input, e.frames})
	case fromOutputs:
		return t.pass(message{output, e.frames})
	case fromShake:
		return t.answerHello(ctx, e.frames)
	}
	return t.forward(message{requests, e.frames}, t.inputs)
}

// forward lets the fault see a message of the frontend, and sends what it leaves to the engine.
func (t *tamperer) forward(m message, to *zmq.Listener) error {
	messages, end := t.tamper(m)
	for _, m := range messages {
		if err := to.Send(protocol.Identity(t.opt.EngineIndex), m.frames...); err != nil {
			return err
		}
	}
	return end
}

// answerHello connects to where the frontend listens, and has the player connect
// here instead.
func (t *tamperer) answerHello(ctx context.Context, frames zmq.Message) (err error) {
	last := len(frames) - 1
	addresses, err := protocol.DecodeInit(frames[last])
	if err != nil {
		return err
	}
	if n := len(addresses.Inputs); n != 1 {
		return fmt.Errorf("the frontend has %d clients, the tamperer serves one", n)
	}
	if t.input, err = t.dial(ctx, addresses.Inputs[0], zmq.Dealer, t.identity); err != nil {
		return err
	}
	if t.output, err = t.dial(ctx, addresses.Outputs[0], zmq.Push, nil); err != nil {
		return err
	}
	t.receive(ctx, fromInput, t.input)
	frames[last], err = protocol.RewriteInit(frames[last], func(key protocol.AddressKey, _ int, address string) (string, error) {
		switch key {
		case protocol.InputAddresses:
			return t.inputs.Endpoint(), nil
		case protocol.OutputAddresses:
			return t.outputs.Endpoint(), nil
		}
		return address, nil
	})
	if err != nil {
		return err
	}
	return t.forward(message{initial, frames[last:]}, t.shakes)
}

// pass lets the fault see a message of the player, and sends what it leaves.
func (t *tamperer) pass(m message) error {
	messages, end := t.tamper(m)
	for _, m := range messages {
		conn := map[socket]*zmq.Conn{handshake: t.shake, input: t.input, output: t.output}[m.to]
		if conn == nil {
			return errors.New("the player spoke before the frontend had said where")
		}
		send := conn.Send
		if m.to == output {
			send = conn.Write
		}
		if err := send(m.frames...); err != nil {
			return err
		}
	}
	return end
}

// close hangs up on both sides. Those who linger do it at the same time.
func (t *tamperer) close() {
	var closing sync.WaitGroup
	for _, c := range []*zmq.Conn{t.shake, t.input, t.output} {
		if c != nil {
			closing.Go(func() { c.Close() })
		}
	}
	for _, l := range []*zmq.Listener{t.shakes, t.inputs, t.outputs} {
		if l != nil {
			closing.Go(func() { l.Close() })
		}
	}
	closing.Wait()
}
