package capture

import (
	"fmt"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/trace"
)

// Answers are distinguished by prompt, tokens and end, and by neither order nor time.
func TestSameAnswers(t *testing.T) {
	record := func(change func(*trace.Record)) trace.Record {
		rec := trace.Record{PromptTokens: 2, OutputTokens: 1, PromptTokenIDs: []uint32{1, 2}, OutputTokenIDs: []uint32{7}, FinishReason: trace.FinishStop}
		if change != nil {
			change(&rec)
		}
		return rec
	}
	plain := record(nil)
	other := record(func(r *trace.Record) { r.PromptTokenIDs, r.OutputTokenIDs = []uint32{1, 3}, []uint32{8} })
	tests := []struct {
		name        string
		now, before []trace.Record
		want        string
	}{
		{name: "the same", now: []trace.Record{plain}, before: []trace.Record{plain}, want: "1 of 1"},
		{name: "in another order", now: []trace.Record{plain, other}, before: []trace.Record{other, plain}, want: "2 of 2"},
		{name: "at another time", now: []trace.Record{plain}, before: []trace.Record{record(func(r *trace.Record) { r.TTFTMs = 9 })}, want: "1 of 1"},
		{name: "other tokens", now: []trace.Record{plain}, before: []trace.Record{record(func(r *trace.Record) { r.OutputTokenIDs = []uint32{8} })}, want: "0 of 1"},
		{name: "another end", now: []trace.Record{plain}, before: []trace.Record{record(func(r *trace.Record) { r.FinishReason = trace.FinishLength })}, want: "0 of 1"},
		{name: "another prompt", now: []trace.Record{plain}, before: []trace.Record{record(func(r *trace.Record) { r.PromptTokenIDs = []uint32{2, 1} })}, want: "0 of 1"},
		{name: "another image", now: []trace.Record{plain}, before: []trace.Record{record(func(r *trace.Record) { r.MMHashes = []string{"a"} })}, want: "0 of 1"},
		{name: "asked twice", now: []trace.Record{plain, plain}, before: []trace.Record{plain}, want: "1 of 2"},
		{name: "asked once", now: []trace.Record{plain}, before: []trace.Record{plain, plain}, want: "1 of 2"},
		{name: "none before", now: []trace.Record{plain}, want: "0 of 1"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			measured := func(records []trace.Record) measure {
				m := newMeasurer(trace.Meta{})
				for i := range records {
					m.add(&records[i])
				}
				return m.result()
			}
			require.Equal(t, measured(test.now).again(measured(test.before)), test.want, "measured")
		})
	}
}

func TestFamily(t *testing.T) {
	for id, want := range map[string]string{
		"multiturn-s7": "multiturn", "multiturn-nocache-s13": "multiturn-nocache", "edge": "edge", "a-small": "a-small", "a-s": "a-s",
	} {
		require.Equal(t, family(id), want, "family of %q", id)
	}
}

// A text of however many goldens fits into a pull request.
func TestDescribeIsBounded(t *testing.T) {
	d := describer{DescribeOptions: DescribeOptions{Line: "0.33", Run: "https://ci.example/" + strings.Repeat("x", 500)}}
	for i := range 3000 {
		d.rows = append(d.rows, &row{now: manifest.Golden{ID: fmt.Sprintf("%0200d", i), EngineImage: strings.Repeat("y", 300)}})
		d.warnf("%s", quote(strings.Repeat("z", 300)))
		d.gone = append(d.gone, strings.Repeat("|", 300))
		d.result.Elsewhere = append(d.result.Elsewhere, strings.Repeat("w", 300))
	}
	body := d.body()
	require.True(t, len(body) <= MaxDescription, "%d bytes", len(body))
	for _, want := range []string{"more, for which there is no space here", "- and ", "Run: https://ci.example/"} {
		require.Contains(t, body, want)
	}
}
