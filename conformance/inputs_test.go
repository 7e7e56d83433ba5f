package conformance

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/manifest"
)

// TestCheckInputs is about what only shows when both files and this build are
// looked at together.
func TestCheckInputs(t *testing.T) {
	line := func(name, tag string, validated bool) compat.Line {
		return compat.Line{Name: name, Tag: tag, FidelityValidated: validated, Pos: 7}
	}
	golden := manifest.Golden{
		Line: "0.33", ID: "a", Role: manifest.Fidelity, VLLMVersion: "0.33.0", Pos: 12, Workload: "a-s1",
		BucketPath: "conformance/v0.33.0/a.jsonl.gz",
	}
	with := func(change func(*manifest.Golden)) []manifest.Golden {
		other, g := golden, golden
		other.ID, other.Workload = "b", "b-s2" // so that the line rests on two seeds
		change(&g)
		return []manifest.Golden{g, other}
	}
	tests := []struct {
		name    string
		lines   []compat.Line
		goldens []manifest.Golden
		want    []string // the findings' beginnings
	}{
		{"good", []compat.Line{line("0.33", "v0.33.0", true)}, with(func(*manifest.Golden) {}), nil},
		{"no profile", []compat.Line{line("0.99", "v0.99.0", false)}, nil, []string{"compat.toml:7: C020 error: line 0.99 has no wire profile"}},
		{"candidate of a line without profile", []compat.Line{line("rc", "v0.99.0rc1", false)}, nil, []string{"compat.toml:7: C020 error: line rc has no wire profile"}},
		{"candidate", []compat.Line{line("rc", "v0.33.1rc1", false)}, nil, nil},
		{"validated without goldens", []compat.Line{line("0.33", "v0.33.0", true)}, nil, []string{"compat.toml:7: C019 error: line 0.33 is validated"}},
		{
			"validated by another role",
			[]compat.Line{line("0.33", "v0.33.0", true)},
			[]manifest.Golden{{Line: "0.33", ID: "a", Role: manifest.Schema}},
			[]string{"compat.toml:7: C019 error: line 0.33 is validated"},
		},
		{
			"captured from another patch",
			[]compat.Line{line("0.33", "v0.33.0", true)},
			with(func(g *manifest.Golden) { g.VLLMVersion = "0.33.1" }),
			[]string{"compat.toml:7: C021 warning: line 0.33 stands for v0.33.0, but was captured from another release: a (0.33.1)"},
		},
		{
			"golden of no line",
			[]compat.Line{line("0.33", "v0.33.0", false)},
			with(func(g *manifest.Golden) { g.Line = "0.30" }),
			[]string{`manifest.toml:12: M008 warning: golden a is of line "0.30"`},
		},
		{
			"config_hash that does not follow",
			[]compat.Line{line("0.33", "v0.33.0", false)},
			with(func(g *manifest.Golden) { g.GPU, g.EngineConfig, g.ConfigHash = "cpu", "model=tiny", "00" }),
			[]string{"manifest.toml:12: M016 error: golden a has config_hash 00, but gpu cpu, tag v0.33.0 and its engine_config give "},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			findings := CheckInputs(
				&compat.Matrix{File: "compat.toml", Lines: test.lines}, &manifest.Manifest{File: "manifest.toml", Goldens: test.goldens})
			if len(findings) != len(test.want) {
				t.Fatalf("got %v, want %q", findings, test.want)
			}
			for i, f := range findings {
				if !strings.HasPrefix(f.String(), test.want[i]) {
					t.Errorf("got %q, want %q", f, test.want[i])
				}
			}
		})
	}
}

// TestUnreadableInputs: a file that is not there is a finding, not an empty plan.
func TestUnreadableInputs(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing.toml")
	matrix, findings := compat.Load(missing)
	mf, more := manifest.Load(missing)
	for _, found := range [][]tomlfile.Diagnostic{findings, more} {
		require.True(t, tomlfile.HasErrors(found) && strings.HasPrefix(found[0].String(), missing+": "), "got %v, want an error that names %s", found, missing)
	}
	if cases, err := NewPlan(matrix, mf, Selection{}); err != nil || len(cases) != 0 {
		t.Errorf("%d cases, %v", len(cases), err)
	}
	if r := (&Runner{}).Run(t.Context(), nil); r.ExitCode != ExitVacuous {
		t.Errorf("exit code %d for an empty plan, want %d", r.ExitCode, ExitVacuous)
	}
}

func TestPlayedVersion(t *testing.T) {
	for _, test := range []struct{ line, tag, want string }{
		{"0.33", "v0.33.0", "v0.33.0"}, {"rc", "v0.34.0rc1", "v0.34.0rc1"}, {"nightly", "nightly", "nightly"},
	} {
		t.Run(test.line, func(t *testing.T) {
			require.Equal(t, check.PlayedVersion(compat.Line{Name: test.line, Tag: test.tag}), test.want, "PlayedVersion")
		})
	}
}
