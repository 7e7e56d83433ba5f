package inspect

import (
	"encoding/json"
	"fmt"
	"html/template"
	"io"

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
	data, err := json.Marshal(t.columns())
	if err != nil {
		return err
	}
	return timelinePage.Write(w, struct {
		Title string
		Notes []string
		Key   []key
		Data  template.JS
	}{
		fmt.Sprintf("%s of %s in %.2f s", safetext.Count(len(t.order), "request"), safetext.Line(t.Name), (t.to-t.from)/1000),
		t.Notes, keys, template.JS(data),
	})
}

// columns are the requests as an array for each kind of value, which a browser reads faster than objects. They have numbers, and
// the names of finish reasons, and nothing of the trace's own text. Times are in ms since the first arrival, or since the request's own.
func (t *Timeline) columns() map[string]any {
	place := make([]int32, len(t.all)) // in the order, by row; from 1
	for n, i := range t.order {
		place[i] = int32(n) + 1
	}
	lanes, _ := t.lanes()
	columns := map[string]any{"finishes": []string{"", "stop", "length", "abort", "error", "repetition"}}
	column := func(name string, of func(n int, r *row) float64) {
		values := make([]float64, len(t.order))
		for n, i := range t.order {
			values[n] = micro(of(n, &t.all[i]))
		}
		columns[name] = values
	}
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
	return columns
}
