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
	// Expires is the first day on which the expectation no longer holds, zero for
	// never.
	Expires time.Time
	// Pos is where it is written: "expectations.toml:4".
	Pos string
}
