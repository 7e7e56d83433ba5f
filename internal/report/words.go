package report

import (
	"fmt"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/safetext"

	"github.com/vllm-vcr/conformance/conformance"
)

// Verdict is the outcome of a document in a line.
func Verdict(d *Document) string {
	line := fmt.Sprintf("%s: %s: %s; %d tokens compared", strings.ToUpper(string(d.Verdict)), d.Reason, verdictCounts(d.Counts), d.Tokens)
	if d.deterministic() {
		return line
	}
	return line + " in " + took(d.DurationMs)
}

// deterministic tells that the document holds no durations.
func (d *Document) deterministic() bool {
	for _, r := range d.Runs {
		if !r.Started.IsZero() || r.DurationMs > 0 {
			return false
		}
	}
	return d.DurationMs == 0
}

func took(ms float64) string {
	return time.Duration(ms * float64(time.Millisecond)).Round(time.Millisecond).String()
}

// verdictCounts says how many cases had each verdict: "80 passed, 1 error". That none
// passed is said too.
func verdictCounts(c Counts) string {
	var parts []string
	for _, v := range conformance.Verdicts() {
		if n := c[v]; n > 0 || v == conformance.Pass {
			parts = append(parts, counted(n, v))
		}
	}
	return strings.Join(parts, ", ")
}

func counted(n int, v conformance.Verdict) string {
	word := string(v)
	switch {
	case v == conformance.Pass:
		word = "passed"
	case v == conformance.Fail:
		word = "failed"
	case v == conformance.Error && n != 1:
		word = "errors"
	case v == conformance.XPass:
		word = "passed unexpectedly"
	case v == conformance.XFail:
		word = "failed as expected"
	case v == conformance.Skip:
		word = "skipped"
	}
	return fmt.Sprintf("%d %s", n, word)
}

// says is a failure in a line, its code first.
func says(f conformance.Failure) string {
	if f.Code == "" {
		return safetext.Line(f.Message)
	}
	return safetext.Line(string(f.Code) + " " + f.Message)
}

// says is why an expectation holds, and where it is followed up.
func (e *Expectation) says() string {
	text := e.Reason
	var more []string
	for _, part := range []string{e.Issue, e.Pos} {
		if part != "" {
			more = append(more, part)
		}
	}
	if e.Expires != "" {
		more = append(more, "until "+e.Expires)
	}
	if len(more) > 0 {
		text += " (" + strings.Join(more, ", ") + ")"
	}
	return safetext.Line(text)
}
