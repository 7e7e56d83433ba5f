package builtin

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/player"
)

// Mark begins the metrics, so that tools know whose they are.
const Mark = "# vllm-vcr serve --frontend builtin\n"

// metrics are those of vLLM (vllm/v1/metrics/loggers.py): every output and every step is counted when it comes, so they
// agree with what clients get.
type metrics struct {
	mu      sync.Mutex
	model   string
	engines []engineMetrics
	// parsed counts how often calls of tools were looked for: in a stream or not, found or not, for which kind of
	// request.
	parsed [2][2][len(parsedFor)]atomic.Int64
	// timed has the times of operations of sleep mode and of weights, and underWay how many are not over.
	timed    map[operation]*histogram
	underWay map[operation]int
}

// An operation is a call of a utility method whose time is measured. Its kind is sleepOperation or weightOperation.
type operation struct{ kind, name string }

const (
	sleepOperation  = "sleep_mode_operation"
	weightOperation = "rl_weight_update_operation"
)

// Kinds of requests whose answers are looked through for calls.
const (
	ofChat = iota
	ofResponses
)

// parsedFor are the values of request_type of vllm:tool_call_parser_invocations.
var parsedFor = [...]string{ofChat: "chat_completions", ofResponses: "responses", 2: "other"}

// engineMetrics are those of one engine.
type engineMetrics struct {
	running, waiting, deferred int
	usage                      float64

	prefixQueries, prefixHits, externalQueries, externalHits int
	preemptions, prompt, computed, local, external           int
	images, knownImages                                      int
	generated                                                int
	finished                                                 [protocol.FinishRepetition + 1]int
	drafts, drafted, accepted                                int
	acceptedAt                                               []int
	adapters                                                 map[[2]string]float64 // when so many ran and waited last, in seconds of Unix time
	stepTokens                                               int                   // of the step that is being reported
	fetching                                                 *protocol.FetchStages // requests by stage of their KV load; nil without a KV connector

	iteration, promptSize, answerSize, maxWanted, wanted, n, prefilled histogram
	firstToken, interToken, perToken                                   histogram
	total, queue, inference, prefill, decode, preempted                histogram
	lifetime, idle, reuse                                              histogram // of sampled KV blocks; without bounds until there is one
}

// requestRecord is what is measured of a request. It is under the mutex of the metrics.
type requestRecord struct {
	arrival          time.Time
	prompt           int
	maxTokens, n     int
	generated        int
	computed         int
	preemptions      int
	queued, started  float64 // in seconds of the engine's clock
	first, last      float64
	answered, closed bool
	pools            bool // nothing is generated
}

// A histogram counts values by the first bound that they do not exceed.
type histogram struct {
	bounds []float64
	counts []uint64 // one more than bounds
	sum    float64
}

func newHistogram(bounds []float64) histogram {
	return histogram{bounds: bounds, counts: make([]uint64, len(bounds)+1)}
}

func (h *histogram) observe(v float64) {
	i := 0
	for i < len(h.bounds) && v > h.bounds[i] {
		i++
	}
	h.counts[i]++
	h.sum += v
}

