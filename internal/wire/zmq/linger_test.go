package zmq

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// Everything written before Close arrives, flushed or not, although the peer had
// sent what nobody received: a plain close would reset the connection.
func TestLingerDeliversEverything(t *testing.T) {
	body := strings.Repeat("b", 8<<20)
	c, r := rawPeer(t, Dealer, Options{Linger: patience}, "Socket-Type", "ROUTER")
	r.send(short(0, "unread"))
	closed := make(chan error, 1)
	go func() {
		if err := c.Send([]byte(body)); err != nil {
			t.Error(err)
		}
		if err := c.Write([]byte("last")); err != nil {
			t.Error(err)
		}
		closed <- c.Close()
	}()
	r.receive(longHeader)
	if got := r.receive(len(body)); got != body {
		t.Error("the body is not what was sent")
	}
	if got := r.receive(6); got != short(0, "last") {
		t.Errorf("heard %q", got)
	}
	r.send(short(0, "still unread"))
	if _, err := r.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("after the last message: %v, want EOF", err)
	}
	select {
	case err := <-closed:
		t.Fatalf("close returned (%v) before the peer hung up", err)
	default:
	}
	r.Close()
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

func TestLingerEnds(t *testing.T) {
	tests := []struct {
		name  string
		bytes int
		hears bool
	}{
		{name: "peer reads nothing", bytes: 64 << 20},
		{name: "peer does not hang up", bytes: 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, _ := rawPeer(t, Push, Options{Linger: 20 * time.Millisecond}, "Socket-Type", "PULL")
			go func() { _ = c.Send(make([]byte, tt.bytes)) }()
			require.ErrorIs(t, c.Close(), os.ErrDeadlineExceeded, "within 20ms")
		})
	}
}

// Nobody waits for a peer that is not there.
func TestLingerWithoutPeer(t *testing.T) {
	c, r := rawPeer(t, Dealer, Options{Linger: time.Hour}, "Socket-Type", "ROUTER")
	r.Close()
	if _, err := c.Recv(); !errors.Is(err, ErrPeerGone) {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// Two of ours that close at once let each other go.
func TestLingerOnBothSides(t *testing.T) {
	l := listen(t, "tcp://127.0.0.1:0", Router, Options{Linger: time.Hour})
	c := dial(t, l.Endpoint(), Dealer, Options{Linger: time.Hour})
	expect(t, l, Joined)
	closed := make(chan error, 1)
	go func() { closed <- l.Close() }()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// As a libzmq peer sees it: the last message before Close arrives.
func TestLingerTowardsLibzmq(t *testing.T) {
	transports(t, func(t *testing.T, endpoint string) {
		py := startPyzmq(t)
		c := dial(t, py.bind("router", Router, endpoint), Dealer, Options{Identity: []byte{0, 0}, Linger: patience})
		require.NoError(t, c.Write([]byte("READY")))
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if got := py.recv("router"); string(got[1]) != "READY" {
			t.Errorf("libzmq received %q", got)
		}
	})
}
