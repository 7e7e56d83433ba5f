package report

import (
	"embed"
	"fmt"
	"html/template"
	"io"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/check/coverage"
)

const (
	openCards    = 10  // failed cases that are unfolded
	openCases    = 100 // a page of more cases has its lines folded
	htmlFailures = 5   // failures of a case that are shown
)

//go:embed assets
var assets embed.FS

var htmlPage = NewPageTemplate(assets, template.FuncMap{
	"anchor": func(line string) string { return "line-" + line },
	"cards":  cards, "cell": cellOf, "chips": chips, "class": classOf, "command": commandLine, "count": safetext.Count,
	"coverageRows": coverageRows, "expectedCases": expectedCases, "grouped": grouped, "lines": linesOf, "orNone": orNone,
	"expectation": func(c *Case) string { return c.Expected.says() },
	"help":        func(d *Document, code conformance.Code) string { return HelpURL(code, d.Findings[code]) },
	"redCases":    redCases,
	"run":         Run.describe,
	"shares":      func(c Coverage) []coverage.Share { return []coverage.Share{c.Utilities, c.Members, c.Messages} },
	"tables":      func(d *Document) []*table { return tables(d, func(*Case) string { return "" }) },
	"timed":       func(d *Document) bool { return !d.deterministic() },
	"took":        took,
	"upper":       func(v conformance.Verdict) string { return strings.ToUpper(string(v)) },
	"worst":       worstOf,
}, "assets/*.html")

// HTML writes one page that loads nothing and has a script only for its filters and to copy commands.
func HTML(w io.Writer, d *Document) error {
	return htmlPage.Write(w, htmlData{"conformance: " + d.Reason, d.Preface, d})
}

// Page writes a page of this look that has no cases.
func Page(w io.Writer, title string, contents template.HTML) error {
	return htmlPage.Write(w, htmlData{title, contents, nil})
}

type htmlData struct {
	Title    string
	Preface  template.HTML
	Document *Document
}

// htmlCard is a case that is not as it should be.
type htmlCard struct {
	*Case
	d    *Document
	also []string
	Open bool
}

func cards(d *Document) (all []htmlCard) {
	failed, also := together(redCases(d))
	for i, c := range failed {
		all = append(all, htmlCard{c, d, also[c], i < openCards})
	}
	return all
}

// Searched is the text that the filter searches.
func (c htmlCard) Searched() string {
	words := c.Name + " "
	for _, code := range c.codes() {
		words += string(code) + " "
	}
	return words + strings.Join(c.also, " ")
}

// Brief says in a few words what is wrong with the case.
func (c htmlCard) Brief() string {
	codes := c.codes()
	if len(codes) == 0 {
		return ""
	}
	words := strings.TrimSpace(string(codes[0]) + " " + c.d.Findings[codes[0]])
	if len(c.Failures) > 1 {
		words += fmt.Sprintf(" (%d failures)", len(c.Failures))
	}
	return words
}

func (c htmlCard) Help(code conformance.Code) string      { return HelpURL(code, c.d.Findings[code]) }
func (c htmlCard) CodeTitle(code conformance.Code) string { return c.d.Findings[code] }

// htmlFinding is a failure, or what was expected of a case that passed.
type htmlFinding struct {
	conformance.Failure
	Paragraphs []paragraph
	Window     *window
}

func (c htmlCard) Findings() (all []htmlFinding) {
	if stale := c.stale(); stale != "" {
		return []htmlFinding{{Paragraphs: []paragraph{{Text: stale}}, Failure: conformance.Failure{Position: -1, Frame: -1}}}
	}
	for _, f := range c.Failures[:min(len(c.Failures), htmlFailures)] {
		sentence := f
		sentence.Code = "" // it is a link
		all = append(all, htmlFinding{f, paragraphsOf(sentence), windowOf(f)})
	}
	return all
}

// More returns how many failures are left out.
func (c htmlCard) More() int { return max(0, len(c.Failures)-htmlFailures) }

