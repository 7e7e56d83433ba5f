package report

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/safetext"

	"github.com/vllm-vcr/conformance/internal/report/page"
)

// openCases is up to how many cases all lines are unfolded.
const openCases = 100

// lineOf is a line with all its goldens.
func lineOf(d *Document, l Line) page.Content {
	var groups page.Contents
	for _, t := range tables(&Document{Cases: casesOf(d, l.Line)}, (*Case).group) {
		for _, r := range t.rows {
			groups = append(groups, groupOf(r, !d.deterministic()), page.NL)
		}
	}
	return page.El("details", page.Class("line"), page.Attr("id", anchorOf(l.Line)), page.AttrWhen(len(d.Cases) <= openCases, page.Bare("open")), page.NL,
		page.El("summary",
			page.El("code", page.Text(l.Line)), page.Text(" "), page.El("span", page.Class("quiet"), page.Text(briefOf(l))),
			page.El("span", page.Class("end"), chips(l.Counts))), page.NL,
		page.El("div", page.Class("body"), page.NL, groups))
}

func anchorOf(line string) string { return "line-" + line }

// briefOf says what a line is in a few words.
func briefOf(l Line) string {
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
func groupOf(r *row, timed bool) page.Content {
	name, first := r.group, r.cases[0]
	if name == "-" {
		name = "nothing to assert"
	}
	counts := Counts{}
	for _, c := range r.cases {
		counts[c.Verdict]++
	}
	return page.El("details", page.Class("golden"), page.Attr("data-name", r.line+"/"+name), page.NL,
		page.El("summary", page.El("code", page.Text(name)), page.El("span", page.Class("end"), chips(counts))), page.NL,
		page.El("div", page.Class("body"), page.NL, page.Lines(
			caseTable(r.cases, timed),
			facts(
				fact{"golden", first.Location}, fact{"registered", first.Entry},
				fact{"sha256", first.SHA256}, fact{"tokens_sha256", first.TokensSHA256}))))
}

func caseTable(cases []*Case, timed bool) page.Content {
	number := page.Class("number")
	head := page.El("tr",
		page.El("th", page.Text("check")),
		page.El("th", page.Text("verdict")),
		page.El("th", number, page.Text("asserted")),
		page.El("th", number, page.Text("tokens")),
		page.When(timed, page.El("th", number, page.Text("ms"))),
		page.El("th", page.Text("note")))
	return page.El("div", page.Class("wide"), page.El("table",
		page.El("thead", head),
		page.El("tbody", page.NL, page.Each(cases, func(c *Case) page.Contents { return page.Lines(caseRow(c, timed)) }))))
}

func caseRow(c *Case, timed bool) page.Content {
	number := page.Class("number")
	return page.El("tr",
		page.El("td", page.Text(cmp.Or(c.Check, "-"))),
		page.El("td", page.Class(classOf(c.Verdict)), page.Text(c.Verdict)),
		page.El("td", number, page.Text(strconv.Itoa(c.Asserted))),
		page.El("td", number, page.Text(strconv.Itoa(c.Tokens))),
		page.When(timed, page.El("td", number, page.Text(strconv.FormatFloat(c.DurationMs, 'f', 1, 64)))),
		page.El("td", page.Text(safetext.Line(c.Note))))
}
