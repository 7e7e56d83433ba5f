package player

import (
	"fmt"
	"slices"
	"testing"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

func external(id string) change { return func(r *protocol.Request) { r.ExternalID = id } }

func TestReplaySummary(t *testing.T) {
	tr := traceOf(t,
		take{prompt: count(0, 8), output: []uint32{1}}, take{prompt: count(0, 12), output: []uint32{2}},
		take{prompt: count(50, 8), output: []uint32{3}}, take{prompt: count(70, 8), output: []uint32{4}, without: "ids"},
	)
	replay, err := NewReplay(tr, ReplayOptions{Match: MatchPrefix, Once: true})
	must(t, err)
	for i, prompt := range [][]uint32{
		count(0, 8), count(0, 8), slices.Concat(count(0, 10), count(90, 9)), count(90, 8), nil,
	} {
		if _, err := replay.Script(forSource(ask(fmt.Sprint(i), prompt, 1))); err != nil {
			t.Fatal(err)
		}
	}
	want := ReplaySummary{
		Requests: 5, Whole: 1, Partial: 1, Unmatched: 2, Exhausted: 1, Depths: map[int]int{10: 1}, Records: 3, Unused: 1,
	}
	equal(t, "summary", want, replay.Summary())
	const text = "5 requests: 1 matched a record by the whole prompt or the id, 1 by the beginning of the prompt (1 of 10 tokens), " +
		"2 no record, 1 only records that may not answer again; 0 got a record that had answered before; 1 of 3 records unused"
	equal(t, "text", text, replay.Summary().String())
}
