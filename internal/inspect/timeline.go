package inspect

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/jsonout"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/trace"
)

// Timeline has the times at which requests arrived, waited and generated tokens, in the order of arrival.
type Timeline struct {
	// Name is that of the trace.
	Name string
	// Notes say what of the trace is odd, or left out.
	Notes []string

	meta trace.Meta
	all  []row
	// order are the shown rows by arrival.
	order []int32
	// from is the first arrival, to the last output, ms.
	from, to float64
	// gaps and sizes are those of all rows, as far as there are few.
	gaps  []float64
	sizes []uint16
	many  bool // too many gaps: they are not kept
	turns Turns[int32]
	steps inferred
}

type row struct {
	arrival, first, last float64
	// prefill is when the engine began with the prompt, if isInferred is set.
	prefill                float64
	isInferred             bool
	finish                 trace.FinishReason
	index                  int32 // in the trace
	prompt, cached, output int32
	parent                 int32 // the row whose conversation it goes on with, -1 for none
	gaps, gapCount         int32 // in Timeline.gaps
	chunks, chunkCount     int32 // in inferred.chunks
}

// shown is where the bar of a row changes from waiting to output, and where it ends: where the clock of the trace went
// back, a bar ends where it begins.
func (r *row) shown() (first, last float64) {
	first = max(r.arrival, r.first)
	return first, max(first, r.last)
}

// maxGaps is how many outputs of a trace are kept one by one, and maxRows how many requests have a place in memory.
const (
	maxGaps = 1 << 21
	maxRows = 1 << 26
)

// TimelineOptions choose what is taken out of a trace: at most Limit requests, 0 for all, from the one that arrived as number
// Skip. Turns finds which requests go on with the conversation of another, for pages and Perfetto.
type TimelineOptions struct {
	Skip, Limit int
	Turns       bool
}

// ReadTimeline takes the times out of a trace. It keeps some 80 bytes of each record, and with Turns 50 more.
func ReadTimeline(r *trace.Reader, opt TimelineOptions) (*Timeline, error) {
	t := &Timeline{Name: r.Name(), meta: r.Meta()}
	var rec trace.Record
	missing := 0
	for index := 0; ; index++ {
		if err := r.Next(&rec); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		switch {
		case rec.ArrivalMs == nil:
			missing++
		case len(t.all) == maxRows:
			return nil, fmt.Errorf("%s: it has more than %d requests: split it", t.Name, maxRows)
		default:
			t.add(&rec, index, opt.Turns)
		}
	}
	if missing > 0 {
		t.Notes = append(t.Notes, fmt.Sprintf("%d of %d records have no arrival_ms and are left out", missing, missing+len(t.all)))
	}
	return t, t.finish(opt.Skip, opt.Limit)
}

func (t *Timeline) add(r *trace.Record, index int, withTurns bool) {
	one := row{
		index: int32(index), arrival: *r.ArrivalMs, first: *r.ArrivalMs + r.TTFTMs, finish: r.FinishReason,
		prompt: int32(min(r.PromptTokens, 1<<31-1)), cached: int32(min(r.CachedTokens, 1<<31-1)), output: int32(min(r.OutputTokens, 1<<31-1)),
		parent: -1, gaps: int32(len(t.gaps)),
	}
	one.last = r.EndMs(*r.ArrivalMs)
	if withTurns {
		if parent, ok := t.turns.Parent(r); ok {
			one.parent = parent
		}
		t.turns.Add(r, one.last, int32(len(t.all)))
	}
	if t.many = t.many || len(t.gaps)+len(r.ITLMs) > maxGaps; t.many {
		t.gaps, t.sizes = nil, nil
	} else {
		t.gaps = append(t.gaps, r.ITLMs...)
		for i := range r.ITLMs {
			size := uint32(1)
			if i < len(r.ITLTokens) {
				size = min(r.ITLTokens[i], 1<<16-1)
			}
			t.sizes = append(t.sizes, uint16(size))
		}
		one.gapCount = int32(len(r.ITLMs))
	}
	t.all = append(t.all, one)
}

