package player

import (
	"context"
	"slices"
	"sync"

	"github.com/vllm-vcr/conformance/internal/engine/kvtransfer"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// plane moves nothing, and notes what it is asked for. A pull ends as ends says.
type plane struct {
	mu                           sync.Mutex
	offered, withdrawn, released []string
	waiting                      []string // written by the engine's goroutine alone
	taken                        map[string]kvtransfer.Events
	ends                         chan error
}

func newPlane() *plane {
	return &plane{taken: map[string]kvtransfer.Events{}, ends: make(chan error, 10)}
}

func (p *plane) Offer(c KVCache, events kvtransfer.Events) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.offered = append(p.offered, c.RequestID)
	p.taken[c.RequestID] = events
}

func (p *plane) Withdraw(c KVCache) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.withdrawn = append(p.withdrawn, c.RequestID)
}

func (p *plane) Pull(ctx context.Context, _ KVCache) (kvtransfer.Moved, error) {
	moved := kvtransfer.Moved{Descriptors: 1}
	select {
	case err := <-p.ends:
		return moved, err
	case <-ctx.Done():
		return moved, ctx.Err()
	}
}

func (p *plane) Await(c KVCache) func() {
	p.waiting = append(p.waiting, c.RequestID)
	return func() { p.waiting = slices.DeleteFunc(p.waiting, func(id string) bool { return id == c.RequestID }) }
}

func (p *plane) Release(_ context.Context, c KVCache) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.released = append(p.released, c.RequestID)
	return nil
}

// hear waits for something that comes from beside the engine.
func (r *rig) hear() {
	r.t.Helper()
	<-r.player.inbox.wake
	must(r.t, r.player.handle(r.player.inbox.take()))
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
