package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/check"
)

// Cause is what failures of red cases have in common: the code, the place in a message, and the consequence. Reports show each
// once, those of gates first, then by consequence.
type Cause struct {
	conformance.Failure          // the first of them; its path has [] for any element
	Gating              bool     `json:"gating"`
	Failures            int      `json:"failures"`
	Cases               []string `json:"cases"` // names, in their order; the failure above is of the first

	first *Case
}

// causes groups the failures of the red cases.
func (d *Document) causes() []Cause {
	all := []Cause{}
	known := map[string]int{}
	for i := range d.Cases {
		c := &d.Cases[i]
		if !c.Verdict.Red() {
			continue
		}
		failures := c.Failures
		if len(failures) == 0 { // a case that passes against an expectation, or that broke off without a word
			failures = []conformance.Failure{check.Failed("", "%s", cmp.Or(c.stale(), c.Note, string(c.Verdict)))}
		}
		for _, f := range failures {
			key := fmt.Sprintf("%v %s %s %s", c.gates(), f.Consequence, f.Code, placeOf(c, f))
			at, twice := known[key]
			if !twice {
				at = len(all)
				known[key] = at
				f.Path = check.Place(f.Path)
				all = append(all, Cause{Failure: f, Gating: c.gates(), first: c})
			}
			all[at].Failures++
			if n := len(all[at].Cases); n == 0 || all[at].Cases[n-1] != c.Name {
				all[at].Cases = append(all[at].Cases, c.Name)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b Cause) int {
		if a.Gating != b.Gating {
			return map[bool]int{true: -1, false: 1}[a.Gating]
		}
		return a.Rank() - b.Rank()
	})
	return all
}

// varying are the values of a message, which differ between failures of one cause.
var varying = lazyregexp.New(`\[[^\]]*\]|"[^"]*"|[-+]?\d+(\.\d+)?`)

// placeOf is what failures of one code and cause have in common: the place in a message, else the message without its values,
// and of what is about a golden its name.
func placeOf(c *Case, f conformance.Failure) string {
	switch {
	case notRun(f):
		return f.Message
	case f.Consequence == "":
		return c.Line + c.group() + f.Message
	case f.Path != "":
		return check.Place(f.Path)
	}
	line, _, _ := strings.Cut(f.Message, "\n")
	return varying().ReplaceAllString(line, "#")
}

// Where says in how many cases the cause shows, and where first: "in 7 cases, 12 times; first in 0.33/live/stop, message 2".
func (c *Cause) Where() string {
	if c.Failures == 1 {
		return ""
	}
	where := fmt.Sprintf("in %s, %d times; first in %s", safetext.Count(len(c.Cases), "case"), c.Failures, c.Cases[0])
	for _, part := range []struct {
		name string
		at   int
	}{{"request", c.Request}, {"message", c.Frame}} {
		if part.at >= 0 {
			where += fmt.Sprintf(", %s %d", part.name, part.at)
		}
	}
	return where
}

// Basis says what the consequence is known from.
func (c *Cause) Basis() string {
	if c.Level == "" {
		return ""
	}
	basis := "level " + string(c.Level)
	if c.Measured != "" {
		basis += ", as measured with " + c.Measured
	}
	return basis
}

// also are the cases behind the first.
func (c *Cause) also() string {
	const shown = 5
	names := c.Cases[1:]
	if len(names) > shown {
		return strings.Join(names[:shown], ", ") + fmt.Sprintf(" and %d more", len(names)-shown)
	}
	return strings.Join(names, ", ")
}

// alike reports whether another cause has the same code, consequence and cases.
func (c *Cause) alike(other *Cause) bool {
	return c.Code == other.Code && c.Consequence == other.Consequence && c.Measured == other.Measured && c.Level == other.Level && c.Gating == other.Gating && slices.Equal(c.Cases, other.Cases)
}

// title is a cause in a few words: its first case, and what it does to users.
func (c *Cause) title() string {
	words := c.Cases[0]
	if c.Consequence != "" {
		words += ": " + string(c.Consequence)
	}
	return safetext.Line(words) + gate(c.Gating)
}

// Headline is the worst that a report has to say, "" if nothing is red.
func Headline(d *Document) string {
	if len(d.Causes) == 0 {
		return ""
	}
	worst := d.Causes[0]
	like := slices.DeleteFunc(slices.Clone(d.Causes), func(c Cause) bool { return c.Consequence != worst.Consequence || c.Gating != worst.Gating })
	first := worst.Failure
	first.Message, _, _ = strings.Cut(first.Message, "\n")
	line := strings.TrimSuffix(says(first), "; the last of the engine's output:")
	if worst.Consequence != "" {
		line = string(worst.Consequence) + ": " + line
	}
	if n := len(like) - 1; n > 0 {
		line += fmt.Sprintf(" (and %d more with this consequence)", n)
	}
	return line + gate(worst.Gating)
}

// gates reports whether the verdict of the case decides that of the run.
func (c *Case) gates() bool { return c.Gating && !c.Unclaimed }

// levelTable has a row for each line and a column for each level that some line claims and judges.
func levelTable(d *Document) (rows [][]string) {
	of := map[string]check.LevelSummary{}
	shown := map[check.Level]bool{}
	for _, l := range d.Levels {
		of[l.Line+string(l.Level)] = l
		shown[l.Level] = shown[l.Level] || l.Verdict != check.LevelNotJudged && l.Verdict != check.LevelNotClaimed
	}
	head := []string{"LEVEL"}
	columns := slices.DeleteFunc(check.Levels(), func(l check.Level) bool { return !shown[l] })
	for _, level := range columns {
		head = append(head, strings.ToUpper(string(level)))
	}
	rows = append(rows, head)
	for _, line := range d.Lines {
		row := []string{safetext.Line(line.Line)}
		for _, level := range columns {
			row = append(row, levelCell(of[line.Line+string(level)]))
		}
		rows = append(rows, row)
	}
	return rows
}

// levelCell is the verdict on a level, and why it fails.
func levelCell(l check.LevelSummary) string {
	switch l.Verdict {
	case check.LevelFail:
		return "FAIL " + string(l.Code)
	case check.LevelNotJudged:
		return "-"
	}
	return string(l.Verdict)
}
