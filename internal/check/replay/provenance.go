package replay

import (
	"context"
	_ "embed"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/trace"
)

// Codes of what the check reports.
const (
	CodeNoConfigHash    check.Code = "P001" // the golden has no config_hash
	CodeOtherConfigHash check.Code = "P002" // it is not the registered one
	CodeTraceConfig     check.Code = "P003" // it does not follow from the trace's own configuration
	CodeManifestConfig  check.Code = "P004" // the registered one does not follow from the registered configuration
)

//go:embed provenance.md
var provenanceCheckCodes string

var provenanceCheck = check.Check{Name: check.Provenance, Codes: provenanceCheckCodes, Run: provenance}

func provenance(_ context.Context, _ *check.Env, g *check.Golden, c check.Case) (check.Outcome, error) {
	return checkProvenance(g.Registered, c.Line, g.Location, g.Trace.Meta), nil
}

// checkProvenance compares the stamped config hash with the registered one, and
// both with what follows from the configuration, where the trace or the
// manifest names it.
func checkProvenance(g manifest.Golden, line compat.Line, location string, meta trace.Meta) (f check.Outcome) {
	f.Asserted = 1
	stamped := trace.Or(meta.ConfigHash, "")
	if stamped == "" {
		f.Fail(check.Failed(CodeNoConfigHash, "%s: meta.config_hash is missing", location))
		return f
	}
	if stamped != g.ConfigHash {
		f.Fail(check.Failed(CodeOtherConfigHash, "%s: meta.config_hash is %q, the manifest has %s", location, stamped, g.ConfigHash).Compared(g.ConfigHash, stamped))
	}
	if meta.GPU != nil && meta.VLLMTag != nil && meta.EngineConfig != nil {
		f.Asserted++
		if want := trace.ConfigHash(*meta.GPU, *meta.VLLMTag, *meta.EngineConfig); want != stamped {
			f.Fail(check.Failed(CodeTraceConfig, "%s: meta.config_hash is %q, but gpu, vllm_tag and engine_config of the same meta give %s", location, stamped, want).Compared(want, stamped))
		}
	}
	if g.GPU != "" && g.EngineConfig != "" {
		f.Asserted++
		tag := trace.Or(meta.VLLMTag, line.Tag)
		if want := trace.ConfigHash(g.GPU, tag, g.EngineConfig); want != g.ConfigHash {
			f.Fail(check.Failed(CodeManifestConfig, "%s: gpu, engine_config and tag %s of the manifest give config_hash %s, the manifest has %s", location, tag, want, g.ConfigHash).Compared(want, g.ConfigHash))
		}
	}
	return f
}
