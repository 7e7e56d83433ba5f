package recorder

import (
	"fmt"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// LineError is an engine of another line than the recording was asked for.
type LineError struct {
	// Want is the tag that was asked for, Got the version the engine reported.
	Want, Got string
}

func (e *LineError) Error() string {
	return fmt.Sprintf("line mismatch: the engine reports vLLM %s, the recording is to be of %s; nothing was served", e.Got, e.Want)
}

// guard refuses a registration of another line than tag's. What tells no line, a
// nightly's version for one, passes.
func guard(tag string, registration []byte) error {
	ready, err := protocol.DecodeReady(registration)
	if err != nil {
		return nil // to be forwarded and reported as undecodable
	}
	want, got := protocol.LineOf(tag), protocol.LineOf(ready.VLLMVersion)
	if isLine(want) && isLine(got) && want != got {
		return &LineError{Want: tag, Got: ready.VLLMVersion}
	}
	return nil
}

// isLine tells a line from the name of a nightly, and from nothing.
func isLine(s string) bool { return s != "" && s[0] >= '0' && s[0] <= '9' }
