package player

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/engine/kvcache"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// Transfer is an engine's KV connector, with which one engine computes prompts and
// another one goes on from there: vLLM's NixlConnector, as far as a frontend and the
// router before it see it (vllm/distributed/kv_transfer/kv_connector/v1/nixl). Every
// engine that has one may be asked for both.
type Transfer struct {
	// EngineID is by what others know this engine; default a random one. Of several
	// data-parallel ranks each adds its own number, as a real engine does.
	EngineID string
	// Host and Port are where others ask for KV caches; default localhost and 5600. Each
	// data-parallel rank adds its index to the port.
	Host string
	Port int
	// FailurePolicy says what becomes of a request whose KV cache does not come;
	// default FailOnLoadFailure, as in a real engine.
	FailurePolicy FailurePolicy
	// Lease is how long a KV cache is kept for one that does not ask for it; default
	// 30 seconds.
	Lease time.Duration
	// Plane moves the KV caches. Without one they count as moved when the time that
	// [Options].Latency tells has passed, whether or not anybody has computed them.
	Plane DataPlane
}

// FailurePolicy is vLLM's kv_load_failure_policy.
type FailurePolicy string

const (
	// FailOnLoadFailure ends the request with an error.
	FailOnLoadFailure FailurePolicy = "fail"
	// RecomputeOnLoadFailure computes its prompt here.
	RecomputeOnLoadFailure FailurePolicy = "recompute"
)

// DataPlane is the way that KV caches take from engine to engine. Its methods are
// called by several goroutines.
type DataPlane interface {
	// Offer makes known that the KV cache of a request is kept for who asks. taken is
	// called once, from any goroutine, when one has pulled it or lets it go.
	Offer(cache KVCache, taken func())
	// Withdraw says that it is kept no longer.
	Withdraw(cache KVCache)
	// Pull fetches a KV cache and lets it go where it was. It returns when all of it is
	// here, or why it does not come.
	Pull(ctx context.Context, cache KVCache) error
	// Release lets a KV cache go that is not wanted any more.
	Release(ctx context.Context, cache KVCache) error
}

// KVCache names the KV cache of a prompt on the engine that computed it.
type KVCache struct {
	EngineID, RequestID string
	Host                string
	Port                int
}

// Address is where to ask for it.
func (c KVCache) Address() string { return net.JoinHostPort(c.Host, strconv.Itoa(c.Port)) }

// withDefaults fills in what is open, for one engine of a group.
func (t Transfer) withDefaults(index, ranks int) (*Transfer, error) {
	if t.EngineID == "" {
		t.EngineID = strings.ToLower(rand.Text())
	}
	if ranks > 1 {
		t.EngineID += "_dp" + strconv.Itoa(index)
	}
	t = t.withAddress()
	t.Port += index
	if t.Lease == 0 {
		t.Lease = 30 * time.Second
	}
	switch t.FailurePolicy {
	case "":
		t.FailurePolicy = FailOnLoadFailure
	case FailOnLoadFailure, RecomputeOnLoadFailure:
	default:
		return nil, fmt.Errorf("KV load failure policy %q: want %s or %s", t.FailurePolicy, FailOnLoadFailure, RecomputeOnLoadFailure)
	}
	if t.Port < 1 || t.Port > 65535 {
		return nil, fmt.Errorf("KV transfer port %d: want 1 to 65535", t.Port)
	}
	return &t, nil
}

// withAddress fills in where the first engine of a group listens.
func (t Transfer) withAddress() Transfer {
	t.Host, t.Port = cmp.Or(t.Host, "localhost"), cmp.Or(t.Port, 5600)
	return t
}

// transferParams are the kv_transfer_params of a request.
type transferParams struct {
	produce bool // do_remote_decode: keep the KV cache for another engine
	consume bool // do_remote_prefill: pull it from another engine
	cache   KVCache
	blocks  bool     // remote_block_ids names some
	present []string // keys of cache that are there
}

// neededToPull are the keys without which nobody knows what to pull from where.
var neededToPull = []string{"remote_engine_id", "remote_request_id", "remote_host", "remote_port"}

// decodeTransfer reads a msgpack map. Keys that it does not know are no error.
func decodeTransfer(raw []byte) (*transferParams, error) {
	cur := pack.NewCursor(raw)
	if cur.Nil() {
		return nil, nil
	}
	n, err := cur.MapLen()
	if err != nil {
		return nil, err
	}
	t := &transferParams{}
	for range n {
		key, err := cur.StrString()
		if err != nil {
			return nil, err
		}
		if cur.Nil() {
			continue
		}
		if err := t.decode(&cur, key); err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
	}
	return t, nil
}

