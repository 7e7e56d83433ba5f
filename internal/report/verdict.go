package report

import (
	"fmt"
	"io"
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

// deterministic reports whether the document holds no durations.
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

// countedWords are what verdicts are called behind a number.
var countedWords = map[conformance.Verdict]string{
	conformance.Pass: "passed", conformance.Fail: "failed", conformance.XPass: "passed unexpectedly",
	conformance.XFail: "failed as expected", conformance.Flaky: "flaky", conformance.Skip: "skipped",
}

func counted(n int, v conformance.Verdict) string {
	if v == conformance.Error {
		return safetext.Count(n, "error")
	}
	return fmt.Sprintf("%d %s", n, countedWords[v])
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

// paragraph is a part of a failure's message: a sentence, or lines that the subject wrote.
type paragraph struct {
	Text   string
	Output bool // its lines begin with "| "
}

// paragraphsOf takes a message apart: lines that a subject wrote begin with "| ".
func paragraphsOf(f conformance.Failure) []paragraph {
	var all []paragraph
	for line := range strings.SplitSeq(f.Message, "\n") {
		output := len(all) > 0 && strings.HasPrefix(line, "| ")
		line = safetext.Line(line)
		switch last := len(all) - 1; {
		case last < 0 || all[last].Output != output:
			all = append(all, paragraph{line, output})
		case output:
			all[last].Text += "\n" + line
		default:
			all[last].Text += " " + line
		}
	}
	if f.Code != "" {
		all[0].Text = string(f.Code) + " " + all[0].Text
	}
	return all
}

// writeFailure writes a failure, and what the subject wrote as an indented block.
func writeFailure(w io.Writer, f conformance.Failure, indent string) {
	for i, p := range paragraphsOf(f) {
		in := indent
		switch {
		case p.Output:
			in += "    "
		case i > 0:
			in += "  "
		}
		for line := range strings.SplitSeq(p.Text, "\n") {
			fmt.Fprintf(w, "%s%s\n", in, safetext.Line(line))
		}
	}
}
