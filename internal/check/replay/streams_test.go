package replay

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

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
	for _, s := range RecordedStreams(tr) {
		got = append(got, shown{s.ID(), s.Record.Line, s.Prompt, s.Chunks})
	}
	require.NoDiff(t, cmp.Diff(want, got), "-want +got")
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
	made := prefixPrompts(tr, 4)
	var got [][]uint32
	for i := range made.Records {
		r := &made.Records[i]
		got = append(got, PromptOf(r))
		if len(r.PromptTokenIDs) != tr.Records[i].PromptTokens || tr.Records[i].PromptTokenIDs != nil {
			t.Errorf("record %d: %d prompt ids in the copy, %v in the original", i, len(r.PromptTokenIDs), tr.Records[i].PromptTokenIDs)
		}
		require.True(t, cmp.Equal(r.BlockHashes, trace.BlockHashes(r.PromptTokenIDs, 4)), "record %d: the chain is not that of its prompt", i)
	}
	want := [][]uint32{{1, 0, 0, 0, 2, 0, 0, 0, 0}, {1, 0, 0, 0, 3, 0, 0, 0}, {0, 0, 0}, {1, 0, 0, 0, 2, 0, 0, 0, 0}}
	require.NoDiff(t, cmp.Diff(want, got), "-want +got")
}

// TestDeliver is about outputs that no player of ours sends.
func TestDeliver(t *testing.T) {
	const length = protocol.FinishLength
	output := func(id string, finish protocol.FinishReason, tokens ...uint32) protocol.RequestOutput {
		return protocol.RequestOutput{ID: []byte(id), Tokens: tokens, Finish: finish}
	}
	right := []protocol.RequestOutput{output("replay-0", protocol.Unfinished, 1), output("replay-0", length, 2)}
	tests := []struct {
		name    string
		outputs []protocol.RequestOutput
		ended   int
		want    []string
	}{
		{"right", right, 1, nil},
		{"two terminal outputs", append(slices.Clone(right), output("replay-0", length)), 1, []string{
			"request 0 (line 5): 2 terminal outputs, expected exactly one",
			"request 0 (line 5): 1 outputs after the terminal one, expected 0",
		}},
		{"late output", append(slices.Clone(right), output("replay-0", protocol.Unfinished, 3)), 1, []string{
			"request 0 (line 5): token 2 differs: expected [1 2], got [1 2 3] (2 expected, 3 received)",
			"request 0 (line 5): 1 outputs after the terminal one, expected 0",
			"request 0 (line 5): chunk 2 differs: expected sizes [1 1], got [1 1 1]",
		}},
		{"no terminal output", right[:1], 0, []string{
			"request 0 (line 5): token 1 differs: expected [1 2], got [1] (2 expected, 1 received)",
			"request 0 (line 5): no terminal output after 1 of 2 tokens",
			"request 0 (line 5): chunk 1 differs: expected sizes [1 1], got [1]",
		}},
		{"output of another request", append([]protocol.RequestOutput{output("replay-7", length)}, right...), 1, []string{
			`an output names request "replay-7", which was never sent`,
		}},
		{"engine's own error", []protocol.RequestOutput{{
			ID: []byte("replay-0"), Finish: protocol.FinishError, Error: []byte("\x81\xa4code\xa3bad"),
		}}, 1, []string{
			`request 0 (line 5): the engine reports {"code": "bad"}`,
			"request 0 (line 5): token 0 differs: expected [1 2], got [] (2 expected, 0 received)",
			"request 0 (line 5): finish reason is error, expected length",
			"request 0 (line 5): chunk 0 differs: expected sizes [1 1], got []",
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			st := &Stream{
				Record: &trace.Record{Line: 5, OutputTokens: 2, OutputTokenIDs: []uint32{1, 2}, FinishReason: trace.FinishLength},
				Chunks: []int{1, 1}, Finish: trace.FinishAbsent,
			}
			s := &Replaying{byID: map[string]*Stream{st.ID(): st}}
			ended := 0
			for i := range test.outputs {
				ended += s.deliver(&test.outputs[i])
			}
			require.True(t, ended == test.ended, "%d streams ended, want %d", ended, test.ended)
			var f check.Outcome
			reportStrays(&f, s.strays)
			st.compare(&f, true)
			var got []string
			for _, failure := range f.Failures {
				got = append(got, failure.Message)
			}
			require.True(t, slices.Equal(got, test.want), "got  %q\nwant %q", got, test.want)
		})
	}
}

// TestStraysAreBounded: what is kept of a subject that talks nonsense is little.
func TestStraysAreBounded(t *testing.T) {
	var s Replaying
	for i := range 10 * maxStrays {
		s.deliver(&protocol.RequestOutput{ID: fmt.Appendf(nil, "stray-%d", i)})
	}
	require.True(t, len(s.strays) == maxStrays, "%d strays kept, want %d", len(s.strays), maxStrays)
}