// Bounds of the buckets, as in vLLM.
var (
	firstTokenBounds = []float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
	interTokenBounds = []float64{.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	latencyBounds    = []float64{.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
	iterationBounds  = []float64{1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384}
	numberBounds     = []float64{1, 2, 5, 10, 20}
	preemptionBounds = []float64{1, 2, 3, 4, 5, 10, 20}
	residencyBounds  = []float64{.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800}
	operationBounds  = []float64{.01, .1, 1, 10, 30, 60, 120, 300, 600}
)

// tokenBounds are 1, 2, 5, 10 and so on up to the context length (build_1_2_5_buckets).
func tokenBounds(most int) (bounds []float64) {
	for power := 1; ; power *= 10 {
		for _, m := range []int{1, 2, 5} {
			if m*power > most {
				return bounds
			}
			bounds = append(bounds, float64(m*power))
		}
	}
}

func newMetrics(model string, engines, maxModelLen int) *metrics {
	m := &metrics{model: model, engines: make([]engineMetrics, engines), timed: map[operation]*histogram{}, underWay: map[operation]int{}}
	tokens := tokenBounds(maxModelLen)
	for i := range m.engines {
		e := &m.engines[i]
		e.iteration, e.n, e.preempted = newHistogram(iterationBounds), newHistogram(numberBounds), newHistogram(preemptionBounds)
		for _, h := range []*histogram{&e.promptSize, &e.answerSize, &e.maxWanted, &e.wanted, &e.prefilled} {
			*h = newHistogram(tokens)
		}
		e.firstToken, e.interToken, e.perToken = newHistogram(firstTokenBounds), newHistogram(interTokenBounds), newHistogram(interTokenBounds)
		for _, h := range []*histogram{&e.total, &e.queue, &e.inference, &e.prefill, &e.decode} {
			*h = newHistogram(latencyBounds)
		}
	}
	return m
}

// output counts an output of a request (vllm/v1/metrics/stats.py update_from_output). Its tokens are counted later
// where stop strings may take some away.
func (m *metrics) output(q *sequence, o *player.EngineOutput, at float64, later bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, e := &q.record, &m.engines[q.engine]
	for _, event := range o.Events {
		switch event.Type {
		case protocol.EventQueued:
			r.queued = event.Timestamp
		case protocol.EventScheduled:
			if r.started == 0 {
				r.started = event.Timestamp
			}
		case protocol.EventPreempted:
			e.preemptions++
			r.preemptions++
		}
	}
	if p := o.Prefill; p != nil {
		e.prompt += p.Prompt
		e.computed += p.Computed
		e.local += p.LocalCached
		e.external += p.ExternalCached
		e.stepTokens += p.Computed
		r.computed = p.Computed
	}
	e.stepTokens += len(o.Tokens)
	if later {
		return
	}
	var received time.Time // only of the first token: to ask for the time is a fifth of the work for a token
	if !r.answered {
		received = time.Now()
	}
	m.count(e, r, len(o.Tokens), at, received, o.Finish)
}

// tokens counts the tokens of an output of a request with stop strings when they are looked at: what the engine made
// behind one has not come for vLLM either.
func (m *metrics) tokens(q *sequence, n int, at float64, received time.Time, end protocol.FinishReason) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.count(&m.engines[q.engine], &q.record, n, at, received, end)
}

// count counts n tokens, and the end of the request if it has a reason. at is of the engine's clock.
func (m *metrics) count(e *engineMetrics, r *requestRecord, n int, at float64, received time.Time, end protocol.FinishReason) {
	if r.closed {
		return
	}
	e.generated += n
	r.generated += n
	if n > 0 || r.pools && end != protocol.Unfinished {
		if r.answered {
			e.interToken.observe(at - r.last)
		} else {
			r.answered, r.first = true, at
			e.firstToken.observe(received.Sub(r.arrival).Seconds())
		}
		r.last = at
	}
	if end != protocol.Unfinished {
		m.finish(e, r, end)
	}
}

// finish counts a request that has ended (update_from_finished_request).
func (m *metrics) finish(e *engineMetrics, r *requestRecord, reason protocol.FinishReason) {
	r.closed = true
	if reason == protocol.FinishError && r.started == 0 {
		return // the engine refused it: frontends do not count it
	}
	e.finished[reason]++
	e.total.observe(time.Since(r.arrival).Seconds())
	e.promptSize.observe(float64(r.prompt))
	e.answerSize.observe(float64(r.generated))
	e.maxWanted.observe(float64(r.generated))
	if !r.pools {
		e.wanted.observe(float64(r.maxTokens))
	}
	e.n.observe(float64(r.n))
	e.preempted.observe(float64(r.preemptions))
	e.prefilled.observe(float64(r.computed))
	e.queue.observe(max(r.started-r.queued, 0))
	e.inference.observe(max(r.last-r.started, 0))
	e.prefill.observe(max(r.first-r.started, 0))
	e.decode.observe(r.last - r.first)
	perToken := 0.0
	if r.generated > 1 {
		perToken = (r.last - r.first) / float64(r.generated-1)
	}
	e.perToken.observe(perToken)
}

// aborted counts a request whose client left.
func (m *metrics) aborted(q *sequence) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !q.record.closed {
		m.finish(&m.engines[q.engine], &q.record, protocol.FinishAbort)
	}
}

