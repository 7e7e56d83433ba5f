package player

import (
	"context"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// plane moves nothing, and notes what it is asked for. A pull ends as ends says.
type plane struct {
	mu                           sync.Mutex
	offered, withdrawn, released []string
	taken                        map[string]func()
	ends                         chan error
}

func newPlane() *plane { return &plane{taken: map[string]func(){}, ends: make(chan error, 10)} }

func (p *plane) Offer(c KVCache, taken func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.offered = append(p.offered, c.RequestID)
	p.taken[c.RequestID] = taken
}

func (p *plane) Withdraw(c KVCache) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.withdrawn = append(p.withdrawn, c.RequestID)
}

func (p *plane) Pull(ctx context.Context, _ KVCache) error {
	select {
	case err := <-p.ends:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *plane) Release(_ context.Context, c KVCache) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.released = append(p.released, c.RequestID)
	return nil
}

// transferRig is a rig whose pulls run until the test ends.
func transferRig(t *testing.T, opt Options) *rig {
	t.Helper()
	r := newRig(t, opt, 1)
	t.Cleanup(r.player.startFetching(t.Context()))
	return r
}

// hear waits for something that comes from beside the engine.
func (r *rig) hear() {
	r.t.Helper()
	<-r.player.inbox.wake
	if err := r.player.handle(r.player.inbox.take()); err != nil {
		r.t.Fatal(err)
	}
}

// params packs kv_transfer_params.
func params(members ...any) []byte {
	b := pack.AppendMapHeader(nil, len(members)/2)
	for i := 0; i < len(members); i += 2 {
		b = append(pack.AppendString(b, members[i].(string)), arg(members[i+1])...)
	}
	return b
}

func transferred(b []byte) change { return extra("kv_transfer_params", b) }

// computing asks for the prompt to be computed for another engine, as routers do.
var computing = transferred(params("do_remote_decode", true, "do_remote_prefill", false,
	"remote_engine_id", nil, "remote_block_ids", nil, "remote_host", nil, "remote_port", nil))

// blockIDs packs the blocks of one group.
func blockIDs(n int) []byte {
	b := pack.AppendArrayHeader(pack.AppendArrayHeader(nil, 1), n)
	for i := range n {
		b = pack.AppendInt(b, int64(i+1))
	}
	return b
}

// pulling asks for the KV cache of another engine's request.
func pulling(id string) change {
	return transferred(params("do_remote_prefill", true, "remote_engine_id", "p", "remote_request_id", id,
		"remote_host", "h", "remote_port", 5600, "remote_block_ids", blockIDs(2)))
}

// kvTransfer is what the request's last output says.
func (r *rig) kvTransfer(id string) []byte {
	r.t.Helper()
	for _, e := range r.envelopes {
		for _, out := range e.Outputs.Outputs {
			if string(out.ID) == id && out.KVTransfer != nil {
				return out.KVTransfer
			}
		}
	}
	return nil
}

