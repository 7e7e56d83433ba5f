package player

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/vllm-vcr/conformance/internal/engine/kvcache"
	"github.com/vllm-vcr/conformance/internal/engine/kvtransfer"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// The parts of a KV connector, see [ParseTransfer].
type (
	Transfer      = kvtransfer.Config
	FailurePolicy = kvtransfer.FailurePolicy
	DataPlane     = kvtransfer.DataPlane
	KVCache       = kvtransfer.Cache
	SideChannel   = kvtransfer.SideChannel
)

// The failure policies: to end the request with an error, or to compute its prompt here.
const (
	FailOnLoadFailure      = kvtransfer.FailOnLoadFailure
	RecomputeOnLoadFailure = kvtransfer.RecomputeOnLoadFailure
)

// ParseTransfer reads what vLLM's --kv-transfer-config takes, a JSON object, for a
// connector that pulls by NIXL. getenv looks up VLLM_NIXL_SIDE_CHANNEL_HOST and
// VLLM_NIXL_SIDE_CHANNEL_PORT, as [os.Getenv] does.
func ParseTransfer(text string, getenv func(string) string) (*Transfer, error) {
	return kvtransfer.Parse(text, getenv)
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
	*kvtransfer.Config
	kept   map[string]*keptCache // by request id: not freed yet, as another engine may ask for it
	stages [completedWaiting + 1]int
	stats  protocol.CacheStats
	moved  protocol.ConnectorStats // since the last message
	wrong  int                     // blocks that did not have the contents of their tokens
	// fetch and release ask the data plane outside of the engine's loop; fetched is called in it.
	fetch   func(c kvtransfer.Cache, fetched func(kvtransfer.Moved, error))
	release func(c kvtransfer.Cache)
	// later has something done by the engine's goroutine; any goroutine may call it.
	later func(func())
}

// keptCache is the KV cache of a request that has ended.
type keptCache struct {
	*kvcache.Sequence
	until time.Duration // the end of its lease
}

