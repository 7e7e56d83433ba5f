package protocol

import "github.com/vllm-vcr/conformance/internal/wire/pack"

// SchedulerStats is what an engine says of its queues after a step
// (vllm/v1/metrics/stats.py). It is always written with every key of the line:
// a Rust frontend dies of a missing one. Running, Waiting, Skipped and
// KVCacheUsage are gauges; PrefixCache and Spec are what happened since the
// last message, frontends add them up.
type SchedulerStats struct {
	Running      int
	Waiting      int
	Skipped      int // waiting but held back, for instance by a LoRA limit
	StepCounter  int
	CurrentWave  int
	KVCacheUsage float64 // share of the KV blocks in use, 0 to 1
	PrefixCache  CacheStats
	External     *CacheStats // look-ups in other engines' caches; nil without a KV connector
	// Fetching counts the requests whose KV cache comes from another engine: those that
	// have not begun to pull, those that do, and those that have it and wait.
	Fetching [3]int
	Spec     *SpecDecodingStats
	// Connector is what a NIXL connector did since the last message; nil for nothing.
	Connector *ConnectorStats
	// Iteration is what the step computed; nil unless the engine is to log it.
	Iteration *IterationDetails
	// Evictions are blocks that lost their content since the last message, as far as they are sampled.
	Evictions []Eviction
	// LoRAs are the adapters of requests, for a frontend in the same process: it is not sent. It is nil until one was used.
	LoRAs *LoRAStats
}

// ConnectorStats is what a NIXL connector did (vllm/distributed/kv_transfer/kv_connector/v1/nixl/stats.py).
type ConnectorStats struct {
	Transfers []ConnectorTransfer // that have ended well
	// FailedHandshakes are other engines that could not be asked; FailedTransfers are KV caches that did not come for another
	// reason, and Expired are those that nobody pulled before their lease ended.
	FailedHandshakes, FailedTransfers, Expired int
}

// ConnectorTransfer is a KV cache that has come.
type ConnectorTransfer struct {
	Duration, PostDuration float64 // in seconds: of the whole transfer, and of starting it
	Bytes, Descriptors     int
}

// LoRAStats are names of adapters in their order.
type LoRAStats struct{ Running, Waiting []string }

// IterationDetails is what a step computed (vllm/v1/metrics/stats.py SchedulerIterationDetails, since 0.26).
type IterationDetails struct {
	Index                                int
	PrefillRequests, PrefillTokens       int // of requests that have no output yet
	GenerationRequests, GenerationTokens int
	ElapsedMS                            float64
}

// Eviction is the life of a KV block that is given to another request (KVCacheEvictionEvent). Times are in seconds.
type Eviction struct {
	Lifetime  float64
	Idle      float64   // since the last request that found it
	ReuseGaps []float64 // between the last of those, at most 3
}

// CacheStats counts prefix-cache look-ups; Queries and Hits are in tokens.
type CacheStats struct {
	Reset             bool
	Requests          int
	Queries           int
	Hits              int
	PreemptedRequests int
	PreemptedQueries  int
	PreemptedHits     int
	// Source names where the hits come from, in the statistics of a KV connector; empty for none.
	Source string
}

// SpecDecodingStats counts speculative decoding (vllm/v1/spec_decode/metrics.py).
type SpecDecodingStats struct {
	SpecTokens        int // draft length K
	Drafts            int
	DraftTokens       int
	AcceptedTokens    int
	AcceptedPerPos    []int // K entries
	DraftTokensPerPos []int // K entries, since 0.24
}

type statsOp uint8

const (
	statsEnd statsOp = iota // nothing but the bytes
	statsRunning
	statsWaiting
	statsSkipped
	statsStepCounter
	statsWave
	statsUsage
	statsPrefix
	statsExternal
	statsFetching
	statsSpec
	statsConnector
	statsIteration
	statsEvictions
)

var statsOps = map[string]statsOp{
	"num_running_reqs": statsRunning, "num_waiting_reqs": statsWaiting,
	"num_skipped_waiting_reqs": statsSkipped, "step_counter": statsStepCounter, "current_wave": statsWave,
	"kv_cache_usage": statsUsage, "prefix_cache_stats": statsPrefix, "spec_decoding_stats": statsSpec,
	"connector_prefix_cache_stats": statsExternal, "num_kv_fetch_reqs_by_stage": statsFetching,
	"kv_connector_stats": statsConnector, "iteration_details": statsIteration, "kv_cache_eviction_events": statsEvictions,
}

// kvFetchStages are the keys that the scheduler always fills
// (vllm/v1/core/sched/scheduler.py at 0.32.0), although the declared default is
// an empty map.
var kvFetchStages = [...]string{"waiting_to_start", "in_progress", "completed_waiting"}

