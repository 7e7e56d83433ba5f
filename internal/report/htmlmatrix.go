package report

import "github.com/vllm-vcr/conformance/conformance"

// matrices are the tables of verdicts, one a suite.
func matrices(d *Document) content {
	return each(tables(d, func(*Case) string { return "" }), matrix)
}

// matrix has a row per line, or per assertion where these are many.
func matrix(t *table) contents {
	replays := t.suite == conformance.SuiteReplay
	heading, head, rows := "Lines", wideHead(t), each(t.rows, t.wideRow)
	if !replays && t.suite != "" {
		heading = "Suite " + string(t.suite)
	}
	if !replays && len(t.columns) > widest {
		head, rows = tallHead(t), each(t.columns, t.tallRow)
	}
	return contents{nl, lines(
		el("h2", text(heading)),
		el("div", class("wide"), el("table", class("matrix"), nl, lines(
			el("thead", el("tr", head)),
			el("tbody", nl, rows)))))}
}

func wideHead(t *table) contents {
	return contents{
		el("th", text("vLLM")),
		el("th", text("gates")),
		each(t.columns, func(a conformance.Assertion) element { return el("th", text(a)) }),
		el("th", class("number"), text("tokens")),
	}
}

func (t *table) wideRow(r *row) contents {
	gates := "no"
	if r.gating {
		gates = "yes"
	}
	return lines(el("tr",
		el("th", el("a", toAnchor(anchorOf(r.line)), text(r.line))),
		el("td", class(""), text(gates)),
		each(t.columns, r.verdictCell),
		el("td", class("number"), text(grouped(r.tokens)))))
}

func tallHead(t *table) contents {
	return contents{
		el("th", text("check")),
		each(t.rows, func(r *row) element { return el("th", text(r.line)) }),
	}
}

func (t *table) tallRow(a conformance.Assertion) contents {
	return lines(el("tr",
		el("th", text(a)),
		each(t.rows, func(r *row) element { return r.verdictCell(a) })))
}

// verdictCell sums up the cases of an assertion.
func (r *row) verdictCell(a conformance.Assertion) element {
	counts := r.cells[a]
	if counts.total() == 0 {
		return el("td", class("skip"), text("–"))
	}
	return el("td", class(classOf(counts.worst())), text(counts.cell()))
}
