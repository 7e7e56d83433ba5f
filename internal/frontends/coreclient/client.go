package coreclient

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/internal/wire/zmq"
)

// Options configures [Listen].
type Options struct {
	// Codec is that of the line whose frontend this is. It may be set later, see [Frontend.Speak].
	Codec *protocol.Codec
	// Address is where to listen, default "tcp://127.0.0.1:0". Every socket
	// gets a port of its own.
	Address string
	// HandshakeAddress is where to listen for the handshake, default Address.
	HandshakeAddress string
	// MaxFrame is the most bytes of a message that is taken from an engine; 0 means
	// 1 GiB. A longer one ends the connection with [zmq.ErrTooLarge].
	MaxFrame int64
	// Clients is the number of input and output socket pairs, default 1.
	Clients int
	// HandshakeTimeout bounds the ZeroMQ handshake of each connection.
	HandshakeTimeout time.Duration
	// Step, unless nil, is called with how far Accept is, and what it waits for.
	Step func(step string)
	// Init, unless nil, returns what answers HELLO instead of the usual INIT: to see what an engine makes of it.
	Init func(usual []byte) []byte
}

// Frontend listens for one engine.
type Frontend struct {
	codec   *protocol.Codec
	step    func(string)
	init    func([]byte) []byte
	direct  bool            // the engine is given the addresses, and makes no handshake
	shake   *zmq.Listener   // ROUTER
	inputs  []*zmq.Listener // ROUTER, one a client
	outputs []*zmq.Listener // PULL, one a client
	steps   protocol.FrontendHandshake
	engine  Engine
	calls   uint64
	buf     []byte
	last    []zmq.Message        // that Next took, one a client
	noFiles chan error           // holds why a socket could not accept a connection
	early   [][]zmq.Delivery     // messages of each output that came during the handshake
	peers   []map[*zmq.Conn]bool // of each output: the connected peers, and whether each has sent anything
	merge   sync.Once
	closing sync.Once
	merged  chan clientDelivery // of all clients, once [AnyClient] is asked for
	from    int                 // the client of the last of them
	closed  chan struct{}
}

// AnyClient as the client of [Frontend.Next] and [Frontend.Last] is the one that a message comes to first. It is used for all
// messages of a frontend or for none.
const AnyClient = -1 << 31

// clientDelivery is what came to a client.
type clientDelivery struct {
	client int
	zmq.Delivery
	err error
}

// Engine is what the connected engine said of itself.
type Engine struct {
	Identity []byte
	Index    int
	// Ready is the registration, RawReady its bytes as they came.
	Ready    protocol.ReadyResponse
	RawReady []byte
	// Statuses are HELLO and READY, as they came; none of an engine without a handshake.
	Statuses [][]byte
}

// Errors of [Frontend.Next] and [Frontend.Accept].
var (
	// ErrUndecodable means that the engine's message is none that a frontend of
	// the line understands: a real one would not survive it.
	ErrUndecodable = errors.New("the engine's message does not decode")
	// ErrEngineGone means that the engine's connection ended.
	ErrEngineGone = errors.New("the engine disconnected")
)

// Listen opens the handshake socket and every client's socket pair.
func Listen(opt Options) (*Frontend, error) {
	opt.Address = cmp.Or(opt.Address, "tcp://127.0.0.1:0")
	opt.HandshakeAddress = cmp.Or(opt.HandshakeAddress, opt.Address)
	f := &Frontend{codec: opt.Codec, step: opt.Step, init: opt.Init, noFiles: make(chan error, 1), closed: make(chan struct{}), merged: make(chan clientDelivery)}
	if f.step == nil {
		f.step = func(string) {}
	}
	zopt := zmq.Options{HandshakeTimeout: opt.HandshakeTimeout, MaxFrame: opt.MaxFrame, MaxStranger: protocol.MaxStatus, NoFiles: f.failed}
	if opt.MaxFrame > 0 {
		zopt.MaxStranger = min(zopt.MaxStranger, opt.MaxFrame)
	}
	var err error
	if f.shake, err = zmq.Listen(opt.HandshakeAddress, zmq.Router, zopt); err != nil {
		return nil, fmt.Errorf("handshake socket: %w", err)
	}
	for range max(opt.Clients, 1) {
		if err := f.addClient(opt.Address, zopt); err != nil {
			f.Close()
			return nil, err
		}
	}
	return f, nil
}

