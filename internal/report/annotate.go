package report

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/safetext"

	"github.com/sethvargo/go-githubactions"
)

// AnnotationLimit is how many annotations of a level GitHub shows of a step.
const AnnotationLimit = 10

// note is an annotation.
type note struct {
	level, title, text, file string
	line, cases              int
}

// Annotate writes GitHub's workflow commands that mark what is wrong at the line
// where the golden is registered, else at [Run.AnnotateFile], one for each cause: errors for what gates, warnings for the rest. Of each level there are limit at most, the
// last of which counts those that are left out.
func Annotate(w io.Writer, d *Document, limit int) (err error) {
	// The library panics when it cannot write.
	to := &firstError{w: w}
	defer func() {
		if recover(); to.err != nil {
			err = to.err
		}
	}()
	action := githubactions.New(githubactions.WithWriter(to))
	for _, level := range []string{"error", "warning"} {
		for _, n := range capped(notes(d, level), limit) {
			n.issue(action)
		}
	}
	return to.err
}

// firstError remembers why a write failed.
type firstError struct {
	w   io.Writer
	err error
}

func (f *firstError) Write(p []byte) (int, error) {
	if f.err != nil {
		return 0, f.err
	}
	n, err := f.w.Write(p)
	f.err = err
	return n, err
}

func (n note) issue(action *githubactions.Action) {
	fields := githubactions.CommandProperties{"title": safetext.Line(n.title), "file": n.file, "line": strconv.Itoa(n.line)}
	text := safetext.Line(n.text)
	if n.cases > 1 {
		text += fmt.Sprintf(" (and %s more)", safetext.Count(n.cases-1, "case"))
	}
	action.IssueCommand(&githubactions.Command{Name: n.level, Message: text, Properties: fields})
}

// notes are the annotations of a level: one for each cause, at its first case.
func notes(d *Document, level string) []note {
	var all []note
	if level == "error" {
		for _, p := range d.Problems {
			file, line := d.problemPlace(p.Message)
			all = append(all, note{level: level, title: "conformance run", text: says(p), file: file, line: line, cases: 1})
		}
	}
	for i := range d.Causes {
		c := &d.Causes[i]
		if c.Gating == (level == "error") {
			title := strings.Trim(c.first.Line+"/"+c.first.group()+"/"+string(c.first.Assertion)+": "+string(c.Consequence), ": ")
			file, line := d.place(c.first)
			all = append(all, note{level: level, title: title, text: says(c.Failure), file: file, line: line, cases: len(c.Cases)})
		}
	}
	return all
}

// capped replaces what is too much by how much it is.
func capped(all []note, limit int) []note {
	if len(all) <= limit || limit < 1 {
		return all[:min(len(all), max(limit, 0))]
	}
	rest := len(all) - limit + 1
	last := note{level: all[0].level, title: "conformance", file: all[0].file, line: all[0].line, text: fmt.Sprintf("+%d more in the report", rest), cases: 1}
	return append(all[:limit-1:limit-1], last)
}
