package check

import "slices"

// Claims are the levels that a subject claims, and that gate therefore. Without any, all levels gate.
type Claims []Level

// LevelVerdict is the outcome of a level of a line.
type LevelVerdict string

// Verdicts of levels.
const (
	LevelPass       LevelVerdict = "pass"
	LevelFail       LevelVerdict = "fail"
	LevelKnown      LevelVerdict = "known"       // fails, as the expectations list
	LevelNotClaimed LevelVerdict = "not claimed" // the subject claims others
	LevelNotJudged  LevelVerdict = "not judged"  // no case that was run judges it
)

func (v LevelVerdict) judged() bool { return v == LevelPass || v == LevelFail || v == LevelKnown }

// LevelSummary is the outcome of a level of a line. It is written into reports as it is.
type LevelSummary struct {
	Line    string       `json:"line"`
	Level   Level        `json:"level"`
	Verdict LevelVerdict `json:"verdict"`
	// Code, Consequence and Message are those of the worst failure of the level.
	Code        Code        `json:"code,omitempty"`
	Consequence Consequence `json:"consequence,omitempty"`
	Message     string      `json:"message,omitempty"`
}

// Fails reports whether a failure is one of a level. What differs without an effect on users does not fail core.
func (l Level) Fails(f Failure) bool {
	return f.Level == l && (l != LevelCore || f.Consequence != Differs)
}

// Unclaimed reports whether none of the failures is of a level that is claimed. A failure without a level, such as one of a
// golden, is of all.
func (c Claims) Unclaimed(failures []Failure) bool {
	gates := func(f Failure) bool {
		return f.Level == "" || slices.ContainsFunc(c, func(l Level) bool { return l.Fails(f) })
	}
	return len(c) > 0 && len(failures) > 0 && !slices.ContainsFunc(failures, gates)
}

// levels judges each level of each line by the cases.
func (c Claims) levels(cases []Judged) (all []LevelSummary) {
	var lines []string
	for _, one := range cases {
		if !slices.Contains(lines, one.Line) {
			lines = append(lines, one.Line)
		}
	}
	for _, line := range lines {
		for _, level := range Levels() {
			all = append(all, c.level(line, level, cases))
		}
	}
	return all
}

func (c Claims) level(line string, level Level, cases []Judged) LevelSummary {
	s := LevelSummary{Line: line, Level: level, Verdict: LevelNotJudged}
	if len(c) > 0 && !slices.Contains(c, level) {
		s.Verdict = LevelNotClaimed
		return s
	}
	var worst *Failure
	for i, one := range cases {
		if one.Line != line {
			continue
		}
		if slices.Contains(one.Levels, level) && one.Asserted > 0 && s.Verdict == LevelNotJudged {
			s.Verdict = LevelPass
		}
		for at, f := range one.Failures {
			if !level.Fails(f) {
				continue
			}
			red := one.Verdict.Red()
			if red && s.Verdict != LevelFail {
				s.Verdict, worst = LevelFail, nil
			} else if !red && s.Verdict != LevelFail {
				s.Verdict = LevelKnown
			}
			if red == (s.Verdict == LevelFail) && (worst == nil || f.Rank() < worst.Rank()) {
				worst = &cases[i].Failures[at]
			}
		}
	}
	if worst != nil {
		s.Code, s.Consequence, s.Message = worst.Code, worst.Consequence, worst.Message
	}
	return s
}
