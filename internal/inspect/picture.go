package inspect

import (
	"bufio"
	"encoding/xml"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"io"
	"math"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/image/font"
	"golang.org/x/image/font/gofont/goregular"
	"golang.org/x/image/font/opentype"
	"golang.org/x/image/math/fixed"
	"golang.org/x/image/vector"
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

// paint is a color by its name: on a light page and on a dark one, as RGB.
type paint struct {
	name        string
	light, dark uint32
}

var paints = []paint{
	{"ground", 0xffffff, 0x0f1318},
	{"ink", 0x1b2129, 0xe4e8ed},
	{"grid", 0xdfe3e8, 0x2a323c},
	{"axis", 0x5c6773, 0x97a3b0},
	{"c-black", 0x1b2129, 0xe4e8ed},
	{"c-orange", 0xd55e00, 0xff9248},
	{"c-blue", 0x0072b2, 0x56b4e9},
	{"c-green", 0x00805d, 0x3ccf9f},
	{"c-pink", 0xb0407f, 0xe79ac6},
	{"c-yellow", 0xa07800, 0xf0d442},
	{"c-grey", 0x9aa3ad, 0x6b7580},
	{"c-wait", 0xb4bcc5, 0x4d5763},
}

// stroke is how a line looks: its width and, if it is dashed, the lengths of a dash and of the gap after it.
type stroke struct {
	width     float64
	dash, gap float64
}

var (
	thin   = stroke{width: 1}                    // of axes and grid
	marked = stroke{width: 1, dash: 2, gap: 3}   // of marks
	curved = stroke{width: 1.5}                  // of curves
	dashed = stroke{width: 1.5, dash: 6, gap: 4} // of curves that are there to compare with
	keyed  = stroke{width: 2}                    // of the legend
)

// letterHeight is the size of all text.
const letterHeight = 12

// picture is what plots and timelines are drawn on. Lengths are in its own units, y goes down.
type picture interface {
	// bar fills a rectangle.
	bar(color string, x, y, width, height float64)
	// path draws straight lines from point to point.
	path(color string, s stroke, points ...[2]float64)
	// text writes a line: at x it starts, ends or has its middle.
	text(x, y float64, anchor, s string)
	// upright writes a line from bottom to top, with its middle at y.
	upright(x, y float64, s string)
	// about says of what draw draws what it is, where the mouse is.
	about(what string, draw func())
	// end writes what is left to write. Its error is the first one of all.
	end() error
}

// Format is that of a picture.
type Format string

// Formats. An SVG follows the reader's choice of a light or dark page, alone as in a page; a PNG is light.
const (
	SVG Format = "svg"
	PNG Format = "png"
)

func (format Format) begin(w io.Writer, width, height int, title string) picture {
	var p picture
	if format == PNG {
		p = newBitmap(w, width, height)
	} else {
		p = newDrawing(w, width, height, title)
	}
	p.bar("ground", 0, 0, float64(width), float64(height))
	return p
}

// drawing is a picture as SVG, with nothing in it that a browser would fetch or run.
type drawing struct{ out *bufio.Writer }

// styleOfSVG has the colors as classes.
var styleOfSVG = sync.OnceValue(func() string {
	var s strings.Builder
	s.WriteString("<style>\n")
	classes := func(of func(c paint) uint32) {
		for _, c := range paints {
			fmt.Fprintf(&s, ".line.%s{stroke:#%06x}.bar.%s{fill:#%06x}\n", c.name, of(c), c.name, of(c))
		}
	}
	s.WriteString(".line{fill:none}\n")
	classes(func(c paint) uint32 { return c.light })
	s.WriteString("@media (prefers-color-scheme:dark){\n")
	classes(func(c paint) uint32 { return c.dark })
	s.WriteString("}\n</style>\n")
	return s.String()
})

func newDrawing(w io.Writer, width, height int, title string) *drawing {
	d := &drawing{out: bufio.NewWriter(w)}
	fmt.Fprintf(d.out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="%d" role="img">`+"\n<title>", width, height, letterHeight)
	d.escaped(title)
	fmt.Fprintf(d.out, "</title>\n%s", styleOfSVG())
	return d
}

func (d *drawing) escaped(s string) { _ = xml.EscapeText(d.out, []byte(s)) } // out keeps the error

func (d *drawing) bar(color string, x, y, width, height float64) {
	fmt.Fprintf(d.out, "<rect class=\"bar %s\" x=\"%s\" y=\"%s\" width=\"%s\" height=\"%s\"/>\n", color, short(x), short(y), short(width), short(height))
}

func (d *drawing) path(color string, s stroke, points ...[2]float64) {
	var path strings.Builder
	var before [2]string
	for i, p := range points {
		at := [2]string{short(p[0]), short(p[1])}
		switch {
		case i == 0:
			path.WriteString("M" + at[0] + " " + at[1])
		case at == before:
		case at[1] == before[1]:
			path.WriteString("H" + at[0])
		case at[0] == before[0]:
			path.WriteString("V" + at[1])
		default:
			path.WriteString("L" + at[0] + " " + at[1])
		}
		before = at
	}
	fmt.Fprintf(d.out, "<path d=\"%s\" class=\"line %s\"", path.String(), color)
	if s.width != 1 {
		fmt.Fprintf(d.out, " stroke-width=\"%g\"", s.width)
	}
	if s.dash != 0 {
		fmt.Fprintf(d.out, " stroke-dasharray=\"%g %g\"", s.dash, s.gap)
	}
	fmt.Fprintf(d.out, "/>\n")
}

// short is a length to a tenth of a unit.
func short(v float64) string { return strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0") }

func (d *drawing) text(x, y float64, anchor, s string) {
	fmt.Fprintf(d.out, "<text class=\"bar ink\" x=\"%s\" y=\"%s\" text-anchor=\"%s\">", short(x), short(y), anchor)
	d.escaped(s)
	fmt.Fprintf(d.out, "</text>\n")
}

func (d *drawing) upright(x, y float64, s string) {
	fmt.Fprintf(d.out, "<g transform=\"rotate(-90 %s %s)\">", short(x), short(y))
	d.text(x, y, "middle", s)
	fmt.Fprintf(d.out, "</g>\n")
}

func (d *drawing) about(what string, draw func()) {
	fmt.Fprintf(d.out, "<g><title>")
	d.escaped(what)
	fmt.Fprintf(d.out, "</title>\n")
	draw()
	fmt.Fprintf(d.out, "</g>\n")
}

func (d *drawing) end() error {
	fmt.Fprintf(d.out, "</svg>\n")
	return d.out.Flush()
}

type bitmap struct {
	w      io.Writer
	img    *image.RGBA
	scale  float64 // pixels per unit
	face   font.Face
	raster vector.Rasterizer
}

// mostSharp is how many units a picture has at most that is drawn with two pixels for each in both directions.
const mostSharp = 4 << 20

// letters is the font, which is read once for all pictures.
var letters = sync.OnceValues(func() (*opentype.Font, error) { return opentype.Parse(goregular.TTF) })

func newBitmap(w io.Writer, width, height int) *bitmap {
	b := &bitmap{w: w, scale: 2}
	if width*height > mostSharp {
		b.scale = 1
	}
	b.img = image.NewRGBA(image.Rect(0, 0, width*int(b.scale), height*int(b.scale)))
	parsed, err := letters()
	if err == nil {
		b.face, err = opentype.NewFace(parsed, &opentype.FaceOptions{Size: letterHeight * b.scale, DPI: 72})
	}
	if err != nil {
		panic(err) // the font is part of the program
	}
	return b
}

// ink is a color of paints on a light page.
func (b *bitmap) ink(name string) image.Image {
	for _, c := range paints {
		if c.name == name {
			return image.NewUniform(color.RGBA{uint8(c.light >> 16), uint8(c.light >> 8), uint8(c.light), 0xff})
		}
	}
	return image.Black
}

func (b *bitmap) bar(color string, x, y, width, height float64) {
	b.fill(color, [][2]float64{{x, y}, {x + width, y}, {x + width, y + height}, {x, y + height}})
}

// fill fills polygons that go around in the same direction.
func (b *bitmap) fill(color string, polygons ...[][2]float64) {
	low, high := [2]float64{math.Inf(1), math.Inf(1)}, [2]float64{math.Inf(-1), math.Inf(-1)}
	for _, polygon := range polygons {
		for _, p := range polygon {
			for i, v := range p {
				low[i], high[i] = min(low[i], v*b.scale), max(high[i], v*b.scale)
			}
		}
	}
	box := image.Rect(int(math.Floor(low[0])), int(math.Floor(low[1])), int(math.Ceil(high[0])), int(math.Ceil(high[1]))).Intersect(b.img.Rect)
	if box.Empty() {
		return
	}
	b.raster.Reset(box.Dx(), box.Dy())
	at := func(p [2]float64) (x, y float32) {
		return float32(p[0]*b.scale - float64(box.Min.X)), float32(p[1]*b.scale - float64(box.Min.Y))
	}
	for _, polygon := range polygons {
		b.raster.MoveTo(at(polygon[0]))
		for _, p := range polygon[1:] {
			b.raster.LineTo(at(p))
		}
		b.raster.ClosePath()
	}
	b.raster.Draw(b.img, box, b.ink(color), image.Point{})
}

func (b *bitmap) path(color string, s stroke, points ...[2]float64) {
	var polygons [][][2]float64
	done := 0.0 // length of the path so far
	for i := 1; i < len(points); i++ {
		from, to := points[i-1], points[i]
		length := math.Hypot(to[0]-from[0], to[1]-from[1])
		if length == 0 {
			continue
		}
		way := [2]float64{(to[0] - from[0]) / length, (to[1] - from[1]) / length}
		part := func(low, high float64) {
			half := s.width / 2
			corner := func(along, aside float64) [2]float64 {
				return [2]float64{from[0] + way[0]*along - way[1]*aside, from[1] + way[1]*along + way[0]*aside}
			}
			polygons = append(polygons, [][2]float64{corner(low, -half), corner(high, -half), corner(high, half), corner(low, half)})
		}
		if s.dash == 0 {
			// It is half its width longer at each end, so that corners have no notch.
			low, high := -s.width/2, length+s.width/2
			if len(points) == 2 {
				low, high = 0, length
			}
			part(low, high)
			continue
		}
		period := s.dash + s.gap
		for k := math.Floor(done / period); k*period < done+length; k++ {
			if low, high := max(k*period-done, 0), min(k*period+s.dash-done, length); low < high {
				part(low, high)
			}
		}
		done += length
	}
	b.fill(color, polygons...)
}

func (b *bitmap) text(x, y float64, anchor, s string) {
	width := font.MeasureString(b.face, s)
	at := fixed.Point26_6{X: fixed.Int26_6(x * b.scale * 64), Y: fixed.Int26_6(y * b.scale * 64)}
	switch anchor {
	case "middle":
		at.X -= width / 2
	case "end":
		at.X -= width
	}
	(&font.Drawer{Dst: b.img, Src: b.ink("ink"), Face: b.face, Dot: at}).DrawString(s)
}

func (b *bitmap) upright(x, y float64, s string) {
	width, metrics := font.MeasureString(b.face, s).Ceil(), b.face.Metrics()
	above, below := metrics.Ascent.Ceil(), metrics.Descent.Ceil()
	lying := image.NewAlpha(image.Rect(0, 0, width, above+below))
	(&font.Drawer{Dst: lying, Src: image.Opaque, Face: b.face, Dot: fixed.P(0, above)}).DrawString(s)
	standing := image.NewAlpha(image.Rect(0, 0, above+below, width))
	for px := range above + below {
		for py := range width {
			standing.SetAlpha(px, py, lying.AlphaAt(width-1-py, px))
		}
	}
	at := image.Pt(int(x*b.scale)-above, int(y*b.scale)-width/2)
	draw.DrawMask(b.img, standing.Rect.Add(at), b.ink("ink"), image.Point{}, standing, image.Point{}, draw.Over)
}

func (b *bitmap) about(_ string, draw func()) { draw() } // a bitmap has no place for it

func (b *bitmap) end() error { return png.Encode(b.w, b.img) }