// maxSilent is how many connections that have sent nothing yet an output socket holds: peers have no name there, and
// once the engine is accepted each may send a message as large as the engine may.
const maxSilent = 8

func (f *Frontend) addClient(address string, opt zmq.Options) error {
	in, err := zmq.Listen(address, zmq.Router, opt)
	if err != nil {
		return fmt.Errorf("input socket: %w", err)
	}
	f.inputs = append(f.inputs, in)
	opt.MaxStrangers = maxSilent
	out, err := zmq.Listen(address, zmq.Pull, opt)
	if err != nil {
		return fmt.Errorf("output socket: %w", err)
	}
	f.outputs, f.last, f.peers = append(f.outputs, out), append(f.last, nil), append(f.peers, map[*zmq.Conn]bool{})
	f.early = append(f.early, nil)
	f.steps.Addresses.Inputs = append(f.steps.Addresses.Inputs, in.Endpoint())
	f.steps.Addresses.Outputs = append(f.steps.Addresses.Outputs, out.Endpoint())
	return nil
}

// Handshake is the address to give to the engine.
func (f *Frontend) Handshake() string { return f.shake.Endpoint() }

// Addresses are those of the clients' sockets, for an engine that is given them.
func (f *Frontend) Addresses() (inputs, outputs []string) {
	return f.steps.Addresses.Inputs, f.steps.Addresses.Outputs
}

// WithoutHandshake makes [Frontend.Accept] wait for the registration only: the engine has been given the addresses.
func (f *Frontend) WithoutHandshake() { f.direct = true }

// Codec is that of the line.
func (f *Frontend) Codec() *protocol.Codec { return f.codec }

// Speak sets the codec of a frontend that learns the line from the registration of its engine.
func (f *Frontend) Speak(codec *protocol.Codec) { f.codec = codec }

// Clients is the number of socket pairs.
func (f *Frontend) Clients() int { return len(f.inputs) }

// failed keeps why a socket could not accept a connection.
func (f *Frontend) failed(err error) {
	select {
	case f.noFiles <- err:
	default:
	}
}

// Accept waits for an engine to send HELLO, to register on every input socket
// and to send READY. That a socket cannot accept it, for want of file descriptors, is an error
// for which [zmq.OutOfFiles] holds.
func (f *Frontend) Accept(ctx context.Context) (Engine, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	accepted := make(chan struct{})
	defer close(accepted)
	go func() {
		select {
		case err := <-f.noFiles:
			cancel(fmt.Errorf("%w: allow this process more open files (ulimit -n)", err))
		case <-accepted:
		}
	}()
	so := ""
	if !f.direct {
		f.step("waiting for HELLO at " + f.Handshake())
		if err := f.status(ctx); err != nil {
			return f.engine, fmt.Errorf("waiting for HELLO: %w", err)
		}
		so = fmt.Sprintf("engine %d sent HELLO and was sent INIT; ", f.engine.Index)
	}
	for i, in := range f.inputs {
		f.step(so + "waiting for its registration at " + in.Endpoint())
		if err := f.registration(ctx, i); err != nil {
			return f.engine, err
		}
	}
	if !f.direct {
		f.step(fmt.Sprintf("engine %d registered as vLLM %s; waiting for READY", f.engine.Index, cmp.Or(f.engine.Ready.VLLMVersion, "of an unknown version")))
		if err := f.status(ctx); err != nil {
			return f.engine, fmt.Errorf("waiting for READY: %w", err)
		}
	}
	f.step(fmt.Sprintf("engine %d is ready", f.engine.Index))
	for i, out := range f.outputs {
		out.LiftLimit()
		f.forgetEarly(i)
	}
	return f.engine, nil
}

// forgetEarly takes the events of an output socket up to here: a peer that left it during the handshake was not an engine.
func (f *Frontend) forgetEarly(client int) {
	now, stop := context.WithCancel(context.Background())
	stop()
	for {
		d, err := f.outputs[client].Recv(now)
		switch {
		case err != nil:
			return
		case d.Kind == zmq.Joined:
			f.peers[client][d.Conn] = false
		case d.Kind == zmq.Gone:
			delete(f.peers[client], d.Conn)
		case d.Kind == zmq.Received:
			f.early[client] = append(f.early[client], d)
		}
	}
}

