package invariant

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// registration is what the engine registered with, as far as later messages can be held to it; 0 is what it does not tell.
type registration struct {
	known                  bool
	index                  int
	maxModelLen, blocks    int
	blockSize, cacheTokens int64
	maxSeqs                int64
	ranks                  int64 // of the data-parallel group
}

// single reports whether the KV cache has one kind of blocks, as far as the registration shows: a model with several kinds of
// layers has another capacity (vllm/v1/core/kv_cache_utils.py get_kv_cache_capacity).
func (r *registration) single() bool {
	return r.blockSize > 0 && r.cacheTokens > 0 && r.maxModelLen > 0 && r.blocks > 0 &&
		r.cacheTokens == int64(float64(r.blocks)/float64((int64(r.maxModelLen)+r.blockSize-1)/r.blockSize)*float64(r.maxModelLen))
}

// Registered judges what the engine registered with on its input socket; index is that of its identity
// (vllm/v1/engine/core.py EngineCoreReadyResponse).
func (e *Engine) Registered(index int, raw []byte) []check.Failure {
	e.failures, e.number = nil, -1
	ready := e.codec.Read(new(protocol.View), protocol.KindReady, raw)
	if ready.Kind() != pack.Map {
		return nil
	}
	fail := func(at protocol.Value, expected, actual any, why string) {
		e.failures = append(e.failures, check.Failed(CodeRegistration, "ready response: %s: expected %v, found %v: %s", at.Path(), expected, actual, why).
			Within(-1, at.Path()).Compared(expected, actual))
	}
	count := func(name string) int64 { return ready.Field(name).Count() }
	e.ready = registration{
		known: true, index: index, maxModelLen: int(count("max_model_len")), blocks: int(count("num_gpu_blocks")),
		blockSize: count("block_size"), cacheTokens: count("kv_cache_size_tokens"), maxSeqs: count("max_num_seqs"),
		ranks: count("data_parallel_size"),
	}
	for _, name := range []string{
		"max_model_len", "block_size", "world_size", "data_parallel_size", "tensor_parallel_size", "pipeline_parallel_size",
		"decode_context_parallel_size", "max_num_seqs", "max_num_batched_tokens",
	} {
		if v, ok := ready.Field(name).Int(); ok && (v < 1 || v > math.MaxInt32) {
			fail(ready.Field(name), "1 to 2147483647", v, "a size is above 0, and none is so large")
		}
	}
	for _, name := range []string{"num_gpu_blocks", "max_loras", "coord_store_port"} {
		if v := count(name); v < 0 {
			fail(ready.Field(name), "at least 0", v, "no count may be negative")
		}
	}
	// vllm/v1/core/kv_cache_utils.py update_kv_cache_capacity: the whole tokens of so many contexts. That they are blocks times
	// block size holds only of a model with one kind of layers, and where max_model_len is a multiple of the block size.
	concurrency, hasConcurrency := ready.Field("kv_cache_max_concurrency").Float()
	if tokens, ok := ready.Field("kv_cache_size_tokens").Int(); ok && hasConcurrency {
		if want := int64(concurrency * float64(e.ready.maxModelLen)); want != tokens {
			fail(ready.Field("kv_cache_size_tokens"), want, tokens, "the space for kv_cache_max_concurrency contexts of max_model_len tokens")
		}
	}
	if e.ready.cacheTokens > 0 && e.ready.blocks < 1 {
		fail(ready.Field("num_gpu_blocks"), "at least 1", e.ready.blocks, "kv_cache_size_tokens are in blocks")
	}
	if e.ready.single() {
		// vllm/v1/core/kv_cache_utils.py get_max_concurrency_for_kv_cache_config
		want := float64(e.ready.blocks) / float64((int64(e.ready.maxModelLen)+e.ready.blockSize-1)/e.ready.blockSize)
		if hasConcurrency && math.Abs(concurrency-want) > 1e-9*want {
			fail(ready.Field("kv_cache_max_concurrency"), want, concurrency, "the blocks of the KV cache, by those of a context of max_model_len tokens")
		}
		if v, ok := ready.Field("effective_attention_block_size").Int(); ok && v%e.ready.blockSize != 0 {
			fail(ready.Field("effective_attention_block_size"), fmt.Sprintf("a multiple of %d", e.ready.blockSize), v, "the layers have blocks of block_size tokens, on each of the workers that share a context")
		}
	}
	if events := ready.Field("kv_events_config"); events.Given() {
		if on, _ := events.Field("enable_kv_cache_events").Bool(); !on {
			fail(events.Field("enable_kv_cache_events"), true, false, "an engine registers with the place of its KV events only if it publishes them")
		}
		if at := events.Field("endpoint"); at.Given() && !isAddress(at.Text()) {
			fail(at, "tcp://host:port or ipc://path", check.Describe(at.Bytes()), "routers subscribe there")
		}
	}
	tp, ok := ready.Field("tensor_parallel_size").Int()
	if pp, both := ready.Field("pipeline_parallel_size").Int(); ok && both && count("world_size")%max(tp*pp, 1) != 0 {
		fail(ready.Field("world_size"), fmt.Sprintf("a multiple of %d", tp*pp), count("world_size"), "each group has tensor_parallel_size times pipeline_parallel_size workers")
	}
	e.judgeRanks(ready, fail)
	e.judgeVersion(ready.Field("vllm_version"), fail)
	for _, name := range []string{"mamba_block_size", "effective_attention_block_size"} {
		if v, ok := ready.Field(name).Int(); ok && (v < 1 || v > math.MaxInt32) {
			fail(ready.Field(name), "1 to 2147483647, or nil", v, "a size is above 0, and none is so large")
		}
	}
	if drafts, _ := ready.Field("supports_draft_weight_updates").Bool(); drafts && !ready.Field("weight_transfer_backend").Given() {
		fail(ready.Field("supports_draft_weight_updates"), false, true, "only an engine with a weight_transfer_backend takes new weights")
	}
	if seqs, tokens := count("max_num_seqs"), count("max_num_batched_tokens"); seqs > 0 && tokens > 0 && seqs > tokens {
		// vllm/config/scheduler.py refuses it.
		fail(ready.Field("max_num_seqs"), fmt.Sprintf("at most %d", tokens), seqs, "a step cannot have more requests than max_num_batched_tokens")
	}
	if loras, ok := ready.Field("max_loras").Int(); ok {
		if supports, ok := ready.Field("supports_lora").Bool(); ok && supports != (loras > 0) {
			fail(ready.Field("max_loras"), fmt.Sprintf("supports_lora is %v", supports), loras, "adapters are counted only where LoRA is enabled")
		}
	}
	return e.failures
}

