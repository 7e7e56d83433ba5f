package trace

import "fmt"

// FinishReason says why a request ended. Its values are vLLM's wire codes
// (vllm/v1/engine: class FinishReason).
//
// The zero value is FinishStop, as on the wire: set FinishAbsent in a Record
// made by hand if nothing is known.
type FinishReason uint8

const (
	FinishStop       FinishReason = 0
	FinishLength     FinishReason = 1
	FinishAbort      FinishReason = 2
	FinishError      FinishReason = 3
	FinishRepetition FinishReason = 4
	// FinishAbsent is a record without finish_reason. It has no wire code.
	FinishAbsent FinishReason = 255
)

// String returns the reason as a trace spells it, lower case, and "absent" for
// FinishAbsent.
func (f FinishReason) String() string {
	switch f {
	case FinishStop:
		return "stop"
	case FinishLength:
		return "length"
	case FinishAbort:
		return "abort"
	case FinishError:
		return "error"
	case FinishRepetition:
		return "repetition"
	case FinishAbsent:
		return "absent"
	}
	return fmt.Sprintf("finish_reason(%d)", uint8(f))
}

// Wire returns the code a player sends for the reason: its value, and the code
// of FinishLength for FinishAbsent, because a stream replayed from a record
// without a reason ends when its tokens do.
func (f FinishReason) Wire() uint8 {
	if f == FinishAbsent {
		return uint8(FinishLength)
	}
	return uint8(f)
}

// ParseFinishReason is the reverse of String for the five reasons of the wire.
// The spelling is exact.
func ParseFinishReason(s string) (FinishReason, bool) {
	for f := FinishStop; f <= FinishRepetition; f++ {
		if f.String() == s {
			return f, true
		}
	}
	return FinishAbsent, false
}
