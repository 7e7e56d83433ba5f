package trace

import (
	"fmt"
	"io"
	"os"
)

// Options choose how a trace is read. The zero value reads whatever
// a trace in the field may look like.
type Options struct {
	// Strict is for pinned goldens, which are complete. The gzip stream must
	// be one member with its trailer and nothing behind it, the last line must
	// end in a line feed, the gaps must fit output_tokens (as an error of
	// itl_ms), and block_hashes must have one entry per full block of the
	// prompt, if the meta has a block_size.
	Strict bool
	// KeepExtra keeps a record's unknown keys in Record.Extra.
	KeepExtra bool
	// Without has keys of records whose values are not kept, for less memory: ITLCtx, BlockHashes and TapTimes
	// of a Record are nil without "itl_ctx", "block_hashes" and "tap_times".
	Without []string
	// MaxBytes bounds the inflated size; reading more is an error. 0 bounds a
	// gzipped file by [InflatedLimit], and nothing else: then memory is bounded
	// by the longest line, and for Read by the whole trace.
	MaxBytes int64

	// Bytes as stored, which MaxBytes comes from: of a golden, or of a file.
	// 0: neither.
	stored, packed int64
	maxLine        int // bytes; 0: that of the package
}

// Reader streams a trace.
type Reader struct {
	stream
	opt     Options
	parser  recordParser
	meta    Meta
	hasMeta bool
}

// stream is what the readers of files of lines have in common.
type stream struct {
	lines   *lineReader
	pending []byte // the first line, if it was read and is not a meta line
	err     error  // sticky
	file    io.Closer
}

// Truncated reports whether the gzip stream ended without its trailer. It is
// only known once Next has returned io.EOF.
func (s *stream) Truncated() bool { return s.lines.cut }

// Warnings returns what was tolerated so far, each naming file and line.
func (s *stream) Warnings() []string { return s.lines.warnings }

// Close closes the file, if the reader was opened by its path.
func (s *stream) Close() error {
	if s.file == nil {
		return nil
	}
	return s.file.Close()
}

func (s *stream) owns(file io.Closer) { s.file = file }

