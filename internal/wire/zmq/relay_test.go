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
	"sync/atomic"
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

func startStand(t *testing.T, near, far string, fromNear, fromFar Observer) *stand {
	t.Helper()
	s := &stand{ended: make(chan struct{})}
	gate := openGate(t, near, Router, Options{}, nil)
	s.near = rawDial(t, gate.Endpoint())
	s.near.greet("Socket-Type", "DEALER", "Identity", "\x01\x00")
	s.a = accept(t, gate)

	endpoint, acceptRaw := rawListen(t, far)
	dialed := make(chan error, 1)
	go func() {
		var err error
		s.b, err = DialAs(patient(t), endpoint, s.a.Peer(), Options{})
		dialed <- err
	}()
	s.far = acceptRaw()
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
	transports(t, func(t *testing.T, free func() string) {
		test(t, func(fromNear, fromFar Observer) *stand { return startStand(t, free(), free(), fromNear, fromFar) })
	})
}

// hangUp says that nothing more will be said, and still listens.
func (r *raw) hangUp() {
	r.t.Helper()
	require.NoError(r.t, r.Conn.(interface{ CloseWrite() error }).CloseWrite())
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
			require.Equal(t, string(told.Wire), m, "bytes observed, %d of %d", len(told.Wire), len(m))
			select {
			case <-heard:
				t.Error("the last byte passed before its observer was done")
			case <-g.passed:
				t.Error("Passed before the message passed")
			default:
			}
			g.pass <- struct{}{}
			require.Equal(t, <-heard, m, "bytes")
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
		require.True(t, bytes.Equal(got, want), "%d bytes arrived, want %d, or other ones", len(got), len(want))
	})
}

// What was sent right behind the handshake, or behind what was received before, is
// relayed, after the PONG that is owed.
func TestRelayOfWhatWasReadAhead(t *testing.T) {
	gate := openGate(t, tcp, Router, Options{}, nil)
	near := rawDial(t, gate.Endpoint())
	near.send(greeting + ready("Socket-Type", "DEALER") + short(flagCommand, "\x04PING\x00\x00ctx") + hello + hello + large()[:100])
	near.receive(len(greeting))
	near.receive(int(near.receive(shortHeader)[1]))
	a := accept(t, gate)
	if m := receive(t, a); len(m) != 2 {
		t.Errorf("received %q", m)
	}
	require.NoError(t, a.nc.SetDeadline(time.Time{}))
	b, far := rawPeer(t, Dealer, Options{}, "ROUTER")
	n := &notes{limit: 1 << 30, tails: true, t: t}
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := Relay(patient(t), a, b, n, nil); err != nil {
			t.Error(err)
		}
	})
	go func() { near.send(large()[100:]); near.hangUp() }()
	require.Equal(t, far.receive(len(hello+large())), hello+large(), "bytes")
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

// A queue is an observer as a recorder is one: what passes is copied into a buffer
// that a goroutine empties.
type queue struct {
	limit int64

	mu   sync.Mutex
	buf  []byte
	big  []func()
	wake chan struct{}
}

func newQueue(ctx context.Context, limit int64) *queue {
	q := &queue{limit: limit, wake: make(chan struct{}, 1)}
	go q.work(ctx)
	return q
}

func (q *queue) work(ctx context.Context) {
	var buf []byte
	var big []func()
	for {
		select {
		case <-q.wake:
		case <-ctx.Done():
			return
		}
		q.mu.Lock()
		buf, q.buf = q.buf, buf[:0]
		big, q.big = q.big, big[:0]
		q.mu.Unlock()
		for _, release := range big {
			release()
		}
	}
}

func (q *queue) Message(s Relayed) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if s.Owned {
		q.big = append(q.big, s.Release)
		return
	}
	q.buf = append(q.buf, s.Wire...)
}

func (q *queue) HungUp() {}

func (q *queue) Passed() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *queue) Limits() (int64, bool) { return q.limit, true }

