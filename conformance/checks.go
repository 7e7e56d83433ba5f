package conformance

import (
	_ "embed"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/frontendsuite"
	"github.com/vllm-vcr/conformance/internal/check/live"
	"github.com/vllm-vcr/conformance/internal/check/replay"
)

// checksOf are the checks of a suite, in the order in which a run makes them; without a suite, those of the replay suite.
func checksOf(s Suite) []check.Check {
	switch s {
	case "", SuiteReplay:
		return replay.Checks
	case SuiteLive:
		return live.Checks
	case SuiteFrontend:
		return frontendsuite.Checks
	}
	return nil
}

// AssertionsOf are the assertions of a suite, in their order; without one, those of
// the replay suite.
func AssertionsOf(s Suite) []Assertion {
	var names []Assertion
	for _, c := range checksOf(s) {
		names = append(names, c.Name)
	}
	return names
}

// Assertions are those of the replay suite, in their order.
func Assertions() []Assertion { return AssertionsOf(SuiteReplay) }

// Explanation is what a person needs to know of a code.
type Explanation = check.Explanation

//go:embed register.md
var registerCodes string

//go:embed expectations.md
var expectationCodes string

// Explanations are those of all codes that a run or a registration reports.
func Explanations() []Explanation {
	var pages []string
	for _, s := range Suites() {
		for _, c := range checksOf(s) {
			pages = append(pages, c.Codes)
		}
	}
	return check.Explain(append(pages, registerCodes, check.UnjudgedCodes, expectationCodes)...)
}
