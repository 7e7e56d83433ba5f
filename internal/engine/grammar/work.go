package grammar

import (
	"context"
	"fmt"
	"math/big"
)

// Work bounds what the constraint of one request costs: compiling it and writing
// texts of it take steps, which are counted, so that the same constraint always gets
// as far, however fast the machine is. It is not safe for concurrent use.
type Work struct {
	ctx  context.Context
	left int
	over bool
	// known are the patterns of the language, and patterns those that this request was
	// the first to need.
	known, patterns map[string]*pattern
	kept            int // bytes of what was parsed and of patterns
}

// MaxWork is how many steps a request may take. A step takes at most 200 ns or so of a
// processor, and usually much less: see BenchmarkHostile.
const MaxWork = 500_000

// ErrTooMuch is the error of a request that has no steps left.
var ErrTooMuch = fmt.Errorf("it takes too long: more than %d steps of work", MaxWork)

// NewWork returns the work of one request, which ends early when ctx does.
func NewWork(ctx context.Context) *Work { return &Work{ctx: ctx, left: MaxWork} }

// Done is how many steps were taken.
func (w *Work) Done() int { return MaxWork - w.left }

// Spend takes n steps for work outside of this package. Its error is [ErrTooMuch], or that of the context.
func (w *Work) Spend(n int) error {
	return w.bounded(func() error {
		w.spend(n)
		return nil
	})
}

// stop is what spend ends everything with.
type stop struct{ err error }

// lookEvery is after how many steps the context is looked at.
const lookEvery = 1 << 10

// spend takes n steps before something is done. With none left, or when the context has
// ended, it ends the call of the package: nothing has to look whether it may go on.
func (w *Work) spend(n int) {
	if w.over = w.over || n > w.left; w.over {
		panic(stop{ErrTooMuch})
	}
	before := w.left
	w.left -= n
	if before/lookEvery != w.left/lookEvery && w.ctx.Err() != nil {
		panic(stop{context.Cause(w.ctx)})
	}
}

// bounded does something that spends, and returns why it ended.
func (w *Work) bounded(do func() error) (err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case stop:
			err = p.err
		default:
			panic(p)
		}
	}()
	return do()
}

// spendOn takes the steps of a calculation with numbers, of which any may be nil. It
// takes the square of their length.
func (w *Work) spendOn(numbers ...*big.Rat) {
	words := 0
	for _, r := range numbers {
		if r != nil {
			words += (r.Num().BitLen() + r.Denom().BitLen()) / 64
		}
	}
	w.spend(8 + words/2 + words*words/16)
}
