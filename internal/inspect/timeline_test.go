package inspect

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/trace"
)

// readerOf reads a trace as from a file.
func readerOf(t *testing.T, tr *trace.Trace) *trace.Reader {
	t.Helper()
	var b bytes.Buffer
	w, err := trace.NewWriter(&b, false, tr.Meta)
	require.NoError(t, err)
	for i := range tr.Records {
		require.NoError(t, w.Write(&tr.Records[i]))
	}
	require.NoError(t, w.Close())
	r, err := trace.NewReader(&b, tr.Name, false, trace.Options{})
	require.NoError(t, err)
	return r
}

func mustTimeline(t *testing.T, tr *trace.Trace) *Timeline {
	t.Helper()
	line, err := ReadTimeline(readerOf(t, tr), TimelineOptions{Turns: true})
	require.NoError(t, err)
	return line
}

func TestTimeline(t *testing.T) {
	// 60 ms in all: a column is 1 ms.
	tr := recorded(record(40, 8, 10, 10), record(0, 4, 20, 5, 5), record(10, 4, 0), record(50, 4, 1))
	line := mustTimeline(t, tr)
	var b bytes.Buffer
	require.NoError(t, line.Text(&b))
	want := []string{
		"request     at ms  first ms  whole ms  prompt  cached  output",
		"      1         0      20.0      30.0       4       0       3  " + strings.Repeat(".", 20) + strings.Repeat("#", 11),
		"      2        10       0.0       0.0       4       0       1  " + strings.Repeat(" ", 10) + "#",
		"      0        40      10.0      20.0       8       0       2  " + strings.Repeat(" ", 40) + strings.Repeat(".", 10) + strings.Repeat("#", 10),
		"      3        50       1.0       1.0       4       0       1  " + strings.Repeat(" ", 50) + ".#",
		"",
	}
	require.NoDiff(t, cmp.Diff(want, strings.Split(b.String(), "\n")), "(-want +got)")
	b.Reset()
	require.NoError(t, line.Picture(&b))
	wellFormed(t, "timeline", b.Bytes())
	require.Equal(t, strings.Count(b.String(), "<rect class=\"bar c-"), 15, "bars: 12, and 3 of the legend")
	for _, want := range []string{
		// Request 1 waits for the end of the step that answers request 2, at 10 of 60 ms.
		`<rect class="bar c-wait" x="72" y="44" width="151.3" height="13"/>`,
		`<rect class="bar c-orange" x="223.3" y="44" width="151.3" height="13"/>`,
		`<title>request 1: at 0.0 ms, prompt begun after 10.0 ms, first token after 20.0 ms, ended after 30.0 ms (stop); 4 prompt tokens, 0 of them cached, 3 output tokens</title>`,
		`text-anchor="end">1</text>`, `>0.06</text>`, `>s since the first request of the trace</text>`, `>request</text>`,
		`@media (prefers-color-scheme: dark)`,
	} {
		require.Contains(t, b.String(), want)
	}
}

// Recorded clocks go back: the bar of a request whose first token came before it did has no length.
func TestTimelineOfNegativeTimes(t *testing.T) {
	tr := recorded(record(-10, 4, 10, 50), record(0, 4, -20, 5), record(10, 4, 5, -30), record(20, 4, -5, 15))
	line := mustTimeline(t, tr)
	var b bytes.Buffer
	require.NoError(t, line.Text(&b))
	want := []string{
		strings.Repeat(".", 10) + strings.Repeat("#", 50),
		strings.Repeat(" ", 10) + "#",
		strings.Repeat(" ", 20) + ".....#",
		strings.Repeat(" ", 30) + strings.Repeat("#", 11),
	}
	var got []string
	for _, text := range strings.Split(b.String(), "\n")[1:5] {
		got = append(got, text[63:])
	}
	require.NoDiff(t, cmp.Diff(want, got), "(-want +got)")
	b.Reset()
	require.NoError(t, line.Picture(&b))
	if wellFormed(t, "timeline", b.Bytes()); strings.Contains(b.String(), `width="-`) {
		t.Errorf("a bar of negative width: %s", b.String())
	}
}

func TestTimelineOfSome(t *testing.T) {
	tr := recorded(record(0, 4, 1), record(10, 4, 1), record(20, 4, 1))
	tests := []struct {
		name        string
		trace       *trace.Trace
		skip, limit int
		want        []int
		err         string
	}{
		{"all", tr, 0, 0, []int{0, 1, 2}, ""},
		{"one", tr, 1, 1, []int{1}, ""},
		{"more than there are", tr, 1, 9, []int{1, 2}, ""},
		{"none", tr, 3, 0, nil, "t.jsonl: it has 3 requests, none from 3 on"},
		{"below 0", tr, -1, 0, nil, "want requests from 0 on, and no fewer than 0 of them"},
		{"no times", &trace.Trace{Name: "n.jsonl"}, 0, 0, nil, "n.jsonl: no record has arrival_ms, so the times of the requests are unknown: record again with vllm-vcr record"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			line, err := ReadTimeline(readerOf(t, test.trace), TimelineOptions{Skip: test.skip, Limit: test.limit})
			if err != nil || test.err != "" {
				if err == nil || err.Error() != test.err {
					t.Fatalf("got %v, want %s", err, test.err)
				}
				return
			}
			var got []int
			for _, i := range line.order {
				got = append(got, int(line.all[i].index))
			}
			require.NoDiff(t, cmp.Diff(test.want, got), "(-want +got)")
		})
	}
}

