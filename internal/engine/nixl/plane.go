package nixl

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vllm-vcr/conformance/internal/engine/kvtransfer"
	"github.com/vllm-vcr/conformance/internal/engine/nixl/agent"
)

const (
	pullTimeout = 30 * time.Second // of a read
	maxLate     = 1 << 12          // requests whose end of the lease is remembered
)

// A Plane is a data plane that moves KV caches as an engine of the line does: its side channel answers handshakes, its agent moves the
// blocks. Every worker of the engine has a part of the agent's memory.
type Plane struct {
	line   *Line
	engine *kvtransfer.Config
	form   kvtransfer.Form
	shape  Metadata // of one worker, without addresses
	hash   string
	opt    Options
	agent  agent.Agent
	server *Server
	log    *slog.Logger
	// running ends with Close.
	running  context.Context
	stop     context.CancelFunc
	loops    sync.WaitGroup
	dying    sync.Once
	dead     chan struct{} // closed by the fault "die"
	answered atomic.Int64  // by the fault "hash"

	mu     sync.Mutex
	offers map[string]*offer // by request
	late   map[string]func()
	peers  map[string]*peer // by engine
	beats  map[string]*beat // by engine
	pulled map[int]uint64   // blocks that hold what another engine had, and what they are of
}

type offer struct {
	kvtransfer.Events
	reads int // notifications of workers that have read it
}

// A peer is a prefill engine after its handshake. done is closed then.
type peer struct {
	done    chan struct{}
	err     error
	workers []worker
	ours    bool // a player, whose contents are known
}

// A worker is one of a prefill engine: its regions are those of this engine from first on, of which it has a part of each block.
type worker struct {
	*Metadata
	agent.Peer
	first, part int
}

// beat are the requests of an engine that wait here.
type beat struct {
	cache    kvtransfer.Cache // of any of them
	requests map[string]int
}

// Open makes the data plane of an engine. start starts its agent with so many bytes of memory.
func Open(engine *kvtransfer.Config, form kvtransfer.Form, opt Options, start func(length int64) (agent.Agent, error), log *slog.Logger) (*Plane, error) {
	line, err := Load(form.Line)
	if err != nil {
		return nil, err
	}
	p := &Plane{
		line: line, engine: engine, form: form, opt: opt, log: log, dead: make(chan struct{}),
		offers: map[string]*offer{}, late: map[string]func(){}, peers: map[string]*peer{}, beats: map[string]*beat{}, pulled: map[int]uint64{},
	}
	if p.shape, p.hash, err = line.shape(opt, form); err != nil {
		return nil, err
	}
	peers := engine.Peers
	if peers == nil {
		if peers, err = kvtransfer.DefaultPeers(); err != nil {
			return nil, err
		}
	}
	p.running, p.stop = context.WithCancel(context.Background())
	p.server, err = line.Serve(JoinAddress(engine.Host, engine.Port), p.answer, func(address string) error { return kvtransfer.CheckPeer(peers, address) }, log)
	if err != nil {
		return nil, err
	}
	engine.Peers = peers
	engine.Port = int(netip.MustParseAddrPort(p.server.Address()).Port()) // that of port 0 is any
	if p.agent, err = start(p.size()); err == nil {
		err = p.injectIntoAgent(false)
	}
	if err != nil {
		p.server.Close()
		return nil, err
	}
	p.loops.Go(p.listen)
	return p, nil
}

// size is the memory of all workers, in bytes.
func (p *Plane) size() (n int64) {
	for i := range p.shape.BlockLens {
		n += p.regionSize(i)
	}
	return n * int64(p.form.TensorParallel)
}

func (p *Plane) regionSize(i int) int64 { return int64(p.shape.BlockLens[i]) * int64(p.shape.Blocks) }

// offset is where a block of a worker's region begins in the memory.
func (p *Plane) offset(tp, region, block int) int64 {
	at := int64(tp) * p.size() / int64(p.form.TensorParallel)
	for i := range region {
		at += p.regionSize(i)
	}
	return at + int64(block)*int64(p.shape.BlockLens[region])
}

