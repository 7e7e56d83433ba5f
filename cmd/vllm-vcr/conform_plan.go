package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/report"
	"github.com/vllm-vcr/conformance/manifest"
)

// What --print-plan prints.
const (
	planCases    = "cases"
	planRequests = "requests"
)

// planOptions are the flags of conform about cases by their names: which to run, which
// are known to fail, and what to print instead of running any.
type planOptions struct {
	run, skip    []string
	rerun        string // file of a report
	expectations string
	update       bool
	list         bool
	printPlan    string
	explain      string
}

func (opts *planOptions) addFlags(flags *pflag.FlagSet) {
	flags.StringSliceVar(&opts.run, "run", nil, "run only cases whose name matches one of these `PATTERNS`: * is any text between slashes, ** any number of components; @FILE reads patterns from a file, one on each line (default all)")
	flags.StringSliceVar(&opts.skip, "skip", nil, "leave out cases whose name matches one of these `PATTERNS`, written as for --run")
	flags.StringVar(&opts.rerun, "rerun-failed", "", "run only the cases that failed or ended with an error in this JSON report `FILE`")
	exclusive(flags, "run", "rerun-failed")
}

// sel completes a selection with the patterns.
func (opts *planOptions) sel(sel *conformance.Selection) (err error) {
	if sel.Run, err = readPatterns("--run", opts.run); err != nil {
		return err
	}
	if opts.rerun != "" {
		if sel.Run, err = failedCases(opts.rerun); err != nil {
			return err
		}
	}
	sel.Skip, err = readPatterns("--skip", opts.skip)
	return err
}

// failedCases are the names of the red cases of a report. Without any there is nothing to run, which must not look like success.
func failedCases(path string) ([]string, error) {
	documents, err := readReports(path)
	if err != nil {
		return nil, fmt.Errorf("--rerun-failed: %w", err)
	}
	var names []string
	for _, c := range documents[0].Cases {
		if c.Verdict.Red() {
			names = append(names, c.Name)
		}
	}
	if len(names) == 0 {
		return nil, exitError{conformance.ExitVacuous, fmt.Errorf("--rerun-failed %s: no case failed in this report: there is nothing to run again", path)}
	}
	return names, nil
}

// printPlanned prints what was asked for instead of a run.
func printPlanned(ctx context.Context, env *environment, opts *conformOptions, runner *conformance.Runner, cases []conformance.Case) (err error) {
	switch {
	case opts.plan.list:
		return printResult(env, opts.report.onStdout, casesResult(cases), func(w io.Writer) error { return conformance.List(w, cases) })
	case opts.plan.printPlan == planCases:
		return printPlan(env, cases)
	}
	if runner.Store, err = openStore(env, &opts.store); err != nil {
		return err
	}
	if err := runner.Requests(ctx, env.stdout, cases); err != nil {
		return infra(fmt.Errorf("--print-plan=%s: %w", planRequests, err))
	}
	return nil
}

// printPlan prints the names of cases, a line each.
func printPlan(env *environment, cases []conformance.Case) error {
	for _, c := range cases {
		note := ""
		if c.Gating {
			note = "  gating"
		}
		if c.Skip != "" {
			note = "  " + c.Skip
		}
		if _, err := fmt.Fprintf(env.stdout, "%s%s\n", c.Name(), note); err != nil {
			return err
		}
	}
	return nil
}

// updateAfterRun brings the expectations up to date after a run, if that was asked for, and returns the error of the command: that of
// the report, unless the update fails.
func updateAfterRun(env *environment, opts *planOptions, r *conformance.Report, all []conformance.Case, reported error) error {
	if !opts.update {
		return reported
	}
	err := updateExpectations(env, opts.expectations, r, all)
	switch {
	case err == nil:
		return reported
	case reported == nil, errors.Is(reported, errReported):
		return exitError{cmp.Or(r.ExitCode, conformance.ExitUsage), err}
	}
	return errors.Join(reported, err)
}

