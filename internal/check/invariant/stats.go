package invariant

import (
	"bytes"
	"fmt"
	"math"
	"slices"

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
	e.found, e.number = nil, -1
	var p record
	if !p.readMap(raw) {
		return nil
	}
	fail := func(name string, expected, actual any, why string) {
		path := "EngineCoreReadyResponse." + name
		e.found = append(e.found, check.Failed(CodeRegistration, "ready response: %s: expected %v, found %v: %s", path, expected, actual, why).
			Within(-1, path).Compared(expected, actual))
	}
	e.ready = registration{
		known: true, index: index, maxModelLen: int(p.count("max_model_len")), blocks: int(p.count("num_gpu_blocks")),
		blockSize: p.count("block_size"), cacheTokens: p.count("kv_cache_size_tokens"), maxSeqs: p.count("max_num_seqs"),
		ranks: p.count("data_parallel_size"),
	}
	for _, name := range []string{
		"max_model_len", "block_size", "world_size", "data_parallel_size", "tensor_parallel_size", "pipeline_parallel_size",
		"decode_context_parallel_size", "max_num_seqs", "max_num_batched_tokens",
	} {
		if v, ok := p.int(name); ok && v < 1 {
			fail(name, "at least 1", v, "a size is above 0")
		}
	}
	for _, name := range []string{"num_gpu_blocks", "max_loras", "coord_store_port"} {
		if v, ok := p.int(name); ok && v < 0 {
			fail(name, "at least 0", v, "no count may be negative")
		}
	}
	// vllm/v1/core/kv_cache_utils.py update_kv_cache_capacity: the whole tokens of so many contexts. That they are blocks times
	// block size holds only of a model with one kind of layers, and where max_model_len is a multiple of the block size.
	concurrency, hasConcurrency := p.float("kv_cache_max_concurrency")
	if tokens, ok := p.int("kv_cache_size_tokens"); ok && hasConcurrency {
		if want := int64(concurrency * float64(e.ready.maxModelLen)); want != tokens {
			fail("kv_cache_size_tokens", want, tokens, "the space for kv_cache_max_concurrency contexts of max_model_len tokens")
		}
	}
	tp, ok := p.int("tensor_parallel_size")
	if pp, both := p.int("pipeline_parallel_size"); ok && both && p.count("world_size")%max(tp*pp, 1) != 0 {
		fail("world_size", fmt.Sprintf("a multiple of %d", tp*pp), p.count("world_size"), "each group has tensor_parallel_size times pipeline_parallel_size workers")
	}
	if seqs, tokens := p.count("max_num_seqs"), p.count("max_num_batched_tokens"); seqs > 0 && tokens > 0 && seqs > tokens {
		// vllm/config/scheduler.py refuses it.
		fail("max_num_seqs", fmt.Sprintf("at most %d", tokens), seqs, "a step cannot have more requests than max_num_batched_tokens")
	}
	if loras, ok := p.int("max_loras"); ok {
		cur := pack.NewCursor(p.get("supports_lora"))
		if supports, err := cur.Bool(); err == nil && supports != (loras > 0) {
			fail("max_loras", fmt.Sprintf("supports_lora is %v", supports), loras, "adapters are counted only where LoRA is enabled")
		}
	}
	return e.found
}