// answer is the payload for a worker.
func (p *Plane) answer(r Rank, _ []byte) []byte {
	if r.PP != 0 || r.TP < 0 || r.TP >= p.form.TensorParallel {
		return nil
	}
	if !p.injectBefore() {
		return nil
	}
	base, _ := p.agent.Region()
	m := p.shape
	m.EngineID, m.AgentMetadata = p.engine.EngineID, p.agent.Metadata()
	for i := range m.BlockLens {
		m.BaseAddresses = append(m.BaseAddresses, base+uint64(p.offset(r.TP, i, 0)))
	}
	hash := p.hash
	p.injectInto(&m, &hash)
	return p.line.Encode(&m, hash)
}

// listen takes the notifications of decode engines.
func (p *Plane) listen() {
	for {
		select {
		case <-p.running.Done():
			return
		case text, open := <-p.agent.Notifications():
			if !open {
				return
			}
			n, err := ParseNotification(text.Text)
			if err != nil {
				p.log.Warn("a decode engine sent a notification that is not understood", "error", err)
				continue
			}
			p.notified(n)
		}
	}
}

func (p *Plane) notified(n Notification) {
	p.mu.Lock()
	var call []func()
	for _, id := range n.Heartbeat {
		if o := p.offers[id]; o != nil {
			call = append(call, o.Extended)
		}
	}
	if n.Heartbeat == nil {
		switch o := p.offers[n.Request]; {
		case o == nil:
			if late := p.late[n.Request]; late != nil {
				call = append(call, late)
			}
			p.log.Warn("a decode engine read the KV cache of a request that is not kept", "request", n.Request)
		default:
			if o.reads++; o.reads >= n.Readers*p.form.TensorParallel {
				delete(p.offers, n.Request)
				call = append(call, o.Taken)
			}
		}
	}
	p.mu.Unlock()
	for _, f := range call {
		f()
	}
	if n.Heartbeat == nil {
		_ = p.injectIntoAgent(true) // of an agent that has ended nothing else is to be had
	}
}

// Offer writes the contents of the blocks, but of those that were pulled, and lets decode engines free them.
func (p *Plane) Offer(cache kvtransfer.Cache, events kvtransfer.Events) {
	p.write(cache, true, agent.Fill)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.offers[cache.RequestID] = &offer{Events: events}
}

// write fills the memory of the blocks of a KV cache, except those to keep that were pulled for these tokens.
func (p *Plane) write(cache kvtransfer.Cache, keep bool, fill func(p []byte, seed uint64)) {
	kept := map[int]bool{}
	p.mu.Lock()
	for i, id := range cache.Blocks {
		contents, pulled := p.pulled[id]
		if kept[id] = keep && pulled && contents == cache.Contents[i]; !kept[id] {
			delete(p.pulled, id)
		}
	}
	p.mu.Unlock()
	for region, n := range p.shape.BlockLens {
		contents := make([]byte, n)
		for i, id := range cache.Blocks {
			if kept[id] {
				continue
			}
			fill(contents, blockSeed(cache.Contents[i], region))
			for tp := range p.form.TensorParallel {
				if _, err := p.agent.WriteAt(contents, p.offset(tp, region, id)); err != nil {
					p.log.Warn("the contents of a block were not written", "request", cache.RequestID, "error", err)
				}
			}
		}
	}
}

// blockSeed is that of the contents of one region of a block.
func blockSeed(contents uint64, region int) uint64 { return contents + uint64(region) }

// Withdraw ends an offer. Its blocks lose their contents, and a decode engine that reads them later is counted.
func (p *Plane) Withdraw(cache kvtransfer.Cache) {
	p.mu.Lock()
	if o := p.offers[cache.RequestID]; o != nil {
		delete(p.offers, cache.RequestID)
		if len(p.late) >= maxLate {
			clear(p.late)
		}
		p.late[cache.RequestID] = o.Late
	}
	p.mu.Unlock()
	p.write(cache, false, func(contents []byte, _ uint64) { clear(contents) })
}