// judgeRanks: the engine says with which rank and addresses it was started (vllm/v1/engine/core.py _make_ready_response). A model
// without experts has engines that are groups of one, whatever their ranks.
func (e *Engine) judgeRanks(ready protocol.Value, fail func(at protocol.Value, expected, actual any, why string)) {
	rank, size := ready.Field("data_parallel_rank"), ready.Field("data_parallel_size").Count()
	if r, ok := rank.Int(); ok && r != int64(e.ready.index) {
		fail(rank, e.ready.index, r, "the identity names the engine of this rank")
	}
	if v := ready.Field("coord_store_port"); v.Count() > math.MaxUint16 {
		fail(v, "a port", v.Count(), "a port has 16 bits")
	}
	if tp, dcp := ready.Field("tensor_parallel_size").Count(), ready.Field("decode_context_parallel_size").Count(); dcp > 0 &&
		tp%dcp != 0 && ready.Field("world_size").Count() == tp*ready.Field("pipeline_parallel_size").Count() {
		// vllm/config/parallel.py: decoding over several workers uses those of the tensor-parallel group.
		fail(ready.Field("decode_context_parallel_size"), fmt.Sprintf("a divisor of %d", tp), dcp, "it divides tensor_parallel_size")
	}
	if e.init == nil {
		return
	}
	for _, a := range []struct {
		name  string
		given *string // by the frontend
	}{
		{"dp_stats_address", e.init.FrontendStatsPublish},
		{"coordinator_input_address", e.init.CoordinatorInput},
		{"coordinator_output_address", e.init.CoordinatorOutput},
	} {
		if v := ready.Field(a.name); v.Given() && a.given == nil {
			fail(v, "nil", check.Describe(v.Bytes()), "the frontend has no coordinator of data-parallel engines, so there is no such address")
		} else if v.Given() && !isAddress(v.Text()) {
			fail(v, "tcp://host:port or ipc://path", check.Describe(v.Bytes()), "no socket has such an address")
		} else if a.name == "dp_stats_address" && v.Given() && v.Text() != *a.given {
			fail(v, *a.given, check.Describe(v.Bytes()), "the frontend has told the engine this address")
		} else if v.Kind() == pack.Nil && a.given != nil {
			fail(v, *a.given, "nil", "the frontend has told the engine this address")
		}
	}
	if size > 1 && e.init.CoordinatorOutput == nil {
		fail(ready.Field("data_parallel_size"), 1, size, "the frontend has no coordinator, and the engines of a group need one")
	}
}

