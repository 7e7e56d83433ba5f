package conformance

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/replay"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/trace"
)

// Two cases of the small manifest.
const (
	caseA = "0.33/b/fidelity-index-1"
	caseB = "0.33/b/fidelity-index-16"
)

// token is the failure of a request.
func token(request int) Failure {
	return check.Failed(replay.CodeToken, "request %d differs", request).Of(request)
}

// reportOf is the report of cases with these failures, judged by expectations.
func reportOf(e *Expectations, all []Case, outcomes map[string][]Failure, now time.Time) *Report {
	j := NewJudge(e, all, now)
	var results []Result
	for _, c := range all {
		failures, ran := outcomes[c.Name()]
		if !ran {
			continue
		}
		result := Result{Case: c, Verdict: Pass, Failures: failures, Asserted: 1}
		switch {
		case len(failures) > 0 && failures[0].Code[0] == 'R':
			result.Verdict = Error
		case len(failures) > 0:
			result.Verdict = Fail
		}
		results = append(results, j.Apply(result))
	}
	r := NewReport(results, 0)
	r.Blame(j.Failures...)
	return r
}

func listed(outcome Verdict, patterns ...string) []Expectation {
	var list []Expectation
	for i, p := range patterns {
		list = append(list, Expectation{Pattern: p, Outcome: outcome, Reason: "a race", Issue: "#1", Pos: fmt.Sprintf("e.toml:%d", i+1)})
	}
	return list
}

// coded expects these codes of a case, and no others.
func coded(codes ...Code) []Expectation {
	list := listed(Fail, caseA)
	list[0].Codes = codes
	return list
}

