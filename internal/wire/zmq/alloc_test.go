package zmq

import (
	"bytes"
	"io"
	"math"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// repeating is a stream without end.
type repeating struct {
	period []byte
	at     int
}

func (r *repeating) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		k := copy(p[n:], r.period[r.at:])
		n, r.at = n+k, (r.at+k)%len(r.period)
	}
	return n, nil
}

// A received message costs its bytes, which small ones share, and its index an eighth of an allocation.
func TestReceivingAllocates(t *testing.T) {
	tests := []struct {
		name   string
		frames Message
		want   float64
	}{
		{name: "one small frame", frames: Message{make([]byte, 100)}, want: 1.0 / indexChunk},
		{name: "one frame of 5 kB", frames: Message{make([]byte, 5000)}, want: 1 + 1.0/indexChunk},
		{name: "type and payload", frames: Message{{0}, make([]byte, 1000)}, want: 1 + 1.0/indexChunk},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			fr := newFrameReader(&repeating{period: appendMessage(nil, tt.frames)}, testMax)
			// The least of some runs: connections of earlier tests may end meanwhile, and allocate too.
			got := math.Inf(1)
			for range 5 {
				got = min(got, testing.AllocsPerRun(200, func() {
					for range indexChunk {
						if _, _, err := fr.next(); err != nil {
							t.Fatal(err)
						}
					}
				})/indexChunk)
			}
			if got > tt.want {
				t.Errorf("%v allocations a message, want %v", got, tt.want)
			}
		})
	}
}

func TestSendingAllocatesNothing(t *testing.T) {
	l := listen(t, tcp, Router, Options{})
	id, kind, body := []byte{0, 0}, []byte{1}, bytes.Repeat([]byte("x"), 1000)
	r := rawDial(t, l.Endpoint())
	r.greet("Socket-Type", "DEALER", "Identity", string(id))
	c := expect(t, l, Joined).Conn
	go func() { _, _ = io.Copy(io.Discard, r.Conn) }()

	tests := []struct {
		name string
		send func() error // calls directly: through a func value the frames would escape
	}{
		{name: "send", send: func() error { return c.Send(kind, body) }},
		{name: "write", send: func() error { return c.Write(kind, body) }},
		{name: "listener's send", send: func() error { return l.Send(id, kind, body) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := testing.AllocsPerRun(1000, func() {
				require.NoError(t, tt.send())
			})
			if got != 0 {
				t.Errorf("%v allocations a message, want none", got)
			}
		})
	}
}
