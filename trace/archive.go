package trace

import (
	"fmt"
	"io"
	"time"

	"github.com/klauspost/compress/gzip"
)

// Archive copies a trace, sidecar or frames file to w in the form in which goldens
// are kept: one gzip member without sync points, name or time. The lines stay as
// they are, so that the same lines give the same bytes however they were recorded.
// gzipped tells whether r is; its stream must be whole, as [Options.Strict] asks.
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
