package zmq

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestMain(m *testing.M) {
	if os.Getenv(tapProcess) != "" {
		tapMain(os.Stdin, os.Stdout)
		return
	}
	goleak.VerifyTestMain(m)
}

// patience ends tests that hang; nothing that works comes near it.
const patience = 60 * time.Second

func patient(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// pyzmq is a process of testdata/peer.py.
type pyzmq struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Scanner
}

// command is one line for peer.py; answer is what it says.
type (
	command map[string]any
	answer  struct {
		Error    string   `json:"error"`
		Endpoint string   `json:"endpoint"`
		Frames   []string `json:"frames"`
		Timeout  bool     `json:"timeout"`
		Digests  []string `json:"digests"`
		Wrong    int      `json:"wrong"`
		Seconds  float64  `json:"seconds"`
		// Nanoseconds are sorted.
		Nanoseconds []float64 `json:"nanoseconds"`
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
	return &pyzmq{t: t, cmd: cmd, in: in, out: out}
}

// within is the same process, failing the subtest t.
func (p *pyzmq) within(t testing.TB) *pyzmq {
	q := *p
	q.t = t
	return &q
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
	line, err := json.Marshal(c)
	require.NoError(p.t, err)
	if _, err := p.in.Write(append(line, '\n')); err != nil {
		p.t.Fatalf("pyzmq peer: %v", err)
	}
}

func (p *pyzmq) finish() answer {
	p.t.Helper()
	if !p.out.Scan() {
		p.t.Fatalf("pyzmq peer ended: %v", p.out.Err())
	}
	var a answer
	if err := json.Unmarshal(p.out.Bytes(), &a); err != nil {
		p.t.Fatalf("pyzmq peer said %q: %v", p.out.Text(), err)
	}
	if a.Error != "" {
		p.t.Fatalf("pyzmq peer: %s", a.Error)
	}
	return a
}

// bind opens a socket and returns its endpoint.
func (p *pyzmq) bind(name string, typ Type, endpoint string) string {
	p.t.Helper()
	return p.do(command{"op": "open", "name": name, "type": typ, "bind": endpoint}).Endpoint
}

func (p *pyzmq) connect(name string, typ Type, endpoint string, identity []byte) {
	p.t.Helper()
	c := command{"op": "open", "name": name, "type": typ, "connect": endpoint}
	if identity != nil {
		c["identity"] = hex.EncodeToString(identity)
	}
	p.do(c)
}

func (p *pyzmq) send(name string, frames ...[]byte) {
	p.t.Helper()
	p.do(command{"op": "send", "name": name, "frames": toHex(frames)})
}

func (p *pyzmq) recv(name string) [][]byte {
	p.t.Helper()
	a := p.do(command{"op": "recv", "name": name, "timeout": patience.Milliseconds()})
	if a.Timeout {
		p.t.Fatalf("pyzmq socket %s received nothing", name)
	}
	frames := make([][]byte, len(a.Frames))
	for i, f := range a.Frames {
		var err error
		frames[i], err = hex.DecodeString(f)
		require.NoError(p.t, err)
	}
	return frames
}

func (p *pyzmq) kill() {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Kill())
}

func toHex(frames [][]byte) []string {
	texts := make([]string, len(frames))
	for i, f := range frames {
		texts[i] = hex.EncodeToString(f)
	}
	return texts
}

// transports are the endpoints to listen on that every interoperability test
// runs over.
func transports(t *testing.T, test func(t *testing.T, endpoint string)) {
	t.Helper()
	t.Run("tcp", func(t *testing.T) { test(t, "tcp://127.0.0.1:0") })
	t.Run("ipc", func(t *testing.T) { test(t, ipc(t)) })
}

// ipc is an endpoint in a directory of its own. t.TempDir is too long for it.
func ipc(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "zmq")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return "ipc://" + filepath.Join(dir, "socket")
}

func listen(t testing.TB, endpoint string, typ Type, opt Options) *Listener {
	t.Helper()
	l, err := Listen(endpoint, typ, opt)
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

func dial(t testing.TB, endpoint string, typ Type, opt Options) *Conn {
	t.Helper()
	c, err := Dial(patient(t), endpoint, typ, opt)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
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