// image counts an image of a prompt, as that of the first engine: they are one cache's.
func (m *metrics) image(known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.engines[0].images++
	if known {
		m.engines[0].knownImages++
	}
}

// maxAdapterSets bounds what is kept of adapters: clients name them.
const maxAdapterSets = 1 << 10

// step takes the statistics of a step.
func (m *metrics) step(engine int, s *player.EngineStats) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := &m.engines[engine]
	if s.LoRAs != nil {
		if len(e.adapters) >= maxAdapterSets || e.adapters == nil {
			e.adapters = map[[2]string]float64{}
		}
		e.adapters[[2]string{strings.Join(s.LoRAs.Running, ","), strings.Join(s.LoRAs.Waiting, ",")}] = float64(time.Now().UnixMilli()) / 1000
	}
	e.running, e.waiting, e.deferred, e.usage = s.Running, s.Waiting, s.Skipped, s.KVCacheUsage
	e.prefixQueries += s.PrefixCache.Queries
	e.prefixHits += s.PrefixCache.Hits
	if s.External != nil {
		e.externalQueries += s.External.Queries
		e.externalHits += s.External.Hits
		e.fetching = new(s.Fetching)
	}
	for _, block := range s.Evictions {
		if e.lifetime.bounds == nil {
			e.lifetime, e.idle, e.reuse = newHistogram(residencyBounds), newHistogram(residencyBounds), newHistogram(residencyBounds)
		}
		e.lifetime.observe(block.Lifetime)
		e.idle.observe(block.Idle)
		for _, gap := range block.ReuseGaps {
			e.reuse.observe(gap)
		}
	}
	if d := s.Spec; d != nil {
		e.drafts += d.Drafts
		e.drafted += d.DraftTokens
		e.accepted += d.AcceptedTokens
		for len(e.acceptedAt) < len(d.AcceptedPerPos) {
			e.acceptedAt = append(e.acceptedAt, 0)
		}
		for i, n := range d.AcceptedPerPos {
			e.acceptedAt[i] += n
		}
	}
	if e.stepTokens > 0 {
		e.iteration.observe(float64(e.stepTokens))
		e.stepTokens = 0
	}
}

// metricsText writes the text format of Prometheus.
type metricsText struct {
	b     []byte
	model string
}

func (t *metricsText) head(name, kind, help string) {
	t.b = fmt.Appendf(t.b, "# HELP %s %s\n# TYPE %[1]s %[3]s\n", name, help, kind)
}

var labelEscapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// sample writes a line of an engine.
func (t *metricsText) sample(name string, engine int, value float64, more ...string) {
	t.bare(name, value, append([]string{"model_name", t.model, "engine", strconv.Itoa(engine)}, more...)...)
}

// bare writes a line. labels are their names and values, one after the other.
func (t *metricsText) bare(name string, value float64, labels ...string) {
	t.b = append(t.b, name...)
	for i := 0; i < len(labels); i += 2 {
		t.b = fmt.Appendf(t.b, `%c%s="%s"`, "{,"[min(i, 1)], labels[i], labelEscapes.Replace(labels[i+1]))
	}
	t.b = append(strconv.AppendFloat(append(t.b, "} "...), value, 'f', -1, 64), '\n')
}

// each hands on the lines of a histogram.
func (h *histogram) each(name string, write func(name string, value float64, more ...string)) {
	total := uint64(0)
	for i, n := range h.counts {
		total += n
		bound := "+Inf"
		if i < len(h.bounds) {
			bound = strconv.FormatFloat(h.bounds[i], 'f', -1, 64)
			if !strings.Contains(bound, ".") {
				bound += ".0"
			}
		}
		write(name+"_bucket", float64(total), "le", bound)
	}
	write(name+"_sum", h.sum)
	write(name+"_count", float64(total))
}

