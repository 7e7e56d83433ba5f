package conformance

import (
	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/trace"
)

// CheckInputs checks the support window and the registry against each other and
// against what this build knows: wire profiles and the config hash.
func CheckInputs(window *compat.Matrix, registry *manifest.Manifest) []tomlfile.Diagnostic {
	findings := compat.Policy{}.Check(window, windowFacts(registry))
	findings = append(findings, manifest.Policy{}.Check(registry, registryFacts(window))...)
	tomlfile.Sort(findings)
	return findings
}

func windowFacts(registry *manifest.Manifest) compat.Facts {
	facts := compat.Facts{
		Goldens:    map[string][]compat.Capture{},
		HasProfile: func(l compat.Line) bool { return protocol.HasProfile(check.ProfileName(l)) },
	}
	for _, g := range registry.Goldens {
		facts.Goldens[g.Line] = append(facts.Goldens[g.Line], compat.Capture{
			ID: g.ID, VLLMVersion: g.VLLMVersion, Fidelity: g.Role == manifest.Fidelity,
		})
	}
	return facts
}

func registryFacts(window *compat.Matrix) manifest.Facts {
	facts := manifest.Facts{Lines: map[string]manifest.Line{}, ConfigHash: trace.ConfigHash}
	for _, l := range window.Lines {
		facts.Lines[l.Name] = manifest.Line{Tag: l.Tag, Validated: l.FidelityValidated}
	}
	return facts
}