// connect shakes hands with an engine, unless that has been done.
func (p *Plane) connect(ctx context.Context, cache kvtransfer.Cache) (*peer, error) {
	p.mu.Lock()
	known := p.peers[cache.EngineID]
	if known == nil {
		known = &peer{done: make(chan struct{})}
		p.peers[cache.EngineID] = known
		p.loops.Go(func() {
			known.workers, known.err = p.shake(p.running, cache)
			if known.err != nil {
				p.forget(cache.EngineID, known)
			}
			for _, w := range known.workers {
				known.ours = known.ours || bytes.Contains(w.AgentMetadata, []byte("vllm-vcr"))
			}
			close(known.done)
		})
	}
	p.mu.Unlock()
	select {
	case <-known.done:
		return known, known.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// forget makes the next request for an engine's KV cache shake hands again.
func (p *Plane) forget(engine string, known *peer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.peers[engine] == known {
		delete(p.peers, engine)
	}
}

// shake shakes hands with all workers of an engine whose memory this one reads.
func (p *Plane) shake(ctx context.Context, cache kvtransfer.Cache) (workers []worker, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("engine %q: %w: %w", cache.EngineID, kvtransfer.ErrHandshake, err)
		}
	}()
	address, err := p.address(ctx, cache)
	if err != nil {
		return nil, err
	}
	region := 0
	for pp := range max(cache.PipelineParallel, 1) {
		next := region
		for tp := range max(cache.TensorParallel, 1) {
			w, err := p.meet(ctx, address, cache, pp, tp)
			if err != nil {
				return nil, err
			}
			w.first, next = region, region+len(w.BlockLens)
			workers = append(workers, w)
		}
		region = next
	}
	return workers, p.fits(workers, region, max(cache.TensorParallel, 1))
}

// address resolves the host of an engine, which must be one of the peers.
func (p *Plane) address(ctx context.Context, cache kvtransfer.Cache) (string, error) {
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", cache.Host)
	if err != nil {
		return "", err
	}
	for _, ip := range found {
		address := netip.AddrPortFrom(ip.Unmap(), uint16(cache.Port)).String()
		if err = kvtransfer.CheckPeer(p.engine.Peers, address); err == nil {
			return address, nil
		}
	}
	return "", err
}

// meet shakes hands with one worker, as vllm/distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py _nixl_handshake does.
func (p *Plane) meet(ctx context.Context, address string, cache kvtransfer.Cache, pp, tp int) (w worker, err error) {
	a, err := p.line.Handshake(ctx, address, pp, tp)
	if err != nil {
		return w, err
	}
	if a.Hash != p.hash && !p.engine.IgnoreHash {
		return w, fmt.Errorf("NIXL compatibility hash mismatch: here %s, there %.64s: the two engines are of other releases, models, types or "+
			"attention backends; kv_connector_extra_config.enforce_handshake_compat false ignores it", p.hash, a.Hash)
	}
	if w.Metadata, err = p.line.DecodeMetadata(a.Payload); err != nil {
		return w, err
	}
	if w.EngineID != cache.EngineID {
		return w, errors.New("another engine answers at its address")
	}
	w.part = tp
	w.Peer, err = p.agent.Connect(ctx, w.AgentMetadata)
	return w, err
}

// fits reports why the memory of an engine's workers cannot be read into that of this one.
func (p *Plane) fits(workers []worker, regions, tp int) error {
	own := len(p.shape.BlockLens)
	switch {
	case regions != own:
		return fmt.Errorf("the number of regions must match: %d here, %d there", own, regions)
	case tp < p.form.TensorParallel || tp%p.form.TensorParallel != 0:
		return fmt.Errorf("it has %d workers, and this engine %d: a player reads from a multiple of its own", tp, p.form.TensorParallel)
	}
	for _, w := range workers {
		if w.Layout != p.shape.Layout || w.BlockSize != p.shape.BlockSize {
			return fmt.Errorf("KV cache layouts and block sizes must match: %s of %d tokens here, %q of %d there", p.shape.Layout, p.shape.BlockSize, w.Layout, w.BlockSize)
		}
		for i, n := range w.BlockLens {
			if want := p.shape.BlockLens[w.first+i] * p.form.TensorParallel; n*tp != want {
				return fmt.Errorf("KV cache sizes must match: a block of region %d has %d bytes here, and %d there in %d workers", i, want, n, tp)
			}
		}
	}
	return nil
}

