package jinja

import (
	"context"
	"fmt"
	"time"
)

// What one run of a template may cost. Templates come with requests and with the folders of models, and neither is trusted.
const (
	maxSteps     = 1_000_000        // see [budget]
	bytesPerStep = 128              // of text, read or written
	maxDepth     = 2000             // of values and calls in each other
	maxTime      = 10 * time.Second // by the clock
	maxSource    = 256 << 10        // bytes of a template
	maxNesting   = 200              // of blocks, expressions and JSON in each other
	maxError     = 1000             // bytes of the text of an error
)

// A budget is what a run may still cost. A step is a node or an expression that is evaluated, an item that is read, compared or put into
// a list or a dict, or [bytesPerStep] bytes of text that are read or written. Steps are charged before the work is done and before memory is
// allocated, so that the steps bound both.
type budget struct {
	ctx   context.Context
	steps int // left
	depth int
}

// charge takes n steps, which is not negative.
func (b *budget) charge(n int) {
	if n > b.steps {
		fail("the chat template takes more than %d steps", maxSteps)
	}
	before := b.steps
	if b.steps -= n; before>>10 != b.steps>>10 {
		check(context.Cause(b.ctx))
	}
}

// chargeText takes the steps of n bytes of text.
func (b *budget) chargeText(n int) { b.charge(n / bytesPerStep) }

// chargeCopies takes the steps of n copies of a text of size bytes.
func (b *budget) chargeCopies(n, size int) {
	if size > 0 && n > maxSteps*bytesPerStep/size {
		b.charge(maxSteps + 1)
	}
	b.chargeText(n * size)
}

// deeper counts a call or a value in another one. [budget.higher] follows it.
func (b *budget) deeper() {
	if b.depth++; b.depth > maxDepth {
		fail("the chat template nests calls or values more than %d deep", maxDepth)
	}
}

func (b *budget) higher() { b.depth-- }

// A failure ends the work at a template: it is panicked with, and [Parse] and [Template.Run] return its error.
type failure struct{ err error }

func fail(format string, args ...any) { panic(failure{fmt.Errorf(format, args...)}) }

func check(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// recovered makes an error of a failure. It is deferred.
func recovered(err *error) {
	switch reason := recover().(type) {
	case nil:
	case failure:
		*err = reason.err
		if text := reason.err.Error(); len(text) > maxError {
			*err = fmt.Errorf("%.*s…", maxError, text)
		}
	default:
		panic(reason)
	}
}

// explained puts a place before the text of a failure. It is deferred.
func explained(format string, args ...any) {
	switch reason := recover().(type) {
	case nil:
	case failure:
		fail("%s: %w", fmt.Sprintf(format, args...), reason.err)
	default:
		panic(reason)
	}
}
