package coreclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/internal/wire/zmq"
)

// patience is how long a test waits for what must come; nothing is timed by it.
const patience = 20 * time.Second

// bench is a frontend and the sockets of an engine that a test plays itself.
type bench struct {
	t         *testing.T
	ctx       context.Context
	codec     *protocol.Codec
	front     *Frontend
	addresses protocol.Addresses // from INIT
	shake     *zmq.Conn
	inputs    []*zmq.Conn
	outputs   []*zmq.Conn
}

func newBench(t *testing.T, line string, clients int) *bench {
	t.Helper()
	t.Cleanup(func() { goleak.VerifyNone(t) })
	codec, err := protocol.CodecFor(line)
	require.NoError(t, err)
	ctx, done := context.WithTimeout(context.Background(), patience)
	t.Cleanup(done)
	front, err := Listen(Options{Codec: codec, Clients: clients})
	require.NoError(t, err)
	t.Cleanup(func() { front.Close() })
	return &bench{t: t, ctx: ctx, codec: codec, front: front}
}

// dial connects one of the engine's sockets.
func (b *bench) dial(address string, typ zmq.Type, identity []byte) *zmq.Conn {
	b.t.Helper()
	c, err := zmq.Dial(b.ctx, address, typ, zmq.Options{Identity: identity})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { c.Close() })
	return c
}

func (b *bench) send(c *zmq.Conn, frames ...[]byte) {
	b.t.Helper()
	if err := c.Send(frames...); err != nil {
		b.t.Fatal(err)
	}
}

// engine7 is the identity of engine 7, which a bench plays.
var engine7 = protocol.Identity(7)

// The steps of an engine's start, in order.

func (b *bench) join() {
	b.t.Helper()
	b.shake = b.dial(b.front.Handshake(), zmq.Dealer, engine7)
}

func (b *bench) hello() {
	b.t.Helper()
	b.join()
	b.send(b.shake, protocol.EngineHandshake{}.Hello())
	init, err := b.shake.Recv()
	if err != nil || len(init) != 1 {
		b.t.Fatalf("INIT of %d frames: %v", len(init), err)
	}
	if b.addresses, err = protocol.DecodeInit(init[0]); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) dialAll() {
	b.t.Helper()
	for i := range b.addresses.Inputs {
		b.inputs = append(b.inputs, b.dial(b.addresses.Inputs[i], zmq.Dealer, engine7))
		b.outputs = append(b.outputs, b.dial(b.addresses.Outputs[i], zmq.Push, engine7))
	}
}

func (b *bench) registration() []byte {
	ready := protocol.DefaultReady(b.codec.Profile().Version)
	return b.codec.AppendReady(nil, &ready)
}

func (b *bench) register() {
	b.t.Helper()
	b.dialAll()
	for _, in := range b.inputs {
		b.send(in, b.registration())
	}
}

func (b *bench) ready() {
	b.t.Helper()
	b.send(b.shake, protocol.EngineHandshake{}.Ready())
}

// accept runs Accept beside the engine's steps.
func (b *bench) accept(steps func()) (Engine, error) {
	b.t.Helper()
	var engine Engine
	accepted := make(chan error, 1)
	go func() {
		var err error
		engine, err = b.front.Accept(b.ctx)
		accepted <- err
	}()
	steps()
	err := <-accepted
	if b.ctx.Err() != nil {
		b.t.Fatalf("Accept waited until it was told to stop: %v", err)
	}
	return engine, err
}

// connected is a bench after the handshake.
func connected(t *testing.T, line string, clients int) *bench {
	t.Helper()
	b := newBench(t, line, clients)
	if _, err := b.accept(b.start); err != nil {
		t.Fatal(err)
	}
	return b
}

// start makes all steps of a start.
func (b *bench) start() {
	b.t.Helper()
	b.hello()
	b.register()
	b.ready()
}

