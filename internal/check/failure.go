package check

import (
	"errors"
	"fmt"
	"time"
)

// Failure is one thing that a case found wrong.
type Failure struct {
	// Code names the kind of finding; docs/findings.md has a page on each.
	Code Code `json:"code"`
	// Request is the replay index of the request, -1 when it is not about one.
	Request int `json:"request"`
	// Position counts from 0 in what was compared: tokens, chunks, outputs. It is
	// -1 when the failure has none.
	Position int `json:"position"`
	// Frame is the number of the message, as the frames file counts them from 1
	// after its meta line, or as the engine sent them; -1 when it is not about one.
	Frame int `json:"frame"`
	// Path leads to a value within a message:
	// "EngineCoreOutputs.outputs[0].finish_reason".
	Path string `json:"path,omitempty"`
	// Expected and Actual are the two values, as the message shows them.
	Expected string `json:"expected,omitempty"`
	Actual   string `json:"actual,omitempty"`
	// Message says it all in a sentence.
	Message string `json:"message"`
	// Consequence is what it does to users, Measured the released program that showed it ("vllm-rs 0.33.0"), if one did, and
	// Level the part of the wire that it is of. The runner fills them in.
	Consequence Consequence `json:"consequence,omitempty"`
	Measured    string      `json:"measured,omitempty"`
	Level       Level       `json:"level,omitempty"`
}

// Failed makes a failure that is not about one request, position or frame.
func Failed(code Code, format string, args ...any) Failure {
	return Failure{Code: code, Request: -1, Position: -1, Frame: -1, Message: fmt.Sprintf(format, args...)}
}

// Of says which request the failure is about.
func (f Failure) Of(request int) Failure {
	f.Request = request
	return f
}

// At says where in what was compared the failure is.
func (f Failure) At(position int) Failure {
	f.Position = position
	return f
}

// Compared says what was expected and what came.
func (f Failure) Compared(expected, actual any) Failure {
	f.Expected, f.Actual = fmt.Sprint(Shown(expected)), fmt.Sprint(Shown(actual))
	return f
}

// Shown is a value as messages show it.
func Shown(value any) any {
	if value == nil {
		return "nil"
	}
	return value
}

// Within says in which message, and where in it, the failure is.
func (f Failure) Within(frame int, path string) Failure {
	f.Frame, f.Path = frame, path
	return f
}

// Fail records something wrong.
func (f *Outcome) Fail(wrong Failure) { f.Failures = append(f.Failures, wrong) }

// AddNote adds a note.
func (f *Outcome) AddNote(note string) {
	if f.Note != "" {
		f.Note += "; "
	}
	f.Note += note
}

// Outcome collects what a case finds.
type Outcome struct {
	Failures []Failure
	Asserted int
	Tokens   int
	Note     string
	Needs    string // see [Result]
}

// EndError is a failure that ends its case.
type EndError struct{ Failure }

func (e EndError) Error() string { return e.Message }

// Ends is the error of a failure that ends its case.
func Ends(code Code, format string, args ...any) error {
	return EndError{Failed(code, format, args...)}
}

// End records the failure that ended a case. It returns any other error.
func (o *Outcome) End(err error) error {
	var ended EndError
	if !errors.As(err, &ended) {
		return err
	}
	o.Asserted++
	o.Fail(ended.Failure)
	return nil
}

// InfraError marks an error around the subject.
type InfraError struct{ error }

// Infra says that an error lies around the subject: it is not the subject that is wrong.
func Infra(err error) error { return InfraError{err} }

func (e InfraError) Unwrap() error { return e.error }

// placedError is an error and what it is about.
type placedError struct {
	error
	Place Failure
}

func (e placedError) Unwrap() error { return e.error }

// RequestError is an error about one request: Place has its request, position and values.
type RequestError struct{ placedError }

// AboutRequest says which request an error is about.
func AboutRequest(err error, place Failure) error { return RequestError{placedError{err, place}} }

// MessageError is an error about one message of the subject: it is the subject
// that is wrong, and no frontend could go on after it. Place has its frame, path and values.
type MessageError struct{ placedError }

// AboutMessage says which message an error is about.
func AboutMessage(err error, place Failure) error { return MessageError{placedError{err, place}} }

// Unanswered is the error of a utility call that got no answer: each utility call of a real engine gets one, be it a failure.
func Unanswered(call string, within time.Duration) error {
	return WithCode(CodeUtility, fmt.Errorf("utility call %s was not answered within %v: an engine answers every call, an unknown one with a failure", call, within))
}

// FailureOf makes an error a failure, with the places it is about.
func FailureOf(err error) Failure {
	f := Failed(CodeOf(err), "%v", err)
	var request RequestError
	if errors.As(err, &request) {
		f = f.Of(request.Place.Request).At(request.Place.Position).Compared(request.Place.Expected, request.Place.Actual)
	}
	var message MessageError
	if errors.As(err, &message) {
		f = f.Within(message.Place.Frame, message.Place.Path).Compared(message.Place.Expected, message.Place.Actual)
	}
	return f
}
