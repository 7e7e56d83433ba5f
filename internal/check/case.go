package check

import (
	"strconv"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/player"
)

// Case is one assertion about one golden of one line. A line without goldens
// has one case without golden and assertion, which is skipped.
type Case struct {
	Line  compat.Line
	Suite Suite
	// Golden is what is replayed, or what the player says to a frontend under
	// test. Of the live suite only schema has one: what its engine registered with.
	Golden    manifest.Golden
	Assertion Assertion
	// Variant distinguishes the fidelity cases of a golden.
	Variant Variant
	// Gating cases decide the exit code.
	Gating bool
	// Entry is where the manifest has the golden: "manifest.toml:14".
	Entry string
	// Skip, when not empty, says why the case will not run.
	Skip string
}

// Check names the assertion and its variant: "fidelity-index-16".
func (c Case) Check() string {
	switch {
	case c.Assertion == Fidelity:
		return string(Fidelity) + "-" + c.Variant.String()
	case c.Variant.Side != "":
		return string(c.Assertion) + "-" + c.Variant.Side
	}
	return string(c.Assertion)
}

// Name is the path of the case: "0.33/multiturn-s7/fidelity-index-1",
// "0.33/live/abort".
func (c Case) Name() string {
	switch {
	case c.Assertion == "":
		return c.Line.Name
	case c.Suite == SuiteReplay:
		return c.Line.Name + "/" + c.Golden.ID + "/" + c.Check()
	}
	return c.Line.Name + "/" + string(c.Suite) + "/" + c.Check()
}

// Variant is how a fidelity case replays.
type Variant struct {
	Match       player.Match
	Concurrency int
	// Frontend, unless zero, is the real frontend whose HTTP side the requests
	// go through, Stream as server-sent events.
	Frontend RealFrontend
	Stream   bool
	// Side, unless empty, is that whose messages of a session are judged: [SideEngine] or [SideFrontend].
	Side string
}

// The sides of a session.
const (
	SideEngine   = "engine"
	SideFrontend = "frontend"
)

// ThroughFrontend reports whether a real frontend is before the player.
func (v Variant) ThroughFrontend() bool { return v.Frontend.Binary != "" }

// String distinguishes the variants of a golden: "index-16", "frontend-stream-index-16".
func (v Variant) String() string {
	s := string(v.Match) + "-" + strconv.Itoa(v.Concurrency)
	switch {
	case v.Stream:
		return "frontend-stream-" + s
	case v.ThroughFrontend():
		return "frontend-" + s
	}
	return s
}

// RealFrontend is the frontend binary of a vLLM release and a model directory
// for it.
type RealFrontend struct {
	Binary   string
	ModelDir string
}

// UsesSubject reports whether a case asks something of what is under test, which those do not that only read a golden.
func (c Case) UsesSubject() bool {
	switch c.Assertion {
	case "", Integrity, SameLine, Provenance, Frames:
		return false
	}
	return true
}

// NeedsGolden reports whether a case reads its golden.
func NeedsGolden(c Case) bool { return c.Skip == "" && c.Golden.ID != "" }

// Result is the outcome of a case.
type Result struct {
	Case     Case
	Verdict  Verdict
	Failures []Failure
	// Note says what a skipped case lacks, or what else is worth knowing.
	Note string
	// Needs is what a skipped case could not be made without, and a user can set: "set VLLM_SERVER_DEV_MODE=1". The verdict
	// of the run warns of it.
	Needs string
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
	// Unclaimed: all failures are of levels that the subject does not claim, so the case does not gate.
	Unclaimed bool
}

// Expectation says that cases are known to fail.
type Expectation struct {
	// Pattern is matched with the names of cases; see [ParsePattern].
	Pattern string
	// Outcome is what is expected: [Fail] always, [Flaky] now and then.
	Outcome Verdict
	// Codes, unless empty, are the only codes that are expected. What keeps a case from being judged, such as R006, is expected
	// only if it is among them.
	Codes  []Code
	Reason string
	Issue  string // where it is followed up: an URL or a number
	// Expires is the first day on which the expectation no longer holds, its midnight
	// in UTC, zero for never.
	Expires time.Time
	// Pos is where it is written: "expectations.toml:4".
	Pos string
}