func TestAccept(t *testing.T) {
	for _, line := range protocol.Lines() {
		t.Run(line, func(t *testing.T) {
			b := newBench(t, line, 3)
			require.Equal(t, b.front.Clients(), 3, "clients")
			got, err := b.accept(b.start)
			require.NoError(t, err)
			ready, err := protocol.DecodeReady(b.registration())
			require.NoError(t, err)
			want := Engine{
				Identity: []byte{7, 0}, Index: 7, Ready: ready, RawReady: b.registration(),
				Statuses: [][]byte{protocol.EngineHandshake{}.Hello(), protocol.EngineHandshake{}.Ready()},
			}
			require.NoDiff(t, cmp.Diff(want, got), "engine (-want +got)")
			seen := map[string]bool{b.front.Handshake(): true}
			for _, address := range append(b.addresses.Inputs, b.addresses.Outputs...) {
				require.True(t, !seen[address] && strings.HasPrefix(address, "tcp://127.0.0.1:"), "address %s is used twice or is not local", address)
				seen[address] = true
			}
			require.Equal(t, len(seen), 7, "addresses: 1, and 2 for each of 3 clients")
		})
	}
}

func TestAcceptTakesReadyBeforeTheRegistration(t *testing.T) {
	b := newBench(t, "0.33", 1)
	_, err := b.accept(func() {
		b.hello()
		b.ready()
		b.register()
	})
	require.NoErrorf(t, err, "Accept")
}

func TestAcceptRefuses(t *testing.T) {
	hello, ready := protocol.EngineHandshake{}.Hello(), protocol.EngineHandshake{}.Ready()
	for _, tt := range []struct {
		name  string
		steps func(*bench)
		want  string
	}{
		{"HELLO of two frames", func(b *bench) {
			b.join()
			b.send(b.shake, hello, hello)
		}, "waiting for HELLO: handshake message of 2 frames, want 1"},
		{"HELLO that is none", func(b *bench) {
			b.join()
			b.send(b.shake, []byte{0xc1})
		}, "waiting for HELLO: handshake status: msgpack: byte 0"},
		{"READY first", func(b *bench) {
			b.join()
			b.send(b.shake, ready)
		}, `waiting for HELLO: handshake: "READY" out of turn`},
		{"HELLO twice", func(b *bench) {
			b.hello()
			b.register()
			b.send(b.shake, hello)
		}, `waiting for READY: handshake: "HELLO" out of turn`},
		{"an identity of three bytes", func(b *bench) {
			b.shake = b.dial(b.front.Handshake(), zmq.Dealer, []byte{1, 2, 3})
			b.send(b.shake, hello)
		}, "waiting for HELLO: engine identity 010203 has 3 bytes, want 2"},
		{"a registration that is none", func(b *bench) {
			b.hello()
			b.dialAll()
			b.send(b.inputs[0], []byte{0x90})
		}, "registration on input socket 0: ready response: msgpack: byte 0: expected map, found array"},
		{"an empty registration", func(b *bench) {
			b.hello()
			b.dialAll()
			b.send(b.inputs[0], []byte{})
		}, "registration on input socket 0: ready response: "},
		{"a registration of two frames", func(b *bench) {
			b.hello()
			b.dialAll()
			b.send(b.inputs[0], b.registration(), []byte{})
		}, "registration on input socket 0: 2 frames, want 1"},
		{"a registration under another identity", func(b *bench) {
			b.hello()
			b.dialAll()
			b.send(b.inputs[0], b.registration())
			b.send(b.dial(b.addresses.Inputs[1], zmq.Dealer, protocol.Identity(8)), b.registration())
		}, "input socket 1: identity 0800, the handshake had 0700"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t, "0.33", 2)
			_, err := b.accept(func() { tt.steps(b) })
			require.True(t, err != nil && strings.Contains(err.Error(), tt.want), "Accept: %v, want %q", err, tt.want)
		})
	}
}

func TestAcceptOfAnEngineThatLeaves(t *testing.T) {
	for _, tt := range []struct {
		name  string
		steps func(*bench)
		want  string
	}{
		{"before HELLO", func(b *bench) {
			b.join()
			b.shake.Close()
		}, "waiting for HELLO: "},
		{"before the registration", func(b *bench) {
			b.hello()
			b.dialAll()
			b.inputs[0].Close()
		}, "waiting for the registration on input socket 0: "},
		{"before READY", func(b *bench) {
			b.hello()
			b.register()
			b.shake.Close()
		}, "waiting for READY: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t, "0.33", 2)
			_, err := b.accept(func() { tt.steps(b) })
			require.True(t, errors.Is(err, ErrEngineGone) && strings.Contains(err.Error(), tt.want), "Accept: %v, want %q and %v", err, tt.want, ErrEngineGone)
		})
	}
}

