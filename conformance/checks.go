package conformance

import (
	_ "embed"
	"slices"
	"sync"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/frontendsuite"
	"github.com/vllm-vcr/conformance/internal/check/kvconsumer"
	"github.com/vllm-vcr/conformance/internal/check/live"
	"github.com/vllm-vcr/conformance/internal/check/pd"
	"github.com/vllm-vcr/conformance/internal/check/replay"
	"github.com/vllm-vcr/conformance/internal/check/router"
)

// checksOf are the checks of a suite, in the order in which a run makes them; without a suite, those of the replay suite.
func checksOf(s Suite) []check.Check {
	switch s {
	case "", SuiteReplay:
		return append(slices.Clip(replay.Checks), pd.GoldenCheck)
	case SuiteLive:
		return live.Checks
	case SuiteFrontend:
		return frontendsuite.Checks
	case SuitePrefill:
		return pd.PrefillChecks
	case SuiteDecode:
		return pd.DecodeChecks
	case SuiteKVConsumer:
		return kvconsumer.Checks
	case SuiteRouter:
		return router.Checks
	case SuiteGenerated:
		return slices.Concat(live.GeneratedChecks, frontendsuite.GeneratedChecks)
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

// checkOf is the check that judges a case.
func checkOf(c Case) (k check.Check, known bool) {
	checks := checksOf(c.Suite)
	at := slices.IndexFunc(checks, func(k check.Check) bool { return k.Name == c.Assertion })
	if at < 0 {
		return k, false
	}
	return checks[at], true
}

// LevelsOf are the levels that a case judges.
func LevelsOf(c Case) []Level {
	k, _ := checkOf(c)
	return k.LevelsOf(c)
}

// explained are the explanations by their codes.
var explained = sync.OnceValue(func() map[Code]Explanation {
	all := map[Code]Explanation{}
	for _, e := range Explanations() {
		all[e.Code] = e
	}
	return all
})

// classify fills in what the failures of a case do to users.
func classify(c Case, failures []Failure) {
	for i := range failures {
		explained()[failures[i].Code].Classify(c, LevelsOf(c), &failures[i])
	}
}

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
