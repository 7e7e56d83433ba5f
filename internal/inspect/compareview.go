package inspect

import (
	"cmp"
	"fmt"
	"html/template"
	"io"
	"math"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/report"
)

// expanded is how many quantiles a picture shows of a distribution.
const expanded = 20_000

// drawn are the values of a sketch, or of many quantiles: a curve does not show more.
func (s *sketch) drawn() times {
	if s.many == nil {
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
	return sortedTimes(all)
}

// Plots are pictures of the distributions: how many values exceed a time, quantiles over those of the baseline, and, where
// the traces have them, gaps and their means, turns of conversations, and outputs of several tokens.
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
			all = append(all, curve{counted(names[i], one.whole(m).count), i, one.whole(m).drawn()})
		}
		plots = append(plots, survivalPlot(name+"-survival", metricTitles[m], all)...)
		plots = append(plots, quantilePlot(name+"-qq", metricTitles[m], "baseline, ms", "ms", all)...)
	}
	for i, one := range c.all {
		plots = append(plots, survivalPlot(fmt.Sprintf("mean-%d", i+1), "Each gap, and the mean of each request: "+safetext.Clip(names[i], 40), []curve{
			{counted("gaps: ITL", one.whole(1).count), 0, one.whole(1).drawn()}, {counted("means: TPOT", one.whole(2).count), 1, one.whole(2).drawn()},
		})...)
		if one.laterTurns.count > 0 {
			plots = append(plots, survivalPlot(fmt.Sprintf("turns-%d", i+1), "TTFT by turn: "+safetext.Clip(names[i], 40), []curve{
				{counted("first turns", one.firstTurn.count), 0, one.firstTurn.drawn()}, {counted("later turns", one.laterTurns.count), 1, one.laterTurns.drawn()},
			})...)
		}
	}
	var subjects []string
	for _, one := range c.all {
		subjects = append(subjects, subjectOf(one.summary.Model, one.summary.GPU))
	}
	return about(append(plots, c.sizesPlot(names)...), subjects)
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
		name = cmp.Or(name, path[strings.LastIndexByte(path, '/')+1:])
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

// withValues are the curves that a scale of decades can show, and their axis, from the 1000th to the longest of all times.
func withValues(all []curve) (shown []curve, x axis) {
	x = axis{low: math.Inf(1), decades: true}
	for _, one := range all {
		t := one.times
		if len(t) == 0 || t[len(t)-1] <= 0 {
			continue
		}
		shown = append(shown, one)
		from, to := t.quantile(0.001), t[len(t)-1]
		if from <= 0 {
			from = to / 1e4
		}
		x.low, x.high = min(x.low, from), max(x.high, to)
	}
	x.high = max(1.05*x.high, 2*x.low) // the longest is within the frame, and a range has a tick
	return shown, x
}

// counted is the name of a curve in a legend, with the number of its values.
func counted(name string, n int) string { return fmt.Sprintf("%s (%d)", name, n) }

func (c *curve) paint() string { return seriesColors[c.color%len(seriesColors)] }

func survivalPlot(name, title string, all []curve) []Plot {
	all, x := withValues(all)
	if len(all) == 0 {
		return nil
	}
	f := figure{title: title, xName: "ms", yName: "fraction that took longer", x: x, y: axis{low: 0.1, high: 1, decades: true}}
	for i := range all {
		f.y.low = min(f.y.low, 1/float64(3*max(len(all[i].times), 10)))
		f.lines = append(f.lines, survivalOf(all[i].name, all[i].paint(), all[i].times, x))
	}
	return []Plot{{name, f}}
}

// quantilePlot has the quantiles of each distribution over those of the first; nil if not all have values.
func quantilePlot(name, title, xName, yName string, all []curve) []Plot {
	shown, x := withValues(all)
	if len(shown) != len(all) {
		return nil
	}
	f := figure{
		title: title + ", quantiles", xName: xName, yName: yName, x: x, y: x,
		lines: []line{{name: "equal", color: colorEqual, points: [][2]float64{{x.low, x.low}, {x.high, x.high}}, dashed: true}},
	}
	for _, percent := range []float64{50, 90, 99} {
		f.marks = append(f.marks, mark{fmt.Sprintf("p%g", percent), all[0].times.quantile(percent / 100)})
	}
	for i := range all[1:] {
		other := &all[i+1]
		f.lines = append(f.lines, quantilesOf(other.name, other.paint(), all[0].times, other.times, x))
	}
	return []Plot{{name, f}}
}

// sizesPlot is how many outputs have at least so many tokens, if some have more than one.
func (c *Comparison) sizesPlot(names []string) []Plot {
	largest := 0.0
	for _, one := range c.all {
		largest = max(largest, one.sizes.high)
	}
	if largest <= 1 {
		return nil
	}
	f := figure{
		title: "Tokens of an output (speculative decoding, diffusion)", xName: "tokens", yName: "part that has more",
		x: axis{low: 0, high: largest}, y: axis{low: 0, high: 1},
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

var comparePage = report.NewPageTemplate(pages, template.FuncMap{"short": short}, "page/compare.html", "page/figure.svg")

// compareData is what compare.html shows.
type compareData struct {
	Baseline, Verdict  string
	Passes             bool
	Regressions, Notes []string
	Tables             []tableData
	Plots              []figureData
}

type tableData struct {
	Title string
	Head  []cellData
	Rows  [][]cellData
}

type cellData struct{ Class, Text string }

// HTML writes the comparison as a page that needs nothing else, with its plots.
func (c *Comparison) HTML(w io.Writer) error {
	data := compareData{Baseline: c.Traces[0].Name, Verdict: c.verdict(), Passes: c.Pass && c.Judged > 0, Notes: c.Notes}
	for i := range c.Regressions {
		data.Regressions = append(data.Regressions, c.Regressions[i].sentence())
	}
	for _, t := range c.tables() {
		one := tableData{Title: t.title, Head: t.cells(t.head)}
		for _, row := range t.rows {
			one.Rows = append(one.Rows, t.cells(row))
		}
		data.Tables = append(data.Tables, one)
	}
	for _, p := range c.Plots() {
		data.Plots = append(data.Plots, p.figure.data())
	}
	return comparePage.Write(w, data)
}

func (t *table) cells(row []string) (all []cellData) {
	for c, text := range row {
		var class []string
		if c >= t.left {
			class = append(class, "number")
		}
		if text == verdictWorse || text == verdictBetter || text == verdictUnclear {
			class = append(class, text)
		}
		all = append(all, cellData{strings.Join(class, " "), text})
	}
	return all
}
