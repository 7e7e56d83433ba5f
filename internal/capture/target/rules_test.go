package target

import (
	"flag"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

var update = flag.Bool("update", false, "rewrite the .diagnostics files in testdata")

// testMatrix is the matrix that the files in testdata are checked against.
func testMatrix() *compat.Matrix {
	return &compat.Matrix{File: "compat.toml", Lines: []compat.Line{
		{Name: "nightly", Tag: "nightly", ProtocolRev: "4ba787ec9"},
		{Name: "rc", Tag: "v0.34.0rc1", ProtocolRev: "5ba787ec9"},
		{Name: "0.33", Tag: "v0.33.0", ProtocolRev: "4ba787ec9", Default: true},
		{Name: "0.32", Tag: "v0.32.0", ProtocolRev: "5df63a720"},
		{Name: "0.30", Tag: "v0.30.0", ProtocolRev: "ced6857af"},
		{Name: "0.29", Tag: "v0.29.0", ProtocolRev: "98dff2a81"},
	}}
}

func TestRules(t *testing.T) {
	check := func(path string) []tomlfile.Diagnostic {
		_, findings := Load(path, testMatrix())
		return findings
	}
	testenv.CheckRules(t, *update, testenv.RuleCodes(t, "rules.md"), check, codeUnreadable)
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"[models.a]\nsource='a'\ngpu='cpu'\n[[target]]\nlines=['*']\nmodels=['a']\nscenarios=['lora']\nworkloads=['edge']\nseeds=[1]\n",
		"[models.a]\nsource='./a'\nserved='b'\ngpu='cpu'\n[models.a.engine]\na=1\n[models.a.adapters]\nx='y'\n" +
			"[[target]]\nlines=['0.33']\nmodels=['a']\nscenarios=['lora']\nworkloads=['edge']\nseeds=[1]\n",
		"[workloads.a]\nkind='stairs'\nstairs=[1]\n[[target]]\nexcept=[{reason='a'}]",
	} {
		f.Add(text)
	}
	matrix := testMatrix()
	f.Fuzz(func(t *testing.T, text string) {
		file, findings := Parse("targets.toml", []byte(text), nil, matrix)
		if tomlfile.HasErrors(findings) {
			return
		}
		// Without errors, a target can be named and found, and its configuration read again.
		names := map[string]bool{}
		for _, target := range file.Targets {
			require.True(t, !names[target.Name()] && target.Tag != "" && len(target.slug()) <= longestName-around, "target %s is not usable", target.Name())
			names[target.Name()] = true
			for pair := range strings.SplitSeq(target.EngineConfig(), ";") {
				if key, value, ok := strings.Cut(pair, "="); !ok || key == "" || value == "" {
					t.Errorf("engine_config %q has the pair %q", target.EngineConfig(), pair)
				}
			}
		}
	})
}
