package trace

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/klauspost/compress/gzip"
)

// gzipLevel is fixed, like all that enters the gzip stream, so that the same
// records give the same bytes. A recorder pays for every record on the spot: the
// default level makes a trace a tenth smaller and takes half as much longer, and
// what is to be kept for good can be packed again.
const gzipLevel = 2

// errClosed is returned by writers after Close.
var errClosed = errors.New("the writer is closed")

// WriteError is a failure of the underlying writer, a full disk for one. The
// Writer is dead after it; what was written before is safe.
type WriteError struct {
	// What could not be written: "the meta line", "record 58", "the gzip trailer".
	What string
	// Records is how many records, or lines of a sidecar, are safe.
	Records int
	// Bytes is the length of the safe part. Behind it a piece of a line may
	// follow, which readers of a plain trace refuse: truncate the file to it.
	Bytes int64
	// Err is the failure.
	Err error
}

func (e *WriteError) Error() string {
	return fmt.Sprintf("trace: %s not written: %v; the %d records before it are safe (the first %d bytes)",
		e.What, e.Err, e.Records, e.Bytes)
}

// Unwrap returns the failure.
func (e *WriteError) Unwrap() error { return e.Err }

// lineWriter hands whole lines to w: one Write a line, which for gzip ends in
// a sync point. A process killed between two calls leaves only whole lines.
type lineWriter struct {
	w       io.Writer
	z       *gzip.Writer // nil if plain
	out     bytes.Buffer // what z has deflated, or was gathered
	records int
	bytes   int64
	err     error  // sticky
	buf     []byte // of the line being encoded
}

func newLineWriter(w io.Writer, gz bool) *lineWriter {
	l := &lineWriter{w: w}
	if gz {
		// No name, no time, and the OS is "unknown" on all of them.
		z, err := gzip.NewWriterLevel(&l.out, gzipLevel)
		if err != nil {
			return &lineWriter{err: err}
		}
		z.ModTime = time.Unix(0, 0)
		l.z = z
	}
	return l
}

// write writes line, which ends in a line feed.
func (l *lineWriter) write(line []byte, what string) error {
	if l.err != nil || l.z == nil {
		return l.hand(line, what)
	}
	if l.gather(line); l.err != nil {
		return l.err
	}
	return l.flush(what)
}

// gather takes line without handing it on; a failure is kept.
func (l *lineWriter) gather(line []byte) {
	if l.z == nil {
		l.out.Write(line)
	} else if _, err := l.z.Write(line); err != nil {
		l.err = err
	}
}

// flush hands on what was gathered, up to a sync point.
func (l *lineWriter) flush(what string) error {
	var err error
	if l.z != nil {
		err = l.z.Flush()
	}
	return l.deflated(err, what)
}

// record encodes and writes the next line of the given kind ("record", "step").
// What cannot be encoded is refused and leaves the writer usable.
func (l *lineWriter) record(kind string, encode func([]byte) ([]byte, error)) error {
	if l.err != nil {
		return l.err
	}
	what := fmt.Sprintf("%s %d", kind, l.records+1)
	line, err := encode(l.buf[:0])
	if err != nil {
		return fmt.Errorf("trace: %s not written: %w", what, err)
	}
	l.buf = append(line, '\n')
	if err := l.write(l.buf, what); err != nil {
		return err
	}
	l.records++
	return nil
}

// deflated hands on what z made.
func (l *lineWriter) deflated(err error, what string) error {
	if err != nil {
		l.err = err
	}
	defer l.out.Reset()
	return l.hand(l.out.Bytes(), what)
}

func (l *lineWriter) hand(b []byte, what string) error {
	if l.err != nil {
		return l.err
	}
	n, err := l.w.Write(b)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	if err != nil {
		l.err = &WriteError{What: what, Records: l.records, Bytes: l.bytes, Err: err}
		return l.err
	}
	l.bytes += int64(n)
	return nil
}

// close writes the gzip trailer. It does not close w.
func (l *lineWriter) close() error {
	if l.err != nil {
		return l.err
	}
	if l.z != nil {
		if err := l.deflated(l.z.Close(), "the gzip trailer"); err != nil {
			return err
		}
	}
	l.err = errClosed
	return nil
}

// Writer writes a trace. Each record is on its way to the operating system
// when Write returns.
type Writer struct {
	lines *lineWriter
}

// NewWriter writes the meta line to w, also if meta is empty, and returns a
// Writer for the records. With gzip the stream is deterministic: the same
// calls give the same bytes.
func NewWriter(w io.Writer, gzip bool, meta Meta) (*Writer, error) {
	line, err := appendMeta(nil, meta)
	if err != nil {
		return nil, fmt.Errorf("trace: the meta line is not written: %w", err)
	}
	tw := &Writer{lines: newLineWriter(w, gzip)}
	if err := tw.lines.write(append(line, '\n'), "the meta line"); err != nil {
		return nil, err
	}
	return tw, nil
}

// Write writes one record. An invalid record, one no Reader would take, is
// refused, and the Writer stays usable. A *WriteError is final.
func (w *Writer) Write(rec *Record) error {
	return w.lines.record("record", func(b []byte) ([]byte, error) { return appendRecord(b, rec) })
}

// Records returns how many records were written.
func (w *Writer) Records() int { return w.lines.records }

// Bytes returns how many bytes were handed to the underlying writer.
func (w *Writer) Bytes() int64 { return w.lines.bytes }

// Close writes the gzip trailer, if there is one to write. It does not close,
// nor sync, the underlying writer. After a failed Write it returns that error.
func (w *Writer) Close() error { return w.lines.close() }
