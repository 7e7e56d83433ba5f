package report

import (
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode"

	"github.com/vllm-vcr/conformance/conformance"
)

// Verdict is the outcome of a document in a line.
func Verdict(d *Document) string {
	line := fmt.Sprintf("%s: %s: %s; %d tokens compared", strings.ToUpper(string(d.Verdict)), d.Reason, d.Counts.words(), d.Tokens)
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

// words says how many cases had each verdict: "80 passed, 1 error". That none
// passed is said too.
func (c Counts) words() string {
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

// plural is "1 case", "2 cases".
func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}

// ciCommand begins a command anywhere in a line: "##[error]" to GitHub, "##vso[" to
// Azure Pipelines, "##teamcity[".
var ciCommand = regexp.MustCompile(`##(\w*\[)`)

// OneLine makes a text, parts of which come from files and subjects, one line that
// is no command to a terminal, nor to the CI that reads it. GitHub's runner takes "::"
// after leading blanks for one, too.
func OneLine(text string) string {
	clean := true
	for _, r := range text {
		if !unicode.IsPrint(r) {
			clean = false
			break
		}
	}
	if !clean {
		text = strings.Map(func(r rune) rune {
			if unicode.IsPrint(r) {
				return r
			}
			return ' '
		}, text)
	}
	if strings.Contains(text, "##") {
		text = ciCommand.ReplaceAllString(text, "# #$1")
	}
	if rest, command := strings.CutPrefix(strings.TrimLeft(text, " "), "::"); command {
		text = ": :" + rest
	}
	return text
}

// says is a failure in a line, its code first.
func says(f conformance.Failure) string {
	if f.Code == "" {
		return OneLine(f.Message)
	}
	return OneLine(string(f.Code) + " " + f.Message)
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
	return OneLine(text)
}
