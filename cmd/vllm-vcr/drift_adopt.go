package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/report"
	"github.com/vllm-vcr/conformance/internal/upstream/adopt"
	"github.com/vllm-vcr/conformance/internal/upstream/drift"
)

// What --engine takes.
const (
	engineAuto    = string(drift.EngineAuto)
	engineInstall = string(drift.EngineInstall)
	engineNever   = string(drift.EngineNever)
)

// Forms of a report of drift adopt.
const (
	formText     = "text"
	formJSON     = "json"
	formMarkdown = "markdown"
)

// adoptFlags are the flags of drift adopt.
type adoptFlags struct {
	repo, manifest string
	window         int
	rev            string
	engineUse      string
	engine         engineFlags
	work, upload   string
	prune, dryRun  bool
	validated      bool
	store          storeFlags
	format, output string
	outputs        bool
}

func (a *app) driftAdoptCommand() *cobra.Command {
	var f adoptFlags
	cmd := &cobra.Command{
		Use:   "adopt VERSION",
		Short: "Bring a release of vLLM into a repository: profile, window, goldens",
		Long: "Read the wire of a release from its wheel, and make it a line of the repository that has a " + vcr.CompatPath + ": its\n" +
			"profile is written, the line is put into the window or moved, and what leaves the window leaves the manifest.\n" +
			"Then its targets are captured, where there is an engine for the CPU, and conform runs on the whole. Comments and\n" +
			"all else in the files stay. What is left to a person is told at the end, numbered.\n\n" +
			"VERSION is a release (0.34.0), a wheel, a folder with the sources, a URL, or a profile that drift extract wrote.\n" +
			"The profile goes to internal/wire/protocol/profiles in the repository of vllm-vcr, elsewhere to " + adopt.ProfilesPath + " beside\n" +
			vcr.CompatPath + ", where every command finds it. Files are edited all or none, and before anything is captured. To\n" +
			"adopt what is adopted already captures what is absent.\n\n" +
			"--engine auto takes an engine that is installed, install installs one (6 GB), never leaves the capture to a\n" +
			"person. The line does not gate unless --fidelity-validated is given, all was captured and all holds.\n" +
			"Exit codes: 0 the tree conforms, 1 it does not, or the release needs a person, 3 the release could not be read.",
		Example: "  vllm-vcr drift adopt 0.34.0 --dry-run\n" +
			"  vllm-vcr drift adopt 0.34.0 --engine install --fidelity-validated",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.driftAdopt(cmd.Context(), f, args[0]) },
	}
	f.addFlags(cmd.Flags())
	return cmd
}

func (f *adoptFlags) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&f.repo, "repo", ".", "folder of the repository; other paths that are not absolute begin there")
	flags.StringVar(&f.manifest, "manifest", "", "registry of goldens, which is edited (default $CONFORMANCE_MANIFEST, else ./"+vcr.ManifestPath+" or ./manifest.toml)")
	flags.IntVar(&f.window, "window", adopt.DefaultLines, "how many stable lines the window keeps")
	flags.StringVar(&f.rev, "rev", "", "commit of vllm.git that the release was built from (default what its wheel says)")
	flags.StringVar(&f.engineUse, "engine", engineAuto, "engine for the CPU to capture with: auto (if it is installed), install, never")
	f.engine.addFlags(flags)
	flags.StringVar(&f.work, "work", workPath, "where recordings, raw frames and logs stay, in a folder LINE/ID each")
	flags.StringVar(&f.upload, "upload", "", "where to keep the goldens instead: s3://bucket/prefix, or file:///dir")
	flags.BoolVar(&f.prune, "prune", false, "delete the files of goldens whose line leaves the window, too")
	flags.BoolVar(&f.dryRun, "dry-run", false, "say what would be done, and write nothing")
	flags.BoolVar(&f.validated, "fidelity-validated", false, "let the line gate, if all of its targets were captured and hold")
	f.store.addFlags(flags)
	flags.StringVar(&f.format, "format", formText, "form of the report: text, json, markdown")
	flags.StringVarP(&f.output, "output", "o", "", "write the report to this file instead of stdout")
	addOutputFlag(flags, &f.outputs)
}

