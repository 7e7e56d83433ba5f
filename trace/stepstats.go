package trace

import (
	"encoding/json"
	"math"
	"slices"
)

// StepStats is one line of the sidecar: the scheduler statistics of one
// message from the engine to the frontend.
type StepStats struct {
	// TsMs is the message's arrival at the tap, ms on the zero of
	// Record.ArrivalMs.
	TsMs float64
	// Scheduler is what this package understands of Raw.
	Scheduler SchedulerStats
	// Raw is vLLM's SchedulerStats as a JSON object. Its fields drift from
	// line to line. A writer writes it as it stands, or Scheduler if it is nil.
	Raw json.RawMessage
	// Line is the physical line, 1-based; 0 if it was not read.
	Line int
}

// SchedulerStats is the part of vLLM's SchedulerStats (vllm/v1/metrics/stats.py)
// that has kept its meaning across lines. Absent and null fields are zero.
type SchedulerStats struct {
	// NumRunningReqs, NumWaitingReqs and NumSkippedWaitingReqs are requests.
	NumRunningReqs, NumWaitingReqs, NumSkippedWaitingReqs uint64
	StepCounter, CurrentWave                              uint64
	// KVCacheUsage is 0 to 1.
	KVCacheUsage float64
	PrefixCache  *PrefixCacheStats
	// SpecDecoding is nil for steps without speculation.
	SpecDecoding *SpecDecodingStats
}

// PrefixCacheStats are the prefix cache's counters since the last message.
// Upstream counts Queries and Hits in tokens.
type PrefixCacheStats struct {
	Reset                                              bool
	Requests, Queries, Hits                            uint64
	PreemptedRequests, PreemptedQueries, PreemptedHits uint64
}

// SpecDecodingStats are the speculation's counters since the last message.
type SpecDecodingStats struct {
	NumSpecTokens, NumDrafts, NumDraftTokens, NumAcceptedTokens uint64
	// NumAcceptedTokensPerPos has NumSpecTokens entries.
	NumAcceptedTokensPerPos []uint64
}

func parseStep(line []byte, s *StepStats) error {
	raw := s.Raw[:0]
	*s = StepStats{}
	var ts, sched once
	c := &cursor{b: line}
	err := c.object(func(key []byte) (err error) {
		switch string(key) {
		case "ts_ms":
			if err = ts.mark(c); err == nil {
				s.TsMs, err = c.float()
			}
			return within(err, "ts_ms")
		case "scheduler":
			if err = sched.mark(c); err == nil {
				c.space()
				start := c.i
				err = s.Scheduler.parse(c)
				s.Raw = append(raw, c.b[start:c.i]...)
			}
			return within(err, "scheduler")
		}
		return c.skip(2)
	})
	if err != nil {
		return err
	}
	if err := c.end(); err != nil {
		return err
	}
	if err := ts.need("ts_ms"); err != nil {
		return err
	}
	return sched.need("scheduler")
}

// statFields reads an object of which some members matter: read consumes the
// value of the n-th of names, and all others are skipped. Null leaves the zero value.
func (c *cursor) statFields(depth int, names []string, read func(n int) error) error {
	var seen uint64
	return c.object(func(key []byte) error {
		n := slices.IndexFunc(names, func(name string) bool { return name == string(key) })
		if n < 0 {
			return inKey(c.skip(depth), key)
		}
		if seen&(1<<n) != 0 {
			return within(c.fail("the key occurs twice"), names[n])
		}
		seen |= 1 << n
		if c.null() {
			return nil
		}
		return within(read(n), names[n])
	})
}

// counter consumes an integer into *at.
func (c *cursor) counter(at *uint64) (err error) {
	*at, err = c.uint(math.MaxUint64)
	return err
}

var schedulerStatsNames = []string{
	"num_running_reqs", "num_waiting_reqs", "num_skipped_waiting_reqs", "step_counter", "current_wave",
	"kv_cache_usage", "prefix_cache_stats", "spec_decoding_stats",
}

func (s *SchedulerStats) parse(c *cursor) error {
	counters := [...]*uint64{&s.NumRunningReqs, &s.NumWaitingReqs, &s.NumSkippedWaitingReqs, &s.StepCounter, &s.CurrentWave}
	return c.statFields(3, schedulerStatsNames, func(n int) (err error) {
		switch n - len(counters) {
		case 0:
			s.KVCacheUsage, err = c.float()
			return err
		case 1:
			s.PrefixCache = new(PrefixCacheStats)
			return s.PrefixCache.parse(c)
		case 2:
			s.SpecDecoding = new(SpecDecodingStats)
			return s.SpecDecoding.parse(c)
		}
		return c.counter(counters[n])
	})
}

var prefixCacheStatsNames = []string{
	"requests", "queries", "hits", "preempted_requests", "preempted_queries", "preempted_hits", "reset",
}

func (s *PrefixCacheStats) parse(c *cursor) error {
	counters := [...]*uint64{&s.Requests, &s.Queries, &s.Hits, &s.PreemptedRequests, &s.PreemptedQueries, &s.PreemptedHits}
	return c.statFields(4, prefixCacheStatsNames, func(n int) (err error) {
		if n < len(counters) {
			return c.counter(counters[n])
		}
		s.Reset, err = c.boolean()
		return err
	})
}

var specDecodingStatsNames = []string{
	"num_spec_tokens", "num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_accepted_tokens_per_pos",
}

func (s *SpecDecodingStats) parse(c *cursor) error {
	counters := [...]*uint64{&s.NumSpecTokens, &s.NumDrafts, &s.NumDraftTokens, &s.NumAcceptedTokens}
	return c.statFields(4, specDecodingStatsNames, func(n int) (err error) {
		if n < len(counters) {
			return c.counter(counters[n])
		}
		s.NumAcceptedTokensPerPos, err = uints[uint64](c, nil)
		return err
	})
}

func (c *cursor) boolean() (bool, error) {
	c.space()
	switch {
	case c.literal("true"):
		return true, nil
	case c.literal("false"):
		return false, nil
	}
	return false, c.fail("want true or false, got %s", c.here())
}