// Where is the place of the failure in the messages of the session.
func (f htmlFinding) Where() string {
	if f.Position < 0 && f.Frame < 0 && f.Path == "" {
		return "" // the message names the request
	}
	var parts []string
	for _, part := range []struct {
		name string
		at   int
	}{{"request", f.Request}, {"position", f.Position}, {"message", f.Frame}} {
		if part.at >= 0 {
			parts = append(parts, fmt.Sprintf("%s %d", part.name, part.at))
		}
	}
	if f.Path != "" {
		parts = append(parts, safetext.Line(f.Path))
	}
	return strings.Join(parts, " · ")
}

// fact is a name and a text.
type fact struct{ Name, Words string }

// facts returns those that have a text.
func facts(all ...fact) (some []fact) {
	for _, f := range all {
		if f.Words != "" {
			some = append(some, f)
		}
	}
	return some
}

func (c htmlCard) Facts() []fact {
	return facts(fact{"also in", strings.Join(c.also, ", ")}, fact{"golden", c.Location}, fact{"registered", c.Entry}, fact{"note", safetext.Line(c.Note)})
}

// htmlLine is a line with its goldens.
type htmlLine struct {
	Line        Line
	Open, Timed bool
	Groups      []htmlGroup
}

// htmlGroup is a golden of a line, or a suite without goldens.
type htmlGroup struct{ *row }

func linesOf(d *Document) (all []htmlLine) {
	for _, l := range d.Lines {
		one := htmlLine{Line: l, Open: len(d.Cases) <= openCases, Timed: !d.deterministic()}
		of := &Document{}
		for _, c := range d.Cases {
			if c.Line == l.Line {
				of.Cases = append(of.Cases, c)
			}
		}
		for _, t := range tables(of, (*Case).group) {
			for _, r := range t.Rows {
				one.Groups = append(one.Groups, htmlGroup{r})
			}
		}
		all = append(all, one)
	}
	return all
}

// Brief says what a line is in a few words.
func (l htmlLine) Brief() string {
	var words []string
	if l.Line.Tag != l.Line.Line && l.Line.Tag != "" {
		words = append(words, l.Line.Tag)
	}
	if l.Line.Gating {
		words = append(words, "gates")
	}
	return strings.Join(words, ", ")
}

func (g htmlGroup) Name() string {
	if g.Group == "-" {
		return "nothing to assert"
	}
	return g.Group
}

func (g htmlGroup) Counts() Counts {
	counts := Counts{}
	for _, c := range g.Cases {
		counts[c.Verdict]++
	}
	return counts
}

func (g htmlGroup) Facts() []fact {
	first := g.Cases[0]
	return facts(fact{"golden", first.Location}, fact{"registered", first.Entry}, fact{"sha256", first.SHA256}, fact{"tokens_sha256", first.TokensSHA256})
}

// Heading is the title of the table.
func (t *table) Heading() string {
	if t.Suite == conformance.SuiteReplay || t.Suite == "" {
		return "Lines"
	}
	return "Suite " + string(t.Suite)
}

// IsTall reports whether the table has a row for each assertion, as these are too many for columns.
func (t *table) IsTall() bool { return t.Suite != conformance.SuiteReplay && len(t.Columns) > widest }

// commandLine is the command of the arguments, as a shell reads it.
func commandLine(arguments []string) string {
	words := make([]string, len(arguments))
	for i, word := range arguments {
		words[i] = quote(word)
	}
	return strings.Join(words, " ")
}

// classOf is the style of a verdict.
func classOf(v conformance.Verdict) string {
	switch {
	case v == "":
		return ""
	case v.Red():
		return "fail"
	case v == conformance.Pass:
		return "pass"
	case v == conformance.Skip:
		return "skip"
	}
	return "known"
}

// grouped writes a number in groups of three digits: "50,000,000".
func grouped(n int) string {
	digits := strconv.Itoa(n)
	for at := len(digits) - 3; at > 0; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	return digits
}

// chip is a few words in the color of a verdict.
type chip struct{ Class, Words string }

// chips are the counts that are not zero.
func chips(c Counts) (all []chip) {
	for _, v := range conformance.Verdicts() {
		if c[v] > 0 {
			all = append(all, chip{classOf(v), counted(c[v], v)})
		}
	}
	return all
}