func TestAcceptEndsWithItsContext(t *testing.T) {
	patienceLost := errors.New("patience lost")
	for _, tt := range []struct {
		name  string
		steps func(*bench)
		want  string
	}{
		{"before HELLO", func(b *bench) {}, "waiting for HELLO: "},
		{"before the registration", (*bench).hello, "waiting for the registration on input socket 0: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t, "0.33", 1)
			ctx, stop := context.WithCancelCause(b.ctx)
			accepted := make(chan error, 1)
			go func() {
				_, err := b.front.Accept(ctx)
				accepted <- err
			}()
			tt.steps(b)
			stop(patienceLost)
			err := <-accepted
			require.True(t, errors.Is(err, patienceLost) && strings.Contains(err.Error(), tt.want), "Accept: %v, want %q and the cause", err, tt.want)
		})
	}
}

// A port scanner, an HTTP client and a dropped connection are none of a
// frontend's business.
func TestStrangersAreIgnored(t *testing.T) {
	b := newBench(t, "0.33", 1)
	stranger := func(address, words string) {
		c, err := net.Dial("tcp", strings.TrimPrefix(address, "tcp://"))
		require.NoError(t, err)
		defer c.Close()
		if words != "" {
			fmt.Fprint(c, words)
			if _, err := io.ReadAll(c); err != nil && !errors.Is(err, io.EOF) && !strings.Contains(err.Error(), "reset") {
				t.Error(err)
			}
		}
	}
	_, err := b.accept(func() {
		stranger(b.front.Handshake(), "")
		stranger(b.front.Handshake(), "GET / HTTP/1.1\r\n\r\n")
		b.hello()
		for _, address := range append(b.addresses.Inputs, b.addresses.Outputs...) {
			stranger(address, "")
			stranger(address, "GET / HTTP/1.1\r\n\r\n")
		}
		b.register()
		b.ready()
	})
	require.NoErrorf(t, err, "Accept")
}

// A peer of ZeroMQ that is not the engine is none either: what it says during the handshake does not count, it may say
// little, and that it leaves is not the end of the engine.
func TestStrangersAreNotTheEngine(t *testing.T) {
	b := newBench(t, "0.33", 1)
	other := protocol.Identity(8)
	var silent *zmq.Conn
	_, err := b.accept(func() {
		b.hello()
		for _, words := range [][]byte{protocol.EngineHandshake{}.Hello(), protocol.EngineHandshake{}.Ready(), nil} {
			c := b.dial(b.front.Handshake(), zmq.Dealer, []byte("stranger"))
			if words != nil {
				b.send(c, words)
			}
			c.Close()
		}
		b.dial(b.addresses.Inputs[0], zmq.Dealer, other).Close()
		for _, c := range []*zmq.Conn{
			b.dial(b.front.Handshake(), zmq.Dealer, other), b.dial(b.addresses.Inputs[0], zmq.Dealer, other), b.dial(b.addresses.Outputs[0], zmq.Push, nil),
		} {
			_ = c.Send(make([]byte, protocol.MaxStatus+1)) // it is hung up on in the middle
			for c.Send(nil) == nil {
			}
		}
		silent = b.dial(b.addresses.Outputs[0], zmq.Push, nil)
		b.register()
		b.ready()
	})
	require.NoErrorf(t, err, "Accept")
	large := make([]byte, protocol.MaxStatus+1)
	for range 2 {
		b.send(b.outputs[0], large)
		if got, err := b.front.NextRaw(b.ctx, 0); err != nil || len(got) != 1 || len(got[0]) != len(large) {
			t.Errorf("%d frames, %v, want the engine's message", len(got), err)
		}
		silent.Close()
	}
}