// measure finds out how many blocks a request can take at most.
func (e *Engine) measure(r *request) {
	if !e.ready.single() || r.length < 0 || !r.sampling.HasMaxTokens {
		e.roomy = false
		return
	}
	tokens := int64(min(r.length+r.sampling.MaxTokens, e.ready.maxModelLen+1))
	r.blocks = int((tokens+e.ready.blockSize-1)/e.ready.blockSize) + 1
	if e.openBlocks() > e.ready.blocks-1 {
		e.roomy = false
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
	e.told, e.stale = true, e.asked
	e.judgeGauges()
	e.judgeCache()
	e.judgeAdmitted()
	e.judgeDrafts()
	e.judgeStep()
	e.forget()
}

// judgeGauges: the engine counts the requests that it has. Those that it has answered and that go on it has, and what was sent
// before a call that it has answered; those that have ended, and what it was not sent, it has not. How many of them run is its
// own matter, but for those that it gave a token in this step and that nothing can have put back.
func (e *Engine) judgeGauges() {
	const at = ".scheduler_stats."
	g := gaugeValues{
		running: e.stats.count("num_running_reqs"), waiting: e.stats.count("num_waiting_reqs"), skipped: e.stats.count("num_skipped_waiting_reqs"),
	}
	g.usage, _ = e.stats.float("kv_cache_usage")
	e.gauges = g
	for _, name := range []string{"num_running_reqs", "num_waiting_reqs", "num_skipped_waiting_reqs"} {
		if v := e.stats.count(name); v < 0 {
			e.fail(CodeGauges, at+name, "a count", v, "no count may be negative")
			return
		}
	}
	e.active = slices.DeleteFunc(e.active, func(r *request) bool { return !e.open(r) })
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
		e.fail(CodeGauges, at+"num_running_reqs", fmt.Sprintf("at most %d", may), fmt.Sprintf("%d running, %d waiting, %d held back", g.running, g.waiting, g.skipped), "no more requests can run or wait than are open")
	case total < has:
		e.fail(CodeGauges, at+"num_running_reqs", fmt.Sprintf("at least %d", has), fmt.Sprintf("%d running, %d waiting, %d held back", g.running, g.waiting, g.skipped), "all requests that the engine has are counted")
	case e.roomy && !e.upset && g.running < answered:
		e.fail(CodeGauges, at+"num_running_reqs", fmt.Sprintf("at least %d", answered), g.running, "requests that got a token and have not ended are running")
	}
	if e.ready.maxSeqs > 0 && g.running > e.ready.maxSeqs {
		e.fail(CodeGauges, at+"num_running_reqs", fmt.Sprintf("at most %d", e.ready.maxSeqs), g.running, "no more requests can run than max_num_seqs")
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
	if most := c.requests + c.uncounted - c.ended; e.gauges.running > most {
		e.fail(CodeGauges, ".scheduler_stats.num_running_reqs", fmt.Sprintf("at most %d", most), e.gauges.running, "no more requests can run than were scheduled and have not ended")
	}
}

// judgeUsage: 1 - free blocks / blocks, one block being set aside (vllm/v1/core/block_pool.py get_usage).
func (e *Engine) judgeUsage() {
	const at = ".scheduler_stats.kv_cache_usage"
	usage := e.gauges.usage
	if usage < 0 || usage > 1 || math.IsNaN(usage) {
		e.fail(CodeGauges, at, "0 to 1", usage, "the usage is a part of the KV cache")
		return
	}
	if e.ready.blocks < 2 || e.opt.Scripted { // who plays a recording may have told of blocks of its own
		return
	}
	pool := float64(e.ready.blocks - 1)
	used := math.Round(usage * pool)
	if math.Abs(usage*pool-used) > 1e-6 {
		e.fail(CodeGauges, at, fmt.Sprintf("a multiple of 1/%v", pool), usage, "the usage is a number of blocks divided by all blocks")
		return
	}
	if !e.ready.single() || e.joined || len(e.clients) > 1 || !e.roomy || e.upset {
		return
	}
	// Blocks that requests share are held once, so a single one needs what it has computed, and all together no more than each
	// alone.
	least, most := int64(0), int64(0)
	for _, r := range e.active {
		computed := int64(r.length + r.tokens)
		ahead := int64(1) + max(e.drafts, 0) + 1
		most += (computed+ahead)/e.ready.blockSize + 1
		if r.outputs > 0 && r.aborted == 0 {
			least = max(least, (computed-1+e.ready.blockSize-1)/e.ready.blockSize)
		}
	}
	if used := int64(used); used < least || used > most {
		e.fail(CodeGauges, at, fmt.Sprintf("%d to %d blocks", least, most), fmt.Sprintf("%d", used), "the open requests need this many blocks of %d tokens", e.ready.blockSize)
	}
}

// judgeFetches: without a connector to other engines nothing is fetched from them.
func (e *Engine) judgeFetches() {
	raw := e.stats.get("num_kv_fetch_reqs_by_stage")
	if !e.part.readMap(raw) {
		return
	}
	const at = ".scheduler_stats.num_kv_fetch_reqs_by_stage"
	total := int64(0)
	for i, key := range e.part.keys {
		cur := pack.NewCursor(e.part.values[i])
		n, err := cur.Int()
		if err != nil || n < 0 {
			e.fail(CodeGauges, at, "counts", check.Describe(raw), "no count may be negative")
			return
		}
		total += n
		switch string(key) {
		case "waiting_to_start", "in_progress", "completed_waiting":
		default:
			e.fail(CodeGauges, at, "waiting_to_start, in_progress, completed_waiting", fmt.Sprintf("%.100q", key), "KV fetches have these stages only")
		}
	}
	if e.stats.get("connector_prefix_cache_stats") == nil && total > 0 {
		e.fail(CodeGauges, at, 0, total, "an engine without a KV connector fetches nothing")
	} else if open := e.gauges.waiting + e.gauges.skipped + e.gauges.running; total > open {
		e.fail(CodeGauges, at, fmt.Sprintf("at most %d", open), total, "all requests that the engine has are counted")
	}
}

// cacheTotals add up what statistics tell step by step, and what requests tell of themselves.
type cacheTotals struct {
	requests, queries, hits int64 // by the statistics
	looked                  bool  // they count look-ups, so the engine has a cache
	// Of the requests that have told of their prompt, and that look into the cache:
	startedRequests, startedQueries, startedHits int64
	askedRequests, askedTokens                   int64
	unknown                                      bool // a prompt has a length that nobody knows, or goes on
	// Requests that the statistics do not count, and that have ended with an output.
	uncounted, ended int64
}

// sound reports whether the totals can be held to what requests tell.
func (c *cacheTotals) sound(e *Engine) bool {
	return len(e.clients) == 1 && !c.unknown && c.looked && e.roomy
}

// started takes in what a request tells of its prompt.
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
	for _, name := range []string{"prefix_cache_stats", "connector_prefix_cache_stats"} {
		raw := e.stats.get(name)
		at := ".scheduler_stats." + name
		if name == "prefix_cache_stats" && raw != nil && bytes.Equal(raw, e.idle) {
			e.judgeCacheTotals(at)
			continue
		}
		if !e.part.readMap(raw) {
			continue
		}
		value := e.part.count
		requests, queries, hits := value("requests"), value("queries"), value("hits")
		again, againQueries, againHits := value("preempted_requests"), value("preempted_queries"), value("preempted_hits")
		if min(requests, queries, hits, again, againQueries, againHits) < 0 {
			e.fail(CodeCache, at, "counts", check.Describe(raw), "no count may be negative")
			return
		}
		for _, c := range []struct {
			prefix                  string
			requests, queries, hits int64
		}{{"", requests, queries, hits}, {"preempted_", again, againQueries, againHits}} {
			if c.hits > c.queries {
				e.fail(CodeCache, at+"."+c.prefix+"hits", fmt.Sprintf("at most %d", c.queries), c.hits, "there cannot be more hits than queries")
			}
			if c.queries < c.requests || c.requests == 0 && c.queries > 0 {
				e.fail(CodeCache, at+"."+c.prefix+"queries", fmt.Sprintf("tokens of %d requests", c.requests), c.queries, "each request queries its tokens")
			}
		}
		e.judgeSources(at, hits)
		if name != "prefix_cache_stats" {
			e.joined = true
			continue
		}
		cur := pack.NewCursor(e.part.get("reset"))
		reset, err := cur.Bool()
		if err == nil && reset && !e.reset {
			e.fail(CodeCache, at+".reset", false, true, "no call has reset the prefix cache")
		}
		if again > 0 && e.roomy && !e.upset {
			e.fail(CodeCache, at+".preempted_requests", 0, again, "the KV cache is large enough, so no request is preempted")
		}
		e.cache.requests += requests
		e.cache.queries += queries
		e.cache.hits += hits
		e.judgeCacheTotals(at)
		if max(requests, queries, hits, again, againQueries, againHits) == 0 && err == nil && !reset {
			e.idle = append(e.idle[:0], raw...)
		}
	}
}

