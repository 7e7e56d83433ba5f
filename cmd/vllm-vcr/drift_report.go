package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/drift"
	"github.com/vllm-vcr/conformance/internal/report"
)

// bodyLimit is how long the text of an issue may be, in bytes: GitHub refuses more than 65,536 characters.
const bodyLimit = 60_000

// driftDocuments makes the documents of what was run.
func (a *app) driftDocuments(run *driftRun, started time.Time) (err error) {
	f := &run.flags
	in := conformFlags{in: f.in, store: f.store, enforce: string(conformance.EnforceAll)}
	in.plan.expectations = f.expectations
	var parts, plain []report.Named
	for i, r := range run.layer.Reports {
		r.Flags = append(in.inputFlags(), r.Flags...)
		meta := a.reportMeta(f.report, started, run.window.File, run.registry.File)
		meta.Arguments = f.report.command("vllm-vcr", "drift", "check")
		name := fmt.Sprintf("part %d", i+1)
		parts = append(parts, report.Named{Name: name, Document: report.New(r, meta)})
		meta.Deterministic = true
		plain = append(plain, report.Named{Name: name, Document: report.New(r, meta)})
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
	if run.version != (compat.Version{}) {
		what += " " + run.version.String()
	}
	as := " as line " + run.line.Name
	switch run.layer.Verdict {
	case drift.None:
		what += " speaks" + as
	case drift.Found:
		what += " does not speak" + as
	default:
		what += " could not be judged"
	}
	return report.OneLine(what + ": " + run.layer.Reason)
}

// facts say what was looked at, a line each. Values of foreign origin are in Markdown's code.
func (run *driftRun) facts() []string {
	var facts []string
	add := func(name, value string) {
		if value != "" {
			facts = append(facts, name+": "+value)
		}
	}
	if run.version != (compat.Version{}) {
		add("release", run.version.String())
	}
	if !run.uploaded.IsZero() {
		add("uploaded", run.uploaded.UTC().Format(time.DateOnly))
	}
	if c := run.frontend.Commit; c != "" {
		add("commit", "https://github.com/vllm-project/vllm/commit/"+c)
	}
	add("wheel", inCode(run.frontend.Wheel))
	add("sha256 of vllm-rs", run.frontend.SHA256)
	if run.line.Name != "" {
		why := ""
		if !run.own {
			why = ", as " + run.window.File + " has no line " + run.version.Line() + " with goldens"
		}
		add("judged as", "line "+run.line.Name+why)
	}
	return facts
}

// inCode shows a text in Markdown as it is.
func inCode(text string) string {
	if text == "" {
		return ""
	}
	return "`" + strings.ReplaceAll(report.OneLine(text), "`", "'") + "`"
}

// issue is the text of an issue about the check. It has no times, so that it changes with the findings only.
func (run *driftRun) issue() (string, error) {
	var b strings.Builder
	run.heading(&b)
	if run.body != nil {
		if err := report.Markdown(&b, run.body, bodyLimit-b.Len()); err != nil {
			return "", err
		}
	}
	return b.String(), nil
}

func (run *driftRun) heading(b *strings.Builder) {
	fmt.Fprintf(b, "**drift: %s**\n\n%s\n\n", run.layer.Verdict, inCode(run.summary()))
	for _, fact := range run.facts() {
		fmt.Fprintf(b, "- %s\n", fact)
	}
	if run.version != (compat.Version{}) && run.flags.frontend == "" {
		fmt.Fprintf(b, "- repeat: `vllm-vcr drift check %s`\n", run.version)
	}
	b.WriteString("\n")
}

// tellDrift writes everything of a finished check. What cannot be written keeps neither the others from it nor a found
// drift from its exit code.
func (a *app) tellDrift(run *driftRun) error {
	code := run.layer.ExitCode()
	failed := a.writeDrift(run)
	summary := run.summary()
	_, err := fmt.Fprintf(a.stdout, "drift: %s: %s\n", run.layer.Verdict, summary)
	failed = append(failed, err)
	if run.flags.report.githubOutput {
		body, err := run.issue()
		failed = append(failed, err, a.setOutputs(
			output{"drift", string(run.layer.Verdict)}, output{"version", run.versionText()}, output{"line", run.line.Name},
			output{"summary", summary}, output{"body", strings.ReplaceAll(body, outputFence, "(fence)")},
		))
	}
	if err := errors.Join(failed...); err != nil {
		return exitError{cmp.Or(code, conformance.ExitInfra), fmt.Errorf("write report: %w", err)}
	}
	if code != conformance.ExitOK {
		return exitError{code, errReported}
	}
	return nil
}

func (run *driftRun) versionText() string {
	if run.version == (compat.Version{}) {
		return ""
	}
	return run.version.String()
}

// writeDrift writes the report, and what was looked at before it.
func (a *app) writeDrift(run *driftRun) (failed []error) {
	if path := a.orEnv("", "GITHUB_STEP_SUMMARY"); path != "" {
		failed = append(failed, appendSummary(path, func(w io.Writer, limit int) error {
			var b strings.Builder
			run.heading(&b)
			if b.Len() > limit {
				return nil
			}
			_, err := io.WriteString(w, b.String())
			return err
		}))
	}
	for _, fact := range run.facts() {
		_, err := fmt.Fprintln(a.stdout, report.OneLine(fact))
		failed = append(failed, err)
	}
	if run.document == nil {
		return failed
	}
	_, err := fmt.Fprintln(a.stdout)
	failed = append(failed, err, report.Text(a.stdout, run.document, report.TextOptions{Colour: a.colours(a.stdout)}))
	return append(failed, a.writeReports(run.document, run.flags.report))
}
