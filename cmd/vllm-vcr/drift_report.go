package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/jsonout"
	"github.com/vllm-vcr/conformance/internal/report"
	"github.com/vllm-vcr/conformance/internal/upstream/drift"
	"github.com/vllm-vcr/conformance/internal/upstream/wirediff"
)

// bodyLimit is how long the text of an issue may be, in bytes: GitHub refuses more than 65,536 characters.
const bodyLimit = 60_000

// Files of a check in the folder of --report-dir, beside those of every report.
const (
	driftJSON     = "drift.json"
	driftMarkdown = "drift.md"
	driftSARIF    = "static.sarif"
)

// buildDriftDocuments makes the documents of what was run.
func buildDriftDocuments(env *environment, run *driftRun) (err error) {
	opts := &run.flags
	in := conformOptions{in: opts.in, store: opts.store, enforce: string(conformance.EnforceAll)}
	in.plan.expectations = opts.expectations
	var parts, plain []report.Named
	for _, layer := range run.result.Layers {
		for _, r := range layer.Reports {
			r.Flags = append(in.inputFlags(), r.Flags...)
			meta := newReportMeta(env, opts.report, &opts.in, run.started, run.window.File, run.registry.File)
			meta.Arguments = opts.report.command("vllm-vcr", "drift", "check")
			parts = append(parts, report.Named{Name: string(layer.Name), Document: report.New(r, meta)})
			meta.Deterministic = true
			plain = append(plain, report.Named{Name: string(layer.Name), Document: report.New(r, meta)})
		}
	}
	if len(parts) == 0 {
		return nil
	}
	if run.document, err = report.Merge(parts); err == nil {
		run.body, err = report.Merge(plain)
	}
	return err
}

// summary is the outcome in a sentence.
func (run *driftRun) summary() string {
	what := "vLLM"
	if run.subject.known() {
		what += " " + run.subject.String()
	}
	as := " as line " + run.line.Name
	switch {
	case run.failed != nil:
		return report.OneLine(what + " could not be judged: " + firstLineOf(run.failed))
	case run.result.Verdict == drift.None:
		what += " speaks" + as
	case run.result.Verdict == drift.Found:
		what += " does not speak" + as
	default:
		what += " could not be judged"
	}
	return report.OneLine(what + ": " + run.reasons())
}

