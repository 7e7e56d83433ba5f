package replay

import (
	"fmt"
	"slices"

	"github.com/vllm-vcr/conformance/internal/check/message"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// tables compares what is known of the tables of log-probabilities, wherever their
// data lie: each row begins with the token that was sampled, or stands in the prompt.
// What does not decode, or has another shape, has been found.
func (c *wireComparison) tables(want *WireMessage, requests []*wireRequest, got [][]byte) {
	if len(want.Frames) != len(got) || len(requests) == 0 || !slices.ContainsFunc(requests, func(r *wireRequest) bool { return r.tables }) {
		return
	}
	var w, g protocol.Outputs
	if c.codec.DecodeOutputs(want.Frames[0], &w) != nil || c.codec.DecodeOutputs(got[0], &g) != nil || len(w.Outputs) != len(g.Outputs) {
		return
	}
	for i := range w.Outputs {
		for _, t := range []struct {
			field     string
			want, got []byte
		}{
			{"new_logprobs", w.Outputs[i].Logprobs, g.Outputs[i].Logprobs},
			{"new_prompt_logprobs_tensors", w.Outputs[i].PromptLogprobs, g.Outputs[i].PromptLogprobs},
		} {
			path := fmt.Sprintf("EngineCoreOutputs.outputs[%d].%s.logprob_token_ids[2]", i, t.field)
			expected, actual := FirstIDs(t.want, want.Frames[1:]), FirstIDs(t.got, got[1:])
			if expected == nil || len(expected) != len(actual) || slices.Equal(expected, actual) {
				continue
			}
			row := message.FirstDifference(expected, actual)
			c.fail(want, requestAt(path, requests), CodeWireValue, path,
				fmt.Sprintf("id %d at the beginning of row %d", expected[row], row), fmt.Sprint(actual[row]))
		}
	}
}

// FirstIDs are the first of each row of a table, nil of what is none.
func FirstIDs(raw []byte, aux [][]byte) []int64 {
	if raw == nil {
		return nil
	}
	cur := pack.NewCursor(raw)
	if n, err := cur.ArrayLen(); err != nil || n == 0 {
		return nil
	}
	ids, err := message.ReadTensor(&cur, aux)
	if err != nil || len(ids.Shape) != 2 || ids.Shape[1] == 0 {
		return nil
	}
	var first []int64
	for row := range slices.Chunk(ids.Integers(), ids.Shape[1]) {
		first = append(first, row[0])
	}
	return first
}
