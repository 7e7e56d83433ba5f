package protocol

import (
	"fmt"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// SchedulerStats is what an engine says of its queues after a step
// (vllm/v1/metrics/stats.py). It is always written with every key of the line:
// a Rust frontend dies of a missing one. Running, Waiting, Skipped and
// KVCacheUsage are gauges; PrefixCache and Spec are what happened since the
// last message, frontends add them up.
//
// A field with a tag is sent by lines that have it, checked against what they declare, read back by servers, and by readers of the
// file of statistics that a recorder writes: see CONTRIBUTING.md, "A field that the player sends".
type SchedulerStats struct {
	Running      int     `wire:"num_running_reqs"`
	Waiting      int     `wire:"num_waiting_reqs"`
	Skipped      int     `wire:"num_skipped_waiting_reqs"` // waiting but held back, for instance by a LoRA limit
	StepCounter  int     `wire:"step_counter"`
	CurrentWave  int     `wire:"current_wave"`
	KVCacheUsage float64 `wire:"kv_cache_usage"` // share of the KV blocks in use, 0 to 1

	PrefixCache CacheStats  `wire:"prefix_cache_stats"`
	External    *CacheStats `wire:"connector_prefix_cache_stats"` // look-ups in other engines' caches; nil without a KV connector
	// Fetching counts the requests whose KV cache comes from another engine.
	Fetching FetchStages        `wire:"num_kv_fetch_reqs_by_stage"`
	Spec     *SpecDecodingStats `wire:"spec_decoding_stats"`
	// Connector is what a NIXL connector did since the last message; nil for nothing.
	Connector *ConnectorStats `wire:"kv_connector_stats"`
	// Iteration is what the step computed; nil unless the engine is to log it.
	Iteration *IterationDetails `wire:"iteration_details"`
	// Evictions are blocks that lost their content since the last message, as far as they are sampled.
	Evictions []Eviction `wire:"kv_cache_eviction_events"`
	// LoRAs are the adapters of requests, for a frontend in the same process: it is not sent. It is nil until one was used.
	LoRAs *LoRAStats
}

// FetchStages counts requests whose KV cache has not begun to come, is coming, or has come. The scheduler always writes all three
// (vllm/v1/core/sched/scheduler.py at 0.32.0), although the declared default is an empty map.
type FetchStages struct {
	WaitingToStart   int `wire:"waiting_to_start"`
	InProgress       int `wire:"in_progress"`
	CompletedWaiting int `wire:"completed_waiting"`
}

// ConnectorStats is what a NIXL connector did (vllm/distributed/kv_transfer/kv_connector/v1/nixl/stats.py).
type ConnectorStats struct {
	Transfers []ConnectorTransfer // that have ended well
	// FailedHandshakes are other engines that could not be asked; FailedTransfers are KV caches that did not come for another
	// reason, Expired are those that were not pulled before their lease ended, and Late those that were pulled after it.
	FailedHandshakes, FailedTransfers, Expired, Late int
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
	Index              int     `wire:"iteration_index"`
	PrefillRequests    int     `wire:"num_ctx_requests"` // requests that have no output yet
	PrefillTokens      int     `wire:"num_ctx_tokens"`
	GenerationRequests int     `wire:"num_generation_requests"`
	GenerationTokens   int     `wire:"num_generation_tokens"`
	ElapsedMS          float64 `wire:"elapsed_ms"`
}

// Eviction is the life of a KV block that is given to another request (KVCacheEvictionEvent). Times are in seconds.
type Eviction struct {
	Lifetime  float64   `wire:"lifetime_seconds"`
	Idle      float64   `wire:"idle_seconds"`       // since the last request that found it
	ReuseGaps []float64 `wire:"reuse_gaps_seconds"` // between the last of those, at most 3
}

// CacheStats counts prefix-cache look-ups; Queries and Hits are in tokens.
type CacheStats struct {
	Reset             bool `wire:"reset"`
	Requests          int  `wire:"requests"`
	Queries           int  `wire:"queries"`
	Hits              int  `wire:"hits"`
	PreemptedRequests int  `wire:"preempted_requests"`
	PreemptedQueries  int  `wire:"preempted_queries"`
	PreemptedHits     int  `wire:"preempted_hits"`
	// Source names where the hits come from, in the statistics of a KV connector; empty for none.
	Source string
}

// SpecDecodingStats counts speculative decoding (vllm/v1/spec_decode/metrics.py).
type SpecDecodingStats struct {
	SpecTokens        int   `wire:"num_spec_tokens"` // draft length K
	Drafts            int   `wire:"num_drafts"`
	DraftTokens       int   `wire:"num_draft_tokens"`
	AcceptedTokens    int   `wire:"num_accepted_tokens"`
	AcceptedPerPos    []int `wire:"num_accepted_tokens_per_pos"` // K entries
	DraftTokensPerPos []int `wire:"num_draft_tokens_per_pos"`    // K entries, since 0.24
}

func appendHitsBySource(b []byte, s *CacheStats) []byte {
	if s.Source == "" || s.Hits == 0 {
		return pack.AppendMapHeader(b, 0)
	}
	return pack.AppendInt(pack.AppendString(pack.AppendMapHeader(b, 1), s.Source), int64(s.Hits))
}

// HitsOfPeers is the source of hits that a NIXL connector names (vllm/v1/metrics/cache_hit_source.py).
const HitsOfPeers = "p2p"

// appendWire writes the keys of the line, of which Python's frontend needs every one: a list each, with an entry for each
// transfer, or with a 1 for each failure.
func (s *ConnectorStats) appendWire(b []byte, c *Codec) []byte {
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
		list("num_notifications_after_expiry", s.Late, one)
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

// DecodeStats reads the statistics of a message, as far as a [SchedulerStats] has fields for them.
func DecodeStats(raw []byte) (SchedulerStats, error) {
	var s SchedulerStats
	if err := readWhole(raw, &s); err != nil {
		return s, fmt.Errorf("scheduler_stats: %w", err)
	}
	return s, nil
}