func firstLineOf(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// reasons say what each layer came to: what decided the outcome first, and last what was not looked at.
func (run *driftRun) reasons() string {
	var first, others, absent []string
	for _, l := range run.result.Layers {
		said := fmt.Sprintf("%s %s: %s", l.Name, l.Verdict, l.Reason)
		switch {
		case l.Verdict == drift.Skipped:
			absent = append(absent, string(l.Name))
		case l.Verdict == run.result.Verdict:
			first = append(first, said)
		default:
			others = append(others, said)
		}
	}
	all := append(first, others...)
	if len(absent) > 0 {
		all = append(all, "not looked at: "+strings.Join(absent, ", "))
	}
	return strings.Join(all, "; ")
}

// facts say what was looked at, a line each. Values of foreign origin are in Markdown's code.
func (run *driftRun) facts() []string {
	var facts []string
	add := func(name, value string) {
		if value != "" {
			facts = append(facts, name+": "+value)
		}
	}
	add("release", run.subject.String())
	if at := run.subject.uploaded; !at.IsZero() {
		add("uploaded", at.UTC().Format(time.DateOnly))
	}
	d := run.result.Document()
	if d.Commit != "" {
		add("commit", "https://github.com/vllm-project/vllm/commit/"+d.Commit)
	}
	add("wheel", inCode(cmp.Or(d.Wheel, run.subject.source.File.Name, filepath.Base(run.subject.wheel))))
	add("sha256 of vllm-rs", run.result.Frontend.SHA256)
	add("wire", d.Wire)
	if run.line.Name != "" {
		why := ""
		if !run.own {
			why = ", as " + run.window.File + " has no line " + run.subject.build.Line() + " with goldens"
		}
		add("judged as", "line "+run.line.Name+why)
	}
	return facts
}

// inCode shows a text in Markdown as it is.
func inCode(text string) string {
	if text == "" || text == "." {
		return ""
	}
	return "`" + strings.ReplaceAll(report.OneLine(text), "`", "'") + "`"
}

// verdictWord is a verdict as a person reads it.
func verdictWord(v drift.Verdict) string {
	if v == drift.Skipped {
		return "not looked at"
	}
	return string(v)
}

// megabytes is a size as a person reads it; "" for none.
func megabytes(bytes int64) string {
	if bytes == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f MB", float64(bytes)/1e6)
}

// layerLines are the layers as text, a line each, and what they have to say below it.
func (run *driftRun) layerLines() []string {
	var lines []string
	add := func(format string, args ...any) {
		lines = append(lines, strings.TrimRight(report.OneLine(fmt.Sprintf(format, args...)), " "))
	}
	add("%-8s  %-13s  %6s  %8s  %s", "LAYER", "DRIFT", "TIME", "NETWORK", "WHY")
	for _, l := range run.result.Layers {
		took := ""
		if l.Verdict != drift.Skipped {
			took = fmt.Sprintf("%.1f s", l.Took.Seconds())
		}
		add("%-8s  %-13s  %6s  %8s  %s", l.Name, verdictWord(l.Verdict), took, megabytes(l.Downloaded), l.Reason)
		if l.Compared != "" {
			add("%10s%s", "", l.Compared)
		}
		for _, text := range slices.Concat(l.Notes, toldCases(l)) {
			add("%10s%s", "", text)
		}
	}
	if text := run.adoption(); text != "" {
		add("%s", text)
	}
	return lines
}

// toldCases are what is wrong in a layer, or worth to be told, but for its reports, which tell more.
func toldCases(l drift.Layer) []string {
	var told []string
	for _, c := range l.Cases {
		if c.Verdict == drift.Found || c.Verdict == drift.Unknown || c.Message != "" {
			told = append(told, fmt.Sprintf("%s: %s: %s", c.Name, verdictWord(c.Verdict), c.Message))
		}
	}
	return told
}

// adoption says whether the player serves the release by its own profile: "" if nobody asked.
func (run *driftRun) adoption() string {
	a := run.result.Adoption
	switch {
	case a == nil:
		return ""
	case a.Verdict == drift.None:
		return "a player that is taught its profile serves it: " + a.Reason
	}
	return "a player that is taught its profile does not serve it: " + a.Reason
}

// issue is the text of an issue about the check. It has no times, so that it changes with the findings only.
func (run *driftRun) issue() (string, error) {
	var b strings.Builder
	run.heading(&b)
	if err := run.sections(&b, bodyLimit, false); err != nil {
		return "", err
	}
	if run.body != nil {
		if err := report.Markdown(&b, run.body, bodyLimit-b.Len()); err != nil {
			return "", err
		}
	}
	return b.String(), nil
}

func (run *driftRun) heading(b *strings.Builder) {
	fmt.Fprintf(b, "**drift: %s**\n\n%s\n\n", run.result.Verdict, inCode(run.summary()))
	for _, fact := range run.facts() {
		fmt.Fprintf(b, "- %s\n", fact)
	}
	if run.subject.known() && run.flags.frontend == "" && run.subject.wheel == "" {
		fmt.Fprintf(b, "- repeat: `vllm-vcr drift check %s`\n", run.repeat())
	}
	b.WriteString("\n")
}

// repeat are the arguments that look at the same release again.
func (run *driftRun) repeat() string {
	if run.flags.nightly {
		return run.subject.String() + " --nightly"
	}
	return run.subject.String()
}

// jsonDocument is the check as JSON.
func (run *driftRun) jsonDocument() drift.Document {
	d := run.result.Document()
	d.Release, d.Line, d.Own, d.Summary = run.subject.String(), run.line.Name, run.own, run.summary()
	d.Seconds = run.took.Round(time.Millisecond).Seconds()
	if at := run.subject.uploaded; !at.IsZero() {
		d.Uploaded = at.UTC().Format(time.RFC3339)
	}
	return d
}

// printDrift writes everything of a finished check. What cannot be written keeps neither the others from it nor a found
// drift from its exit code.
func printDrift(env *environment, run *driftRun) error {
	code := run.result.ExitCode()
	failed := writeDriftReports(env, run)
	summary := run.summary()
	_, err := fmt.Fprintf(env.stdout, "drift: %s: %s\n", run.result.Verdict, summary)
	failed = append(failed, err)
	if run.flags.report.githubOutput {
		outputs, err := run.outputs(summary)
		failed = append(failed, err, setOutputs(env, outputs...))
	}
	if err := errors.Join(failed...); err != nil {
		return exitError{cmp.Or(code, conformance.ExitInfra), fmt.Errorf("write report: %w", err)}
	}
	if code != conformance.ExitOK {
		return exitError{code, errReported}
	}
	return nil
}

// outputs are what the next steps of a workflow are told, beside the outputs of the report.
func (run *driftRun) outputs(summary string) ([]output, error) {
	body, err := run.issue()
	verdicts := map[drift.LayerName]drift.Verdict{}
	changes := ""
	for _, l := range run.result.Layers {
		verdicts[l.Name] = l.Verdict
		if l.Diff != nil {
			changes = strconv.Itoa(len(l.Diff.Changes))
		}
	}
	layers, failed := json.Marshal(verdicts)
	return []output{
		{"drift", string(run.result.Verdict)},
		{"version", run.subject.String()},
		{"line", run.line.Name},
		{"summary", summary},
		{"layers", string(layers)},
		{"changes", changes},
		{"wire", drift.Fingerprint(run.result.Profile)},
		{"body", strings.ReplaceAll(body, outputFence, "(fence)")},
	}, errors.Join(err, failed)
}

// writeDriftReports writes the report, and what was looked at before it.
func writeDriftReports(env *environment, run *driftRun) (failed []error) {
	if path := env.getenv("GITHUB_STEP_SUMMARY"); path != "" {
		failed = append(failed, appendSummary(path, run.markdown))
	}
	lines := run.facts()
	if len(run.result.Layers) > 0 {
		lines = slices.Concat(lines, []string{""}, run.layerLines())
	}
	for _, line := range lines {
		_, err := fmt.Fprintln(env.stdout, report.OneLine(line))
		failed = append(failed, err)
	}
	if d := run.diff(); d != nil {
		_, err := fmt.Fprintln(env.stdout)
		failed = append(failed, err, wirediff.Text(env.stdout, d))
	}
	failed = append(failed, run.writeFiles())
	if run.document != nil {
		_, err := fmt.Fprintln(env.stdout)
		failed = append(failed, err, report.Text(env.stdout, run.document, report.TextOptions{Colour: env.colours(env.stdout)}))
		failed = append(failed, writeReports(env, run.document, run.flags.report))
	}
	return failed
}

// markdown is what comes before the report of what was run, if there is room for it.
func (run *driftRun) markdown(w io.Writer, limit int) error {
	var b strings.Builder
	run.heading(&b)
	if b.Len() > limit {
		return nil
	}
	if err := run.sections(&b, limit, true); err != nil {
		return err
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// writeFiles writes the check as JSON, and in the folder of the report also as Markdown and what the sources declare
// otherwise as SARIF.
func (run *driftRun) writeFiles() error {
	var failed []error
	asJSON := func(w io.Writer) error { return jsonout.Write(w, run.jsonDocument()) }
	if path := run.flags.layersJSON; path != "" {
		failed = append(failed, report.WriteFile(path, asJSON))
	}
	dir := run.flags.report.dir
	if dir == "" {
		return errors.Join(failed...)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return errors.Join(append(failed, fmt.Errorf("write %s: %w", dir, err))...)
	}
	failed = append(failed, report.WriteFile(filepath.Join(dir, driftJSON), asJSON))
	failed = append(failed, report.WriteFile(filepath.Join(dir, driftMarkdown), func(w io.Writer) error {
		return run.markdown(w, report.MarkdownLimit)
	}))
	return errors.Join(append(failed, run.writeSARIF(dir))...)
}

// mostItems are how many things of one kind a section of Markdown names.
const mostItems = 40

// diff is what the sources declare otherwise, nil if they were not compared or say the same.
func (run *driftRun) diff() *wirediff.Diff {
	for _, l := range run.result.Layers {
		if d := l.Diff; d != nil && d.Verdict() != wirediff.None {
			return d
		}
	}
	return nil
}

// sections are the layers in Markdown, each with what was compared and what was found, within a limit of all that b
// holds. Times are left out of a text that is to stay as it is while the findings do.
func (run *driftRun) sections(b *strings.Builder, limit int, times bool) error {
	for _, l := range run.result.Layers {
		var s strings.Builder
		fmt.Fprintf(&s, "## %s: %s\n\n%s\n\n", l.Name, verdictWord(l.Verdict), inCode(l.Reason))
		if l.Verdict != drift.Skipped && times {
			fmt.Fprintf(&s, "- took %.1f s", l.Took.Seconds())
			if size := megabytes(l.Downloaded); size != "" {
				s.WriteString(", downloaded " + size)
			}
			s.WriteString("\n")
		}
		if l.Compared != "" {
			fmt.Fprintf(&s, "- compared: %s\n", inCode(l.Compared))
		}
		listed(&s, "note", l.Notes)
		listed(&s, "case", toldCases(l))
		s.WriteString("\n")
		room(b, s.String(), limit)
		if l.Diff != nil && l.Diff.Verdict() != wirediff.None {
			if err := wirediff.Markdown(b, l.Diff, (limit-b.Len())/2); err != nil {
				return err
			}
			b.WriteString("\n")
		}
	}
	if text := run.adoption(); text != "" {
		room(b, "## With the profile of the release\n\n"+inCode(text)+"\n\n", limit)
	}
	return nil
}

func listed(s *strings.Builder, what string, items []string) {
	for i, item := range items {
		if i == mostItems {
			fmt.Fprintf(s, "- and %d more\n", len(items)-i)
			return
		}
		fmt.Fprintf(s, "- %s: %s\n", what, inCode(item))
	}
}

// room appends a text if it stays within the limit.
func room(b *strings.Builder, text string, limit int) {
	if b.Len()+len(text) <= limit {
		b.WriteString(text)
	}
}

// writeSARIF writes what the sources declare otherwise, at its places upstream.
func (run *driftRun) writeSARIF(dir string) error {
	for _, l := range run.result.Layers {
		if l.Diff != nil {
			return report.WriteFile(filepath.Join(dir, driftSARIF), func(w io.Writer) error {
				return wirediff.SARIF(w, l.Diff, buildVersion())
			})
		}
	}
	return nil
}