// finish sorts the rows, and chooses those that are shown.
func (t *Timeline) finish(skip, limit int) error {
	t.turns = Turns[int32]{}
	if len(t.all) == 0 {
		return fmt.Errorf("%s: no record has arrival_ms, so the times of the requests are unknown: record again with vllm-vcr record", t.Name)
	}
	if skip < 0 || limit < 0 {
		return errors.New("want requests from 0 on, and no fewer than 0 of them")
	}
	if skip >= len(t.all) {
		return fmt.Errorf("%s: it has %s, none from %d on", t.Name, safetext.Count(len(t.all), "request"), skip)
	}
	t.order = make([]int32, len(t.all))
	for i := range t.order {
		t.order[i] = int32(i)
	}
	slices.SortStableFunc(t.order, func(a, b int32) int { return cmp.Compare(t.all[a].arrival, t.all[b].arrival) })
	t.infer()
	t.order = t.order[skip:]
	if limit > 0 && limit < len(t.order) {
		t.order = t.order[:limit]
	}
	t.from = t.all[t.order[0]].arrival
	t.to = t.from
	back := 0
	for _, i := range t.order {
		r := &t.all[i]
		_, last := r.shown()
		t.to = max(t.to, last)
		if r.first < r.arrival || r.last < r.first {
			back++
		}
	}
	if back > 0 {
		t.Notes = append(t.Notes, fmt.Sprintf("%d of %d requests have a negative time: the clock of the recorder was set back, or the trace was edited", back, len(t.order)))
	}
	return nil
}

// JSON writes the timeline, with times in milliseconds on the clock of the trace.
func (t *Timeline) JSON(w io.Writer, schema string) error {
	type request struct {
		Index        int32   `json:"index"` // of its record
		ArrivalMs    float64 `json:"arrival_ms"`
		FirstTokenMs float64 `json:"first_token_ms"`
		LastTokenMs  float64 `json:"last_token_ms"`
		PromptTokens int32   `json:"prompt_tokens"`
		CachedTokens int32   `json:"cached_tokens"`
		OutputTokens int32   `json:"output_tokens"`
	}
	all := make([]request, len(t.order))
	for n, i := range t.order {
		r := &t.all[i]
		all[n] = request{r.index, r.arrival, r.first, r.last, r.prompt, r.cached, r.output}
	}
	return jsonout.Write(w, struct {
		Schema   string    `json:"schema"`
		Trace    string    `json:"trace"`
		Requests []request `json:"requests"`
	}{schema, t.Name, all})
}

// barWidth is that of a bar of text, in characters.
const barWidth = 60

// Text writes a line for each request: a dot for each part of the time that it waited for its first token, and a # for
// each that it spoke in.
func (t *Timeline) Text(w io.Writer) error {
	out := bufio.NewWriterSize(w, 1<<16)
	fmt.Fprintf(out, "%7s %9s %9s %9s %7s %7s %7s\n", "request", "at ms", "first ms", "whole ms", "prompt", "cached", "output")
	for _, i := range t.order {
		r := &t.all[i]
		fmt.Fprintf(out, "%7d %9.0f %9.1f %9.1f %7d %7d %7d  ", r.index, r.arrival, r.first-r.arrival, r.last-r.arrival, r.prompt, r.cached, r.output)
		t.bar(out, r)
	}
	return out.Flush()
}

var (
	barBlank  = strings.Repeat(" ", barWidth)
	barWait   = strings.Repeat(".", barWidth)
	barOutput = strings.Repeat("#", barWidth)
)

// bar is the place of a request in the time of all of them.
func (t *Timeline) bar(out *bufio.Writer, r *row) {
	column := func(ms float64) int {
		if t.to <= t.from {
			return 0
		}
		return min(int((ms-t.from)/(t.to-t.from)*barWidth), barWidth-1)
	}
	first, last := r.shown()
	a, b, c := column(r.arrival), column(first), column(last)
	out.WriteString(barBlank[:a])
	out.WriteString(barWait[:b-a])
	out.WriteString(barOutput[:c-b+1])
	out.WriteByte('\n')
}

// Sizes of the picture, in its own units.
const (
	timelineLeft  = 72 // of the bars; the request numbers are on their left
	timelineRight = 980
	timelineTop   = 44
	labelHeight   = 12
	tallRow       = 14 // of few requests
	flatRow       = 6
	fewRows       = 100
	// maxBars is how many requests a picture has at most: a browser needs seconds for more.
	maxBars = 5000
)

// CheckPicture refuses a picture that is too large to look at.
func (t *Timeline) CheckPicture() error {
	if len(t.order) <= maxBars {
		return nil
	}
	return fmt.Errorf("%s: an image of %d requests is too large to look at, at most %d fit: choose some with --from and --requests, or write a page with --html",
		t.Name, len(t.order), maxBars)
}

