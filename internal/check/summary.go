package check

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
)

// Counts are how many cases had each verdict; those that none had are left out.
type Counts map[Verdict]int

// Judged is what the outcome of a run depends on of one of its cases.
type Judged struct {
	Line, Tag, Golden string
	Gating            bool
	Verdict           Verdict
	Infra             bool   // an error whose cause lies around the subject
	Code              Code   // of what kept an [Error] from being judged
	Needs, Check      string // see [Result]; the check is named in the warning
	Asserted, Tokens  int
	Levels            []Level   // that the case judges
	Failures          []Failure // with their levels
	Unclaimed         bool      // see [Claims.Unclaimed]: the verdict does not gate
}

// LineSummary sums up the cases of a line. It is written into reports as it is.
type LineSummary struct {
	Line     string  `json:"line"`
	Tag      string  `json:"tag,omitempty"`
	Gating   bool    `json:"gating"`
	Verdict  Verdict `json:"verdict"`
	Counts   Counts  `json:"counts"`
	Goldens  int     `json:"goldens"`
	Asserted int     `json:"asserted"`
	Tokens   int     `json:"tokens"`
}

// tally is a line as its cases are counted.
type tally struct {
	LineSummary
	infra  bool   // all errors lie around the subject
	golden string // the last one counted
	spared Counts // red cases that do not gate
	codes  []Code // of the errors
	checks []string
	needs  []string // what the checks, in the same order, could not be made without
}

// Summary is what the cases of a run, or of several that are merged, come to.
type Summary struct {
	Verdict  Verdict
	Reason   string // what the exit code means, in a sentence
	ExitCode int
	Counts   Counts
	Tokens   int // compared
	Lines    []LineSummary
	Levels   []LevelSummary
}

// Summarise judges a run by its cases, in their order, by the levels that the subject claims, and by the number of failures
// that are about the run as a whole. Those weigh as much as a failure of the subject.
func Summarise(cases []Judged, claims Claims, ofRun int) Summary {
	s := Summary{Counts: Counts{}, Levels: claims.levels(cases)}
	var lines []*tally
	byName := map[string]*tally{}
	for _, c := range cases {
		s.Counts[c.Verdict]++
		s.Tokens += c.Tokens
		l := byName[c.Line]
		if l == nil {
			l = &tally{LineSummary: LineSummary{Line: c.Line, Tag: c.Tag, Gating: c.Gating, Counts: Counts{}}, infra: true, spared: Counts{}}
			byName[c.Line], lines = l, append(lines, l)
		}
		l.add(c)
	}
	for _, l := range lines {
		l.judge()
		if len(claims) > 0 && !slices.ContainsFunc(s.Levels, func(of LevelSummary) bool { return of.Line == l.Line && of.Verdict.judged() }) {
			l.Asserted = 0
		}
		s.Lines = append(s.Lines, l.LineSummary)
	}
	s.judge(lines, ofRun)
	return s
}

func (l *tally) add(c Judged) {
	l.Counts[c.Verdict]++
	l.Asserted += c.Asserted
	l.Tokens += c.Tokens
	if c.Unclaimed {
		l.spared[c.Verdict]++
		return
	}
	l.infra = l.infra && (c.Verdict != Error || c.Infra)
	if c.Verdict == Error {
		l.codes = append(l.codes, c.Code)
	}
	if c.Needs != "" {
		l.checks, l.needs = append(l.checks, c.Check), append(l.needs, c.Needs)
	}
	if c.Golden != l.golden {
		l.Goldens++
		l.golden = c.Golden
	}
}

// gates counts the cases of a verdict that decide that of the line.
func (l *tally) gates(v Verdict) int { return l.Counts[v] - l.spared[v] }

func (l *tally) judge() {
	switch {
	case l.gates(Fail)+l.gates(XPass) > 0:
		l.Verdict = Fail
	case l.gates(Error) > 0:
		l.Verdict = Error
	case l.Counts[Pass]+l.Counts[XFail]+l.Counts[Flaky]+len(l.spared) > 0:
		l.Verdict = Pass
	default:
		l.Verdict = Skip
	}
}

