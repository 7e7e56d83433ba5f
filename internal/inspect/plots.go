package inspect

import (
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
)

// Colors of what is drawn: the names of classes, which have one color on a light page and another on a dark one.
const (
	colorReal      = "c-black"
	colorPredicted = "c-orange"
	colorKnobs     = "c-blue"
	colorEqual     = "c-grey"
	colorWait      = "c-wait"
	colorPrefill   = "c-orange"
	colorDecode    = "c-blue"
)

// seriesColors are those of traces side by side. They can be distinguished without seeing red or green.
var seriesColors = []string{"c-black", "c-orange", "c-blue", "c-green", "c-pink", "c-yellow"}

// svgStyle is what all pictures look like. A picture follows the reader's choice of light or dark, alone as in a page.
const svgStyle = `<style>
.ground{fill:#ffffff}.ink{fill:#1b2129}.grid{stroke:#dfe3e8;fill:none}.axis{stroke:#5c6773;fill:none}.mark{stroke:#5c6773;stroke-dasharray:2 3}
.line{fill:none;stroke-width:1.5}.key{stroke-width:2}.dash{stroke-dasharray:6 4}
.c-black{stroke:#1b2129}.c-orange{stroke:#d55e00}.c-blue{stroke:#0072b2}.c-green{stroke:#00805d}.c-pink{stroke:#b0407f}.c-yellow{stroke:#a07800}.c-grey{stroke:#9aa3ad}.c-wait{stroke:#b4bcc5}
.bar.c-orange{fill:#d55e00}.bar.c-blue{fill:#0072b2}.bar.c-wait{fill:#b4bcc5}.bar{stroke:none}
@media (prefers-color-scheme:dark){
.ground{fill:#0f1318}.ink{fill:#e4e8ed}.grid{stroke:#2a323c}.axis{stroke:#97a3b0}.mark{stroke:#97a3b0}
.c-black{stroke:#e4e8ed}.c-orange{stroke:#ff9248}.c-blue{stroke:#56b4e9}.c-green{stroke:#3ccf9f}.c-pink{stroke:#e79ac6}.c-yellow{stroke:#f0d442}.c-grey{stroke:#6b7580}.c-wait{stroke:#4d5763}
.bar.c-orange{fill:#ff9248}.bar.c-blue{fill:#56b4e9}.bar.c-wait{fill:#4d5763}.bar{stroke:none}
}
</style>
`

// beginSVG writes what every picture begins with: nothing in it is fetched or run by a browser.
func beginSVG(out *sticky, width, height int, title string) {
	out.printf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12" role="img">`+"\n<title>", width, height)
	_ = xml.EscapeText(out, []byte(title)) // out keeps the error
	out.printf("</title>\n%s<rect class=\"ground\" width=\"%d\" height=\"%d\"/>\n", svgStyle, width, height)
}

// Plot is a picture of a report.
type Plot struct {
	// Name is that of its file, such as itl-survival.svg.
	Name string

	figure figure
}

// Write writes the picture as SVG.
func (p *Plot) Write(w io.Writer) error { return p.figure.write(w) }

// Plots are how many gaps and first tokens took longer than a time, and the quantiles of
// what was predicted over those of what was real. There are none of times that are all 0.
func (r *Report) Plots() []Plot {
	var plots []Plot
	for _, kind := range []struct {
		name, title string
		of          func(*Outcome) times
		band        bool
	}{
		{"itl", "Time between two tokens (ITL)", func(o *Outcome) times { return o.samples.itl }, true},
		{"ttft", "Time to the first token (TTFT)", func(o *Outcome) times { return o.samples.ttft }, false},
	} {
		real, predicted, knobs := kind.of(&r.Real), kind.of(&r.Predicted), kind.of(&r.Knobs)
		low, high, ok := span(real, predicted)
		if !ok {
			continue
		}
		x := axis{low: low, high: high, decades: true}
		survival := figure{
			title: kind.title, xName: "ms", yName: "part that took longer",
			x: x, y: axis{low: 1 / float64(10*max(len(real), 10)), high: 1, decades: true},
			lines: []line{
				survivalOf("real", colorReal, real, x), survivalOf("predicted", colorPredicted, predicted, x),
				survivalOf("best knobs", colorKnobs, knobs, x),
			},
		}
		if kind.band {
			survival.marks = []mark{{fmt.Sprintf("slow band from %.1f ms", r.BandFromMs), r.BandFromMs}}
		}
		plots = append(plots, Plot{kind.name + "-survival.svg", survival}, Plot{kind.name + "-qq.svg", figure{
			title: kind.title + ", quantiles", xName: "real, ms", yName: "predicted, ms", x: x, y: x,
			lines: []line{
				{name: "equal", color: colorEqual, points: [][2]float64{{low, low}, {high, high}}, dashed: true},
				quantilesOf("predicted", colorPredicted, real, predicted, x), quantilesOf("best knobs", colorKnobs, real, knobs, x),
			},
		}})
	}
	return plots
}

