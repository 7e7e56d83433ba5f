package inspect

import (
	"embed"
	"html/template"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/report"
)

//go:embed page
var pages embed.FS

var images = report.NewPageTemplate(pages, template.FuncMap{"short": short}, "page/figure.svg", "page/timeline.svg")

// Colors of what is drawn: classes of colors.css, which have one color on a light page and another on a dark one.
const (
	colorEqual   = "c-grey"
	colorWait    = "c-wait"
	colorPrefill = "c-orange"
	colorDecode  = "c-blue"
)

// seriesColors are those of traces side by side. They can be distinguished without seeing red or green.
var seriesColors = []string{"c-black", "c-orange", "c-blue", "c-green", "c-pink", "c-yellow"}

// figure is one plot of lines over two axes.
type figure struct {
	title, xName, yName string
	x, y                axis
	lines               []line
	band                *band
	marks               []mark
}

// axis is the range that is shown, on a scale of decades or an even one.
type axis struct {
	low, high float64
	decades   bool
}

// line is a curve; with steps, it goes sideways first, as that of samples does.
type line struct {
	name, color string
	points      [][2]float64
	steps       bool
	dashed      bool
}

// band is the area between two curves.
type band struct {
	color     string
	low, high [][2]float64
}

type mark struct {
	name string
	x    float64
}

// Places in figure.svg, in its own units.
const (
	plotLeft, plotRight = 64, 624
	plotTop, plotBottom = 56, 368
	legendWidth         = 180 // of each line, at most
	letterWidth         = 6   // of a name in the legend
	maxPoints           = 400 // of a line: more would not be seen
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

// figureData is what figure.svg shows.
type figureData struct {
	Title, XName, YName string
	XTicks, YTicks      []tick
	Marks               []tick
	Lines               []lineData
	Band                *lineData
}

// tick is a place on an axis with its number, or a mark with its name.
type tick struct {
	At   float64
	Text string
}

type lineData struct {
	Color, Path, Name string
	Dashed            bool
	Key               float64 // where its entry in the legend begins
}

func (f *figure) data() figureData {
	d := figureData{Title: safetext.Line(f.title), XName: f.xName, YName: f.yName}
	for _, v := range f.x.ticks() {
		d.XTicks = append(d.XTicks, tick{f.px(v), tickText(v)})
	}
	for _, v := range f.y.ticks() {
		d.YTicks = append(d.YTicks, tick{f.py(v), tickText(v)})
	}
	for _, m := range f.marks {
		d.Marks = append(d.Marks, tick{f.px(m.x), m.name})
	}
	if f.band != nil {
		around := slices.Clone(f.band.low)
		slices.Reverse(around)
		d.Band = &lineData{Color: f.band.color, Path: f.path(line{points: slices.Concat(f.band.high, around)}) + "Z"}
	}
	width := min(legendWidth, (plotRight-plotLeft)/max(len(f.lines), 1))
	for i, l := range f.lines {
		name := safetext.Clip(l.name, (width-30)/letterWidth)
		d.Lines = append(d.Lines, lineData{l.color, f.path(l), name, l.dashed, float64(plotLeft + width*i)})
	}
	return d
}

// path is a line as an SVG path.
func (f *figure) path(l line) string {
	var path strings.Builder
	var before [2]string
	for i, p := range l.points {
		at := [2]string{short(f.px(p[0])), short(f.py(p[1]))}
		switch {
		case i == 0:
			path.WriteString("M" + at[0] + " " + at[1])
		case at == before:
		case l.steps || at[1] == before[1]:
			path.WriteString("H" + at[0])
			if at[1] != before[1] {
				path.WriteString("V" + at[1])
			}
		default:
			path.WriteString("L" + at[0] + " " + at[1])
		}
		before = at
	}
	return path.String()
}

// short is a length to a tenth of a unit.
func short(v float64) string { return strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0") }

// tickText is the number at a tick, without what sums of parts have too much.
func tickText(v float64) string {
	if v > 0 && v < 1e-3 {
		return "10⁻" + string([]rune("⁰¹²³⁴⁵⁶⁷⁸⁹")[int(math.Round(-math.Log10(v)))%10])
	}
	return strconv.FormatFloat(math.Round(v*1e9)/1e9, 'f', -1, 64)
}
