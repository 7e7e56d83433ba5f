package report

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// TestJSONIsNoCommand: what a subject says is in the document as it was said, and no
// command in the log of whoever prints it.
func TestJSONIsNoCommand(t *testing.T) {
	const said = "##[error]a ##vso[b]\x7f\u009b31m\u202e ü\u2028 \U000e0001"
	d := New(conformance.NewReport([]conformance.Result{{
		Verdict: conformance.Fail, Failures: []conformance.Failure{{Code: check.CodeStray, Actual: said, Message: "m"}},
	}}, 0), Meta{})
	var b bytes.Buffer
	require.NoError(t, JSON(&b, d))
	for _, live := range []string{"##[", "##vso[", "\x7f", "\u009b", "\u202e"} {
		require.True(t, !strings.Contains(b.String(), live), "it has %q", live)
	}
	require.Contains(t, b.String(), `"actual": "#\u0023[error]a #\u0023vso[b]\u007f\u009b31m\u202e ü`)
	var again Document
	require.NoError(t, strictly(b.Bytes(), &again))
	if got := again.Cases[0].Failures[0].Actual; got != said {
		t.Errorf("%q was said, %q is read", said, got)
	}
}

// TestOutputIsABlock: what a subject wrote stands below the sentence, line by line, and controls nothing.
func TestOutputIsABlock(t *testing.T) {
	f := check.Failed("R005", "engine: it ended; the last of its output:\n| \x1b[31mloading\x1b[0m\x1b(B\n| ::error::boo\n1 open: request 4")
	var b strings.Builder
	writeFailure(&b, f, "  ")
	want := "  R005 engine: it ended; the last of its output:\n      | loading\n      | ::error::boo\n    1 open: request 4\n"
	require.Equal(t, b.String(), want, "String")
}

// TestCauses: one code and place is one cause, whatever case, request or message; the worst comes first, and what cannot be
// decoded before what it contains.
func TestCauses(t *testing.T) {
	failing := func(name string, failures ...conformance.Failure) Case {
		return Case{Name: name, Line: "0.33", Gating: true, Verdict: conformance.Fail, Failures: failures}
	}
	at := func(code conformance.Code, c conformance.Consequence, path, message string) conformance.Failure {
		return conformance.Failure{Code: code, Consequence: c, Path: path, Message: message, Request: -1, Position: -1, Frame: 2}
	}
	stats := "EngineCoreOutputs.scheduler_stats.kv_cache_usage"
	d := &Document{Cases: []Case{
		failing("a", at("F001", check.WrongAnswer, "", "request 1: token 3 differs: expected [1 2], got [1]"), at("F001", check.WrongAnswer, "", "request 2: token 1 differs: expected [9], got [1 4]")),
		failing("b", at("E013", check.MetricWrong, "EngineCoreOutputs.outputs[0].prefill_stats", "message 2"), at("E019", check.FrontendExits, stats, "message 2"), at("F001", check.WrongAnswer, "", "request 7: token 3 differs: expected [], got [1]")),
		failing("c", at("E013", check.MetricWrong, "EngineCoreOutputs.outputs[4].prefill_stats", "message 9"), at("F009", check.FrontendExits, stats, "message 1")),
	}}
	d.Causes = d.causes()
	var got []string
	for _, c := range d.Causes {
		got = append(got, fmt.Sprintf("%s %s %d %v", c.Code, c.Path, c.Failures, c.Cases))
	}
	want := []string{"F009 " + stats + " 1 [c]", "E019 " + stats + " 1 [b]", "F001  3 [a b]", "E013 EngineCoreOutputs.outputs[].prefill_stats 2 [b c]"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got, want := Headline(d), "frontend exits: F009 message 1 (and 1 more with this consequence)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := d.Causes[3].Where(), "in 2 cases, 2 times; first in b, message 2"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestPlaceOfEmbedded: what is not written down in the repository is shown at the file for it, else at compat.toml.
func TestPlaceOfEmbedded(t *testing.T) {
	c := &Case{Entry: Embedded + "conformance/manifest.toml:14"}
	for want, runs := range map[string][]Run{"compat.toml": nil, "ci.yml": {{}, {AnnotateFile: "ci.yml"}}} {
		if file, line := (&Document{Runs: runs}).place(c); file != want || line != 1 {
			t.Errorf("%s:%d, want %s:1", file, line, want)
		}
	}
}