// judgeSources: hits_by_source splits the hits of a connector (vllm/v1/metrics/stats.py PrefixCacheStats.record).
func (e *Engine) judgeSources(at string, hits int64) {
	if !e.deeper.readMap(e.part.get("hits_by_source")) || len(e.deeper.values) == 0 {
		return
	}
	total := int64(0)
	for _, v := range e.deeper.values {
		cur := pack.NewCursor(v)
		n, _ := cur.Int()
		total += n
	}
	if total != hits {
		e.fail(CodeCache, at+".hits_by_source", hits, total, "the hits by source have to add up to the hits")
	}
}

func (e *Engine) judgeCacheTotals(at string) {
	c := &e.cache
	if !c.sound(e) {
		return
	}
	for _, t := range []struct {
		name               string
		told, least, most_ int64
	}{
		{"requests", c.requests, c.startedRequests, c.askedRequests},
		{"queries", c.queries, c.startedQueries, c.askedTokens},
		{"hits", c.hits, c.startedHits, c.startedHits + (c.askedTokens - c.startedQueries)},
	} {
		if t.told < t.least || t.told > t.most_ {
			e.fail(CodeCache, at+"."+t.name, fmt.Sprintf("%d to %d", t.least, t.most_), t.told, "the sum over the session has to be between that of the requests that have started and that of all requests sent")
		}
	}
}

