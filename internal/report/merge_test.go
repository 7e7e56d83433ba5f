package report

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// only is the run with the cases that are wanted, as one job of a matrix has it.
func only(r *conformance.Report, wanted func(conformance.Case) bool) *Document {
	var results []conformance.Result
	for _, result := range r.Results {
		if wanted(result.Case) {
			results = append(results, result)
		}
	}
	part := conformance.NewReport(results, r.Duration)
	part.Subject, part.Flags, part.Coverage = r.Subject, r.Flags, r.Coverage
	return New(part, someRun())
}

// TestMergeIsOneRun: what a matrix of jobs has found is merged into what one job
// would have.
func TestMergeIsOneRun(t *testing.T) {
	whole := New(allSortsOfWrong(), someRun())
	parts := []Named{
		{"old.json", only(allSortsOfWrong(), func(c conformance.Case) bool { return c.Line.Name == "0.27" })},
		{"wire.json", only(allSortsOfWrong(), func(c conformance.Case) bool { return c.Line.Name == "0.33" && c.Assertion == conformance.Wire })},
		{"new.json", only(allSortsOfWrong(), func(c conformance.Case) bool { return c.Line.Name == "0.33" && c.Assertion != conformance.Wire })},
	}
	merged, err := Merge(parts)
	require.NoError(t, err)
	require.True(t, len(merged.Runs) == 3 && merged.DurationMs == 60, "%d runs in %v ms", len(merged.Runs), merged.DurationMs)
	merged.Runs, merged.DurationMs = whole.Runs, whole.DurationMs
	sorted := *whole
	// The wire golden came first, in the second document.
	sorted.Cases = append([]Case{whole.Cases[4]}, append(append([]Case{}, whole.Cases[:4]...), whole.Cases[5:]...)...)
	sorted.Causes = sorted.causes()
	require.NoDiff(t, cmp.Diff(&sorted, merged, cmpopts.IgnoreUnexported(Cause{})), "-whole +merged")
}

// TestMergeKeepsTheBestCoverage: of a line that two documents have, that which shows more is kept.
func TestMergeKeepsTheBestCoverage(t *testing.T) {
	document := func(name, line string, seen int) Named {
		r := allPassed()
		r.Coverage = []conformance.Coverage{{Line: line}}
		r.Coverage[0].Fields.Seen = seen
		return Named{name, New(r, someRun())}
	}
	merged, err := Merge([]Named{document("a", "0.32", 5), document("b", "0.33", 7), document("c", "0.32", 6), document("d", "0.33", 2)})
	require.NoError(t, err)
	var got []string
	for _, c := range merged.Coverage {
		got = append(got, fmt.Sprintf("%s %d", c.Line, c.Fields.Seen))
	}
	if want := "0.33 7, 0.32 6"; strings.Join(got, ", ") != want {
		t.Errorf("got %q, want %s", got, want)
	}
}

// TestMergeReads: a merged document is one as any other.
func TestMergeReads(t *testing.T) {
	merged, err := Merge([]Named{{"a", New(allPassed(), someRun())}, {"b", New(expectations(), someRun())}, {"c", New(suites(), someRun())}})
	require.NoError(t, err)
	again, err := Read("merged", bytes.NewReader(render(t, JSON, merged)))
	require.NoError(t, err)
	require.NoDiff(t, cmp.Diff(merged, again, cmpopts.IgnoreUnexported(Cause{})), "-written +read")
	require.NoError(t, validate(t, compile(t, Schema), render(t, JSON, merged)))
	var lines []string
	for _, l := range merged.Lines {
		lines = append(lines, l.Line)
	}
	require.NoDiff(t, cmp.Diff([]string{"nightly", "0.33", "0.27"}, lines), "-want +got")
}

