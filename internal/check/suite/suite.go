// Package suite describes the checks that suites are made of. A check is one assertion that a run makes of a golden, an engine
// or a frontend; each suite lists its checks in the order in which they are made.
package suite

import (
	"context"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/sut"
)

// Check makes one assertion.
type Check interface {
	// Name is what patterns and reports call the check. It is unique in its suite.
	Name() check.Assertion
	Suite() check.Suite
	// Titles are of the codes of what the check finds wrong. A code that several checks find belongs to
	// the first of them; those in [Shared] belong to none.
	Titles() Titles
	// Run judges a case on its golden, which is empty where the case has none. An error says why it could not be judged.
	Run(ctx context.Context, e *sut.Env, g *check.Golden, c check.Case) (check.Outcome, error)
}

// Titles say in a few words what codes stand for: they are the titles of the pages in docs/findings.md.
type Titles map[check.Code]string

// An Entry is a check as a suite lists it. J is how the suite judges a case.
type Entry[J any] struct {
	Name   check.Assertion
	Titles Titles
	Judge  J
}

// List makes the checks of a suite of its entries; run judges a case by an entry.
func List[J any](
	of check.Suite, entries []Entry[J],
	run func(context.Context, Entry[J], *sut.Env, *check.Golden, check.Case) (check.Outcome, error),
) []Check {
	list := make([]Check, len(entries))
	for i, e := range entries {
		list[i] = listed[J]{e, of, run}
	}
	return list
}

// listed implements [Check].
type listed[J any] struct {
	entry Entry[J]
	of    check.Suite
	run   func(context.Context, Entry[J], *sut.Env, *check.Golden, check.Case) (check.Outcome, error)
}

func (l listed[J]) Name() check.Assertion { return l.entry.Name }
func (l listed[J]) Suite() check.Suite    { return l.of }
func (l listed[J]) Titles() Titles        { return l.entry.Titles }

func (l listed[J]) Run(ctx context.Context, e *sut.Env, g *check.Golden, c check.Case) (check.Outcome, error) {
	return l.run(ctx, l.entry, e, g, c)
}

// Names are the names of checks, in their order.
func Names(checks []Check) []check.Assertion {
	names := make([]check.Assertion, len(checks))
	for i, c := range checks {
		names[i] = c.Name()
	}
	return names
}

// Shared are the codes of what keeps a case of any suite from being judged.
func Shared() Titles {
	return Titles{
		check.CodeFetch:             "the golden could not be fetched",
		check.CodeGolden:            "the golden cannot be read",
		check.CodeStart:             "the engine under test could not be started",
		check.CodeNoHandshake:       "no handshake in time",
		check.CodeEngineEnded:       "the engine ended while it was needed",
		check.CodeSilence:           "no output for too long",
		check.CodeDeadline:          "the case took too long",
		check.CodeNotRun:            "the run was interrupted before",
		check.CodeFrontend:          "the frontend could not be started, or ended",
		check.CodeHandshake:         "the handshake is not that of an engine of the line",
		check.CodeUnjudged:          "the case could not be judged for another reason",
		check.CodeEngineFlood:       "far more outputs than requested",
		check.CodeEngineSessionLost: "the engine's session has ended before this case",
	}
}
