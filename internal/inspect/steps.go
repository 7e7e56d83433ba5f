package inspect

import (
	"errors"
	"fmt"
	"io"

	"github.com/vllm-vcr/conformance/trace"
)

// StepSummary is what the step statistics of a trace hold: a line for each message of the engine that had statistics.
type StepSummary struct {
	Steps int `json:"steps"`
	// Interval is the time from one message to the next, while requests ran or waited.
	Interval Distribution `json:"interval"`
	// Running and Waiting are requests, KVUsageMean and KVUsageMax the part of the KV cache that was in use, 0 to 1.
	Running     Counts  `json:"running"`
	Waiting     Counts  `json:"waiting"`
	KVUsageMean float64 `json:"kv_cache_usage_mean"`
	KVUsageMax  float64 `json:"kv_cache_usage_max"`
	// PrefixQueries and PrefixHits are tokens that were looked for and found in the prefix cache.
	PrefixQueries uint64 `json:"prefix_cache_queries"`
	PrefixHits    uint64 `json:"prefix_cache_hits"`
	// Drafts is how often tokens were guessed ahead, DraftTokens and AcceptedTokens how many tokens.
	Drafts         uint64 `json:"spec_drafts,omitempty"`
	DraftTokens    uint64 `json:"spec_draft_tokens,omitempty"`
	AcceptedTokens uint64 `json:"spec_accepted_tokens,omitempty"`
	// AcceptedByPosition is the part of the drafts whose token at this position was accepted.
	AcceptedByPosition []float64 `json:"spec_accepted_by_position,omitempty"`
}

// SummarizeSteps summarizes step statistics.
func SummarizeSteps(r *trace.StepReader) (*StepSummary, error) {
	var s StepSummary
	var interval, running, waiting sketch
	var positions []uint64
	usage := 0.0
	err := eachStep(r, func(before, now *trace.StepStats) {
		s.Steps++
		sched := &now.Scheduler
		running.add(float64(sched.Running))
		waiting.add(float64(sched.Waiting))
		usage += sched.KVCacheUsage
		s.KVUsageMax = max(s.KVUsageMax, sched.KVCacheUsage)
		if before != nil && isBusy(before) {
			interval.add(now.TsMs - before.TsMs)
		}
		s.PrefixQueries += uint64(sched.PrefixCache.Queries)
		s.PrefixHits += uint64(sched.PrefixCache.Hits)
		if spec := sched.Spec; spec != nil {
			s.Drafts += uint64(spec.Drafts)
			s.DraftTokens += uint64(spec.DraftTokens)
			s.AcceptedTokens += uint64(spec.AcceptedTokens)
			for i, n := range spec.AcceptedPerPos {
				if i == len(positions) {
					positions = append(positions, 0)
				}
				positions[i] += uint64(n)
			}
		}
	})
	if err != nil {
		return nil, err
	}
	s.Interval, s.Running, s.Waiting = interval.distribution(), running.whole(), waiting.whole()
	s.KVUsageMean = usage / float64(max(s.Steps, 1))
	for _, n := range positions {
		s.AcceptedByPosition = append(s.AcceptedByPosition, float64(n)/float64(max(s.Drafts, 1)))
	}
	return &s, nil
}

// eachStep passes on each line of step statistics with the line before it, nil for the first.
func eachStep(r *trace.StepReader, do func(before, now *trace.StepStats)) error {
	var lines [2]trace.StepStats
	var before *trace.StepStats
	for i := 0; ; i++ {
		now := &lines[i%2]
		if err := r.Next(now); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		do(before, now)
		before = now
	}
}

// isBusy reports whether the engine had requests after a step, so that the next one began at once.
func isBusy(s *trace.StepStats) bool {
	return s.Scheduler.Running+s.Scheduler.Waiting+s.Scheduler.Skipped > 0
}

// facts are the step statistics in sentences, each with its name.
func (s *StepSummary) facts() [][2]string {
	facts := [][2]string{{"steps", fmt.Sprintf("%d messages with statistics, at intervals of %s ms (p50 / p90 / p99)", s.Steps, quantilesText(s.Interval))}}
	add := func(name, format string, args ...any) {
		facts = append(facts, [2]string{name, fmt.Sprintf(format, args...)})
	}
	add("running", "%.1f requests on average, at most %d; waiting: %.1f, at most %d", s.Running.Mean, s.Running.Max, s.Waiting.Mean, s.Waiting.Max)
	add("KV cache", "%.1f %% used on average, at most %.1f %%", 100*s.KVUsageMean, 100*s.KVUsageMax)
	if s.PrefixQueries > 0 {
		add("hits", "%.1f %% of %d prompt tokens were found in the prefix cache", 100*float64(s.PrefixHits)/float64(s.PrefixQueries), s.PrefixQueries)
	}
	if s.DraftTokens > 0 {
		text := fmt.Sprintf("%.1f %% of %d draft tokens were accepted; by position:", 100*float64(s.AcceptedTokens)/float64(s.DraftTokens), s.DraftTokens)
		for _, part := range s.AcceptedByPosition {
			text += fmt.Sprintf(" %.1f %%", 100*part)
		}
		add("drafts", "%s", text)
	}
	return facts
}
