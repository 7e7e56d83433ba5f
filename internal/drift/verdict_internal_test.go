package drift

import (
	"errors"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
)

// reportOf makes a report of cases by their verdicts, in a line each of which gates.
func reportOf(verdicts ...conformance.Verdict) *conformance.Report {
	var results []conformance.Result
	for _, v := range verdicts {
		r := conformance.Result{Verdict: v, Tokens: 10, Case: conformance.Case{
			Line: compat.Line{Name: "0.33"}, Suite: conformance.SuiteFrontend, Assertion: conformance.FrontendHandshake, Gating: true,
		}}
		if v == conformance.Pass {
			r.Asserted = 1
		}
		if v.Red() {
			r.Failures = []conformance.Failure{{Code: "H001", Message: "it says\nmuch"}}
		}
		results = append(results, r.WithInfra(v == conformance.Error))
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
		{name: "one fails", reports: []report{{pass}, {pass, fail}}, want: Found, code: 1, reason: "2 cases passed, 1 are red, first 0.33/frontend/handshake (H001)"},
		{name: "one cannot be judged", reports: []report{{pass}, {pass, broken}}, want: Unknown, code: 3, reason: "2 cases passed, 1 are red, first 0.33/frontend/handshake (H001)"},
		{name: "a failure weighs more", reports: []report{{broken}, {fail}, {broken}}, want: Found, code: 1, reason: "0 cases passed, 3 are red, first 0.33/frontend/handshake (H001)"},
		{name: "nothing asserted", reports: []report{{pass}, {skip}}, want: Unknown, code: 4, reason: "it asserted nothing on 0.33"},
		{name: "nothing asserted at first", reports: []report{{skip}, {pass}}, want: Unknown, code: 4, reason: "it asserted nothing on 0.33"},
		{name: "an error weighs more than nothing", reports: []report{{skip}, {broken}}, want: Unknown, code: 3, reason: "0 cases passed, 1 are red, first 0.33/frontend/handshake (H001)"},
		{name: "no cases", reports: []report{{}}, want: Unknown, code: 4, reason: "it asserted nothing"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var reports []*conformance.Report
			for _, verdicts := range test.reports {
				reports = append(reports, reportOf(verdicts...))
			}
			got := judge("x", reports...)
			if got.Verdict != test.want || got.ExitCode() != test.code || got.Reason != test.reason {
				t.Errorf("got %s, exit code %d, %q, want %s, %d, %q", got.Verdict, got.ExitCode(), got.Reason, test.want, test.code, test.reason)
			}
		})
	}
}

func TestUnjudged(t *testing.T) {
	got := Unjudged("x", errors.New(strings.Repeat("é", 1000)+"\n::error::"))
	if got.Verdict != Unknown || got.ExitCode() != conformance.ExitInfra || len(got.Reason) > mostReason+3 || strings.Contains(got.Reason, "\n") {
		t.Errorf("got %+v", got)
	}
}
