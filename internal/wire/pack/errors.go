package pack

import "fmt"

// SyntaxError says that bytes are not one well-formed MessagePack message, or
// that it is nested too deeply to be read.
type SyntaxError struct {
	Offset int    // byte at which the offending value begins
	Reason string // what is wrong with it, lower case
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("msgpack: byte %d: %s", e.Offset, e.Reason)
}

// ValueError says that a value is well formed but is not of the kind, or not in
// the range, that was asked for.
type ValueError struct {
	Offset int    // byte at which the value begins
	Reason string // what was expected and what was found, lower case
}

func (e *ValueError) Error() string {
	return fmt.Sprintf("msgpack: byte %d: %s", e.Offset, e.Reason)
}

func syntaxError(off int, format string, args ...any) error {
	return &SyntaxError{Offset: off, Reason: fmt.Sprintf(format, args...)}
}

func valueError(off int, format string, args ...any) error {
	return &ValueError{Offset: off, Reason: fmt.Sprintf(format, args...)}
}