func TestWhatIsSent(t *testing.T) {
	request := &protocol.Request{
		ID: "r-1", ExternalID: "r", PromptTokenIDs: []uint32{1, 70000}, HasSampling: true, ArrivalTime: 1.5,
		DataParallelRank: -1, ClientIndex: 1,
		Sampling: protocol.Sampling{MaxTokens: 3, HasMaxTokens: true, EOSTokenID: -1, Logprobs: protocol.NoLogprobs, PromptLogprobs: protocol.NoLogprobs},
	}
	for _, line := range protocol.Lines() {
		t.Run(line, func(t *testing.T) {
			b := connected(t, line, 2)
			payload := b.codec.AppendRequest(nil, request)
			for _, tt := range []struct {
				name   string
				client int
				send   func() error
				want   zmq.Message
			}{
				{"Submit", 1, func() error { return b.front.Submit(request) }, zmq.Message{{0}, payload}},
				{"SubmitRaw", 0, func() error { return b.front.SubmitRaw(0, []byte{0xc1}) }, zmq.Message{{0}, {0xc1}}},
				{"Abort", 0, func() error { return b.front.Abort(0, "a", "b") }, zmq.Message{{1}, {0x92, 0xa1, 'a', 0xa1, 'b'}}},
				{"Call", 1, func() error {
					id, err := b.front.Call(1, "sleep", []byte{1}, []byte{0xc0})
					require.Equal(t, id, 1, "call for the first")
					return err
				}, zmq.Message{{3}, {0x94, 1, 1, 0xa5, 's', 'l', 'e', 'e', 'p', 0x92, 1, 0xc0}}},
				{"SendRaw", 0, func() error { return b.front.SendRaw(0, []byte("x"), []byte{}) }, zmq.Message{[]byte("x"), {}}},
			} {
				require.NoErrorf(t, tt.send(), "%s", tt.name)
				got, err := b.inputs[tt.client].Recv()
				require.NoErrorf(t, err, "%s", tt.name)
				require.NoDiff(t, cmp.Diff(tt.want, got), "%s (-want +got)", tt.name)
			}
		})
	}
}

func TestNext(t *testing.T) {
	b := connected(t, "0.30", 2)
	batch := b.codec.NewBatch(7)
	request := &protocol.Request{ID: "r-1", Sampling: protocol.Sampling{Logprobs: 40, PromptLogprobs: protocol.NoLogprobs}}
	table := &protocol.Logprobs{Width: 64, TokenIDs: make([]uint32, 64), Values: make([]float32, 64), Ranks: []int64{1}}
	table.TokenIDs[0] = 5
	require.NoError(t, batch.Add(b.codec.NewStream(request), &protocol.Output{Tokens: []uint32{5}, Logprobs: table, Finish: protocol.FinishStop}))
	m, err := batch.Finish(nil, 2.5)
	require.NoError(t, err)
	long := pack.AppendArrayHeader(nil, 9) // 0.30 knows 8 fields
	for range 9 {
		long = append(long, 0)
	}

	b.send(b.outputs[1], m...)
	b.send(b.outputs[0], long)
	b.send(b.outputs[0], []byte{0xc1})
	b.send(b.outputs[0], []byte(protocol.EngineDead))
	b.outputs[0].Close()

	var o protocol.Outputs
	aux, err := b.front.Next(b.ctx, 1, &o)
	require.NoError(t, err)
	require.True(t, len(o.Outputs) == 1 && string(o.Outputs[0].ID) == "r-1" && o.Outputs[0].Finish == protocol.FinishStop && o.EngineIndex == 7 && o.Timestamp == 2.5, "got %+v", o)
	// The ids and the values of 64 tokens are past the limit of what is inline.
	require.True(t, len(aux) == 2 && len(aux[0]) == 256 && len(aux[1]) == 256, "%d auxiliary frames, want 2 of 256 bytes", len(aux))
	var length *protocol.LengthError
	if _, err := b.front.Next(b.ctx, 0, &o); !errors.As(err, &length) || length.Got != 9 || length.Want != 8 {
		t.Errorf("too long an envelope: %v, want a LengthError", err)
	}
	if _, err := b.front.Next(b.ctx, 0, &o); err == nil || !strings.Contains(err.Error(), "EngineCoreOutputs: msgpack: byte 0") {
		t.Errorf("garbage: %v", err)
	}
	if _, err := b.front.Next(b.ctx, 0, &o); !errors.Is(err, protocol.ErrEngineDead) {
		t.Errorf("the dying engine: %v, want %v", err, protocol.ErrEngineDead)
	}
	if _, err := b.front.Next(b.ctx, 0, &o); !errors.Is(err, ErrEngineGone) {
		t.Errorf("the engine that left: %v, want %v", err, ErrEngineGone)
	}
	ctx, stop := context.WithCancelCause(b.ctx)
	stop(errors.New("patience lost"))
	if _, err := b.front.Next(ctx, 1, &o); err == nil || !strings.Contains(err.Error(), "patience lost") {
		t.Errorf("no message: %v, want the context's cause", err)
	}
}

