package inspect

import (
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"strings"
)

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
	plotTop, plotBottom       = 36, 368
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
	out.printf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", figureWidth, figureHeight)
	out.printf("<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n", figureWidth, figureHeight)
	text(out, figureWidth/2, 20, "middle", f.title)
	f.axes(out)
	for _, m := range f.marks {
		x := f.px(m.x)
		out.printf("<path d=\"M%.1f %dV%d\" stroke=\"#999\" stroke-dasharray=\"2 3\"/>\n", x, plotTop, plotBottom)
		text(out, x+4, plotTop+12, "start", m.name)
	}
	for i, l := range f.lines {
		f.line(out, l)
		y := float64(plotTop + 12 + 16*i)
		out.printf("<path d=\"M%d %.0fh24\" stroke=\"%s\" stroke-width=\"2\"%s/>\n", plotRight-150, y, l.color, l.dash())
		text(out, plotRight-120, y+4, "start", l.name)
	}
	out.printf("</svg>\n")
	return out.err
}

func (f *figure) axes(out *sticky) {
	out.printf("<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"none\" stroke=\"#333\"/>\n", plotLeft, plotTop, plotRight-plotLeft, plotBottom-plotTop)
	for _, v := range f.x.ticks() {
		out.printf("<path d=\"M%.1f %dv5\" stroke=\"#333\"/>\n", f.px(v), plotBottom)
		text(out, f.px(v), plotBottom+18, "middle", fmt.Sprintf("%g", round(v)))
	}
	for _, v := range f.y.ticks() {
		out.printf("<path d=\"M%d %.1fh-5\" stroke=\"#333\"/>\n", plotLeft, f.py(v))
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
		return ` stroke-dasharray="6 4"`
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
	out.printf("<path d=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"1.5\"%s/>\n", path.String(), l.color, l.dash())
}

func text(out *sticky, x, y float64, anchor, s string) {
	out.printf("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor)
	_ = xml.EscapeText(out, []byte(s)) // out keeps the error
	out.printf("</text>\n")
}