// statsStep is a run of constant bytes (keys, and values this package has
// nothing to say about) and then one value.
type statsStep struct {
	bytes []byte
	op    statsOp
}

func (c *Codec) compileStats() error {
	s, err := c.profile.needStruct("SchedulerStats", "map")
	if err != nil {
		return err
	}
	run := pack.AppendMapHeader(nil, len(s.Fields))
	for _, f := range s.Fields {
		run = pack.AppendString(run, f.Name)
		op, known := statsOps[f.Name]
		switch {
		case known:
			c.stats = append(c.stats, statsStep{bytes: run, op: op})
			run = nil
		default:
			def, err := c.defaultOf("SchedulerStats", f)
			if err != nil {
				return err
			}
			run = append(run, def...)
		}
	}
	c.stats = append(c.stats, statsStep{bytes: run})
	if s.Index("iteration_details") >= 0 {
		if c.iteration, err = compileMap(c, "SchedulerIterationDetails", iterationValues); err != nil {
			return err
		}
	}
	if s.Index("kv_cache_eviction_events") >= 0 {
		if c.eviction, err = compileMap(c, "KVCacheEvictionEvent", evictionValues); err != nil {
			return err
		}
	}
	if c.cache, err = compileMap(c, "PrefixCacheStats", cacheValues); err != nil {
		return err
	}
	if c.spec, err = compileMap(c, "SpecDecodingStats", specValues); err != nil {
		return err
	}
	c.prefill, err = compileMap(c, "PrefillStats", prefillValues)
	return err
}

func appendKVFetchStages(b []byte, counts [len(kvFetchStages)]int) []byte {
	b = pack.AppendMapHeader(b, len(kvFetchStages))
	for i, stage := range kvFetchStages {
		b = pack.AppendInt(pack.AppendString(b, stage), int64(counts[i]))
	}
	return b
}

var cacheValues = mapValues[CacheStats]{
	"reset":              boolValue(func(s *CacheStats) bool { return s.Reset }),
	"requests":           intValue(func(s *CacheStats) int { return s.Requests }),
	"queries":            intValue(func(s *CacheStats) int { return s.Queries }),
	"hits":               intValue(func(s *CacheStats) int { return s.Hits }),
	"preempted_requests": intValue(func(s *CacheStats) int { return s.PreemptedRequests }),
	"preempted_queries":  intValue(func(s *CacheStats) int { return s.PreemptedQueries }),
	"preempted_hits":     intValue(func(s *CacheStats) int { return s.PreemptedHits }),
	"hits_by_source":     appendHitsBySource,
}

func appendHitsBySource(b []byte, s *CacheStats) []byte {
	if s.Source == "" || s.Hits == 0 {
		return pack.AppendMapHeader(b, 0)
	}
	return pack.AppendInt(pack.AppendString(pack.AppendMapHeader(b, 1), s.Source), int64(s.Hits))
}

// HitsOfPeers is the source of hits that a NIXL connector names (vllm/v1/metrics/cache_hit_source.py).
const HitsOfPeers = "p2p"

var iterationValues = mapValues[IterationDetails]{
	"iteration_index":         intValue(func(d *IterationDetails) int { return d.Index }),
	"num_ctx_requests":        intValue(func(d *IterationDetails) int { return d.PrefillRequests }),
	"num_ctx_tokens":          intValue(func(d *IterationDetails) int { return d.PrefillTokens }),
	"num_generation_requests": intValue(func(d *IterationDetails) int { return d.GenerationRequests }),
	"num_generation_tokens":   intValue(func(d *IterationDetails) int { return d.GenerationTokens }),
	"elapsed_ms":              floatValue(func(d *IterationDetails) float64 { return d.ElapsedMS }),
}

