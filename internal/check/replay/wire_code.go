package replay

import (
	"github.com/vllm-vcr/conformance/internal/check"
)

// What is wrong with a message of the engine, compared with the real engine's.
const (
	CodeWireValue   check.Code = "W001" // a value differs
	CodeWireKind    check.Code = "W002" // a value is of another kind
	CodeWireLength  check.Code = "W003" // an array has another number of elements
	CodeWireMissing check.Code = "W004" // a key is missing
	CodeWireExtra   check.Code = "W005" // a key that the real engine does not send
	CodeWireOrder   check.Code = "W006" // the keys of a map come in another order
	CodeWireFrames  check.Code = "W007" // the message has other auxiliary frames
	CodeWireSyntax  check.Code = "W008" // the message is not msgpack
	CodeWireUnsaid  check.Code = "W009" // a message of the real engine has no counterpart
	CodeWireStray   check.Code = "W010" // a message that the real engine did not send
)
