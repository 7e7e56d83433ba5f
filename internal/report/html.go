package report

import (
	"bufio"
	_ "embed"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/conformance"
)

var (
	//go:embed page/style.css
	pageStyle markup
	//go:embed page/script.js
	pageScript markup
)

// pageMeta lets the page load nothing.
const pageMeta = markup(`<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:">
`)

// openCards is how many of the failed cases are unfolded.
const openCards = 10

// HTML writes one page that needs nothing else: no network, and no script but for
// filters and the copying of commands.
func HTML(w io.Writer, d *Document) error {
	b := bufio.NewWriter(w)
	htmlPage(d).write(b)
	return b.Flush()
}

func htmlPage(d *Document) content {
	return lines(
		markup("<!DOCTYPE html>"),
		el("html", attr("lang", "en"), nl, lines(
			el("head", nl,
				pageMeta, lines(
					el("title", text("conformance: "+d.Reason)),
					el("style", pageStyle))),
			el("body", nl, lines(
				el("main", nl, lines(
					el("h1", text("vLLM engine-core conformance")),
					verdictBox(d),
					matrices(d),
					problems(d),
					redCards(d),
					knownCases(d),
					allCases(d),
					footer(d))),
				el("script", pageScript))))))
}

// verdictBox is the outcome and what was counted.
func verdictBox(d *Document) content {
	timed := !d.deterministic()
	return el("section", class("verdict "+classOf(d.Verdict)), nl, lines(
		el("b", text(strings.ToUpper(string(d.Verdict)))),
		el("p", text(d.Reason)),
		el("div", class("chips"),
			chips(d.Counts),
			chip("", grouped(d.Tokens)+" tokens compared"),
			when(timed, chip("", took(d.DurationMs))))))
}

// problems are what is wrong with the run rather than with a case.
func problems(d *Document) contents {
	return when(len(d.Problems) > 0, nl, lines(
		el("h2", text("Problems of the run")),
		each(d.Problems, func(f conformance.Failure) element {
			return el("div", class("finding"), el("p", codeLink(f.Code, d.Findings[f.Code], attribute{}), text(OneLine(f.Message))))
		})))
}

// redCards are the cases that are not as they should be, the first unfolded.
func redCards(d *Document) contents {
	red := redCases(d)
	if len(red) == 0 {
		return nil
	}
	var cards contents
	for i, c := range red {
		cards = append(cards, card(d, c, i < openCards), nl)
	}
	return contents{nl, lines(
		el("h2", text("Not as it should be "), el("small", text(plural(len(red), "case")))),
		filterBox("red", "Filter by line, golden, check or code", "Filter the cases that failed"),
		el("div", attr("id", "red"), nl, cards))}
}

// filterBox is where a reader says which items of a list are shown. The script
// fills its span, and shows it.
func filterBox(list, placeholder, label string) content {
	search := void("input",
		attr("type", "search"), attr("data-filter", list), attr("placeholder", placeholder), attr("aria-label", label))
	return el("div", class("filter"), search, el("span", class("quiet"), attr("id", list+"-shown")))
}

// knownCases are the cases that an expectation made no failures of.
func knownCases(d *Document) contents {
	known := expectedCases(d)
	return when(len(known) > 0, nl, lines(
		el("h2", text("Known "), el("small", text("fails as expected"))),
		el("ul", class("plain"), each(known, func(c *Case) element {
			return el("li",
				chip("known", string(c.Verdict)), text(" "), el("code", text(c.Name)), text(" "+c.Expected.says()))
		}))))
}

// footer says of every run what ran, on what.
func footer(d *Document) content {
	return el("footer", nl, each(d.Runs, runOf))
}

func runOf(r Run) contents {
	return lines(
		el("p", text(r.describe())),
		when(len(r.Arguments) > 0, el("p", el("code", text(quoted(r.Arguments))))),
		each(r.Inputs, func(in Input) element {
			return el("p", text(in.Path+" "), el("code", text("sha256:"+in.SHA256)))
		}),
		each(slices.Sorted(maps.Keys(r.Subject.Versions)), func(line string) element {
			return el("p", text(line+": "+OneLine(r.Subject.Versions[line])))
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