// What an engine says that has computed a prompt is what the line's connector says.
func TestOffer(t *testing.T) {
	keys := map[string][]string{
		"0.33": {"dcp_size", "pp_size", "remote_registration_generation", "transfer_mode", "remote_prefill_cached_tokens"},
		"0.32": {"dcp_size", "pp_size", "transfer_mode", "remote_prefill_cached_tokens"},
		"0.30": {"dcp_size", "pp_size", "transfer_mode"},
		"0.28": {"transfer_mode"},
		"0.27": nil,
	}
	values := map[string]any{
		"do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": []any{[]any{int64(1), int64(2)}},
		"remote_engine_id": "me", "remote_request_id": "a", "remote_host": "localhost", "remote_port": int64(5603),
		"tp_size": int64(1), "remote_num_tokens": int64(20), "remote_blocks_expiry_time": nil,
	}
	more := map[string]any{
		"dcp_size": int64(1), "pp_size": int64(1), "remote_registration_generation": int64(1), "transfer_mode": "pull",
		"remote_prefill_cached_tokens": int64(0),
	}
	for line, added := range keys {
		t.Run(line, func(t *testing.T) {
			r := transferRig(t, Options{VLLMVersion: line, EngineIndex: 3, Transfer: &Transfer{EngineID: "me"}})
			r.submit(ask("a", count(0, 20), 1, computing))
			r.runAll()
			want := map[string]any{}
			for k, v := range values {
				want[k] = v
			}
			for _, k := range added {
				want[k] = more[k]
			}
			if diff := cmp.Diff(want, decoded(t, r.kvTransfer("a"))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Who will not pull a KV cache says so to the engine that keeps it.
func TestRelease(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(r *rig)
		want []string
	}{
		{"aborted before it pulls", func(r *rig) {
			r.submit(ask("runs", count(0, 20), 1000), ask("a", count(100, 20), 1, pulling("x")))
			r.step()
			r.abort([]string{"a"})
		}, []string{"x"}},
		{"to clean up after", func(r *rig) {
			r.submit(ask("a", count(100, 20), 1, pulling("x"), func(r *protocol.Request) { r.AbortImmediately = true }))
		}, []string{"x"}},
		{"too long", func(r *rig) { r.submit(ask("a", count(100, 5000), 1, pulling("x"))) }, []string{"x"}},
		{"refused by a fault", func(r *rig) {
			r.submit(ask("a", count(100, 20), 1, transferred(params()), pulling("x"), alsoFault("refuse")))
		}, []string{"x"}},
		{"the engine is paused", func(r *rig) {
			r.do("pause_generation", "abort", false)
			r.submit(ask("a", count(100, 20), 1, pulling("x")))
		}, []string{"x"}},
		{"aborted while it pulls", func(r *rig) {
			r.submit(ask("a", count(100, 20), 1, pulling("x")))
			r.step()
			r.abort([]string{"a"})
		}, nil},
		{"nowhere to say so", func(r *rig) {
			r.submit(ask("a", count(100, 20), 1, transferred(params("do_remote_prefill", true)), func(r *protocol.Request) { r.AbortImmediately = true }))
		}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPlane()
			r := newRig(t, Options{Limits: Limits{MaxModelLen: 4096, MaxNumSeqs: 1}, Transfer: &Transfer{DataPlane: p}, RequestFaults: true}, 1)
			stop := r.player.startFetching(t.Context())
			tt.do(r)
			p.ends <- nil
			r.player.fetches.Wait()
			stop()
			equal(t, "released", tt.want, p.released)
			if tt.name != "aborted before it pulls" && (r.held() != 0 || r.busy()) {
				t.Errorf("left behind: %d blocks", r.held())
			}
		})
	}
}

// alsoFault adds a fault to the extra arguments that are there.
func alsoFault(text string) change {
	return func(r *protocol.Request) {
		b := pack.AppendString(pack.AppendString(pack.AppendMapHeader(nil, 2), faultArg), text)
		r.Sampling.ExtraArgs = append(b, r.Sampling.ExtraArgs[1:]...)
	}
}

// Parameters that cannot be read end their request, and no other.
func TestBadTransferParams(t *testing.T) {
	for want, wrong := range map[string]change{
		"remote_port: 70000: want 1 to 65535":      transferred(params("remote_port", 70000)),
		"msgpack: byte 0: expected map, found str": transferred(arg("x")),
	} {
		r := transferRig(t, Options{VLLMVersion: "0.33", Source: counting{}, Transfer: &Transfer{}})
		r.submit(ask("a", count(0, 20), 2, wrong), ask("b", count(50, 20), 2))
		r.runAll()
		if got := outcome(r.answer("a")); got != "[] error bad_request: kv_transfer_params: "+want {
			t.Errorf("got %s, want %s", got, want)
		}
		if got := outcome(r.answer("b")); got != "[70 71] length" || r.held() != 0 {
			t.Errorf("the other one got %s, and %d blocks are held", got, r.held())
		}
	}
}