// span is from the 1000th to the longest of all times.
func span(all ...times) (low, high float64, ok bool) {
	for _, t := range all {
		if len(t) == 0 || t[len(t)-1] <= 0 {
			return 0, 0, false
		}
		from, to := t.quantile(0.001), t[len(t)-1]
		if from <= 0 {
			from = to / 1e4
		}
		if low == 0 || from < low {
			low = from
		}
		high = max(high, to)
	}
	if high < 2*low { // a range that has a tick
		high = 2 * low
	}
	return low, high, true
}

// survivalOf is the part of the times above each of them.
func survivalOf(name, color string, t times, x axis) line {
	l := line{name: name, color: color, steps: true, points: [][2]float64{{x.low, 1}}}
	n := float64(len(t))
	for _, i := range thinly(len(t)) {
		// The last one stands half a step above nothing, which decades do not show.
		left := max(1-float64(i+1)/n, 1/(2*n))
		l.points = append(l.points, [2]float64{min(max(t[i], x.low), x.high), left})
	}
	return l
}

// thinly are indices from 0 to n-1, ascending: all of them, or of many half for the slowest tenth.
func thinly(n int) []int {
	var all []int
	for k := range min(n, mostPoints) {
		i := k
		if n > mostPoints {
			i = int(towardsSlow(float64(k)/(mostPoints-1)) * float64(n-1))
		}
		if len(all) == 0 || i > all[len(all)-1] {
			all = append(all, i)
		}
	}
	return all
}

// towardsSlow maps 0 to 1 onto itself: half of it to the slowest tenth, closer together towards 1.
func towardsSlow(part float64) float64 {
	if part < 0.5 {
		return 1.8 * part
	}
	rest := 2 * (1 - part)
	return 1 - 0.1*rest*rest*rest
}

// quantilesOf is one distribution over another.
func quantilesOf(name, color string, real, other times, x axis) line {
	l := line{name: name, color: color}
	for i := 1; i < mostPoints; i++ {
		q := float64(i) / mostPoints
		inside := func(ms float64) float64 { return min(max(ms, x.low), x.high) }
		l.points = append(l.points, [2]float64{inside(real.quantile(q)), inside(other.quantile(q))})
	}
	return l
}

// figure is one plot of lines over two axes.
type figure struct {
	title, xName, yName string
	x, y                axis
	lines               []line
	marks               []mark
}

// axis is the range that is shown, on a scale of decades or an even one.
type axis struct {
	low, high float64
	decades   bool
}

// line is a curve; level lines go sideways first, as those of samples do.
type line struct {
	name, color string
	points      [][2]float64
	steps       bool
	dashed      bool
}

// mark is a vertical line with a name.
type mark struct {
	name string
	x    float64
}

// Places in a figure, in its own units.
const (
	figureWidth, figureHeight = 640, 420
	plotLeft, plotRight       = 64, 624
	plotTop, plotBottom       = 56, 368
	legendWidth               = 180 // of each line, at most
	letterWidth               = 6   // of a name in the legend
	mostPoints                = 400 // of a line: more would not be seen
)

// at is the part of the way from low to high, 0 to 1.
func (a axis) at(v float64) float64 {
	if a.decades {
		return math.Log(math.Max(v, a.low)/a.low) / math.Log(a.high/a.low)
	}
	return (v - a.low) / (a.high - a.low)
}