func TestJudgeByExpectations(t *testing.T) {
	broken := check.Failed(check.CodeSilence, "no output for 10s")
	tests := []struct {
		name     string
		expected []Expectation
		caseName string // default caseA
		failures []Failure
		want     Verdict
		by       string // pattern of the expectation that decided
		exit     int
		stale    string // requests of the X001 failures
	}{
		{name: "not listed, fails", failures: []Failure{token(3)}, want: Fail, exit: ExitFail},
		{name: "not listed, passes", want: Pass},
		{name: "fails as expected", expected: listed(Fail, caseA), failures: []Failure{token(3)}, want: XFail, by: caseA},
		{name: "a wider pattern", expected: listed(Fail, "0.33/**"), failures: []Failure{token(3), token(4)}, want: XFail, by: "0.33/**"},
		{name: "another case is listed", expected: listed(Fail, caseB), failures: []Failure{token(3)}, want: Fail, exit: ExitFail},
		{name: "passes, but was to fail", expected: listed(Fail, caseA), want: XPass, by: caseA, exit: ExitFail, stale: "[-1]"},
		{name: "flaky, fails", expected: listed(Flaky, caseA), failures: []Failure{token(3)}, want: Flaky, by: caseA},
		{name: "flaky, passes", expected: listed(Flaky, caseA), want: Pass},
		{name: "could not be judged", expected: listed(Fail, caseA), failures: []Failure{broken}, want: Error, exit: ExitFail},
		{name: "failed, and broke off", expected: listed(Fail, caseA), failures: []Failure{token(3), broken}, want: Fail, exit: ExitFail},
		{name: "flaky, and broke off", expected: listed(Flaky, caseA), failures: []Failure{token(3), broken}, want: Fail, exit: ExitFail},
		{name: "could not be judged, by a code that is expected", expected: coded(check.CodeSilence), failures: []Failure{broken}, want: XFail, by: caseA},
		{name: "could not be judged, by another code than expected", expected: coded(check.CodeEngineEnded), failures: []Failure{broken}, want: Error, exit: ExitFail},
		{name: "failed and broke off, both expected", expected: coded(replay.CodeToken, check.CodeSilence), failures: []Failure{token(3), broken}, want: XFail, by: caseA},
		{name: "failed and broke off, one expected", expected: coded(check.CodeSilence), failures: []Failure{token(3), broken}, want: Fail, exit: ExitFail},
		{
			name: "broke off as expected, beside a request that is expected to fail", failures: []Failure{broken}, want: XFail, by: caseA,
			expected: slices.Concat(coded(check.CodeSilence), listed(Fail, caseA+"/replay-3")),
		},
		{name: "another code than expected", expected: coded(replay.CodeFinishReason), failures: []Failure{token(3)}, want: Fail, exit: ExitFail},
		{name: "passes, but was to hang", expected: coded(check.CodeSilence), want: XPass, by: caseA, exit: ExitFail, stale: "[-1]"},
		{name: "a request's failure in another assertion", expected: listed(Fail, "**/replay-3"), caseName: "0.33/b/schema", failures: []Failure{token(3)}, want: Fail, exit: ExitFail},
		{name: "after an earlier case ended the session", expected: listed(Fail, caseA), failures: []Failure{check.Failed(check.CodeEngineSessionLost, "gone")}, want: Fail, exit: ExitFail},
		{name: "wrong bytes under a wider pattern", expected: listed(Fail, "0.33/**"), caseName: "0.33/b/integrity", failures: []Failure{check.Failed(replay.CodeDigest, "d")}, want: Fail, exit: ExitFail},
		{name: "right bytes under a wider pattern", expected: listed(Fail, "0.33/**"), caseName: "0.33/b/integrity", want: Pass},
		{name: "other line under a wider pattern", expected: listed(Flaky, "0.33/**"), caseName: "0.33/b/line", failures: []Failure{check.Failed(replay.CodeOtherLine, "l")}, want: Fail, exit: ExitFail},
		{name: "provenance under a wider pattern", expected: listed(Flaky, "0.33/**"), caseName: "0.33/b/provenance", failures: []Failure{check.Failed(replay.CodeNoConfigHash, "p")}, want: Fail, exit: ExitFail},

		{name: "a request fails as expected", expected: listed(Fail, caseA+"/replay-3"), failures: []Failure{token(3), token(3)}, want: XFail, by: caseA + "/replay-3"},
		{name: "two requests, both listed", expected: listed(Fail, caseA+"/replay-3", caseA+"/replay-4"), failures: []Failure{token(4), token(3)}, want: XFail, by: caseA + "/replay-4"},
		{name: "another request fails too", expected: listed(Fail, caseA+"/replay-3"), failures: []Failure{token(3), token(4)}, want: Fail, exit: ExitFail},
		{name: "another request fails instead", expected: listed(Fail, caseA+"/replay-3"), failures: []Failure{token(4)}, want: Fail, exit: ExitFail},
		{name: "something of no request fails too", expected: listed(Fail, caseA+"/replay-3"), failures: []Failure{token(3), check.Failed(replay.CodePin, "pin")}, want: Fail, exit: ExitFail},
		{name: "a listed request passes", expected: listed(Fail, caseA+"/replay-3"), want: XPass, by: caseA + "/replay-3", exit: ExitFail, stale: "[3]"},
		{name: "one of two listed requests passes", expected: listed(Fail, caseA+"/replay-3", caseA+"/replay-4"), failures: []Failure{token(3)}, want: XPass, by: caseA + "/replay-4", exit: ExitFail, stale: "[4]"},
		{name: "two listed requests pass", expected: listed(Fail, caseA+"/replay-3", caseA+"/replay-4"), want: XPass, by: caseA + "/replay-3", exit: ExitFail, stale: "[3 4]"},
		{name: "a flaky request passes", expected: listed(Flaky, caseA+"/replay-3"), want: Pass},
		{name: "a flaky request fails", expected: listed(Flaky, "**/replay-3"), failures: []Failure{token(3)}, want: Flaky, by: "**/replay-3"},
		{
			name: "a flaky request beside one that fails", expected: slices.Concat(listed(Fail, caseA+"/replay-3"), listed(Flaky, caseA+"/replay-4")),
			failures: []Failure{token(3), token(4)}, want: Flaky, by: caseA + "/replay-4",
		},
		{
			name: "a request that fails within a flaky case passes", expected: slices.Concat(listed(Fail, caseA+"/replay-3"), listed(Flaky, caseA)),
			want: Pass,
		},
		{name: "flaky wins, fails", expected: slices.Concat(listed(Fail, "0.33/**"), listed(Flaky, caseA)), failures: []Failure{token(3)}, want: Flaky, by: caseA},
		{name: "flaky wins, passes", expected: slices.Concat(listed(Fail, "0.33/**"), listed(Flaky, caseA)), want: Pass},
	}
	all, err := EveryCase(smallMatrix, smallManifest, Selection{})
	require.NoError(t, err)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			name := test.caseName
			if name == "" {
				name = caseA
			}
			r := reportOf(&Expectations{List: test.expected}, all, map[string][]Failure{name: test.failures}, time.Now())
			if len(r.Results) != 1 || len(r.Problems) != 0 {
				t.Fatalf("%d results, problems %v", len(r.Results), r.Problems)
			}
			got, by := r.Results[0], ""
			if got.Expected != nil {
				by = got.Expected.Pattern
			}
			var stale []int
			for _, f := range got.Failures {
				if f.Code == CodeStale {
					stale = append(stale, f.Request)
				}
			}
			if stale := strings.TrimPrefix(fmt.Sprint(stale), "[]"); got.Verdict != test.want || by != test.by || r.ExitCode != test.exit || stale != test.stale {
				t.Errorf("%s by %q, exit code %d, stale %s, want %s by %q, %d, %s", got.Verdict, by, r.ExitCode, stale, test.want, test.by, test.exit, test.stale)
			}
		})
	}
}