// judgeVersion: the engine is of the line by which it is judged. A development build may be of any. A line that this build does not
// know is judged as another one until it is supported.
func (e *Engine) judgeVersion(at protocol.Value, fail func(at protocol.Value, expected, actual any, why string)) {
	version := at.Text()
	line := protocol.LineOf(version)
	if line == e.codec.Line() || at.Kind() != pack.String || strings.Contains(version, "dev") {
		return
	}
	if line != version && (!protocol.HasProfile(line) || protocol.IsLearned(line)) {
		return
	}
	fail(at, "a release of "+e.codec.Line(), fmt.Sprintf("%.100q", version), "frontends show it, and take it for that of the engine")
}

// measure finds out how many blocks a request can take at most.
func (e *Engine) measure(r *request) {
	if !e.ready.single() || r.length < 0 || !r.sampling.HasMaxTokens {
		e.fitsCache = false
		return
	}
	tokens := int64(min(r.length+r.sampling.MaxTokens, e.ready.maxModelLen+1))
	r.blocks = int((tokens+e.ready.blockSize-1)/e.ready.blockSize) + 1
	if e.openBlocks() > e.ready.blocks-1 {
		e.fitsCache = false
	}
}

// gaugeValues are the values of the last statistics that say how things are.
type gaugeValues struct {
	running, waiting, skipped int64
	usage                     float64
}

// open reports whether the engine may have the request, as far as is known.
func (e *Engine) open(r *request) bool {
	return r.finish == protocol.Unfinished && (r.aborted == 0 || r.aborted > e.read)
}

func (e *Engine) openBlocks() (blocks int) {
	for _, r := range e.active {
		if e.open(r) {
			blocks += r.blocks
		}
	}
	return blocks
}

// maxLately bounds how many requests are remembered that the engine has no more.
const maxLately = 63

// forget drops what no later message can be held to, so that a long session costs no more than a short one.
func (e *Engine) forget() {
	if len(e.requests) < 4096 {
		return
	}
	for id, r := range e.requests {
		if !e.open(r) {
			delete(e.requests, id)
		}
	}
}

// judgeStats looks at the statistics of a step (vllm/v1/core/sched/scheduler.py make_stats).
func (e *Engine) judgeStats() {
	e.hasStatistics = true
	e.judgeKeys(e.stats, "SchedulerStats")
	e.judgeKeys(e.stats.Field("prefix_cache_stats"), "PrefixCacheStats")
	e.judgeGauges()
	e.judgeCache()
	e.judgeAdmitted()
	e.judgeDrafts()
	e.judgeStep()
	e.forget()
}

// judgeKeys: a dataclass is sent with all its keys, also those with a default (msgspec; the struct does not omit defaults).
func (e *Engine) judgeKeys(v protocol.Value, name string) {
	declared := e.codec.Profile().Structs[name]
	if v.Kind() != pack.Map || declared.OmitDefaults || v.Len() == len(declared.Fields) {
		return
	}
	for _, f := range declared.Fields {
		if at := v.Field(f.Name); at.IsAbsent() {
			e.fail(CodeKeys, at, f.Type, "missing", "every released engine of line %s sends this key", e.codec.Line())
		}
	}
}