// head reads the first line, and by parse the value of its key "meta". A line without that key comes next again.
func (s *stream) head(parse func(c *cursor) error) (isMeta bool, err error) {
	line, err := s.lines.next()
	if err == io.EOF {
		s.err = io.EOF
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if isMeta, err = parseHead(line, parse); err != nil {
		return isMeta, s.lines.locate(err)
	}
	if !isMeta {
		s.pending = line
	}
	return isMeta, nil
}

// next lets parse read the next line, whose number it returns. After an error it returns the same one.
func (s *stream) next(parse func(line []byte) error) (number int, err error) {
	if s.err != nil {
		return 0, s.err
	}
	line := s.pending
	if s.pending = nil; line == nil {
		if line, s.err = s.lines.next(); s.err != nil {
			return 0, s.err
		}
	}
	if err := parse(line); err != nil {
		s.err = s.lines.locate(err)
	}
	return s.lines.line, s.err
}

// openAs opens the file at path for one of the readers.
func openAs[R interface{ owns(io.Closer) }](
	path string, opt Options, read func(r io.Reader, name string, gzip bool, opt Options) (R, error),
) (r R, err error) {
	f, err := os.Open(path)
	if err != nil {
		return r, fmt.Errorf("trace: %w", err)
	}
	if info, err := f.Stat(); err == nil && info.IsDir() {
		f.Close()
		return r, fmt.Errorf("trace: %s is a folder: want a file", path)
	}
	opened, err := read(f, path, IsGzip(path), opt.ofFile(f))
	if err != nil {
		f.Close()
		return r, err
	}
	opened.owns(f)
	return opened, nil
}

// Open opens the trace at path and reads its meta line. The caller closes the
// Reader. Errors of Open, Next and Read name the path.
func Open(path string, opt Options) (*Reader, error) { return openAs(path, opt, NewReader) }

// NewReader reads a trace from r, and its meta line at once. name is for
// messages; gzip reports whether r is gzipped.
func NewReader(r io.Reader, name string, gzip bool, opt Options) (*Reader, error) {
	tr := &Reader{stream: stream{lines: newLineReader(r, name, gzip, opt)}, opt: opt}
	tr.parser.keepExtra = opt.KeepExtra
	for _, key := range opt.Without {
		tr.parser.without |= fieldOf([]byte(key)) &^ plain
	}
	var err error
	if tr.hasMeta, err = tr.head(tr.meta.parse); err != nil {
		return nil, err
	}
	return tr, nil
}

// Name returns the name the Reader was opened with.
func (r *Reader) Name() string { return r.lines.name }

// Meta returns the meta line's content, empty if the trace has none.
func (r *Reader) Meta() Meta { return r.meta }

// Position returns how many bytes of its file, as stored, a Reader of [Open] has read, and how many the file has; 0 and 0 of
// another Reader. It may be called while others use the Reader.
func (r *Reader) Position() (read, size int64) {
	file, opened := r.file.(*os.File)
	if !opened {
		return 0, 0
	}
	return FilePosition(file)
}

// FilePosition returns how many bytes of a file have been read, and how many it has; 0 where that is unknown.
func FilePosition(file *os.File) (read, size int64) {
	read, _ = file.Seek(0, io.SeekCurrent)
	if info, err := file.Stat(); err == nil {
		size = info.Size()
	}
	return read, size
}

// HasMeta reports whether the trace has a meta line.
func (r *Reader) HasMeta() bool { return r.hasMeta }

// Next fills rec with the next record, or returns io.EOF after the last. It
// reuses the storage of rec's slices and pointers, so what an earlier call put
// into the same rec is overwritten; a fresh Record gets storage of its own.
// After an error rec is undefined, and further calls return the same error.
func (r *Reader) Next(rec *Record) (err error) {
	rec.Line, err = r.next(func(line []byte) error {
		if err := r.parser.parse(line, rec); err != nil || !r.opt.Strict {
			return err
		}
		return rec.complete(r.meta.BlockSize)
	})
	return err
}

// Trace is a whole trace in memory.
type Trace struct {
	// Name is the path or stream it came from.
	Name string
	// Meta is empty if the trace has no meta line.
	Meta Meta
	// Records are in the order of the file, which is that of completion.
	Records []Record
	// Warnings is what was tolerated; always empty after a strict read.
	Warnings []string
}

// Read reads the whole trace at path.
func Read(path string, opt Options) (*Trace, error) {
	r, err := Open(path, opt)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if err := r.opt.checkFile(path); err != nil {
		return nil, err
	}
	return r.ReadAll()
}

// ReadAll reads the records Next has not yet returned.
func (r *Reader) ReadAll() (*Trace, error) {
	t := &Trace{Name: r.Name(), Meta: r.meta}
	for {
		var rec Record
		if err := r.Next(&rec); err == io.EOF {
			t.Warnings = r.Warnings()
			return t, nil
		} else if err != nil {
			return nil, err
		}
		t.Records = append(t.Records, rec)
	}
}

// complete checks what only a pinned golden must hold, see Options.Strict.
// Other readers do not compare the number of gaps with output_tokens, nor the
// number of hashes with anything.
func (r *Record) complete(blockSize *int) error {
	if err := r.validateFirstChunk("itl_ms"); err != nil {
		return err
	}
	if blockSize == nil || *blockSize == 0 || r.BlockHashes == nil {
		return nil
	}
	if want := r.PromptTokens / *blockSize; len(r.BlockHashes) != want {
		return invalid("block_hashes", "want %d entries for %d prompt tokens in blocks of %d, got %d",
			want, r.PromptTokens, *blockSize, len(r.BlockHashes))
	}
	return nil
}

// parseHead reads the value of "meta" of the first line by parse. A meta line is an object with that key.
func parseHead(line []byte, parse func(c *cursor) error) (isMeta bool, err error) {
	if line[0] != '{' {
		return false, nil
	}
	c := &cursor{b: line}
	err = c.object(func(key []byte) error {
		if string(key) != "meta" {
			return inKey(c.skip(2), key)
		}
		if isMeta {
			return within(c.fail("the key occurs twice"), "meta")
		}
		isMeta = true
		return within(parse(c), "meta")
	})
	if err == nil {
		err = c.end()
	}
	return isMeta, err
}
