package drift

import (
	"fmt"
	"io"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/jsonout"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/upstream/wirediff"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// AdoptSchema names the form of a report as JSON.
const AdoptSchema = "vllm-vcr/adopt/1"

// AdoptOutcome is what adopting a release came to.
type AdoptOutcome string

// Outcomes.
const (
	Green   AdoptOutcome = "green"   // the tree has the release, and conforms
	Red     AdoptOutcome = "red"     // the tree has the release, and a person has to look
	Planned AdoptOutcome = "planned" // nothing was written, as that was asked for
	Unfit   AdoptOutcome = "unfit"   // nothing was written, as the release cannot be adopted as it is
)

// An AdoptReport says what adopting a release came to.
type AdoptReport struct {
	Schema  string       `json:"schema"` // [AdoptSchema]
	Release string       `json:"release"`
	Line    string       `json:"line"`
	Commit  string       `json:"commit"`
	Outcome AdoptOutcome `json:"outcome"`
	Reason  string       `json:"reason"` // a sentence
	// Wire is what the release changes; nil if that is not known.
	Wire *wirediff.Diff `json:"wire,omitempty"`
	// Files were edited, or would be: "write", "edit" or "delete" and the path.
	Files []string `json:"files"`
	Done  []string `json:"done"`
	// Goldens are those that were captured, a sentence each.
	Goldens []string `json:"goldens"`
	// Conform is the closing line of conform on the tree; empty if it did not run.
	Conform string   `json:"conform,omitempty"`
	ToDo    []string `json:"todo"` // for a person, in order
}

// newAdoptReport returns the report of a plan that was not carried out yet.
func newAdoptReport(p *AdoptPlan) *AdoptReport {
	r := &AdoptReport{
		Schema: AdoptSchema, Release: p.Release, Line: p.Line, Commit: p.Rev, Outcome: Planned, Wire: p.Wire,
		Files: []string{}, Done: append([]string{}, p.Done...), Goldens: []string{}, ToDo: append([]string{}, p.ToDo...),
	}
	for _, f := range p.Files {
		r.Files = append(r.Files, f.String())
	}
	return r
}

// String returns what becomes of the file: "edit compat.toml".
func (f PlannedFile) String() string {
	switch {
	case f.After == nil:
		return "delete " + f.Path
	case f.Before == nil:
		return "write " + f.Path
	}
	return "edit " + f.Path
}

// JSON writes the report as JSON.
func (r *AdoptReport) JSON(w io.Writer) error {
	return jsonout.Write(w, r)
}

// Text writes the report for a terminal: every line is made of printable characters, and no command to a CI.
func (r *AdoptReport) Text(w io.Writer) error {
	var b strings.Builder
	line := func(format string, args ...any) { b.WriteString(safetext.Line(fmt.Sprintf(format, args...)) + "\n") }
	list := func(title, bullet string, items []string) {
		if len(items) > 0 {
			line("")
			line("%s:", title)
		}
		for _, item := range items {
			line("%s%s", bullet, item)
		}
	}
	line("vLLM %s as line %s, commit %s", r.Release, r.Line, r.Commit)
	list(r.wireTitle(), "  ", r.wireLines())
	list(r.filesTitle(), "  ", r.Files)
	list("what that is", "  ", r.Done)
	list("goldens", "  ", r.Goldens)
	if r.Conform != "" {
		line("")
		line("conform: %s", r.Conform)
	}
	var numbered []string
	for i, item := range r.ToDo {
		numbered = append(numbered, fmt.Sprintf("%d. %s", i+1, item))
	}
	list("what a person has to do", "  ", numbered)
	line("")
	line("adopt: %s: %s", r.Outcome, r.Reason)
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *AdoptReport) filesTitle() string {
	if r.Outcome == Planned || r.Outcome == Unfit {
		return "would be written"
	}
	return "written"
}

func (r *AdoptReport) wireTitle() string {
	if r.Wire == nil {
		return ""
	}
	return fmt.Sprintf("on the wire since %s: %d breaking, %d compatible, %d informational changes", r.Wire.From.Version,
		len(r.Wire.At(wirediff.Breaking)), len(r.Wire.At(wirediff.Compatible)), len(r.Wire.At(wirediff.Informational)))
}

// wireLines are the changes that are more than informational.
func (r *AdoptReport) wireLines() []string {
	if r.Wire == nil {
		return nil
	}
	var lines []string
	for _, c := range append(r.Wire.At(wirediff.Breaking), r.Wire.At(wirediff.Compatible)...) {
		what := string(c.Level)
		if len(c.Breaks) > 0 {
			what += " " + wirediff.JoinParties(c.Breaks)
		}
		lines = append(lines, what+": "+c.Subject+": "+c.Reason)
	}
	if len(lines) == 0 {
		lines = append(lines, "nothing that another program would notice")
	}
	return lines
}

// Markdown writes the report as the text of a pull request, of at most limit bytes: what does not fit of a list is
// counted.
func (r *AdoptReport) Markdown(w io.Writer, limit int) error {
	var b strings.Builder
	fmt.Fprintf(&b, "**adopt: %s**: %s\n\nvLLM %s as line %s, commit %s.\n",
		r.Outcome, safetext.Code(r.Reason), safetext.Code(r.Release), safetext.Code(r.Line), safetext.Code(r.Commit))
	if r.Conform != "" {
		fmt.Fprintf(&b, "\nconform: %s\n", safetext.Code(r.Conform))
	}
	for _, part := range []struct {
		title, bullet string
		items         []string
	}{
		{"What a person has to do", "- [ ] ", r.ToDo},
		{"What changes " + r.wireTitle(), "- ", r.wireLines()},
		{"Files " + r.filesTitle(), "- ", r.Files},
		{"What that is", "- ", r.Done},
		{"Goldens", "- ", r.Goldens},
	} {
		if len(part.items) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n### %s\n\n", part.title)
		for i, item := range part.items {
			text := part.bullet + safetext.Code(item) + "\n"
			if b.Len()+len(text)+moreRoom > limit {
				fmt.Fprintf(&b, "- and %d more\n", len(part.items)-i)
				break
			}
			b.WriteString(text)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Outputs are those of a step of a GitHub workflow. The body has at most limit bytes.
func (r *AdoptReport) Outputs(limit int) []StepOutput {
	var body strings.Builder
	_ = r.Markdown(&body, limit) // a Builder takes everything
	return []StepOutput{
		{Name: "adopted", Value: string(r.Outcome)},
		{Name: "version", Value: r.Release},
		{Name: "line", Value: r.Line},
		{Name: "summary", Value: safetext.Line(r.Reason)},
		{Name: "body", Value: body.String()},
	}
}

// moreRoom is kept for headings, and for counting what is left out.
const moreRoom = 400

// newUnfit returns the report of a release that cannot be adopted without a person.
func newUnfit(p *protocol.Profile, err *UnfitError) *AdoptReport {
	return &AdoptReport{
		Schema: AdoptSchema, Release: p.Version, Line: p.Line, Commit: p.Commit, Outcome: Unfit, Reason: err.Error(), Files: []string{},
		Done: []string{}, Goldens: []string{}, ToDo: []string{unfitHelp},
	}
}

const unfitHelp = "if the release requires of a message what no codec writes yet, extend internal/wire/protocol for the struct and " +
	"field that the reason names, then adopt again; nothing was written"
