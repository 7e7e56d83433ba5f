package protocol

import (
	"fmt"

	"github.com/vllm-vcr/conformance/internal/pack"
)

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
	Spec         *SpecDecodingStats
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
	statsSpec
)

var statsOps = map[string]statsOp{
	"num_running_reqs": statsRunning, "num_waiting_reqs": statsWaiting,
	"num_skipped_waiting_reqs": statsSkipped, "step_counter": statsStepCounter, "current_wave": statsWave,
	"kv_cache_usage": statsUsage, "prefix_cache_stats": statsPrefix, "spec_decoding_stats": statsSpec,
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
		case f.Name == "num_kv_fetch_reqs_by_stage":
			run = appendKVFetchStages(run)
		case f.Required:
			return c.unknownRequired("SchedulerStats", f.Name)
		default:
			def, err := defaultBytes(f)
			if err != nil {
				return fmt.Errorf("wire profile %s: SchedulerStats.%s: %w", c.profile.Line, f.Name, err)
			}
			run = append(run, def...)
		}
	}
	c.stats = append(c.stats, statsStep{bytes: run})
	return c.checkCacheStats()
}

func appendKVFetchStages(b []byte) []byte {
	b = pack.AppendMapHeader(b, len(kvFetchStages))
	for _, stage := range kvFetchStages {
		b = pack.AppendInt(pack.AppendString(b, stage), 0)
	}
	return b
}

// checkCacheStats refuses a profile whose cache or speculation statistics have
// a required field that the writers below do not know.
func (c *Codec) checkCacheStats() error {
	for name, known := range map[string]map[string]bool{
		"PrefixCacheStats": {"reset": true, "requests": true, "queries": true, "hits": true,
			"preempted_requests": true, "preempted_queries": true, "preempted_hits": true, "hits_by_source": true},
		"SpecDecodingStats": {"num_spec_tokens": true, "num_drafts": true, "num_draft_tokens": true,
			"num_accepted_tokens": true, "num_accepted_tokens_per_pos": true, "num_draft_tokens_per_pos": true},
	} {
		s, err := c.profile.needStruct(name, "map")
		if err != nil {
			return err
		}
		for _, f := range s.Fields {
			if !known[f.Name] {
				return c.unknownRequired(name, f.Name)
			}
		}
	}
	c.cacheFields = len(c.profile.Structs["PrefixCacheStats"].Fields)
	c.specFields = len(c.profile.Structs["SpecDecodingStats"].Fields)
	return nil
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
			b = c.appendCacheStats(b, &s.PrefixCache)
		case statsSpec:
			b = c.appendSpecStats(b, s.Spec)
		}
	}
	return b
}

func (c *Codec) appendCacheStats(b []byte, s *CacheStats) []byte {
	b = pack.AppendMapHeader(b, c.cacheFields)
	b = pack.AppendBool(pack.AppendString(b, "reset"), s.Reset)
	b = pack.AppendInt(pack.AppendString(b, "requests"), int64(s.Requests))
	b = pack.AppendInt(pack.AppendString(b, "queries"), int64(s.Queries))
	b = pack.AppendInt(pack.AppendString(b, "hits"), int64(s.Hits))
	b = pack.AppendInt(pack.AppendString(b, "preempted_requests"), int64(s.PreemptedRequests))
	b = pack.AppendInt(pack.AppendString(b, "preempted_queries"), int64(s.PreemptedQueries))
	b = pack.AppendInt(pack.AppendString(b, "preempted_hits"), int64(s.PreemptedHits))
	if c.cacheFields > 7 {
		b = pack.AppendMapHeader(pack.AppendString(b, "hits_by_source"), 0)
	}
	return b
}

func (c *Codec) appendSpecStats(b []byte, s *SpecDecodingStats) []byte {
	if s == nil {
		return pack.AppendNil(b)
	}
	b = pack.AppendMapHeader(b, c.specFields)
	b = pack.AppendInt(pack.AppendString(b, "num_spec_tokens"), int64(s.SpecTokens))
	b = pack.AppendInt(pack.AppendString(b, "num_drafts"), int64(s.Drafts))
	b = pack.AppendInt(pack.AppendString(b, "num_draft_tokens"), int64(s.DraftTokens))
	b = pack.AppendInt(pack.AppendString(b, "num_accepted_tokens"), int64(s.AcceptedTokens))
	b = appendInts(pack.AppendString(b, "num_accepted_tokens_per_pos"), s.AcceptedPerPos)
	if c.specFields > 5 {
		b = appendInts(pack.AppendString(b, "num_draft_tokens_per_pos"), s.DraftTokensPerPos)
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

type prefillStep struct {
	key   []byte
	value func(*PrefillStats) int
}

var prefillValues = map[string]func(*PrefillStats) int{
	"num_prompt_tokens":          func(s *PrefillStats) int { return s.Prompt },
	"num_computed_tokens":        func(s *PrefillStats) int { return s.Computed },
	"num_cached_tokens":          func(s *PrefillStats) int { return s.Cached },
	"num_local_cached_tokens":    func(s *PrefillStats) int { return s.LocalCached },
	"num_external_cached_tokens": func(s *PrefillStats) int { return s.ExternalCached },
	"num_cache_creation_tokens":  func(s *PrefillStats) int { return s.CacheCreation },
}

func (c *Codec) compilePrefill() error {
	s, err := c.profile.needStruct("PrefillStats", "map")
	if err != nil {
		return err
	}
	for _, f := range s.Fields {
		value, known := prefillValues[f.Name]
		if !known {
			return c.unknownRequired("PrefillStats", f.Name)
		}
		c.prefill = append(c.prefill, prefillStep{key: pack.AppendString(nil, f.Name), value: value})
	}
	return nil
}

func (c *Codec) appendPrefill(b []byte, s *PrefillStats) []byte {
	if s == nil {
		return pack.AppendNil(b)
	}
	b = pack.AppendMapHeader(b, len(c.prefill))
	for _, step := range c.prefill {
		b = pack.AppendInt(append(b, step.key...), int64(step.value(s)))
	}
	return b
}