func TestSubmitToAnEngineThatIsGone(t *testing.T) {
	b := connected(t, "0.33", 1)
	b.outputs[0].Close()
	b.inputs[0].Close()
	if _, err := b.front.Next(b.ctx, 0, new(protocol.Outputs)); !errors.Is(err, ErrEngineGone) {
		t.Fatal(err)
	}
	// The input socket learns of it on its own, soon or on sending.
	request := &protocol.Request{ID: "r", Sampling: protocol.Sampling{EOSTokenID: -1}}
	for b.ctx.Err() == nil {
		err := b.front.Submit(request)
		if err == nil {
			continue
		}
		require.True(t, errors.Is(err, zmq.ErrNoPeer) && strings.Contains(err.Error(), "input socket 0: "), "Submit: %v, want %v and the socket", err, zmq.ErrNoPeer)
		return
	}
	t.Error("Submit goes on without an error")
}

func TestAClientThatIsNotThere(t *testing.T) {
	b := connected(t, "0.33", 2)
	for _, client := range []int{-1, 2} {
		_, callErr := b.front.Call(client, "x")
		_, nextErr := b.front.Next(b.ctx, client, new(protocol.Outputs))
		want := fmt.Sprintf("client %d: there are 2", client)
		for name, err := range map[string]error{
			"SubmitRaw": b.front.SubmitRaw(client, nil), "Submit": b.front.Submit(&protocol.Request{ClientIndex: client}),
			"Abort": b.front.Abort(client, "x"), "SendRaw": b.front.SendRaw(client, nil), "Call": callErr, "Next": nextErr,
		} {
			require.True(t, err != nil && strings.Contains(err.Error(), want), "%s: %v, want %q", name, err, want)
		}
	}
}

func TestListenFails(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := taken.Addr().String()
	codec, err := protocol.CodecFor("0.33")
	require.NoError(t, err)
	for _, tt := range []struct {
		name, address, want string
		free                bool // the port, for the first socket
	}{
		{"an address that is none", "nowhere", `handshake socket: listen on endpoint "nowhere"`, false},
		{"a port that is taken", "tcp://" + port, "handshake socket: ", false},
		{"one port for all sockets", "tcp://" + port, "input socket: ", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Cleanup(func() { goleak.VerifyNone(t) })
			if tt.free {
				taken.Close()
			}
			f, err := Listen(Options{Codec: codec, Address: tt.address})
			if err == nil {
				f.Close()
			}
			require.True(t, err != nil && strings.Contains(err.Error(), tt.want), "Listen: %v, want %q", err, tt.want)
		})
	}
}

func TestCloseTwice(t *testing.T) {
	b := connected(t, "0.33", 2)
	for range 2 {
		require.NoErrorf(t, b.front.Close(), "Close")
	}
	if _, err := b.inputs[0].Recv(); !errors.Is(err, zmq.ErrPeerGone) {
		t.Errorf("the engine sees %v, want %v", err, zmq.ErrPeerGone)
	}
}

// TestHandshakeAddress: the handshake has an address of its own, the other sockets
// have ports of theirs.
func TestHandshakeAddress(t *testing.T) {
	codec, err := protocol.CodecFor("0.33")
	require.NoError(t, err)
	path := "ipc://" + t.TempDir() + "/handshake"
	front, err := Listen(Options{Codec: codec, HandshakeAddress: path})
	require.NoError(t, err)
	defer front.Close()
	require.Equal(t, front.Handshake(), path, "listens at")
	if at := front.steps.Addresses; !strings.HasPrefix(at.Inputs[0], "tcp://127.0.0.1:") || !strings.HasPrefix(at.Outputs[0], "tcp://127.0.0.1:") {
		t.Errorf("the engine is told of %v, want ports of 127.0.0.1", at)
	}
}

// TestMaxFrame: a message that is too long is the end of the engine, and says so.
func TestMaxFrame(t *testing.T) {
	codec, err := protocol.CodecFor("0.33")
	require.NoError(t, err)
	front, err := Listen(Options{Codec: codec, MaxFrame: 1000})
	require.NoError(t, err)
	defer front.Close()
	ctx, stop := context.WithTimeout(context.Background(), patience)
	defer stop()
	conn, err := zmq.Dial(ctx, front.Handshake(), zmq.Dealer, zmq.Options{Identity: engine7})
	require.NoError(t, err)
	defer conn.Close()
	// Whether the end of the connection is seen while sending does not matter.
	_ = conn.Send(make([]byte, 1001))
	if _, err := front.Accept(ctx); !errors.Is(err, ErrEngineGone) || !errors.Is(err, zmq.ErrTooLarge) {
		t.Errorf("Accept: %v, want that a message was too large", err)
	}
}