// judgeGauges: the engine counts the requests that it has. Those that it has answered and that go on it has, and what was sent
// before a call that it has answered; those that have ended, and what it was not sent, it has not. How many of them run is its
// own matter, but for those that it gave a token in this step and that nothing can have put back.
func (e *Engine) judgeGauges() {
	running, waiting, skipped := e.stats.Field("num_running_reqs"), e.stats.Field("num_waiting_reqs"), e.stats.Field("num_skipped_waiting_reqs")
	g := gaugeValues{running: running.Count(), waiting: waiting.Count(), skipped: skipped.Count()}
	g.usage, _ = e.stats.Field("kv_cache_usage").Float()
	e.gauges = g
	for _, v := range []protocol.Value{running, waiting, skipped} {
		if v.Count() < 0 {
			e.fail(CodeGauges, v, "a count", v.Count(), "no count may be negative")
			return
		}
	}
	e.active = slices.DeleteFunc(e.active, func(r *request) bool {
		if e.open(r) {
			return false
		}
		if r.gone = e.now; r.sampling.Logprobs > 0 {
			e.lately = append(e.lately[max(len(e.lately)-maxLately, 0):], r)
		}
		return true
	})
	has, may, answered := int64(0), int64(0), int64(0)
	for _, r := range e.active {
		if r.session {
			return // it comes and goes
		}
		may++
		if r.aborted == 0 && (r.outputs > 0 || r.asked <= e.read) {
			has++
			if r.answeredIn == e.number {
				answered++
			}
		}
	}
	severalClients := len(e.clients) > 1 // whose messages come in an order of their own
	total := g.running + g.waiting + g.skipped
	switch {
	case severalClients:
	case g.running+g.waiting > may || g.skipped > may:
		e.fail(CodeGauges, running, fmt.Sprintf("at most %d", may), fmt.Sprintf("%d running, %d waiting, %d held back", g.running, g.waiting, g.skipped), "no more requests can run or wait than are open")
	case total < has:
		e.fail(CodeGauges, running, fmt.Sprintf("at least %d", has), fmt.Sprintf("%d running, %d waiting, %d held back", g.running, g.waiting, g.skipped), "all requests that the engine has are counted")
	case e.fitsCache && !e.runningChanged && g.running < answered:
		e.fail(CodeGauges, running, fmt.Sprintf("at least %d", answered), g.running, "requests that got a token and have not ended are running")
	}
	if e.ready.maxSeqs > 0 && g.running > e.ready.maxSeqs {
		e.fail(CodeGauges, running, fmt.Sprintf("at most %d", e.ready.maxSeqs), g.running, "no more requests can run than max_num_seqs")
	}
	e.judgeUsage()
	e.judgeFetches()
}

// judgeAdmitted: a request is counted in the statistics of the prefix cache when it is let in, so no more can run than were
// counted and have not ended.
func (e *Engine) judgeAdmitted() {
	c := &e.cache
	if !c.sound(e) {
		return
	}
	if limit := c.requests + c.uncounted - c.ended; e.gauges.running > limit {
		e.fail(CodeGauges, e.stats.Field("num_running_reqs"), fmt.Sprintf("at most %d", limit), e.gauges.running, "no more requests can run than were scheduled and have not ended")
	}
}

// judgeUsage: 1 - free blocks / blocks, one block being set aside (vllm/v1/core/block_pool.py get_usage).
func (e *Engine) judgeUsage() {
	at, usage := e.stats.Field("kv_cache_usage"), e.gauges.usage
	if usage < 0 || usage > 1 || math.IsNaN(usage) {
		e.fail(CodeGauges, at, "0 to 1", usage, "the usage is a part of the KV cache")
		return
	}
	if e.ready.blocks < 2 || e.opt.Scripted { // an engine that plays a recording may have registered with blocks of its own
		return
	}
	pool := float64(e.ready.blocks - 1)
	used := math.Round(usage * pool)
	if math.Abs(usage*pool-used) > 1e-6 {
		e.fail(CodeGauges, at, fmt.Sprintf("a multiple of 1/%v", pool), usage, "the usage is a number of blocks divided by num_gpu_blocks − 1")
		return
	}
	if !e.ready.single() || e.hasConnector || len(e.clients) > 1 || !e.fitsCache || e.runningChanged {
		return
	}
	// Blocks that requests share are held once, so a single one needs what it has computed, and all together no more than each
	// alone.
	least, greatest := int64(0), int64(0)
	for _, r := range e.active {
		computed := int64(r.length + r.tokens)
		ahead := int64(1) + max(e.drafts, 0) + 1
		greatest += (computed+ahead)/e.ready.blockSize + 1
		if r.outputs > 0 && r.aborted == 0 {
			least = max(least, (computed-1+e.ready.blockSize-1)/e.ready.blockSize)
		}
	}
	if used := int64(used); used < least || used > greatest {
		e.fail(CodeGauges, at, fmt.Sprintf("%d to %d blocks", least, greatest), fmt.Sprintf("%d", used), "the open requests need this many blocks of %d tokens", e.ready.blockSize)
	}
}

