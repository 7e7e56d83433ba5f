package trace

import (
	"encoding/json"
	"io"
	"math"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// StepStats is one line of the sidecar: the scheduler statistics of one
// message from the engine to the frontend.
type StepStats struct {
	// TsMs is the message's arrival at the tap, ms on the zero of
	// Record.ArrivalMs.
	TsMs float64
	// Scheduler is what is understood of Raw. Only a reader fills it.
	Scheduler SchedulerStats
	// Raw is vLLM's SchedulerStats as a JSON object, which a writer writes as it is. Its fields change from line to line.
	Raw json.RawMessage
	// Line is the physical line, 1-based; 0 if it was not read.
	Line int
}

// SchedulerStats is what this project knows of vLLM's SchedulerStats (vllm/v1/metrics/stats.py), see its fields for their keys.
// Absent and null fields are zero.
type SchedulerStats = protocol.SchedulerStats

var stepMembers = []member[StepStats]{
	{"ts_ms", true, func(c *cursor, s *StepStats) (err error) {
		s.TsMs, err = c.float()
		return err
	}},
	{"scheduler", true, func(c *cursor, s *StepStats) error {
		c.space()
		start := c.i
		err := c.statistics(2, &s.Scheduler)
		s.Raw = append(s.Raw, c.b[start:c.i]...)
		return err
	}},
}

func parseStep(line []byte, s *StepStats) error {
	*s = StepStats{Raw: s.Raw[:0]}
	c := &cursor{b: line}
	if err := members(c, 2, s, stepMembers); err != nil {
		return err
	}
	return c.end()
}

// statistics reads an object into what of points to: the members that [protocol.FieldOf] has a field for. All others are skipped,
// and null leaves the zero value.
func (c *cursor) statistics(depth int, of any) error {
	var seen uint64
	return c.object(func(key []byte) (err error) {
		if c.null() {
			return nil
		}
		to, number := protocol.FieldOf(of, key)
		if to == nil {
			return inKey(c.skip(depth+1), key)
		}
		if seen&(1<<number) != 0 {
			return inKey(c.fail("the key occurs twice"), key)
		}
		seen |= 1 << number
		switch to := to.(type) {
		case *int:
			var n uint64
			n, err = c.uint(math.MaxInt64)
			*to = int(n)
		case *float64:
			*to, err = c.float()
		case *bool:
			*to, err = c.bool()
		case *string:
			*to, err = c.str()
		case *[]int:
			var all []uint64
			all, err = uints[uint64](c, nil)
			for _, n := range all {
				*to = append(*to, int(n))
			}
		default:
			err = c.statistics(depth+1, to)
		}
		return inKey(err, key)
	})
}

// StepReader streams a sidecar.
type StepReader struct{ stream }

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
	s.Line, err = r.next(func(line []byte) error { return parseStep(line, s) })
	return err
}

// StepWriter writes a sidecar. Each line is on its way to the operating system
// when Write returns.
type StepWriter struct{ *lineWriter }

// NewStepWriter returns a writer of a sidecar to w. Nothing is written before
// the first line, or Close.
func NewStepWriter(w io.Writer, gzip bool) *StepWriter {
	return &StepWriter{newLineWriter(w, gzip, "step")}
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
	return w.add(func(b []byte) ([]byte, error) { return appendStep(b, s) })
}

// Lines returns how many lines are in the hands of the operating system.
func (w *StepWriter) Lines() int { return w.records }

func appendStep(b []byte, s *StepStats) ([]byte, error) {
	b, err := appendFloat(append(b, `{"ts_ms":`...), s.TsMs)
	if err != nil {
		return nil, within(err, "ts_ms")
	}
	b = append(b, `,"scheduler":`...)
	if b, err = appendObject(b, s.Raw); err != nil {
		return nil, within(err, "scheduler")
	}
	return append(b, '}'), nil
}

// appendObject appends raw, which must be an object this package's reader takes.
func appendObject(b, raw []byte) ([]byte, error) {
	c := &cursor{b: raw}
	var s SchedulerStats
	if err := c.statistics(2, &s); err != nil {
		return nil, err
	}
	if err := c.end(); err != nil {
		return nil, err
	}
	return appendLine(b, raw), nil
}