// Pull reads the blocks of a KV cache, which also frees them there.
func (p *Plane) Pull(ctx context.Context, cache kvtransfer.Cache) (moved kvtransfer.Moved, err error) {
	began := time.Now()
	peer, err := p.connect(ctx, cache)
	if err != nil {
		return moved, err
	}
	if len(cache.Local) > len(cache.Blocks) {
		return moved, fmt.Errorf("engine %q: it keeps %d blocks, and %d are missing here", cache.EngineID, len(cache.Blocks), len(cache.Local))
	}
	remote := cache.Blocks[len(cache.Blocks)-len(cache.Local):]
	ctx, cancel := context.WithTimeoutCause(ctx, pullTimeout, fmt.Errorf("no end of the read within %v", pullTimeout))
	defer cancel()
	tp := max(cache.TensorParallel, 1) / p.form.TensorParallel // parts of a block of ours
	for _, w := range peer.workers {
		var blocks []agent.Block
		for region, n := range w.BlockLens {
			for i, id := range remote {
				if id < 0 || id >= w.Metadata.Blocks {
					return moved, fmt.Errorf("engine %q: it has no block %d: it has %d", cache.EngineID, id, w.Metadata.Blocks)
				}
				blocks = append(blocks, agent.Block{
					Remote: w.BaseAddresses[region] + uint64(id)*uint64(w.Stride(region)), RemoteDevice: w.DeviceID,
					Local: p.offset(w.part/tp, w.first+region, cache.Local[i]) + int64(w.part%tp*n), Len: n,
				})
				moved.Bytes += n
			}
		}
		moved.Descriptors += len(blocks)
		moved.Posted = cmp.Or(moved.Posted, time.Since(began))
		notify := Notification{Request: cache.RequestID, Readers: 1}.String()
		if len(blocks) == 0 {
			err = p.agent.Notify(ctx, w.Peer, notify)
		} else {
			err = p.agent.Read(ctx, w.Peer, blocks, notify)
		}
		if err != nil {
			p.forget(cache.EngineID, peer)
			return moved, fmt.Errorf("engine %q: %w", cache.EngineID, err)
		}
	}
	p.mu.Lock()
	for i, id := range cache.Local {
		p.pulled[id] = cache.Contents[i]
	}
	p.mu.Unlock()
	if peer.ours && tp == 1 {
		moved.Wrong = p.wrong(cache)
	}
	return moved, nil
}

// wrong counts the blocks that do not have the contents of their tokens.
func (p *Plane) wrong(cache kvtransfer.Cache) (wrong int) {
	for i, id := range cache.Local {
		bad := false
		for tp := range p.form.TensorParallel {
			for region, n := range p.shape.BlockLens {
				got := make([]byte, n)
				_, err := p.agent.ReadAt(got, p.offset(tp, region, id))
				bad = bad || err != nil || agent.WrongBlocks(got, []uint64{blockSeed(cache.Contents[i], region)}) > 0
			}
		}
		if bad {
			wrong++
		}
	}
	return wrong
}

// Release lets an engine free a KV cache that is not read.
func (p *Plane) Release(ctx context.Context, cache kvtransfer.Cache) error {
	cache.Local, cache.Contents = nil, nil
	_, err := p.Pull(ctx, cache)
	return err
}

// Await sends heartbeats to an engine while requests wait for KV caches that it keeps, as vLLM does: each sixth of a lease.
func (p *Plane) Await(cache kvtransfer.Cache) (stop func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.beats[cache.EngineID]
	if b == nil {
		b = &beat{cache: cache, requests: map[string]int{}}
		p.beats[cache.EngineID] = b
		p.loops.Go(func() { p.beat(b) })
	}
	b.requests[cache.RequestID]++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if b.requests[cache.RequestID]--; b.requests[cache.RequestID] == 0 {
			delete(b.requests, cache.RequestID)
		}
	}
}

func (p *Plane) beat(b *beat) {
	interval := max(p.engine.Lease/6, time.Second)
	for {
		select {
		case <-p.running.Done():
			return
		case <-time.After(interval):
		}
		p.mu.Lock()
		var n Notification
		for id := range b.requests {
			n.Heartbeat = append(n.Heartbeat, id)
		}
		if n.Heartbeat == nil {
			delete(p.beats, b.cache.EngineID)
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		slices.Sort(n.Heartbeat)
		peer, err := p.connect(p.running, b.cache)
		if err != nil {
			continue // the requests fail by it
		}
		for _, w := range peer.workers {
			if err := p.agent.Notify(p.running, w.Peer, n.String()); err != nil {
				p.log.Debug("a heartbeat was not sent", "engine", b.cache.EngineID, "error", err)
			}
		}
	}
}

// Close ends side channel and agent.
func (p *Plane) Close() error {
	p.stop()
	p.server.Close()
	p.loops.Wait()
	return p.agent.Close()
}
