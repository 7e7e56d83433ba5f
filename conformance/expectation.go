package conformance

import "time"

// Expectation says that cases are known to fail.
type Expectation struct {
	// Pattern is matched with the names of cases; see [ParsePattern].
	Pattern string
	// Outcome is what is expected: [Fail] always, [Flaky] now and then.
	Outcome Verdict
	Reason  string
	Issue   string // where it is followed up: an URL or a number
	// Expires is the first day on which the expectation no longer holds, its midnight
	// in UTC, zero for never.
	Expires time.Time
	// Pos is where it is written: "expectations.toml:4".
	Pos string
}

// Expectations are what a file says is known to fail, in its order.
type Expectations struct {
	File string // path as given to [LoadExpectations]
	List []Expectation
}

// Codes of what is wrong with the expectations of a run.
const (
	CodeStale        Code = "X001" // what is expected to fail passes
	CodeUnmatched    Code = "X002" // an expectation matches no case
	CodeExpired      Code = "X003" // an expectation has expired
	CodeUnexpectable Code = "X004" // an expectation matches only cases that may not fail
)

// Codes of what is wrong with the file of the expectations.
const (
	CodeExpectUnreadable Code = "X101" // the file cannot be read
	CodeExpectSyntax     Code = "X102" // the file is not TOML
	CodeExpectUnknownKey Code = "X103" // it has a key that the format does not have
	CodeExpectWrongType  Code = "X104" // a value is not of its key's type
	CodeExpectMissing    Code = "X105" // an entry has no pattern, outcome, reason or issue
	CodeExpectPattern    Code = "X106" // a pattern cannot be read
	CodeExpectOutcome    Code = "X107" // an outcome is neither fail nor flaky
	CodeExpectTwice      Code = "X108" // a pattern is listed twice
)

// mayFail tells whether a case may be expected to fail. Stored bytes, their line and
// their provenance either are what was registered, or there is nothing to compare
// with: what is wrong there is mended, not expected.
func (c Case) mayFail() bool {
	switch c.Assertion {
	case "", Integrity, SameLine, Provenance:
		return false
	}
	return c.Suite != SuiteSelfTest
}

// mayBeExpected tells whether a failure may be expected: not what kept the case from
// being judged, which says nothing about the subject.
func (f Failure) mayBeExpected() bool {
	switch f.Code[:min(1, len(f.Code))] {
	case "", "I", "L", "P", "R", "X":
		return false
	}
	return f.Code != CodeEngineSessionLost
}