func TestStaleSaysWhere(t *testing.T) {
	all, _ := EveryCase(smallMatrix, smallManifest, Selection{})
	r := reportOf(&Expectations{List: listed(Fail, caseA)}, all, map[string][]Failure{caseA: nil}, time.Now())
	const want = `the case passes, but e.toml:1 expects it to fail: remove the expectation of "0.33/b/fidelity-index-1", or narrow its pattern (a race; #1)`
	require.Equal(t, saidBy(r.Results[0]), want, "said")
	if want := "passes what is expected to fail on 0.33"; r.Reason != want {
		t.Errorf("reason %q, want %q", r.Reason, want)
	}
}

func TestExpectationProblems(t *testing.T) {
	const day = 24 * time.Hour
	expires := time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)
	mf := *smallManifest
	mf.Goldens = slices.Clone(mf.Goldens)
	mf.Goldens[1].Records = 180
	all, err := EveryCase(smallMatrix, &mf, Selection{})
	require.NoError(t, err)
	tests := []struct {
		name    string
		pattern string
		expires time.Time
		now     time.Time
		want    string
	}{
		{name: "in force", pattern: caseA},
		{name: "of a frontend that is not at hand", pattern: "0.33/b/fidelity-frontend-index-16"},
		{name: "a typo", pattern: "0.33/b/fidelity-indx-1", want: `X002 e.toml:1: pattern "0.33/b/fidelity-indx-1" matches no case: did you mean "0.33/b/fidelity-index-1"?`},
		{name: "an old line", pattern: "0.24/**", want: `X002 e.toml:1: pattern "0.24/**" matches no case`},
		{name: "a line without goldens", pattern: "nightly", want: `X002 e.toml:1: pattern "nightly" matches no case`},
		{name: "another suite of it", pattern: "nightly/**"},
		{name: "a live case", pattern: "0.33/live/abort"},
		{name: "a frontend case", pattern: "0.33/frontend/*"},
		{name: "integrity", pattern: "**/integrity", want: `X004 e.toml:1: pattern "**/integrity" matches only cases that may not be expected to fail, such as 0.33/b/integrity`},
		{name: "line", pattern: "0.33/b/line", want: "X004"},
		{name: "provenance", pattern: "0.33/b/provenance", want: "X004"},
		{name: "the last request", pattern: caseA + "/replay-179"},
		{name: "one request more", pattern: caseA + "/replay-180", want: `X002 e.toml:1: pattern "` + caseA + `/replay-180" matches no request: ` + caseA + ` has 180`},
		{name: "a request of somewhere", pattern: "**/replay-180"},
		{name: "a request of a case without", pattern: "0.33/b/schema/replay-0", want: `X002 e.toml:1: pattern "0.33/b/schema/replay-0" matches no request: 0.33/b/schema has 0`},
		{name: "malformed", pattern: "a//b", want: `X106 e.toml:1: pattern "a//b": component 2 is empty`},
		{name: "before it expires", pattern: caseA, expires: expires, now: expires.Add(-time.Second)},
		{name: "on the day", pattern: caseA, expires: expires, now: expires, want: `X003 e.toml:1: the expectation of "` + caseA + `" expired on 2026-06-01`},
		{name: "after", pattern: caseA, expires: expires, now: expires.Add(day), want: "X003"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			list := listed(Fail, test.pattern)
			list[0].Expires = test.expires
			// A narrow run of another case: what it does not select is no problem.
			r := reportOf(&Expectations{List: list}, all, map[string][]Failure{"0.32/a/schema": nil}, test.now)
			got := ""
			if len(r.Problems) > 0 {
				got = string(r.Problems[0].Code) + " " + r.Problems[0].Message
			}
			require.True(t, test.want != "" || (got == "" && r.ExitCode == ExitOK), "exit code %d, problem %q, want none", r.ExitCode, got)
			if test.want != "" && (!strings.HasPrefix(got, test.want) || r.ExitCode != ExitFail || r.Verdict != Fail || r.Reason != "the expectations do not hold (problems of the run: 1)") {
				t.Errorf("exit code %d, %s: %q, problem %q, want %q", r.ExitCode, r.Verdict, r.Reason, got, test.want)
			}
		})
	}
}

