package report

import (
	"bytes"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/check"
)

// TestJSONIsNoCommand: what a subject says is in the document as it was said, and no
// command in the log of whoever prints it.
func TestJSONIsNoCommand(t *testing.T) {
	const said = "##[error]a ##vso[b]\x7f\u009b31m\u202e ü\u2028 \U000e0001"
	d := New(conformance.NewReport([]conformance.Result{{
		Verdict: conformance.Fail, Failures: []conformance.Failure{{Code: check.CodeStray, Actual: said, Message: "m"}},
	}}, 0), Meta{})
	var b bytes.Buffer
	if err := JSON(&b, d); err != nil {
		t.Fatal(err)
	}
	for _, live := range []string{"##[", "##vso[", "\x7f", "\u009b", "\u202e"} {
		if strings.Contains(b.String(), live) {
			t.Errorf("it has %q", live)
		}
	}
	if !strings.Contains(b.String(), `"actual": "#\u0023[error]a #\u0023vso[b]\u007f\u009b31m\u202e ü`) {
		t.Errorf("it has not what was said: %s", &b)
	}
	var again Document
	if err := strictly(b.Bytes(), &again); err != nil {
		t.Fatal(err)
	}
	if got := again.Cases[0].Failures[0].Actual; got != said {
		t.Errorf("%q was said, %q is read", said, got)
	}
}
