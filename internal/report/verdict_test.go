package report

import (
	"bytes"
	"strings"
	"testing"

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
		if strings.Contains(b.String(), live) {
			t.Errorf("it has %q", live)
		}
	}
	if !strings.Contains(b.String(), `"actual": "#\u0023[error]a #\u0023vso[b]\u007f\u009b31m\u202e ü`) {
		t.Errorf("it has not what was said: %s", &b)
	}
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
	if b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}

// TestTogether: cases of a golden that fail alike are shown once, whatever port they had.
func TestTogether(t *testing.T) {
	failing := func(golden, check, message string) *Case {
		return &Case{
			Name: "0.33/" + golden + "/" + check, Line: "0.33", Golden: golden, Assertion: conformance.Fidelity, Verdict: conformance.Fail,
			Failures: []conformance.Failure{{Code: "F001", Message: message}},
		}
	}
	a, b := failing("a", "index-1", "at tcp://127.0.0.1:1001"), failing("a", "index-16", "at tcp://127.0.0.1:1002")
	c, d := failing("a", "prefix-1", "at another"), failing("b", "index-1", "at tcp://127.0.0.1:1001")
	first, also := together([]*Case{a, b, c, d})
	// A case with fewer failures belongs to the one with more.
	more := failing("c", "index-1", "one")
	more.Failures = append(more.Failures, conformance.Failure{Code: "F001", Message: "two"})
	if first, also := together([]*Case{more, failing("c", "prefix-1", "two")}); len(first) != 1 || len(also[more]) != 1 {
		t.Errorf("%d cases, also %v", len(first), also)
	}
	if len(first) != 3 || first[0] != a || first[1] != c || first[2] != d || len(also) != 1 || len(also[a]) != 1 || also[a][0] != b.Name {
		t.Errorf("%d cases, also %v", len(first), also)
	}
}

// TestPlaceOfEmbedded: SARIF names a file of the binary where it is published, and not as if the repository had it.
func TestPlaceOfEmbedded(t *testing.T) {
	c := &Case{Entry: Embedded + "conformance/manifest.toml:14"}
	at := c.sarifPlace().Physical
	if at.Artifact.URI != upstream+"conformance/manifest.toml" || at.Artifact.BaseID != "" || at.Region.StartLine != 14 {
		t.Errorf("%+v", at)
	}
}
