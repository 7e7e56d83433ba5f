package check

// Verdict is the outcome of a case.
type Verdict string

// Verdicts. Error means that the case could not be judged; Skip means that
// there was nothing to judge. The last three are of cases that the expectations
// list.
const (
	Pass  Verdict = "pass"
	Fail  Verdict = "fail"
	Error Verdict = "error"
	Skip  Verdict = "skip"
	XFail Verdict = "xfail" // fails, as expected
	XPass Verdict = "xpass" // passes, but was expected to fail: the expectation is stale, which is a failure
	Flaky Verdict = "flaky" // fails, which is allowed now and then
)

// Verdicts are all verdicts, in the order in which reports count them.
func Verdicts() []Verdict { return []Verdict{Pass, Fail, Error, XPass, XFail, Flaky, Skip} }

// Red reports whether the verdict breaks a gate.
func (v Verdict) Red() bool { return v == Fail || v == Error || v == XPass }

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
	Wire       Assertion = "wire"
	Frames     Assertion = "frames"
	NIXL       Assertion = "nixl"
)

// Suite is what a run asks of whom.
type Suite string

// Suites.
const (
	// SuiteReplay replays goldens through an engine under test that plays
	// recordings: the embedded player, or another.
	SuiteReplay Suite = "replay"
	// SuiteLive asks an engine under test that generates tokens of its own, as a
	// real one does, for what must hold whatever these are.
	SuiteLive Suite = "live"
	// SuiteFrontend puts a frontend under test before the player.
	SuiteFrontend Suite = "frontend"
	// SuitePrefill pulls KV blocks out of an engine under test with a NixlConnector.
	SuitePrefill Suite = "prefill"
	// SuiteDecode has an engine under test with a NixlConnector pull KV blocks.
	SuiteDecode Suite = "decode"
	// SuiteKVConsumer puts a consumer of KV events under test before publishers of ours.
	SuiteKVConsumer Suite = "kv-consumer"
	// SuiteRouter puts a router under test before several engines.
	SuiteRouter Suite = "router"
	// SuiteGenerated sends an engine or a frontend under test random sessions, and shrinks one that fails.
	SuiteGenerated Suite = "generated"
	// SuiteSelfTest injects faults into the player and demands that the replay
	// suite finds each.
	SuiteSelfTest Suite = "self-test"
)

// Enforce says which lines gate.
type Enforce string

// Enforcement policies.
const (
	EnforceValidated Enforce = "validated" // lines with fidelity_validated
	EnforceAll       Enforce = "all"
	EnforceNone      Enforce = "none"
)

func (e Enforce) Gates(validated bool) bool {
	return e == EnforceAll || e != EnforceNone && validated
}
