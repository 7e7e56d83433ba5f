package inspect

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/vllm-vcr/conformance/trace"
)

// Timeline is when requests came, waited and answered, in the order of arrival.
type Timeline struct {
	rows []row
	// from is the first arrival, to the last output, ms.
	from, to float64
}

// row is one request.
type row struct {
	index                int // in the recording
	arrival, first, last float64
	prompt, cached, said int
	shown                [2]float64 // first and last, none before the one it follows
}

// TimelineOf takes the times out of a recording: at most so many requests from the one that arrived as number
// skip; most is 0 for all.
func TimelineOf(t *trace.Trace, skip, most int) (*Timeline, error) {
	order := trace.ReplaySubset(t.Records)
	if len(order) == 0 {
		return nil, fmt.Errorf("%s: no record has arrival_ms, so the times of the requests are unknown: record again with vllm-vcr record", t.Name)
	}
	if skip < 0 || most < 0 {
		return nil, errors.New("want requests from 0 on, and no fewer than 0 of them")
	}
	if skip >= len(order) {
		return nil, fmt.Errorf("%s: it has %d requests, none from %d on", t.Name, len(order), skip)
	}
	order = order[skip:]
	if most > 0 && most < len(order) {
		order = order[:most]
	}
	var line Timeline
	for _, i := range order {
		r := &t.Records[i]
		one := row{i, *r.ArrivalMs, *r.ArrivalMs + r.TTFTMs, endOf(r), r.PromptTokens, r.CachedTokens, r.OutputTokens, [2]float64{}}
		// Where the clock of the recording went back, a bar ends where it begins.
		one.shown[0] = max(one.arrival, one.first)
		one.shown[1] = max(one.shown[0], one.last)
		if len(line.rows) == 0 {
			line.from = one.arrival
		}
		line.rows, line.to = append(line.rows, one), max(line.to, one.shown[1])
	}
	return &line, nil
}

// TimelineData is a timeline as it stands in JSON: times in milliseconds since the first request of the recording.
type TimelineData struct {
	Schema   string            `json:"schema"`
	Trace    string            `json:"trace"`
	Requests []TimelineRequest `json:"requests"`
}

// TimelineRequest is a request of a timeline.
type TimelineRequest struct {
	Index        int     `json:"index"` // of its record
	ArrivalMs    float64 `json:"arrival_ms"`
	FirstTokenMs float64 `json:"first_token_ms"`
	LastTokenMs  float64 `json:"last_token_ms"`
	PromptTokens int     `json:"prompt_tokens"`
	CachedTokens int     `json:"cached_tokens"`
	OutputTokens int     `json:"output_tokens"`
}

// Data returns the timeline of the recording of a name, for JSON.
func (t *Timeline) Data(schema, name string) TimelineData {
	data := TimelineData{Schema: schema, Trace: name, Requests: make([]TimelineRequest, len(t.rows))}
	for i, r := range t.rows {
		data.Requests[i] = TimelineRequest{r.index, r.arrival, r.first, r.last, r.prompt, r.cached, r.said}
	}
	return data
}

// barWidth is that of a bar of text, in characters.
const barWidth = 60

// Text writes a line for each request: a dot for each part of the time that it waited for its first token, and a # for
// each that it spoke in.
func (t *Timeline) Text(w io.Writer) error {
	out := &sticky{w: w}
	out.printf("%7s %9s %9s %9s %7s %7s %7s\n", "request", "at ms", "first ms", "whole ms", "prompt", "cached", "output")
	for _, r := range t.rows {
		out.printf("%7d %9.0f %9.1f %9.1f %7d %7d %7d  %s\n",
			r.index, r.arrival, r.first-r.arrival, r.last-r.arrival, r.prompt, r.cached, r.said, t.bar(r))
	}
	return out.err
}

// bar is the place of a request in the time of all of them.
func (t *Timeline) bar(r row) string {
	column := func(ms float64) int {
		if t.to <= t.from {
			return 0
		}
		return min(int((ms-t.from)/(t.to-t.from)*barWidth), barWidth-1)
	}
	begin, first, last := column(r.arrival), column(r.shown[0]), column(r.shown[1])
	return strings.Repeat(" ", begin) + strings.Repeat(".", first-begin) + strings.Repeat("#", last-first+1)
}

// Sizes of the picture, in its own units.
const (
	timelineLeft  = 56 // of the bars; the request numbers stand before them
	timelineRight = 980
	timelineTop   = 44
	labelHeight   = 12
	tallRow       = 14 // of few requests
	flatRow       = 6
	fewRows       = 100
)

// SVG writes the same as a picture, with nothing in it that a browser would fetch or run: a bar for each request over an axis in
// seconds. The number of a request is that of its record; a browser shows its times where the mouse is.
func (t *Timeline) SVG(w io.Writer) error {
	out := &sticky{w: w}
	rowHeight := tallRow
	if len(t.rows) > fewRows {
		rowHeight = flatRow
	}
	seconds := axis{low: t.from / 1000, high: max(t.to, t.from+1) / 1000}
	x := func(ms float64) float64 { return timelineLeft + seconds.at(ms/1000)*(timelineRight-timelineLeft) }
	bottom := timelineTop + rowHeight*len(t.rows)
	height := bottom + 40
	out.printf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1000 %d" font-family="sans-serif" font-size="12">`+"\n", height)
	out.printf("<rect width=\"1000\" height=\"%d\" fill=\"#fff\"/>\n", height)
	text(out, timelineLeft, 16, "start", fmt.Sprintf("%d requests in %.2f s", len(t.rows), (t.to-t.from)/1000))
	for i, part := range []struct{ color, name string }{{colorWait, "waits for the first token"}, {colorKnobs, "generates tokens"}} {
		at := timelineLeft + 260 + 200*i
		out.printf("<rect x=\"%d\" y=\"7\" width=\"24\" height=\"10\" fill=\"%s\"/>\n", at, part.color)
		text(out, float64(at+30), 16, "start", part.name)
	}
	for _, tick := range seconds.ticks() {
		at := x(tick * 1000)
		out.printf("<path d=\"M%.1f %dV%d\" stroke=\"#ddd\"/>\n", at, timelineTop-4, bottom+4)
		text(out, at, timelineTop-8, "middle", fmt.Sprintf("%g", round(tick)))
		text(out, at, float64(bottom+18), "middle", fmt.Sprintf("%g", round(tick)))
	}
	text(out, (timelineLeft+timelineRight)/2, float64(height-6), "middle", "s since the first request of the recording")
	every := (labelHeight + rowHeight - 1) / rowHeight
	for i, r := range t.rows {
		y := timelineTop + rowHeight*i
		if i%every == 0 {
			out.printf("<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\" font-size=\"10\">%d</text>\n", timelineLeft-6, float64(y)+float64(rowHeight)/2+3, r.index)
		}
		out.printf("<g><title>request %d: at %.1f ms, first token after %.1f ms, ended after %.1f ms; %d prompt tokens, %d of them cached, %d output tokens</title>\n",
			r.index, r.arrival, r.first-r.arrival, r.last-r.arrival, r.prompt, r.cached, r.said)
		for _, part := range []struct {
			from, to float64
			color    string
		}{{r.arrival, r.shown[0], colorWait}, {r.shown[0], r.shown[1], colorKnobs}} {
			out.printf("<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"%s\"/>\n",
				x(part.from), y, max(x(part.to)-x(part.from), 0.3), rowHeight-1, part.color)
		}
		out.printf("</g>\n")
	}
	out.printf("</svg>\n")
	return out.err
}
