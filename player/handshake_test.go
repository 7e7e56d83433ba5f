package player

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/internal/wire/zmq"
)

// silentTCP accepts connections and never says a word.
func silentTCP(t *testing.T) (address string, connected <-chan struct{}) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	came, done := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			select {
			case came <- struct{}{}:
			default:
			}
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	return "tcp://" + l.Addr().String(), came
}

// unheard is an address on which nobody listens.
func unheard(t *testing.T) string {
	return fmt.Sprintf("tcp://127.0.0.1:%d", testenv.FreePort(t))
}

// greeter is the handshake socket of a frontend that says something else, or
// nothing, to HELLO; hello is told of it.
func greeter(t *testing.T, answer []byte) (address string, hello <-chan struct{}) {
	t.Helper()
	l, err := zmq.Listen("tcp://127.0.0.1:0", zmq.Router, zmq.Options{})
	must(t, err)
	came, done := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(done)
		for {
			d, err := l.Recv(context.Background())
			if err != nil {
				return
			}
			if d.Kind != zmq.Received {
				continue
			}
			if answer != nil {
				_ = l.Send(d.Peer.Identity, answer) // the engine may be gone already
			}
			came <- struct{}{}
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	return l.Endpoint(), came
}

// A handshake that cannot succeed ends in an error that says at what it stopped.
func TestAHandshakeThatFails(t *testing.T) {
	init := func(a protocol.Addresses) []byte { return protocol.AppendInit(nil, a) }
	far := []string{"tcp://127.0.0.1:1"}
	two, three := "tcp://127.0.0.1:2", "tcp://127.0.0.1:3"
	closed := unheard(t)
	input, err := zmq.Listen("tcp://127.0.0.1:0", zmq.Router, zmq.Options{})
	must(t, err)
	t.Cleanup(func() { input.Close() })
	for _, tt := range []struct {
		name   string
		answer []byte // to HELLO
		want   string
		late   bool // known at the end of the timeout only
	}{
		{"garbage", []byte{0xc1}, "handshake init: msgpack: byte 0", false},
		{"nothing", []byte{}, "handshake init: msgpack: byte 0", false},
		{"an array", []byte{0x90}, "handshake init: msgpack: byte 0: expected map, found array", false},
		{"no addresses", []byte{0x80}, "handshake init: 0 input and 0 output addresses", false},
		{"no inputs", init(protocol.Addresses{Outputs: far}), "handshake init: 0 input and 1 output addresses", false},
		{"more inputs than outputs", init(protocol.Addresses{Inputs: append(far, far...), Outputs: far}), "handshake init: 2 input and 1 output addresses", false},
		{
			"a coordinator that is not there", init(protocol.Addresses{Inputs: far, Outputs: far, CoordinatorInput: &two, CoordinatorOutput: &three}),
			"coordinator: connect to tcp://127.0.0.1:2 as XSUB", true,
		},
		{
			"half a coordinator", init(protocol.Addresses{Inputs: far, Outputs: far, CoordinatorInput: &two}),
			"handshake init: a coordinator needs both addresses", false,
		},
		{
			"a transport of another world", init(protocol.Addresses{Inputs: []string{"inproc://x"}, Outputs: far}),
			`input socket 0: dial endpoint "inproc://x": transport "inproc" is not supported`, false,
		},
		{
			"an input on which nobody listens", init(protocol.Addresses{Inputs: []string{closed}, Outputs: far}),
			"input socket 0: connect to " + closed, true,
		},
		{
			"an output on which nobody listens", init(protocol.Addresses{Inputs: []string{input.Endpoint()}, Outputs: []string{closed}}),
			"output socket 0: connect to " + closed, true,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := goleak.IgnoreCurrent()
			t.Cleanup(func() { goleak.VerifyNone(t, before) })
			address, _ := greeter(t, tt.answer)
			timeout := patience // which the test does not wait for
			if tt.late {
				timeout = 500 * time.Millisecond // enough to come to the step that waits, also on a busy machine
			}
			err := runToEnd(t, Options{Handshake: address, HandshakeTimeout: timeout})
			require.ErrorContains(t, err, tt.want)
			require.Equal(t, errors.Is(err, context.DeadlineExceeded), tt.late, "Run: %v: by the timeout", err)
		})
	}
}

// runToEnd runs a player that is expected to fail.
func runToEnd(t *testing.T, opt Options) error {
	t.Helper()
	ctx, done := context.WithTimeout(context.Background(), patience)
	defer done()
	p, err := New(opt)
	must(t, err)
	err = p.Run(ctx)
	if ctx.Err() != nil {
		t.Fatalf("Run did not return: %v", err)
	}
	select {
	case <-p.Ready():
		t.Error("ready without a handshake")
	default:
	}
	return err
}

func TestAFrontendThatDoesNotAnswer(t *testing.T) {
	for _, tt := range []struct {
		name string
		open func(t *testing.T) (string, <-chan struct{})
	}{
		{"nobody listens", func(t *testing.T) (string, <-chan struct{}) {
			came := make(chan struct{})
			close(came)
			return unheard(t), came
		}},
		{"no socket there", func(t *testing.T) (string, <-chan struct{}) {
			came := make(chan struct{})
			close(came)
			return "ipc://" + t.TempDir() + "/none", came
		}},
		{"TCP only", silentTCP},
		{"no answer to HELLO", func(t *testing.T) (string, <-chan struct{}) { return greeter(t, nil) }},
	} {
		t.Run(tt.name+", until the timeout", func(t *testing.T) {
			t.Cleanup(func() { goleak.VerifyNone(t) })
			address, _ := tt.open(t)
			err := runToEnd(t, Options{Handshake: address, HandshakeTimeout: 50 * time.Millisecond})
			require.ErrorIs(t, err, context.DeadlineExceeded, address)
		})
		t.Run(tt.name+", until told to stop", func(t *testing.T) {
			t.Cleanup(func() { goleak.VerifyNone(t) })
			address, came := tt.open(t)
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			run(t, ctx, Options{Handshake: address}, ended)
			<-came
			stop()
			select {
			case err := <-ended:
				require.NoErrorf(t, err, "Run: want nil as for any shutdown")
			case <-time.After(patience):
				t.Error("Run does not return")
			}
		})
	}
}

func TestAFrontendThatLeavesDuringTheHandshake(t *testing.T) {
	t.Cleanup(func() { goleak.VerifyNone(t) })
	l, err := zmq.Listen("tcp://127.0.0.1:0", zmq.Router, zmq.Options{})
	must(t, err)
	go func() {
		for {
			if d, err := l.Recv(context.Background()); err != nil || d.Kind == zmq.Received {
				l.Close()
				return
			}
		}
	}()
	err = runToEnd(t, Options{Handshake: l.Endpoint()})
	if !errors.Is(err, zmq.ErrPeerGone) || !errors.Is(err, io.EOF) || !strings.Contains(err.Error(), "no answer to HELLO from "+l.Endpoint()) {
		t.Errorf("Run: %v, want that there was no INIT and the peer is gone", err)
	}
}
