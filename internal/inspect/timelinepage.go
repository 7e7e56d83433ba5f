package inspect

import (
	"bufio"
	_ "embed"
	"fmt"
	"io"
	"math"
	"strconv"

	"github.com/vllm-vcr/conformance/internal/base/plural"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/report/page"
	"github.com/vllm-vcr/conformance/trace"
)

var (
	//go:embed page/timeline.css
	timelineStyle page.Markup
	//go:embed page/timeline.js
	timelineScript page.Markup
)

// HTML writes the timeline as a page that needs nothing else: bars on a canvas that can be zoomed and filtered.
func (t *Timeline) HTML(w io.Writer) error {
	title := fmt.Sprintf("%s of %s in %.2f s", plural.Count(len(t.order), "request"), safetext.Line(t.Name), (t.to-t.from)/1000)
	key := page.Contents{}
	for i, p := range t.parts() {
		class := []string{"wait", "prefill", "decode"}[i]
		if p.color == colorDecode {
			class = "decode"
		}
		key = append(key, page.El("i", page.Class(class)), page.Text(p.name))
	}
	button := func(id, name, hint string) page.Content {
		return page.El("button", page.Attr("id", id), page.Attr("title", hint), page.Text(name))
	}
	var notes page.Contents
	for _, note := range t.Notes {
		notes = append(notes, page.El("p", page.Class("quiet"), page.Text(safetext.Line("note: "+note))))
	}
	return page.Write(w, page.Lines(
		page.Doctype,
		page.El("html", page.Attr("lang", "en"), page.NL, page.Lines(
			page.El("head", page.NL, page.Meta, page.Lines(
				page.El("title", page.Text(title)), page.El("style", page.Style, timelineStyle))),
			page.El("body", page.NL, page.Lines(
				page.El("main", page.NL, page.Lines(
					page.El("h1", page.Text(title)), notes,
					page.El("div", page.Class("tools"), page.NL, page.Lines(
						page.El("label", page.Text("rows "), page.El("select", page.Attr("id", "rows"),
							page.El("option", page.Attr("value", "slots"), page.Text("slots")),
							page.El("option", page.Attr("value", "requests"), page.Text("requests")))),
						button("in", "+", "zoom in (mouse wheel, +)"), button("out", "−", "zoom out (mouse wheel, -)"), button("all", "all", "show everything (0)"),
						button("taller", "taller", "taller rows (Alt and mouse wheel)"), button("flatter", "flatter", "flatter rows (Alt and mouse wheel)"),
						page.Void("input", page.Attr("id", "filter"), page.Attr("type", "search"), page.Attr("aria-label", "filter"),
							page.Attr("placeholder", "filter: 12, 100-200, ttft>500, cached=0")),
						page.El("span", page.Attr("id", "status"), page.Attr("role", "status")), page.El("span", page.Class("key quiet"), key))),
					page.El("div", page.Attr("id", "plot"),
						page.El("canvas", page.Attr("id", "canvas"), page.Attr("tabindex", "0"), page.Attr("role", "img"), page.Attr("aria-label", title)),
						page.El("div", page.Attr("id", "tip"), page.Bare("hidden"))),
					page.El("noscript", page.Text("This page draws with JavaScript. Without it, use the text of vllm-vcr inspect timeline.")))),
				page.El("script", page.Attr("type", "application/json"), page.Attr("id", "data"), page.Later(t.columns)),
				page.El("script", timelineScript)))))))
}

// columns writes the requests as JSON: an array for each kind of value, which a browser reads faster than objects. It has
// numbers, and the names of finish reasons, and nothing of the trace's own text. Times are in ms since the first arrival, or since the
// request's own.
func (t *Timeline) columns(w *bufio.Writer) {
	place := make([]int32, t.all.count) // in the order, by row; from 1
	for n, i := range t.order {
		place[i] = int32(n) + 1
	}
	lanes, _ := t.lanes()
	var buf []byte
	column := func(name string, of func(n int, r *row) float64) {
		fmt.Fprintf(w, "%q:[", name)
		for n, i := range t.order {
			buf = buf[:0]
			if n > 0 {
				buf = append(buf, ',')
			}
			buf = strconv.AppendFloat(buf, math.Round(of(n, t.all.at(i))*1000)/1000, 'f', -1, 64)
			w.Write(buf)
		}
		w.WriteString("],\n")
	}
	w.WriteString("{")
	column("index", func(_ int, r *row) float64 { return float64(r.index) })
	column("arrival", func(_ int, r *row) float64 { return r.arrival - t.from })
	column("prefill", func(_ int, r *row) float64 {
		if !r.isInferred {
			return -1
		}
		first, _ := r.shown()
		return min(max(r.prefill, r.arrival), first) - r.arrival
	})
	column("first", func(_ int, r *row) float64 { first, _ := r.shown(); return first - r.arrival })
	column("last", func(_ int, r *row) float64 { _, last := r.shown(); return last - r.arrival })
	column("prompt", func(_ int, r *row) float64 { return float64(r.prompt) })
	column("cached", func(_ int, r *row) float64 { return float64(r.cached) })
	column("said", func(_ int, r *row) float64 { return float64(r.said) })
	column("lane", func(n int, _ *row) float64 { return float64(lanes[n]) })
	column("parent", func(_ int, r *row) float64 {
		if r.parent < 0 {
			return -1
		}
		return float64(place[r.parent]) - 1
	})
	column("finish", func(_ int, r *row) float64 {
		if r.finish == trace.FinishAbsent {
			return 0
		}
		return float64(r.finish) + 1
	})
	w.WriteString(`"finishes":["","stop","length","abort","error","repetition"]}`)
}
