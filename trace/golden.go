package trace

import (
	"bytes"
	"fmt"
	"io"
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
