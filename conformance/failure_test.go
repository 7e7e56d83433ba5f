package conformance

import (
	"errors"
	"fmt"
	"testing"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/replay"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

// halfway is a stream that has come so far.
func halfway(index, got int, ended bool) *replay.Stream {
	s := &replay.Stream{Index: index, Record: &trace.Record{OutputTokenIDs: make([]uint32, 8), Line: index + 2}, Finish: trace.FinishAbsent}
	s.Take(make([]uint32, got), ended, trace.FinishLength)
	return s
}

// TestFailureOf: an error keeps its places on the way to a failure, through
// whatever wraps it.
func TestFailureOf(t *testing.T) {
	silence := check.WithCode(check.CodeSilence, errors.New("no output for 1s"))
	session := &replay.Replaying{Frames: 42}
	garbage := session.Undecodable(errors.New("it does not decode: EngineCoreOutputs.outputs[3].new_token_ids: expected array, found str"))
	tests := []struct {
		name string
		err  error
		want Failure
	}{
		{"nothing known", errors.New("x"), Failure{Code: check.CodeUnjudged, Request: -1, Position: -1, Frame: -1}},
		{
			"one open", replay.Placed([]*replay.Stream{halfway(0, 8, true), halfway(1, 3, false)}, silence),
			Failure{Code: check.CodeSilence, Request: 1, Position: 3, Frame: -1, Expected: "8 tokens and a terminal output", Actual: "3 tokens"},
		},
		{"several open", replay.Placed([]*replay.Stream{halfway(0, 1, false), halfway(1, 3, false)}, silence), Failure{Code: check.CodeSilence, Request: -1, Position: -1, Frame: -1}},
		{"none open", replay.Placed([]*replay.Stream{halfway(0, 8, true)}, silence), Failure{Code: check.CodeSilence, Request: -1, Position: -1, Frame: -1}},
		{
			"a message", garbage,
			Failure{
				Code: check.CodeUndecodable, Request: -1, Position: -1, Frame: 42, Path: "EngineCoreOutputs.outputs[3].new_token_ids",
				Expected: "a message of the line", Actual: "none",
			},
		},
		{
			"a message while one was open", fmt.Errorf("and: %w", replay.Placed([]*replay.Stream{halfway(7, 2, false)}, garbage)),
			Failure{
				Code: check.CodeUndecodable, Request: 7, Position: 2, Frame: 42, Path: "EngineCoreOutputs.outputs[3].new_token_ids",
				Expected: "a message of the line", Actual: "none",
			},
		},
		{
			"another call", session.Answered(&protocol.UtilityOutput{CallID: 9}, 3),
			Failure{Code: check.CodeUtility, Request: -1, Position: -1, Frame: 42, Path: "EngineCoreOutputs.utility_output.call_id", Expected: "3", Actual: "9"},
		},
		{
			"a failed call", session.Answered(&protocol.UtilityOutput{CallID: 3, Failed: true, Failure: "no"}, 3),
			Failure{Code: check.CodeUtility, Request: -1, Position: -1, Frame: 42, Path: "EngineCoreOutputs.utility_output.failure_message", Expected: "none", Actual: "no"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := check.FailureOf(test.err)
			test.want.Message = test.err.Error()
			if got != test.want {
				t.Errorf("got  %+v\nwant %+v", got, test.want)
			}
		})
	}
	if err := session.Answered(&protocol.UtilityOutput{CallID: 3}, 3); err != nil {
		t.Errorf("a right answer: %v", err)
	}
}
