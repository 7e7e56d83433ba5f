package replay

import (
	"context"
	_ "embed"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/trace"
)

// Codes of what the check reports.
const (
	CodeNoVersion check.Code = "L001" // the captured engine's version is unknown
	CodeOtherLine check.Code = "L002" // the captured engine was of another line
)

//go:embed line.md
var lineCheckCodes string

var lineCheck = check.Check{Name: check.SameLine, Codes: lineCheckCodes, Run: sameLine}

func sameLine(_ context.Context, _ *check.Env, g *check.Golden, c check.Case) (check.Outcome, error) {
	return CheckLine(c.Line, g.Location, g.Trace.Meta), nil
}

// CheckLine compares the version that the captured engine reported with the
// line. A tracker has any version.
func CheckLine(line compat.Line, location string, meta trace.Meta) (f check.Outcome) {
	f.Asserted = 1
	captured := trace.Or(meta.VLLMVersion, "")
	if captured == "" {
		f.Fail(check.Failed(CodeNoVersion, "%s: meta.vllm_version is missing, so the captured engine's line is unknown", location))
		return f
	}
	if compat.IsTracker(line.Name) {
		return f
	}
	if got, ok := compat.MinorLine(captured); !ok || got != line.Name {
		f.Fail(check.Failed(CodeOtherLine, "%s: meta.vllm_version is %q, which is not of line %s", location, captured, line.Name).Compared(line.Name, captured))
	}
	return f
}