// judgeFetches: without a connector to other engines nothing is fetched from them.
func (e *Engine) judgeFetches() {
	stages, total := e.stats.Field("num_kv_fetch_reqs_by_stage"), int64(0)
	if stages.Kind() != pack.Map {
		return
	}
	for v := range stages.Parts() {
		n, ok := v.Int()
		if !ok || n < 0 {
			e.fail(CodeGauges, stages, "counts", check.Describe(stages.Bytes()), "no count may be negative")
			return
		}
		total += n
		switch v.Name() {
		case "waiting_to_start", "in_progress", "completed_waiting":
		default:
			e.fail(CodeGauges, stages, "waiting_to_start, in_progress, completed_waiting", fmt.Sprintf("%.100q", v.Name()), "KV fetches have these stages only")
		}
	}
	if !e.stats.Field("connector_prefix_cache_stats").Given() && total > 0 {
		e.fail(CodeGauges, stages, 0, total, "an engine without a KV connector fetches nothing")
	} else if open := e.gauges.waiting + e.gauges.skipped + e.gauges.running; total > open {
		e.fail(CodeGauges, stages, fmt.Sprintf("at most %d", open), total, "all requests that the engine has are counted")
	}
}

// cacheTotals add up what statistics tell step by step, and what requests tell of themselves.
type cacheTotals struct {
	requests, queries, hits int64 // by the statistics
	looked                  bool  // they count look-ups, so the engine has a cache
	// Of the requests whose outputs have had statistics of the prompt, and that look into the cache:
	startedRequests, startedQueries, startedHits int64
	askedRequests, askedTokens                   int64
	unknown                                      bool // the length of a prompt is not known, or the prompt goes on
	// Requests that the statistics do not count, and that have ended with an output.
	uncounted, ended int64
}

// sound reports whether the totals can be held to what requests tell.
func (c *cacheTotals) sound(e *Engine) bool {
	return len(e.clients) == 1 && !c.unknown && c.looked && e.fitsCache
}

// started takes in the statistics of a prompt.
func (c *cacheTotals) started(r *request, prompt, local int64) {
	if r.skips {
		return
	}
	c.startedRequests++
	c.startedQueries += prompt
	c.startedHits += local
}