// ticks are the places that have a number.
func (a axis) ticks() []float64 {
	var ticks []float64
	if a.decades {
		for decade := math.Pow(10, math.Floor(math.Log10(a.low))); decade <= a.high; decade *= 10 {
			for _, n := range []float64{1, 2, 5} {
				if v := n * decade; v >= a.low*(1-1e-9) && v <= a.high*(1+1e-9) && (n == 1 || a.high/a.low < 500) {
					ticks = append(ticks, v)
				}
			}
		}
		return ticks
	}
	width := math.Pow(10, math.Floor(math.Log10((a.high-a.low)/4)))
	for _, n := range []float64{5, 2} {
		if (a.high-a.low)/(n*width) >= 4 {
			width *= n
			break
		}
	}
	for v := math.Ceil(a.low/width) * width; v <= a.high+width/1e6; v += width {
		ticks = append(ticks, v)
	}
	return ticks
}

func (f *figure) px(x float64) float64 { return plotLeft + f.x.at(x)*(plotRight-plotLeft) }
func (f *figure) py(y float64) float64 { return plotBottom - f.y.at(y)*(plotBottom-plotTop) }

// write writes the figure as SVG, with nothing in it that a browser would fetch or run.
func (f *figure) write(w io.Writer) error {
	out := &sticky{w: w}
	beginSVG(out, figureWidth, figureHeight, f.title)
	text(out, figureWidth/2, 20, "middle", f.title)
	f.axes(out)
	for _, m := range f.marks {
		x := f.px(m.x)
		out.printf("<path d=\"M%.1f %dV%d\" class=\"mark\"/>\n", x, plotTop, plotBottom)
		text(out, x+4, plotTop+12, "start", m.name)
	}
	width := min(legendWidth, (plotRight-plotLeft)/max(len(f.lines), 1))
	for i, l := range f.lines {
		f.line(out, l)
		x := plotLeft + width*i // above the plot, where no curve is
		out.printf("<path d=\"M%d %dh24\" class=\"key %s%s\"/>\n", x, plotTop-16, l.color, l.dash())
		text(out, float64(x+30), plotTop-12, "start", safetext.Clip(l.name, (width-30)/letterWidth))
	}
	out.printf("</svg>\n")
	return out.err
}

func (f *figure) axes(out *sticky) {
	out.printf("<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" class=\"axis\"/>\n", plotLeft, plotTop, plotRight-plotLeft, plotBottom-plotTop)
	for _, v := range f.x.ticks() {
		out.printf("<path d=\"M%.1f %dV%d\" class=\"grid\"/><path d=\"M%.1f %dv5\" class=\"axis\"/>\n", f.px(v), plotTop, plotBottom, f.px(v), plotBottom)
		text(out, f.px(v), plotBottom+18, "middle", fmt.Sprintf("%g", round(v)))
	}
	for _, v := range f.y.ticks() {
		out.printf("<path d=\"M%d %.1fH%d\" class=\"grid\"/><path d=\"M%d %.1fh-5\" class=\"axis\"/>\n", plotLeft, f.py(v), plotRight, plotLeft, f.py(v))
		text(out, plotLeft-8, f.py(v)+4, "end", fmt.Sprintf("%g", round(v)))
	}
	text(out, (plotLeft+plotRight)/2, figureHeight-12, "middle", f.xName)
	out.printf("<g transform=\"rotate(-90 16 %d)\">", (plotTop+plotBottom)/2)
	text(out, 16, (plotTop+plotBottom)/2, "middle", f.yName)
	out.printf("</g>\n")
}

// round takes off what sums of parts have too much.
func round(v float64) float64 { return math.Round(v*1e9) / 1e9 }

func (l *line) dash() string {
	if l.dashed {
		return " dash"
	}
	return ""
}

func (f *figure) line(out *sticky, l line) {
	var path strings.Builder
	for i, p := range l.points {
		x, y := f.px(p[0]), f.py(p[1])
		switch {
		case i == 0:
			fmt.Fprintf(&path, "M%.1f %.1f", x, y)
		case l.steps:
			fmt.Fprintf(&path, "H%.1fV%.1f", x, y)
		default:
			fmt.Fprintf(&path, "L%.1f %.1f", x, y)
		}
	}
	out.printf("<path d=\"%s\" class=\"line %s%s\"/>\n", path.String(), l.color, l.dash())
}

func text(out *sticky, x, y float64, anchor, s string) {
	out.printf("<text class=\"ink\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor)
	_ = xml.EscapeText(out, []byte(s)) // out keeps the error
	out.printf("</text>\n")
}
