package check

import (
	"time"
)

// Result is the outcome of a case.
type Result struct {
	Case     Case
	Verdict  Verdict
	Failures []Failure
	// Note says what a skipped case lacks, or what else is worth knowing.
	Note string
	// Asserted counts what was compared: streams, keys, bytes' digests. A case
	// that passes has compared at least one.
	Asserted int
	Tokens   int // tokens compared
	Duration time.Duration
	// Location is where the golden's bytes are.
	Location string
	// Expected is the expectation that decided the verdict, nil when none did.
	Expected *Expectation
	// Infra marks an [Error] whose cause lies around the subject: a fetch, a deadline, an interruption.
	Infra bool
}

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
