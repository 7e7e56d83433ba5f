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

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// A stand is a relay between two peers whose every byte the test writes: near, a
// DEALER that came to a gate, and far, a ROUTER that was dialed.
type stand struct {
	near, far *raw
	a, b      *Conn // towards near and far
	stop      context.CancelFunc
	ended     chan struct{}
	first     *Conn
	err       error
}

// another is a free endpoint of the same transport.
func another(t *testing.T, endpoint string) string {
	t.Helper()
	if strings.HasPrefix(endpoint, "ipc://") {
		return ipc(t)
	}
	return endpoint
}

func startStand(t *testing.T, near, far string, fromNear, fromFar Observer) *stand {
	t.Helper()
	s := &stand{ended: make(chan struct{})}
	gate := openGate(t, near, Router, Options{}, nil)
	s.near = gateDial(t, gate)
	s.near.greet("Socket-Type", "DEALER", "Identity", "\x01\x00")
	s.a = accept(t, gate)

	addr, err := parseEndpoint(far)
	require.NoError(t, err)
	ln, err := addr.forListening().listen()
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	dialed := make(chan error, 1)
	go func() {
		var err error
		s.b, err = DialAs(patient(t), endpointOf(ln.Addr()), s.a.Peer(), Options{})
		dialed <- err
	}()
	nc, err := ln.Accept()
	require.NoError(t, err)
	s.far = newRaw(t, nc)
	s.far.greet("Socket-Type", "ROUTER")
	require.NoError(t, <-dialed)

	var ctx context.Context
	ctx, s.stop = context.WithCancel(context.Background())
	go func() {
		defer close(s.ended)
		s.first, s.err = Relay(ctx, s.a, s.b, fromNear, fromFar)
	}()
	t.Cleanup(func() { s.stop(); s.near.Close(); s.far.Close(); s.wait(t) })
	return s
}

func (s *stand) wait(t *testing.T) {
	t.Helper()
	select {
	case <-s.ended:
	case <-time.After(patience):
		t.Fatal("the relay did not end")
	}
}

// stands runs a test over tcp and ipc, whose ends differ.
func stands(t *testing.T, test func(t *testing.T, start func(fromNear, fromFar Observer) *stand)) {
	t.Helper()
	transports(t, func(t *testing.T, endpoint string) {
		test(t, func(fromNear, fromFar Observer) *stand {
			return startStand(t, another(t, endpoint), another(t, endpoint), fromNear, fromFar)
		})
	})
}

// hangUp says that nothing more will be said, and still listens.
func (r *raw) hangUp() {
	r.t.Helper()
	require.NoError(r.t, r.Conn.(interface{ CloseWrite() error }).CloseWrite())
}

// end waits for the other side to hang up.
func (r *raw) end() {
	r.t.Helper()
	if rest, err := io.ReadAll(r); err != nil || len(rest) > 0 {
		r.t.Fatalf("heard %.100q, %v, want the end", rest, err)
	}
}

// fill says m until nobody takes it any more, and returns how many bytes were taken.
func (r *raw) fill(m string) (written int) {
	r.t.Helper()
	batch := []byte(strings.Repeat(m, 1000))
	for {
		require.NoError(r.t, r.SetWriteDeadline(time.Now().Add(300*time.Millisecond)))
		n, err := r.Write(batch)
		written += n
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			require.NoError(r.t, r.SetWriteDeadline(time.Now().Add(patience)))
			return written
		case err != nil:
			r.t.Fatal(err)
		case written > 200<<20:
			r.t.Fatal("200 MB were taken, and nobody reads")
		}
	}
}

// silence hears nothing for a while.
func (r *raw) silence(d time.Duration) {
	r.t.Helper()
	require.NoError(r.t, r.SetReadDeadline(time.Now().Add(d)))
	if n, err := r.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		r.t.Fatalf("heard %d bytes, %v, want silence", n, err)
	}
	require.NoError(r.t, r.SetReadDeadline(time.Now().Add(patience)))
}

// reset breaks the connection off.
func (r *raw) reset() {
	r.t.Helper()
	if tcp, ok := r.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	r.Close()
}