// TestExpiredIsNotApplied: what has expired counts for nothing.
func TestExpiredIsNotApplied(t *testing.T) {
	all, _ := EveryCase(smallMatrix, smallManifest, Selection{})
	list := listed(Fail, caseA)
	list[0].Expires = time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)
	r := reportOf(&Expectations{List: list}, all, map[string][]Failure{caseA: {token(1)}}, list[0].Expires)
	if r.Results[0].Verdict != Fail || len(r.Problems) != 1 || r.Reason != "does not conform on 0.33 (problems of the run: 1)" {
		t.Errorf("%s, problems %v: %q", r.Results[0].Verdict, r.Problems, r.Reason)
	}
}

// TestRunByExpectations: a runner applies expectations to a golden that is wrong, and
// shows the results as they count.
func TestRunByExpectations(t *testing.T) {
	g := usualGolden(t)
	g.rewrite(t, func(tr *trace.Trace) { firstStream(tr).OutputTokenIDs[3]++ })
	cases := g.plan(t, Selection{})
	name := func(check string) string { return "0.33/multiturn-s7/" + check }
	tests := []struct {
		name     string
		expected []Expectation
		want     map[string]Verdict
		exit     int
	}{
		{"as a whole", listed(Fail, name("fidelity-*")), map[string]Verdict{
			"fidelity-index-1": XFail, "fidelity-index-16": XFail, "fidelity-prefix-1": XFail, "fidelity-prefix-16": XFail,
		}, ExitOK},
		{"too much", listed(Fail, "0.33/**"), map[string]Verdict{
			"schema": XPass, "fidelity-index-1": XFail, "fidelity-index-16": XFail, "fidelity-prefix-1": XFail, "fidelity-prefix-16": XFail,
		}, ExitFail},
		{"in part", listed(Fail, name("fidelity-prefix-*")), map[string]Verdict{
			"fidelity-index-1": Fail, "fidelity-index-16": Fail, "fidelity-prefix-1": XFail, "fidelity-prefix-16": XFail,
		}, ExitFail},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			shown := map[string]Verdict{}
			runner := Runner{Store: g, Expectations: &Expectations{List: test.expected}, Progress: func(r Result) {
				if r.Verdict != Pass {
					shown[r.Case.Check()] = r.Verdict
				}
			}}
			r := runner.Run(context.Background(), cases)
			if diff := cmp.Diff(test.want, shown); diff != "" || r.ExitCode != test.exit {
				t.Errorf("exit code %d (%s), want %d; -want +got:\n%s", r.ExitCode, r.Reason, test.exit, diff)
			}
		})
	}
}