// status takes one message of the handshake socket and answers it.
func (f *Frontend) status(ctx context.Context) error {
	d, err := f.receive(ctx, f.shake)
	for err == nil && !f.isEngine(d.Peer) {
		d, err = f.receive(ctx, f.shake)
	}
	if err != nil {
		return err
	}
	if len(d.Message) != 1 {
		return fmt.Errorf("handshake message of %d frames, want 1", len(d.Message))
	}
	answer, err := f.steps.OnStatus(d.Message[0])
	if err != nil {
		return err
	}
	f.engine.Statuses = append(f.engine.Statuses, d.Message[0])
	if answer == nil {
		return nil
	}
	if f.engine.Index, err = protocol.EngineIndex(d.Peer.Identity); err != nil {
		return err
	}
	f.engine.Identity = d.Peer.Identity
	d.Conn.Trust()
	if f.init != nil {
		answer = f.init(answer)
	}
	return f.shake.Send(d.Peer.Identity, answer)
}

func (f *Frontend) registration(ctx context.Context, client int) error {
	d, err := f.receive(ctx, f.inputs[client])
	if err != nil {
		return fmt.Errorf("waiting for the registration on input socket %d: %w", client, err)
	}
	if f.direct && f.engine.Identity == nil {
		if f.engine.Index, err = protocol.EngineIndex(d.Peer.Identity); err != nil {
			return err
		}
		f.engine.Identity = d.Peer.Identity
	}
	if string(d.Peer.Identity) != string(f.engine.Identity) {
		return fmt.Errorf("input socket %d: identity %x, the handshake had %x", client, d.Peer.Identity, f.engine.Identity)
	}
	ready, err := f.steps.OnRegister(client, d.Message)
	if err != nil {
		return &RegistrationError{Frames: d.Message, Err: err}
	}
	d.Conn.Trust()
	f.engine.Ready, f.engine.RawReady = ready, d.Message[0]
	return nil
}

// isEngine reports whether a peer has the engine's identity. Until HELLO everybody has it.
func (f *Frontend) isEngine(p zmq.Peer) bool {
	return f.engine.Identity == nil || bytes.Equal(p.Identity, f.engine.Identity)
}

// receive waits for a message during the handshake. Connections that come up, or that fail
// before they are one (a port scan, garbage), are none of a frontend's business; an
// engine that goes away is.
func (f *Frontend) receive(ctx context.Context, l *zmq.Listener) (zmq.Delivery, error) {
	for {
		d, err := recv(ctx, l)
		switch {
		case err != nil || d.Kind == zmq.Received:
			return d, err
		case d.Kind == zmq.Joined && f.engine.Identity == nil:
			f.step("a process connected to " + f.Handshake() + "; waiting for its HELLO")
		case d.Kind == zmq.Gone && f.isEngine(d.Peer) && !errors.Is(d.Err, zmq.ErrCrowded):
			return d, fmt.Errorf("%w: %w", ErrEngineGone, d.Err)
		}
	}
}

// output waits for a message on a client's output socket. The engine is gone when a peer
// goes that has sent something, or when no peer is left.
func (f *Frontend) output(ctx context.Context, client int) (zmq.Delivery, error) {
	peers := f.peers[client]
	for {
		var d zmq.Delivery
		var err error
		if early := f.early[client]; len(early) > 0 {
			d, f.early[client] = early[0], early[1:]
		} else if d, err = recv(ctx, f.outputs[client]); err != nil {
			return d, err
		}
		switch d.Kind {
		case zmq.Joined:
			peers[d.Conn] = false
		case zmq.Received:
			peers[d.Conn] = true
			d.Conn.Trust()
			return d, nil
		case zmq.Gone:
			spoke := peers[d.Conn]
			delete(peers, d.Conn)
			if spoke || len(peers) == 0 {
				return d, fmt.Errorf("%w: %w", ErrEngineGone, d.Err)
			}
		}
	}
}

func recv(ctx context.Context, l *zmq.Listener) (zmq.Delivery, error) {
	d, err := l.Recv(ctx)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	return d, err
}

// Submit sends a request on the input socket that its ClientIndex names.
func (f *Frontend) Submit(r *protocol.Request) error {
	f.buf = f.codec.AppendRequest(f.buf[:0], r)
	return f.send(r.ClientIndex, protocol.TypeAdd, f.buf)
}

