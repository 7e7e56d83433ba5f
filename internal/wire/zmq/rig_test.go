package zmq

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience ends tests that hang; nothing that works comes near it.
const patience = 60 * time.Second

func patient(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// tcp is a free endpoint for a socket that listens.
const tcp = "tcp://127.0.0.1:0"

// ipc is an endpoint in a directory of its own. t.TempDir is too long for it.
func ipc(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "zmq")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return "ipc://" + filepath.Join(dir, "socket")
}

// transports runs a test over tcp and ipc; free returns another endpoint to listen on each time.
func transports(t *testing.T, test func(t *testing.T, free func() string)) {
	t.Helper()
	t.Run("tcp", func(t *testing.T) { test(t, func() string { return tcp }) })
	t.Run("ipc", func(t *testing.T) { test(t, func() string { return ipc(t) }) })
}

func listen(t testing.TB, endpoint string, typ Type, opt Options) *Listener {
	t.Helper()
	l, err := Listen(endpoint, typ, opt)
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

func openGate(t testing.TB, endpoint string, typ Type, opt Options, refused func(error)) *Gate {
	t.Helper()
	gate, err := OpenGate(endpoint, typ, opt, refused)
	require.NoError(t, err)
	t.Cleanup(func() { gate.Close() })
	return gate
}

func accept(t testing.TB, gate *Gate) *Conn {
	t.Helper()
	c, err := gate.Accept(patient(t))
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func dial(t testing.TB, endpoint string, typ Type, opt Options) *Conn {
	t.Helper()
	return dialLater(t, endpoint, typ, opt)()
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

// expect is the next event, which must be of the given kind.
func expect(t testing.TB, l *Listener, kind Kind) Delivery {
	t.Helper()
	d, err := l.Recv(patient(t))
	require.NoError(t, err)
	if d.Kind != kind {
		t.Fatalf("event is %s of %s (%v), want %s", d.Kind, d.Peer, d.Err, kind)
	}
	return d
}

// receive is Recv with the test's patience.
func receive(t testing.TB, c *Conn) Message {
	t.Helper()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(patience)))
	m, err := c.Recv()
	require.NoError(t, err)
	return m
}

// receives fails the test unless the next message of c has the given frames.
func receives(t testing.TB, c *Conn, want ...string) {
	t.Helper()
	require.NoDiff(t, diff(frames(want...), receive(t, c)), "received (-want +got)")
}

func frames(texts ...string) Message {
	var m Message
	for _, f := range texts {
		m = append(m, []byte(f))
	}
	return m
}

// held is how many events wait in b.
func held(b *inbox) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.events)
}

// diff is cmp.Diff, which takes seconds for a megabyte, of what is not the same.
func diff[T any](want, got T) string {
	return cmp.Diff(want, got, cmp.Comparer(bytes.Equal))
}

// A raw peer is one whose every byte the test writes.
type raw struct {
	net.Conn
	t testing.TB
}

func rawDial(t testing.TB, endpoint string) *raw {
	t.Helper()
	addr, err := parseEndpoint(endpoint)
	require.NoError(t, err)
	nc, err := net.Dial(addr.network, addr.addr)
	require.NoError(t, err)
	return newRaw(t, nc)
}

func newRaw(t testing.TB, nc net.Conn) *raw {
	t.Cleanup(func() { nc.Close() })
	require.NoError(t, nc.SetDeadline(time.Now().Add(patience)))
	return &raw{Conn: nc, t: t}
}

