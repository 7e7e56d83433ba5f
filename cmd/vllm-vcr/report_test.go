package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/report"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/manifest"
)

// reportFlagsOf parses the report flags of a command line.
func reportFlagsOf(t *testing.T, args ...string) reportOptions {
	t.Helper()
	var opts reportOptions
	cmd := &cobra.Command{}
	opts.addFlags(cmd.Flags())
	require.NoError(t, cmd.ParseFlags(args))
	return opts
}

// TestFinishReportExitCode: the outcome of the run comes before what its report
// could not be written to, and the text is there in any case.
func TestFinishReportExitCode(t *testing.T) {
	ended, end := context.WithCancel(t.Context())
	end()
	tests := []struct {
		name  string
		exit  int
		flags []string
		ctx   context.Context
		want  int
		says  string // "" is nothing: the report says it all
	}{
		{"passes", conformance.ExitOK, nil, t.Context(), conformance.ExitOK, ""},
		{"fails", conformance.ExitFail, nil, t.Context(), conformance.ExitFail, ""},
		{"passes, unwritable", conformance.ExitOK, []string{"--report-json", os.DevNull + "/x"}, t.Context(), conformance.ExitInfra, "write report: mkdir " + os.DevNull},
		{"fails, unwritable", conformance.ExitFail, []string{"--report-json", os.DevNull + "/x"}, t.Context(), conformance.ExitFail, "write report: mkdir " + os.DevNull},
		{"asserts nothing, unwritable", conformance.ExitVacuous, []string{"--report-dir", os.DevNull}, t.Context(), conformance.ExitVacuous, "write report: make the directory of the report: mkdir " + os.DevNull},
		{"interrupted", conformance.ExitFail, nil, ended, conformance.ExitInfra, "interrupted: "},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			env := newEnvironment(&stdout, &stderr, func(string) (string, bool) { return "", false })
			d := &report.Document{Verdict: conformance.Pass, Reason: "it is said", ExitCode: test.exit}
			err := finishReport(test.ctx, env, d, reportFlagsOf(t, test.flags...))
			code := conformance.ExitOK
			var coded exitError
			if errors.As(err, &coded) {
				code = coded.code
			} else if err != nil {
				t.Fatal(err)
			}
			if code != test.want || err != nil && !strings.HasPrefix(err.Error(), test.says) || test.says == "" && err != nil && !errors.Is(err, errReported) {
				t.Errorf("exit code %d, %v, want %d, %s", code, err, test.want, test.says)
			}
			require.Contains(t, stdout.String(), "it is said")
		})
	}
}

// TestStepSummary: however much fails, GitHub takes the summary of the step, and the
// annotations are as many as it shows.
func TestStepSummary(t *testing.T) {
	dir := t.TempDir()
	line := compat.Line{Name: "0.33"}
	var results []conformance.Result
	for i := range 3_000 {
		results = append(results, conformance.Result{
			Case:    conformance.Case{Line: line, Suite: conformance.SuiteReplay, Gating: true, Golden: manifest.Golden{ID: fmt.Sprintf("g-%d", i)}, Assertion: conformance.Schema},
			Verdict: conformance.Fail, Asserted: 1,
			Failures: []conformance.Failure{{Code: check.CodeReadyMissing, Path: fmt.Sprintf("EngineCoreReadyResponse.key_%d", i), Request: -1, Position: -1, Frame: -1, Message: strings.Repeat("long ", 100)}},
		})
	}
	d := report.New(conformance.NewReport(results, time.Second), report.Meta{Tool: report.Tool{Name: "vllm-vcr"}})
	require.NoError(t, atomicfile.WriteFunc(dir+"/report.json", 0o644, func(w io.Writer) error { return report.JSON(w, d) }))
	variables := map[string]string{"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": dir + "/step.md"}
	var stderr bytes.Buffer
	env := newEnvironment(io.Discard, &stderr, func(name string) (string, bool) { v, ok := variables[name]; return v, ok })
	for range 2 { // a step may run the command more than once, with one summary
		stderr.Reset()
		if code := env.main(t.Context(), []string{"conform", "merge", dir + "/report.json"}); code != conformance.ExitFail {
			t.Fatalf("exit code %d, want 1: %s", code, &stderr)
		}
	}
	info, err := os.Stat(dir + "/step.md")
	if err != nil || info.Size() >= 1<<20 || info.Size() < 800<<10 {
		t.Errorf("a summary of %d bytes, %v, want what there is room for in 1 MiB", info.Size(), err)
	}
	if n := strings.Count(stderr.String(), "\n::error ") + 1; n != report.AnnotationLimit || !strings.Contains(stderr.String(), "::+2991 more in the report\n") {
		t.Errorf("%d annotations, want %d, of which the last counts the rest:\n%s", n, report.AnnotationLimit, &stderr)
	}
}

// TestCommandLine: a report tells the flags that were given, by whatever way.
func TestCommandLine(t *testing.T) {
	opts := reportFlagsOf(t, "--report-dir", "a b", "--report-format", "json,sarif", "--deterministic")
	want := []string{"vllm-vcr", "conform", "--deterministic=true", "--report-dir=a b", "--report-format=json", "--report-format=sarif"}
	require.NoDiff(t, cmp.Diff(want, opts.command("vllm-vcr", "conform")), "-want +got")
}

func TestRepository(t *testing.T) {
	workspace := t.TempDir()
	kept := filepath.Join(workspace, "kept")
	deep := filepath.Join(kept, "deep")
	for _, dir := range []string{filepath.Join(kept, ".git"), deep} {
		require.NoError(t, os.MkdirAll(dir, 0o755))
	}
	elsewhere := t.TempDir()
	inActions := func(name string) (string, bool) { return workspace, name == "GITHUB_WORKSPACE" }
	nowhere := func(string) (string, bool) { return "", false }
	for _, test := range []struct {
		name, dir, want string
		env             func(string) (string, bool)
	}{
		{"below what Git keeps", deep, kept, inActions},
		{"Git's own folder", kept, kept, nowhere},
		{"below the workspace", workspace, workspace, inActions},
		{"beside the workspace", elsewhere, elsewhere, inActions},
		{"neither", elsewhere, elsewhere, nowhere},
	} {
		t.Run(test.name, func(t *testing.T) {
			env := newEnvironment(io.Discard, io.Discard, test.env)
			require.Equal(t, repositoryRoot(env, test.dir), test.want, "repositoryRoot")
		})
	}
}
