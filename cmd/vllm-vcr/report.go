package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/golden"
	"github.com/vllm-vcr/conformance/internal/report"
)

// reportFlags say what is written of a report besides the text on stdout.
type reportFlags struct {
	dir           string
	formats       []string
	json          string
	deterministic bool
	annotations   string
	limit         int
	githubOutput  bool

	given *pflag.FlagSet // those of the command
}

// summaryLimit is how long GitHub lets the summary of a step be, in bytes, with
// some room for what else writes to it.
const summaryLimit = 1<<20 - 4<<10

// addFlags adds those of a command that makes a report.
func (f *reportFlags) addFlags(flags *pflag.FlagSet) {
	f.addOutputFlags(flags)
	flags.BoolVar(&f.deterministic, "deterministic", false, "leave out of the report what differs between equal runs: times, machine, ports, temporary paths")
}

// addOutputFlags adds those of a command that has a report made.
func (f *reportFlags) addOutputFlags(flags *pflag.FlagSet) {
	var formats []string
	for _, format := range report.Formats() {
		formats = append(formats, string(format))
	}
	f.given = flags
	flags.StringVar(&f.json, "json", "", "write the whole report as JSON to this file")
	flags.StringVar(&f.dir, "report-dir", "", "write the report into this directory, in every format of --report-format")
	flags.StringSliceVar(&f.formats, "report-format", formats, "formats for --report-dir")
	flags.StringVar(&f.annotations, "annotations", "auto", "mark what is wrong by GitHub workflow commands on stderr: auto (in GitHub Actions), on, off")
	flags.IntVar(&f.limit, "annotation-limit", report.AnnotationLimit, "most annotations of a level")
	addOutputFlag(flags, &f.githubOutput)
}

// check refuses, before anything runs, what could not be done at the end.
func (f *reportFlags) check() error {
	if _, err := choose("--report-format", f.formats, report.Formats()...); err != nil {
		return err
	}
	if f.dir == "" && f.given.Changed("report-format") {
		return errors.New("--report-format is for --report-dir, which is not given")
	}
	if f.limit < 0 {
		return fmt.Errorf("--annotation-limit %d: want 0 or more", f.limit)
	}
	_, err := chooseOne("--annotations", f.annotations, "auto", "on", "off")
	return err
}

// finishReport writes everything of a finished report: the text to stdout, and what
// the flags and the CI ask for. What cannot be written keeps neither the others from
// it nor a failed run from its exit code.
func (a *app) finishReport(ctx context.Context, d *report.Document, f reportFlags) error {
	said := report.Text(a.stdout, d, report.TextOptions{Colour: a.colours(a.stdout)})
	if err := errors.Join(said, a.writeReports(d, f)); err != nil {
		return exitError{cmp.Or(d.ExitCode, conformance.ExitInfra), fmt.Errorf("write report: %w", err)}
	}
	if ctx.Err() != nil {
		return exitError{conformance.ExitInfra, errors.New("interrupted: the report covers what ran until then")}
	}
	if d.ExitCode != conformance.ExitOK {
		return exitError{d.ExitCode, errReported}
	}
	return nil
}

func (a *app) writeReports(d *report.Document, f reportFlags) error {
	var failed []error
	if f.json != "" {
		failed = append(failed, report.WriteFile(f.json, func(w io.Writer) error { return report.JSON(w, d) }))
	}
	if f.dir != "" {
		var formats []report.Format
		for _, format := range f.formats {
			formats = append(formats, report.Format(format))
		}
		failed = append(failed, report.WriteDir(f.dir, d, formats))
	}
	if path := a.orEnv("", "GITHUB_STEP_SUMMARY"); path != "" {
		failed = append(failed, appendSummary(path, func(w io.Writer, limit int) error { return report.Markdown(w, d, limit) }))
	}
	if f.annotations == "on" || f.annotations == "auto" && a.orEnv("", "GITHUB_ACTIONS") == "true" {
		failed = append(failed, report.Annotate(a.stderr, d, f.limit))
	}
	if f.githubOutput {
		outputs, err := reportOutputs(d, f)
		failed = append(failed, err, a.setOutputs(outputs...))
	}
	return errors.Join(failed...)
}

// appendSummary adds to the summary of a GitHub step, within what is left of its
// limit.
func appendSummary(path string, write func(w io.Writer, limit int) error) error {
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("GITHUB_STEP_SUMMARY: %w", err)
	}
	info, err := file.Stat()
	if err == nil {
		left := summaryLimit - int(min(info.Size(), summaryLimit))
		err = write(file, min(left, report.MarkdownLimit))
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("GITHUB_STEP_SUMMARY: %w", err)
	}
	return nil
}

// colours tells whether a stream is a terminal that shows colours.
func (a *app) colours(w io.Writer) bool {
	file, ok := w.(*os.File)
	dumb := a.orEnv("", "TERM") == "dumb" || a.orEnv("", "NO_COLOR") != ""
	return ok && !dumb && term.IsTerminal(int(file.Fd()))
}

// command is the command line that set the flags, those of the environment
// included, in the order of their names, without what must not be published.
func (f *reportFlags) command(name ...string) []string {
	f.given.Visit(func(flag *pflag.Flag) {
		values := []string{flag.Value.String()}
		if list, ok := flag.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		for _, value := range values {
			name = append(name, "--"+flag.Name+"="+golden.Scrub(value))
		}
	})
	return slices.Clip(name)
}
