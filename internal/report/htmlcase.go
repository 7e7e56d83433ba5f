package report

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/vllm-vcr/conformance/conformance"
)

// card is a case that is not as it should be.
type card struct {
	Name, Verdict, Brief, Codes, More, Repeat string
	Gating, Open                              bool
	Findings                                  []findingView
	Facts                                     []fact
}

// findingView is a failure with its two values, as lists side by side where they
// are lists.
type findingView struct {
	Code, Title, Help, Message, Where string
	Window                            *window
	Compared                          bool
	Expected, Actual                  string
}

func cardOf(d *Document, c *Case, open bool) card {
	v := card{
		Name: c.Name, Verdict: string(c.Verdict), Gating: c.Gating, Open: open, Repeat: c.Repeat,
		Facts: facts(fact{"golden", c.Location}, fact{"registered", c.Entry}, fact{"note", OneLine(c.Note)}),
	}
	for _, code := range c.codes() {
		v.Codes += string(code) + " "
	}
	v.Brief = brief(d, c)
	if stale := c.stale(); stale != "" {
		v.Findings = append(v.Findings, findingView{Message: stale})
	}
	for i, f := range c.Failures {
		if i == htmlFailures {
			v.More = fmt.Sprintf("and %d more: see the JSON report", len(c.Failures)-i)
			break
		}
		v.Findings = append(v.Findings, findingOf(d, f))
	}
	return v
}

// brief says in a few words what is wrong with a case.
func brief(d *Document, c *Case) string {
	codes := c.codes()
	if len(codes) == 0 {
		return ""
	}
	text := strings.TrimSpace(string(codes[0]) + " " + d.Findings[codes[0]])
	if len(c.Failures) > 1 {
		text += fmt.Sprintf(" (%d failures)", len(c.Failures))
	}
	return text
}

func findingOf(d *Document, f conformance.Failure) findingView {
	v := findingView{
		Code: string(f.Code), Title: d.Findings[f.Code], Message: OneLine(f.Message), Window: windowOf(f), Where: where(f),
		Compared: f.Expected != f.Actual, Expected: OneLine(f.Expected), Actual: OneLine(f.Actual),
	}
	if f.Code != "" {
		v.Help = HelpURL(f.Code, v.Title)
	}
	return v
}

// where is the place of a failure in the messages of the session.
func where(f conformance.Failure) string {
	if f.Position < 0 && f.Frame < 0 && f.Path == "" {
		return "" // the message names the request
	}
	var parts []string
	if f.Request >= 0 {
		parts = append(parts, fmt.Sprintf("request %d", f.Request))
	}
	if f.Position >= 0 {
		parts = append(parts, fmt.Sprintf("position %d", f.Position))
	}
	if f.Frame >= 0 {
		parts = append(parts, fmt.Sprintf("message %d", f.Frame))
	}
	if f.Path != "" {
		parts = append(parts, OneLine(f.Path))
	}
	return strings.Join(parts, " · ")
}

// facts are those that have a text.
func facts(all ...fact) []fact {
	var some []fact
	for _, f := range all {
		if f.Text != "" {
			some = append(some, f)
		}
	}
	return some
}

// matrix is a table of verdicts.
type matrix struct {
	Heading string
	Head    []string
	Rows    []matrixRow
}

type matrixRow struct {
	Name, Anchor string
	Cells        []chip
}

// matrixOf has a row per line, or per assertion where these are many.
func matrixOf(t *table) matrix {
	m := matrix{Heading: "Lines"}
	if t.suite != conformance.SuiteReplay && t.suite != "" {
		m.Heading = "Suite " + string(t.suite)
	}
	if t.suite != conformance.SuiteReplay && len(t.columns) > widest {
		return m.tall(t)
	}
	m.Head = []string{"vLLM", "gates"}
	for _, a := range t.columns {
		m.Head = append(m.Head, string(a))
	}
	m.Head = append(m.Head, "tokens")
	for _, r := range t.rows {
		cells := []chip{{"", map[bool]string{true: "yes", false: "no"}[r.gating]}}
		for _, a := range t.columns {
			cells = append(cells, r.cells[a].chip())
		}
		m.Rows = append(m.Rows, matrixRow{r.line, anchorOf(r.line), append(cells, chip{"number", grouped(r.tokens)})})
	}
	return m
}

func (m matrix) tall(t *table) matrix {
	m.Head = []string{"check"}
	for _, r := range t.rows {
		m.Head = append(m.Head, r.line)
	}
	for _, a := range t.columns {
		var cells []chip
		for _, r := range t.rows {
			cells = append(cells, r.cells[a].chip())
		}
		m.Rows = append(m.Rows, matrixRow{string(a), "", cells})
	}
	return m
}

// chip is a cell of a matrix.
func (c Counts) chip() chip {
	if c.total() == 0 {
		return chip{"skip", "–"}
	}
	return chip{class(c.worst()), c.cell()}
}

// lineView is a line with all its goldens.
type lineView struct {
	Name, Anchor, Brief string
	Open                bool
	Chips               []chip
	Groups              []groupView
}

// groupView is a golden of a line, or a suite without goldens.
type groupView struct {
	Line, Name string
	Chips      []chip
	Facts      []fact
	Cases      []caseView
}

type caseView struct {
	Check, Verdict, Class, Note, Ms string
	Asserted, Tokens                int
}

func anchorOf(line string) string { return "line-" + line }

// brief says what a line is in a few words.
func (l Line) brief() string {
	var words []string
	if l.Tag != l.Line && l.Tag != "" {
		words = append(words, l.Tag)
	}
	if l.Gating {
		words = append(words, "gates")
	}
	return strings.Join(words, ", ")
}

func linesOf(d *Document) []lineView {
	var views []lineView
	for _, l := range d.Lines {
		v := lineView{
			Name: l.Line, Anchor: anchorOf(l.Line), Brief: l.brief(),
			Open: len(d.Cases) <= openCases, Chips: l.Counts.chips(),
		}
		for _, t := range tables(&Document{Cases: casesOf(d, l.Line)}, (*Case).group) {
			for _, r := range t.rows {
				v.Groups = append(v.Groups, groupOf(r))
			}
		}
		views = append(views, v)
	}
	return views
}

// casesOf are the cases of a line, which lie together unless a document was put
// together by hand.
func casesOf(d *Document, line string) []Case {
	var cases []Case
	for i := range d.Cases {
		if d.Cases[i].Line == line {
			cases = append(cases, d.Cases[i])
		}
	}
	return cases
}

func groupOf(r *row) groupView {
	g := groupView{Line: r.line, Name: r.group}
	if g.Name == "-" {
		g.Name = "nothing to assert"
	}
	counts := Counts{}
	for _, c := range r.cases {
		counts[c.Verdict]++
		g.Cases = append(g.Cases, caseView{
			Check: cmp.Or(c.Check, "-"), Verdict: string(c.Verdict), Class: class(c.Verdict), Note: OneLine(c.Note),
			Ms: fmt.Sprintf("%.1f", c.DurationMs), Asserted: c.Asserted, Tokens: c.Tokens,
		})
	}
	g.Chips = counts.chips()
	first := r.cases[0]
	g.Facts = facts(
		fact{"golden", first.Location}, fact{"registered", first.Entry},
		fact{"sha256", first.SHA256}, fact{"tokens_sha256", first.TokensSHA256},
	)
	return g
}