func (t *transferParams) decode(cur *pack.Cursor, key string) (err error) {
	switch key {
	case "do_remote_decode":
		t.produce, err = cur.Bool()
	case "do_remote_prefill":
		t.consume, err = cur.Bool()
	case "remote_engine_id":
		t.cache.EngineID, err = cur.StrString()
	case "remote_request_id":
		t.cache.RequestID, err = cur.StrString()
	case "remote_host":
		t.cache.Host, err = cur.StrString()
	case "remote_port":
		t.cache.Port, err = port(cur)
	case "remote_block_ids":
		t.blocks, err = anyBlocks(cur)
	default:
		return cur.Skip()
	}
	if slices.Contains(neededToPull, key) {
		t.present = append(t.present, key)
	}
	return err
}

func port(cur *pack.Cursor) (int, error) {
	n, err := cur.Int()
	if err == nil && (n < 1 || n > 65535) {
		err = fmt.Errorf("%d: want 1 to 65535", n)
	}
	return int(n), err
}

// anyBlocks tells whether a list of block ids, or of such lists, is not empty.
func anyBlocks(cur *pack.Cursor) (bool, error) {
	raw, err := cur.Raw()
	if err != nil {
		return false, err
	}
	list := pack.NewCursor(raw)
	n, err := list.ArrayLen()
	return n > 0, err
}

// incomplete says what is missing to pull, nil when all is there. A real engine fails
// an assertion without block ids, and without one of the others waits for ever.
func (t *transferParams) incomplete() error {
	var missing []string
	for _, key := range neededToPull {
		if !slices.Contains(t.present, key) {
			missing = append(missing, key)
		}
	}
	if !t.blocks {
		missing = append(missing, "remote_block_ids")
	}
	if missing == nil {
		return nil
	}
	return fmt.Errorf("kv_transfer_params have do_remote_prefill, but no %s: who has computed the prompt?", strings.Join(missing, ", "))
}

// fetchStage is where the KV cache of a request is (vllm/v1/core/sched/scheduler.py
// KV_FETCH_WAITING_TO_START and the others).
type fetchStage uint8

const (
	notFetched fetchStage = iota
	waitingToStart
	inProgress
	completedWaiting
)

// connector is the state of an engine's KV connector.
type connector struct {
	*Transfer
	kept   map[string]*kvcache.Sequence // by request id: not freed yet, as another engine may ask for it
	stages [completedWaiting + 1]int
	stats  protocol.CacheStats
	// fetch and release ask the data plane, beside the engine; fetched is called in turn.
	fetch   func(c KVCache, fetched func(error))
	release func(c KVCache)
	// later has something done by the engine's goroutine; any goroutine may call it.
	later func(func())
}

// transferOf reads the kv_transfer_params of a request; nil when there are none, or no
// connector that would heed them.
func (e *engine) transferOf(r *protocol.Request) (*transferParams, error) {
	raw, err := extraArg(r, "kv_transfer_params")
	if err != nil || raw == nil {
		return nil, err
	}
	if e.connector == nil {
		e.log.Warn("a request has kv_transfer_params, and there is no KV connector: they are ignored", "request", r.ID)
		return nil, nil
	}
	t, err := decodeTransfer(raw)
	if err != nil {
		return nil, fmt.Errorf("kv_transfer_params: %w", err)
	}
	return t, nil
}

