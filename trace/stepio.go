package trace

import (
	"fmt"
	"io"
	"os"
	"strconv"
)

// StepReader streams a sidecar.
type StepReader struct {
	lines *lineReader
	err   error
	file  io.Closer
}

// OpenSteps opens the sidecar at path. The caller closes the StepReader.
func OpenSteps(path string, opt Options) (*StepReader, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	r := NewStepReader(f, path, IsGzip(path), opt)
	r.file = f
	return r, nil
}

// NewStepReader reads a sidecar from r. name is for messages. Of Options,
// Strict asks for a whole gzip stream and last line, as for a trace.
func NewStepReader(r io.Reader, name string, gzip bool, opt Options) *StepReader {
	return &StepReader{lines: newLineReader(r, name, gzip, opt)}
}

// Next fills s with the next line, or returns io.EOF after the last. It reuses
// the storage of s, as [Reader.Next] does.
func (r *StepReader) Next(s *StepStats) error {
	if r.err != nil {
		return r.err
	}
	var line []byte
	if line, r.err = r.lines.next(); r.err != nil {
		return r.err
	}
	if err := parseStep(line, s); err != nil {
		r.err = r.lines.locate(err)
		return r.err
	}
	s.Line = r.lines.line
	return nil
}

// Truncated tells whether the gzip stream ended without its trailer, once Next
// has returned io.EOF.
func (r *StepReader) Truncated() bool { return r.lines.cut }

// Warnings returns what was tolerated so far, each naming file and line.
func (r *StepReader) Warnings() []string { return r.lines.warnings }

// Close closes the file, if OpenSteps opened it.
func (r *StepReader) Close() error {
	if r.file == nil {
		return nil
	}
	return r.file.Close()
}

// ReadSteps reads the whole sidecar at path.
func ReadSteps(path string, opt Options) ([]StepStats, error) {
	r, err := OpenSteps(path, opt)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var steps []StepStats
	for {
		var s StepStats
		if err := r.Next(&s); err == io.EOF {
			return steps, nil
		} else if err != nil {
			return nil, err
		}
		steps = append(steps, s)
	}
}

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
