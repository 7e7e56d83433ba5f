package message

import (
	"fmt"
	"regexp"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// OutputsLayout lists where a message from an output socket is not exactly what the
// line's profile declares: fields, types, and frames that nothing refers to. The order
// of keys in a map is the engine's own: no frontend minds it.
func OutputsLayout(codec *protocol.Codec, frames [][]byte) []protocol.Mismatch {
	payload, aux := frames[0], frames[1:]
	found := codec.CheckOutputs(payload, aux...)
	if len(found) > 0 {
		return found
	}
	// Tensors refer to frames by number: the last one is of use if the message is
	// wrong without it.
	for n := len(aux); n > 0 && len(codec.CheckOutputs(payload, aux[:n-1]...)) == 0; n-- {
		found = append(found, protocol.Mismatch{
			Path: fmt.Sprintf("frames[%d]", n), Expected: "a frame that the message refers to",
			Actual: fmt.Sprintf("one of %d bytes that nothing refers to", len(aux[n-1])),
		})
	}
	return found
}

// LayoutPlace is the same for what is wrong in the same way.
func LayoutPlace(m protocol.Mismatch) string {
	return Indexes.ReplaceAllString(m.Path, "[]") + " " + m.Expected
}

func LayoutProblem(what string, m protocol.Mismatch) check.Failure {
	return check.Failed(check.CodeLayout, "%s: %v", what, m).Compared(m.Expected, m.Actual)
}

// Indexes are those of a path.
var Indexes = regexp.MustCompile(`\[\d+\]`)
