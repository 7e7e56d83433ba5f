package inspect

import (
	"fmt"
	"io"
	"math"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
)

// Plot is a picture of a report.
type Plot struct {
	// Name is that of its file without the format, such as itl-survival.
	Name string

	figure figure
}

// Write writes the picture.
func (p *Plot) Write(w io.Writer, format Format) error { return p.figure.write(w, format) }

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
		plots = append(plots, Plot{kind.name + "-survival", survival}, Plot{kind.name + "-qq", figure{
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

func (f *figure) write(w io.Writer, format Format) error {
	out := format.begin(w, figureWidth, figureHeight, f.title)
	out.text(figureWidth/2, 20, "middle", f.title)
	f.axes(out)
	for _, m := range f.marks {
		x := f.px(m.x)
		out.path("axis", marked, [2]float64{x, plotTop}, [2]float64{x, plotBottom})
		out.text(x+4, plotTop+12, "start", m.name)
	}
	width := min(legendWidth, (plotRight-plotLeft)/max(len(f.lines), 1))
	for i, l := range f.lines {
		curve, key := curved, keyed
		if l.dashed {
			curve, key = dashed, stroke{keyed.width, dashed.dash, dashed.gap}
		}
		out.path(l.color, curve, f.points(l)...)
		x := float64(plotLeft + width*i) // above the plot, where no curve is
		out.path(l.color, key, [2]float64{x, plotTop - 16}, [2]float64{x + 24, plotTop - 16})
		out.text(x+30, plotTop-12, "start", safetext.Clip(l.name, (width-30)/letterWidth))
	}
	return out.end()
}

func (f *figure) axes(out picture) {
	for _, v := range f.x.ticks() {
		x := f.px(v)
		out.path("grid", thin, [2]float64{x, plotTop}, [2]float64{x, plotBottom})
		out.path("axis", thin, [2]float64{x, plotBottom}, [2]float64{x, plotBottom + 5})
		out.text(x, plotBottom+18, "middle", fmt.Sprintf("%g", round(v)))
	}
	for _, v := range f.y.ticks() {
		y := f.py(v)
		out.path("grid", thin, [2]float64{plotLeft, y}, [2]float64{plotRight, y})
		out.path("axis", thin, [2]float64{plotLeft, y}, [2]float64{plotLeft - 5, y})
		out.text(plotLeft-8, y+4, "end", fmt.Sprintf("%g", round(v)))
	}
	out.path("axis", thin, [2]float64{plotLeft, plotTop}, [2]float64{plotRight, plotTop}, [2]float64{plotRight, plotBottom},
		[2]float64{plotLeft, plotBottom}, [2]float64{plotLeft, plotTop})
	out.text((plotLeft+plotRight)/2, figureHeight-12, "middle", f.xName)
	out.upright(16, (plotTop+plotBottom)/2, f.yName)
}

// round takes off what sums of parts have too much.
func round(v float64) float64 { return math.Round(v*1e9) / 1e9 }

// points are where a line is drawn.
func (f *figure) points(l line) [][2]float64 {
	points := make([][2]float64, 0, 2*len(l.points))
	for i, p := range l.points {
		x, y := f.px(p[0]), f.py(p[1])
		if l.steps && i > 0 {
			points = append(points, [2]float64{x, points[len(points)-1][1]})
		}
		points = append(points, [2]float64{x, y})
	}
	return points
}