// rawListen is a listener whose peers are raw. The endpoint is for Dial.
func rawListen(t testing.TB, free string) (endpoint string, accept func() *raw) {
	t.Helper()
	addr, err := parseEndpoint(free)
	require.NoError(t, err)
	ln, err := addr.forListening().listen()
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
func rawPeer(t testing.TB, typ Type, opt Options, peer string) (*Conn, *raw) {
	t.Helper()
	endpoint, accept := rawListen(t, tcp)
	dialed := dialLater(t, endpoint, typ, opt)
	r := accept()
	r.greet("Socket-Type", peer)
	return dialed(), r
}

func (r *raw) send(bytes string) {
	r.t.Helper()
	if _, err := io.WriteString(r, bytes); err != nil {
		r.t.Fatal(err)
	}
}

// receive reads exactly n bytes.
func (r *raw) receive(n int) string {
	r.t.Helper()
	b := make([]byte, n)
	if got, err := io.ReadFull(r, b); err != nil {
		r.t.Fatalf("after %d bytes, %.200x: %v", got, b[:got], err)
	}
	return string(b)
}

// receives fails the test unless the next bytes are those of want.
func (r *raw) receives(want string) {
	r.t.Helper()
	if got := r.receive(len(want)); got != want {
		r.t.Errorf("received %.200q, want %.200q", got, want)
	}
}

// greet does a whole handshake and returns what the other side announced.
func (r *raw) greet(metadata ...string) string {
	r.t.Helper()
	r.send(greeting + ready(metadata...))
	r.receive(len(greeting))
	head := r.receive(shortHeader)
	body := r.receive(int(head[1]))
	if head[0] != flagCommand || !strings.HasPrefix(body, "\x05READY") {
		r.t.Fatalf("received %x %q, want READY", head, body)
	}
	return body
}

// ends fails the test unless the other side ends the connection.
func (r *raw) ends() {
	r.t.Helper()
	if _, err := io.Copy(io.Discard, r); err != nil && !hungUp(err) {
		r.t.Errorf("the peer sees %v, want the end of the connection", err)
	}
}

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

// A pyzmq is a process of testdata/peer.py, with sockets of libzmq by name.
type pyzmq struct {
	t   testing.TB
	in  io.Writer
	out *bufio.Scanner
}

// command is one line for peer.py, answer is its reply.
type (
	command map[string]any
	answer  struct {
		Error    string
		Endpoint string
		Frames   []string
		Digests  []string
		Wrong    int
		Seconds  float64
	}
)

func startPyzmq(t testing.TB) *pyzmq {
	t.Helper()
	cmd := exec.Command(testenv.Python(t), filepath.Join("testdata", "peer.py"))
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	// Not StdoutPipe: that one is closed under the reader when the process ends.
	r, w, err := os.Pipe()
	require.NoError(t, err)
	cmd.Stdout = w
	testenv.Process(t, "pyzmq peer", cmd)
	w.Close()
	t.Cleanup(func() { r.Close() })
	out := bufio.NewScanner(r)
	out.Buffer(nil, 16<<20)
	return &pyzmq{t: t, in: in, out: out}
}

// do sends a command and waits for the answer.
func (p *pyzmq) do(c command) answer {
	p.t.Helper()
	p.start(c)
	return p.finish()
}

// start sends a command; finish must be called for its answer.
func (p *pyzmq) start(c command) {
	p.t.Helper()
	require.NoError(p.t, json.NewEncoder(p.in).Encode(c))
}

func (p *pyzmq) finish() answer {
	p.t.Helper()
	var a answer
	if !p.out.Scan() {
		p.t.Fatalf("pyzmq peer ended: %v", p.out.Err())
	}
	if err := json.Unmarshal(p.out.Bytes(), &a); err != nil || a.Error != "" {
		p.t.Fatalf("pyzmq peer: %q, %v", p.out.Text(), err)
	}
	return a
}

// bind opens a socket and returns its endpoint. options are those of libzmq, in pairs of name and number.
func (p *pyzmq) bind(name string, typ Type, endpoint string, options ...any) string {
	p.t.Helper()
	endpoint = strings.Replace(endpoint, ":0", ":*", 1)
	return p.do(command{"op": "open", "name": name, "type": typ, "bind": endpoint, "options": pairs(options)}).Endpoint
}

func (p *pyzmq) connect(name string, typ Type, endpoint string, identity []byte, options ...any) {
	p.t.Helper()
	c := command{"op": "open", "name": name, "type": typ, "connect": endpoint, "options": pairs(options)}
	if identity != nil {
		c["identity"] = hex.EncodeToString(identity)
	}
	p.do(c)
}

func pairs(list []any) map[string]any {
	m := map[string]any{}
	for i := 0; i < len(list); i += 2 {
		m[list[i].(string)] = list[i+1]
	}
	return m
}

func (p *pyzmq) send(name string, m Message) {
	p.t.Helper()
	texts := make([]string, len(m))
	for i, f := range m {
		texts[i] = hex.EncodeToString(f)
	}
	p.do(command{"op": "send", "name": name, "frames": texts})
}

func (p *pyzmq) recv(name string) Message {
	p.t.Helper()
	var m Message
	for _, text := range p.do(command{"op": "recv", "name": name, "timeout": patience.Milliseconds()}).Frames {
		frame, err := hex.DecodeString(text)
		require.NoError(p.t, err)
		m = append(m, frame)
	}
	return m
}

// startRelays opens a gate and relays each peer that connects to it to another endpoint, as itself, until the test ends.
// Errors of relays fail the test, unless it is over.
func startRelays(t testing.TB, endpoint string, typ Type, to string, observer func() Observer) string {
	t.Helper()
	gate := openGate(t, endpoint, typ, Options{}, nil)
	ctx, cancel := context.WithCancel(context.Background())
	relay := func(near *Conn) {
		defer near.Close()
		far, err := DialAs(ctx, to, near.Peer(), Options{})
		if err == nil {
			defer far.Close()
			_, err = Relay(ctx, near, far, observer(), observer())
		}
		if err != nil && ctx.Err() == nil {
			t.Error(err)
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			near, err := gate.Accept(ctx)
			if err != nil {
				return
			}
			wg.Go(func() { relay(near) })
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return gate.Endpoint()
}
