package report

import (
	_ "embed"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/plural"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/report/page"
)

var (
	//go:embed assets/style.css
	pageStyle page.Markup
	//go:embed assets/script.js
	pageScript page.Markup
)

// openCards is how many of the failed cases are unfolded.
const openCards = 10

// HTML writes one page that needs nothing else: no network, and no script but for
// filters and the copying of commands.
func HTML(w io.Writer, d *Document) error {
	return page.Write(w, htmlPage(d))
}

func htmlPage(d *Document) page.Content {
	return whole("conformance: "+d.Reason,
		d.Preface,
		verdictBox(d),
		matrices(d),
		coverageSection(d),
		problems(d),
		redCards(d),
		knownCases(d),
		allCases(d),
		footer(d))
}

// Page writes a page of this look that has no cases.
func Page(w io.Writer, title string, contents page.Contents) error {
	return page.Write(w, whole(title, contents))
}

func whole(title string, parts ...page.Content) page.Content {
	return page.Lines(
		page.Doctype,
		page.El("html", page.Attr("lang", "en"), page.NL, page.Lines(
			page.El("head", page.NL,
				page.Meta, page.Lines(
					page.El("title", page.Text(title)),
					page.El("style", page.Style, pageStyle))),
			page.El("body", page.NL, page.Lines(
				page.El("main", page.NL, page.Lines(append([]page.Content{page.El("h1", page.Text("vLLM engine-core conformance"))}, parts...)...)),
				page.El("script", pageScript))))))
}

// verdictBox is the outcome and what was counted.
func verdictBox(d *Document) page.Content {
	timed := !d.deterministic()
	return page.El("section", page.Class("verdict "+classOf(d.Verdict)), page.NL, page.Lines(
		page.El("b", page.Text(strings.ToUpper(string(d.Verdict)))),
		page.El("p", page.Text(d.Reason)),
		page.El("div", page.Class("chips"),
			chips(d.Counts),
			chip("", grouped(d.Tokens)+" tokens compared"),
			page.When(timed, chip("", took(d.DurationMs))))))
}

// problems are what is wrong with the run rather than with a case.
func problems(d *Document) page.Contents {
	return page.When(len(d.Problems) > 0, page.NL, page.Lines(
		page.El("h2", page.Text("Problems of the run")),
		page.Each(d.Problems, func(f conformance.Failure) page.Element {
			return page.El("div", page.Class("finding"), page.El("p", codeLink(f.Code, d.Findings[f.Code], page.Attribute{}), page.Text(safetext.Line(f.Message))))
		})))
}

// redCards are the cases that are not as they should be, the first unfolded.
func redCards(d *Document) page.Contents {
	red := redCases(d)
	if len(red) == 0 {
		return nil
	}
	var cards page.Contents
	failed, also := together(red)
	for i, c := range failed {
		cards = append(cards, card(d, c, also[c], i < openCards), page.NL)
	}
	return page.Contents{page.NL, page.Lines(
		page.El("h2", page.Text("Failing cases "), page.El("small", page.Text(plural.Count(len(red), "case")))),
		filterBox("red", "Filter by line, golden, check or code", "Filter the cases that failed"),
		page.El("div", page.Attr("id", "red"), page.NL, cards))}
}

// filterBox is where a reader says which items of a list are shown. The script
// fills its span, and shows it.
func filterBox(list, placeholder, label string) page.Content {
	search := page.Void("input",
		page.Attr("type", "search"), page.Attr("data-filter", list), page.Attr("placeholder", placeholder), page.Attr("aria-label", label))
	return page.El("div", page.Class("filter"), search, page.El("span", page.Class("quiet"), page.Attr("id", list+"-shown")))
}

// knownCases are the cases that an expectation made no failures of.
func knownCases(d *Document) page.Contents {
	known := expectedCases(d)
	return page.When(len(known) > 0, page.NL, page.Lines(
		page.El("h2", page.Text("Known "), page.El("small", page.Text("fails as expected"))),
		page.El("ul", page.Class("plain"), page.Each(known, func(c *Case) page.Element {
			return page.El("li",
				chip("known", string(c.Verdict)), page.Text(" "), page.El("code", page.Text(c.Name)), page.Text(" "+c.Expected.says()))
		}))))
}

// footer says of every run what ran, on what.
func footer(d *Document) page.Content {
	return page.El("footer", page.NL, page.Each(d.Runs, runOf))
}

func runOf(r Run) page.Contents {
	return page.Lines(
		page.El("p", page.Text(r.describe())),
		page.When(len(r.Arguments) > 0, page.El("p", page.El("code", page.Text(quoted(r.Arguments))))),
		page.Each(r.Inputs, func(in Input) page.Element {
			return page.El("p", page.Text(in.Path+" "), page.El("code", page.Text("sha256:"+in.SHA256)))
		}),
		page.Each(slices.Sorted(maps.Keys(r.Subject.Versions)), func(line string) page.Element {
			return page.El("p", page.Text(line+": "+safetext.Line(r.Subject.Versions[line])))
		}))
}

// quoted is the command of the arguments, as a shell reads it.
func quoted(arguments []string) string {
	words := make([]string, len(arguments))
	for i, word := range arguments {
		words[i] = quote(word)
	}
	return strings.Join(words, " ")
}

// classOf is the style of a verdict.
func classOf(v conformance.Verdict) string {
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

// chip is a few words in the colour of a verdict.
func chip(style, words string) page.Content {
	return page.El("span", page.Class("chip "+style), page.Text(words))
}

// chips are the counts, those that are zero left out.
func chips(c Counts) page.Contents {
	var all page.Contents
	for _, v := range conformance.Verdicts() {
		if c[v] > 0 {
			all = append(all, chip(classOf(v), counted(c[v], v)))
		}
	}
	return all
}

// fact is a name and a text.
type fact struct{ name, words string }

// facts are a list of those that have a text.
func facts(all ...fact) page.Contents {
	var some page.Contents
	for _, f := range all {
		if f.words != "" {
			some = append(some, page.El("dt", page.Text(f.name)), page.El("dd", page.El("code", page.Text(f.words))))
		}
	}
	return page.When(len(some) > 0, page.El("dl", page.Class("facts"), some))
}

// allCases are the cases by line and golden.
func allCases(d *Document) page.Contents {
	return page.When(len(d.Lines) > 0, page.NL, page.Lines(
		page.El("h2", page.Text("All cases")),
		filterBox("all", "Filter by line and golden", "Filter all cases"),
		page.El("div", page.Attr("id", "all"), page.NL, page.Each(d.Lines, func(l Line) page.Contents { return page.Lines(lineOf(d, l)) }))))
}

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
