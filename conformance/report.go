package conformance

import (
	"fmt"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/compat"
)

// Description says what is under test.
type Description struct {
	// Kind is "player" for the embedded one, "engine" or "frontend" for what the
	// caller brought.
	Kind string
	// Command is its command line, or its address.
	Command string
	// Versions are what it said it is, line by line.
	Versions map[string]string
}

// LineSummary sums up the cases of a line.
type LineSummary struct {
	Line     compat.Line
	Gating   bool
	Goldens  int
	Counts   map[Verdict]int
	Asserted int
	Tokens   int
	Verdict  Verdict
	Vacuous  bool // nothing was asserted

	infra  bool   // all errors lie around the subject
	golden string // the last one counted
}

// Report is the outcome of a run.
type Report struct {
	Results  []Result
	Lines    []LineSummary
	Counts   map[Verdict]int
	Tokens   int
	Duration time.Duration
	ExitCode int
	Verdict  Verdict
	// Reason says in a sentence what the exit code stands for.
	Reason string
	// Problems are what is wrong with the run rather than with one of its cases: an
	// expectation that matches none, or that has expired.
	Problems []Failure
	// Subject says what was under test.
	Subject Description
	// Flags are those that a command needs to run a case of the report on the
	// same inputs, besides the selection of the case. The runner leaves it empty.
	Flags []string
}

// NewReport sums up the results of a run, in their order.
func NewReport(results []Result, took time.Duration) *Report {
	r := &Report{Results: results, Counts: map[Verdict]int{}, Duration: took}
	for _, result := range results {
		r.Counts[result.Verdict]++
		r.Tokens += result.Tokens
		r.line(result.Case).add(result)
	}
	for i := range r.Lines {
		r.Lines[i].close()
	}
	r.judge()
	return r
}

// Blame adds problems of the run, and judges it anew: they weigh as much as a failure
// of the subject.
func (r *Report) Blame(problems ...Failure) {
	if len(problems) > 0 {
		r.Problems = append(r.Problems, problems...)
		r.judge()
	}
}

func (r *Report) line(c Case) *LineSummary {
	for i := range r.Lines {
		if r.Lines[i].Line.Name == c.Line.Name {
			return &r.Lines[i]
		}
	}
	r.Lines = append(r.Lines, LineSummary{Line: c.Line, Gating: c.Gating, Counts: map[Verdict]int{}, infra: true})
	return &r.Lines[len(r.Lines)-1]
}

func (l *LineSummary) add(result Result) {
	l.Counts[result.Verdict]++
	l.Asserted += result.Asserted
	l.Tokens += result.Tokens
	l.infra = l.infra && (result.Verdict != Error || result.Infra)
	if id := result.Case.Golden.ID; id != l.golden {
		l.Goldens++
		l.golden = id
	}
}

func (l *LineSummary) close() {
	l.Vacuous = l.Asserted == 0
	switch {
	case l.Counts[Fail]+l.Counts[XPass] > 0:
		l.Verdict = Fail
	case l.Counts[Error] > 0:
		l.Verdict = Error
	case l.Counts[Pass]+l.Counts[XFail]+l.Counts[Flaky] > 0:
		l.Verdict = Pass
	default:
		l.Verdict = Skip
	}
}

// judge derives the run's verdict and exit code. A failure of the subject
// weighs more than one around it, and both more than having asserted nothing.
func (r *Report) judge() {
	var failed, stale, infra, vacuous, other []string
	gates, asserted := 0, 0
	for _, l := range r.Lines {
		asserted += l.Asserted
		bad := l.Verdict == Fail || l.Verdict == Error
		switch {
		case !l.Gating && bad:
			other = append(other, l.Line.Name)
		case !l.Gating:
		case bad && l.Verdict == Error && l.infra:
			infra = append(infra, l.Line.Name)
		case bad && l.Counts[Fail]+l.Counts[Error] == 0:
			stale = append(stale, l.Line.Name)
		case bad:
			failed = append(failed, l.Line.Name)
		case l.Vacuous:
			vacuous = append(vacuous, l.Line.Name)
		default:
			gates++
		}
	}
	switch {
	case len(failed) > 0:
		r.conclude(Fail, ExitFail, "does not conform on", failed)
	case len(stale) > 0:
		r.conclude(Fail, ExitFail, "passes what is expected to fail on", stale)
	case len(r.Problems) > 0:
		r.conclude(Fail, ExitFail, "the expectations do not hold", nil)
	case len(infra) > 0:
		r.conclude(Error, ExitInfra, "could not be judged on", infra)
	case len(vacuous) > 0:
		r.conclude(Error, ExitVacuous, "asserted nothing on", vacuous)
	case asserted == 0:
		r.conclude(Error, ExitVacuous, "asserted nothing", nil)
	case gates == 0:
		r.conclude(Pass, ExitOK, "no line gates", nil)
	default:
		r.conclude(Pass, ExitOK, "every gate holds", nil)
	}
	if len(r.Problems) > 0 {
		r.Reason += fmt.Sprintf(" (problems of the run: %d)", len(r.Problems))
	}
	if len(other) > 0 {
		r.Reason += " (red but not gating: " + strings.Join(other, ", ") + ")"
	}
}

func (r *Report) conclude(v Verdict, code int, reason string, lines []string) {
	r.Verdict, r.ExitCode, r.Reason = v, code, reason
	if len(lines) > 0 {
		r.Reason += " " + strings.Join(lines, ", ")
	}
}
