package main

import (
	"slices"
	"testing"

	"github.com/vllm-vcr/conformance/internal/inspect"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/player"
	"github.com/vllm-vcr/conformance/trace"
)

// TestWireSaysWhatWasRecorded: the player of --over-wire says what the recorded engine said, so that the prefix cache finds it in the prompt
// of the next turn. Ids that the model of the frontend does not have become others, in prompts and answers alike.
func TestWireSaysWhatWasRecorded(t *testing.T) {
	record := func(at float64, prompt, answer []uint32) trace.Record {
		gaps := make([]float64, len(answer)-1)
		return trace.Record{PromptTokens: len(prompt), PromptTokenIDs: prompt, OutputTokens: len(answer), OutputTokenIDs: answer, ITLMs: gaps, ArrivalMs: &at}
	}
	w, err := inspect.WorkloadOf(&trace.Trace{Name: "t.jsonl", Records: []trace.Record{
		record(0, []uint32{1, 2}, []uint32{3, 4}),
		record(1, []uint32{1, 2}, []uint32{5, 6}),
		record(2, []uint32{1, 2, wireVocabulary + 3}, []uint32{wireVocabulary + 7}),
	}})
	require.NoError(t, err)
	source := saidIn(w)
	for i, ask := range []struct{ prompt, want []uint32 }{
		{[]uint32{1, 2, 3}, []uint32{7}},
		{[]uint32{1, 2}, []uint32{3, 4}},
		{[]uint32{1, 2}, []uint32{5, 6}},
		{[]uint32{1, 2}, []uint32{5, 6}}, // again, of a second run
	} {
		got, err := source.Script(&player.Request{PromptTokenIDs: ask.prompt})
		if err != nil || !slices.Equal(got.Tokens, ask.want) || got.CachedTokens != player.LookUp || got.Finish != player.FinishLength {
			t.Errorf("request %d: %+v, %v, want the tokens %v", i, got, err, ask.want)
		}
	}
	if _, err := source.Script(&player.Request{PromptTokenIDs: []uint32{9}}); err == nil {
		t.Error("a prompt that was not recorded has an answer")
	}
}
