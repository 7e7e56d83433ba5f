package conformance

import (
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/frontendsuite"
	"github.com/vllm-vcr/conformance/player"
)

// A Case is one assertion about one golden of one line; it ends with a [Result].
type (
	Case         = check.Case
	Variant      = check.Variant
	RealFrontend = check.RealFrontend
	Result       = check.Result
	Failure      = check.Failure
	Code         = check.Code
)

// Suite is a group of assertions about one kind of subject, [Assertion] names one of them, [Verdict] says how a case
// ended, and [Enforce] which lines gate.
type (
	Suite     = check.Suite
	Assertion = check.Assertion
	Verdict   = check.Verdict
	Enforce   = check.Enforce
)

// Verdicts. Error means that the case could not be judged; Skip means that there was nothing to judge. The last three are
// of cases that the expectations list.
const (
	Pass  = check.Pass
	Fail  = check.Fail
	Error = check.Error
	Skip  = check.Skip
	XFail = check.XFail // fails, as expected
	XPass = check.XPass // passes, but was expected to fail: the expectation is stale, which is a failure
	Flaky = check.Flaky // fails, which is allowed now and then
)

// Consequence is what a failure does to users, [Level] the part of the wire that it is of, and [LevelSummary] the outcome
// of a level.
type (
	Consequence  = check.Consequence
	Level        = check.Level
	LevelSummary = check.LevelSummary
)

// Levels are all levels, in the order of reports.
func Levels() []Level { return check.Levels() }

// Verdicts are all verdicts, in the order in which reports count them.
func Verdicts() []Verdict { return check.Verdicts() }

// Exit codes of a run.
const (
	ExitOK      = check.ExitOK      // every gate holds
	ExitFail    = check.ExitFail    // the subject does not conform
	ExitUsage   = check.ExitUsage   // usage or configuration
	ExitInfra   = check.ExitInfra   // something around the subject failed: a fetch, a deadline, an interruption
	ExitVacuous = check.ExitVacuous // nothing was asserted
)

// Suites.
const (
	// SuiteReplay replays goldens through an engine under test that plays
	// recordings: the embedded player, or another.
	SuiteReplay = check.SuiteReplay
	// SuiteLive asks an engine under test that generates tokens of its own, as a
	// real one does, for what must hold whatever these are.
	SuiteLive = check.SuiteLive
	// SuiteFrontend puts a frontend under test before the player.
	SuiteFrontend = check.SuiteFrontend
	// SuitePrefill pulls KV blocks out of an engine under test with a NixlConnector.
	SuitePrefill = check.SuitePrefill
	// SuiteDecode has an engine under test with a NixlConnector pull KV blocks.
	SuiteDecode = check.SuiteDecode
	// SuiteKVConsumer puts a consumer of KV events under test before publishers of ours.
	SuiteKVConsumer = check.SuiteKVConsumer
	// SuiteRouter puts a router under test before several engines.
	SuiteRouter = check.SuiteRouter
	// SuiteGenerated sends an engine or a frontend under test random sessions, and shrinks one that fails.
	SuiteGenerated = check.SuiteGenerated
	// SuiteSelfTest injects faults into the player and demands that the replay
	// suite finds each.
	SuiteSelfTest = check.SuiteSelfTest
)

// Assertions of the replay suite, in the order they are made of a golden.
const (
	Integrity  = check.Integrity
	SameLine   = check.SameLine
	Provenance = check.Provenance
	Schema     = check.Schema
	Fidelity   = check.Fidelity
	Wire       = check.Wire
	Frames     = check.Frames
	NIXL       = check.NIXL
)

// HTTPSessions is the assertion of [SuiteGenerated] about frontends.
const HTTPSessions = frontendsuite.Sessions

// Enforcement policies.
const (
	EnforceValidated = check.EnforceValidated // lines with fidelity_validated
	EnforceAll       = check.EnforceAll
	EnforceNone      = check.EnforceNone
)

// Timeouts bound every wait of a run. What is not positive has its default. A
// deadline that passes is an [Error] that lies around the subject.
type Timeouts = check.Timeouts

// DefaultTimeouts are generous for a loaded CI machine.
func DefaultTimeouts() Timeouts { return check.DefaultTimeouts() }

// ReplayTimeouts are for engines that play recordings.
func ReplayTimeouts() Timeouts { return check.ReplayTimeouts() }

// EngineTimeouts are for engines that load a model, and that prepare themselves at
// the first request of a kind.
func EngineTimeouts() Timeouts { return check.EngineTimeouts() }

// Subject is an engine under test and [Engine] makes one; [OwnTimed] is what a Subject may be besides.
type (
	Subject  = check.Subject
	Engine   = check.Engine
	OwnTimed = check.OwnTimed
)

// Player is the embedded engine, [player.Player].
func Player(opt player.Options) (Subject, error) { return check.Player(opt) }

// CommandEngine starts an engine under test by a command, [FrontendUnderTest] a frontend, [ConsumerUnderTest] a consumer of the KV
// events at [KVEndpoints]. [Attached] says where a subject
// that is kept alive can be reached.
type (
	CommandEngine     = check.CommandEngine
	FrontendUnderTest = check.FrontendUnderTest
	ConsumerUnderTest = check.ConsumerUnderTest
	KVEndpoints       = check.KVEndpoints
	RouterUnderTest   = check.RouterUnderTest
	Attached          = check.Attached
)

// DefaultGrace is how long an engine may take to end.
const DefaultGrace = check.DefaultGrace

// CheckAddress refuses an address that no engine can be awaited at, and cases that
// one engine, started by somebody else, cannot serve.
func CheckAddress(address string, cases []Case) error { return check.CheckAddress(address, cases) }