// judgeCache: the statistics are what happened since the last ones (vllm/v1/core/kv_cache_manager.py
// make_prefix_cache_stats). A request is counted when it is let in, with all of its prompt, so by its first output it has been,
// and none is counted that was not asked. An engine without a prefix cache counts nothing, and a scheduler that found no room
// may have looked before, so more cannot be said.
func (e *Engine) judgeCache() {
	own := e.stats.Field("prefix_cache_stats")
	if v := e.stats.Field("connector_prefix_cache_stats"); e.hasConnector && v.Kind() == pack.Nil {
		e.fail(CodeCache, v, "a map", "nil", "the engine has a KV connector, and counts what it looks up there in every step")
	}
	for _, stats := range []protocol.Value{own, e.stats.Field("connector_prefix_cache_stats")} {
		if stats == own && stats.Given() && bytes.Equal(stats.Bytes(), e.idle) {
			e.judgeCacheTotals(stats)
			continue
		}
		if stats.Kind() != pack.Map {
			continue
		}
		value := func(name string) int64 { return stats.Field(name).Count() }
		requests, queries, hits := value("requests"), value("queries"), value("hits")
		again, againQueries, againHits := value("preempted_requests"), value("preempted_queries"), value("preempted_hits")
		if min(requests, queries, hits, again, againQueries, againHits) < 0 {
			e.fail(CodeCache, stats, "counts", check.Describe(stats.Bytes()), "no count may be negative")
			return
		}
		for _, c := range []struct {
			prefix                  string
			requests, queries, hits int64
		}{{"", requests, queries, hits}, {"preempted_", again, againQueries, againHits}} {
			if c.hits > c.queries {
				e.fail(CodeCache, stats.Field(c.prefix+"hits"), fmt.Sprintf("at most %d", c.queries), c.hits, "there cannot be more hits than queries")
			}
			if c.queries < c.requests || c.requests == 0 && c.queries > 0 {
				e.fail(CodeCache, stats.Field(c.prefix+"queries"), fmt.Sprintf("tokens of %d requests", c.requests), c.queries, "each request queries its tokens")
			}
		}
		e.judgeSources(stats.Field("hits_by_source"), hits)
		if stats != own {
			e.hasConnector = true
			continue
		}
		reset, ok := stats.Field("reset").Bool()
		if reset && !e.cacheReset {
			e.fail(CodeCache, stats.Field("reset"), false, true, "no call has reset the prefix cache")
		}
		if again > 0 && e.fitsCache && !e.runningChanged {
			e.fail(CodeCache, stats.Field("preempted_requests"), 0, again, "the KV cache is large enough, so no request is preempted")
		}
		e.cache.requests += requests
		e.cache.queries += queries
		e.cache.hits += hits
		e.judgeCacheTotals(stats)
		if max(requests, queries, hits, again, againQueries, againHits) == 0 && ok && !reset {
			e.idle = append(e.idle[:0], stats.Bytes()...)
		}
	}
}

// judgeSources: hits_by_source splits the hits of a connector (vllm/v1/metrics/stats.py PrefixCacheStats.record).
func (e *Engine) judgeSources(sources protocol.Value, hits int64) {
	total := int64(0)
	for v := range sources.Parts() {
		total += v.Count()
	}
	if sources.Len() > 0 && total != hits {
		e.fail(CodeCache, sources, hits, total, "the hits by source have to add up to the hits")
	}
}

func (e *Engine) judgeCacheTotals(stats protocol.Value) {
	c := &e.cache
	if !c.sound(e) {
		return
	}
	for _, t := range []struct {
		name            string
		total, min, max int64
	}{
		{"requests", c.requests, c.startedRequests, c.askedRequests},
		{"queries", c.queries, c.startedQueries, c.askedTokens},
		{"hits", c.hits, c.startedHits, c.startedHits + (c.askedTokens - c.startedQueries)},
	} {
		if t.total < t.min || t.total > t.max {
			e.fail(CodeCache, stats.Field(t.name), fmt.Sprintf("%d to %d", t.min, t.max), t.total, "the sum over the session has to be between that of the requests that have started and that of all requests sent")
		}
	}
}

