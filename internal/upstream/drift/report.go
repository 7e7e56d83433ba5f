package drift

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
	"github.com/vllm-vcr/conformance/internal/base/jsonout"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/report"
	"github.com/vllm-vcr/conformance/internal/upstream/wirediff"
)

// Files that [Report.WriteDir] writes.
const (
	JSONFile     = "drift.json"
	MarkdownFile = "drift.md"
	SARIFFile    = "static.sarif"
)

// maxItems is how many notes or cases of a layer Markdown lists.
const maxItems = 40

// A Report is a finished check with what is known of its release, as text, Markdown, JSON and SARIF.
type Report struct {
	Subject
	Repeat string // arguments of drift check that check the same release again; empty without such
	Compat string // file of the compat matrix
	Failed error  // why there was no release to check
	Result Result
	Took   time.Duration
	// Runs is the report on all cases that ran; nil if none ran. Stable is the same without what differs between equal
	// runs.
	Runs, Stable *report.Document
}

// Release is the name of the release, empty if it is not known.
func (r *Report) Release() string {
	if r.Build == (compat.Build{}) {
		return ""
	}
	return r.Build.String()
}

// Summary is the outcome in a sentence.
func (r *Report) Summary() string {
	what := "vLLM"
	if release := r.Release(); release != "" {
		what += " " + release
	}
	as := " as line " + r.Line.Name
	switch {
	case r.Failed != nil:
		reason, _, _ := strings.Cut(r.Failed.Error(), "\n")
		return safetext.Line(what + " could not be judged: " + reason)
	case r.Result.Verdict == None:
		what += " works" + as
	case r.Result.Verdict == Found:
		what += " does not work" + as
	default:
		what += " could not be judged"
	}
	// What decided the outcome comes first, and last what was not looked at.
	var first, others, absent []string
	for _, l := range r.Result.Layers {
		reason := fmt.Sprintf("%s %s: %s", l.Name, l.Verdict, l.Reason)
		switch l.Verdict {
		case Skipped:
			absent = append(absent, string(l.Name))
		case r.Result.Verdict:
			first = append(first, reason)
		default:
			others = append(others, reason)
		}
	}
	reasons := append(first, others...)
	if len(absent) > 0 {
		reasons = append(reasons, "not run: "+strings.Join(absent, ", "))
	}
	return safetext.Line(what + ": " + strings.Join(reasons, "; "))
}

// Text writes the facts, the layers, a line each with its notes below it, and what the sources declare otherwise.
func (r *Report) Text(w io.Writer) error {
	lines := r.facts()
	if len(r.Result.Layers) > 0 {
		lines = slices.Concat(lines, []string{""}, r.layerLines())
	}
	for _, line := range lines {
		if _, err := fmt.Fprintln(w, safetext.Line(line)); err != nil {
			return err
		}
	}
	for _, l := range r.Result.Layers {
		if l.changed() {
			if _, err := fmt.Fprintln(w); err != nil {
				return err
			}
			return wirediff.Text(w, l.Diff)
		}
	}
	return nil
}

// facts say what was checked, a line each. Values of foreign origin are in Markdown's code.
func (r *Report) facts() []string {
	var facts []string
	add := func(name, value string) {
		if value != "" {
			facts = append(facts, name+": "+value)
		}
	}
	add("release", r.Release())
	if !r.Uploaded.IsZero() {
		add("uploaded", r.Uploaded.UTC().Format(time.DateOnly))
	}
	d := r.Result.Document()
	if d.Commit != "" {
		add("commit", "https://github.com/vllm-project/vllm/commit/"+d.Commit)
	}
	add("wheel", inCode(cmp.Or(d.Wheel, r.Wheel)))
	add("sha256 of vllm-rs", r.Result.Frontend.SHA256)
	add("wire", d.Wire)
	if r.Line.Name != "" {
		why := ""
		if !r.Own {
			why = ", as " + r.Compat + " has no line " + r.Build.Line() + " with goldens"
		}
		add("judged as", "line "+r.Line.Name+why)
	}
	return facts
}

