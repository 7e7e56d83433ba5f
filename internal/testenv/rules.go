package testenv

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// RuleCodes returns the codes of the rules that a page such as compat/rules.md explains: the first word of each heading.
func RuleCodes(t *testing.T, page string) (codes []string) {
	t.Helper()
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if heading, ok := strings.CutPrefix(line, "## "); ok {
			codes = append(codes, strings.Fields(heading)[0])
		}
	}
	return codes
}

// CheckRules checks the rules of a file format, by their codes, against the files in testdata that break them: testdata/x.toml is
// checked, and its diagnostics are compared with testdata/x.diagnostics, one a line, which update rewrites. It fails when a rule is
// broken by no file, and when a diagnostic has a code that no rule has. The rule unreadable is broken by a file that is not there.
func CheckRules(t *testing.T, update bool, codes []string, check func(path string) []tomlfile.Diagnostic, unreadable string) {
	t.Helper()
	files, err := filepath.Glob("testdata/*.toml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files in testdata: %v", err)
	}
	seen := map[string]bool{unreadable: true}
	missing := check("testdata/none")
	if len(missing) != 1 || missing[0].Code != unreadable || missing[0].Severity != tomlfile.Error || missing[0].File != "testdata/none" {
		t.Errorf("a file that is not there: diagnostics %v, want %s", missing, unreadable)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".toml"), func(t *testing.T) {
			var got strings.Builder
			for _, f := range check(file) {
				f.File = filepath.Base(f.File)
				got.WriteString(f.String() + "\n")
				seen[f.Code] = true
			}
			compareText(t, update, strings.TrimSuffix(file, ".toml")+".diagnostics", got.String())
		})
	}
	for _, code := range codes {
		require.True(t, seen[code], "no file in testdata breaks rule %s", code)
		delete(seen, code)
	}
	for code := range seen {
		t.Errorf("code %s is not among the rules", code)
	}
}

func compareText(t *testing.T, update bool, path, got string) {
	t.Helper()
	if update {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoDiff(t, cmp.Diff(string(want), got), "%s (-want +got)", path)
}
