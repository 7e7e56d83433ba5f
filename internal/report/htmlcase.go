package report

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/report/page"
)

// htmlFailures is how many failures of a case the page shows.
const htmlFailures = 5

// card is a case that is not as it should be.
func card(d *Document, c *Case, also []string, open bool) page.Content {
	style := "card"
	if !c.Gating {
		style += " informs"
	}
	return page.El("details", page.Class(style), page.Attr("data-name", searched(c)+strings.Join(also, " ")), page.AttrWhen(open, page.Bare("open")), page.NL,
		page.El("summary",
			page.El("code", page.Text(c.Name)), page.Text(" "), page.El("span", page.Class("quiet"), page.Text(brief(d, c))),
			page.El("span", page.Class("end"),
				chip("fail", string(c.Verdict)),
				page.When(!c.Gating, chip("known", "does not gate")))), page.NL,
		page.El("div", page.Class("body"), page.NL,
			findings(d, c), page.Lines(
				moreFindings(c),
				facts(fact{"also in", strings.Join(also, ", ")}, fact{"golden", c.Location}, fact{"registered", c.Entry}, fact{"note", safetext.Line(c.Note)}),
				page.When(c.Repeat != "", page.El("div", page.Class("command"),
					page.El("pre", page.Text(c.Repeat)),
					page.El("button", page.Attr("type", "button"), page.Bare("data-copy"), page.Text("Copy")))))))
}

// searched is what the filter looks for its words in.
func searched(c *Case) string {
	words := c.Name + " "
	for _, code := range c.codes() {
		words += string(code) + " "
	}
	return words
}

// brief says in a few words what is wrong with a case.
func brief(d *Document, c *Case) string {
	codes := c.codes()
	if len(codes) == 0 {
		return ""
	}
	words := strings.TrimSpace(string(codes[0]) + " " + d.Findings[codes[0]])
	if len(c.Failures) > 1 {
		words += fmt.Sprintf(" (%d failures)", len(c.Failures))
	}
	return words
}

// findings are the first failures of a case, or what was expected of it.
func findings(d *Document, c *Case) page.Content {
	if stale := c.stale(); stale != "" {
		return page.Lines(finding(page.Text(stale), nil, nil))
	}
	return page.Each(c.Failures[:min(len(c.Failures), htmlFailures)], func(f conformance.Failure) page.Contents {
		title := d.Findings[f.Code]
		says := page.Contents{codeLink(f.Code, title, page.AttrWhen(title != "", page.Attr("title", title)))}
		sentence := f
		sentence.Code = "" // it is a link
		for _, p := range paragraphsOf(sentence) {
			if p.output {
				says = append(says, page.El("code", page.Class("output"), page.Text(p.text)))
			} else {
				says = append(says, page.Text(p.text))
			}
		}
		return page.Lines(finding(says, where(f), difference(f)))
	})
}

func moreFindings(c *Case) page.Contents {
	more := len(c.Failures) - htmlFailures
	return page.When(more > 0, page.El("p", page.Class("quiet"), page.Text(fmt.Sprintf("and %d more: see the JSON report", more))))
}

// finding is what a failure says, its place and its two values.
func finding(says page.Content, place, values page.Contents) page.Content {
	return page.El("div", page.Class("finding"), page.NL, page.Lines(page.El("p", says), place, values))
}

// codeLink is a code that leads to its documentation.
func codeLink(code conformance.Code, title string, tip page.Attribute) page.Contents {
	return page.When(code != "", page.El("a", page.Class("code"), toFinding(code, title), tip, page.Text(code)))
}

// where is the place of a failure in the messages of the session.
func where(f conformance.Failure) page.Contents {
	if f.Position < 0 && f.Frame < 0 && f.Path == "" {
		return nil // the message names the request
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
		parts = append(parts, safetext.Line(f.Path))
	}
	return page.Contents{page.El("p", page.Class("where"), page.Text(strings.Join(parts, " · ")))}
}

