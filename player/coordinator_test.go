package player

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/internal/wire/zmq"
)

// coordinated is a frontend with a data-parallel coordinator that a test plays.
type coordinated struct {
	*unixFrontend
	publish *zmq.Gate     // XPUB
	collect *zmq.Listener // PULL
	engine  *zmq.Conn     // to the engine, after join
}

func listenCoordinated(t *testing.T) *coordinated {
	t.Helper()
	c := &coordinated{unixFrontend: listenUnix(t, 1)}
	dir := filepath.Dir(strings.TrimPrefix(c.shake.Endpoint(), "ipc://"))
	var err error
	if c.publish, err = zmq.OpenGate("ipc://"+filepath.Join(dir, "publish"), zmq.XPub, zmq.Options{}, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.publish.Close() })
	if c.collect, err = zmq.Listen("ipc://"+filepath.Join(dir, "collect"), zmq.Pull, zmq.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.collect.Close() })
	in, out := c.publish.Endpoint(), c.collect.Endpoint()
	c.steps.Addresses.CoordinatorInput, c.steps.Addresses.CoordinatorOutput = &in, &out
	return c
}

// join waits for the engine's subscription, answers with READY, and finishes the
// handshake.
func (c *coordinated) join() protocol.ReadyResponse {
	c.t.Helper()
	joined := make(chan error, 1)
	go func() { joined <- c.subscription() }()
	registration := c.accept()
	must(c.t, <-joined)
	return registration
}

func (c *coordinated) subscription() (err error) {
	if c.engine, err = c.publish.Accept(c.ctx); err != nil {
		return err
	}
	c.t.Cleanup(func() { c.engine.Close() })
	m, err := c.engine.Recv()
	if err != nil || len(m) != 1 || string(m[0]) != "\x01" {
		return fmt.Errorf("the engine says %q, %v, want a subscription to everything", m, err)
	}
	return c.engine.Send([]byte("READY"))
}

func (c *coordinated) begin(frames ...[]byte) {
	c.t.Helper()
	must(c.t, c.engine.Send(frames...))
}

// heard returns the next message to the coordinator in short.
func (c *coordinated) heard() string {
	c.t.Helper()
	var o protocol.Outputs
	m := c.receive(c.collect).Message
	if err := c.codec.DecodeOutputs(m[0], &o); err != nil || len(m) != 1 || len(o.Outputs) != 0 {
		c.t.Fatalf("message of %d frames and %d outputs: %v", len(m), len(o.Outputs), err)
	}
	switch {
	case o.StartWave >= 0:
		return fmt.Sprintf("engine %d starts wave %d", o.EngineIndex, o.StartWave)
	case o.WaveComplete >= 0:
		return fmt.Sprintf("engine %d: wave %d complete", o.EngineIndex, o.WaveComplete)
	}
	stats := decoded(c.t, o.SchedulerStats).(map[string]any)
	return fmt.Sprintf("engine %d in wave %v: %v running, %v waiting, %.2f used", o.EngineIndex, stats["current_wave"],
		stats["num_running_reqs"], stats["num_waiting_reqs"], stats["kv_cache_usage"])
}

func (c *coordinated) hears(want ...string) {
	c.t.Helper()
	var got []string
	for range want {
		got = append(got, c.heard())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		c.t.Errorf("the coordinator heard (-want +got):\n%s", diff)
	}
}

func TestTheCoordinatorIsTold(t *testing.T) {
	c := listenCoordinated(t)
	c.run(Options{KVCache: KVCacheOptions{NumGPUBlocks: 101, BlockSize: 4}})
	ready := c.join()
	if ready.CoordinatorInputAddress == nil || *ready.CoordinatorInputAddress != c.publish.Endpoint() ||
		ready.CoordinatorOutputAddress == nil || *ready.CoordinatorOutputAddress != c.collect.Endpoint() {
		t.Errorf("registered with the coordinator at %v and %v, want that of INIT", ready.CoordinatorInputAddress, ready.CoordinatorOutputAddress)
	}

	c.submit(ask("a-x", count(0, 8), 2))
	c.read(0, "a-x", func(int) {})
	c.hears(
		"engine 0 starts wave 0",
		"engine 0 in wave 0: 0 running, 1 waiting, 0.00 used",
		"engine 0 in wave 0: 1 running, 0 waiting, 0.02 used",
		"engine 0 in wave 0: 0 running, 0 waiting, 0.00 used",
		"engine 0: wave 0 complete",
	)

	// A wave without work, begun by another engine, is over at once. Garbage is none.
	start := []byte{protocol.TypeStartDPWave}
	c.begin(start, []byte{0x92, 3, 1})
	c.begin([]byte("READY"))
	c.begin(start)
	c.begin(start, []byte{0xc1})
	c.begin([]byte{7}, []byte{0x92, 4, 1})
	c.begin(start, []byte{0x92, 2, 1}) // long over
	c.hears("engine 0: wave 3 complete")

	c.submit(ask("b-x", count(0, 4), 1))
	c.read(0, "b-x", func(int) {})
	c.hears("engine 0 starts wave 4")
	c.end()
}

func TestACoordinatorThatLeavesIsNotMissed(t *testing.T) {
	c := listenCoordinated(t)
	c.run(Options{})
	c.join()
	c.engine.Close()
	c.publish.Close()
	c.collect.Close()
	for i := range 3 {
		id := fmt.Sprintf("r%d-x", i)
		c.submit(ask(id, count(0, 4), 10))
		if got := c.read(0, id, func(int) {}); len(got) != 10 {
			t.Errorf("%s got %d tokens, want 10", id, len(got))
		}
	}
	c.end()
}

// The coordinator is ready when all engines of the group are there.
func TestAGroupThatDoesNotComeTogether(t *testing.T) {
	for _, tt := range []struct {
		name   string
		answer []byte // to the subscription
		want   string
		late   bool // known at the end of the timeout only
	}{
		{"no READY", nil, "no READY, which it sends when all engines of the group have connected", true},
		{"something else", []byte("STEADY"), "instead of READY", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := listenCoordinated(t)
			timeout := patience // which the test does not wait for
			if tt.late {
				timeout = 200 * time.Millisecond
			}
			c.run(Options{HandshakeTimeout: timeout})
			go func() {
				if conn, err := c.publish.Accept(c.ctx); err == nil {
					defer conn.Close()
					if tt.answer != nil {
						_ = conn.Send(tt.answer)
					}
					_, _ = conn.Recv() // the subscription
					_, _ = conn.Recv() // the end
				}
			}()
			c.answerHello()
			err := <-c.ended
			require.True(t, err != nil && strings.Contains(err.Error(), tt.want) && errors.Is(err, context.DeadlineExceeded) == tt.late, "Run: %v, want %q", err, tt.want)
		})
	}
}