// extraArg is a member of the request's extra_args, nil when it has none of that name.
func extraArg(r *protocol.Request, name string) ([]byte, error) {
	if r.Sampling.ExtraArgs == nil {
		return nil, nil
	}
	cur := pack.NewCursor(r.Sampling.ExtraArgs)
	n, err := cur.MapLen()
	for i := 0; i < n && err == nil; i++ {
		var key string
		if key, err = cur.StrString(); err != nil {
			break
		}
		var value []byte
		if value, err = cur.Raw(); err == nil && key == name {
			return value, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("extra_args: %w", err)
	}
	return nil, nil
}

// takePart makes a request pull its KV cache, or keep it for another engine. A request
// that may not use a cache has no use for another engine's either.
func (e *engine) takePart(q *request, t *transferParams) {
	if t == nil {
		return
	}
	q.transfer = t
	if t.consume {
		q.Remote = !q.Seq.Uncached
		e.setStage(q, waitingToStart)
	}
}

func (e *engine) setStage(q *request, stage fetchStage) {
	if e.connector == nil || q.stage == stage {
		return
	}
	e.connector.stages[q.stage]--
	e.connector.stages[stage]++
	q.stage = stage
}

// letGo tells the engine that keeps the KV cache of a request that nobody will pull it
// (vllm/distributed/kv_transfer/kv_connector/v1/nixl/pull_scheduler.py request_finished).
func (e *engine) letGo(t *transferParams) {
	if t != nil && t.consume && t.incomplete() == nil && e.connector.Plane != nil {
		e.connector.release(t.cache)
	}
}

// pull fetches the KV cache of a request for which blocks have been set aside.
func (e *engine) pull(q *request, at time.Duration) {
	c := e.connector
	e.setStage(q, inProgress)
	e.countExternal(q, len(q.Seq.Tokens)-q.Cached, q.External)
	if err := q.transfer.incomplete(); err != nil {
		e.pulled(q, err)
		return
	}
	took := time.Duration(0)
	if e.model != nil {
		took = e.opt.scaled(max(e.model.Transfer(q.timing), 0))
	}
	if c.Plane == nil {
		e.pulledAt(q, at+took, nil)
		return
	}
	c.fetch(q.transfer.cache, func(err error) { e.pulledAt(q, at+took, err) })
}

// pulledAt ends a pull when its time has come.
func (e *engine) pulledAt(q *request, at time.Duration, err error) {
	if at <= e.clock.Now() {
		e.pulled(q, err)
		return
	}
	e.after(at, func() { e.pulled(q, err) })
}

// pulled lets a request go on whose KV cache has come. When it has not, the policy
// says what becomes of it.
func (e *engine) pulled(q *request, err error) {
	if e.byID[q.id] != q {
		return // aborted meanwhile
	}
	e.setStage(q, completedWaiting)
	if err == nil {
		e.scheduler.Pulled(&q.Request, false)
		return
	}
	err = fmt.Errorf("its KV cache did not come from another engine: %w", err)
	if e.connector.FailurePolicy == FailOnLoadFailure {
		e.end(q, err)
		return
	}
	e.log.Warn("the prompt is computed here", "request", q.id, "error", err)
	e.scheduler.Pulled(&q.Request, true)
}

// countExternal counts a look-up of other engines' caches, in tokens.
func (e *engine) countExternal(q *request, queries, hits int) {
	s := &e.connector.stats
	if q.Preemptions > 0 {
		s.PreemptedRequests++
		s.PreemptedQueries += queries
		s.PreemptedHits += hits
		return
	}
	s.Requests++
	s.Queries += queries
	s.Hits += hits
}

// fetchedBefore notes that a request has got its place in the batch, with the KV
// cache of another engine or without.
func (e *engine) fetchedBefore(q *request) {
	if e.connector == nil {
		return
	}
	if q.stage != completedWaiting || q.External == 0 {
		e.countExternal(q, len(q.Seq.Tokens)-(q.Computed-q.Share), 0)
	}
	e.setStage(q, notFetched)
}

// offer tells with the last output where the KV cache of a request is kept.
func (e *engine) offer(q *request, out *protocol.Output) {
	if q.transfer == nil || !q.transfer.produce {
		return
	}
	if out.Finish != protocol.FinishLength && out.Finish != protocol.FinishStop {
		return
	}
	size := e.pool.BlockSize()
	blocks := e.pool.BlockIDs(q.Seq)
	blocks = blocks[:min(len(blocks), (q.Computed+size-1)/size)]
	out.KVTransfer = e.encodeOffer(q, blocks)
	q.keeps = len(blocks) > 0
}

// keep holds back the blocks of a request that ends until another engine has pulled
// them, or the lease has ended.
func (e *engine) keep(q *request) {
	c, kept, cache := e.connector, q.Seq, e.cacheOf(q.id)
	q.Seq = kvcache.NewSequence(nil) // which the scheduler frees in its place
	c.kept[q.id] = kept
	free := func() {
		if c.kept[cache.RequestID] == kept {
			delete(c.kept, cache.RequestID)
			e.pool.Free(kept)
		}
	}
	e.after(e.clock.Now()+c.Lease, func() {
		if c.Plane != nil && c.kept[cache.RequestID] == kept {
			c.Plane.Withdraw(cache)
		}
		free()
	})
	if c.Plane != nil {
		c.Plane.Offer(cache, func() { c.later(free) })
	}
}

// kept tells whether the KV cache of a request is kept that has ended: its id is in use.
func (e *engine) kept(id string) bool {
	return e.connector != nil && e.connector.kept[id] != nil
}

func (e *engine) cacheOf(id string) KVCache {
	c := e.connector
	return KVCache{EngineID: c.EngineID, RequestID: id, Host: c.Host, Port: c.Port}
}

// encodeOffer writes kv_transfer_params for the engine that goes on, with the keys of
// the line (vllm/distributed/kv_transfer/kv_connector/v1/nixl/pull_scheduler.py).
func (e *engine) encodeOffer(q *request, blocks []int) []byte {
	cache, computed := e.cacheOf(q.id), 0
	if len(blocks) > 0 {
		computed = q.Computed
	}
	ids := pack.AppendArrayHeader(pack.AppendArrayHeader(nil, 1), len(blocks)) // a list for each group of layers
	for _, id := range blocks {
		ids = pack.AppendInt(ids, int64(id))
	}
	number := func(n int) []byte { return pack.AppendInt(nil, int64(n)) }
	line := e.codec.Line()
	since := func(r protocol.LineRule, value []byte) []byte {
		if r.Holds(line) {
			return value
		}
		return nil // a key that the line does not write
	}
	members := []struct {
		key   string
		value []byte
	}{
		{"do_remote_prefill", pack.AppendBool(nil, true)},
		{"do_remote_decode", pack.AppendBool(nil, false)},
		{"remote_block_ids", ids},
		{"remote_engine_id", pack.AppendString(nil, cache.EngineID)},
		{"remote_request_id", pack.AppendString(nil, cache.RequestID)},
		{"remote_host", pack.AppendString(nil, cache.Host)},
		{"remote_port", number(cache.Port)},
		{"tp_size", number(max(e.ready.TensorParallelSize, 1))},
		{"dcp_size", since(protocol.TransferHasParallelSizes, number(max(e.ready.DecodeContextParallelSize, 1)))},
		{"pp_size", since(protocol.TransferHasParallelSizes, number(max(e.ready.PipelineParallelSize, 1)))},
		{"remote_num_tokens", number(computed)},
		{"remote_blocks_expiry_time", since(protocol.TransferHasExpiry, pack.AppendNil(nil))},
		{"remote_registration_generation", since(protocol.TransferHasGeneration, number(1))},
		{"transfer_mode", since(protocol.TransferHasMode, pack.AppendString(nil, "pull"))},
	}
	n := 0
	var body []byte
	for _, m := range members {
		if m.value != nil {
			n++
			body = append(pack.AppendString(body, m.key), m.value...)
		}
	}
	return append(pack.AppendMapHeader(nil, n), body...)
}

// attachConnector gives the engine its KV connector, if it has one.
func (p *Player) attachConnector() error {
	if p.opt.Transfer == nil {
		return nil
	}
	t, err := p.opt.Transfer.withDefaults(p.opt.EngineIndex, max(p.ready.DataParallelSize, p.opt.DataParallelSize))
	if err != nil {
		return err
	}
	p.engine.connector = &connector{
		Transfer: t, kept: map[string]*kvcache.Sequence{},
		fetch: p.fetch, release: p.release, later: p.later,
	}
	return nil
}

// later has something done by the goroutine of the engine.
func (p *Player) later(do func()) { p.inbox.put(event{kind: ofEngine, do: do}) }

// fetch pulls a KV cache beside the engine.
func (p *Player) fetch(c KVCache, fetched func(error)) {
	p.fetches.Go(func() {
		err := p.engine.connector.Plane.Pull(p.serving, c)
		p.later(func() { fetched(err) })
	})
}

func (p *Player) release(c KVCache) {
	p.fetches.Go(func() {
		if err := p.engine.connector.Plane.Release(p.serving, c); err != nil && !errors.Is(err, context.Canceled) {
			p.opt.Log.Warn("the engine that keeps a KV cache could not be told to let it go", "at", c.Address(), "error", err)
		}
	})
}

// startFetching lets KV caches be fetched until ctx ends or stop is called, which waits
// for who still does.
func (p *Player) startFetching(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	p.serving = ctx
	return func() {
		cancel()
		p.fetches.Wait()
	}
}
