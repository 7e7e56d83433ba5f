package trace

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/klauspost/compress/gzip"
)

// What a golden may inflate to. Of those that there are the tightest inflates to 13 times its size, and nothing that an
// engine says compresses much better; what is made to hurt reaches 1000 times. Its records take three times the text in
// memory.
const (
	goldenRatio = 64
	goldenSlack = 1 << 20 // bytes, for small ones
	maxGolden   = 1 << 30 // bytes, of any
)

// harmless is how many bytes may be read before it is known that they are too many.
const harmless = 16 << 20

// InflatedLimit bounds what a gzipped file of so many bytes may inflate to, in bytes. It leaves room for what recorders
// write: 64 times the size, and 64 MiB of any.
func InflatedLimit(stored int64) int64 { return max(64<<20, goldenRatio*stored) }

// ofFile bounds what a gzipped file may inflate to, unless that is bounded already.
func (o Options) ofFile(file *os.File) Options {
	info, err := file.Stat()
	if o.MaxBytes != 0 || err != nil || !info.Mode().IsRegular() || !IsGzip(file.Name()) {
		return o
	}
	o.MaxBytes, o.packed = InflatedLimit(info.Size()), info.Size()
	return o
}

// checkFile inflates a file to nowhere: it is refused before any memory is taken for what is in it.
func (o Options) checkFile(path string) error {
	if o.packed == 0 {
		return nil
	}
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	defer file.Close()
	return o.check(file, path, false)
}

// check inflates at most MaxBytes. The reader has better errors for everything else.
func (o Options) check(r io.Reader, name string, strict bool) error {
	inflated, _ := io.Copy(io.Discard, io.LimitReader(newSource(r, true, strict), o.MaxBytes+1))
	if inflated > o.MaxBytes {
		return located(o.tooLarge(), name, 0)
	}
	return nil
}

// GoldenOptions are those to read a golden with, whose stored bytes are data: strictly, and to a bound that its stored
// size gives. Whatever inflates to more is an error, of the reader, or already here where reading it could take much
// memory.
func GoldenOptions(data []byte, name string, gzip bool) (Options, error) {
	stored := int64(len(data))
	opt := Options{Strict: true, MaxBytes: min(maxGolden, goldenSlack+goldenRatio*stored), stored: stored}
	if !gzip || opt.MaxBytes <= harmless {
		return opt, nil
	}
	return opt, opt.check(bytes.NewReader(data), name, true)
}

// tooLarge is the error of a trace of more than MaxBytes.
func (o Options) tooLarge() error {
	if o.packed > 0 {
		return fmt.Errorf("the %d bytes of the file inflate to more than %d bytes, which no recorder writes: if that is intended, unpack the file with gunzip and name the result",
			o.packed, o.MaxBytes)
	}
	if o.stored == 0 {
		return fmt.Errorf("the trace is larger than the limit of %d bytes", o.MaxBytes)
	}
	return fmt.Errorf("the %d bytes of the golden inflate to more than %d bytes: the limit is %d times its size plus 1 MiB, and 1 GiB in any case",
		o.stored, o.MaxBytes, goldenRatio)
}

// archiveLevel makes goldens a seventh smaller than [gzipLevel], at a third of the speed: they are written once, and
// downloaded by every run.
const archiveLevel = gzip.BestCompression

// Archive copies a trace, sidecar or frames file to w in the form in which goldens
// are kept: one gzip member without sync points, name or time. The lines stay as
// they are, so that the same lines give the same bytes however they were recorded.
// gzipped reports whether r is; its stream must be whole, as [Options.Strict] asks.
func Archive(w io.Writer, r io.Reader, gzipped bool) error {
	z, err := gzip.NewWriterLevel(w, archiveLevel)
	if err != nil {
		return fmt.Errorf("trace: not archived: %w", err)
	}
	z.ModTime = time.Unix(0, 0)
	if _, err := io.Copy(z, newSource(r, gzipped, true)); err != nil {
		return fmt.Errorf("trace: not archived: %w", err)
	}
	if err := z.Close(); err != nil {
		return fmt.Errorf("trace: not archived: %w", err)
	}
	return nil
}
