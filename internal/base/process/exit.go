package process

import (
	"fmt"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
)

// ExitError is the end of a process, as an error: for whoever needed it alive.
type ExitError struct {
	// Name and Command tell which process it was; Command is its argument list, the program first.
	Name    string
	Command []string
	// Status is in words: "exit status 3", "signal: killed". Code is the exit code, -1 after a signal.
	Status string
	Code   int
	// Tail is the last of its output.
	Tail string
	// Err is nil for exit status 0, else an [*exec.ExitError] or the error of reading its output.
	Err error
}

// Error is one line, followed by the tail, as [safetext.Block] shows it, if there is one.
func (e *ExitError) Error() string {
	text := fmt.Sprintf("%s (%s) ended: %s", e.Name, strings.Join(e.Command, " "), e.Status)
	if tail := safetext.Block(e.Tail); tail != "" {
		return text + "; the last of its output:\n" + tail
	}
	return text + ", without any output"
}

// Unwrap returns Err.
func (e *ExitError) Unwrap() error { return e.Err }
