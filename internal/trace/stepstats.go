package trace

import (
	"encoding/json"
	"math"
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

// statFields reads an object of which some members matter: read returns where
// a key's value goes, nil for the rest. Null leaves the zero value.
func (c *cursor) statFields(depth int, read func(key string) func() error) error {
	seen := make(map[string]bool)
	return c.object(func(key []byte) error {
		name := string(key)
		value := read(name)
		if value == nil {
			return inKey(c.skip(depth), key)
		}
		if seen[name] {
			return within(c.fail("the key occurs twice"), name)
		}
		seen[name] = true
		if c.null() {
			return nil
		}
		return within(value(), name)
	})
}

// counter returns the reader of an integer into *at.
func (c *cursor) counter(at *uint64) func() error {
	return func() (err error) {
		*at, err = c.uint(math.MaxUint64)
		return err
	}
}

func (s *SchedulerStats) parse(c *cursor) error {
	return c.statFields(3, func(key string) func() error {
		switch key {
		case "num_running_reqs":
			return c.counter(&s.NumRunningReqs)
		case "num_waiting_reqs":
			return c.counter(&s.NumWaitingReqs)
		case "num_skipped_waiting_reqs":
			return c.counter(&s.NumSkippedWaitingReqs)
		case "step_counter":
			return c.counter(&s.StepCounter)
		case "current_wave":
			return c.counter(&s.CurrentWave)
		case "kv_cache_usage":
			return func() (err error) {
				s.KVCacheUsage, err = c.float()
				return err
			}
		case "prefix_cache_stats":
			return func() error {
				s.PrefixCache = new(PrefixCacheStats)
				return s.PrefixCache.parse(c)
			}
		case "spec_decoding_stats":
			return func() error {
				s.SpecDecoding = new(SpecDecodingStats)
				return s.SpecDecoding.parse(c)
			}
		}
		return nil
	})
}

func (s *PrefixCacheStats) parse(c *cursor) error {
	return c.statFields(4, func(key string) func() error {
		switch key {
		case "reset":
			return func() (err error) {
				s.Reset, err = c.boolean()
				return err
			}
		case "requests":
			return c.counter(&s.Requests)
		case "queries":
			return c.counter(&s.Queries)
		case "hits":
			return c.counter(&s.Hits)
		case "preempted_requests":
			return c.counter(&s.PreemptedRequests)
		case "preempted_queries":
			return c.counter(&s.PreemptedQueries)
		case "preempted_hits":
			return c.counter(&s.PreemptedHits)
		}
		return nil
	})
}

func (s *SpecDecodingStats) parse(c *cursor) error {
	return c.statFields(4, func(key string) func() error {
		switch key {
		case "num_spec_tokens":
			return c.counter(&s.NumSpecTokens)
		case "num_drafts":
			return c.counter(&s.NumDrafts)
		case "num_draft_tokens":
			return c.counter(&s.NumDraftTokens)
		case "num_accepted_tokens":
			return c.counter(&s.NumAcceptedTokens)
		case "num_accepted_tokens_per_pos":
			return func() (err error) {
				s.NumAcceptedTokensPerPos, err = uints[uint64](c, nil)
				return err
			}
		}
		return nil
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
