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
	openCards = 10  // causes that are unfolded
	openCases = 100 // a page of more cases has its lines folded
)

//go:embed assets
var assets embed.FS

var htmlPage = NewPageTemplate(assets, template.FuncMap{
	"anchor": func(line string) string { return "line-" + line },
	"cards":  cards, "levels": levelTable, "levelClass": levelClass, "lower": strings.ToLower, "cell": cellOf, "chips": chips, "class": classOf, "command": commandLine, "count": safetext.Count,
	"coverageRows": coverageRows, "expectedCases": expectedCases, "grouped": grouped, "lines": linesOf, "orNone": orNone,
	"expectation": func(c *Case) string { return c.Expected.says() },
	"help":        func(d *Document, code conformance.Code) string { return HelpURL(code, d.Findings[code]) },
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

// htmlCard is a cause.
type htmlCard struct {
	*Cause
	d    *Document
	Open bool
}

func cards(d *Document) (all []htmlCard) {
	for i := range d.Causes {
		all = append(all, htmlCard{&d.Causes[i], d, i < openCards})
	}
	return all
}

// Searched is the text that the filter searches.
func (c htmlCard) Searched() string {
	return strings.Join(append(c.Cases, string(c.Code), string(c.Consequence), string(c.Level), c.Path), " ")
}

func (c htmlCard) Title() string                { return c.Cases[0] }
func (c htmlCard) Verdict() conformance.Verdict { return c.first.Verdict }
func (c htmlCard) Repeat() string               { return c.first.Repeat }

// Brief says in a few words what is wrong.
func (c htmlCard) Brief() string {
	return strings.TrimSpace(string(c.Code) + " " + c.d.Findings[c.Code])
}

func (c htmlCard) Help() string { return HelpURL(c.Code, c.d.Findings[c.Code]) }
func (c htmlCard) Paragraphs() []paragraph {
	sentence := c.Failure
	sentence.Code = "" // it is a link
	return paragraphsOf(sentence)
}
func (c htmlCard) Window() *window { return windowOf(c.Failure) }

// Place is that of the failure in the messages of the session.
func (c htmlCard) Place() string {
	if c.Position < 0 && c.Frame < 0 && c.Path == "" {
		return "" // the message names the request
	}
	var parts []string
	for _, part := range []struct {
		name string
		at   int
	}{{"request", c.Request}, {"position", c.Position}, {"message", c.Frame}} {
		if part.at >= 0 {
			parts = append(parts, fmt.Sprintf("%s %d", part.name, part.at))
		}
	}
	if c.Path != "" {
		parts = append(parts, safetext.Line(c.Path))
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
	return facts(fact{"seen", c.Where()}, fact{"also in", c.also()}, fact{"consequence", c.Basis()}, fact{"golden", c.first.Location},
		fact{"registered", c.first.Entry}, fact{"note", safetext.Line(c.first.Note)})
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

// levelClass is the style of a cell of the levels.
func levelClass(cell string) string {
	switch word, _, _ := strings.Cut(cell, " "); word {
	case "pass", "known":
		return word
	case "FAIL":
		return "fail"
	}
	return "skip"
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
