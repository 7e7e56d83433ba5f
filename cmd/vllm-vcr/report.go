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

// reportOptions say what is written of a report besides the text on stdout.
type reportOptions struct {
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
func (opts *reportOptions) addFlags(flags *pflag.FlagSet) {
	opts.addOutputFlags(flags)
	flags.BoolVar(&opts.deterministic, "deterministic", false, "leave out of the report what differs between equal runs: times, machine, ports, temporary paths")
}

// addOutputFlags adds those of a command that has a report made.
func (opts *reportOptions) addOutputFlags(flags *pflag.FlagSet) {
	var formats []string
	for _, format := range report.Formats() {
		formats = append(formats, string(format))
	}
	opts.given = flags
	flags.StringVar(&opts.json, "json", "", "write the whole report as JSON to this file")
	flags.StringVar(&opts.dir, "report-dir", "", "write the report into this directory, in every format of --report-format")
	flags.StringSliceVar(&opts.formats, "report-format", formats, "formats for --report-dir")
	flags.StringVar(&opts.annotations, "annotations", "auto", "mark what is wrong by GitHub workflow commands on stderr: auto (in GitHub Actions), on, off")
	flags.IntVar(&opts.limit, "annotation-limit", report.AnnotationLimit, "most annotations of a level")
	addOutputFlag(flags, &opts.githubOutput)
}

// check refuses, before anything runs, what could not be done at the end.
func (opts *reportOptions) check() error {
	if _, err := choose("--report-format", opts.formats, report.Formats()...); err != nil {
		return err
	}
	if opts.dir == "" && opts.given.Changed("report-format") {
		return errors.New("--report-format is for --report-dir, which is not given")
	}
	if opts.limit < 0 {
		return fmt.Errorf("--annotation-limit %d: want 0 or more", opts.limit)
	}
	_, err := chooseOne("--annotations", opts.annotations, "auto", "on", "off")
	return err
}

// finishReport writes everything of a finished report: the text to stdout, and what
// the flags and the CI ask for. What cannot be written keeps neither the others from
// it nor a failed run from its exit code.
func finishReport(ctx context.Context, env *environment, d *report.Document, opts reportOptions) error {
	said := report.Text(env.stdout, d, report.TextOptions{Colour: env.colours(env.stdout)})
	if err := errors.Join(said, writeReports(env, d, opts)); err != nil {
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

func writeReports(env *environment, d *report.Document, opts reportOptions) error {
	var failed []error
	if opts.json != "" {
		failed = append(failed, report.WriteFile(opts.json, func(w io.Writer) error { return report.JSON(w, d) }))
	}
	if opts.dir != "" {
		var formats []report.Format
		for _, format := range opts.formats {
			formats = append(formats, report.Format(format))
		}
		failed = append(failed, report.WriteDir(opts.dir, d, formats))
	}
	if path := env.getenv("GITHUB_STEP_SUMMARY"); path != "" {
		failed = append(failed, appendSummary(path, func(w io.Writer, limit int) error { return report.Markdown(w, d, limit) }))
	}
	if opts.annotations == "on" || opts.annotations == "auto" && env.getenv("GITHUB_ACTIONS") == "true" {
		failed = append(failed, report.Annotate(env.stderr, d, opts.limit))
	}
	if opts.githubOutput {
		outputs, err := reportOutputs(d, opts)
		failed = append(failed, err, setOutputs(env, outputs...))
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
func (env *environment) colours(w io.Writer) bool {
	file, ok := w.(*os.File)
	dumb := env.getenv("TERM") == "dumb" || env.getenv("NO_COLOR") != ""
	return ok && !dumb && term.IsTerminal(int(file.Fd()))
}

// command is the command line that set the flags, those of the environment
// included, in the order of their names, without what must not be published.
func (opts *reportOptions) command(name ...string) []string {
	opts.given.Visit(func(flag *pflag.Flag) {
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