// transferOf reads the kv_transfer_params of a request; nil when there are none, or no
// connector that would heed them.
func (e *engine) transferOf(r *protocol.Request) (*kvtransfer.Params, error) {
	raw, err := extraArg(r, "kv_transfer_params")
	if err != nil || raw == nil {
		return nil, err
	}
	if e.connector == nil {
		e.log.Warn("kv_transfer_params of a request are ignored: there is no KV connector (--kv-transfer-config)", "request", r.ID)
		return nil, nil
	}
	t, err := kvtransfer.DecodeParams(raw)
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

func (e *engine) setFetchStage(q *request, stage fetchStage) {
	if e.connector == nil || q.stage == stage {
		return
	}
	e.connector.stages[q.stage]--
	e.connector.stages[stage]++
	q.stage = stage
}

// releaseRemote makes the engine that keeps a KV cache for a request free it, as it is not pulled
// (vllm/distributed/kv_transfer/kv_connector/v1/nixl/pull_scheduler.py request_finished).
func (e *engine) releaseRemote(t *kvtransfer.Params) {
	if t != nil && t.Consume && t.Incomplete() == nil && e.connector.DataPlane != nil {
		e.connector.release(t.Cache)
	}
}

// startPull fetches the KV cache of a request for which blocks have been set aside.
func (e *engine) startPull(q *request, at time.Duration) {
	c := e.connector
	e.setFetchStage(q, inProgress)
	q.pulled = at
	e.countExternal(q, len(q.Seq.Tokens)-q.Cached, q.External)
	if err := q.transfer.Incomplete(); err != nil {
		e.finishPull(q, kvtransfer.Moved{}, err)
		return
	}
	took := time.Duration(0)
	if e.model != nil {
		took = e.opt.scaled(max(e.model.Transfer(q.timing), 0))
	}
	if slow, is := q.faults.has(FaultSlowKV); is {
		took += slow.Delay
	}
	if _, is := q.faults.has(FaultLoseKV); is {
		e.finishPullAt(q, at+took, kvtransfer.Moved{}, errors.New("lost by a fault"))
		return
	}
	if c.DataPlane == nil {
		e.finishPullAt(q, at+took, kvtransfer.Moved{Descriptors: 1}, nil)
		return
	}
	cache := q.transfer.Cache
	cache.Local, cache.Contents = e.blocksOf(q.Seq, q.Prompt, q.Prompt)
	first := min(q.Cached/e.pool.BlockSize(), len(cache.Local)) // those before it are here already
	cache.Local, cache.Contents = cache.Local[first:], cache.Contents[first:]
	c.fetch(cache, func(moved kvtransfer.Moved, err error) { e.finishPullAt(q, at+took, moved, err) })
}

// blocksOf returns the blocks of the first tokens of a sequence, and for each a number by which engines know its contents: they follow
// from the tokens of the prompt up to its end.
func (e *engine) blocksOf(s *kvcache.Sequence, tokens, prompt int) (ids []int, contents []uint64) {
	size := e.pool.BlockSize()
	ids = e.pool.BlockIDs(s)
	ids = ids[:min(len(ids), (tokens+size-1)/size)]
	hash := fnv.New64a()
	for i := range ids {
		for _, token := range s.Tokens[min(i*size, prompt):min((i+1)*size, prompt)] {
			_, _ = hash.Write(binary.LittleEndian.AppendUint32(nil, token)) // it does not fail
		}
		contents = append(contents, hash.Sum64())
	}
	return ids, contents
}

// finishPullAt ends a pull when its time has come.
func (e *engine) finishPullAt(q *request, at time.Duration, moved kvtransfer.Moved, err error) {
	if at <= e.clock.Now() {
		e.finishPull(q, moved, err)
		return
	}
	e.timers.callAt(at, func() { e.finishPull(q, moved, err) })
}

// finishPull lets a request go on whose KV cache has come. When it has not, the policy
// decides what becomes of it.
func (e *engine) finishPull(q *request, moved kvtransfer.Moved, err error) {
	if e.byID[q.id] != q {
		return // aborted meanwhile
	}
	q.stopAwaiting()
	e.setFetchStage(q, completedWaiting)
	e.countPull(q, moved, err)
	if err == nil {
		e.scheduler.Pulled(&q.Request, false)
		return
	}
	err = fmt.Errorf("the KV cache of its prompt did not arrive from the other engine: %w", err)
	if e.connector.FailurePolicy == FailOnLoadFailure {
		// vllm/v1/core/sched/scheduler.py update_from_output, and the golden frames-transfer of 0.33
		e.log.Error("request ended, and its client is not told why, as with a real engine", "request", q.id, "error", err)
		if e.onRefused != nil {
			e.onRefused(q.id, err)
		}
		out := &protocol.Output{Finish: protocol.FinishError, Events: q.events, TraceHeaders: q.traceHeaders}
		e.remove(q)
		e.sendFinal(q.client, q.stream, out)
		return
	}
	e.log.Warn("a KV cache did not arrive, so the prompt is computed here", "request", q.id, "error", err)
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

// countPull counts a pull that has ended (vllm/distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py). A data plane without content
// counts as one descriptor of no bytes.
func (e *engine) countPull(q *request, moved kvtransfer.Moved, err error) {
	c := e.connector
	switch {
	case err == nil:
		c.moved.Transfers = append(c.moved.Transfers, protocol.ConnectorTransfer{
			Duration: seconds(max(e.clock.Now()-q.pulled, 0)), PostDuration: seconds(moved.Posted), Bytes: moved.Bytes, Descriptors: moved.Descriptors,
		})
	case errors.Is(err, kvtransfer.ErrHandshake):
		c.moved.FailedHandshakes++
	default:
		c.moved.FailedTransfers++
	}
	if moved.Wrong > 0 {
		c.wrong += moved.Wrong
		e.log.Warn("blocks of a KV cache do not have the contents of its tokens", "request", q.id, "blocks", moved.Wrong, "sum", c.wrong)
	}
}

// await keeps the KV cache of a request that waits.
func (e *engine) await(q *request) {
	if c := e.connector; c.DataPlane != nil && q.transfer.Incomplete() == nil {
		q.awaited = c.DataPlane.Await(q.transfer.Cache)
	}
}

func (q *request) stopAwaiting() {
	if q.awaited != nil {
		q.awaited()
		q.awaited = nil
	}
}

// takeMoved is what the connector did since the last message, nil for nothing.
func (c *connector) takeMoved() *protocol.ConnectorStats {
	m := c.moved
	if len(m.Transfers)+m.FailedHandshakes+m.FailedTransfers+m.Expired+m.Late == 0 {
		return nil
	}
	c.moved = protocol.ConnectorStats{}
	return &m
}

// countFetch records that a request has got its place in the batch, with the KV
// cache of another engine or without.
func (e *engine) countFetch(q *request) {
	if e.connector == nil {
		return
	}
	if q.stage != completedWaiting || q.External == 0 {
		e.countExternal(q, len(q.Seq.Tokens)-(q.Computed-q.Share), 0)
	}
	e.setFetchStage(q, notFetched)
}

// offerBlocks writes into the last output where the KV cache of a request is kept.
func (e *engine) offerBlocks(q *request, out *protocol.Output) {
	if q.transfer == nil || !q.transfer.Produce {
		return
	}
	if out.Finish != protocol.FinishLength && out.Finish != protocol.FinishStop {
		return
	}
	blocks, _ := e.blocksOf(q.Seq, q.Computed, 0)
	offer := kvtransfer.Offer{
		Cache: e.cacheOf(q.id), Blocks: blocks, Computed: q.Computed, TensorParallel: e.ready.TensorParallelSize,
		DecodeContextParallel: e.ready.DecodeContextParallelSize, PipelineParallel: e.ready.PipelineParallelSize, Cached: -1,
	}
	if !q.answered {
		offer.Cached = q.Cached + q.External
	}
	out.KVTransfer = offer.Encode(e.codec.Line())
	q.keepsBlocks = len(blocks) > 0
}

// keepBlocks holds back the blocks of a request that ends until another engine has pulled
// them, or the lease has ended, which that engine can extend.
func (e *engine) keepBlocks(q *request) {
	c, cache := e.connector, e.cacheOf(q.id)
	kept := &keptCache{Sequence: q.Seq, until: e.clock.Now() + c.Lease}
	if _, is := q.faults.has(FaultForgetKV); is {
		kept.until = e.clock.Now()
	}
	cache.Blocks, cache.Contents = e.blocksOf(q.Seq, q.Computed, q.Prompt)
	q.Seq = kvcache.NewSequence(nil) // which the scheduler frees in its place
	c.kept[q.id] = kept
	free := func() {
		if c.kept[cache.RequestID] == kept {
			delete(c.kept, cache.RequestID)
			e.pool.Free(kept.Sequence)
		}
	}
	var end func()
	end = func() {
		switch {
		case c.kept[cache.RequestID] != kept:
			return
		case e.clock.Now() < kept.until: // extended
			e.timers.callAt(kept.until, end)
			return
		}
		c.moved.Expired++
		if c.DataPlane != nil {
			c.DataPlane.Withdraw(cache)
		}
		free()
	}
	e.timers.callAt(kept.until, end)
	if c.DataPlane == nil {
		return
	}
	c.DataPlane.Offer(cache, kvtransfer.Events{
		Taken:    func() { c.later(free) },
		Extended: func() { c.later(func() { kept.until = max(kept.until, e.clock.Now()+c.Lease*2/3) }) },
		Late:     func() { c.later(func() { c.moved.Late++ }) },
	})
}

func (e *engine) cacheOf(id string) kvtransfer.Cache {
	c := e.connector
	return kvtransfer.Cache{EngineID: c.EngineID, RequestID: id, Host: c.Host, Port: c.Port}
}
