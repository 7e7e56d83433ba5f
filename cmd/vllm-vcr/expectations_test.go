package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	livesuite "github.com/vllm-vcr/conformance/internal/check/live"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// oneCase is a case of the live suite, which fails in these tests.
var oneCase = conformance.Case{Line: compat.Line{Name: "0.33"}, Suite: conformance.SuiteLive, Assertion: "abort", Gating: true}

func TestLoadExpectations(t *testing.T) {
	const entry = "[[expect]]\npattern = \"0.33/live/abort\"\noutcome = \"fail\"\nreason = \"a\"\nissue = \"1\"\n"
	tests := []struct {
		name, flag string
		files      map[string]string
		want       int
		update     bool
		err        string
		stderr     string
	}{
		{name: "the one in the binary"},
		{name: "that of the folder", files: map[string]string{"conformance.toml": entry}, want: 1},
		{name: "the named one", flag: "other.toml", files: map[string]string{"conformance.toml": "", "other.toml": entry}, want: 1},
		{name: "none of that name yet", flag: "other.toml", update: true},
		{name: "none of that name", flag: "other.toml", err: "other.toml has errors: correct what is listed above", stderr: "other.toml: X101 error: cannot be read: no such file or directory"},
		{
			name: "one that is wrong", files: map[string]string{"conformance.toml": "[[expect]]\npattern = \"**\"\noutcome = \"fail\"\nreason = \"\"\nissue = \"1\"\n"},
			err: "conformance.toml has errors: correct what is listed above", stderr: "conformance.toml:4: X105 error: reason is empty",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			for path, text := range test.files {
				writeTestFile(t, path, text)
			}
			var stderr bytes.Buffer
			e, err := loadExpectations(newEnvironment(nil, &stderr, nil), test.flag, test.update, []conformance.Case{oneCase})
			switch {
			case test.err == "" && (err != nil || len(e.List) != test.want):
				t.Errorf("%v, %v, want %d entries", e, err, test.want)
			case test.err != "" && (err == nil || err.Error() != test.err || !strings.Contains(stderr.String(), test.stderr)):
				t.Errorf("error %v, stderr %q, want %q and %q", err, &stderr, test.err, test.stderr)
			}
		})
	}
}

func writeTestFile(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o640))
}

// TestKeepMatching: what the binary's own file expects of cases that are not there is
// left out, and nothing else.
func TestKeepMatching(t *testing.T) {
	e := &conformance.Expectations{List: []conformance.Expectation{{Pattern: "0.32/**"}, {Pattern: "0.33/live/*"}, {Pattern: "a//b"}}}
	keepMatching(e, []conformance.Case{oneCase})
	require.True(t, len(e.List) == 2 && e.List[0].Pattern == "0.33/live/*" && e.List[1].Pattern == "a//b", "kept %v", e.List)
}

func TestUpdateExpectationsFile(t *testing.T) {
	t.Chdir(t.TempDir())
	var stderr bytes.Buffer
	env := newEnvironment(nil, &stderr, nil)
	all := []conformance.Case{oneCase}
	failed := conformance.NewReport([]conformance.Result{{
		Case: oneCase, Verdict: conformance.Fail, Asserted: 1,
		Failures: []conformance.Failure{{Code: livesuite.CodeAbort, Request: -1, Message: "disturbed"}},
	}}, 0)
	const path = "conformance.toml"
	writeTestFile(t, path, "# mine\n")
	require.NoError(t, os.Symlink("conformance.toml", "link.toml"))
	require.NoError(t, updateExpectations(env, "link.toml", failed, all))
	if want := "link.toml: added 0.33/live/abort: fill in its reason and its issue\n"; stderr.String() != want {
		t.Errorf("stderr %q, want %q", &stderr, want)
	}
	data, err := os.ReadFile(path)
	if want := "# mine\n\n[[expect]]\npattern = \"0.33/live/abort\"\noutcome = \"fail\"\nreason = \"\"\nissue = \"\"\n"; err != nil || string(data) != want {
		t.Errorf("%v, file\n%s, want\n%s", err, data, want)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("%v, permissions %v, want those it had", err, info.Mode())
	}
	if files, _ := os.ReadDir("."); len(files) != 2 {
		t.Errorf("%d files are left beside it, want the file and the link", len(files))
	}
	require.ErrorContains(t, updateExpectations(env, "", failed, all), "X105 error: reason is empty")
}
