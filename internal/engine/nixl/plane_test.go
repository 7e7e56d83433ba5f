package nixl

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/engine/kvtransfer"
	"github.com/vllm-vcr/conformance/internal/engine/nixl/agent"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// inMemory starts an agent of this process.
func inMemory(length int64) (agent.Agent, error) {
	return agent.Start(context.Background(), agent.Options{Python: agent.InMemory, Length: length})
}

// pair is a prefill and a decode engine.
type pair struct {
	prefill, decode *Plane
	cache           kvtransfer.Cache // as the prefill engine names it
	events          chan string
}

func openPair(t *testing.T, fault string, change func(o *Options, c *kvtransfer.Config, f *kvtransfer.Form)) *pair {
	t.Helper()
	model := t.TempDir()
	config := `{"num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 4, "hidden_size": 64, "torch_dtype": "bfloat16"}`
	require.NoError(t, os.WriteFile(filepath.Join(model, "config.json"), []byte(config), 0o644))
	open := func(id string, o Options, change func(*Options, *kvtransfer.Config, *kvtransfer.Form)) *Plane {
		c := &kvtransfer.Config{EngineID: id, Host: "127.0.0.1", Lease: time.Hour, Peers: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}
		f := kvtransfer.Form{Line: "0.33", Blocks: 10, BlockSize: 16, TensorParallel: 1}
		if change != nil {
			change(&o, c, &f)
		}
		p, err := Open(c, f, o, inMemory, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		t.Cleanup(func() { _ = p.Close() })
		return p
	}
	p := &pair{events: make(chan string, 10)}
	p.prefill = open("p", Options{Model: model, Fault: fault}, nil)
	p.decode = open("d", Options{Model: model}, change)
	p.cache = kvtransfer.Cache{
		EngineID: "p", RequestID: "r", Host: "127.0.0.1", Port: int(netip.MustParseAddrPort(p.prefill.server.Address()).Port()), Blocks: []int{3, 4, 5}, Contents: []uint64{30, 40, 50},
	}
	event := func(name string) func() { return func() { p.events <- name } }
	p.prefill.Offer(p.cache, kvtransfer.Events{Taken: event("taken"), Extended: event("extended"), Late: event("late")})
	return p
}

// pull reads the last two blocks.
func (p *pair) pull(t *testing.T) (kvtransfer.Moved, error) {
	cache := p.cache
	cache.Local, cache.Contents = []int{7, 1}, []uint64{40, 50}
	return p.decode.Pull(t.Context(), cache)
}

func TestPull(t *testing.T) {
	p := openPair(t, "", nil)
	p.decode.Await(p.cache)()
	moved, err := p.pull(t)
	require.NoError(t, err)
	require.True(t, moved.Bytes == 2*3*16*4*8*2*2 && moved.Descriptors == 6 && moved.Wrong == 0, "%+v", moved)
	if e := <-p.events; e != "taken" {
		t.Error(e)
	}
	require.NoError(t, p.decode.Release(t.Context(), p.cache))
}

func TestLateRead(t *testing.T) {
	p := openPair(t, "", nil)
	p.prefill.notified(Notification{Heartbeat: []string{"other", "r"}})
	if e := <-p.events; e != "extended" {
		t.Error(e)
	}
	p.prefill.Withdraw(p.cache)
	moved, err := p.pull(t)
	if e := <-p.events; err != nil || moved.Wrong != 2 || e != "late" {
		t.Errorf("%+v, %v, %s: want two wrong blocks", moved, err, e)
	}
}

// Each disagreement is an error of a handshake that names it, and the next request tries again.
func TestHandshakesThatFail(t *testing.T) {
	for name, c := range map[string]struct {
		fault  string
		change func(o *Options, c *kvtransfer.Config, f *kvtransfer.Form)
		want   string
	}{
		"hash":           {"hash", nil, "compatibility hash mismatch"},
		"release":        {"", func(o *Options, _ *kvtransfer.Config, _ *kvtransfer.Form) { o.Release = "0.33.1" }, "compatibility hash mismatch"},
		"geometry":       {"geometry", nil, "KV cache sizes must match"},
		"engine":         {"engine", nil, "another engine answers"},
		"another layout": {"", func(o *Options, _ *kvtransfer.Config, _ *kvtransfer.Form) { o.Layout = "NHD" }, "layouts and block sizes"},
		"block size":     {"", func(_ *Options, _ *kvtransfer.Config, f *kvtransfer.Form) { f.BlockSize = 32 }, "layouts and block sizes"},
		"workers":        {"", func(_ *Options, _ *kvtransfer.Config, f *kvtransfer.Form) { f.TensorParallel = 2 }, "multiple of its own"},
		"no peer":        {"", func(_ *Options, c *kvtransfer.Config, _ *kvtransfer.Form) { c.Peers = []netip.Prefix{} }, "peers of this engine"},
	} {
		t.Run(name, func(t *testing.T) {
			p := openPair(t, c.fault, c.change)
			for range 2 {
				if _, err := p.pull(t); !errors.Is(err, kvtransfer.ErrHandshake) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v, want %q", err, c.want)
				}
			}
		})
	}
}

func TestIgnoredHash(t *testing.T) {
	p := openPair(t, "hash", func(_ *Options, c *kvtransfer.Config, _ *kvtransfer.Form) { c.IgnoreHash = true })
	_, err := p.pull(t)
	require.NoError(t, err)
}

func TestBlocksThatAreNotThere(t *testing.T) {
	p := openPair(t, "", nil)
	for _, blocks := range [][]int{{3}, {3, 10}, {-1, 3}} {
		p.cache.Blocks = blocks
		if moved, err := p.pull(t); err == nil {
			t.Errorf("blocks %v: %+v", blocks, moved)
		}
	}
}

func TestPeerThatDies(t *testing.T) {
	p := openPair(t, "die:0s", nil)
	_, _ = p.pull(t) // with the first handshake
	<-p.prefill.dead
	if _, err := p.pull(t); err == nil {
		t.Error("a dead engine is read")
	}
}

// TestManyHandshakes: a side channel answers a thousand handshakes of as many connections; ten thousand take ten times as long.
// TestPeerThatDiesInARead: the fault lets one read through.
func TestPeerThatDiesInARead(t *testing.T) {
	p := openPair(t, "die-in-read", nil)
	_, err := p.pull(t)
	require.NoError(t, err)
	<-p.events
	for err == nil { // the agent is told after the event
		_, err = p.pull(t)
	}
	require.ErrorContains(t, err, "the peer is gone")
}

func TestManyHandshakes(t *testing.T) {
	p := openPair(t, "", nil)
	for range 1000 {
		if _, err := p.decode.line.Handshake(t.Context(), p.prefill.server.Address(), 0, 0); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOptions(t *testing.T) {
	for _, text := range []string{
		"", "{}", `{"model": "m", "more": 1}`, `{"model": "m", "fault": "x"}`, `{"model": "m", "fault": "late"}`, `{"model": "m", "fault": "late:x"}`, `{"model": "m", "fault": "hash:1s"}`,
	} {
		if o, err := ParseOptions(text); err == nil {
			t.Errorf("%s: %+v", text, o)
		}
	}
	for _, fault := range []string{"", "late:6s", "silent", "hash", "geometry", "engine", "die:100ms"} {
		_, err := ParseOptions(fmt.Sprintf(`{"model": "m", "fault": %q}`, fault))
		require.NoError(t, err)
	}
}
