package compat

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

var update = flag.Bool("update", false, "rewrite the .diagnostics files in testdata")

// testFacts are the facts under which the files in testdata are checked. The lines
// of 0.3x are those of the shipped matrix; 0.20 is unknown to the protocol.
func testFacts() Facts {
	return Facts{
		HasProfile: func(l Line) bool { return l.Name != "0.20" },
		Goldens: map[string][]Capture{
			"0.33": {{ID: "multiturn-s7", VLLMVersion: "0.33.0", Fidelity: true}, {ID: "old", Fidelity: true}},
			"0.32": {
				{ID: "multiturn-s7", VLLMVersion: "0.32.0+cpu", Fidelity: true},
				{ID: "multiturn-s13", VLLMVersion: "0.32.1", Fidelity: true},
				{ID: "nightly-s7", VLLMVersion: "0.32.1.dev3+g0123456", Fidelity: true},
				{ID: "ready", VLLMVersion: "0.32.9", Fidelity: false},
			},
			"0.31": {{ID: "ready", VLLMVersion: "0.31.0", Fidelity: false}},
		},
	}
}

func TestRules(t *testing.T) {
	check := func(path string) []Diagnostic {
		m, diagnostics := Load(path)
		diagnostics = append(diagnostics, Policy{}.Check(m, testFacts())...)
		tomlfile.Sort(diagnostics)
		return diagnostics
	}
	testenv.CheckRules(t, *update, testenv.RuleCodes(t, "rules.md"), check, codeUnreadable)
}

func TestPolicy(t *testing.T) {
	count := func(diagnostics []Diagnostic, code string, severity tomlfile.Severity) (n int) {
		for _, f := range diagnostics {
			if f.Code == code && f.Severity == severity {
				n++
			}
		}
		return n
	}
	m, diagnostics := Policy{MaxStable: 1}.Parse("compat.toml", []byte(matrix))
	require.Equal(t, count(diagnostics, codeTooMany, tomlfile.Warning), 1, "C017 with one stable line allowed, in %v", diagnostics)
	if _, diagnostics = (Policy{MaxStable: 2}).Parse("compat.toml", []byte(matrix)); len(diagnostics) != 0 {
		t.Errorf("diagnostics %v, want none with two stable lines allowed", diagnostics)
	}
	facts := Facts{Goldens: map[string][]Capture{"0.33": {{ID: "a", VLLMVersion: "0.33.1", Fidelity: true}}}}
	if f := (Policy{}).Check(m, facts); count(f, codeOtherPatch, tomlfile.Warning) != 1 {
		t.Errorf("diagnostics %v, want C021 as a warning", f)
	}
	if f := (Policy{Strict: true}).Check(m, facts); count(f, codeOtherPatch, tomlfile.Error) != 1 {
		t.Errorf("diagnostics %v, want C021 as an error under strict", f)
	}
	if f := (Policy{Strict: true}).Check(m, Facts{}); len(f) != 0 {
		t.Errorf("diagnostics %v, want none without facts", f)
	}
}

func FuzzParse(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.toml")
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(f, err)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, diagnostics := Parse("compat.toml", data)
		diagnostics = append(diagnostics, Policy{}.Check(m, testFacts())...)
		if tomlfile.HasErrors(diagnostics) {
			return
		}
		// Without errors there is one default, and every tag finds its own line.
		if _, ok := m.Default(); !ok {
			t.Fatalf("no default in %q", data)
		}
		for _, l := range m.Lines {
			if got, ok := m.Lookup(l.Tag); !ok || got != l {
				t.Errorf("Lookup(%q) = %+v, want %+v", l.Tag, got, l)
			}
		}
	})
}