// appendConnector writes the keys of the line, of which Python's frontend needs every one: a list each, with an entry for each
// transfer, or with a 1 for each failure.
func (c *Codec) appendConnector(b []byte, s *ConnectorStats) []byte {
	if s == nil {
		return pack.AppendNil(b)
	}
	failed, handshakes, keys := s.FailedTransfers, s.FailedHandshakes, 9
	ownHandshakes, late := TransferCountsHandshakes.Holds(c.Line()), TransferCountsLate.Holds(c.Line())
	if !ownHandshakes {
		failed, keys = failed+handshakes, keys-1
	}
	if !late {
		keys--
	}
	list := func(name string, n int, value func(b []byte, i int) []byte) {
		b = pack.AppendArrayHeader(pack.AppendString(b, name), n)
		for i := range n {
			b = value(b, i)
		}
	}
	one := func(b []byte, _ int) []byte { return pack.AppendInt(b, 1) }
	b = pack.AppendMapHeader(b, keys)
	n := len(s.Transfers)
	list("transfer_duration", n, func(b []byte, i int) []byte { return pack.AppendFloat64(b, s.Transfers[i].Duration) })
	list("post_duration", n, func(b []byte, i int) []byte { return pack.AppendFloat64(b, s.Transfers[i].PostDuration) })
	list("bytes_transferred", n, func(b []byte, i int) []byte { return pack.AppendInt(b, int64(s.Transfers[i].Bytes)) })
	list("num_descriptors", n, func(b []byte, i int) []byte { return pack.AppendInt(b, int64(s.Transfers[i].Descriptors)) })
	list("num_failed_transfers", failed, one)
	list("num_failed_notifications", 0, one)
	if ownHandshakes {
		list("num_failed_handshakes", handshakes, one)
	}
	list("num_kv_expired_reqs", s.Expired, one)
	if late {
		list("num_notifications_after_expiry", 0, one)
	}
	return b
}

var evictionValues = mapValues[Eviction]{
	"lifetime_seconds": floatValue(func(e *Eviction) float64 { return e.Lifetime }),
	"idle_seconds":     floatValue(func(e *Eviction) float64 { return e.Idle }),
	"reuse_gaps_seconds": func(b []byte, e *Eviction) []byte {
		b = pack.AppendArrayHeader(b, len(e.ReuseGaps))
		for _, gap := range e.ReuseGaps {
			b = pack.AppendFloat64(b, gap)
		}
		return b
	},
}

var specValues = mapValues[SpecDecodingStats]{
	"num_spec_tokens":             intValue(func(s *SpecDecodingStats) int { return s.SpecTokens }),
	"num_drafts":                  intValue(func(s *SpecDecodingStats) int { return s.Drafts }),
	"num_draft_tokens":            intValue(func(s *SpecDecodingStats) int { return s.DraftTokens }),
	"num_accepted_tokens":         intValue(func(s *SpecDecodingStats) int { return s.AcceptedTokens }),
	"num_accepted_tokens_per_pos": intsValue(func(s *SpecDecodingStats) []int { return s.AcceptedPerPos }),
	"num_draft_tokens_per_pos":    intsValue(func(s *SpecDecodingStats) []int { return s.DraftTokensPerPos }),
}

var prefillValues = mapValues[PrefillStats]{
	"num_prompt_tokens":          intValue(func(s *PrefillStats) int { return s.Prompt }),
	"num_computed_tokens":        intValue(func(s *PrefillStats) int { return s.Computed }),
	"num_cached_tokens":          intValue(func(s *PrefillStats) int { return s.Cached }),
	"num_local_cached_tokens":    intValue(func(s *PrefillStats) int { return s.LocalCached }),
	"num_external_cached_tokens": intValue(func(s *PrefillStats) int { return s.ExternalCached }),
	"num_cache_creation_tokens":  intValue(func(s *PrefillStats) int { return s.CacheCreation }),
}

func (c *Codec) appendStats(b []byte, s *SchedulerStats) []byte {
	if s == nil {
		return pack.AppendNil(b)
	}
	for i := range c.stats {
		step := &c.stats[i]
		b = append(b, step.bytes...)
		switch step.op {
		case statsRunning:
			b = pack.AppendInt(b, int64(s.Running))
		case statsWaiting:
			b = pack.AppendInt(b, int64(s.Waiting))
		case statsSkipped:
			b = pack.AppendInt(b, int64(s.Skipped))
		case statsStepCounter:
			b = pack.AppendInt(b, int64(s.StepCounter))
		case statsWave:
			b = pack.AppendInt(b, int64(s.CurrentWave))
		case statsUsage:
			b = pack.AppendFloat64(b, s.KVCacheUsage)
		case statsPrefix:
			b = appendMap(b, c.cache, &s.PrefixCache)
		case statsExternal:
			b = appendMapOrNil(b, c.cache, s.External)
		case statsFetching:
			b = appendKVFetchStages(b, s.Fetching)
		case statsSpec:
			b = appendMapOrNil(b, c.spec, s.Spec)
		case statsConnector:
			b = c.appendConnector(b, s.Connector)
		case statsIteration:
			b = appendMapOrNil(b, c.iteration, s.Iteration)
		case statsEvictions:
			b = pack.AppendArrayHeader(b, len(s.Evictions))
			for i := range s.Evictions {
				b = appendMap(b, c.eviction, &s.Evictions[i])
			}
		}
	}
	return b
}

func appendInts(b []byte, values []int) []byte {
	b = pack.AppendArrayHeader(b, len(values))
	for _, v := range values {
		b = pack.AppendInt(b, int64(v))
	}
	return b
}
