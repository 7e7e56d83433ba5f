package conformance

import (
	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
	"github.com/vllm-vcr/conformance/internal/check"
)

// Expectations are what a subject's conformance.toml claims, and what it says is known to fail, in its order.
type Expectations struct {
	File string // path as given to [LoadExpectations]
	// Levels are those that gate, without any all do. Lines are those that are judged where none is selected.
	Levels []check.Level
	Lines  []string
	List   []check.Expectation
}

// Codes of what is wrong with the expectations of a run.
const (
	CodeStale        check.Code = "X001" // what is expected to fail passes
	CodeUnmatched    check.Code = "X002" // an expectation matches no case
	CodeExpired      check.Code = "X003" // an expectation has expired
	CodeUnexpectable check.Code = "X004" // an expectation matches only cases that may not fail
)

// Codes of what is wrong with the file of the expectations.
const (
	CodeExpectUnreadable check.Code = "X101" // the file cannot be read
	CodeExpectSyntax     check.Code = "X102" // the file is not TOML
	CodeExpectUnknownKey check.Code = "X103" // it has a key that the format does not have
	CodeExpectWrongType  check.Code = "X104" // a value is not of its key's type
	CodeExpectMissing    check.Code = "X105" // an entry has no pattern, outcome, reason or issue
	CodeExpectPattern    check.Code = "X106" // a pattern cannot be read
	CodeExpectOutcome    check.Code = "X107" // an outcome is neither fail nor flaky
	CodeExpectTwice      check.Code = "X108" // a pattern is listed twice
	CodeExpectCode       check.Code = "X109" // a code cannot be expected
	CodeExpectLevel      check.Code = "X110" // a level is unknown
)

// mayFail reports whether a case may be expected to fail. Stored bytes, their line and
// their provenance either are what was registered, or there is nothing to compare
// with: what is wrong there is mended, not expected.
func mayFail(c check.Case) bool {
	switch c.Assertion {
	case "", check.Integrity, check.SameLine, check.Provenance:
		return false
	}
	return c.Suite != check.SuiteSelfTest
}

// mayBeExpected reports whether a failure may be expected without its code being named: not what kept the case from
// being judged.
func mayBeExpected(f check.Failure) bool {
	switch f.Code[:min(1, len(f.Code))] {
	case "", "I", "L", "P", "R", "X":
		return false
	}
	return f.Code != check.CodeEngineSessionLost
}

var aCode = lazyregexp.New(`^[A-Z][0-9]{3}$`)

// Expectation says that cases are known to fail.
type Expectation = check.Expectation
