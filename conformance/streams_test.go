package conformance

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/trace"
)

func TestAround(t *testing.T) {
	ids := make([]int, 30)
	for i := range ids {
		ids[i] = i
	}
	tests := []struct {
		name   string
		values []int
		at     int
		want   string
	}{
		{"all", ids[:3], 1, "[0 1 2]"},
		{"none", nil, 0, "[]"},
		{"past the end", ids[:3], 3, "[0 1 2]"},
		{"far past the end", ids[:3], 20, "[…]"},
		{"beginning", ids, 0, "[0 1 2 3 4 5 6 7 8…]"},
		{"middle", ids, 15, "[…7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23…]"},
		{"last before the window moves", ids, window, "[0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16…]"},
		{"first after the window moved", ids, window + 1, "[…1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17…]"},
		{"end", ids, 29, "[…21 22 23 24 25 26 27 28 29]"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := around(test.values, test.at); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

func TestFirstDifference(t *testing.T) {
	tests := []struct {
		name string
		a, b []int
		want int
	}{
		{"equal", []int{1, 2}, []int{1, 2}, 2},
		{"first", []int{1, 2}, []int{2, 2}, 0},
		{"shorter", []int{1, 2}, []int{1}, 1},
		{"longer", []int{1}, []int{1, 2}, 1},
		{"empty", nil, []int{1}, 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := firstDifference(test.a, test.b); got != test.want {
				t.Errorf("got %d, want %d", got, test.want)
			}
		})
	}
}

// TestRecordedStreams: streams are numbered in the order of arrival, and those
// without tokens keep their number.
func TestRecordedStreams(t *testing.T) {
	at := func(ms float64) *float64 { return &ms }
	tr := &trace.Trace{Records: []trace.Record{
		{Line: 2, ArrivalMs: at(30), OutputTokenIDs: []uint32{3}, OutputTokens: 1, PromptTokens: 2},
		{Line: 3, ArrivalMs: at(20)},
		{Line: 4, OutputTokenIDs: []uint32{9}, OutputTokens: 1},
		{Line: 5, ArrivalMs: at(10), OutputTokenIDs: []uint32{1}, OutputTokens: 1, PromptTokens: 1, PromptTokenIDs: []uint32{8}},
	}}
	type shown struct {
		ID     string
		Line   int
		Prompt []uint32
		Chunks []int
	}
	want := []shown{
		{"replay-0", 5, []uint32{8}, []int{1}},
		{"replay-2", 2, []uint32{plainToken, plainToken}, []int{1}},
	}
	var got []shown
	for _, s := range recordedStreams(tr, plainPrompts) {
		got = append(got, shown{s.id(), s.record.Line, s.prompt, s.chunks})
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestSynthesizedPrompts: prompts made up for a golden that has none share
// prefixes exactly where the recorded ones did, and are as long.
func TestSynthesizedPrompts(t *testing.T) {
	tr := &trace.Trace{Records: []trace.Record{
		{PromptTokens: 9, BlockHashes: []uint64{100, 200}},
		{PromptTokens: 8, BlockHashes: []uint64{100, 300}},
		{PromptTokens: 3},
		{PromptTokens: 9, BlockHashes: []uint64{100, 200}},
	}}
	made, prompts := prefixPrompts(tr, 4)
	var got [][]uint32
	for i := range made.Records {
		r := &made.Records[i]
		got = append(got, prompts(i, r))
		if len(r.PromptTokenIDs) != tr.Records[i].PromptTokens || tr.Records[i].PromptTokenIDs != nil {
			t.Errorf("record %d: %d prompt ids in the copy, %v in the original", i, len(r.PromptTokenIDs), tr.Records[i].PromptTokenIDs)
		}
		if !cmp.Equal(r.BlockHashes, trace.BlockHashes(r.PromptTokenIDs, 4)) {
			t.Errorf("record %d: the chain is not that of its prompt", i)
		}
	}
	want := [][]uint32{{1, 0, 0, 0, 2, 0, 0, 0, 0}, {1, 0, 0, 0, 3, 0, 0, 0}, {0, 0, 0}, {1, 0, 0, 0, 2, 0, 0, 0, 0}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestPrefixPromptsOfTheGolden: where the golden has prompts and hashes, it is
// used as it is.
func TestPrefixPromptsOfTheGolden(t *testing.T) {
	tr := &trace.Trace{Records: []trace.Record{{PromptTokens: 2, PromptTokenIDs: []uint32{5, 6}, BlockHashes: []uint64{}}}}
	made, prompts := prefixPrompts(tr, 4)
	if got := prompts(0, &made.Records[0]); made != tr || !cmp.Equal(got, []uint32{5, 6}) {
		t.Errorf("prompt %v of a copy: %v, want the recorded one", got, made != tr)
	}
}
