package report

import (
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/report/page"
)

// matrices are the tables of verdicts, one a suite.
func matrices(d *Document) page.Content {
	return page.Each(tables(d, func(*Case) string { return "" }), matrix)
}

// matrix has a row per line, or per assertion where these are many.
func matrix(t *table) page.Contents {
	replays := t.suite == conformance.SuiteReplay
	heading, head, rows := "Lines", wideHead(t), page.Each(t.rows, t.wideRow)
	if !replays && t.suite != "" {
		heading = "Suite " + string(t.suite)
	}
	if !replays && len(t.columns) > widest {
		head, rows = tallHead(t), page.Each(t.columns, t.tallRow)
	}
	return page.Contents{page.NL, page.Lines(
		page.El("h2", page.Text(heading)),
		page.El("div", page.Class("wide"), page.El("table", page.Class("matrix"), page.NL, page.Lines(
			page.El("thead", page.El("tr", head)),
			page.El("tbody", page.NL, rows)))))}
}

func wideHead(t *table) page.Contents {
	return page.Contents{
		page.El("th", page.Text("vLLM")),
		page.El("th", page.Text("gates")),
		page.Each(t.columns, func(a conformance.Assertion) page.Element { return page.El("th", page.Text(a)) }),
		page.El("th", page.Class("number"), page.Text("tokens")),
	}
}

func (t *table) wideRow(r *row) page.Contents {
	gates := "no"
	if r.gating {
		gates = "yes"
	}
	return page.Lines(page.El("tr",
		page.El("th", page.El("a", page.ToAnchor(anchorOf(r.line)), page.Text(r.line))),
		page.El("td", page.Class(""), page.Text(gates)),
		page.Each(t.columns, r.verdictCell),
		page.El("td", page.Class("number"), page.Text(grouped(r.tokens)))))
}

func tallHead(t *table) page.Contents {
	return page.Contents{
		page.El("th", page.Text("check")),
		page.Each(t.rows, func(r *row) page.Element { return page.El("th", page.Text(r.line)) }),
	}
}

func (t *table) tallRow(a conformance.Assertion) page.Contents {
	return page.Lines(page.El("tr",
		page.El("th", page.Text(a)),
		page.Each(t.rows, func(r *row) page.Element { return r.verdictCell(a) })))
}

// verdictCell sums up the cases of an assertion.
func (r *row) verdictCell(a conformance.Assertion) page.Element {
	counts := r.cells[a]
	if totalOf(counts) == 0 {
		return page.El("td", page.Class("skip"), page.Text("–"))
	}
	return page.El("td", page.Class(classOf(worstOf(counts))), page.Text(cellOf(counts)))
}