// A prompt that does not fit into a step is computed in several, and takes the room that other prompts left.
func TestInferredChunks(t *testing.T) {
	config := "max_num_batched_tokens=10"
	tr := recorded(record(0, 8, 10, 10, 10), record(1, 25, 29, 10), record(100, 3, 7))
	tr.Meta.EngineConfig = &config
	line := mustTimeline(t, tr)
	s := &line.steps
	var got []string
	for i := range s.ends {
		got = append(got, fmt.Sprintf("%v-%v: %d decodes, %d prompt", s.begins[i], s.endMs(i), s.decodes[i], s.prompts[i]))
	}
	// The steps that end at 20 and 30 ms have room for 9 of the 25 tokens each. The step before them began before the request came.
	want := []string{
		"0-10: 0 decodes, 8 prompt", "10-20: 1 decodes, 9 prompt", "20-30: 1 decodes, 9 prompt", "30-40: 1 decodes, 0 prompt", "100-107: 0 decodes, 3 prompt",
	}
	require.NoDiff(t, cmp.Diff(want, got), "(-want +got)")
	if r := &line.all[1]; r.prefill != 10 || !r.isInferred || r.chunkCount != 2 {
		t.Errorf("the prompt begins at %v in %d chunks, want 10 and 2", r.prefill, r.chunkCount)
	}
}

// The slots of requests: the lowest that is free.
func TestLanes(t *testing.T) {
	line := mustTimeline(t, recorded(record(0, 4, 10), record(1, 4, 2), record(2, 4, 9), record(3, 4, 1), record(10, 4, 1)))
	lanes, count := line.lanes()
	require.NoDiff(t, cmp.Diff([]int32{0, 1, 2, 1, 0}, lanes), "(-want +got)")
	require.Equal(t, count, 3, "slots")
}

// What a trace lacks is said, and does not stop the rest.
func TestTimelineNotes(t *testing.T) {
	without := record(0, 4, 1)
	without.ArrivalMs = nil
	line := mustTimeline(t, recorded(record(0, 4, 10, 1), without, record(5, 4, -3)))
	want := []string{
		"1 of 3 records have no arrival_ms and are left out",
		"1 of 2 requests have a negative time: the clock of the recorder was set back, or the trace was edited",
	}
	require.NoDiff(t, cmp.Diff(want, line.Notes), "(-want +got)")
}

func TestTimelineTooLargeForSVG(t *testing.T) {
	var records []trace.Record
	for i := range maxBars + 1 {
		records = append(records, record(float64(i), 4, 1))
	}
	err := mustTimeline(t, recorded(records...)).CheckPicture()
	require.ErrorContains(t, err, "of 5001 requests is too large to look at, at most 5000 fit: choose some with --from and --requests")
}

// The page has the numbers of each request in columns of equal length, and no text of the trace in its script.
func TestTimelinePage(t *testing.T) {
	tr := recorded(hashed(record(0, 8, 10, 10), 1, 2), hashed(record(50, 12, 7.1234, 3), 1, 2, 3))
	tr.Name = "</script><b>.jsonl"
	var b bytes.Buffer
	require.NoError(t, mustTimeline(t, tr).HTML(&b))
	_, data, _ := strings.Cut(b.String(), `<script type="application/json" id="data">`)
	data, rest, found := strings.Cut(data, "</script>")
	require.True(t, found && !strings.Contains(rest, "<b>") && strings.Contains(b.String(), "&lt;/script&gt;&lt;b&gt;.jsonl"), "the name of the trace is markup: %s", b.String())
	var got map[string][]any
	require.NoError(t, json.Unmarshal([]byte(data), &got))
	delete(got, "finishes")
	want := map[string][]any{
		"index": {0.0, 1.0}, "arrival": {0.0, 50.0}, "prefill": {0.0, 0.0}, "first": {10.0, 7.123}, "last": {20.0, 10.123}, "prompt": {8.0, 12.0},
		"cached": {0.0, 0.0}, "output": {2.0, 2.0}, "lane": {0.0, 0.0}, "parent": {-1.0, 0.0}, "finish": {1.0, 1.0},
	}
	require.NoDiff(t, cmp.Diff(want, got), "(-want +got)")
}