// judgeDrafts: of the drafted tokens so many were accepted, at each place of a draft no more than at the place before
// (vllm/v1/spec_decode/metrics.py observe_draft).
func (e *Engine) judgeDrafts() {
	stats := e.stats.Field("spec_decoding_stats")
	if stats.Kind() != pack.Map {
		return
	}
	spec, drafts := stats.Field("num_spec_tokens").Count(), stats.Field("num_drafts").Count()
	drafted, accepted := stats.Field("num_draft_tokens").Count(), stats.Field("num_accepted_tokens").Count()
	if e.drafts > 0 && spec != e.drafts || spec < 1 {
		e.fail(CodeSpeculation, stats.Field("num_spec_tokens"), fmt.Sprint(max(e.drafts, 1)), spec, "the number that the engine drafts")
		return
	}
	e.drafts = spec
	outputs := int64(len(e.sizes))
	if accepted%spec != 0 || accepted/spec < outputs {
		e.verifiesDrafts = true
	}
	switch {
	// A diffusion model counts each denoising step as a draft of which nothing is accepted, until all of it is
	// (vllm/v1/core/sched/diffusion_scheduler.py).
	case len(e.clients) == 1 && drafts > outputs && e.verifiesDrafts:
		e.fail(CodeSpeculation, stats.Field("num_drafts"), fmt.Sprintf("at most %d", outputs), drafts, "each verified draft gives an output")
	case drafts < 1 || drafted < 0 || drafted > drafts*spec:
		e.fail(CodeSpeculation, stats.Field("num_draft_tokens"), fmt.Sprintf("up to %d of each of %d drafts", spec, drafts), drafted, "no draft is longer than num_spec_tokens")
	case accepted < 0 || accepted > drafted:
		e.fail(CodeSpeculation, stats.Field("num_accepted_tokens"), fmt.Sprintf("at most %d", drafted), accepted, "accepted tokens are drafted tokens")
	}
	for _, list := range []struct {
		name  string
		total int64
	}{{"num_accepted_tokens_per_pos", accepted}, {"num_draft_tokens_per_pos", drafted}} {
		values, ok := stats.Field(list.name).Ints()
		if !ok || list.name == "num_draft_tokens_per_pos" && len(values) == 0 {
			continue
		}
		if int64(len(values)) != spec || sum(values) != list.total {
			e.fail(CodeSpeculation, stats.Field(list.name), fmt.Sprintf("%d places, %d in all", spec, list.total), fmt.Sprintf("%d, %d in all", len(values), sum(values)), "the counts by position have to add up to the total")
			continue
		}
		for i, v := range values {
			if v < 0 || v > drafts || i > 0 && v > values[i-1] {
				e.fail(CodeSpeculation, stats.Field(list.name), "at each position no more than at the one before", fmt.Sprint(values), "of %d drafts", drafts)
				break
			}
		}
	}
	if len(e.clients) > 1 {
		return
	}
	// Each request whose draft was verified got its accepted tokens and one more. What was accepted behind a token to stop at is
	// not sent on, and what an aborted request got is not sent at all.
	surplus := int64(0)
	for _, n := range e.sizes {
		surplus += max(int64(n)-1, 0)
	}
	if accepted < surplus {
		e.fail(CodeSpeculation, stats.Field("num_accepted_tokens"), fmt.Sprintf("at least %d", surplus), accepted, "the outputs of the step have this many tokens beyond one each")
	}
}

// judgeStep looks at what else is counted of a step.
func (e *Engine) judgeStep() {
	for _, name := range []string{"step_counter", "current_wave"} {
		// Steps and waves are counted in data-parallel groups alone (vllm/v1/engine/core.py DPEngineCoreProc).
		if v := e.stats.Field(name); v.Count() < 0 || e.ready.ranks == 1 && v.Count() != 0 {
			e.fail(CodeStep, v, 0, v.Count(), "an engine that is not in a data-parallel group counts neither steps nor waves")
		}
	}
	for _, name := range []string{"waiting_lora_adapters", "running_lora_adapters"} {
		adapters := e.stats.Field(name)
		for v := range adapters.Parts() {
			if n := v.Count(); n < 0 || n > int64(len(e.requests)) {
				e.fail(CodeStep, adapters, fmt.Sprintf("0 to %d", len(e.requests)), n, "requests that use an adapter")
			}
		}
	}
	for v := range e.stats.Field("kv_cache_eviction_events").Parts() {
		e.judgeEviction(v)
	}
	switch v := e.stats.Field("iteration_details"); {
	case v.Kind() == pack.Map:
		e.judgeIteration(v)
	case e.lastIteration >= 0 && len(e.sizes) > 0 && len(e.clients) == 1:
		e.fail(CodeStep, v, "a map", "nil", "the engine logs its iterations, and each step that has outputs is one")
	}
	if v := e.stats.Field("kv_connector_stats"); v.Given() && !e.stats.Field("connector_prefix_cache_stats").Given() {
		// A scheduler with a connector counts look-ups in it in every step (vllm/v1/core/sched/scheduler.py make_stats).
		e.fail(CodeStep, v, "nil", check.Describe(v.Bytes()), "an engine without a KV connector has no statistics of one, and the Python frontend ends when it gets some")
	}
	graph := e.stats.Field("cudagraph_stats")
	if v := e.stats.Field("perf_stats"); v.Kind() == pack.Map {
		e.measures = true
	} else if e.measures && len(e.sizes) > 0 && len(e.clients) == 1 {
		e.fail(CodeStep, v, "a map", "nil", "the engine estimates its work, and each step that has outputs is some")
	}
	if mode := graph.Field("runtime_mode"); mode.Given() && !slices.Contains([]string{"NONE", "PIECEWISE", "FULL"}, mode.Text()) {
		e.fail(CodeStep, mode, "NONE, PIECEWISE or FULL", check.Describe(mode.Bytes()), "a step is run in one of these modes")
	}
	bare, padded, padding := graph.Field("num_unpadded_tokens").Count(), graph.Field("num_padded_tokens").Count(), graph.Field("num_paddings").Count()
	if min(bare, padded, padding) < 0 || padded-bare != padding {
		e.fail(CodeStep, graph.Field("num_paddings"), padded-bare, padding, "%d tokens are padded to %d, and the difference is the padding", bare, padded)
	}
	for _, name := range []string{"num_flops_per_gpu", "num_read_bytes_per_gpu", "num_write_bytes_per_gpu"} {
		if v := e.stats.Field("perf_stats").Field(name); v.Count() < 0 {
			e.fail(CodeStep, v, "a count", v.Count(), "no count may be negative")
		}
	}
}

