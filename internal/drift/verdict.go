package drift

import (
	"fmt"
	"strings"

	"github.com/vllm-vcr/conformance/conformance"
)

// Verdict is what a check comes to.
type Verdict string

// Verdicts.
const (
	None    Verdict = "none"    // it speaks what it is expected to
	Found   Verdict = "found"   // it does not
	Unknown Verdict = "unknown" // it could not be looked at
)

// A Layer is one way of looking at a release, and what it came to.
type Layer struct {
	Name    string
	Verdict Verdict
	// Vacuous tells of an unknown verdict that nothing was asserted.
	Vacuous bool
	// Reason says in a few words why: for a person, in one line.
	Reason string
	// Reports are what was run, in its order.
	Reports []*conformance.Report
}

// ExitCode is the exit code of a command that looked at a layer.
func (l Layer) ExitCode() int {
	switch {
	case l.Verdict == None:
		return conformance.ExitOK
	case l.Verdict == Found:
		return conformance.ExitFail
	case l.Vacuous:
		return conformance.ExitVacuous
	}
	return conformance.ExitInfra
}

// Unjudged is a layer that could not be looked at.
func Unjudged(name string, err error) Layer {
	return Layer{Name: name, Verdict: Unknown, Reason: firstLine(err.Error())}
}

// judge is what the reports of a layer come to. Each of them must have asserted something.
func judge(name string, reports ...*conformance.Report) Layer {
	l := Layer{Name: name, Verdict: None, Reports: reports}
	passed, tokens := 0, 0
	var red []conformance.Result
	for _, r := range reports {
		l.take(r)
		tokens += r.Tokens
		for _, result := range r.Results {
			if result.Verdict == conformance.Pass {
				passed++
			}
			if result.Verdict.Red() {
				red = append(red, result)
			}
		}
	}
	switch {
	case len(red) > 0:
		l.Reason = fmt.Sprintf("%d cases passed, %d are red, first %s", passed, len(red), describe(red[0]))
	case l.Verdict != None:
		l.Reason = "it " + l.Reason
	default:
		l.Reason = fmt.Sprintf("%d cases passed, %d tokens compared", passed, tokens)
	}
	return l
}

// take makes the verdict that of a report if it weighs more: a finding more than what could not be judged, and that
// more than what asserted nothing.
func (l *Layer) take(r *conformance.Report) {
	switch {
	case r.ExitCode == conformance.ExitOK || l.Verdict == Found:
	case r.ExitCode == conformance.ExitFail:
		l.Verdict, l.Vacuous, l.Reason = Found, false, r.Reason
	case r.ExitCode != conformance.ExitVacuous:
		l.Verdict, l.Vacuous, l.Reason = Unknown, false, r.Reason
	case l.Verdict == None:
		l.Verdict, l.Vacuous, l.Reason = Unknown, true, r.Reason
	}
}

// describe names a red case and the code of what is first wrong with it. What the failure says may be another text
// after an equal run, with other ports and ids.
func describe(r conformance.Result) string {
	if len(r.Failures) == 0 || r.Failures[0].Code == "" {
		return r.Case.Name()
	}
	return fmt.Sprintf("%s (%s)", r.Case.Name(), r.Failures[0].Code)
}

// mostReason bounds a reason, in bytes.
const mostReason = 600

// firstLine is what a text says before what a process has written, which it has on lines of its own.
func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	if len(line) > mostReason {
		line = strings.ToValidUTF8(line[:mostReason], "") + "…"
	}
	return line
}
