package inspect

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
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
	var subjects []string
	for i := range r.Predict {
		subjects = append(subjects, r.Predict[i].subject)
	}
	for _, kind := range []struct {
		name, title string
		of          func(*samples) times
		band        bool
	}{
		{"itl", "Time between two tokens (ITL)", func(s *samples) times { return s.itl }, true},
		{"ttft", "Time to the first token (TTFT)", func(s *samples) times { return s.ttft }, false},
	} {
		curves := []curve{{"real", 0, kind.of(&r.Real.samples)}, {"predicted", 1, kind.of(&r.Predicted.samples)}, {"best knobs", 2, kind.of(&r.Knobs.samples)}}
		for i := range curves {
			curves[i].name = counted(curves[i].name, len(curves[i].times))
		}
		survival := survivalPlot(kind.name+"-survival", kind.title, curves)
		if survival != nil && len(r.Predicted.runs) > 1 {
			survival[0].figure.addBand(curves[1].paint(), r.Predicted.runs, kind.of)
		}
		if kind.band && survival != nil {
			survival[0].figure.marks = []mark{{fmt.Sprintf("slow band from %.1f ms", r.BandFromMs), r.BandFromMs}}
		}
		plots = slices.Concat(plots, survival, quantilePlot(kind.name+"-qq", kind.title, "real, ms", "predicted, ms", curves))
	}
	if r.Accuracy != nil {
		plots = append(plots, r.Accuracy.plots()...)
	}
	return about(plots, subjects)
}

// about puts model and hardware into the titles of plots, each of them once.
func about(plots []Plot, subjects []string) []Plot {
	slices.Sort(subjects)
	subjects = slices.DeleteFunc(slices.Compact(subjects), func(s string) bool { return s == "" })
	for i := range plots {
		if len(subjects) > 0 {
			plots[i].figure.title += ": " + safetext.Clip(strings.Join(subjects, ", "), 60)
		}
	}
	return plots
}

// subjectOf names model and hardware of a recording, as far as it does itself.
func subjectOf(model, gpu string) string {
	if model == "" || gpu == "" || gpu == "none" {
		return cmp.Or(model, gpu)
	}
	return model + " on " + gpu
}

// addBand adds what lies between the lowest and the highest of the runs that are one curve together.
func (f *figure) addBand(color string, runs []samples, of func(*samples) times) {
	const points = 200
	b := band{color: color}
	for i := range points + 1 {
		x := f.x.low * math.Pow(f.x.high/f.x.low, float64(i)/points)
		low, high := 1.0, 0.0
		for n := range runs {
			part := of(&runs[n]).above(x)
			low, high = min(low, part), max(high, part)
		}
		b.low = append(b.low, [2]float64{x, max(low, f.y.low)})
		b.high = append(b.high, [2]float64{x, max(high, f.y.low)})
	}
	f.band = &b
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
