package inspect

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/trace"
)

func TestTimeline(t *testing.T) {
	// 60 ms in all: a column is 1 ms.
	tr := recorded(record(40, 8, 10, 10), record(0, 4, 20, 5, 5), record(10, 4, 0), record(50, 4, 1))
	line, err := TimelineOf(tr, 0, 0)
	require.NoError(t, err)
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
	require.NoError(t, line.SVG(&b))
	wellFormed(t, "timeline", b.Bytes())
	if n := strings.Count(b.String(), "<rect x="); n != 10 {
		t.Errorf("%d bars, want 8, and 2 of the legend", n)
	}
	for _, want := range []string{
		`<rect x="56.0" y="44" width="308.0" height="13" fill="#bbbbbb"/>`, // a third of the time
		`<title>request 1: at 0.0 ms, first token after 20.0 ms, ended after 30.0 ms; 4 prompt tokens, 0 of them cached, 3 output tokens</title>`,
		`text-anchor="end" font-size="10">1</text>`, `>0.06</text>`, `>s since the first request of the recording</text>`,
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %s in %s", want, b.String())
		}
	}
}

// Recorded clocks go back: the bar of a request whose first token came before it did has no length.
func TestTimelineOfNegativeTimes(t *testing.T) {
	tr := recorded(record(-10, 4, 10, 50), record(0, 4, -20, 5), record(10, 4, 5, -30), record(20, 4, -5, 15))
	line, err := TimelineOf(tr, 0, 0)
	require.NoError(t, err)
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
	require.NoError(t, line.SVG(&b))
	if wellFormed(t, "timeline", b.Bytes()); strings.Contains(b.String(), `width="-`) {
		t.Errorf("a bar of negative width: %s", b.String())
	}
}

func TestTimelineOfSome(t *testing.T) {
	tr := recorded(record(0, 4, 1), record(10, 4, 1), record(20, 4, 1))
	tests := []struct {
		name       string
		trace      *trace.Trace
		skip, most int
		want       []int
		err        string
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
			line, err := TimelineOf(test.trace, test.skip, test.most)
			if err != nil || test.err != "" {
				if err == nil || err.Error() != test.err {
					t.Fatalf("got %v, want %s", err, test.err)
				}
				return
			}
			var got []int
			for _, r := range line.rows {
				got = append(got, r.index)
			}
			require.NoDiff(t, cmp.Diff(test.want, got), "(-want +got)")
		})
	}
}
