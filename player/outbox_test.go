package player

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/zmq"
)

// pipe is an output socket, and the end of it that a client listens on.
func pipe(t testing.TB) (*zmq.Conn, *zmq.Listener) {
	t.Helper()
	l, err := zmq.Listen("ipc://"+filepath.Join(t.TempDir(), "out"), zmq.Pull, zmq.Options{})
	must(t, err)
	t.Cleanup(func() { l.Close() })
	conn, err := zmq.Dial(context.Background(), l.Endpoint(), zmq.Push, zmq.Options{})
	must(t, err)
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
	require.True(t, drained.Load() != 0, "nobody was told that there is room again")
}

func nextMessage(t *testing.T, l *zmq.Listener) (frames []string) {
	t.Helper()
	for {
		d, err := l.Recv(t.Context())
		must(t, err)
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

// unreadPipe is an output socket whose peer reads nothing, and the bare connection at the end.
func unreadPipe(t *testing.T) (*zmq.Conn, net.Conn) {
	t.Helper()
	const (
		greeting = "\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x01NULL" // filled up with zeros
		ready    = "\x04\x1a\x05READY\x0bSocket-Type\x00\x00\x00\x04PULL"
	)
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "out"))
	must(t, err)
	t.Cleanup(func() { l.Close() })
	peers := make(chan net.Conn, 1)
	go func() {
		peer, err := l.Accept()
		if err == nil {
			_, err = peer.Write([]byte(greeting + strings.Repeat("\x00", 64-len(greeting)) + ready))
		}
		if err == nil {
			_, err = io.ReadFull(peer, make([]byte, 64+len(ready))) // its READY names a PUSH
		}
		if err != nil {
			t.Error(err)
		}
		peers <- peer
	}()
	conn, err := zmq.Dial(t.Context(), "ipc://"+l.Addr().String(), zmq.Push, zmq.Options{})
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	peer := <-peers
	t.Cleanup(func() { peer.Close() })
	return conn, peer
}

// What the kernel does not take at once is written from there on, and all that is put
// meanwhile behind it: each byte once, in order.
func TestAnOutboxWritesTheRestInOrder(t *testing.T) {
	long := []byte(strings.Repeat("much more than the kernel takes at once ", 1<<18))
	for _, tt := range []struct {
		name   string
		finish func(t *testing.T, conn *zmq.Conn, b *outbox)
	}{
		{"by the writer", func(t *testing.T, _ *zmq.Conn, b *outbox) {
			b.put([][]byte{[]byte("late")})
			b.flush()
			b.close()
			if err := b.write(); err != nil {
				t.Error(err)
			}
		}},
		{"while the writer is in between", func(t *testing.T, conn *zmq.Conn, b *outbox) {
			taken, _ := b.take(nil)
			for i, c := range taken {
				if err := conn.WriteWire(c.bytes[c.sent:]); err != nil {
					t.Error(err)
				}
				if i == 0 { // the kernel has room, and not all is written
					b.put([][]byte{[]byte("late")})
					b.flush()
				}
			}
			b.close()
			if err := b.write(); err != nil {
				t.Error(err)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			conn, peer := unreadPipe(t)
			b := newOutbox(conn, 1<<30, func() {})
			var want []byte
			for _, m := range [][]byte{long, bytes.Repeat([]byte("second"), chunkSize), []byte("late")} {
				want = zmq.AppendMessage(want, [][]byte{m})
			}
			b.put([][]byte{long})
			b.flush()
			if len(b.kept) != 1 || b.kept[0].sent == 0 {
				t.Fatalf("%d chunks are kept: the kernel has taken nothing, or all of %d bytes", len(b.kept), len(long))
			}
			b.put([][]byte{bytes.Repeat([]byte("second"), chunkSize)})
			heard := make(chan []byte)
			go func() {
				all, _ := io.ReadAll(peer) // ends with the connection
				heard <- all
			}()
			tt.finish(t, conn, b)
			conn.Close()
			if got := <-heard; !bytes.Equal(got, want) {
				t.Errorf("%d bytes came, want the %d of three messages in order", len(got), len(want))
			}
		})
	}
}

// More than the limit is not kept: who puts waits until some of it is written.
func TestAnOutboxMakesWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newOutbox(nil, 1000, func() {})
		put := 0
		go func() {
			for range 3 {
				b.put([][]byte{make([]byte, 1001)})
				put++
			}
		}()
		for want := 1; want <= 3; want++ {
			synctest.Wait()
			if put != want {
				t.Fatalf("%d messages were put, want %d", put, want)
			}
			taken, _ := b.take(nil)
			for _, c := range taken {
				b.mu.Lock()
				b.wrote(c)
				b.mu.Unlock()
			}
		}
	})
}
