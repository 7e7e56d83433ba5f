package report

import (
	_ "embed"
	"html/template"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/conformance"
)

var (
	//go:embed page/page.html
	pageSource string
	//go:embed page/style.css
	pageStyle string
	//go:embed page/script.js
	pageScript string

	pageTemplate = template.Must(template.New("page").Parse(pageSource))
)

// openCards is how many of the failed cases are unfolded.
const openCards = 10

// htmlFailures is how many failures of a case the page shows.
const htmlFailures = 5

// openCases is up to how many cases all lines are unfolded.
const openCases = 100

// page is what the template shows. Its texts are as they came: the template
// escapes them.
type page struct {
	Title, Class, Word, Reason string
	Style                      template.CSS
	Script                     template.JS
	Chips                      []chip
	Matrices                   []matrix
	Problems                   []findingView
	Red                        []card
	RedCount                   string
	Known                      []known
	Lines                      []lineView
	Runs                       []runView
	Timed                      bool // there are durations
}

// chip is a short text in the colour of a verdict.
type chip struct{ Class, Text string }

// fact is a name and a text.
type fact struct{ Name, Text string }

type known struct{ Verdict, Name, Text string }

type runView struct {
	About, Arguments string
	Inputs           []Input
	Versions         []fact
}

// HTML writes one page that needs nothing else: no network, and no script but for
// filters and the copying of commands.
func HTML(w io.Writer, d *Document) error {
	p := page{
		Title: "conformance: " + d.Reason, Class: class(d.Verdict), Word: strings.ToUpper(string(d.Verdict)), Reason: d.Reason,
		Style: template.CSS(pageStyle), Script: template.JS(pageScript), Timed: !d.deterministic(),
		Chips: append(d.Counts.chips(), chip{"", grouped(d.Tokens) + " tokens compared"}),
	}
	if p.Timed {
		p.Chips = append(p.Chips, chip{"", took(d.DurationMs)})
	}
	for _, t := range tables(d, func(*Case) string { return "" }) {
		p.Matrices = append(p.Matrices, matrixOf(t))
	}
	for _, f := range d.Problems {
		p.Problems = append(p.Problems, findingOf(d, f))
	}
	p.cards(d)
	for _, c := range expectedCases(d) {
		p.Known = append(p.Known, known{string(c.Verdict), c.Name, c.Expected.says()})
	}
	p.Lines = linesOf(d)
	for _, r := range d.Runs {
		p.Runs = append(p.Runs, runOf(r))
	}
	return pageTemplate.Execute(w, p)
}

// class is the style of a verdict.
func class(v conformance.Verdict) string {
	switch {
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

// chips are the counts, those that are zero left out.
func (c Counts) chips() []chip {
	var chips []chip
	for _, v := range conformance.Verdicts() {
		if c[v] > 0 {
			chips = append(chips, chip{class(v), counted(c[v], v)})
		}
	}
	return chips
}

func (p *page) cards(d *Document) {
	red := redCases(d)
	p.RedCount = plural(len(red), "case")
	for i, c := range red {
		p.Red = append(p.Red, cardOf(d, c, i < openCards))
	}
}

func runOf(r Run) runView {
	v := runView{About: r.describe(), Inputs: r.Inputs}
	if len(r.Arguments) > 0 {
		words := make([]string, len(r.Arguments))
		for i, word := range r.Arguments {
			words[i] = quote(word)
		}
		v.Arguments = strings.Join(words, " ")
	}
	for _, line := range slices.Sorted(maps.Keys(r.Subject.Versions)) {
		v.Versions = append(v.Versions, fact{line, OneLine(r.Subject.Versions[line])})
	}
	return v
}