// timelineData is what timeline.svg shows.
type timelineData struct {
	Title                                         string
	Height, AxisEnd, Middle, BarHeight, LabelDown int
	Key                                           []keyData
	Ticks                                         []tick
	Rows                                          []rowData
}

type keyData struct {
	Color, Name string
	X           float64
}

type rowData struct {
	Y            int
	Label, Title string
	Bars         []barData
}

type barData struct {
	Color    string
	X, Width float64
}

// Picture writes the same as an SVG image: a bar for each request over an axis in seconds. The number of a request is that
// of its record; a browser shows the times of one where the mouse is.
func (t *Timeline) Picture(w io.Writer) error {
	rowHeight := tallRow
	if len(t.order) > fewRows {
		rowHeight = flatRow
	}
	seconds := axis{low: t.from / 1000, high: max(t.to, t.from+1) / 1000}
	x := func(ms float64) float64 { return timelineLeft + seconds.at(ms/1000)*(timelineRight-timelineLeft) }
	bottom := timelineTop + rowHeight*len(t.order)
	data := timelineData{
		Title:  fmt.Sprintf("%s in %.2f s", safetext.Count(len(t.order), "request"), (t.to-t.from)/1000),
		Height: bottom + 40, AxisEnd: bottom + 4, Middle: (timelineTop + bottom) / 2, BarHeight: rowHeight - 1, LabelDown: rowHeight/2 + 4,
	}
	for i, part := range t.parts() {
		data.Key = append(data.Key, keyData{part.color, part.name, float64(timelineLeft + 260 + 170*i)})
	}
	for _, v := range seconds.ticks() {
		data.Ticks = append(data.Ticks, tick{x(v * 1000), tickText(v)})
	}
	every := (labelHeight + rowHeight - 1) / rowHeight
	for n, i := range t.order {
		r := &t.all[i]
		one := rowData{Y: timelineTop + rowHeight*n, Title: r.describe()}
		if n%every == 0 {
			one.Label = fmt.Sprint(r.index)
		}
		bar := func(color string, from, to float64) {
			one.Bars = append(one.Bars, barData{color, x(from), max(x(to)-x(from), 0.3)})
		}
		first, last := r.shown()
		prefill := first
		if r.isInferred {
			prefill = min(max(r.prefill, r.arrival), first)
		}
		bar(colorWait, r.arrival, prefill)
		if r.isInferred {
			bar(colorPrefill, prefill, first)
		}
		bar(colorDecode, first, last)
		data.Rows = append(data.Rows, one)
	}
	return images.WritePart(w, "timeline.svg", data)
}

// barPart is what a bar is made of, and its color.
type barPart struct{ color, name string }

func (t *Timeline) parts() []barPart {
	if len(t.steps.ends) == 0 {
		return []barPart{{colorWait, "waits for the first token"}, {colorDecode, "generates tokens"}}
	}
	return []barPart{{colorWait, "waits"}, {colorPrefill, "computes the prompt"}, {colorDecode, "generates tokens"}}
}

// describe is a request in a sentence.
func (r *row) describe() string {
	ending := ""
	if r.finish != trace.FinishAbsent {
		ending = " (" + safetext.Line(r.finish.String()) + ")"
	}
	waits := ""
	if r.isInferred {
		waits = fmt.Sprintf("prompt begun after %.1f ms, ", r.prefill-r.arrival)
	}
	return fmt.Sprintf("request %d: at %.1f ms, %sfirst token after %.1f ms, ended after %.1f ms%s; %d prompt tokens, %d of them cached, %d output tokens",
		r.index, r.arrival, waits, r.first-r.arrival, r.last-r.arrival, ending, r.prompt, r.cached, r.output)
}

// lanes gives each shown request, in order, the lowest slot that is free when it comes.
func (t *Timeline) lanes() (lanes []int32, count int) {
	busy := queue[laneEnd]{less: func(a, b laneEnd) bool { return a.end < b.end }}
	free := queue[int32]{less: func(a, b int32) bool { return a < b }}
	lanes = make([]int32, len(t.order))
	for n, i := range t.order {
		r := &t.all[i]
		for busy.Len() > 0 && busy.items[0].end <= r.arrival {
			free.put(busy.take().lane)
		}
		if free.Len() == 0 {
			free.put(int32(count))
			count++
		}
		lanes[n] = free.take()
		_, last := r.shown()
		busy.put(laneEnd{last, lanes[n]})
	}
	return lanes, count
}

type laneEnd struct {
	end  float64
	lane int32
}
