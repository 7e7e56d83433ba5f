package conformance

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/golden/s3store"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/player"
)

// TestConformance is the run of "vllm-vcr conform" as subtests
// TestConformance/<line>/<golden>/<check>. CONFORMANCE_MANIFEST and
// CONFORMANCE_BUCKET replace the manifest and the goldens of the repository; a
// relative path is below the root of the repository. With -short each golden is
// replayed once.
func TestConformance(t *testing.T) {
	var sel Selection
	if testing.Short() {
		sel = Selection{Matches: []player.Match{player.MatchPrefix}, Concurrency: []int{16}}
	}
	matrix, mf, store := inputsOfRun(t)
	cases, err := NewPlan(matrix, mf, sel)
	require.NoError(t, err)
	if len(cases) == 0 {
		t.Fatal("the plan is empty")
	}
	runner := (&Runner{Store: store, Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))}).begin(t.Context())
	expected := expectationsOfRun(t, matrix, mf, sel)
	for _, line := range groups(cases, func(c Case) string { return c.Line.Name }) {
		t.Run(line[0].Line.Name, func(t *testing.T) { conformLine(t, runner, expected, line) })
	}
}

// expectationsOfRun are what the repository's file says is known to fail.
func expectationsOfRun(t *testing.T, matrix *compat.Matrix, mf *manifest.Manifest, sel Selection) *Judge {
	t.Helper()
	expected, findings := LoadExpectations("../conformance.toml")
	require.NoError(t, errorsOf(findings))
	all, err := EveryCase(matrix, mf, sel)
	require.NoError(t, err)
	j := NewJudge(expected, all, time.Now())
	for _, wrong := range j.Failures {
		t.Error(wrong.Message)
	}
	return j
}

// inputsOfRun are the repository's files, or those that the environment names.
func inputsOfRun(t *testing.T) (*compat.Matrix, *manifest.Manifest, Store) {
	t.Helper()
	matrix, mf := repository(t)
	if path := os.Getenv("CONFORMANCE_MANIFEST"); path != "" {
		var findings []manifest.Diagnostic
		mf, findings = manifest.Load(fromRoot(path))
		if errorsOf(findings) == nil {
			findings = append(findings, CheckInputs(matrix, mf)...)
		}
		require.NoError(t, errorsOf(findings))
	}
	opt := StoreOptions{Dir: repoGoldens, S3: s3store.Options{}}
	if bucket := os.Getenv("CONFORMANCE_BUCKET"); bucket != "" {
		opt = StoreOptions{Bucket: fromRoot(bucket), S3: s3store.Options{}}
	}
	return matrix, mf, NewStore(opt)
}

// fromRoot makes a relative path one from the folder that tests run in.
func fromRoot(path string) string {
	if strings.Contains(path, "://") || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(repoRoot, path)
}

func errorsOf(findings []manifest.Diagnostic) error {
	var errs []error
	for _, f := range findings {
		if f.Severity == tomlfile.Error {
			errs = append(errs, errors.New(f.String()))
		}
	}
	return errors.Join(errs...)
}

// groups cuts cases where the key changes.
func groups(cases []Case, key func(Case) string) [][]Case {
	var all [][]Case
	for i, c := range cases {
		if i == 0 || key(c) != key(cases[i-1]) {
			all = append(all, nil)
		}
		all[len(all)-1] = append(all[len(all)-1], c)
	}
	return all
}

func conformLine(t *testing.T, runner *run, expected *Judge, cases []Case) {
	var results []Result
	if cases[0].Golden.ID == "" {
		results = append(results, runner.runCase(&check.Golden{}, cases[0], nil))
	} else {
		for _, golden := range groups(cases, func(c Case) string { return c.Golden.ID }) {
			t.Run(golden[0].Golden.ID, func(t *testing.T) {
				g := runner.load(t.Context(), golden[0])
				for _, c := range golden {
					t.Run(c.Check(), func(t *testing.T) {
						result := expected.Apply(runner.runCase(g, c, func() attempt { return runner.attempt(t.Context(), runner.env, g, c) }))
						results = append(results, result)
						settle(t, result)
					})
				}
			})
		}
	}
	require.NoError(t, vacuous(cases, results))
	if cases[0].Skip != "" {
		t.Skip(cases[0].Skip)
	}
}

// settle gives a subtest its result's verdict. What does not gate does not fail.
func settle(t *testing.T, r Result) {
	if r.Note != "" {
		t.Log(r.Note)
	}
	for _, f := range r.Failures {
		t.Log(f.Message)
	}
	switch {
	case r.Verdict == Skip:
		t.SkipNow()
	case !r.Verdict.Red():
	case r.Case.Gating:
		t.Fatal(r.Verdict)
	default:
		t.Skipf("%s, but the line does not gate", r.Verdict)
	}
}

// vacuous returns an error when the cases of a gating line all ran, and none of
// them asserted anything. Where -run left cases out, nobody can tell.
func vacuous(cases []Case, results []Result) error {
	asserted := slices.ContainsFunc(results, func(r Result) bool { return r.Asserted > 0 })
	if !cases[0].Gating || asserted || len(results) < len(cases) {
		return nil
	}
	return fmt.Errorf("line %s gates, but nothing was asserted: %s", cases[0].Line.Name, saidBy(results[0]))
}

func TestVacuousLineFails(t *testing.T) {
	gating := []Case{{Line: compat.Line{Name: "0.33"}, Gating: true, Assertion: Schema}, {Gating: true, Assertion: Schema}}
	informing := []Case{{Assertion: Schema}}
	skipped, judged := Result{Verdict: Skip, Note: "the golden has no ready_response_hex"}, Result{Verdict: Pass, Asserted: 1}
	tests := []struct {
		name    string
		cases   []Case
		results []Result
		want    string
	}{
		{"all skipped", gating, []Result{skipped, skipped}, "line 0.33 gates, but nothing was asserted: the golden has no ready_response_hex"},
		{"one asserted", gating, []Result{skipped, judged}, ""},
		{"left out by -run", gating, []Result{skipped}, ""},
		{"not gating", informing, []Result{skipped}, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := ""
			if err := vacuous(test.cases, test.results); err != nil {
				got = err.Error()
			}
			require.Equal(t, got, test.want, "got")
		})
	}
}