// judgeEviction: a block is used within its life (vllm/v1/core/kv_cache_metrics.py). The two times are read from the clock one
// after the other, so an idle block may seem older than its life, by milliseconds in released engines.
func (e *Engine) judgeEviction(block protocol.Value) {
	life, _ := block.Field("lifetime_seconds").Float()
	idle, _ := block.Field("idle_seconds").Float()
	const between = 1 // second, for a process that waits for its turn
	if idle < 0 || life < idle-between {
		e.fail(CodeStep, block.Field("lifetime_seconds"), fmt.Sprintf("about %v or more", idle), life, "a block lives at least as long as it is idle")
	}
}

// judgeIteration: the numbers of the iterations rise (vllm/v1/metrics/stats.py SchedulerIterationDetails).
func (e *Engine) judgeIteration(details protocol.Value) {
	value := func(name string) int64 { return details.Field(name).Count() }
	index := value("iteration_index")
	if index <= e.lastIteration {
		e.fail(CodeStep, details.Field("iteration_index"), fmt.Sprintf("more than %d", e.lastIteration), index, "the index has to rise")
	}
	e.lastIteration = max(e.lastIteration, index)
	if elapsed, _ := details.Field("elapsed_ms").Float(); elapsed < 0 {
		e.fail(CodeStep, details.Field("elapsed_ms"), "at least 0", elapsed, "a time is not negative")
	}
	for _, group := range []string{"ctx", "generation"} {
		requests, tokens := value("num_"+group+"_requests"), value("num_"+group+"_tokens")
		if requests < 0 || tokens < requests || requests == 0 && tokens > 0 || requests > int64(len(e.requests)) {
			e.fail(CodeStep, details.Field("num_"+group+"_tokens"), fmt.Sprintf("tokens of %d requests", requests), tokens, "each request has one token or more in the step")
		}
	}
	if value("num_encoder_inputs") < 0 || value("num_encoder_output_tokens") < 0 {
		e.fail(CodeStep, details.Field("num_encoder_inputs"), "counts", "a negative count", "no count may be negative")
	}
}

// Rest judges the end of a session, when nothing more comes: an engine that has nothing left to do has said so
// (vllm/v1/engine/core.py makes a step for requests that were aborted). What is open keeps it from being judged.
func (e *Engine) Rest() []check.Failure {
	if e.failures = nil; e.unreadable {
		return nil
	}
	for _, r := range e.active {
		if e.open(r) || r.session {
			return nil
		}
	}
	if !e.hasStatistics || len(e.clients) > 1 {
		return nil
	}
	g := e.gauges
	if e.hasConnector {
		g.usage = 0 // blocks may be kept for other engines, and freed a step later
	}
	if g != (gaugeValues{}) {
		e.fail(CodeRest, e.stats, "0 running, 0 waiting, KV cache usage 0",
			fmt.Sprintf("%d running, %d waiting, %d held back, KV cache usage %v", g.running, g.waiting, g.skipped, g.usage),
			"every request has ended or was aborted, so nothing may be left")
	}
	return e.failures
}