// finishReasons are the values of finished_reason, by [protocol.FinishReason].
var finishReasons = [...]string{
	protocol.FinishStop: "stop", protocol.FinishLength: "length", protocol.FinishAbort: "abort", protocol.FinishError: "error",
	protocol.FinishRepetition: "repetition",
}

func (m *metrics) render() []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := &metricsText{model: m.model, b: []byte(Mark)}
	each := func(name, kind, help string, write func(name string, engine int, e *engineMetrics)) {
		if kind == "counter" {
			name += "_total"
		}
		t.head(name, kind, help)
		for i := range m.engines {
			write(name, i, &m.engines[i])
		}
	}
	number := func(name, kind, help string, value func(e *engineMetrics) float64) {
		each(name, kind, help, func(name string, i int, e *engineMetrics) { t.sample(name, i, value(e)) })
	}
	counter := func(name, help string, value func(e *engineMetrics) int) {
		number(name, "counter", help, func(e *engineMetrics) float64 { return float64(value(e)) })
	}
	observed := func(name, help string, of func(e *engineMetrics) *histogram) {
		each(name, "histogram", help, func(name string, i int, e *engineMetrics) {
			of(e).each(name, func(name string, value float64, more ...string) { t.sample(name, i, value, more...) })
		})
	}
	number("vllm:num_requests_running", "gauge", "Number of requests in model execution batches.", func(e *engineMetrics) float64 { return float64(e.running) })
	number("vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed.", func(e *engineMetrics) float64 { return float64(e.waiting + e.deferred) })
	each("vllm:num_requests_waiting_by_reason", "gauge", "Number of waiting requests by reason.", func(name string, i int, e *engineMetrics) {
		t.sample(name, i, float64(e.waiting), "reason", "capacity")
		t.sample(name, i, float64(e.deferred), "reason", "deferred")
	})
	if m.engines[0].fetching != nil {
		each("vllm:num_requests_kv_fetch_by_stage", "gauge", "Number of waiting requests by async KV load stage.", func(name string, i int, e *engineMetrics) {
			if f := e.fetching; f != nil {
				t.sample(name, i, float64(f.WaitingToStart), "stage", "waiting_to_start")
				t.sample(name, i, float64(f.InProgress), "stage", "in_progress")
				t.sample(name, i, float64(f.CompletedWaiting), "stage", "completed_waiting")
			}
		})
	}
	number("vllm:kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", func(e *engineMetrics) float64 { return e.usage })
	counter("vllm:prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens.", func(e *engineMetrics) int { return e.prefixQueries })
	counter("vllm:prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", func(e *engineMetrics) int { return e.prefixHits })
	counter("vllm:external_prefix_cache_queries", "External prefix cache queries from KV connector cross-instance cache sharing, in terms of number of queried tokens.",
		func(e *engineMetrics) int { return e.externalQueries })
	counter("vllm:external_prefix_cache_hits", "External prefix cache hits from KV connector cross-instance cache sharing, in terms of number of cached tokens.",
		func(e *engineMetrics) int { return e.externalHits })
	counter("vllm:num_preemptions", "Cumulative number of preemption from the engine.", func(e *engineMetrics) int { return e.preemptions })
	counter("vllm:prompt_tokens", "Number of prefill tokens processed.", func(e *engineMetrics) int { return e.prompt })
	each("vllm:prompt_tokens_by_source", "counter", "Number of prompt tokens by source.", func(name string, i int, e *engineMetrics) {
		t.sample(name, i, float64(e.computed), "source", "local_compute")
		t.sample(name, i, float64(e.local), "source", "local_cache_hit")
		t.sample(name, i, float64(e.external), "source", "external_kv_transfer")
	})
	counter("vllm:prompt_tokens_cached", "Number of cached prompt tokens (local + external).", func(e *engineMetrics) int { return e.local + e.external })
	each("vllm:prompt_tokens_cached_by_source", "counter", "Prefix-cache hit tokens by the cache tier that supplied them.", func(name string, i int, e *engineMetrics) {
		t.sample(name, i, float64(e.prefixHits), "source", "device")
		for _, source := range []string{"host", "p2p", "disk"} {
			t.sample(name, i, 0, "source", source)
		}
		t.sample(name, i, float64(e.externalHits), "source", "external_unspecified")
	})
	counter("vllm:mm_cache_queries", "Multi-modal cache queries, in terms of number of queried items.", func(e *engineMetrics) int { return e.images })
	counter("vllm:mm_cache_hits", "Multi-modal cache hits, in terms of number of cached items.", func(e *engineMetrics) int { return e.knownImages })
	counter("vllm:generation_tokens", "Number of generation tokens processed.", func(e *engineMetrics) int { return e.generated })
	each("vllm:request_success", "counter", "Count of successfully processed requests.", func(name string, i int, e *engineMetrics) {
		for reason, text := range finishReasons {
			if text != "" {
				t.sample(name, i, float64(e.finished[reason]), "finished_reason", text)
			}
		}
	})
	if m.engines[0].acceptedAt != nil {
		counter("vllm:spec_decode_num_drafts", "Number of spec decoding drafts.", func(e *engineMetrics) int { return e.drafts })
		counter("vllm:spec_decode_num_draft_tokens", "Number of draft tokens.", func(e *engineMetrics) int { return e.drafted })
		counter("vllm:spec_decode_num_accepted_tokens", "Number of accepted tokens.", func(e *engineMetrics) int { return e.accepted })
		each("vllm:spec_decode_num_accepted_tokens_per_pos", "counter", "Accepted tokens per draft position.", func(name string, i int, e *engineMetrics) {
			for position, n := range e.acceptedAt {
				t.sample(name, i, float64(n), "position", strconv.Itoa(position))
			}
		})
	}
	observed("vllm:iteration_tokens_total", "Histogram of number of tokens per engine_step.", func(e *engineMetrics) *histogram { return &e.iteration })
	observed("vllm:request_prompt_tokens", "Number of prefill tokens processed.", func(e *engineMetrics) *histogram { return &e.promptSize })
	observed("vllm:request_generation_tokens", "Number of generation tokens processed.", func(e *engineMetrics) *histogram { return &e.answerSize })
	observed("vllm:request_max_num_generation_tokens", "Histogram of maximum number of requested generation tokens.", func(e *engineMetrics) *histogram { return &e.maxWanted })
	observed("vllm:request_params_n", "Histogram of the n request parameter.", func(e *engineMetrics) *histogram { return &e.n })
	observed("vllm:request_params_max_tokens", "Histogram of the max_tokens request parameter.", func(e *engineMetrics) *histogram { return &e.wanted })
	observed("vllm:request_prefill_kv_computed_tokens", "Histogram of new KV tokens computed during prefill (excluding cached tokens).", func(e *engineMetrics) *histogram { return &e.prefilled })
	observed("vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.", func(e *engineMetrics) *histogram { return &e.firstToken })
	observed("vllm:inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", func(e *engineMetrics) *histogram { return &e.interToken })
	observed("vllm:request_time_per_output_token_seconds", "Histogram of time_per_output_token_seconds per request.", func(e *engineMetrics) *histogram { return &e.perToken })
	observed("vllm:e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", func(e *engineMetrics) *histogram { return &e.total })
	observed("vllm:request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", func(e *engineMetrics) *histogram { return &e.queue })
	observed("vllm:request_inference_time_seconds", "Histogram of time spent in RUNNING phase for request.", func(e *engineMetrics) *histogram { return &e.inference })
	observed("vllm:request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.", func(e *engineMetrics) *histogram { return &e.prefill })
	observed("vllm:request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.", func(e *engineMetrics) *histogram { return &e.decode })
	observed("vllm:request_num_preemptions", "Histogram of the number of times a request was preempted.", func(e *engineMetrics) *histogram { return &e.preempted })
	if slices.ContainsFunc(m.engines, func(e engineMetrics) bool { return e.lifetime.bounds != nil }) {
		observed("vllm:kv_block_lifetime_seconds", "Histogram of KV cache block lifetime from allocation to eviction.", func(e *engineMetrics) *histogram { return &e.lifetime })
		observed("vllm:kv_block_idle_before_evict_seconds", "Histogram of idle time before KV cache block eviction.", func(e *engineMetrics) *histogram { return &e.idle })
		observed("vllm:kv_block_reuse_gap_seconds", "Histogram of time gaps between consecutive KV cache block accesses.", func(e *engineMetrics) *histogram { return &e.reuse })
	}
	for _, what := range []struct{ name, of string }{{"flops", "floating point operations"}, {"read_bytes", "bytes read from memory"}, {"write_bytes", "bytes written to memory"}} {
		counter("vllm:estimated_"+what.name+"_per_gpu", "Estimated number of "+what.of+" per GPU.", func(*engineMetrics) int { return 0 }) // nothing is computed
	}
	m.ofServer(t)
	return t.b
}

