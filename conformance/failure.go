package conformance

import "fmt"

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
}

// problem makes a failure that is not about one request, position or frame.
func problem(code Code, format string, args ...any) Failure {
	return Failure{Code: code, Request: -1, Position: -1, Frame: -1, Message: fmt.Sprintf(format, args...)}
}

// of says which request the failure is about.
func (f Failure) of(request int) Failure {
	f.Request = request
	return f
}

// at says where in what was compared the failure is.
func (f Failure) at(position int) Failure {
	f.Position = position
	return f
}

// compared says what was expected and what came.
func (f Failure) compared(expected, actual any) Failure {
	f.Expected, f.Actual = fmt.Sprint(expected), fmt.Sprint(actual)
	return f
}

// within says in which message, and where in it, the failure is.
func (f Failure) within(frame int, path string) Failure {
	f.Frame, f.Path = frame, path
	return f
}