var (
	hello = short(flagMore, "") + short(0, "hello")
	large = sync.OnceValue(func() string { return long(0, 10<<20, strings.Repeat("0123456789abcdef", 10<<16)) })
)

// A observer that does not answer before the message may pass.
type gatekeeper struct {
	told   chan Relayed
	pass   chan struct{}
	passed chan struct{}
}

func newGatekeeper() *gatekeeper {
	return &gatekeeper{told: make(chan Relayed), pass: make(chan struct{}), passed: make(chan struct{}, 1)}
}

func (g *gatekeeper) Limits() (int64, bool) { return 1 << 30, true }
func (g *gatekeeper) Message(s Relayed)     { g.told <- s; <-g.pass }
func (g *gatekeeper) HungUp()               {}
func (g *gatekeeper) Passed()               { g.passed <- struct{}{} }

// The observer knows of a message before its last byte reaches the peer.
func TestRelayTellsBeforeItPasses(t *testing.T) {
	stands(t, func(t *testing.T, start func(_, _ Observer) *stand) {
		g := newGatekeeper()
		s := start(g, nil)
		for _, m := range []string{hello, large()} {
			heard := make(chan string, 1)
			go func() { heard <- s.far.receive(len(m)) }()
			go s.near.send(m)
			// All but the last read of a large message has passed by now.
			told := <-g.told
			if string(told.Wire) != m {
				t.Errorf("%d bytes were observed, want %d, or other ones", len(told.Wire), len(m))
			}
			select {
			case <-heard:
				t.Error("the last byte passed before its observer was done")
			case <-g.passed:
				t.Error("Passed before the message passed")
			default:
			}
			g.pass <- struct{}{}
			if got := <-heard; got != m {
				t.Error("other bytes")
			}
			<-g.passed
		}
	})
}

// A reader that does not read holds the writer up, and nothing is lost.
func TestRelayHoldsUp(t *testing.T) {
	stands(t, func(t *testing.T, start func(_, _ Observer) *stand) {
		s := start(newQueue(patient(t), 1<<20), nil)
		m := short(0, strings.Repeat("m", 200))
		written := s.near.fill(m)
		rest := written % len(m)
		go func() { s.near.send(m[rest:] + hello); s.near.hangUp() }()
		got, err := io.ReadAll(s.far)
		require.NoError(t, err)
		want := append(bytes.Repeat([]byte(m), written/len(m)+1), hello...)
		if !bytes.Equal(got, want) {
			t.Errorf("%d bytes arrived, want %d, or other ones", len(got), len(want))
		}
	})
}

// What was sent right behind the handshake, or behind what was received before, is
// relayed, after the PONG that is owed.
func TestRelayOfWhatWasReadAhead(t *testing.T) {
	gate := openGate(t, "tcp://127.0.0.1:0", Router, Options{}, nil)
	near := gateDial(t, gate)
	near.send(greeting + ready("Socket-Type", "DEALER") + short(flagCommand, "\x04PING\x00\x00ctx") + hello + hello + large()[:100])
	near.receive(len(greeting))
	near.receive(int(near.receive(shortHeader)[1]))
	a := accept(t, gate)
	if m := receive(t, a); len(m) != 2 {
		t.Errorf("received %q", m)
	}
	if err := a.nc.SetDeadline(time.Time{}); err != nil {
		t.Error(err)
	}
	b, far := rawPeer(t, Dealer, Options{}, "Socket-Type", "ROUTER")
	n := &notes{limit: 1 << 30, tails: true, t: t}
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := Relay(patient(t), a, b, n, nil); err != nil {
			t.Error(err)
		}
	})
	go func() { near.send(large()[100:]); near.hangUp() }()
	if got := far.receive(len(hello + large())); got != hello+large() {
		t.Error("other bytes")
	}
	far.send(hello)
	far.Close()
	if pong := short(flagCommand, "\x04PONGctx"); near.receive(len(pong)) != pong || near.receive(len(hello)) != hello {
		t.Error("near did not hear the PONG and then far")
	}
	wg.Wait()
	if want := []observed{message(hello, 5), message(large(), 10<<20)}; len(n.seen) != 2 || n.seen[0] != want[0] || n.seen[1] != want[1] {
		t.Errorf("%d messages were observed, want 2, or other ones", len(n.seen))
	}
}
