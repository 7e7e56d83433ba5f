package zmq

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// tapped is a link that a tap stands in: whoever connects to the gate is led on to
// another endpoint, as himself.
type tapped struct {
	Listen string // endpoint of the gate
	Type   Type   // of the gate
	To     string // endpoint that is dialed
	Limit  int64  // of the observes of a process

	observer func() (fromNear, fromFar Observer)
	// resets are no failure: of peers that send of themselves, and are closed with that unread.
	resets bool
}

// serve relays whoever connects to gate until it is closed or ctx ends.
func (l tapped) serve(ctx context.Context, gate *Gate, failed func(error)) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		near, err := gate.Accept(ctx)
		if err != nil {
			return
		}
		wg.Go(func() {
			defer near.Close()
			far, err := DialAs(ctx, l.To, near.Peer(), Options{})
			if err != nil {
				failed(err)
				return
			}
			defer far.Close()
			fromNear, fromFar := l.observer()
			if _, err := Relay(ctx, near, far, fromNear, fromFar); err != nil {
				failed(err)
			}
		})
	}
}

// start opens the gate and serves it until the test ends; errors of relays fail the
// test, unless it is over.
func (l tapped) start(t testing.TB) (endpoint string) {
	t.Helper()
	gate, err := OpenGate(l.Listen, l.Type, Options{}, nil)
	require.NoError(t, err)
	if l.observer == nil {
		l.observer = func() (Observer, Observer) { return nil, nil }
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.serve(ctx, gate, func(err error) {
			if ctx.Err() == nil && !(l.resets && errors.Is(err, syscall.ECONNRESET)) {
				t.Error(err)
			}
		})
	}()
	t.Cleanup(func() { cancel(); gate.Close(); <-done })
	return gate.Endpoint()
}

// tapProcess is set in the environment of a process of this test binary that is a
// tap and nothing else.
const tapProcess = "ZMQ_TEST_TAP"

// tapMain serves links until in ends: one a line of in, its endpoint a line of out.
func tapMain(in io.Reader, out io.Writer) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for dec := json.NewDecoder(in); ; {
		var l tapped
		if err := dec.Decode(&l); err != nil {
			return
		}
		l.observer = func() (Observer, Observer) { return newQueue(ctx, l.Limit), newQueue(ctx, l.Limit) }
		gate, err := OpenGate(l.Listen, l.Type, Options{}, nil)
		if err != nil {
			_ = json.NewEncoder(out).Encode(answer{Error: err.Error()})
			return
		}
		wg.Go(func() {
			defer gate.Close()
			l.serve(ctx, gate, func(err error) {
				if !errors.Is(err, ErrPeerGone) && !errors.Is(err, net.ErrClosed) && ctx.Err() == nil {
					_ = json.NewEncoder(os.Stderr).Encode(answer{Error: err.Error()})
				}
			})
		})
		_ = json.NewEncoder(out).Encode(answer{Endpoint: gate.Endpoint()})
	}
}

// startTap runs tapMain in a process of its own.
func startTap(t testing.TB) (pid int, link func(tapped) (endpoint string)) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), tapProcess+"=1")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	cmd.Stdout = w
	testenv.Process(t, "tap", cmd)
	w.Close()
	t.Cleanup(func() { r.Close() })
	dec := json.NewDecoder(r)
	return cmd.Process.Pid, func(l tapped) string {
		t.Helper()
		var a answer
		line := map[string]any{"Listen": l.Listen, "Type": l.Type, "To": l.To, "Limit": l.Limit}
		if err := errors.Join(json.NewEncoder(in).Encode(line), dec.Decode(&a)); err != nil || a.Error != "" {
			t.Fatalf("tap: %v %s", err, a.Error)
		}
		return a.Endpoint
	}
}

// A queue is a observer as a recorder is one: what passes is copied into a buffer
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