// check refuses flags that say nothing sensible, before anything is read.
func (f *adoptFlags) check() error {
	if _, err := chooseOne("--format", f.format, formText, formJSON, formMarkdown); err != nil {
		return err
	}
	if _, err := chooseOne("--engine", f.engineUse, engineAuto, engineInstall, engineNever); err != nil {
		return err
	}
	switch {
	case f.window < 1:
		return fmt.Errorf("--window %d: want 1 or more", f.window)
	case f.validated && f.engineUse == engineNever:
		return errors.New("--fidelity-validated and --engine never: a line gates by goldens, and none would be captured")
	case f.rev != "" && (len(f.rev) < 9 || strings.Trim(f.rev, "0123456789abcdef") != ""):
		return fmt.Errorf("--rev %q: want a commit of 9 to 40 hexadecimal digits", f.rev)
	}
	return nil
}

// enter goes to the folder of the repository, once the paths that begin here are known.
func (f *adoptFlags) enter(source string) (string, error) {
	if exists(source) {
		path, err := filepath.Abs(source)
		if err != nil {
			return "", err
		}
		source = path
	}
	if f.output != "" {
		path, err := filepath.Abs(f.output)
		if err != nil {
			return "", err
		}
		f.output = path
	}
	if err := os.Chdir(f.repo); err != nil {
		return "", fmt.Errorf("--repo: %w", err)
	}
	if !exists(vcr.CompatPath) {
		return "", fmt.Errorf("--repo %s: there is no %s: a repository has a support window, if only of one line", f.repo, vcr.CompatPath)
	}
	return source, nil
}

// An adoption is one run of drift adopt.
type adoption struct {
	*app
	flags  adoptFlags
	tree   adopt.Tree
	plan   *adopt.Plan
	report *adopt.Report
	code   int // exit code so far
}

func (a *app) driftAdopt(ctx context.Context, f adoptFlags, source string) error {
	if err := f.check(); err != nil {
		return err
	}
	source, err := f.enter(source)
	if err != nil {
		return err
	}
	var in inputs
	if err := f.store.resolve(a, &in); err != nil {
		return err
	}
	run := &adoption{app: a, flags: f, tree: adopt.FindTree(".", a.orEnv(f.manifest, "CONFORMANCE_MANIFEST"))}
	if err := run.learn(); err != nil {
		return err
	}
	if err := run.prepare(ctx, source); err != nil {
		return err
	}
	if run.report.Outcome == adopt.Planned && !f.dryRun {
		if err := run.carryOut(ctx); err != nil {
			return err
		}
	}
	return run.tell()
}

// learn takes in the lines that the tree has, whatever this build has: the profile goes to where theirs are.
func (run *adoption) learn() (err error) {
	if run.profilesNamed {
		run.tree.Profiles = run.profiles
		return nil
	}
	if err := run.learnLines(run.tree.Profiles); err != nil {
		return err
	}
	run.profiles, err = filepath.Abs(run.tree.Profiles) // the tap is another process, and will need what is adopted
	return err
}

// prepare reads the release and makes the plan. A release that does not fit is a report; what cannot be read is an error.
func (run *adoption) prepare(ctx context.Context, source string) error {
	profile, err := run.profileOf(ctx, source, run.flags.engine.index)
	if err != nil {
		return err
	}
	run.plan, err = adopt.Prepare(adopt.Options{
		Tree: run.tree, Profile: profile, Rev: run.flags.rev, Lines: run.flags.window, Prune: run.flags.prune,
	})
	var unfit *adopt.UnfitError
	if errors.As(err, &unfit) {
		run.report, run.code = adopt.NewUnfit(profile, unfit), conformance.ExitFail
		return nil
	}
	if err != nil {
		return err
	}
	run.report = adopt.NewReport(run.plan)
	run.report.Reason = "nothing was written"
	return nil
}

// carryOut writes the plan, captures, and looks whether the tree conforms. What went wrong once the plan is written is a
// part of the report.
func (run *adoption) carryOut(ctx context.Context) error {
	if err := run.plan.Write(); err != nil {
		return exitError{conformance.ExitInfra, err}
	}
	run.report.Outcome = adopt.Green
	captured, err := run.capture(ctx)
	if err != nil && ctx.Err() == nil {
		run.fail(conformance.ExitFail, fmt.Sprintf("find out why line %s could not be captured: %v", run.plan.Line, oneLine(err)))
	}
	if ctx.Err() == nil {
		run.conform(ctx, captured && err == nil)
	}
	if ctx.Err() != nil {
		run.code = conformance.ExitInfra
		run.leave("run the same again: it was interrupted, and captures what is absent")
	}
	run.conclude()
	return nil
}

