package inspect

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/trace"
)

func TestWorkloadOf(t *testing.T) {
	given := record(0, 3, 5)
	given.PromptTokenIDs, given.OutputTokenIDs = []uint32{7, 8, 9}, []uint32{10}
	nothing := record(1, 4, 0)
	nothing.OutputTokens = 0
	type want struct {
		parent int
		at     float64
	}
	tests := []struct {
		name    string
		records []trace.Record
		want    []want
	}{
		{"by arrival, from the first", []trace.Record{record(30, 4, 1), record(10, 4, 1)}, []want{{-1, 0}, {-1, 20}}},
		{"without those that said nothing", []trace.Record{nothing, record(10, 4, 1)}, []want{{-1, 0}}},
		{
			"turns wait for the answer", []trace.Record{
				hashed(record(0, 4, 5, 10), 1), hashed(record(20, 8, 5), 1, 2), hashed(record(30, 12, 5), 1, 2, 3),
			}, []want{{-1, 0}, {0, 5}, {1, 5}},
		},
		{
			"the latest of the same beginning", []trace.Record{
				hashed(record(0, 4, 5), 1), hashed(record(10, 4, 5), 1), hashed(record(20, 8, 5), 1, 2),
			}, []want{{-1, 0}, {-1, 10}, {1, 5}},
		},
		{
			"not of an answer that was still coming", []trace.Record{
				hashed(record(0, 4, 5, 100), 1), hashed(record(20, 8, 5), 1, 2),
			}, []want{{-1, 0}, {-1, 20}},
		},
		{
			"not of a longer prompt, nor an equal one", []trace.Record{
				hashed(record(0, 12, 5), 1, 2, 3), hashed(record(20, 8, 5), 1, 2), hashed(record(40, 8, 5), 1, 2),
			}, []want{{-1, 0}, {-1, 20}, {-1, 40}},
		},
		{"as recorded", []trace.Record{given}, []want{{-1, 0}}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var got []want
			for _, a := range mustWorkload(t, recorded(test.records...)).asks {
				got = append(got, want{a.parent, a.at})
				if len(a.prompt) != a.record.PromptTokens || len(a.answer) != a.record.OutputTokens {
					t.Errorf("a prompt of %d and an answer of %d, want %d and %d", len(a.prompt), len(a.answer), a.record.PromptTokens, a.record.OutputTokens)
				}
			}
			require.NoDiff(t, cmp.Diff(test.want, got, cmp.AllowUnexported(want{})), "(-want +got)")
		})
	}
}

// Prompts are equal as far as their hashes are, and nowhere else.
func TestPrompts(t *testing.T) {
	w := mustWorkload(t, recorded(hashed(record(0, 10, 1), 1, 2), hashed(record(1, 10, 1), 1, 3), record(2, 10, 1)))
	for _, pair := range []struct{ a, b, shared int }{{0, 1, 4}, {0, 2, 0}, {1, 2, 0}} {
		a, b := w.asks[pair.a].prompt, w.asks[pair.b].prompt
		shared := 0
		for shared < 10 && a[shared] == b[shared] {
			shared++
		}
		require.True(t, shared == pair.shared, "requests %d and %d share %d tokens, want %d", pair.a, pair.b, shared, pair.shared)
	}
	given := record(0, 3, 5)
	given.PromptTokenIDs, given.OutputTokenIDs = []uint32{7, 8, 9}, []uint32{10}
	a := mustWorkload(t, recorded(given)).asks[0]
	require.NoDiff(t, cmp.Diff([][]uint32{{7, 8, 9}, {10}}, [][]uint32{a.prompt, a.answer}), "recorded ids (-want +got)")
}

func TestWorkloadErrors(t *testing.T) {
	late := record(0, 4, 1)
	late.ArrivalMs = nil
	silent := record(0, 4, 1)
	silent.OutputTokens = 0
	summary := record(0, 4, 1, 2)
	summary.ITLMs, summary.ITLSummary, summary.Line = nil, &trace.ITLSummary{MeanMs: 2, Count: 1}, 3
	several := record(0, 4, 1, 2)
	several.OutputTokens, several.ITLMs = 2, []float64{2, 2}
	burst, endless := record(0, 4, 1, 2), record(0, 1<<24+1, 1)
	burst.OutputTokens = 1 << 40
	tests := []struct {
		name    string
		records []trace.Record
		want    string
	}{
		{"more tokens in an output than memory", []trace.Record{burst}, "t.jsonl: 1099511627776 tokens in 2 outputs: want at most 1024"},
		{"a longer prompt than any", []trace.Record{endless}, "t.jsonl: prompt_tokens is 16777217: want at most 16777216"},
		{"no arrivals", []trace.Record{late}, "t.jsonl: no record has arrival_ms"},
		{"no answers", []trace.Record{silent}, "t.jsonl: no record has an answer"},
		{"no prompt", []trace.Record{record(0, 0, 1)}, "t.jsonl: prompt_tokens is 0"},
		{"fewer tokens than outputs", []trace.Record{several}, "t.jsonl: 2 tokens in 3 outputs"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if _, err := WorkloadOf(recorded(test.records...)); err == nil || !strings.HasPrefix(err.Error(), test.want) {
				t.Errorf("got %v, want %s…", err, test.want)
			}
		})
	}
}
