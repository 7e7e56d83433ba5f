package inspect

import (
	"bytes"
	"encoding/xml"
	"errors"
	"image"
	"image/png"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/trace"
)

func TestPlots(t *testing.T) {
	r, err := Calibrate(Options{Fit: []*trace.Trace{steady("fit.jsonl", 40, 10)}, Predict: []*trace.Trace{stalled(steady("p.jsonl", 30, 10.3))}})
	require.NoError(t, err)
	lines := map[string]int{}
	for _, p := range r.Plots() {
		var b bytes.Buffer
		require.NoError(t, p.Write(&b, SVG))
		lines[p.Name] += strings.Count(b.String(), ` class="line c-`) + strings.Count(b.String(), `stroke-dasharray="2 3"`)
		wellFormed(t, p.Name, b.Bytes())
		for _, word := range []string{"NaN", "Inf", "href", "script"} {
			if strings.Contains(b.String(), word) {
				t.Errorf("%s has %s", p.Name, word)
			}
		}
		if n := b.Len(); n > 50_000 {
			t.Errorf("%s has %d bytes", p.Name, n)
		}
	}
	// Each curve has a path and one in the legend; the band has a mark.
	want := map[string]int{"itl-survival": 7, "itl-qq": 6, "ttft-survival": 6, "ttft-qq": 6}
	require.NoDiff(t, cmp.Diff(want, lines), "paths (-want +got)")
}

func wellFormed(t *testing.T, name string, svg []byte) {
	t.Helper()
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
	}
}

// Times that do not vary, or are all 0, have no plot or one that is whole.
func TestPlotsOfLittle(t *testing.T) {
	one := samples{ttft: times{5}, itl: times{3, 3}}
	r := Report{Real: Outcome{samples: one}, Predicted: Outcome{samples: one}, Knobs: Outcome{samples: one}}
	for _, p := range r.Plots() {
		var b bytes.Buffer
		if err := p.Write(&b, SVG); err != nil || strings.Contains(b.String(), "NaN") || strings.Contains(b.String(), "Inf") {
			t.Errorf("%s: %v, %s", p.Name, err, b.String())
		}
	}
	zero := samples{ttft: times{0}, itl: times{0}}
	none := Report{Real: Outcome{samples: zero}, Predicted: Outcome{samples: zero}, Knobs: Outcome{samples: zero}}
	if got := none.Plots(); len(got) != 0 {
		t.Errorf("%d plots of times that are 0", len(got))
	}
}

// Where a curve is: half of the times are above the median.
func TestSurvival(t *testing.T) {
	ten := times{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	l := survivalOf("x", colorReal, ten, axis{low: 1, high: 10, decades: true})
	want := map[float64]float64{1: 0.9, 5: 0.5, 9: 0.1, 10: 0.05}
	got := map[float64]float64{}
	for _, p := range l.points[1:] {
		if _, ok := want[p[0]]; ok {
			got[p[0]] = round(p[1])
		}
	}
	require.NoDiff(t, cmp.Diff(want, got), "(-want +got)")
}

func TestTextEscapes(t *testing.T) {
	var b bytes.Buffer
	f := figure{title: `a<b>&"`, x: axis{0, 1, false}, y: axis{0, 1, false}}
	require.NoError(t, f.write(&b, SVG))
	wellFormed(t, "figure", b.Bytes())
	if !strings.Contains(b.String(), "a&lt;b&gt;&amp;") {
		t.Errorf("the title is not quoted: %s", b.String())
	}
}

// A plot that cannot be written says so.
func TestPlotErrors(t *testing.T) {
	f := figure{x: axis{0, 1, false}, y: axis{0, 1, false}}
	if err := f.write(full{}, SVG); !errors.Is(err, errFull) {
		t.Errorf("got %v, want %v", err, errFull)
	}
}

var errFull = errors.New("full")

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errFull }

// A PNG has the same figure as the SVG: its size, its colors where the curves and bars are, and letters.
func TestPNG(t *testing.T) {
	f := figure{
		title: "a title", xName: "ms", yName: "part", x: axis{0, 10, false}, y: axis{0, 10, false},
		lines: []line{
			{name: "a", color: "c-blue", points: [][2]float64{{0, 5}, {10, 5}}},
			{name: "b", color: "c-orange", points: [][2]float64{{0, 2}, {10, 2}}, dashed: true},
			{name: "c", color: "c-green", points: [][2]float64{{2, 0}, {8, 9}}, steps: true},
		},
	}
	img := decoded(t, func(w io.Writer) error { return f.write(w, PNG) })
	require.NoDiff(t, cmp.Diff(image.Rect(0, 0, 2*figureWidth, 2*figureHeight), img.Bounds()), "size (-want +got)")
	at := func(x, y float64) uint32 {
		r, g, b, _ := img.At(int(2*f.px(x)), int(2*f.py(y))).RGBA()
		return r>>8<<16 | g>>8<<8 | b>>8
	}
	require.NoDiff(t, cmp.Diff([]uint32{0x0072b2, 0x00805d, 0x00805d, 0xffffff}, []uint32{at(9.1, 5), at(5.1, 0), at(8, 4.1), at(5.1, 4.5)}),
		"a curve, both parts of a step, and the ground (-want +got)")
	// Of a dashed line, six of ten units have its color.
	orange := 0
	for x := 0.0; x < 10; x += 0.01 {
		if at(x, 2) == 0xd55e00 {
			orange++
		}
	}
	if orange < 500 || orange > 650 {
		t.Errorf("%d of 1000 places of a dashed line have its color, want about 600", orange)
	}
	letters := func(from, to image.Point) (dark int) {
		for x := from.X; x < to.X; x++ {
			for y := from.Y; y < to.Y; y++ {
				if r, _, _, _ := img.At(x, y).RGBA(); r < 0x8000 {
					dark++
				}
			}
		}
		return dark
	}
	if wide, high := letters(image.Pt(590, 16), image.Pt(700, 46)), letters(image.Pt(8, 380), image.Pt(40, 470)); wide < 100 || high < 50 {
		t.Errorf("%d dark pixels in the title, and %d in the name of the y axis", wide, high)
	}
	if err := f.write(full{}, PNG); !errors.Is(err, errFull) {
		t.Errorf("got %v, want %v", err, errFull)
	}
}

// The picture of many requests has a pixel for each unit, so that it needs a quarter of the memory.
func TestPNGOfManyRequests(t *testing.T) {
	var records []trace.Record
	for i := range 1000 {
		records = append(records, record(float64(i), 4, 5, 5))
	}
	img := decoded(t, func(w io.Writer) error { return mustTimeline(t, recorded(records...)).Picture(w, PNG) })
	if size := img.Bounds().Size(); size.X != 1000 || size.Y < 6000 {
		t.Errorf("the picture has %v pixels", size)
	}
}

func decoded(t *testing.T, write func(io.Writer) error) image.Image {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, write(&b))
	img, err := png.Decode(&b)
	require.NoError(t, err)
	return img
}
