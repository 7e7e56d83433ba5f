package capture

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/capture/target"
)

// An Outcome is what became of one target.
type Outcome struct {
	Target    target.Target
	Recording Recording // zero if no files were fetched
	Accepted  Accepted
	Err       error
	// Left says what could not be cleaned up, with its cause. It is not a failure of the capture.
	Left error
}

// ErrGivenUp is the cause of the end of those that did not fail themselves.
var ErrGivenUp = errors.New("given up, as another target failed")

// Report prints what became of each target to stdout, and warnings to stderr. It returns the exit code of all of them and,
// unless that is 0, how many failed.
func Report(stdout, stderr io.Writer, outcomes []Outcome) (code int, err error) {
	failed := 0
	for _, o := range outcomes {
		for _, w := range o.Accepted.Warnings {
			PrintAbout(stderr, o.Target, "warning: "+w)
		}
		if err := safetext.Fprint(stdout, o.Text()); err != nil {
			return conformance.ExitUsage, err
		}
		if o.Err == nil {
			continue
		}
		failed++
		// What says least about the engine wins, so that 1 means that all failures are about it.
		if code == conformance.ExitOK || code == conformance.ExitFail {
			code = exitCode(o.Err)
		}
	}
	if failed > 0 {
		return code, fmt.Errorf("%d of %d targets failed", failed, len(outcomes))
	}
	return code, nil
}

// PrintAbout prints text about a target, which may have lines of a program of the capture, each with the target's name.
func PrintAbout(w io.Writer, t target.Target, text string) {
	prefix := t.Name() + ": "
	for line := range strings.SplitSeq(text, "\n") {
		fmt.Fprintln(w, safetext.Line(prefix+strings.TrimPrefix(line, prefix)))
	}
}

// Text is the result of one target, in lines.
func (o Outcome) Text() string {
	prefix := o.Target.Name() + ": "
	if o.Err != nil {
		lines := strings.Split(o.Err.Error(), "\n")
		for i, line := range lines {
			lines[i] = prefix + "failed: " + strings.TrimPrefix(line, prefix)
		}
		return strings.Join(lines, "\n")
	}
	if len(o.Accepted.Goldens) == 0 {
		return prefix + "captured: " + o.Recording.Dir
	}
	var goldens []string
	for _, done := range o.Accepted.Goldens {
		g := done.Golden
		what := "registered already"
		if done.Changed {
			what = "registered"
		}
		content := fmt.Sprintf("%d messages", done.Messages)
		if done.Messages == 0 {
			content = fmt.Sprintf("%d requests, %d tokens", g.Records, g.Tokens)
			if o.Accepted.Before != "" {
				content += ", " + o.Accepted.Before + " answers as before"
			}
		}
		goldens = append(goldens, fmt.Sprintf("%s%s %s: %s, sha256 %s, %s", prefix, what, g.ID, content, g.SHA256, done.Location))
	}
	return strings.Join(goldens, "\n")
}

// exitCode is the code of a target that failed.
func exitCode(err error) int {
	var refused *RefusedError
	var registration *conformance.RegistrationError
	switch {
	case errors.As(err, &refused):
		return conformance.ExitFail
	case errors.As(err, &registration):
		return registration.ExitCode
	}
	return conformance.ExitInfra
}