// TestMergeJudges: the exit code is that of all, problems included.
func TestMergeJudges(t *testing.T) {
	good := New(allPassed(), someRun())
	problem := New(allPassed(), someRun())
	problem.Problems = append(problem.Problems, conformance.Failure{Code: "X101", Message: "stale"})
	infra := only(allSortsOfWrong(), func(c conformance.Case) bool { return c.Golden.ID == "multiturn-s13" })
	for i := range infra.Cases {
		infra.Cases[i].Gating = true
	}
	tests := []struct {
		name string
		with *Document
		exit int
	}{
		{"itself", good, conformance.ExitOK},
		{"one that failed", only(allSortsOfWrong(), func(c conformance.Case) bool { return c.Golden.ID == "wire-edge-s1" }), conformance.ExitFail},
		{"one that does not gate", only(allSortsOfWrong(), func(c conformance.Case) bool { return c.Line.Name == "0.27" }), conformance.ExitOK},
		{"a problem", problem, conformance.ExitFail},
		{"an error around the subject", infra, conformance.ExitInfra},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			merged, err := Merge([]Named{{"a", good}, {"b", test.with}})
			require.NoError(t, err)
			require.True(t, merged.ExitCode == test.exit, "exit code %d (%s), want %d", merged.ExitCode, merged.Reason, test.exit)
		})
	}
	_, err := Merge([]Named{{"a", good}, {"b", New(allSortsOfWrong(), someRun())}})
	require.ErrorContains(t, err, "case 0.33/multiturn-s7/integrity is another in b than in a: its repeat differs")
}

func TestMergeTwice(t *testing.T) {
	a, b := New(allPassed(), someRun()), New(allPassed(), someRun())
	b.Cases[3].DurationMs++ // it always takes another time
	merged, err := Merge([]Named{{"a", a}, {"b", b}})
	if err != nil || len(merged.Cases) != len(a.Cases) {
		t.Fatalf("%v", err)
	}
	b.Cases[3].Tokens++
	if _, err := Merge([]Named{{"a", a}, {"b", b}}); err == nil || !strings.Contains(err.Error(), "case 0.33/multiturn-s7/provenance is another in b than in a: its tokens differs") {
		t.Errorf("%v", err)
	}
	ungated := New(allPassed(), someRun())
	for i := range ungated.Cases {
		ungated.Cases[i].Gating = false
	}
	if _, err := Merge([]Named{{"a", a}, {"b", ungated}}); err == nil || !strings.Contains(err.Error(), "line 0.33 gates in one of a and b only") {
		t.Errorf("%v", err)
	}
	if _, err := Merge(nil); err == nil {
		t.Error("nothing was merged without a word")
	}
}

// TestMergePlaceholders: that a line had nothing to assert is left out when another
// job had cases of it.
func TestMergePlaceholders(t *testing.T) {
	nothing := conformance.Result{Case: conformance.Case{Line: newest, Suite: conformance.SuiteReplay, Gating: true}, Verdict: conformance.Skip, Note: "no golden has the role"}
	other := nothing
	other.Note = "another note"
	document := func(r conformance.Result) *Document {
		return New(conformance.NewReport([]conformance.Result{r}, 0), someRun())
	}
	merged, err := Merge([]Named{{"a", document(nothing)}, {"b", New(allPassed(), someRun())}, {"c", document(other)}})
	require.NoError(t, err)
	for _, c := range merged.Cases {
		require.True(t, c.Name != "0.33", "%+v", c)
	}
	if merged, err = Merge([]Named{{"a", document(nothing)}, {"c", document(other)}}); err != nil || len(merged.Cases) != 1 || merged.ExitCode != conformance.ExitVacuous {
		t.Errorf("%+v, %v", merged, err)
	}
}

func TestCompareLines(t *testing.T) {
	order := []string{"nightly", "rc", "1.0", "0.33", "0.9", "0.8", "else", "other"}
	for i, a := range order {
		for j, b := range order {
			if got := compareLines(a, b); (got < 0) != (i < j) || (got == 0) != (i == j) {
				t.Errorf("%s and %s: %d", a, b, got)
			}
		}
	}
}