// judgeDrafts: of the drafted tokens so many were accepted, at each place of a draft no more than at the place before
// (vllm/v1/spec_decode/metrics.py observe_draft).
func (e *Engine) judgeDrafts() {
	if !e.part.readMap(e.stats.get("spec_decoding_stats")) {
		return
	}
	const at = ".scheduler_stats.spec_decoding_stats"
	spec, drafts := e.part.count("num_spec_tokens"), e.part.count("num_drafts")
	drafted, accepted := e.part.count("num_draft_tokens"), e.part.count("num_accepted_tokens")
	if e.drafts > 0 && spec != e.drafts || spec < 1 {
		e.fail(CodeSpeculation, at+".num_spec_tokens", fmt.Sprint(max(e.drafts, 1)), spec, "the number that the engine drafts")
		return
	}
	e.drafts = spec
	outputs := int64(len(e.sizes))
	if accepted%spec != 0 || accepted/spec < outputs {
		e.verifies = true
	}
	switch {
	// A diffusion model counts each denoising step as a draft of which nothing is accepted, until all of it is
	// (vllm/v1/core/sched/diffusion_scheduler.py).
	case len(e.clients) == 1 && drafts > outputs && e.verifies:
		e.fail(CodeSpeculation, at+".num_drafts", fmt.Sprintf("at most %d", outputs), drafts, "each verified draft gives an output")
	case drafts < 1 || drafted < 0 || drafted > drafts*spec:
		e.fail(CodeSpeculation, at+".num_draft_tokens", fmt.Sprintf("up to %d of each of %d drafts", spec, drafts), drafted, "no draft is longer than num_spec_tokens")
	case accepted < 0 || accepted > drafted:
		e.fail(CodeSpeculation, at+".num_accepted_tokens", fmt.Sprintf("at most %d", drafted), accepted, "accepted tokens are drafted tokens")
	}
	for _, list := range []struct {
		name  string
		total int64
	}{{"num_accepted_tokens_per_pos", accepted}, {"num_draft_tokens_per_pos", drafted}} {
		values, ok := e.part.ints(list.name)
		if !ok || list.name == "num_draft_tokens_per_pos" && len(values) == 0 {
			continue
		}
		if int64(len(values)) != spec || sum(values) != list.total {
			e.fail(CodeSpeculation, at+"."+list.name, fmt.Sprintf("%d places, %d in all", spec, list.total), fmt.Sprintf("%d, %d in all", len(values), sum(values)), "the counts by position have to add up to the total")
			continue
		}
		for i, v := range values {
			if v < 0 || v > drafts || i > 0 && v > values[i-1] {
				e.fail(CodeSpeculation, at+"."+list.name, "at each position no more than at the one before", fmt.Sprint(values), "of %d drafts", drafts)
				break
			}
		}
	}
	if len(e.clients) > 1 {
		return
	}
	// Each request whose draft was verified got its accepted tokens and one more. What was accepted behind a token to stop at is
	// not sent on, and what an aborted request got is sent to nobody.
	surplus := int64(0)
	for _, n := range e.sizes {
		surplus += max(int64(n)-1, 0)
	}
	if accepted < surplus {
		e.fail(CodeSpeculation, at+".num_accepted_tokens", fmt.Sprintf("at least %d", surplus), accepted, "the outputs of the step have this many tokens beyond one each")
	}
}

