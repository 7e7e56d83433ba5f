package zmq

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// The greeting of libzmq 4.3.5, byte by byte: signature, version 3.1, mechanism,
// as-server 0, filler.
var greeting = "\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f" + "\x03\x01" +
	"NULL" + strings.Repeat("\x00", 16) + "\x00" + strings.Repeat("\x00", 31)

// ready is a READY command with the given metadata, name and value in turn.
func ready(metadata ...string) string {
	body := "\x05READY"
	for i := 0; i < len(metadata); i += 2 {
		name, value := metadata[i], metadata[i+1]
		body += string(rune(len(name))) + name + string(binary.BigEndian.AppendUint32(nil, uint32(len(value)))) + value
	}
	return short(flagCommand, body)
}

// short and long are frames.
func short(flags byte, body string) string {
	return string([]byte{flags, byte(len(body))}) + body
}

func long(flags byte, claimed uint64, body string) string {
	return string(binary.BigEndian.AppendUint64([]byte{flags | flagLong}, claimed)) + body
}

// raw is a peer whose every byte the test writes.
type raw struct {
	net.Conn
	t testing.TB
}

func rawDial(t testing.TB, l *Listener) *raw {
	t.Helper()
	nc, err := net.Dial(l.ln.Addr().Network(), l.ln.Addr().String())
	require.NoError(t, err)
	return newRaw(t, nc)
}

func newRaw(t testing.TB, nc net.Conn) *raw {
	t.Cleanup(func() { nc.Close() })
	require.NoError(t, nc.SetDeadline(time.Now().Add(patience)))
	return &raw{Conn: nc, t: t}
}

func (r *raw) send(bytes string) {
	r.t.Helper()
	if _, err := io.WriteString(r, bytes); err != nil {
		r.t.Fatal(err)
	}
}

// hear reads exactly n bytes.
func (r *raw) receive(n int) string {
	r.t.Helper()
	b := make([]byte, n)
	if got, err := io.ReadFull(r, b); err != nil {
		r.t.Fatalf("after %d bytes, %.200x: %v", got, b[:got], err)
	}
	return string(b)
}

// greet does a whole handshake.
func (r *raw) greet(metadata ...string) {
	r.t.Helper()
	r.send(greeting + ready(metadata...))
	r.receive(len(greeting))
	head := r.receive(shortHeader)
	if body := r.receive(int(head[1])); !strings.HasPrefix(body, "\x05READY") {
		r.t.Fatalf("heard %q, want READY", body)
	}
}

// rawListen is a listener whose peers are raw. The endpoint is for Dial.
func rawListen(t testing.TB) (endpoint string, accept func() *raw) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	return endpointOf(ln.Addr()), func() *raw {
		t.Helper()
		nc, err := ln.Accept()
		require.NoError(t, err)
		return newRaw(t, nc)
	}
}

// rawPeer is a dialed connection and the raw peer it leads to.
func rawPeer(t testing.TB, typ Type, opt Options, metadata ...string) (*Conn, *raw) {
	t.Helper()
	endpoint, accept := rawListen(t)
	dialed := dialLater(t, endpoint, typ, opt)
	r := accept()
	r.greet(metadata...)
	return dialed(), r
}

// dialLater dials in the background; the returned function waits for it.
func dialLater(t testing.TB, endpoint string, typ Type, opt Options) func() *Conn {
	t.Helper()
	ctx, dialed, failed := patient(t), make(chan *Conn, 1), make(chan error, 1)
	go func() {
		c, err := Dial(ctx, endpoint, typ, opt)
		dialed <- c
		failed <- err
	}()
	return func() *Conn {
		t.Helper()
		c, err := <-dialed, <-failed
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		return c
	}
}

// relay passes one TCP connection on and shows what the server's side wrote to
// the client, or the client's to the server.
type relay struct {
	endpoint string
	seen     chan []byte
	buf      []byte
}

func startRelay(t testing.TB, to net.Addr) *relay {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &relay{endpoint: endpointOf(ln.Addr()), seen: make(chan []byte, 1024)}
	t.Cleanup(func() { ln.Close() })
	go func() {
		near, err := ln.Accept()
		if err != nil {
			return
		}
		defer near.Close()
		far, err := net.Dial(to.Network(), to.String())
		if err != nil {
			return
		}
		defer far.Close()
		t.Cleanup(func() { near.Close(); far.Close() })
		go r.pass(near, far)
		r.pass(far, near)
	}()
	return r
}

func (r *relay) pass(to, from net.Conn) {
	defer to.Close()
	for buf := make([]byte, 4096); ; {
		n, err := from.Read(buf)
		if n > 0 {
			r.seen <- bytes.Clone(buf[:n])
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// wait returns when text has passed once more, in either direction.
func (r *relay) wait(t testing.TB, text string) {
	t.Helper()
	deadline := time.After(patience)
	for {
		if i := bytes.Index(r.buf, []byte(text)); i >= 0 {
			r.buf = r.buf[i+len(text):]
			return
		}
		select {
		case b := <-r.seen:
			r.buf = append(r.buf, b...)
		case <-deadline:
			t.Fatalf("%q did not pass", text)
		}
	}
}

func tcpAddr(t testing.TB, endpoint string) net.Addr {
	t.Helper()
	addr, err := net.ResolveTCPAddr("tcp", strings.TrimPrefix(endpoint, "tcp://"))
	require.NoError(t, err)
	return addr
}
