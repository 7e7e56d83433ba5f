package report

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/conformance"
)

// htmlFailures is how many failures of a case the page shows.
const htmlFailures = 5

// card is a case that is not as it should be.
func card(d *Document, c *Case, open bool) content {
	style := "card"
	if !c.Gating {
		style += " informs"
	}
	return el("details", class(style), attr("data-name", searched(c)), attrWhen(open, bareAttr("open")), nl,
		el("summary",
			el("code", text(c.Name)), text(" "), el("span", class("quiet"), text(brief(d, c))),
			el("span", class("end"),
				chip("fail", string(c.Verdict)),
				when(!c.Gating, chip("known", "does not gate")))), nl,
		el("div", class("body"), nl,
			findings(d, c), lines(
				moreFindings(c),
				facts(fact{"golden", c.Location}, fact{"registered", c.Entry}, fact{"note", OneLine(c.Note)}),
				when(c.Repeat != "", el("div", class("command"),
					el("pre", text(c.Repeat)),
					el("button", attr("type", "button"), bareAttr("data-copy"), text("Copy")))))))
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
func findings(d *Document, c *Case) content {
	if stale := c.stale(); stale != "" {
		return lines(finding(text(stale), nil, nil))
	}
	return each(c.Failures[:min(len(c.Failures), htmlFailures)], func(f conformance.Failure) contents {
		title := d.Findings[f.Code]
		says := contents{codeLink(f.Code, title, attrWhen(title != "", attr("title", title))), text(OneLine(f.Message))}
		return lines(finding(says, where(f), difference(f)))
	})
}

func moreFindings(c *Case) contents {
	more := len(c.Failures) - htmlFailures
	return when(more > 0, el("p", class("quiet"), text(fmt.Sprintf("and %d more: see the JSON report", more))))
}

// finding is what a failure says, its place and its two values.
func finding(says content, place, values contents) content {
	return el("div", class("finding"), nl, lines(el("p", says), place, values))
}

// codeLink is a code that leads to its documentation.
func codeLink(code conformance.Code, title string, tip attribute) contents {
	return when(code != "", el("a", class("code"), toFinding(code, title), tip, text(code)))
}

// where is the place of a failure in the messages of the session.
func where(f conformance.Failure) contents {
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
		parts = append(parts, OneLine(f.Path))
	}
	return contents{el("p", class("where"), text(strings.Join(parts, " · ")))}
}

// difference is the two values of a failure, side by side where they are lists.
func difference(f conformance.Failure) contents {
	if w := windowOf(f); w != nil {
		return lines(windowTable(w))
	}
	return when(f.Expected != f.Actual, el("dl", class("values"),
		el("dt", text("expected")), el("dd", class("expected"), text(OneLine(f.Expected))),
		el("dt", text("actual")), el("dd", class("actual"), text(OneLine(f.Actual)))))
}

// windowTable has a column per position, of which the first that differs is
// marked.
func windowTable(w *window) content {
	return el("div", class("wide"), el("table", class("window"), nl,
		el("thead", el("tr",
			el("th", text("position")),
			when(w.Cut, el("th")),
			each(w.Values, func(p pair) element { return p.cell("th", strconv.Itoa(p.Position)) }))), nl,
		el("tbody", nl, lines(
			w.row("expected", func(p pair) element { return p.cell("td", p.Expected) }),
			w.row("actual", func(p pair) element { return p.cell("td", p.Actual) })))))
}

func (w *window) row(name string, cell func(pair) element) content {
	return el("tr", class(name),
		el("th", text(name)),
		when(w.Cut, el("td", text("…"))),
		each(w.Values, cell))
}

// cell is the words in the column of the pair.
func (p pair) cell(tag markup, words string) element {
	return el(tag, attrWhen(p.Differs, class("mark")), text(words))
}
