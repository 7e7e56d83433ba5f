package target

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/manifest"
)

// shippedMatrix is the shipped compat.toml.
func shippedMatrix(t testing.TB) *compat.Matrix {
	t.Helper()
	matrix, findings := compat.Load("../../../compat.toml")
	if len(findings) != 0 || len(matrix.Lines) == 0 {
		t.Fatalf("%d lines, findings: %v", len(matrix.Lines), findings)
	}
	return matrix
}

// said is what a golden says of how it was captured.
type said struct {
	Workload, Role, GPU, Model, Scenario, EngineConfig, ConfigHash, Version string
	Seed                                                                    int64
}

// goldensOf are the goldens that the targets of a file become, by line and id.
func goldensOf(targets []Target) map[string]said {
	all := map[string]said{}
	for _, t := range targets {
		g := said{
			Workload: t.ID, Role: "fidelity", GPU: t.Model.GPU, Model: t.Model.Served, Scenario: string(t.Scenario),
			EngineConfig: t.EngineConfig(), ConfigHash: t.ConfigHash(), Version: t.Release(), Seed: int64(t.Seed),
		}
		if t.Session != nil {
			g.Role = "frames"
		}
		all[t.Name()] = g
		if t.Wire {
			g.Role = "wire"
			all[t.Line+"/"+t.WireID()] = g
		}
	}
	return all
}

// The shipped targets are how the shipped goldens were captured, no more and no fewer: a target that is captured again
// replaces its golden. A line that was adopted and not captured yet has targets only.
func TestShippedTargetsAreTheGoldens(t *testing.T) {
	matrix := shippedMatrix(t)
	file, findings := Load("../../../capture/targets.toml", matrix)
	if len(findings) != 0 {
		t.Fatalf("findings: %v", findings)
	}
	mf, findings := manifest.Load("../../../conformance/manifest.toml")
	if len(findings) != 0 || len(mf.Goldens) == 0 {
		t.Fatalf("%d goldens, findings: %v", len(mf.Goldens), findings)
	}
	want := map[string]said{}
	for _, g := range mf.Goldens {
		if g.Role == manifest.NIXL {
			continue // of conform --frames-out
		}
		want[g.Line+"/"+g.ID] = said{
			Workload: g.Workload, Role: string(g.Role), GPU: g.GPU, Model: g.Model, Scenario: g.Scenario,
			EngineConfig: g.EngineConfig, ConfigHash: g.ConfigHash, Version: g.VLLMVersion, Seed: *g.Seed,
		}
	}
	asked := slices.DeleteFunc(file.Targets, func(target Target) bool {
		line, _ := matrix.ByName(target.Line)
		return !line.FidelityValidated && len(mf.ForLine(target.Line)) == 0
	})
	require.NoDiff(t, cmp.Diff(want, goldensOf(asked)), "goldens (-registered +asked for)")
}
