package pd

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"sync"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/engine/kvtransfer"
	"github.com/vllm-vcr/conformance/internal/engine/nixl"
	"github.com/vllm-vcr/conformance/internal/engine/nixl/agent"
	"github.com/vllm-vcr/conformance/trace"
)

// fakeBlocks is how many blocks a prefill of ours has.
const fakeBlocks = 32

// A prefill is an engine of ours that an engine under test pulls from. It has the geometry and the hash of that engine, and a worker
// for each agent.
type prefill struct {
	engineID string
	workers  []agent.Agent
	server   *nixl.Server
	host     string
	port     int
	seed     uint64

	mu    sync.Mutex
	asked []nixl.Rank // by the engine
}

// newPrefill starts a prefill with so many workers, of which each has an equal part of every block. change, unless nil, changes what it
// says of itself.
func (d *side) newPrefill(name string, workers int, change func(m *nixl.Metadata, hash *string)) (*prefill, error) {
	f := &prefill{engineID: name, seed: d.random.Uint64()}
	m := *d.metadata
	m.EngineID, m.Blocks, m.BlockLens, m.BlockStrides = name, fakeBlocks, nil, nil
	length := 0
	for _, size := range d.metadata.BlockLens {
		m.BlockLens = append(m.BlockLens, size/workers)
		length += size / workers * fakeBlocks
	}
	if d.metadata.BlockStrides != nil {
		m.BlockStrides = m.BlockLens
	}
	if m.RegionBlocks != nil {
		m.RegionBlocks = slices.Repeat([]int{fakeBlocks}, len(m.BlockLens))
	}
	answers := map[nixl.Rank][]byte{}
	for rank := range workers {
		a, err := agent.Start(d.ctx, agent.Options{Python: d.env.NIXL, Name: name, Length: int64(length), Log: d.env.Log})
		if err != nil {
			f.Close()
			return nil, check.Infra(err)
		}
		f.workers = append(f.workers, a)
		of, hash := m, d.answer.Hash
		of.AgentMetadata, of.BaseAddresses = a.Metadata(), nil
		base, _ := a.Region()
		offset := int64(0)
		for region, size := range of.BlockLens {
			of.BaseAddresses = append(of.BaseAddresses, base+uint64(offset))
			for block := range fakeBlocks {
				if _, err := a.WriteAt(f.contents(rank, region, block, size), offset); err != nil {
					f.Close()
					return nil, check.Infra(err)
				}
				offset += int64(size)
			}
		}
		if change != nil {
			change(&of, &hash)
		}
		answers[nixl.Rank{TP: rank}] = d.nixl.Encode(&of, hash)
	}
	var err error
	f.server, err = d.nixl.Serve("127.0.0.1:0", func(r nixl.Rank, request []byte) []byte {
		d.tap("nixl_request", trace.EngineToFrontend, request)
		d.tap("nixl_reply", trace.FrontendToEngine, answers[r])
		f.mu.Lock()
		defer f.mu.Unlock()
		f.asked = append(f.asked, r)
		return answers[r]
	}, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		f.Close()
		return nil, check.Infra(err)
	}
	host, port, _ := net.SplitHostPort(f.server.Address())
	f.host = host
	f.port, _ = strconv.Atoi(port)
	return f, nil
}

// contents are the bytes of a block of a worker.
func (f *prefill) contents(rank, region, block, size int) []byte {
	p := make([]byte, size)
	agent.Fill(p, f.seed+uint64(rank)<<40+uint64(region)<<20+uint64(block))
	return p
}

// Close ends the prefill.
func (f *prefill) Close() {
	if f.server != nil {
		f.server.Close()
	}
	for _, a := range f.workers {
		a.Close()
	}
}

// offer are the kv_transfer_params that a router has from the prefill: a prompt of so many tokens in blocks from a first one.
func (f *prefill) offer(line, request string, tokens, first, blocks int) []byte {
	o := kvtransfer.Offer{
		Cache: kvtransfer.Cache{EngineID: f.engineID, RequestID: request, Host: f.host, Port: f.port}, Computed: tokens, TensorParallel: len(f.workers),
	}
	for i := range blocks {
		o.Blocks = append(o.Blocks, first+i)
	}
	return o.Encode(line)
}

// notified waits until each worker has got the notification of a request.
func (d *side) notified(f *prefill, request string) error {
	limit := d.within(releaseLimit)
	ctx, stop := context.WithTimeoutCause(d.ctx, limit, check.Ends(CodeNotified, "the engine has read the blocks of %s, and sent no notification within %v", request, limit))
	defer stop()
	for _, a := range f.workers {
		for heard := false; !heard; {
			select {
			case n := <-a.Notifications():
				d.tap("nixl_notification", trace.EngineToFrontend, []byte(n.Text))
				got, err := nixl.ParseNotification(n.Text)
				switch {
				case err != nil:
					return check.Ends(CodeNotified, "%q: %v", n.Text, err)
				case got.Heartbeat != nil:
				case got.Request != request || got.Readers != 1:
					return check.Ends(CodeNotified, "the notification is %q, want %q", n.Text, request+":1")
				default:
					heard = true
				}
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
	return nil
}

// landed compares the blocks that the engine has cached of a prompt with those of the prefill, all but the last, which is not full.
func (d *side) landed(f *prefill, prompt []uint32, first, blocks int) error {
	k, err := d.keep(prompt)
	if err != nil {
		return err
	}
	got, err := d.ours.read(d.ctx, k, 1)
	if err != nil {
		return err
	}
	if k.cached == 0 || len(k.Blocks) < blocks {
		d.f.AddNote("the engine has no prefix cache, so the contents of its blocks were not compared")
		return nil
	}
	misplaced, size := 0, d.ours.blockLen()
	for i := range blocks - 1 {
		var want []byte
		for region, n := range d.metadata.BlockLens {
			want = append(want, f.contents(0, region, first+i, n)...)
		}
		if !bytes.Equal(got[i*size:(i+1)*size], want) {
			misplaced++
		}
	}
	d.f.Asserted++
	if misplaced > 0 {
		return check.Ends(CodeContent, "%d of %d blocks in the cache of the engine are not those that it pulled", misplaced, blocks-1)
	}
	return nil
}

// pull has the engine answer a prompt from blocks of a prefill.
func (d *side) pull(f *prefill, prompt []uint32, first int) (*reply, string, error) {
	blocks := (len(prompt) + d.logicalBlock() - 1) / d.logicalBlock()
	request := fmt.Sprintf("cmpl-%s-%d", f.engineID, d.number)
	r, err := d.send(prompt, 4, f.offer(d.nixl.Name, request, len(prompt), first, blocks))
	return r, request, err
}

// answered wants a request that has its tokens.
func answered(r *reply) error {
	if r.tokens != 4 {
		return check.Ends(CodePull, "request %s has %d of 4 tokens and ended by %s: %s", r.id, r.tokens, r.finish, r.failed)
	}
	return nil
}
