// Package suite describes the checks that suites are made of. A check is one assertion that a run makes of a golden, an engine
// or a frontend; each suite lists its checks in the order in which they are made.
package check

import (
	"context"
)

// Check makes one assertion.
type Check interface {
	// Name is what patterns and reports call the  It is unique in its suite.
	Name() Assertion
	Suite() Suite
	// Titles are of the codes of what the check finds wrong. A code that several checks find belongs to
	// the first of them; those in [Shared] belong to none.
	Titles() Titles
	// Run judges a case on its golden, which is empty where the case has none. An error says why it could not be judged.
	Run(ctx context.Context, e *Env, g *Golden, c Case) (Outcome, error)
}

// Titles say in a few words what codes stand for: they are the titles of the pages in docs/findings.md.
type Titles map[Code]string

// An Entry is a check as a suite lists it. J is how the suite judges a case.
type Entry[J any] struct {
	Name   Assertion
	Titles Titles
	Judge  J
}

// List makes the checks of a suite of its entries; run judges a case by an entry.
func List[J any](
	of Suite, entries []Entry[J],
	run func(context.Context, Entry[J], *Env, *Golden, Case) (Outcome, error),
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
	of    Suite
	run   func(context.Context, Entry[J], *Env, *Golden, Case) (Outcome, error)
}

func (l listed[J]) Name() Assertion { return l.entry.Name }
func (l listed[J]) Suite() Suite    { return l.of }
func (l listed[J]) Titles() Titles  { return l.entry.Titles }

func (l listed[J]) Run(ctx context.Context, e *Env, g *Golden, c Case) (Outcome, error) {
	return l.run(ctx, l.entry, e, g, c)
}

// Names are the names of checks, in their order.
func Names(checks []Check) []Assertion {
	names := make([]Assertion, len(checks))
	for i, c := range checks {
		names[i] = c.Name()
	}
	return names
}

// Shared are the codes of what keeps a case of any suite from being judged.
func Shared() Titles {
	return Titles{
		CodeFetch:             "the golden could not be fetched",
		CodeGolden:            "the golden cannot be read",
		CodeStart:             "the engine under test could not be started",
		CodeNoHandshake:       "no handshake in time",
		CodeEngineEnded:       "the engine ended while it was needed",
		CodeSilence:           "no output for too long",
		CodeDeadline:          "the case took too long",
		CodeNotRun:            "the run was interrupted before",
		CodeFrontend:          "the frontend could not be started, or ended",
		CodeHandshake:         "the handshake is not that of an engine of the line",
		CodeUnjudged:          "the case could not be judged for another reason",
		CodeEngineFlood:       "far more outputs than requested",
		CodeEngineSessionLost: "the engine's session has ended before this case",
	}
}
