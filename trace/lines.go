package trace

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/klauspost/compress/gzip"
)

// IsGzip reports by its name alone whether a trace is gzipped: by the suffix
// ".gz", lower case.
func IsGzip(name string) bool { return strings.HasSuffix(name, ".gz") }

const readSize = 64 << 10

// errCut marks a gzip stream that ends before its trailer.
var errCut = errors.New("the gzip stream ends without its trailer")

// source yields the inflated bytes of a trace, and distinguishes a clean end (io.EOF)
// from a cut one (errCut) and from a failing disk or network.
type source struct {
	raw    *bufio.Reader
	fault  *faultReader
	gzip   bool
	strict bool
	z      *gzip.Reader // made by the first Read, which may find no header
}

// faultReader remembers how the underlying reader failed: a network body that
// breaks off is not a killed recorder, though both end in an unexpected EOF.
type faultReader struct {
	r   io.Reader
	err error
}

func (f *faultReader) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	if err != nil && err != io.EOF {
		f.err = err
	}
	return n, err
}

func newSource(r io.Reader, gz, strict bool) *source {
	f := &faultReader{r: r}
	return &source{raw: bufio.NewReaderSize(f, readSize), fault: f, gzip: gz, strict: strict}
}

func (s *source) Read(p []byte) (int, error) {
	if !s.gzip {
		return s.raw.Read(p)
	}
	if s.z == nil {
		if head, _ := s.raw.Peek(2); len(head) > 0 && !strings.HasPrefix("\x1f\x8b", string(head)) {
			return 0, errors.New("not gzip data, though the name ends in .gz")
		}
		z, err := gzip.NewReader(s.raw)
		if err != nil {
			return 0, s.gzipError(err, "not gzip data, though the name ends in .gz")
		}
		// A golden is one member with nothing behind it; what appends to a
		// trace, or pads it, did not come from the recorder.
		z.Multistream(!s.strict)
		s.z = z
	}
	n, err := s.z.Read(p)
	if err == io.EOF && s.strict {
		return n, s.nothingBehind()
	}
	if err != nil && err != io.EOF {
		err = s.gzipError(err, "damaged gzip data")
	}
	return n, err
}

func (s *source) gzipError(err error, what string) error {
	switch {
	case s.fault.err != nil:
		return s.fault.err
	case err == io.EOF || err == io.ErrUnexpectedEOF:
		return errCut
	}
	return fmt.Errorf("%s: %w", what, err)
}

func (s *source) nothingBehind() error {
	if _, err := s.raw.Peek(1); err != nil {
		return err // io.EOF, as it should be
	}
	return errors.New("there are bytes after the end of the gzip stream; a golden is one gzip member")
}

// maxLine bounds a line, in bytes: the recorder writes messages of up to 256 MiB into a frames file, as base64.
const maxLine = 384 << 20

// lineReader splits a source into lines of up to [maxLine] bytes. Its buffer grows with
// the bytes that arrived, never by a claim.
type lineReader struct {
	name     string
	src      io.Reader
	opt      Options
	buf      []byte
	from, to int // the unread window of buf
	read     int64
	done     error // why the source gave no more
	line     int   // lines returned
	cut      bool
	warnings []string
}

func newLineReader(r io.Reader, name string, gz bool, opt Options) *lineReader {
	return &lineReader{name: name, src: newSource(r, gz, opt.Strict), opt: opt}
}

// next returns the next line that is not blank, trimmed, valid until the next
// call, or io.EOF. All other errors are located.
func (l *lineReader) next() ([]byte, error) {
	for {
		line, err := l.rawLine()
		if err != nil {
			return nil, err
		}
		line = bytes.TrimSpace(line)
		if err := l.checkStart(line); err != nil {
			return nil, l.locate(err)
		}
		if len(line) > 0 {
			return line, nil
		}
	}
}

// locate gives err the place of the line last returned.
func (l *lineReader) locate(err error) error { return located(err, l.name, l.line) }

// checkStart names the two common reasons why a first line is not JSON at all.
func (l *lineReader) checkStart(line []byte) error {
	switch {
	case l.line > 1:
	case bytes.HasPrefix(line, []byte("\xef\xbb\xbf")):
		return &Error{Column: 1, Reason: "the file starts with a byte order mark; save it as UTF-8 without one"}
	case bytes.HasPrefix(line, []byte{0x1f, 0x8b}):
		return &Error{Column: 1, Reason: "gzip data; a gzipped trace has a name ending in .gz"}
	}
	return nil
}

// checkOpen looks at a line whose end has not arrived, as devices and pipes may send no end of it.
func (l *lineReader) checkOpen(line []byte) error {
	if limit := cmp.Or(l.opt.maxLine, maxLine); len(line) > limit {
		return &Error{Reason: fmt.Sprintf("the line has more than %d bytes: this is not a trace", limit)}
	}
	if l.line == 0 && len(line) > 0 && line[0] == 0 {
		return &Error{Column: 1, Reason: "the file starts with a zero byte: this is not a trace"}
	}
	return nil
}

func (l *lineReader) rawLine() ([]byte, error) {
	seen := 0 // bytes of the window known to hold no line feed
	for {
		if i := bytes.IndexByte(l.buf[l.from+seen:l.to], '\n'); i >= 0 {
			line := l.buf[l.from : l.from+seen+i]
			l.from += seen + i + 1
			l.line++
			return line, nil
		}
		seen = l.to - l.from
		if l.done != nil {
			return l.tail()
		}
		if err := l.checkOpen(l.buf[l.from:l.to]); err != nil {
			return nil, located(err, l.name, l.line+1)
		}
		l.fill()
	}
}

// tail handles what is left when the source has ended.
func (l *lineReader) tail() ([]byte, error) {
	rest := l.buf[l.from:l.to]
	l.from = l.to
	if l.done == errCut && !l.opt.Strict {
		l.warnCut(len(rest))
		l.done = io.EOF
		return nil, io.EOF
	}
	if l.done != io.EOF {
		return nil, located(l.done, l.name, l.line+1)
	}
	if len(rest) == 0 {
		return nil, io.EOF
	}
	l.line++
	if l.opt.Strict {
		return nil, l.locate(&Error{Reason: "the last line has no line feed; the file is cut or was edited"})
	}
	return rest, nil
}

func (l *lineReader) warnCut(dropped int) {
	l.cut = true
	w := fmt.Sprintf("%s: line %d: %v; kept the %d lines before", l.name, l.line+1, errCut, l.line)
	if dropped > 0 {
		w += fmt.Sprintf(", dropped %d bytes of an unfinished line", dropped)
	}
	l.warnings = append(l.warnings, w)
}

// fill reads once from the source.
func (l *lineReader) fill() {
	l.makeRoom()
	for range 100 {
		n, err := l.src.Read(l.buf[l.to:])
		l.to += n
		l.read += int64(n)
		if most := l.opt.MaxBytes; most > 0 && l.read > most {
			err = l.opt.tooLarge()
		}
		l.done = err
		if n > 0 || err != nil {
			return
		}
	}
	l.done = io.ErrNoProgress
}

// makeRoom moves the window to the front of a full buffer, and doubles the
// buffer when an unfinished line takes more than half of it.
func (l *lineReader) makeRoom() {
	if l.to < len(l.buf) {
		return
	}
	window, to := l.buf[l.from:l.to], l.buf
	if len(window) >= len(l.buf)/2 {
		to = make([]byte, max(readSize, 2*len(l.buf)))
	}
	l.from, l.to = 0, copy(to, window)
	l.buf = to
}