// Whoever hangs up has its last word delivered, and hears the last words of the other.
func TestRelayHalfClose(t *testing.T) {
	stands(t, func(t *testing.T, start func(_, _ Observer) *stand) {
		for _, last := range []string{hello, large() + hello} {
			near, far := &departure{}, &departure{}
			s := start(near, far)
			go s.near.send(last)
			if got := s.far.receive(len(last)); got != last {
				t.Fatal("other bytes")
			}
			s.near.hangUp()
			s.far.ends()
			if near.times.Load() != 1 || far.times.Load() != 0 {
				t.Errorf("far knows of the end before the observer: near hung up %d times, far %d", near.times.Load(), far.times.Load())
			}
			go func() { s.far.send(last + hello); s.far.hangUp() }()
			if got := s.near.receive(len(last + hello)); got != last+hello {
				t.Fatal("other bytes")
			}
			s.near.ends()
			if s.wait(t); s.err != nil || s.first != s.a || near.times.Load() != 1 || far.times.Load() != 1 {
				t.Errorf("ended with %v, first %v, want nil and the near connection", s.err, s.first)
			}
		}
	})
}

// A departure is a observer of that alone.
type departure struct{ times atomic.Int32 }

func (d *departure) Limits() (int64, bool) { return 1 << 20, false }
func (d *departure) Message(Relayed)       {}
func (d *departure) HungUp()               { d.times.Add(1) }
func (d *departure) Passed()               {}

// Who closed has its last words delivered even if the other talks on and is slow to
// listen, as libzmq may. What it did not want to hear is dropped without error.
func TestRelayClosedWhileTheOtherTalks(t *testing.T) {
	stands(t, func(t *testing.T, start func(_, _ Observer) *stand) {
		told := make(tally, 100)
		s := start(told, nil)
		m := long(0, 4000, large()[:4000])
		last := strings.Repeat(m, 15)
		if _, ok := s.near.Conn.(*net.UnixConn); ok {
			// More than the socket towards far holds: some is still unread when writing to
			// near begins to fail. A TCP that is closed and spoken to would lose that itself.
			last = strings.Repeat(m, 75)
		}
		s.near.send(last)
		for range 15 {
			<-told
		}
		s.near.Close()
		for range 1000 {
			s.far.send(hello)
		}
		if got := s.far.receive(len(last)); got != last {
			t.Fatal("other bytes")
		}
		s.far.ends()
		s.far.Close()
		if s.wait(t); s.err != nil || s.first != s.a {
			t.Errorf("ended with %v, first %v, want nil and the near connection", s.err, s.first)
		}
	})
}

// Closing with unread input would reset the connection, and take what is still on its
// way to the peer along.
func TestRelayEndsWithoutReset(t *testing.T) {
	told := make(tally, 100)
	s := startStand(t, tcp, tcp, told, nil)
	s.far.fill(hello)
	last := strings.Repeat(long(0, 4000, large()[:4000]), 15)
	s.near.send(last + "\x08\x00")
	if got := s.far.receive(len(last)); got != last {
		t.Fatal("other bytes")
	}
	s.far.ends()
	if s.wait(t); !errors.Is(s.err, ErrProtocol) {
		t.Errorf("ended with %v", s.err)
	}
}

// A tally is a observer that passes on that there was a message.
type tally chan struct{}

func (c tally) Limits() (int64, bool) { return 1 << 20, true }
func (c tally) Message(Relayed)       { c <- struct{}{} }
func (c tally) HungUp()               {}
func (c tally) Passed()               {}

