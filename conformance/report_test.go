package conformance

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/player"
)

// resultOf is a result of a golden's case.
func resultOf(line, golden string, gating bool, v Verdict, asserted int) Result {
	return Result{
		Case:    Case{Line: compat.Line{Name: line}, Golden: manifest.Golden{ID: golden}, Assertion: Fidelity, Gating: gating},
		Verdict: v, Asserted: asserted, Tokens: 10 * asserted,
	}
}

func besides(r Result) Result { r.Infra = true; return r }

func ended(r Result, code Code) Result {
	r.Failures = []Failure{check.Failed(code, "so it was")}
	return r
}

func needing(r Result, what string) Result {
	r.Needs, r.Case.Variant = what, Variant{Match: player.MatchIndex, Concurrency: 1}
	return r
}

func TestJudge(t *testing.T) {
	const gates, informs = true, false
	tests := []struct {
		name    string
		results []Result
		exit    int
		verdict Verdict
		reason  string
	}{
		{"nothing selected", nil, ExitVacuous, Error, "asserted nothing"},
		{"all pass", []Result{resultOf("0.33", "a", gates, Pass, 1)}, ExitOK, Pass, "every gate holds"},
		{
			"one fails",
			[]Result{resultOf("0.33", "a", gates, Pass, 1), resultOf("0.33", "a", gates, Fail, 1), resultOf("0.32", "a", gates, Pass, 1)},
			ExitFail, Fail, "does not conform on 0.33",
		},
		{
			"two lines fail, in the order of the report",
			[]Result{resultOf("0.33", "a", gates, Error, 0), resultOf("0.32", "a", gates, Fail, 1)},
			ExitFail, Fail, "does not conform on 0.32, and could not be judged on 0.33",
		},
		{
			"a failure that does not gate",
			[]Result{resultOf("0.33", "a", gates, Pass, 1), resultOf("nightly", "a", informs, Fail, 1), resultOf("0.31", "a", informs, Error, 0)},
			ExitOK, Pass, "every gate holds (red but not gating: nightly, 0.31)",
		},
		{
			"nothing gates",
			[]Result{resultOf("0.33", "a", informs, Pass, 1)},
			ExitOK, Pass, "no line gates",
		},
		{
			"nothing gates and nothing holds",
			[]Result{resultOf("0.33", "a", informs, Fail, 1)},
			ExitOK, Pass, "no line gates (red but not gating: 0.33)",
		},
		{
			"an error around the subject",
			[]Result{resultOf("0.33", "a", gates, Pass, 1), besides(resultOf("0.33", "b", gates, Error, 0))},
			ExitInfra, Error, "could not be judged on 0.33",
		},
		{
			"an error around the subject and one of it",
			[]Result{besides(resultOf("0.33", "a", gates, Error, 0)), resultOf("0.33", "b", gates, Error, 0)},
			ExitFail, Fail, "could not be judged on 0.33",
		},
		{
			"engines that end and one that hangs",
			[]Result{
				ended(resultOf("0.33", "a", gates, Error, 0), check.CodeEngineEnded), ended(resultOf("0.33", "b", gates, Error, 0), check.CodeEngineEnded),
				besides(ended(resultOf("0.32", "a", gates, Error, 0), check.CodeNoHandshake)), ended(resultOf("0.31", "a", informs, Error, 0), check.CodeSilence),
			},
			ExitFail, Fail, "could not be judged on 0.33, 0.32: the engine ended (R005, 2 cases), no handshake in time (R004, 1 case) (red but not gating: 0.31)",
		},
		{
			"one that hangs",
			[]Result{besides(ended(resultOf("0.33", "a", gates, Error, 0), check.CodeSilence))},
			ExitInfra, Error, "could not be judged on 0.33: no output in time (R006, 1 case)",
		},
		{
			"a check that could not be made",
			[]Result{resultOf("0.33", "a", gates, Pass, 1), needing(resultOf("0.33", "b", gates, Skip, 0), "set A=1")},
			ExitOK, Pass, "every gate holds (warning: fidelity-index-1 of 0.33 was not checked: set A=1)",
		},
		{
			"a failure weighs more than an error around the subject",
			[]Result{besides(resultOf("0.33", "a", gates, Error, 0)), resultOf("0.32", "b", gates, Fail, 1)},
			ExitFail, Fail, "does not conform on 0.32",
		},
		{
			"a gating line that asserted nothing",
			[]Result{resultOf("0.33", "a", gates, Pass, 1), resultOf("0.32", "", gates, Skip, 0)},
			ExitVacuous, Error, "asserted nothing on 0.32",
		},
		{
			"an informing line that asserted nothing",
			[]Result{resultOf("0.33", "a", gates, Pass, 1), resultOf("0.32", "", informs, Skip, 0)},
			ExitOK, Pass, "every gate holds",
		},
		{
			"an error around the subject weighs more than nothing",
			[]Result{resultOf("0.33", "", gates, Skip, 0), besides(resultOf("0.32", "a", gates, Error, 0))},
			ExitInfra, Error, "could not be judged on 0.32",
		},
		{
			"informing lines alone that asserted nothing",
			[]Result{resultOf("0.32", "", informs, Skip, 0)},
			ExitVacuous, Error, "asserted nothing",
		},
		{
			"a skip beside a pass",
			[]Result{resultOf("0.33", "a", gates, Skip, 0), resultOf("0.33", "a", gates, Pass, 1)},
			ExitOK, Pass, "every gate holds",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := NewReport(test.results, time.Second)
			if r.ExitCode != test.exit || r.Verdict != test.verdict || r.Reason != test.reason {
				t.Errorf("exit code %d, %s: %q, want %d, %s: %q", r.ExitCode, r.Verdict, r.Reason, test.exit, test.verdict, test.reason)
			}
		})
	}
}

func TestLineSummaries(t *testing.T) {
	r := NewReport([]Result{
		resultOf("nightly", "", false, Skip, 0),
		resultOf("0.33", "a", true, Pass, 3), resultOf("0.33", "a", true, Fail, 2),
		resultOf("0.33", "b", true, Pass, 1), resultOf("0.33", "c", true, Skip, 0),
	}, time.Second)
	type summary struct {
		Line                      string
		Gating                    bool
		Goldens, Asserted, Tokens int
		Verdict                   Verdict
		Counts                    Counts
	}
	want := []summary{
		{Line: "nightly", Verdict: Skip, Counts: Counts{Skip: 1}},
		{Line: "0.33", Gating: true, Goldens: 3, Asserted: 6, Tokens: 60, Verdict: Fail, Counts: Counts{Pass: 2, Fail: 1, Skip: 1}},
	}
	var got []summary
	for _, l := range r.Lines {
		got = append(got, summary{l.Line, l.Gating, l.Goldens, l.Asserted, l.Tokens, l.Verdict, l.Counts})
	}
	require.NoDiff(t, cmp.Diff(want, got), "-want +got")
	require.True(t, r.Tokens == 60 && r.Duration == time.Second, "%d tokens in %v, want 60 in 1s", r.Tokens, r.Duration)
}
