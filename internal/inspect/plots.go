package inspect

import (
	"fmt"
	"io"
	"slices"
)

// Plot is a picture of a report.
type Plot struct {
	// Name is that of its file without the format, such as itl-survival.
	Name string

	figure figure
}

// Write writes the picture as SVG. It follows the reader's choice of light or dark.
func (p *Plot) Write(w io.Writer) error { return images.WritePart(w, "figure.svg", p.figure.data()) }

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
		curves := []curve{{"real", 0, kind.of(&r.Real)}, {"predicted", 1, kind.of(&r.Predicted)}, {"best knobs", 2, kind.of(&r.Knobs)}}
		for i := range curves {
			curves[i].name = counted(curves[i].name, len(curves[i].times))
		}
		survival := survivalPlot(kind.name+"-survival", kind.title, curves)
		if kind.band && survival != nil {
			survival[0].figure.marks = []mark{{fmt.Sprintf("slow band from %.1f ms", r.BandFromMs), r.BandFromMs}}
		}
		plots = slices.Concat(plots, survival, quantilePlot(kind.name+"-qq", kind.title, "real, ms", "predicted, ms", curves))
	}
	if r.Accuracy == nil {
		return plots
	}
	return append(plots, r.Accuracy.plots()...)
}

// survivalOf is the part of the times above each of them.
func survivalOf(name, color string, t times, x axis) line {
	l := line{name: name, color: color, steps: true, points: [][2]float64{{x.low, 1}}}
	n := float64(len(t))
	for _, i := range thinly(len(t)) {
		// The last one is half a step above 0, which a scale of decades does not have.
		left := max(1-float64(i+1)/n, 1/(2*n))
		l.points = append(l.points, [2]float64{min(max(t[i], x.low), x.high), left})
	}
	return l
}

// thinly are indices from 0 to n-1, ascending: all of them, or of many half for the slowest tenth.
func thinly(n int) []int {
	var all []int
	for k := range min(n, maxPoints) {
		i := k
		if n > maxPoints {
			i = int(towardsSlow(float64(k)/(maxPoints-1)) * float64(n-1))
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
	for i := 1; i < maxPoints; i++ {
		q := float64(i) / maxPoints
		inside := func(ms float64) float64 { return min(max(ms, x.low), x.high) }
		l.points = append(l.points, [2]float64{inside(real.quantile(q)), inside(other.quantile(q))})
	}
	return l
}
