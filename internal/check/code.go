package check

import (
	"context"
	"errors"
	"strings"
)

// Code names a kind of finding. docs/findings.md has a page on each, which
// "conform --explain CODE" prints.
type Code string

// What is wrong with the stored bytes of a golden.
const (
	CodeDigest Code = "I001" // the sha256 is not the registered one
	CodeSize   Code = "I002" // the size is not the registered one
)

// What is wrong with the line of a golden.
const (
	CodeNoVersion Code = "L001" // the captured engine's version is unknown
	CodeOtherLine Code = "L002" // the captured engine was of another line
)

// What is wrong with the provenance of a golden.
const (
	CodeNoConfigHash    Code = "P001" // the golden has no config_hash
	CodeOtherConfigHash Code = "P002" // it is not the registered one
	CodeTraceConfig     Code = "P003" // it does not follow from the trace's own configuration
	CodeManifestConfig  Code = "P004" // the registered one does not follow from the registered configuration
)

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
	CodeToken        Code = "F001" // a token id differs
	CodeNoTerminal   Code = "F002" // the stream has no terminal output
	CodeTerminals    Code = "F003" // the stream has more than one terminal output
	CodeFinishReason Code = "F004" // the finish reason differs
	CodeLate         Code = "F005" // outputs come after the terminal one
	CodeChunks       Code = "F006" // the tokens come in other chunks
	CodeRefused      Code = "F007" // the engine refused the request
	CodeStray        Code = "F008" // an output names a request that was never sent
	CodeUndecodable  Code = "F009" // a frontend of the line cannot read the message
	CodeEngineIndex  Code = "F010" // a message names another engine
	CodeUsage        Code = "F011" // HTTP usage counts other tokens
	CodePin          Code = "F012" // the golden's streams are not those that were registered
	CodeCount        Code = "F013" // the golden has other counts than registered
	CodeReplayDigest Code = "F014" // the replayed streams have another digest
	CodeUtility      Code = "F015" // a utility call is not answered, or not as a real engine does
	CodeLayout       Code = "F016" // a message is not exactly what the line's profile declares
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
