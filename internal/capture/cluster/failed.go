package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// logTail is how much of the log of each container goes with a failure, in bytes.
const logTail = 8 << 10

// A FailedError is a Job that will not come to a good end. It still holds what it holds: delete it.
type FailedError struct {
	State State // Phase is Failed; Reason and Message say why
	// Container is whose fault it is; empty if it is no container's.
	Container string
	// Hint is what to do.
	Hint string
	// Logs are the tails of logs, of the container at fault, or else of all that could be read.
	Logs []Log
}

// A Log is the end of what a container wrote.
type Log struct {
	Container string
	Tail      string
}

func (e *FailedError) Error() string {
	text := fmt.Sprintf("job %s: %s: %s", e.State.Name, e.State.Reason, clean(e.State.Message))
	if e.Hint != "" {
		text += ": " + e.Hint
	}
	return text
}

// Text is the ends of the logs, each line behind the name of its container.
func (e *FailedError) Text() string {
	var b strings.Builder
	for _, log := range e.Logs {
		for line := range strings.Lines(log.Tail) {
			fmt.Fprintf(&b, "%s | %s\n", log.Container, strings.TrimRight(line, "\r\n"))
		}
	}
	return b.String()
}

// fail makes the error of a fault, with the logs that there are.
func (c *Client) fail(ctx context.Context, o objects, s State, f *fault) *FailedError {
	s.Phase, s.Reason, s.Message = Failed, f.Reason, f.Message
	e := &FailedError{State: s, Container: f.Container, Hint: f.Hint}
	pod := o.pod()
	if pod == nil {
		return e
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	for _, status := range statuses(pod) {
		started := status.State.Waiting == nil || status.RestartCount > 0
		if f.Container != "" && status.Name != f.Container || !started {
			continue
		}
		// A sidecar that has ended may have been started again in the meantime, with a log that says nothing.
		before := status.RestartCount > 0 || status.State.Terminated != nil && sidecars(pod)[status.Name]
		tail, err := c.logs(ctx, pod.Name, status.Name, logTail, before)
		if err != nil && before {
			tail, err = c.logs(ctx, pod.Name, status.Name, logTail, false)
		}
		if err != nil {
			tail = fmt.Sprintf("(no log: %v)\n", err)
		}
		e.Logs = append(e.Logs, Log{status.Name, tail})
	}
	return e
}

// clean makes one line of what others wrote.
func clean(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return slices.Contains([]rune("\n\r"), r) }), " ")
}