// judgeStep looks at what else is counted of a step.
func (e *Engine) judgeStep() {
	const at = ".scheduler_stats."
	for _, name := range []string{"step_counter", "current_wave"} {
		// Steps and waves are counted in data-parallel groups alone (vllm/v1/engine/core.py DPEngineCoreProc).
		if v, ok := e.stats.int(name); ok && (v < 0 || e.ready.ranks == 1 && v != 0) {
			e.fail(CodeStep, at+name, 0, v, "an engine that is not in a data-parallel group counts neither steps nor waves")
		}
	}
	for _, name := range []string{"waiting_lora_adapters", "running_lora_adapters"} {
		if e.part.readMap(e.stats.get(name)) {
			for _, v := range e.part.values {
				cur := pack.NewCursor(v)
				if n, err := cur.Int(); err == nil && (n < 0 || n > int64(len(e.requests))) {
					e.fail(CodeStep, at+name, fmt.Sprintf("0 to %d", len(e.requests)), n, "requests that use an adapter")
				}
			}
		}
	}
	if raw := e.stats.get("kv_cache_eviction_events"); raw != nil {
		e.judgeEvictions(at+"kv_cache_eviction_events", raw)
	}
	if e.part.readMap(e.stats.get("iteration_details")) {
		e.judgeIteration(at + "iteration_details")
	}
	if e.part.readMap(e.stats.get("cudagraph_stats")) {
		bare, padded, padding := e.part.count("num_unpadded_tokens"), e.part.count("num_padded_tokens"), e.part.count("num_paddings")
		if min(bare, padded, padding) < 0 || padded-bare != padding {
			e.fail(CodeStep, at+"cudagraph_stats.num_paddings", padded-bare, padding, "%d tokens are padded to %d, and the difference is the padding", bare, padded)
		}
	}
	if e.part.readMap(e.stats.get("perf_stats")) {
		for _, name := range []string{"num_flops_per_gpu", "num_read_bytes_per_gpu", "num_write_bytes_per_gpu"} {
			if v := e.part.count(name); v < 0 {
				e.fail(CodeStep, at+"perf_stats."+name, "a count", v, "no count may be negative")
			}
		}
	}
}

// judgeEvictions: a block is used within its life (vllm/v1/core/kv_cache_metrics.py). The two times are read from the clock one
// after the other, so an idle block may seem older than its life, by milliseconds in released engines.
func (e *Engine) judgeEvictions(at string, raw []byte) {
	cur := pack.NewCursor(raw)
	n, err := cur.ArrayLen()
	for ; err == nil && n > 0; n-- {
		var one []byte
		if one, err = cur.Raw(); err != nil || !e.part.readMap(one) {
			return
		}
		life, _ := e.part.float("lifetime_seconds")
		idle, _ := e.part.float("idle_seconds")
		const between = 1 // second, for a process that waits for its turn
		if idle < 0 || life < idle-between {
			e.fail(CodeStep, at+"[].lifetime_seconds", fmt.Sprintf("about %v or more", idle), life, "a block lives at least as long as it is idle")
		}
	}
}

// judgeIteration: the numbers of the iterations rise (vllm/v1/metrics/stats.py SchedulerIterationDetails).
func (e *Engine) judgeIteration(at string) {
	index := e.part.count("iteration_index")
	if index <= e.iterated {
		e.fail(CodeStep, at+".iteration_index", fmt.Sprintf("more than %d", e.iterated), index, "the index has to rise")
	}
	e.iterated = max(e.iterated, index)
	value := e.part.count
	if elapsed, _ := e.part.float("elapsed_ms"); elapsed < 0 {
		e.fail(CodeStep, at+".elapsed_ms", "at least 0", elapsed, "a time is not negative")
	}
	for _, group := range []string{"ctx", "generation"} {
		requests, tokens := value("num_"+group+"_requests"), value("num_"+group+"_tokens")
		if requests < 0 || tokens < requests || requests == 0 && tokens > 0 || requests > int64(len(e.requests)) {
			e.fail(CodeStep, at+".num_"+group+"_tokens", fmt.Sprintf("tokens of %d requests", requests), tokens, "each request has one token or more in the step")
		}
	}
	if value("num_encoder_inputs") < 0 || value("num_encoder_output_tokens") < 0 {
		e.fail(CodeStep, at+".num_encoder_inputs", "counts", "a negative count", "no count may be negative")
	}
}

// Rest judges the end of a session, when nothing more comes: an engine that has nothing left to do has said so
// (vllm/v1/engine/core.py makes a step for requests that were aborted). What is open keeps it from being judged.
func (e *Engine) Rest() []check.Failure {
	if e.found = nil; e.lost {
		return nil
	}
	for _, r := range e.active {
		if e.open(r) || r.session {
			return nil
		}
	}
	if !e.told || len(e.clients) > 1 {
		return nil
	}
	g := e.gauges
	if e.joined {
		g.usage = 0 // blocks may be kept for other engines, and freed a step later
	}
	if g != (gaugeValues{}) {
		e.fail(CodeRest, ".scheduler_stats", "0 running, 0 waiting, KV cache usage 0",
			fmt.Sprintf("%d running, %d waiting, %d held back, KV cache usage %v", g.running, g.waiting, g.skipped, g.usage),
			"every request has ended or was aborted, so nothing may be left")
	}
	return e.found
}
