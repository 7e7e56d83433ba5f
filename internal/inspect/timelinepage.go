package inspect

import (
	"fmt"
	"html/template"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/report"
	"github.com/vllm-vcr/conformance/trace"
)

var timelinePage = report.NewPageTemplate(pages, nil, "page/timeline.html")

// HTML writes the timeline as a page that needs nothing else: bars on a canvas that can be zoomed and filtered.
func (t *Timeline) HTML(w io.Writer) error {
	type key struct{ Class, Name string }
	var keys []key
	for _, p := range t.parts() {
		keys = append(keys, key{map[string]string{colorWait: "wait", colorPrefill: "prefill", colorDecode: "decode"}[p.color], p.name})
	}
	var data strings.Builder
	t.columns(&data)
	return timelinePage.Write(w, struct {
		Title string
		Notes []string
		Key   []key
		Data  template.JS
	}{
		fmt.Sprintf("%s of %s in %.2f s", safetext.Count(len(t.order), "request"), safetext.Line(t.Name), (t.to-t.from)/1000),
		t.Notes, keys, template.JS(data.String()),
	})
}

// columns writes the requests as JSON: an array for each kind of value, which a browser reads faster than objects. It has
// numbers, and the names of finish reasons, and nothing of the trace's own text. Times are in ms since the first arrival, or since the
// request's own.
func (t *Timeline) columns(w *strings.Builder) {
	place := make([]int32, len(t.all)) // in the order, by row; from 1
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
			buf = strconv.AppendFloat(buf, math.Round(of(n, &t.all[i])*1000)/1000, 'f', -1, 64)
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
	column("output", func(_ int, r *row) float64 { return float64(r.output) })
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
