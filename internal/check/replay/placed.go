package replay

import (
	"fmt"
	"regexp"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/sut"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// CodeUtility is of a utility call that is not answered as a real engine does.
const CodeUtility check.Code = "F015"

// Placed says which request an error is about, if only one was open.
func Placed(sent []*Stream, err error) error {
	var open *Stream
	for _, s := range sent {
		switch {
		case s.ended():
		case open != nil:
			return err
		default:
			open = s
		}
	}
	if open == nil {
		return err
	}
	got, want := len(open.got), len(open.Record.OutputTokenIDs)
	expected := fmt.Sprintf("%d tokens and a terminal output", want)
	return check.AboutRequest(err, check.Failure{Request: open.Index, Position: got, Expected: expected, Actual: fmt.Sprintf("%d tokens", got)})
}

// outputsPath is how the errors of [protocol.Codec.DecodeOutputs] name a place.
var outputsPath = regexp.MustCompile(`EngineCoreOutputs[\w.\[\]]*`)

// Undecodable is the error of a message that a frontend of the line cannot read.
func (s *Replaying) Undecodable(err error) error {
	place := check.Failure{Frame: s.Frames, Path: outputsPath.FindString(err.Error()), Expected: "a message of the line", Actual: "none"}
	return check.WithCode(check.CodeUndecodable, check.AboutMessage(fmt.Errorf("message %d: %w", s.Frames, err), place))
}

// Answered checks the answer to the call that ends a replay.
func (s *Replaying) Answered(u *protocol.UtilityOutput, id uint64) error {
	wrong := func(field string, expected, actual any, format string, args ...any) error {
		place := check.Failed("", "").Within(s.Frames, "EngineCoreOutputs.utility_output."+field).Compared(expected, actual)
		text := fmt.Sprintf(format, args...)
		return check.WithCode(CodeUtility, check.AboutMessage(fmt.Errorf("message %d: utility call %d (%s): %s", s.Frames, id, sut.LastCall, text), place))
	}
	switch {
	case u.CallID != id:
		return wrong("call_id", id, u.CallID, "the answer names call %d, which was not made", u.CallID)
	case u.Failed:
		return wrong("failure_message", "none", u.Failure, "it failed: %s", u.Failure)
	}
	return nil
}