// ofServer writes the metrics that belong to no engine.
func (m *metrics) ofServer(t *metricsText) {
	const rejections, invocations = "vllm:admission_rejections_total", "vllm:tool_call_parser_invocations_total"
	t.head(rejections, "counter", "Number of admission attempts rejected by a queue limit, by reason.")
	for _, reason := range []string{"max_num_queued_reqs", "max_num_queued_tokens"} {
		t.bare(rejections, 0, "model_name", t.model, "reason", reason)
	}
	t.head(invocations, "counter", "Total number of ToolParser invocations. Non-streaming increments once per choice; streaming increments once per delta.")
	for stream, mode := range []string{"non_streaming", "streaming"} {
		for found, outcome := range []string{"no_tool_call", "tool_call"} {
			for of, kind := range parsedFor {
				t.bare(invocations, float64(m.parsed[stream][found][of].Load()), "model_name", t.model, "mode", mode, "outcome", outcome, "request_type", kind)
			}
		}
	}
	for _, kind := range []struct{ name, what string }{{sleepOperation, "sleep-mode"}, {weightOperation, "weight-transfer"}} {
		var names []string
		for o := range m.timed {
			if o.kind == kind.name {
				names = append(names, o.name)
			}
		}
		if slices.Sort(names); names == nil {
			continue
		}
		first, running := strings.ToUpper(kind.what[:1])+kind.what[1:], "vllm:"+kind.name+"s_in_flight"
		duration := "vllm:" + kind.name + "_duration_seconds"
		t.head(duration, "histogram", "Duration of one "+kind.what+" operation.")
		for _, name := range names {
			m.timed[operation{kind.name, name}].each(duration, func(line string, value float64, more ...string) {
				t.bare(line, value, append([]string{"operation", name}, more...)...)
			})
		}
		t.head(running, "gauge", first+" operations currently awaited.")
		for _, name := range names {
			t.bare(running, float64(m.underWay[operation{kind.name, name}]), "operation", name)
		}
	}
}

// looked counts that calls of tools were looked for.
func (m *metrics) looked(stream, found bool, of int) {
	at := func(b bool) int {
		if b {
			return 1
		}
		return 0
	}
	m.parsed[at(stream)][at(found)][of].Add(1)
}

// measure measures an operation, which over ends.
func (m *metrics) measure(o operation) (over func()) {
	started := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.timed[o] == nil {
		h := newHistogram(operationBounds)
		m.timed[o] = &h
	}
	m.underWay[o]++
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.underWay[o]--
		m.timed[o].observe(time.Since(started).Seconds())
	}
}

func (s *Server) serveMetrics(w http.ResponseWriter, _ *http.Request) *apiError {
	body := s.metrics.render()
	if s.sim != nil {
		body = simulatorMetrics(body)
	}
	if engines := s.opt.Group.Engines(); len(engines) > 0 {
		body = s.metrics.appendAdapters(body, engines[0].MaxLoRAs)
	}
	h := w.Header()
	h["Content-Type"] = []string{"text/plain; version=0.0.4; charset=utf-8"}
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	_, _ = w.Write(body) // the client may be gone
	return nil
}
