package replay

import (
	"context"
	"maps"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/invariant"
)

// judge makes an assertion of a golden.
type judge = func(context.Context, *check.Env, *check.Golden, check.Case) (check.Outcome, error)

// Checks are those of the replay suite, in the order they are made of a golden.
func Checks() []check.Check {
	return check.List(check.SuiteReplay, assertions,
		func(ctx context.Context, a check.Entry[judge], e *check.Env, g *check.Golden, c check.Case) (check.Outcome, error) {
			return a.Judge(ctx, e, g, c)
		})
}

var assertions = []check.Entry[judge]{
	{Name: check.Integrity, Titles: check.Titles{
		check.CodeDigest: "the sha256 of a golden is not the registered one",
		check.CodeSize:   "the size of a golden is not the registered one",
	}, Judge: integrity},
	{Name: check.SameLine, Titles: check.Titles{
		check.CodeNoVersion: "the version of the captured engine is unknown",
		check.CodeOtherLine: "the captured engine was of another line",
	}, Judge: sameLine},
	{Name: check.Provenance, Titles: check.Titles{
		check.CodeNoConfigHash:    "a golden has no config_hash",
		check.CodeOtherConfigHash: "the config_hash is not the registered one",
		check.CodeTraceConfig:     "the config_hash does not follow from the configuration in the golden",
		check.CodeManifestConfig:  "the config_hash does not follow from the registered configuration",
	}, Judge: provenance},
	{Name: check.Schema, Titles: check.Titles{
		check.CodeNoReady:         "a golden of role schema has no ready response",
		check.CodeBadReady:        "the golden's ready response cannot be read",
		check.CodeReadyUnreadable: "the engine's ready response cannot be read",
		check.CodeReadyMissing:    "a key of the registration is missing",
		check.CodeReadyKind:       "a value of the registration is of another kind",
		check.CodeReadyRequired:   "a key that the frontend requires is missing",
	}, Judge: checkSchema},
	{Name: check.Fidelity, Titles: withInvariants(check.Titles{
		check.CodeToken:        "a token id differs",
		check.CodeNoTerminal:   "a stream has no terminal output",
		check.CodeTerminals:    "a stream has more than one terminal output",
		check.CodeFinishReason: "the finish reason differs",
		check.CodeLate:         "outputs come after the terminal one",
		check.CodeChunks:       "the tokens come in other chunks",
		check.CodeRefused:      "the engine refused the request",
		check.CodeStray:        "an output names a request that was never sent",
		check.CodeUndecodable:  "a frontend of the line cannot read the message",
		check.CodeEngineIndex:  "a message names another engine",
		check.CodeUsage:        "the usage in HTTP counts other tokens",
		check.CodePin:          "the golden's streams are not those that were registered",
		check.CodeCount:        "the golden has other counts than registered",
		check.CodeReplayDigest: "the replayed streams have another digest",
		check.CodeUtility:      "a utility call is not answered as a real engine does",
		check.CodeLayout:       "a message is not exactly of the line's layout",
	}), Judge: fidelity},
	{Name: check.Wire, Titles: check.Titles{
		CodeWireValue:   "a value of a message differs",
		CodeWireKind:    "a value of a message is of another kind",
		CodeWireLength:  "an array of a message has another length",
		CodeWireMissing: "a key of a message is missing",
		CodeWireExtra:   "a message has a key that the real engine does not send",
		CodeWireOrder:   "the keys of a map come in another order",
		CodeWireFrames:  "a message has other auxiliary frames",
		CodeWireSyntax:  "a message is not MessagePack",
		CodeWireUnsaid:  "a message of the real engine has no counterpart",
		CodeWireStray:   "a message that the real engine did not send",
	}, Judge: checkWire},
	{Name: check.Frames, Titles: check.Titles{
		CodeFramesStray:   "an output names a request that was not sent to the engine",
		CodeFramesLate:    "an output comes behind the last one of its request",
		CodeFramesAnswer:  "a utility call is answered that was not made",
		CodeFramesRank:    "a message names another engine than it is of",
		CodeFramesEvents:  "KV events do not follow on those before them",
		CodeFramesNothing: "a session without requests or without answers",
	}, Judge: checkFrames},
}

// withInvariants adds the titles of what must hold of every engine.
func withInvariants(titles check.Titles) check.Titles {
	maps.Copy(titles, invariant.Titles())
	return titles
}