// fail notes what a person has to do about a failure.
func (run *adoption) fail(code int, todo string) {
	run.code = cmp.Or(run.code, code)
	run.report.ToDo = append(run.report.ToDo, todo)
}

func (run *adoption) conclude() {
	r := run.report
	switch {
	case run.code != conformance.ExitOK:
		r.Outcome, r.Reason = adopt.Red, "the files are written, and something is left to do"
	case len(r.ToDo) > 0:
		r.Reason = fmt.Sprintf("line %s is in, and the tree conforms; %d left to do", r.Line, len(r.ToDo))
	default:
		r.Reason = fmt.Sprintf("line %s is in, and the tree conforms", r.Line)
	}
}

// conform runs the whole plan on the tree. A line that was captured whole gates from here on, if that is wanted.
func (run *adoption) conform(ctx context.Context, whole bool) {
	if run.flags.validated && whole {
		if _, err := adopt.SetValidated(run.tree.Compat, run.plan.Line, true); err != nil {
			run.fail(conformance.ExitFail, err.Error())
			return
		}
	}
	result, err := run.judgeTree(ctx)
	if err != nil {
		run.fail(conformance.ExitFail, "mend the tree: "+err.Error())
		return
	}
	run.report.Conform = report.Verdict(report.New(result, report.Meta{}))
	run.code = cmp.Or(run.code, result.ExitCode)
	shown := 0
	for _, r := range result.Results {
		for _, failure := range r.Failures {
			if shown++; shown <= mostRed {
				run.report.ToDo = append(run.report.ToDo, fmt.Sprintf("%s %s: %s", r.Verdict, r.Case.Name(), failure.Message))
			}
		}
	}
	if shown > mostRed {
		run.report.ToDo = append(run.report.ToDo, fmt.Sprintf("and %d more: vllm-vcr conform", shown-mostRed))
	}
}

// mostRed are how many failures of conform a report has.
const mostRed = 20

// judgeTree runs conform with what is in the tree now.
func (run *adoption) judgeTree(ctx context.Context) (*conformance.Report, error) {
	in := inputs{compat: run.tree.Compat}
	if exists(run.tree.Manifest) {
		in.manifest = run.tree.Manifest
	}
	window, registry, err := run.load(in)
	if err != nil {
		return nil, err
	}
	sel := conformance.Selection{Enforce: conformance.EnforceValidated}
	cases, err := conformance.NewPlan(window, registry, sel)
	if err != nil {
		return nil, err
	}
	all, err := conformance.EveryCase(window, registry, sel)
	if err != nil {
		return nil, err
	}
	expected, err := run.loadExpectations("", all)
	if err != nil {
		return nil, err
	}
	store, err := run.openStore(&run.flags.store)
	if err != nil {
		return nil, err
	}
	runner := conformance.Runner{
		Store: store, Log: run.log, Progress: run.progress, Expectations: expected, All: all,
		Subject: conformance.Description{Kind: "player"},
	}
	return runner.Run(ctx, cases), nil
}

// tell writes the report, and chooses the exit code.
func (run *adoption) tell() error {
	write := func(w io.Writer) error {
		switch run.flags.format {
		case formJSON:
			return run.report.JSON(w)
		case formMarkdown:
			return run.report.Markdown(w, bodyLimit)
		}
		return run.report.Text(w)
	}
	err := run.writeTo(run.flags.output, write)
	if run.flags.outputs {
		err = errors.Join(err, run.setOutputs(run.stepOutputs()...))
	}
	if err != nil {
		return exitError{cmp.Or(run.code, conformance.ExitInfra), fmt.Errorf("write report: %w", err)}
	}
	if run.code != conformance.ExitOK {
		return exitError{run.code, errReported}
	}
	return nil
}

// stepOutputs are those of a GitHub step.
func (run *adoption) stepOutputs() []output {
	var body strings.Builder
	_ = run.report.Markdown(&body, bodyLimit) // a Builder takes everything
	return []output{
		{"adopted", string(run.report.Outcome)},
		{"version", run.report.Release},
		{"line", run.report.Line},
		{"summary", report.OneLine(run.report.Reason)},
		{"body", strings.ReplaceAll(body.String(), outputFence, "(fence)")},
	}
}
