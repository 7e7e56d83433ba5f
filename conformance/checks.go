package conformance

import (
	"maps"
	"slices"

	"github.com/vllm-vcr/conformance/internal/check"

	"github.com/vllm-vcr/conformance/internal/check/frontendsuite"
	"github.com/vllm-vcr/conformance/internal/check/live"
	"github.com/vllm-vcr/conformance/internal/check/replay"
)

// checks are all checks, suite by suite, each in the order in which a run makes them. Plans are made of them, cases are judged
// by them, and docs/findings.md has a page on each of their codes.
var checks = slices.Concat(replay.Checks(), live.Checks(), frontendsuite.Checks())

// checksOf are the checks of a suite; without one, those of the replay suite.
func checksOf(s Suite) []check.Check {
	if s == "" {
		s = SuiteReplay
	}
	return slices.DeleteFunc(slices.Clone(checks), func(c check.Check) bool { return c.Suite() != s })
}

// AssertionsOf are the assertions of a suite, in their order; without one, those of
// the replay suite.
func AssertionsOf(s Suite) []Assertion { return check.Names(checksOf(s)) }

// Assertions are those of the replay suite, in their order.
func Assertions() []Assertion { return AssertionsOf(SuiteReplay) }

// Titles says in a few words what each code of the checks stands for.
func Titles() map[Code]string {
	titles := check.Shared()
	for _, c := range checks {
		maps.Copy(titles, c.Titles())
	}
	return titles
}
