package compat

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/manifest"
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
	testenv.CheckRules(t, *update, Rules(), check, codeUnreadable)
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
	if count(diagnostics, codeTooMany, tomlfile.Warning) != 1 {
		t.Errorf("diagnostics %v, want C017 with one stable line allowed", diagnostics)
	}
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

// The matrix that is shipped with the project has nothing to complain about. Its
// newest release is the default, and the lines that gate are exactly those of
// which the release that stands for them was captured.
func TestShippedFile(t *testing.T) {
	mf, diagnostics := manifest.Load("../conformance/manifest.toml")
	if len(diagnostics) != 0 {
		t.Fatalf("diagnostics: %v", diagnostics)
	}
	goldens, want := make(map[string][]Capture), make(map[string]bool)
	m, diagnostics := Policy{Strict: true}.Load("../compat.toml")
	for _, g := range mf.Goldens {
		goldens[g.Line] = append(goldens[g.Line], Capture{ID: g.ID, VLLMVersion: g.VLLMVersion, Fidelity: g.Role == manifest.Fidelity})
		l, ok := m.ByName(g.Line)
		if ok && g.Role == manifest.Fidelity && l.Tag == "v"+g.VLLMVersion {
			want[g.Line] = true
		}
	}
	if len(want) == 0 {
		t.Error("no line of the matrix was captured")
	}
	hasProfile := func(l Line) bool { _, err := protocol.CodecFor(l.Name); return err == nil }
	diagnostics = append(diagnostics, Policy{Strict: true}.Check(m, Facts{Goldens: goldens, HasProfile: hasProfile})...)
	if len(diagnostics) != 0 {
		t.Errorf("diagnostics: %v", diagnostics)
	}
	newest := m.Lines[slices.IndexFunc(m.Lines, func(l Line) bool { return !l.IsTracker() })]
	if l, ok := m.Default(); !ok || l != newest {
		t.Errorf("default is %q, want %q", l.Name, newest.Name)
	}
	validated := map[string]bool{}
	for _, l := range m.Lines {
		if l.FidelityValidated {
			validated[l.Name] = true
		}
	}
	if diff := cmp.Diff(want, validated); diff != "" {
		t.Errorf("validated lines (-captured +validated):\n%s", diff)
	}
}

func FuzzParse(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.toml")
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
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
