package player

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/zmq"
)

// pipe is an output socket, and the end of it that a client listens on.
func pipe(t testing.TB) (*zmq.Conn, *zmq.Listener) {
	t.Helper()
	l, err := zmq.Listen("ipc://"+filepath.Join(t.TempDir(), "out"), zmq.Pull, zmq.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	conn, err := zmq.Dial(context.Background(), l.Endpoint(), zmq.Push, zmq.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn, l
}

// What was put comes out whole and in order, in as many frames, also what is longer
// than a chunk, and nothing is kept in the end.
func TestAnOutboxKeepsMessages(t *testing.T) {
	conn, l := pipe(t)
	var drained atomic.Int64
	b := newOutbox(conn, 300<<10, func() { drained.Add(1) })
	long := strings.Repeat("x", 2*chunkSize)
	messages := [][]string{{"a"}, {"", "b", ""}, {long}, {"c", long, "d"}}
	for i := range 3000 {
		messages = append(messages, []string{fmt.Sprint(i), strings.Repeat("y", 100)})
	}
	written := make(chan error, 1)
	go func() {
		for i, m := range messages {
			if i == 4 { // the long ones make it full
				go func() { written <- b.write() }()
			}
			var frames [][]byte
			for _, text := range m {
				frames = append(frames, []byte(text))
			}
			b.put(frames)
			for _, frame := range frames {
				clear(frame) // it is the caller's again
			}
			if i%100 == 0 {
				b.flush()
			}
		}
		b.close()
	}()
	for i, want := range messages {
		got := nextMessage(t, l)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("message %d (-want +got):\n%s", i, diff)
		}
	}
	if err := <-written; err != nil || b.size != 0 || b.full() {
		t.Errorf("%v, %d bytes are kept, full: %v; want nothing", err, b.size, b.full())
	}
	if drained.Load() == 0 {
		t.Error("nobody was told that there is room again")
	}
}

func nextMessage(t *testing.T, l *zmq.Listener) (frames []string) {
	t.Helper()
	for {
		d, err := l.Recv(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if d.Kind == zmq.Received {
			for _, frame := range d.Message {
				frames = append(frames, string(frame))
			}
			return frames
		}
	}
}

// Who waits to put goes on when the peer is gone, and nothing is kept for it.
func TestAnOutboxWhosePeerIsGone(t *testing.T) {
	conn, l := pipe(t)
	b := newOutbox(conn, 1000, func() {})
	written := make(chan error, 1)
	go func() { written <- b.write() }()
	put := make(chan struct{})
	go func() {
		defer close(put)
		for range 10_000 {
			b.put([][]byte{make([]byte, 1000)})
		}
		b.flush()
	}()
	l.Close()
	<-put
	if err := <-written; err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("write: %v, want why the peer takes no more", err)
	}
	if b.full() || len(b.kept) > 0 {
		t.Errorf("%d chunks are kept, full: %v", len(b.kept), b.full())
	}
}

// BenchmarkOutbox is a message to a client that reads: written at once, and by way of
// the outbox. What a step of 64 requests says has some 3 KB.
func BenchmarkOutbox(b *testing.B) {
	for _, size := range []int{100, 3000} {
		message := [][]byte{slices.Repeat([]byte{7}, size)}
		for _, kind := range []string{"direct", "outbox"} {
			b.Run(fmt.Sprintf("%s/%d", kind, size), func(b *testing.B) {
				conn, l := pipe(b)
				go drain(l)
				put := func(m [][]byte) { _ = conn.Write(m...) }
				flush := func() { _ = conn.Flush() }
				if kind == "outbox" {
					out := newOutbox(conn, 1<<20, func() {}) // it must wait for the client, too
					ended := make(chan error, 1)
					go func() { ended <- out.write() }()
					b.Cleanup(func() { out.close(); <-ended })
					put, flush = out.put, out.flush
				}
				b.ReportAllocs()
				b.SetBytes(int64(size))
				for i := 0; b.Loop(); i++ {
					put(message)
					if i%flushEvery == 0 {
						flush()
					}
				}
			})
		}
	}
}

// drain reads until the socket is closed.
func drain(l *zmq.Listener) {
	for {
		if _, err := l.Recv(context.Background()); err != nil {
			return
		}
	}
}
