package inspect

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/report/page"
)

// expanded is how many quantiles stand for a distribution in a picture.
const expanded = 20_000

// drawn are the values of a sketch, or of many quantiles: a curve does not show more.
func (s *sketch) drawn() times {
	if !s.many {
		return sortedTimes(append([]float64{}, s.few...))
	}
	all := make(times, 0, expanded)
	passed := 0
	s.each(func(v float64, n int) {
		passed += n
		for len(all) < passed*expanded/s.count {
			all = append(all, v)
		}
	})
	return all
}

// Plots are pictures of the distributions: how many values exceed a time, quantiles over those of the baseline, and, where
// the traces have them, gaps beside their means, turns of conversations, and outputs of several tokens.
func (c *Comparison) Plots() []Plot {
	var plots []Plot
	var names []string
	for i := range c.Traces {
		names = append(names, c.Traces[i].Name)
	}
	names = shortNames(names)
	for m, name := range metrics {
		var all []curve
		for i, one := range c.all {
			all = append(all, curve{names[i], i, one.whole(m).drawn()})
		}
		plots = append(plots, survivalPlot(name+"-survival", metricTitles[m], all)...)
		plots = append(plots, quantilePlot(name+"-qq", metricTitles[m], all)...)
	}
	for i, one := range c.all {
		plots = append(plots, survivalPlot(fmt.Sprintf("mean-%d", i+1), "Each gap, and the mean of each request: "+safetext.Clip(names[i], 40), []curve{
			{"each gap (ITL)", 0, one.whole(1).drawn()}, {"mean of a request (TPOT)", 1, one.whole(2).drawn()},
		})...)
		if one.laterTurns.count > 0 {
			plots = append(plots, survivalPlot(fmt.Sprintf("turns-%d", i+1), "TTFT by turn: "+safetext.Clip(names[i], 40), []curve{
				{"first turns", 0, one.firstTurn.drawn()}, {"later turns", 1, one.laterTurns.drawn()},
			})...)
		}
	}
	return append(plots, c.sizesPlot(names)...)
}

// shortNames are paths without the folders that all begin with, and without the end that all have in common: a legend has
// little room.
func shortNames(paths []string) []string {
	first := paths[0]
	begin, end := len(first), len(first)
	for _, path := range paths[1:] {
		common := 0
		for common < min(begin, len(path)) && path[common] == first[common] {
			common++
		}
		begin, common = common, 0
		for common < min(end, len(path)) && path[len(path)-1-common] == first[len(first)-1-common] {
			common++
		}
		end = common
	}
	begin = strings.LastIndexByte(first[:begin], '/') + 1
	if slash := strings.IndexByte(first[len(first)-end:], '/'); slash >= 0 {
		end -= slash
	} else {
		end = 0
	}
	var short []string
	for _, path := range paths {
		name := path[begin:max(len(path)-end, begin)]
		if name == "" {
			name = path[strings.LastIndexByte(path, '/')+1:]
		}
		short = append(short, name)
	}
	return short
}

// curve is a distribution in a picture, by its place among the colors.
type curve struct {
	name  string
	color int
	times times
}

// withValues are the curves that a scale of decades can show, and their axis.
func withValues(all []curve) (shown []curve, x axis) {
	var values []times
	for _, one := range all {
		if len(one.times) > 0 && one.times[len(one.times)-1] > 0 {
			shown, values = append(shown, one), append(values, one.times)
		}
	}
	low, high, _ := span(values...)
	return shown, axis{low: low, high: high, decades: true}
}

func (c *curve) paint() string { return seriesColors[c.color%len(seriesColors)] }

func survivalPlot(name, title string, all []curve) []Plot {
	all, x := withValues(all)
	if len(all) == 0 {
		return nil
	}
	f := figure{title: title, xName: "ms", yName: "part that took longer", x: x, y: axis{low: 0.1, high: 1, decades: true}}
	for i := range all {
		f.y.low = min(f.y.low, 1/float64(10*max(len(all[i].times), 10)))
		f.lines = append(f.lines, survivalOf(all[i].name, all[i].paint(), all[i].times, x))
	}
	return []Plot{{name, f}}
}

