package check

import (
	"context"
	"errors"
	"strings"
)

// Code names a kind of finding. docs/findings.md has a page on each, which
// "conform --explain CODE" prints.
type Code string

// What is wrong with a registration (the ready response).
const (
	CodeNoReady         Code = "S001" // a golden of role schema has no ready response
	CodeBadReady        Code = "S002" // the golden's ready response cannot be read
	CodeReadyUnreadable Code = "S003" // the engine's ready response cannot be read
	CodeReadyMissing    Code = "S004" // a key that the captured engine sent is missing
	CodeReadyKind       Code = "S005" // a key has a value of another kind
	CodeReadyRequired   Code = "S006" // a key that the line's frontend requires is missing
)

// What is wrong with a replayed stream.
const (
	CodeStray       Code = "F008" // an output names a request that was never sent
	CodeUndecodable Code = "F009" // a frontend of the line cannot read the message
	CodeEngineIndex Code = "F010" // a message names another engine
	CodeUtility     Code = "F015" // a utility call is not answered, or not as a real engine does
	CodeLayout      Code = "F016" // a message is not exactly what the line's profile declares
)

// What is wrong with a trace that is to be registered.
const CodeRegistration Code = "G001"

// What keeps a case from being judged.
const (
	CodeFetch       Code = "R001" // the golden could not be fetched
	CodeGolden      Code = "R002" // the golden cannot be read
	CodeStart       Code = "R003" // the engine under test could not be started
	CodeNoHandshake Code = "R004" // no HELLO, registration and READY in time
	CodeEngineEnded Code = "R005" // the engine ended while it was needed
	CodeSilence     Code = "R006" // no output for too long
	CodeDeadline    Code = "R007" // the case took too long
	CodeNotRun      Code = "R008" // the run was interrupted before
	CodeFrontend    Code = "R009" // the frontend could not be started, or ended
	CodeHandshake   Code = "R010" // the handshake is not that of an engine of the line
	CodeEngineFlood Code = "E024" // far more outputs than requested
	// An earlier case of the session ended the engine, or it ended by itself.
	CodeEngineSessionLost Code = "E025"
	CodeStrict            Code = "E026" // it answers shorter requests than those of the line
	CodeConsumerProtocol  Code = "B001" // a consumer of KV events does not answer as the protocol demands
	CodeUnjudged          Code = "R099" // any other reason
)

type codedError struct {
	code Code
	error
}

func (e codedError) Unwrap() error { return e.error }

// WithCode gives an error its code, unless it has one.
func WithCode(code Code, err error) error {
	if err == nil || CodeOf(err) != CodeUnjudged {
		return err
	}
	return codedError{code, err}
}

// CodeOf returns the code of an error.
func CodeOf(err error) Code {
	var known codedError
	switch {
	case errors.As(err, &known):
		return known.code
	case errors.Is(err, context.Canceled):
		return CodeNotRun
	}
	return CodeUnjudged
}

// FirstLine is an error without the output that it may quote.
func FirstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}