func TestRelayBroken(t *testing.T) {
	tests := []struct {
		name  string
		last  string
		end   func(*raw)
		heard string
		err   error
	}{
		{name: "reset in a message", last: hello + large()[:1000], end: (*raw).reset, heard: hello + large()[:1000], err: ErrPeerGone},
		{name: "hung up in a message", last: hello + large()[:1000], end: (*raw).hangUp, heard: hello + large()[:1000], err: io.ErrUnexpectedEOF},
		{name: "hung up between frames", last: hello[:2], end: (*raw).hangUp, heard: hello[:2], err: ErrPeerGone},
		{name: "hung up in a header", last: large()[:5], end: (*raw).hangUp, heard: large()[:5], err: ErrPeerGone},
		{name: "no frame", last: hello + "\x08\x00", end: func(*raw) {}, heard: hello, err: ErrProtocol},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			stands(t, func(t *testing.T, start func(_, _ Observer) *stand) {
				for _, back := range []bool{false, true} {
					near, far := &departure{}, &departure{}
					s := start(near, far)
					says, hears, blamed, name := s.near, s.far, s.a, "DEALER 0100"
					if back {
						says, hears, blamed, name = s.far, s.near, s.b, "ROUTER"
						near, far = far, near
					}
					says.send(tt.last)
					require.Equal(t, hears.receive(len(tt.heard)), tt.heard, "heard")
					tt.end(says)
					hears.ends()
					s.wait(t)
					if !errors.Is(s.err, tt.err) || s.first != blamed || !strings.Contains(s.err.Error(), "relay from "+name) {
						t.Errorf("ended with %v, first %v, want %v naming %s", s.err, s.first, tt.err, name)
					}
					if want := tt.err != ErrProtocol; (near.times.Load() == 1) != want || far.times.Load() != 0 {
						t.Errorf("who broke off hung up %d times, the other %d", near.times.Load(), far.times.Load())
					}
				}
			})
		})
	}
}

func TestRelayEndsWithContext(t *testing.T) {
	defer func(d time.Duration) { finishTime = d }(finishTime)
	finishTime = time.Minute // on a busy machine
	stands(t, func(t *testing.T, start func(_, _ Observer) *stand) {
		t.Run("idle", func(t *testing.T) {
			d := &departure{}
			s := start(d, d)
			s.near.send(hello)
			s.far.receive(len(hello))
			s.stop()
			s.near.ends()
			s.far.ends()
			if s.wait(t); s.err != nil || s.first != nil || d.times.Load() != 0 {
				t.Errorf("ended with %v, first %v", s.err, s.first)
			}
		})
		for name, w := range map[string]Observer{"in a message": nil, "in a observed message": newQueue(patient(t), 1<<30)} {
			t.Run(name, func(t *testing.T) {
				s := start(w, nil)
				s.near.send(large()[:1000])
				s.far.receive(1000)
				s.stop()
				// Nobody hears of the end before the message is whole: libzmq would hang up.
				s.near.silence(3 * drainTime)
				s.far.silence(3 * drainTime)
				go func() { _, _ = io.WriteString(s.near, large()[1000:]+hello) }()
				got, err := io.ReadAll(s.far)
				if err != nil || string(got) != large()[1000:] {
					t.Errorf("%d bytes arrived, %v, want the %d of the message that had begun and no more", len(got), err, len(large())-1000)
				}
				if s.wait(t); s.err != nil || s.first != nil {
					t.Errorf("ended with %v, first %v", s.err, s.first)
				}
			})
		}
		t.Run("busy", func(t *testing.T) {
			s := start(newQueue(patient(t), 1<<30), nil)
			go func() {
				for batch := strings.Repeat(hello, 1000); ; {
					if _, err := io.WriteString(s.near, batch); err != nil {
						return
					}
				}
			}()
			s.far.receive(1 << 20)
			s.stop()
			got, err := io.ReadAll(s.far)
			require.NoError(t, err)
			got = got[(len(hello)-(1<<20)%len(hello))%len(hello):]
			require.True(t, len(got)%len(hello) == 0 && bytes.Equal(got, bytes.Repeat([]byte(hello), len(got)/len(hello))), "%d bytes arrived after the end, want whole messages", len(got))
			if s.wait(t); s.err != nil || s.first != nil {
				t.Errorf("ended with %v, first %v", s.err, s.first)
			}
		})
	})
}
