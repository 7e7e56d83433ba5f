package drift

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/check/frontendsuite"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// reportOf makes a report of cases by their verdicts, in a line each of which gates.
func reportOf(verdicts ...conformance.Verdict) *conformance.Report {
	var results []conformance.Result
	for _, v := range verdicts {
		r := conformance.Result{Verdict: v, Tokens: 10, Case: conformance.Case{
			Line: compat.Line{Name: "0.33"}, Suite: conformance.SuiteFrontend, Assertion: frontendsuite.Handshake, Gating: true,
		}}
		if v == conformance.Pass {
			r.Asserted = 1
		}
		if v.Red() {
			r.Failures = []conformance.Failure{{Code: "H001", Message: "it says\nmuch"}}
		}
		r.Infra = v == conformance.Error
		results = append(results, r)
	}
	return conformance.NewReport(results, 0)
}

func TestJudge(t *testing.T) {
	const pass, fail, broken, skip = conformance.Pass, conformance.Fail, conformance.Error, conformance.Skip
	type report = []conformance.Verdict
	tests := []struct {
		name    string
		reports []report
		want    Verdict
		code    int
		reason  string
	}{
		{name: "all pass", reports: []report{{pass, pass, skip}, {pass}}, want: None, reason: "3 cases passed, 40 tokens compared"},
		{name: "one fails", reports: []report{{pass}, {pass, fail}}, want: Found, code: 1, reason: "2 cases passed, 1 red, first 0.33/frontend/handshake (H001)"},
		{name: "one cannot be judged", reports: []report{{pass}, {pass, broken}}, want: Unknown, code: 3, reason: "2 cases passed, 1 red, first 0.33/frontend/handshake (H001)"},
		{name: "a failure weighs more", reports: []report{{broken}, {fail}, {broken}}, want: Found, code: 1, reason: "0 cases passed, 3 red, first 0.33/frontend/handshake (H001)"},
		{name: "nothing asserted", reports: []report{{pass}, {skip}}, want: Unknown, code: 4, reason: "it asserted nothing on 0.33"},
		{name: "nothing asserted at first", reports: []report{{skip}, {pass}}, want: Unknown, code: 4, reason: "it asserted nothing on 0.33"},
		{name: "an error weighs more than nothing", reports: []report{{skip}, {broken}}, want: Unknown, code: 3, reason: "0 cases passed, 1 red, first 0.33/frontend/handshake (H001)"},
		{name: "no cases", reports: []report{{}}, want: Unknown, code: 4, reason: "it asserted nothing"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var reports []*conformance.Report
			for _, verdicts := range test.reports {
				reports = append(reports, reportOf(verdicts...))
			}
			got := judge("x", reports...)
			if code := Judge([]Layer{got}).ExitCode(); got.Verdict != test.want || code != test.code || got.Reason != test.reason {
				t.Errorf("got %s, exit code %d, %q, want %s, %d, %q", got.Verdict, code, got.Reason, test.want, test.code, test.reason)
			}
		})
	}
}

func TestJudgeLayers(t *testing.T) {
	layer := func(v Verdict, vacuous bool) Layer { return Layer{Verdict: v, Vacuous: vacuous} }
	none, found, unknown, vacuous, skipped := layer(None, false), layer(Found, false), layer(Unknown, false), layer(Unknown, true), layer(Skipped, false)
	tests := []struct {
		name   string
		layers []Layer
		want   Verdict
		code   int
	}{
		{name: "no layers", want: Unknown, code: 4},
		{name: "none was looked at", layers: []Layer{skipped, skipped}, want: Unknown, code: 4},
		{name: "what was not looked at weighs nothing", layers: []Layer{skipped, none, skipped}, want: None},
		{name: "found is the worst", layers: []Layer{unknown, found, none, vacuous}, want: Found, code: 1},
		{name: "what could not be read is worse than none", layers: []Layer{unknown, none}, want: Unknown, code: 3},
		{name: "nothing asserted is worse than none", layers: []Layer{none, vacuous}, want: Unknown, code: 4},
		{name: "what could not be read is worse than nothing asserted", layers: []Layer{vacuous, unknown}, want: Unknown, code: 3},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			for range 2 { // the order means nothing
				got := Judge(test.layers)
				if got.Verdict != test.want || got.ExitCode() != test.code {
					t.Errorf("got %s, exit code %d, want %s, %d", got.Verdict, got.ExitCode(), test.want, test.code)
				}
				slices.Reverse(test.layers)
			}
		})
	}
}

func TestJudgeCases(t *testing.T) {
	one := func(name string, v Verdict) LayerCase { return LayerCase{Name: name, Verdict: v} }
	tests := []struct {
		name   string
		before Layer
		cases  []LayerCase
		want   Layer
	}{
		{"all pass", Layer{Verdict: None, Reason: "it is so"}, []LayerCase{one("a", None), one("b", Skipped)}, Layer{Verdict: None, Reason: "it is so; 1 case passed"}},
		{"one fails", Layer{Verdict: None}, []LayerCase{one("a", None), one("b", Unknown), one("c", Found)}, Layer{Verdict: Found, Reason: "1 case passed, 2 red, first b"}},
		{"a failure stays", Layer{Verdict: Found, Reason: "x"}, []LayerCase{one("a", Unknown)}, Layer{Verdict: Found, Reason: "x; 0 cases passed, 1 red, first a"}},
		{"what could not be judged counts", Layer{Verdict: Unknown, Vacuous: true}, []LayerCase{one("a", Unknown)}, Layer{Verdict: Unknown, Reason: "0 cases passed, 1 red, first a"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.want.Cases = test.cases
			test.before.judgeCases(test.cases)
			require.NoDiff(t, cmp.Diff(test.want, test.before), "(-want +got)")
		})
	}
}