func quantilePlot(name, title string, all []curve) []Plot {
	shown, x := withValues(all)
	if len(shown) != len(all) {
		return nil
	}
	f := figure{
		title: title + ", quantiles", xName: "baseline, ms", yName: "ms", x: x, y: x,
		lines: []line{{name: "equal", color: colorEqual, points: [][2]float64{{x.low, x.low}, {x.high, x.high}}, dashed: true}},
	}
	for i := range all[1:] {
		other := &all[i+1]
		f.lines = append(f.lines, quantilesOf(other.name, other.paint(), all[0].times, other.times, x))
	}
	return []Plot{{name, f}}
}

// sizesPlot is how many outputs have at least so many tokens, if some have more than one.
func (c *Comparison) sizesPlot(names []string) []Plot {
	most := 0.0
	for _, one := range c.all {
		most = max(most, one.sizes.high)
	}
	if most <= 1 {
		return nil
	}
	f := figure{
		title: "Tokens of an output (speculative decoding, diffusion)", xName: "tokens", yName: "part that has more",
		x: axis{low: 0, high: most}, y: axis{low: 0, high: 1},
	}
	for i, one := range c.all {
		if one.sizes.count == 0 {
			continue
		}
		of := curve{names[i], i, one.sizes.drawn()}
		f.lines = append(f.lines, survivalOf(of.name, of.paint(), of.times, f.x))
	}
	return []Plot{{"tokens-of-outputs", f}}
}

// comparePage is what the page has besides the style of all pages.
const comparePage = page.Markup(`
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(420px, 1fr)); gap: 16px; }
.plots svg { width: 100%; height: auto; border: 1px solid var(--line); border-radius: 8px; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
.verdict { font-size: 18px; font-weight: 600; }
.worse { color: var(--fail); } .better { color: var(--pass); } .unclear { color: var(--known); }
`)

// HTML writes the comparison as a page that needs nothing else, with its plots.
func (c *Comparison) HTML(w io.Writer) error {
	var tables page.Contents
	for _, t := range c.tables() {
		tables = append(tables, t.html())
	}
	var notes page.Contents
	for _, note := range c.Notes {
		notes = append(notes, page.El("li", page.Text(safetext.Line(note))))
	}
	var worse page.Contents
	for i := range c.Regressions {
		worse = append(worse, page.El("li", page.Text(safetext.Line(c.Regressions[i].sentence()))))
	}
	class := "verdict worse"
	if c.Pass && c.Judged > 0 {
		class = "verdict better"
	}
	plots := page.Each(c.Plots(), func(p Plot) page.Later {
		return func(w *bufio.Writer) { _ = p.Write(w, SVG) } // w keeps the error
	})
	return page.Write(w, page.Lines(
		page.Doctype,
		page.El("html", page.Attr("lang", "en"), page.NL, page.Lines(
			page.El("head", page.NL, page.Meta, page.Lines(
				page.El("title", page.Text("Comparison with "+safetext.Line(c.Traces[0].Name))), page.El("style", page.Style, comparePage))),
			page.El("body", page.NL, page.El("main", page.NL, page.Lines(
				page.El("h1", page.Text("Comparison with "+safetext.Line(c.Traces[0].Name))),
				page.El("p", page.Class(class), page.Text(c.verdict())),
				page.When(len(worse) > 0, page.El("h2", page.Text("Regressions, the largest first")), page.El("ol", worse)),
				page.When(len(notes) > 0, page.El("h2", page.Text("Notes")), page.El("ul", notes)),
				tables, page.El("h2", page.Text("Plots")), page.El("div", page.Class("plots"), page.NL, plots))))))))
}

func (t *table) html() page.Content {
	cell := func(tag page.Markup, c int, text string) page.Content {
		class := ""
		if c >= t.left {
			class = "number"
		}
		switch text {
		case verdictWorse, verdictBetter, verdictUnclear:
			class += " " + text
		}
		return page.El(tag, page.AttrWhen(class != "", page.Class(class)), page.Text(safetext.Line(text)))
	}
	row := func(tag page.Markup, cells []string) page.Content {
		var all page.Contents
		for c, text := range cells {
			all = append(all, cell(tag, c, text))
		}
		return page.El("tr", all)
	}
	var rows page.Contents
	for _, cells := range t.rows {
		rows = append(rows, row("td", cells), page.NL)
	}
	return page.Lines(page.When(t.title != "", page.El("h2", page.Text(t.title))),
		page.El("div", page.Class("wide"), page.El("table", page.El("thead", row("th", t.head)), page.NL, page.El("tbody", page.NL, rows))))
}
