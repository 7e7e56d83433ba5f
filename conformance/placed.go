package conformance

import (
	"errors"
	"fmt"
	"regexp"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// CodeUtility is of a utility call that is not answered as a real engine does.
const CodeUtility Code = "F015"

// placedError is an error about one request.
type placedError struct {
	error
	place Failure // its request, position and values
}

func (e placedError) Unwrap() error { return e.error }

// wrongMessage is an error about one message of the subject: it is the subject
// that is wrong, and no frontend could go on after it.
type wrongMessage struct {
	error
	place Failure // its frame, path and values
}

func (e wrongMessage) Unwrap() error { return e.error }

// failureOf makes an error a failure, with the places it is about.
func failureOf(err error) Failure {
	f := problem(codeOf(err), "%v", err)
	var request placedError
	if errors.As(err, &request) {
		f = f.of(request.place.Request).at(request.place.Position).compared(request.place.Expected, request.place.Actual)
	}
	var message wrongMessage
	if errors.As(err, &message) {
		f = f.within(message.place.Frame, message.place.Path).compared(message.place.Expected, message.place.Actual)
	}
	return f
}

// placed says which request an error is about, if only one was open.
func placed(sent []*stream, err error) error {
	var open *stream
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
	got, want := len(open.got), len(open.record.OutputTokenIDs)
	expected := fmt.Sprintf("%d tokens and a terminal output", want)
	return placedError{err, Failure{Request: open.index, Position: got, Expected: expected, Actual: fmt.Sprintf("%d tokens", got)}}
}

// outputsPath is how the errors of [protocol.Codec.DecodeOutputs] name a place.
var outputsPath = regexp.MustCompile(`EngineCoreOutputs[\w.\[\]]*`)

// undecodable is the error of a message that a frontend of the line cannot read.
func (s *session) undecodable(err error) error {
	place := Failure{Frame: s.frames, Path: outputsPath.FindString(err.Error()), Expected: "a message of the line", Actual: "none"}
	return coded(CodeUndecodable, wrongMessage{fmt.Errorf("message %d: %w", s.frames, err), place})
}

// answered checks the answer to the call that ends a replay.
func (s *session) answered(u *protocol.UtilityOutput, id uint64) error {
	wrong := func(field string, expected, actual any, format string, args ...any) error {
		place := problem("", "").within(s.frames, "EngineCoreOutputs.utility_output."+field).compared(expected, actual)
		text := fmt.Sprintf(format, args...)
		return coded(CodeUtility, wrongMessage{fmt.Errorf("message %d: utility call %d (%s): %s", s.frames, id, lastCall, text), place})
	}
	switch {
	case u.CallID != id:
		return wrong("call_id", id, u.CallID, "the answer names call %d, which was not made", u.CallID)
	case u.Failed:
		return wrong("failure_message", "none", u.Failure, "it failed: %s", u.Failure)
	}
	return nil
}
