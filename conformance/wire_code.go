package conformance

// What is wrong with a message of the engine, compared with the real engine's.
const (
	CodeWireValue   Code = "W001" // a value differs
	CodeWireKind    Code = "W002" // a value is of another kind
	CodeWireLength  Code = "W003" // an array has another number of elements
	CodeWireMissing Code = "W004" // a key is missing
	CodeWireExtra   Code = "W005" // a key that the real engine does not send
	CodeWireOrder   Code = "W006" // the keys of a map come in another order
	CodeWireFrames  Code = "W007" // the message has other auxiliary frames
	CodeWireSyntax  Code = "W008" // the message is not msgpack
	CodeWireUnsaid  Code = "W009" // a message of the real engine has no counterpart
	CodeWireStray   Code = "W010" // a message that the real engine did not send
)