func (r *Report) layerLines() []string {
	var lines []string
	add := func(format string, args ...any) {
		lines = append(lines, strings.TrimRight(safetext.Line(fmt.Sprintf(format, args...)), " "))
	}
	add("%-8s  %-13s  %6s  %8s  %s", "LAYER", "DRIFT", "TIME", "NETWORK", "WHY")
	for _, l := range r.Result.Layers {
		took := ""
		if l.Verdict != Skipped {
			took = fmt.Sprintf("%.1f s", l.Took.Seconds())
		}
		add("%-8s  %-13s  %6s  %8s  %s", l.Name, verdictText(l.Verdict), took, megabytes(l.Downloaded), l.Reason)
		if l.Compared != "" {
			add("%10s%s", "", l.Compared)
		}
		for _, text := range slices.Concat(l.Notes, l.remarkable()) {
			add("%10s%s", "", text)
		}
	}
	if text := r.adoption(); text != "" {
		add("%s", text)
	}
	if code := r.firstCode(); code != "" {
		add("explain: vllm-vcr help %s", code)
	}
	return lines
}

// firstCode is the code of the first failure of the layers, empty if there is none.
func (r *Report) firstCode() conformance.Code {
	for _, l := range r.Result.Layers {
		for _, report := range l.Reports {
			for _, result := range report.Results {
				if result.Verdict.Red() && len(result.Failures) > 0 {
					return result.Failures[0].Code
				}
			}
		}
	}
	return ""
}

// changed reports whether the sources were compared and declare something otherwise.
func (l *Layer) changed() bool { return l.Diff != nil && l.Diff.Verdict() != wirediff.None }

// remarkable are the cases of a layer that failed or have a message. Those of its reports are not among them.
func (l *Layer) remarkable() []string {
	var texts []string
	for _, c := range l.Cases {
		if c.Verdict == Found || c.Verdict == Unknown || c.Message != "" {
			texts = append(texts, fmt.Sprintf("%s: %s: %s", c.Name, verdictText(c.Verdict), c.Message))
		}
	}
	return texts
}

// adoption says whether the player serves the release by its own profile; empty if that was not tried.
func (r *Report) adoption() string {
	a := r.Result.Adoption
	switch {
	case a == nil:
		return ""
	case a.Verdict == None:
		return "a player that is taught its profile serves it: " + a.Reason
	}
	return "a player that is taught its profile does not serve it: " + a.Reason
}

// Issue is the text of an issue about the check, within a limit in bytes. It has no times, so that it changes with the
// outcome only.
func (r *Report) Issue(limit int) (string, error) {
	var b strings.Builder
	r.heading(&b)
	if err := r.sections(&b, limit, false); err != nil {
		return "", err
	}
	if r.Stable != nil {
		if err := report.Markdown(&b, r.Stable, limit-b.Len()); err != nil {
			return "", err
		}
	}
	return b.String(), nil
}

// A StepOutput is a value that a step of a GitHub workflow hands on to others.
type StepOutput struct{ Name, Value string }

// Outputs are those of a step, next to the outputs of the report on its cases. The body has at most limit bytes.
func (r *Report) Outputs(limit int) ([]StepOutput, error) {
	body, err := r.Issue(limit)
	verdicts := map[LayerName]Verdict{}
	changes := ""
	for _, l := range r.Result.Layers {
		verdicts[l.Name] = l.Verdict
		if l.Diff != nil {
			changes = strconv.Itoa(len(l.Diff.Changes))
		}
	}
	layers, _ := json.Marshal(verdicts) // texts can be encoded
	return []StepOutput{
		{"drift", string(r.Result.Verdict)},
		{"version", r.Release()},
		{"line", r.Line.Name},
		{"summary", r.Summary()},
		{"layers", string(layers)},
		{"changes", changes},
		{"wire", Fingerprint(r.Result.Profile)},
		{"body", body},
	}, err
}

