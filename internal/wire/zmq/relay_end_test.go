package zmq

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

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
			s.far.end()
			if near.times.Load() != 1 || far.times.Load() != 0 {
				t.Errorf("far knows of the end before the observer: near hung up %d times, far %d", near.times.Load(), far.times.Load())
			}
			go func() { s.far.send(last + hello); s.far.hangUp() }()
			if got := s.near.receive(len(last + hello)); got != last+hello {
				t.Fatal("other bytes")
			}
			s.near.end()
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
		s.far.end()
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
	s := startStand(t, "tcp://127.0.0.1:0", "tcp://127.0.0.1:0", told, nil)
	s.far.fill(hello)
	last := strings.Repeat(long(0, 4000, large()[:4000]), 15)
	s.near.send(last + "\x08\x00")
	if got := s.far.receive(len(last)); got != last {
		t.Fatal("other bytes")
	}
	s.far.end()
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
					if got := hears.receive(len(tt.heard)); got != tt.heard {
						t.Errorf("heard %.100q", got)
					}
					tt.end(says)
					hears.end()
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
	stands(t, func(t *testing.T, start func(_, _ Observer) *stand) {
		t.Run("idle", func(t *testing.T) {
			d := &departure{}
			s := start(d, d)
			s.near.send(hello)
			s.far.receive(len(hello))
			s.stop()
			s.near.end()
			s.far.end()
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
			if len(got)%len(hello) != 0 || !bytes.Equal(got, bytes.Repeat([]byte(hello), len(got)/len(hello))) {
				t.Errorf("%d bytes arrived after the end, want whole messages", len(got))
			}
			if s.wait(t); s.err != nil || s.first != nil {
				t.Errorf("ended with %v, first %v", s.err, s.first)
			}
		})
	})
}