// expectations are all cases of a selection, and what is known to fail of them.
func expectations(env *environment, path string, mayLack bool, matrix *compat.Matrix, mf *manifest.Manifest, sel conformance.Selection) ([]conformance.Case, *conformance.Expectations, error) {
	all, err := conformance.EveryCase(matrix, mf, sel)
	if err != nil {
		return nil, nil, err
	}
	expected, err := loadExpectations(env, path, mayLack, all)
	return all, expected, err
}

// loadExpectations reads a file of expectations: the named one, else that of the working directory, else the one in the binary, which
// also takes the place of a file that mayLack: it is yet to be created. Diagnostics that are errors end the command.
func loadExpectations(env *environment, path string, mayLack bool, all []conformance.Case) (*conformance.Expectations, error) {
	var expected *conformance.Expectations
	var diagnostics []tomlfile.Diagnostic
	if path = expectationsPath(path); path != "" && (exists(path) || !mayLack) {
		expected, diagnostics = conformance.LoadExpectations(path)
	} else {
		if old := "conformance/expectations.toml"; path == "" && exists(old) {
			fmt.Fprintf(env.stderr, "vllm-vcr: %s is not read: move it to %s\n", old, vcr.ExpectationsPath)
		}
		expected, diagnostics = conformance.ParseExpectations(report.Embedded+vcr.ExpectationsPath, embedded(vcr.ExpectationsPath))
		keepMatching(expected, all)
	}
	return expected, refuse(env, expected.File, diagnostics)
}

// keepMatching leaves out the expectations of the binary that match no case: the user did not write them.
func keepMatching(expected *conformance.Expectations, all []conformance.Case) {
	expected.List = slices.DeleteFunc(expected.List, func(e conformance.Expectation) bool {
		p, err := conformance.ParsePattern(e.Pattern)
		return err == nil && !slices.ContainsFunc(all, func(c conformance.Case) bool { return p.Match(c.Name()) })
	})
}

// expectationsPath is the file, empty when there is none but in the binary.
func expectationsPath(path string) string {
	if path == "" && exists(vcr.ExpectationsPath) {
		return vcr.ExpectationsPath
	}
	return path
}

// updateExpectations brings the file up to date with a report on some of all cases, and
// prints on stderr what it did and what is left to do. Where there is no file and something
// failed, it makes one, whose comments explain an entry.
func updateExpectations(env *environment, path string, r *conformance.Report, all []conformance.Case) error {
	path = cmp.Or(expectationsPath(path), vcr.ExpectationsPath)
	data, err := os.ReadFile(path)
	isNew := errors.Is(err, fs.ErrNotExist)
	switch {
	case isNew:
		data = embedded(vcr.ExpectationsPath)
	case err != nil:
		return err
	}
	update, err := conformance.UpdateExpectations(path, data, r.Results, all, env.now())
	if err != nil {
		return err
	}
	switch {
	case string(update.Data) == string(data):
	case isNew:
		err = os.MkdirAll(filepath.Dir(path), 0o755)
		if err == nil {
			err = atomicfile.Write(path, update.Data, 0o644)
		}
	default:
		err = atomicfile.Replace(path, update.Data)
	}
	if err != nil {
		return err
	}
	if isNew && len(update.Added) > 0 {
		fmt.Fprintf(env.stderr, "%s: created\n", path)
	}
	for _, p := range update.Removed {
		fmt.Fprintf(env.stderr, "%s: removed %s\n", path, safetext.Line(p))
	}
	for _, p := range update.Added {
		fmt.Fprintf(env.stderr, "%s: added %s: fill in its reason and its issue\n", path, safetext.Line(p))
	}
	for _, note := range update.Notes {
		fmt.Fprintln(env.stderr, safetext.Line(strings.TrimSpace(note)))
	}
	return nil
}