// judge derives the verdict and the exit code. A failure of the subject weighs more
// than one around it, and both more than having asserted nothing.
func (s *Summary) judge(lines []*tally, ofRun int) {
	var failed, broken, stale, infra, vacuous, other []string
	gates, asserted := 0, 0
	var causes []Code
	for _, l := range lines {
		asserted += l.Asserted
		bad := l.Verdict == Fail || l.Verdict == Error
		if l.Gating && l.Verdict == Error {
			causes = append(causes, l.codes...)
		}
		switch {
		case !l.Gating && bad:
			other = append(other, l.Line)
		case !l.Gating:
		case bad && l.Verdict == Error && l.infra:
			infra = append(infra, l.Line)
		case bad && l.gates(Fail)+l.gates(Error) == 0:
			stale = append(stale, l.Line)
		case bad && l.Verdict == Error:
			broken = append(broken, l.Line)
		case bad:
			failed = append(failed, l.Line)
		case l.Asserted == 0:
			vacuous = append(vacuous, l.Line)
		default:
			gates++
		}
	}
	conclude := func(v Verdict, code int, reason string, lines []string) {
		s.Verdict, s.ExitCode, s.Reason = v, code, reason
		if len(lines) > 0 {
			s.Reason += " " + strings.Join(lines, ", ")
		}
	}
	switch {
	case len(failed) > 0:
		conclude(Fail, ExitFail, "does not conform on", failed)
		if len(broken) > 0 {
			s.Reason += ", and could not be judged on " + strings.Join(broken, ", ") + becauseOf(causes)
		}
	case len(broken) > 0:
		conclude(Fail, ExitFail, "could not be judged on", append(broken, infra...))
		s.Reason += becauseOf(causes)
	case len(stale) > 0:
		conclude(Fail, ExitFail, "passes what is expected to fail on", stale)
	case ofRun > 0:
		conclude(Fail, ExitFail, "the expectations do not hold", nil)
	case len(infra) > 0:
		conclude(Error, ExitInfra, "could not be judged on", infra)
		s.Reason += becauseOf(causes)
	case len(vacuous) > 0:
		conclude(Error, ExitVacuous, "asserted nothing on", vacuous)
	case asserted == 0:
		conclude(Error, ExitVacuous, "asserted nothing", nil)
	case gates == 0:
		conclude(Pass, ExitOK, "no line gates", nil)
	default:
		conclude(Pass, ExitOK, "every gate holds", nil)
	}
	if ofRun > 0 {
		s.Reason += fmt.Sprintf(" (problems of the run: %d)", ofRun)
	}
	if len(other) > 0 {
		s.Reason += " (red but not gating: " + strings.Join(other, ", ") + ")"
	}
	spared := 0
	for _, l := range lines {
		for _, n := range l.spared {
			spared += n
		}
	}
	if spared > 0 {
		s.Reason += fmt.Sprintf(" (red, but only in levels that do not gate: %s)", safetext.Count(spared, "case"))
	}
	for _, l := range lines {
		for i, needs := range l.needs {
			s.Reason += fmt.Sprintf(" (warning: %s of %s was not checked: %s)", l.checks[i], l.Line, needs)
		}
	}
}

// becauseOf says what kept cases from being judged, by their codes: ": the engine ended (R005, 3 cases)".
func becauseOf(codes []Code) string {
	var once []Code
	counts := map[Code]int{}
	for _, code := range codes {
		if counts[code]++; counts[code] == 1 && code != "" {
			once = append(once, code)
		}
	}
	var parts []string
	for _, code := range once {
		text, known := causes[code]
		if !known {
			text = "see the report"
		}
		parts = append(parts, fmt.Sprintf("%s (%s, %s)", text, code, safetext.Count(counts[code], "case")))
	}
	if parts == nil {
		return ""
	}
	return ": " + strings.Join(parts, ", ")
}

// causes say in a few words what kept a case from being judged.
var causes = map[Code]string{
	CodeFetch:             "a golden could not be fetched",
	CodeGolden:            "a golden could not be read",
	CodeStart:             "the engine could not be started",
	CodeNoHandshake:       "no handshake in time",
	CodeEngineEnded:       "the engine ended",
	CodeSilence:           "no output in time",
	CodeDeadline:          "a case took too long",
	CodeNotRun:            "the run was interrupted",
	CodeFrontend:          "the frontend could not be started, or ended",
	CodeHandshake:         "the handshake was not that of an engine",
	CodeEngineFlood:       "the engine sends without end",
	CodeEngineSessionLost: "the engine was lost before",
}
