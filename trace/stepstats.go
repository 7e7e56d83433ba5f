package trace

import (
	"encoding/json"
	"io"
	"math"
	"slices"
	"strconv"
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
		s.Reset, err = c.bool()
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

// StepReader streams a sidecar.
type StepReader struct{ in stream }

// OpenSteps opens the sidecar at path. The caller closes the StepReader.
func OpenSteps(path string, opt Options) (*StepReader, error) {
	return openAs(path, opt, func(r io.Reader, name string, gzip bool, opt Options) (*StepReader, error) {
		return NewStepReader(r, name, gzip, opt), nil
	})
}

// NewStepReader reads a sidecar from r. name is for messages. Of Options,
// Strict asks for a whole gzip stream and last line, as for a trace.
func NewStepReader(r io.Reader, name string, gzip bool, opt Options) *StepReader {
	return &StepReader{stream{lines: newLineReader(r, name, gzip, opt)}}
}

// Next fills s with the next line, or returns io.EOF after the last. It reuses
// the storage of s, as [Reader.Next] does.
func (r *StepReader) Next(s *StepStats) (err error) {
	s.Line, err = r.in.next(func(line []byte) error { return parseStep(line, s) })
	return err
}

// Truncated reports whether the gzip stream ended without its trailer. It is
// only known once Next has returned io.EOF.
func (r *StepReader) Truncated() bool { return r.in.lines.cut }

// Warnings returns what was tolerated so far, each naming file and line.
func (r *StepReader) Warnings() []string { return r.in.lines.warnings }

// Close closes the file, if OpenSteps opened it.
func (r *StepReader) Close() error { return r.in.close() }

func (r *StepReader) stream() *stream { return &r.in }

// StepWriter writes a sidecar. Each line is on its way to the operating system
// when Write returns.
type StepWriter struct {
	lines *lineWriter
}

// NewStepWriter returns a writer of a sidecar to w. Nothing is written before
// the first line, or Close.
func NewStepWriter(w io.Writer, gzip bool) *StepWriter {
	lines := newLineWriter(w, gzip)
	lines.kind = "step"
	return &StepWriter{lines: lines}
}

// Write writes one line. A *WriteError is final, other errors are not.
func (w *StepWriter) Write(s *StepStats) error {
	if err := w.Gather(s); err != nil {
		return err
	}
	return w.Flush()
}

// Gather is Write, but for that the line may wait for the next Write, Flush or
// Close, as with [Writer.Gather].
func (w *StepWriter) Gather(s *StepStats) error {
	return w.lines.add(func(b []byte) ([]byte, error) { return appendStep(b, s) })
}

// Flush hands on what was gathered.
func (w *StepWriter) Flush() error { return w.lines.settle() }

// Lines returns how many lines are in the hands of the operating system.
func (w *StepWriter) Lines() int { return w.lines.records }

// Close writes what was gathered and the gzip trailer, if there is one to write;
// see [Writer.Close].
func (w *StepWriter) Close() error { return w.lines.close() }

func appendStep(b []byte, s *StepStats) ([]byte, error) {
	b, err := appendFloat(append(b, `{"ts_ms":`...), s.TsMs)
	if err != nil {
		return nil, within(err, "ts_ms")
	}
	b = append(b, `,"scheduler":`...)
	if s.Raw == nil {
		b, err = s.Scheduler.append(b)
	} else {
		b, err = appendObject(b, s.Raw)
	}
	if err != nil {
		return nil, within(err, "scheduler")
	}
	return append(b, '}'), nil
}

// appendObject appends raw, which must be an object this package's reader takes.
func appendObject(b, raw []byte) ([]byte, error) {
	c := &cursor{b: raw}
	var s SchedulerStats
	if err := s.parse(c); err != nil {
		return nil, err
	}
	if err := c.end(); err != nil {
		return nil, err
	}
	return appendLine(b, raw), nil
}

// append writes the fields this package knows, in vLLM's order.
func (s *SchedulerStats) append(b []byte) ([]byte, error) {
	b = appendCounters(append(b, '{'),
		counter{"num_running_reqs", s.NumRunningReqs},
		counter{"num_waiting_reqs", s.NumWaitingReqs},
		counter{"num_skipped_waiting_reqs", s.NumSkippedWaitingReqs},
		counter{"step_counter", s.StepCounter},
		counter{"current_wave", s.CurrentWave})
	b, err := appendFloat(append(b, `,"kv_cache_usage":`...), s.KVCacheUsage)
	if err != nil {
		return nil, within(err, "kv_cache_usage")
	}
	b = s.PrefixCache.append(append(b, `,"prefix_cache_stats":`...))
	b = s.SpecDecoding.append(append(b, `,"spec_decoding_stats":`...))
	return append(b, '}'), nil
}

func (s *PrefixCacheStats) append(b []byte) []byte {
	if s == nil {
		return append(b, "null"...)
	}
	b = strconv.AppendBool(append(b, `{"reset":`...), s.Reset)
	b = appendCounters(append(b, ','),
		counter{"requests", s.Requests},
		counter{"queries", s.Queries},
		counter{"hits", s.Hits},
		counter{"preempted_requests", s.PreemptedRequests},
		counter{"preempted_queries", s.PreemptedQueries},
		counter{"preempted_hits", s.PreemptedHits})
	return append(b, '}')
}

func (s *SpecDecodingStats) append(b []byte) []byte {
	if s == nil {
		return append(b, "null"...)
	}
	b = appendCounters(append(b, '{'),
		counter{"num_spec_tokens", s.NumSpecTokens},
		counter{"num_drafts", s.NumDrafts},
		counter{"num_draft_tokens", s.NumDraftTokens},
		counter{"num_accepted_tokens", s.NumAcceptedTokens})
	b = appendUints(append(b, `,"num_accepted_tokens_per_pos":`...), s.NumAcceptedTokensPerPos)
	return append(b, '}')
}

// counter is one integer member of an object.
type counter struct {
	key string
	n   uint64
}

func appendCounters(b []byte, counters ...counter) []byte {
	open := len(b)
	for _, c := range counters {
		b = strconv.AppendUint(appendKey(b, open, c.key), c.n, 10)
	}
	return b
}
