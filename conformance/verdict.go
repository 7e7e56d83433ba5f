package conformance

// Verdict is the outcome of a case.
type Verdict string

// Verdicts. Error means that the case could not be judged; Skip means that
// there was nothing to judge.
const (
	Pass  Verdict = "pass"
	Fail  Verdict = "fail"
	Error Verdict = "error"
	Skip  Verdict = "skip"
)

// Exit codes of a run.
const (
	ExitOK      = 0 // every gate holds
	ExitFail    = 1 // the subject does not conform
	ExitUsage   = 2 // usage or configuration
	ExitInfra   = 3 // something around the subject failed: a fetch, a deadline, an interruption
	ExitVacuous = 4 // nothing was asserted
)

// Assertion names what a case asserts.
type Assertion string

// Assertions, in the order they are made of a golden.
const (
	Integrity  Assertion = "integrity"
	SameLine   Assertion = "line"
	Provenance Assertion = "provenance"
	Schema     Assertion = "schema"
	Fidelity   Assertion = "fidelity"
)

// Assertions are all assertions, in their order.
func Assertions() []Assertion { return []Assertion{Integrity, SameLine, Provenance, Schema, Fidelity} }

// Enforce says which lines gate.
type Enforce string

// Enforcement policies.
const (
	EnforceValidated Enforce = "validated" // lines with fidelity_validated
	EnforceAll       Enforce = "all"
	EnforceNone      Enforce = "none"
)

func (e Enforce) gates(validated bool) bool {
	return e == EnforceAll || e != EnforceNone && validated
}
