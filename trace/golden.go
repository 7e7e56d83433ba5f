package trace

import (
	"bytes"
	"fmt"
	"io"
	"time"

	"github.com/klauspost/compress/gzip"
)

// What a golden may inflate to. Of those that there are the tightest inflates to 13 times its size, and nothing that an
// engine says compresses much better; what is made to hurt reaches 1000 times. Its records take three times the text in
// memory.
const (
	goldenRatio = 64
	goldenSlack = 1 << 20 // bytes, for small ones
	goldenMost  = 1 << 30 // bytes, of any
)

// harmless is how many bytes may be read before it is known that they are too many.
const harmless = 16 << 20

// GoldenOptions are those to read a golden with, whose stored bytes are data: strictly, and to a bound that its stored
// size gives. Whatever inflates to more is an error, of the reader, or already here where reading it could take much
// memory.
func GoldenOptions(data []byte, name string, gzip bool) (Options, error) {
	stored := int64(len(data))
	opt := Options{Strict: true, MaxBytes: min(goldenMost, goldenSlack+goldenRatio*stored), stored: stored}
	if !gzip || opt.MaxBytes <= harmless {
		return opt, nil
	}
	// What else is wrong with it, the reader says better.
	inflated, _ := io.Copy(io.Discard, io.LimitReader(newSource(bytes.NewReader(data), gzip, true), opt.MaxBytes+1))
	if inflated > opt.MaxBytes {
		return opt, located(opt.tooLarge(), name, 0)
	}
	return opt, nil
}

// tooLarge is the error of a trace of more than MaxBytes.
func (o Options) tooLarge() error {
	if o.stored == 0 {
		return fmt.Errorf("the trace is larger than the limit of %d bytes", o.MaxBytes)
	}
	return fmt.Errorf("the %d bytes of the golden inflate to more than %d: the limit is %d times its size and 1 MiB, and 1 GiB of any",
		o.stored, o.MaxBytes, goldenRatio)
}

// Archive copies a trace, sidecar or frames file to w in the form in which goldens
// are kept: one gzip member without sync points, name or time. The lines stay as
// they are, so that the same lines give the same bytes however they were recorded.
// gzipped reports whether r is; its stream must be whole, as [Options.Strict] asks.
func Archive(w io.Writer, r io.Reader, gzipped bool) error {
	z, err := gzip.NewWriterLevel(w, gzipLevel)
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