// difference is the two values of a failure, side by side where they are lists.
func difference(f conformance.Failure) page.Contents {
	if w := windowOf(f); w != nil {
		return page.Lines(windowTable(w))
	}
	return page.When(f.Expected != f.Actual, page.El("dl", page.Class("values"),
		page.El("dt", page.Text("expected")), page.El("dd", page.Class("expected"), page.Text(safetext.Line(f.Expected))),
		page.El("dt", page.Text("actual")), page.El("dd", page.Class("actual"), page.Text(safetext.Line(f.Actual)))))
}

// windowTable has a column per position, of which the first that differs is
// marked.
func windowTable(w *window) page.Content {
	return page.El("div", page.Class("wide"), page.El("table", page.Class("window"), page.NL,
		page.El("thead", page.El("tr",
			page.El("th", page.Text("position")),
			page.When(w.Cut, page.El("th")),
			page.Each(w.Values, func(p pair) page.Element { return p.cell("th", strconv.Itoa(p.Position)) }))), page.NL,
		page.El("tbody", page.NL, page.Lines(
			w.row("expected", func(p pair) page.Element { return p.cell("td", p.Expected) }),
			w.row("actual", func(p pair) page.Element { return p.cell("td", p.Actual) })))))
}

func (w *window) row(name string, cell func(pair) page.Element) page.Content {
	return page.El("tr", page.Class(name),
		page.El("th", page.Text(name)),
		page.When(w.Cut, page.El("td", page.Text("…"))),
		page.Each(w.Values, cell))
}

// cell is the words in the column of the pair.
func (p pair) cell(tag page.Markup, words string) page.Element {
	return page.El(tag, page.AttrWhen(p.Differs, page.Class("mark")), page.Text(words))
}

// window is the surroundings of the first difference between two lists, as a
// failure shows them, value by value.
type window struct {
	Cut    bool // values before the first are left out
	Values []pair
}

// pair is what was expected and what came at a position. After the last value of
// a list there is "…" when more of it was left out, else "end".
type pair struct {
	Position         int
	Expected, Actual string
	Differs          bool // the first that differs
}

// windowOf aligns the two lists of a failure. Both begin with the same position,
// of which the failure's is the first that differs. It returns nil when the
// failure does not show lists.
func windowOf(f conformance.Failure) *window {
	expected, ok1 := listOf(f.Expected)
	actual, ok2 := listOf(f.Actual)
	if !ok1 || !ok2 || f.Position < 0 || expected.cut != actual.cut {
		return nil
	}
	w := &window{Cut: expected.cut}
	differs := -1
	for i := range max(len(expected.values), len(actual.values)) {
		p := pair{Expected: expected.at(i), Actual: actual.at(i)}
		if differs < 0 && p.Expected != p.Actual {
			p.Differs, differs = true, i
		}
		w.Values = append(w.Values, p)
	}
	if differs < 0 || differs > f.Position || !w.Cut && differs != f.Position {
		return nil
	}
	for i := range w.Values {
		w.Values[i].Position = f.Position - differs + i
	}
	return w
}

// list is what stands between brackets: "[…5 6 7…]".
type list struct {
	cut, more bool
	values    []string
}

// at is the value at a place, and what is to be shown behind the last.
func (l list) at(i int) string {
	switch {
	case i < len(l.values):
		return l.values[i]
	case i > len(l.values):
		return ""
	case l.more:
		return "…"
	}
	return "end"
}

func listOf(text string) (l list, ok bool) {
	text, open := strings.CutPrefix(text, "[")
	text, closed := strings.CutSuffix(text, "]")
	if !open || !closed {
		return l, false
	}
	text, l.cut = strings.CutPrefix(text, "…")
	text, l.more = strings.CutSuffix(text, "…")
	l.values = strings.Fields(text)
	return l, true
}

// toFinding refers to the documentation of a code. Nothing else leads out of the
// page.
func toFinding(code conformance.Code, title string) page.Attribute {
	return page.Attr("href", HelpURL(code, title))
}
