package conformance

import (
	"flag"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/replay"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

var update = flag.Bool("update", false, "rewrite the .diagnostics files in testdata")

func TestExpectationRules(t *testing.T) {
	codes := []string{"X101", "X102", "X103", "X104", "X105", "X106", "X107", "X108", "X109"}
	testenv.CheckRules(t, *update, codes, func(path string) []tomlfile.Diagnostic {
		_, findings := LoadExpectations(path)
		return findings
	}, "X101")
}

func TestLoadExpectations(t *testing.T) {
	got, findings := LoadExpectations("testdata/expectations.toml")
	if len(findings) > 0 {
		t.Fatal(findings)
	}
	want := &Expectations{File: "testdata/expectations.toml", List: []Expectation{
		{
			Pattern: "0.33/multiturn-s7/fidelity-index-1", Outcome: Fail, Reason: "the scheduler preempts", Issue: "12",
			Expires: time.Date(2027, 1, 31, 0, 0, 0, 0, time.UTC), Pos: "testdata/expectations.toml:1",
		},
		{Pattern: "0.33/**/replay-7", Outcome: Flaky, Reason: "a race", Issue: "https://example.org/13", Pos: "testdata/expectations.toml:9"},
	}}
	require.NoDiff(t, cmp.Diff(want, got), "-want +got")
}

// TestShippedExpectations: the repository's own file is in order, and expects nothing
// that the goldens do not need.
func TestShippedExpectations(t *testing.T) {
	e, findings := LoadExpectations("../conformance.toml")
	if len(findings) > 0 {
		t.Fatal(findings)
	}
	matrix, mf := repository(t)
	all, err := EveryCase(matrix, mf, Selection{})
	require.NoError(t, err)
	for _, problem := range NewJudge(e, all, time.Now()).Failures {
		t.Error(problem.Message)
	}
}

func TestUpdateExpectations(t *testing.T) {
	const head = "# known\n\n"
	entry := func(pattern, outcome string) string {
		return "# why\n[[expect]]\npattern = \"" + pattern + "\"\noutcome = \"" + outcome + "\"  # kept\nreason = \"a\"\nissue = \"1\"\n"
	}
	empty := func(pattern string) string {
		return "[[expect]]\npattern = \"" + pattern + "\"\noutcome = \"fail\"\nreason = \"\"\nissue = \"\"\n"
	}
	tests := []struct {
		name           string
		before         string
		outcomes       map[string][]Failure
		after          string
		added, removed string
		notes          string // parts, one each, joined by |
	}{
		{name: "nothing to do", before: head + entry(caseA, "fail"), outcomes: map[string][]Failure{caseA: {token(3)}, caseB: nil}, after: head + entry(caseA, "fail")},
		{
			name: "a case", before: head, outcomes: map[string][]Failure{caseA: {check.Failed(replay.CodePin, "pin"), token(3)}},
			after: head + empty(caseA), added: caseA,
		},
		{name: "in an empty file", outcomes: map[string][]Failure{caseA: {check.Failed(replay.CodePin, "pin")}}, after: empty(caseA), added: caseA},
		{
			name: "without a line end", before: "# known", outcomes: map[string][]Failure{caseA: {check.Failed(replay.CodePin, "pin")}},
			after: "# known\n\n" + empty(caseA), added: caseA,
		},
		{
			name: "few requests", before: head, outcomes: map[string][]Failure{caseA: {token(3), token(3), token(1), token(2)}},
			after: head + empty(caseA+"/replay-3") + "\n" + empty(caseA+"/replay-1") + "\n" + empty(caseA+"/replay-2"),
			added: caseA + "/replay-3 " + caseA + "/replay-1 " + caseA + "/replay-2",
		},
		{
			name: "many requests", before: head, outcomes: map[string][]Failure{caseA: {token(1), token(2), token(3), token(4)}},
			after: head + empty(caseA), added: caseA,
		},
		{
			name: "another request", before: head + entry(caseA+"/replay-1", "fail"), outcomes: map[string][]Failure{caseA: {token(1), token(2)}},
			after: head + entry(caseA+"/replay-1", "fail") + "\n" + empty(caseA+"/replay-2"), added: caseA + "/replay-2",
		},
		{
			name: "stale", before: head + entry(caseB, "fail") + "\n" + entry(caseA, "fail") + "\n" + entry("0.32/**", "flaky"),
			outcomes: map[string][]Failure{caseA: nil, caseB: {token(1)}},
			after:    head + entry(caseB, "fail") + "\n" + entry("0.32/**", "flaky"), removed: caseA,
		},
		{
			name: "stale request", before: head + entry(caseA+"/replay-1", "fail") + "\n" + entry(caseA+"/replay-2", "fail"),
			outcomes: map[string][]Failure{caseA: {token(1)}},
			after:    head + entry(caseA+"/replay-1", "fail"), removed: caseA + "/replay-2",
		},
		{
			name: "stale in part", before: head + entry("0.33/b/fidelity-index-*", "fail"), outcomes: map[string][]Failure{caseA: nil, caseB: {token(1)}},
			after: head + entry("0.33/b/fidelity-index-*", "fail"), notes: `is needed by 1 cases, but 1 pass: narrow it`,
		},
		{
			name: "stale as far as known", before: head + entry("0.33/b/fidelity-index-*", "fail"), outcomes: map[string][]Failure{caseA: nil},
			after: head + entry("0.33/b/fidelity-index-*", "fail"), notes: `is needed by no case that ran, but 1 did not run`,
		},
		{
			name: "not to be expected", before: head, outcomes: map[string][]Failure{"0.33/b/integrity": {check.Failed(replay.CodeDigest, "d")}, caseA: {token(1), check.Failed(check.CodeSilence, "s")}},
			after: head, notes: "0.33/b/integrity failed, and may not be expected to|could not be judged to its end (R006)",
		},
		{
			name: "expired", before: head + entry(caseA, "fail") + "expires = 2026-01-01\n", outcomes: map[string][]Failure{caseA: {check.Failed(replay.CodePin, "pin")}},
			after: head + entry(caseA, "fail") + "expires = 2026-01-01\n", notes: "is listed already: see why it is not applied",
		},
	}
	all, err := EveryCase(smallMatrix, smallManifest, Selection{})
	require.NoError(t, err)
	now := time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			e, findings := ParseExpectations("f.toml", []byte(test.before))
			if len(findings) > 0 {
				t.Fatal(findings)
			}
			got, err := UpdateExpectations("f.toml", []byte(test.before), reportOf(e, all, test.outcomes, now).Results, all, now)
			require.NoError(t, err)
			require.NoDiff(t, cmp.Diff(test.after, string(got.Data)), "-want +got")
			if added, removed := strings.Join(got.Added, " "), strings.Join(got.Removed, " "); added != test.added || removed != test.removed {
				t.Errorf("added %q, removed %q, want %q and %q", added, removed, test.added, test.removed)
			}
			parts := strings.Split(test.notes, "|")
			if test.notes == "" {
				parts = nil
			}
			if len(parts) != len(got.Notes) {
				t.Fatalf("notes %q, want %q", got.Notes, parts)
			}
			for i, part := range parts {
				require.Contains(t, got.Notes[i], part)
			}
			_, after := ParseExpectations("f.toml", got.Data)
			require.Equal(t, len(got.Added) > 0, tomlfile.HasErrors(after), "with %q added, the file has the findings %v", got.Added, after)
		})
	}
	if _, err := UpdateExpectations("f.toml", []byte("[[expect]]\n"), nil, all, now); err == nil || !strings.Contains(err.Error(), "f.toml:1: X105") {
		t.Errorf("a file with findings: %v", err)
	}
}
