package drift

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/report"
	"github.com/vllm-vcr/conformance/internal/report/page"
	"github.com/vllm-vcr/conformance/internal/upstream/wirediff"
)

// Preface is what the HTML report has before the cases that ran: the verdict, the release, each layer, and what the sources
// declare otherwise.
func (r *Report) Preface() page.Contents {
	class := map[Verdict]string{None: "pass", Found: "fail"}[r.Result.Verdict]
	return page.Contents{
		page.El("section", page.Class("verdict "+class), page.NL, page.Lines(
			page.El("b", page.Text("DRIFT: "+strings.ToUpper(string(r.Result.Verdict)))),
			page.El("p", page.Text(r.Summary())))),
		page.El("ul", page.Each(r.facts(), func(fact string) page.Element {
			return page.El("li", page.Text(safetext.Line(strings.ReplaceAll(fact, "`", ""))))
		})),
		page.When(len(r.Result.Layers) > 0, page.El("h2", page.Text("Layers")), r.layerTable()),
		page.Each(r.Result.Layers, func(l Layer) page.Contents {
			if !l.changed() {
				return nil
			}
			return page.Contents{page.El("h2", page.Text("What the sources declare otherwise")), changeTable(l.Diff)}
		}),
		page.When(r.adoption() != "", page.El("p", page.Text(safetext.Line(r.adoption())))),
	}
}

func (r *Report) layerTable() page.Element {
	return wideTable([]string{"layer", "drift", "why", "compared", "notes"}, page.Each(r.Result.Layers, func(l Layer) page.Element {
		return row(string(l.Name), verdictText(l.Verdict), l.Reason, l.Compared, strings.Join(slices.Concat(l.Notes, l.remarkable()), "; "))
	}))
}

func changeTable(d *wirediff.Diff) page.Element {
	return wideTable([]string{"level", "subject", "change", "breaks", "why", "upstream"}, page.Each(d.Changes, func(c wirediff.Change) page.Element {
		why := c.Reason
		if c.Caution != "" {
			why += " But " + c.Caution
		}
		return row(string(c.Level), c.Subject, c.What(), wirediff.JoinParties(c.Breaks), why, c.Where.String())
	}))
}

// wideTable is a table that scrolls where the window is narrow.
func wideTable(head []string, rows page.Content) page.Element {
	return page.El("div", page.Class("wide"), page.El("table",
		page.El("thead", page.El("tr", page.Each(head, func(name string) page.Element { return page.El("th", page.Text(name)) }))),
		page.El("tbody", page.NL, rows)))
}

func row(cells ...string) page.Element {
	return page.El("tr", page.Each(cells, func(cell string) page.Element { return page.El("td", page.Text(safetext.Line(cell))) }))
}

// html writes the HTML report of a check in which no case ran.
func (r *Report) html(w io.Writer) error {
	return report.Page(w, fmt.Sprintf("drift %s: %s", r.Release(), r.Result.Verdict), r.Preface())
}
