package report

import (
	"cmp"
	"strconv"
	"strings"
)

// openCases is up to how many cases all lines are unfolded.
const openCases = 100

// allCases are the cases by line and golden.
func allCases(d *Document) contents {
	return when(len(d.Lines) > 0, nl, lines(
		el("h2", text("All cases")),
		filterBox("all", "Filter by line and golden", "Filter all cases"),
		el("div", attr("id", "all"), nl, each(d.Lines, func(l Line) contents { return lines(lineOf(d, l)) }))))
}

// lineOf is a line with all its goldens.
func lineOf(d *Document, l Line) content {
	var groups contents
	for _, t := range tables(&Document{Cases: casesOf(d, l.Line)}, (*Case).group) {
		for _, r := range t.rows {
			groups = append(groups, groupOf(r, !d.deterministic()), nl)
		}
	}
	return el("details", class("line"), attr("id", anchorOf(l.Line)), attrWhen(len(d.Cases) <= openCases, bareAttr("open")), nl,
		el("summary",
			el("code", text(l.Line)), text(" "), el("span", class("quiet"), text(l.brief())),
			el("span", class("end"), chips(l.Counts))), nl,
		el("div", class("body"), nl, groups))
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

// groupOf is a golden of a line, or a suite without goldens.
func groupOf(r *row, timed bool) content {
	name, first := r.group, r.cases[0]
	if name == "-" {
		name = "nothing to assert"
	}
	counts := Counts{}
	for _, c := range r.cases {
		counts[c.Verdict]++
	}
	return el("details", class("golden"), attr("data-name", r.line+"/"+name), nl,
		el("summary", el("code", text(name)), el("span", class("end"), chips(counts))), nl,
		el("div", class("body"), nl, lines(
			caseTable(r.cases, timed),
			facts(
				fact{"golden", first.Location}, fact{"registered", first.Entry},
				fact{"sha256", first.SHA256}, fact{"tokens_sha256", first.TokensSHA256}))))
}

func caseTable(cases []*Case, timed bool) content {
	number := class("number")
	head := el("tr",
		el("th", text("check")),
		el("th", text("verdict")),
		el("th", number, text("asserted")),
		el("th", number, text("tokens")),
		when(timed, el("th", number, text("ms"))),
		el("th", text("note")))
	return el("div", class("wide"), el("table",
		el("thead", head),
		el("tbody", nl, each(cases, func(c *Case) contents { return lines(caseRow(c, timed)) }))))
}

func caseRow(c *Case, timed bool) content {
	number := class("number")
	return el("tr",
		el("td", text(cmp.Or(c.Check, "-"))),
		el("td", class(classOf(c.Verdict)), text(c.Verdict)),
		el("td", number, text(strconv.Itoa(c.Asserted))),
		el("td", number, text(strconv.Itoa(c.Tokens))),
		when(timed, el("td", number, text(strconv.FormatFloat(c.DurationMs, 'f', 1, 64)))),
		el("td", text(OneLine(c.Note))))
}