// SubmitRaw sends a request's payload as it is: to see what an engine makes of
// bytes that no frontend writes.
func (f *Frontend) SubmitRaw(client int, payload []byte) error {
	return f.send(client, protocol.TypeAdd, payload)
}

// Abort asks the engine to forget requests.
func (f *Frontend) Abort(client int, ids ...string) error {
	return f.send(client, protocol.TypeAbort, protocol.AppendAbort(nil, ids...))
}

// Call sends a utility call and returns its id; the answer comes through Next.
// Arguments are raw msgpack values.
func (f *Frontend) Call(client int, method string, args ...[]byte) (uint64, error) {
	f.calls++
	call := protocol.UtilityCall{ClientIndex: client, CallID: f.calls, Method: method, Args: args}
	return f.calls, f.send(client, protocol.TypeUtility, protocol.AppendUtilityCall(nil, call))
}

// SendRaw sends any message on an input socket.
func (f *Frontend) SendRaw(client int, frames ...[]byte) error {
	if err := f.check(client); err != nil {
		return err
	}
	if err := f.inputs[client].Send(f.engine.Identity, frames...); err != nil {
		return fmt.Errorf("input socket %d: %w", client, err)
	}
	return nil
}

func (f *Frontend) send(client int, kind byte, payload []byte) error {
	return f.SendRaw(client, []byte{kind}, payload)
}

// check refuses a client that has no sockets.
func (f *Frontend) check(client int) error {
	if client < 0 || client >= len(f.inputs) {
		return fmt.Errorf("client %d: there are %d", client, len(f.inputs))
	}
	return nil
}

// Next waits for the engine's next message to a client and decodes it into o,
// whose contents point into the message. Auxiliary frames are returned as they
// came. Each client may have a goroutine of its own.
func (f *Frontend) Next(ctx context.Context, client int, o *protocol.Outputs) (aux [][]byte, err error) {
	var d zmq.Delivery
	if client == AnyClient {
		d, err = f.first(ctx)
		client = f.from
	} else if err = f.check(client); err == nil {
		d, err = f.output(ctx, client)
	}
	if err != nil {
		return nil, err
	}
	f.last[client] = d.Message
	if err := f.codec.DecodeOutputs(d.Message[0], o); errors.Is(err, protocol.ErrEngineDead) {
		return nil, err
	} else if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUndecodable, err)
	}
	return d.Message[1:], nil
}

// first waits for a message to any client.
func (f *Frontend) first(ctx context.Context) (zmq.Delivery, error) {
	f.merge.Do(func() {
		for client := range f.outputs {
			go func() {
				for err := error(nil); err == nil; {
					var d zmq.Delivery
					d, err = f.output(context.Background(), client)
					select {
					case f.merged <- clientDelivery{client, d, err}:
					case <-f.closed:
						return
					}
				}
			}()
		}
	})
	select {
	case d := <-f.merged:
		f.from = d.client
		return d.Delivery, d.err
	case <-ctx.Done():
		return zmq.Delivery{}, context.Cause(ctx)
	}
}

// From is the client that the last message came to, see [AnyClient].
func (f *Frontend) From() int { return f.from }

// Close closes every socket.
func (f *Frontend) Close() error {
	f.closing.Do(func() { close(f.closed) })
	var errs []error
	for _, l := range append(append([]*zmq.Listener{f.shake}, f.inputs...), f.outputs...) {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}

// Last returns the frames of the message that Next took last for a client, as they came, whether
// it decoded or not.
func (f *Frontend) Last(client int) [][]byte {
	if client == AnyClient {
		client = f.from
	}
	return f.last[client]
}

// NextRaw waits for the engine's next message to a client and returns its frames
// as they came, for checks that look at more than a frontend understands.
func (f *Frontend) NextRaw(ctx context.Context, client int) ([][]byte, error) {
	if err := f.check(client); err != nil {
		return nil, err
	}
	d, err := f.output(ctx, client)
	if err != nil {
		return nil, err
	}
	return d.Message, nil
}

// RegistrationError is a registration that no frontend can take.
type RegistrationError struct {
	// Frames are the message as it came.
	Frames [][]byte
	Err    error
}

func (e *RegistrationError) Error() string { return e.Err.Error() }

// Unwrap returns what is wrong with it.
func (e *RegistrationError) Unwrap() error { return e.Err }
