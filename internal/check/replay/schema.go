package replay

import (
	"context"
	_ "embed"
	"errors"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/frontends/coreclient"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/player"
)

//go:embed schema.md
var schemaCheckCodes string

var schemaCheck = check.Check{Name: check.Schema, Codes: schemaCheckCodes, Levels: []check.Level{check.LevelCore}, Run: checkSchema}

// checkSchema boots a player on the golden and compares what it really registers
// with with what the captured engine did and what the line's frontend requires:
// every captured key must be there with a value of the same kind, nested keys
// included. Keys that the captured engine did not have are noted, not refused:
// frontends skip them.
func checkSchema(ctx context.Context, e *check.Env, g *check.Golden, c check.Case) (f check.Outcome, err error) {
	want := check.CapturedShape(&f, g)
	if want == nil {
		return f, nil
	}
	// It registers, and plays nothing: a golden of role schema may have no tokens.
	s, err := Boot(ctx, e, g.Codec, player.Options{VLLMVersion: check.PlayedVersion(c.Line), Trace: g.Trace, Source: player.Random{}})
	var refused *coreclient.RegistrationError
	if errors.As(err, &refused) && len(refused.Frames) == 1 {
		// It cannot be used: it is for this check to say what is wrong with it.
		compareReady(&f, g, want, refused.Frames[0])
	}
	if len(f.Failures) > 0 {
		return f, nil
	}
	if err != nil {
		return f, err
	}
	defer s.Close()
	compareReady(&f, g, want, s.Engine.RawReady)
	s.CheckRegistration(&f)
	return f, nil
}

// compareReady compares what the engine under test registered with, as it came.
func compareReady(f *check.Outcome, g *check.Golden, want map[string]pack.Kind, raw []byte) {
	got, err := check.ShapeOf(raw)
	if err != nil {
		f.Fail(check.Failed(check.CodeReadyUnreadable, "%s: the ready response of the engine under test: %v", g.Location, err).
			Within(-1, "EngineCoreReadyResponse").Compared("a map with text keys", err))
		return
	}
	check.CompareShapes(f, g, want, got)
}