// Markdown writes the check without the cases that ran, within a limit in bytes. It writes nothing if there is no room.
func (r *Report) Markdown(w io.Writer, limit int) error {
	var b strings.Builder
	r.heading(&b)
	if b.Len() > limit {
		return nil
	}
	if err := r.sections(&b, limit, true); err != nil {
		return err
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *Report) heading(b *strings.Builder) {
	fmt.Fprintf(b, "**drift: %s**\n\n%s\n\n", r.Result.Verdict, inCode(r.Summary()))
	for _, fact := range r.facts() {
		fmt.Fprintf(b, "- %s\n", fact)
	}
	if r.Repeat != "" {
		fmt.Fprintf(b, "- repeat: `vllm-vcr drift check %s`\n", r.Repeat)
	}
	b.WriteString("\n")
}

// sections are the layers in Markdown, each with what was compared and what was found, within a limit of all that b
// holds. Times are left out of a text that is to stay as it is while the outcome does.
func (r *Report) sections(b *strings.Builder, limit int, times bool) error {
	add := func(text string) {
		if b.Len()+len(text) <= limit {
			b.WriteString(text)
		}
	}
	for _, l := range r.Result.Layers {
		var s strings.Builder
		fmt.Fprintf(&s, "## %s: %s\n\n%s\n\n", l.Name, verdictText(l.Verdict), inCode(l.Reason))
		if l.Verdict != Skipped && times {
			fmt.Fprintf(&s, "- took %.1f s", l.Took.Seconds())
			if size := megabytes(l.Downloaded); size != "" {
				s.WriteString(", downloaded " + size)
			}
			s.WriteString("\n")
		}
		if l.Compared != "" {
			fmt.Fprintf(&s, "- compared: %s\n", inCode(l.Compared))
		}
		list(&s, "note", l.Notes)
		list(&s, "case", l.remarkable())
		s.WriteString("\n")
		add(s.String())
		if l.changed() {
			if err := wirediff.Markdown(b, l.Diff, (limit-b.Len())/2); err != nil {
				return err
			}
			b.WriteString("\n")
		}
	}
	if text := r.adoption(); text != "" {
		add("## With the profile of the release\n\n" + inCode(text) + "\n\n")
	}
	return nil
}

func list(s *strings.Builder, what string, items []string) {
	for i, item := range items {
		if i == maxItems {
			fmt.Fprintf(s, "- and %d more\n", len(items)-i)
			return
		}
		fmt.Fprintf(s, "- %s: %s\n", what, inCode(item))
	}
}

// WriteDir writes the check into a folder: as JSON, as Markdown, and as SARIF what the sources declare otherwise, shown
// at a file of the repository. The HTML report is that of the cases that ran, which gets a preface here; it is written only if
// there are none. tool is the version of vllm-vcr.
func (r *Report) WriteDir(dir *report.Dir, file, tool string) error {
	var failed []error
	if r.Runs == nil {
		failed = append(failed, dir.WriteFile(report.FormatHTML.FileName(), r.html))
	} else {
		r.Runs.Preface = r.Preface()
	}
	failed = append(failed,
		dir.WriteFile(JSONFile, r.writeJSON),
		dir.WriteFile(MarkdownFile, func(w io.Writer) error { return r.Markdown(w, report.MarkdownLimit) }),
	)
	if at := slices.IndexFunc(r.Result.Layers, func(l Layer) bool { return l.Diff != nil }); at >= 0 {
		failed = append(failed, dir.WriteFile(SARIFFile, func(w io.Writer) error {
			return wirediff.SARIF(w, r.Result.Layers[at].Diff, file, tool)
		}))
	}
	return errors.Join(failed...)
}

// WriteJSON writes the check to a file, as a [Document].
func (r *Report) WriteJSON(path string) error {
	return atomicfile.WriteFunc(path, 0o644, r.writeJSON)
}

func (r *Report) writeJSON(w io.Writer) error {
	d := r.Result.Document()
	d.Release, d.Line, d.Own, d.Summary = r.Release(), r.Line.Name, r.Own, r.Summary()
	d.Seconds = r.Took.Round(time.Millisecond).Seconds()
	if !r.Uploaded.IsZero() {
		d.Uploaded = r.Uploaded.UTC().Format(time.RFC3339)
	}
	return jsonout.Write(w, d)
}

// inCode shows a text in Markdown as it is.
func inCode(text string) string {
	if text == "" {
		return ""
	}
	return "`" + strings.ReplaceAll(safetext.Line(text), "`", "'") + "`"
}

// verdictText is a verdict as a person reads it.
func verdictText(v Verdict) string {
	if v == Skipped {
		return "not run"
	}
	return string(v)
}

// megabytes is a size as a person reads it; empty for none.
func megabytes(bytes int64) string {
	if bytes == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f MB", float64(bytes)/1e6)
}
