package trace

import (
	"bytes"
	"cmp"
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

// lineWriter hands whole lines to w: those of one Write end, for gzip, in a sync
// point. A process killed between two calls leaves only whole lines.
type lineWriter struct {
	w       io.Writer
	z       *gzip.Writer // nil if plain
	kind    string       // of its lines: "record", "step"
	out     bytes.Buffer // what z has deflated, or was gathered
	records int          // handed on
	waiting int          // gathered since
	bytes   int64
	err     error  // sticky
	buf     []byte // of the line being encoded
}

const (
	// maxGathered is how many bytes are gathered at most before they are handed on
	// without being asked for.
	maxGathered = 256 << 10
	// keptLine is the most memory that a line leaves behind for the next.
	keptLine = 1 << 20
)

func newLineWriter(w io.Writer, gz bool, kind string) *lineWriter {
	l := &lineWriter{w: w, kind: kind}
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

// writeMeta writes the meta line, which is no record.
func (l *lineWriter) writeMeta(line []byte) error {
	if l.gather(append(line, '\n')); l.err != nil {
		return l.err
	}
	return l.handOn("the meta line")
}

// gather takes line without handing it on; a failure is kept.
func (l *lineWriter) gather(line []byte) {
	if l.z == nil {
		l.out.Write(line)
	} else if _, err := l.z.Write(line); err != nil {
		l.err = err
	}
}

// handOn hands on what was gathered, for gzip up to a sync point.
func (l *lineWriter) handOn(what string) error {
	var err error
	if l.z != nil {
		err = l.z.Flush()
	}
	return l.deflated(err, what)
}

// add encodes the next line and gathers it. What cannot be encoded is refused and
// leaves the writer usable.
func (l *lineWriter) add(encode func([]byte) ([]byte, error)) error {
	if l.err != nil {
		return l.err
	}
	line, err := encode(l.buf[:0])
	if err != nil {
		return fmt.Errorf("trace: %s %d not written: %w", l.kind, l.records+l.waiting+1, err)
	}
	line = append(line, '\n')
	if l.buf = line; cap(line) > keptLine {
		l.buf = nil
	}
	l.waiting++
	if l.gather(line); l.err != nil || l.out.Len() < maxGathered {
		return l.err
	}
	return l.Flush()
}

// Flush hands the lines that were gathered to the operating system. What was written before
// it is readable whatever happens then.
func (l *lineWriter) Flush() error {
	if l.err != nil || l.waiting == 0 {
		return l.err
	}
	if err := l.handOn(""); err != nil {
		return err
	}
	l.records, l.waiting = l.records+l.waiting, 0
	return nil
}

// deflated hands on what z made.
func (l *lineWriter) deflated(err error, what string) error {
	if err != nil {
		l.err = err
	}
	err = l.hand(l.out.Bytes(), what)
	if l.out.Reset(); l.out.Cap() > keptLine {
		l.out = bytes.Buffer{}
	}
	return err
}

// hand writes b, which is what: the next line if that is empty.
func (l *lineWriter) hand(b []byte, what string) error {
	if l.err != nil {
		return l.err
	}
	n, err := l.w.Write(b)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	if err != nil {
		what = cmp.Or(what, fmt.Sprintf("%s %d", l.kind, l.records+1))
		l.err = &WriteError{What: what, Records: l.records, Bytes: l.bytes, Err: err}
		return l.err
	}
	l.bytes += int64(n)
	return nil
}

// Bytes returns how many bytes were handed to the underlying writer.
func (l *lineWriter) Bytes() int64 { return l.bytes }

// Close writes what was gathered and the gzip trailer, if there is one to write. It
// does not close, nor sync, the underlying writer. After a failed Write it returns
// that error.
func (l *lineWriter) Close() error {
	if err := l.Flush(); err != nil {
		return err
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
type Writer struct{ *lineWriter }

// NewWriter writes the meta line to w, also if meta is empty, and returns a
// Writer for the records. With gzip the stream is deterministic: the same
// calls give the same bytes.
func NewWriter(w io.Writer, gzip bool, meta Meta) (*Writer, error) {
	line, err := appendMeta(nil, meta)
	if err != nil {
		return nil, fmt.Errorf("trace: the meta line is not written: %w", err)
	}
	tw := &Writer{newLineWriter(w, gzip, "record")}
	if err := tw.writeMeta(line); err != nil {
		return nil, err
	}
	return tw, nil
}

// Write writes one record. An invalid record, one no Reader would take, is
// refused, and the Writer stays usable. A *WriteError is final.
func (w *Writer) Write(rec *Record) error {
	if err := w.Gather(rec); err != nil {
		return err
	}
	return w.Flush()
}

// Gather is Write, but for that the record may wait for the next Write, Flush or
// Close: records that come together share a sync point, which is dear. rec is not
// used after it.
func (w *Writer) Gather(rec *Record) error {
	return w.add(func(b []byte) ([]byte, error) { return appendRecord(b, rec) })
}

// Records returns how many records are in the hands of the operating system.
func (w *Writer) Records() int { return w.records }
