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

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/capture"
	"github.com/vllm-vcr/conformance/internal/capture/cpuengine"
	"github.com/vllm-vcr/conformance/internal/capture/local"
	"github.com/vllm-vcr/conformance/internal/capture/target"
	"github.com/vllm-vcr/conformance/internal/report"
	"github.com/vllm-vcr/conformance/internal/upstream/adopt"
	"github.com/vllm-vcr/conformance/internal/upstream/drift"
	"github.com/vllm-vcr/conformance/internal/upstream/extract"
	"github.com/vllm-vcr/conformance/internal/upstream/pinned"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/manifest"
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

// adoptOptions are the flags of drift adopt.
type adoptOptions struct {
	repo, manifest string
	maxStable      int
	rev            string
	engineUse      string
	engine         engineOptions
	work, upload   string
	prune, dryRun  bool
	validated      bool
	store          storeOptions
	format, output string
	outputs        bool
}

func newDriftAdoptCommand(env *environment) *cobra.Command {
	var opts adoptOptions
	cmd := &cobra.Command{
		Use:   "adopt VERSION",
		Short: "Add a vLLM release to a repository: profile, compat.toml, goldens",
		Long: "Add a vLLM release as a line of the repository that has a " + vcr.CompatPath + ". The command reads the protocol of the " +
			"release from its wheel, writes its profile, adds or moves the line in " + vcr.CompatPath + ", and removes the goldens of " +
			"lines that are no longer supported from the manifest. Then it captures the targets of the line, if there is an " +
			"engine for CPUs, and runs conform. Comments in the files are kept. At the end it prints a numbered list of what " +
			"is left for you to do.\n\n" +
			"VERSION is a release (0.34.0), a wheel, a folder with the sources, a URL, or a profile that drift extract wrote. " +
			"The profile is written to internal/wire/protocol/profiles in the repository of vllm-vcr, elsewhere to " + adopt.ProfilesPath + " " +
			"beside " + vcr.CompatPath + ", where every command finds it. Either all files are changed or none, before anything is " +
			"captured. If the release is a line already, only missing goldens are captured.\n\n" +
			"The line gates only with --fidelity-validated, and only if all targets were captured and pass. Exit codes: 0 the " +
			"repository conforms, 1 it does not, or the release needs manual work, 3 the release could not be read.",
		Example: "  vllm-vcr drift adopt 0.34.0 --dry-run\n" +
			"  vllm-vcr drift adopt 0.34.0 --engine install --fidelity-validated",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runDriftAdopt(cmd.Context(), env, opts, releasesOf(args)[0])
		},
	}
	opts.addFlags(cmd.Flags())
	return cmd
}

func (opts *adoptOptions) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&opts.repo, "repo", ".", "`FOLDER` of the repository; relative paths start there")
	flags.StringVar(&opts.manifest, "manifest", "", "manifest, the `FILE` that lists the goldens; it is edited (default $CONFORMANCE_MANIFEST, else ./"+vcr.ManifestPath+" or ./manifest.toml)")
	flags.IntVar(&opts.maxStable, "max-stable", adopt.DefaultLines, "maximum number of stable lines in compat.toml")
	flags.StringVar(&opts.rev, "rev", "", "`COMMIT` of the vLLM repository that the release was built from (default that in its wheel)")
	flags.BoolVar(&opts.validated, "fidelity-validated", false, "let the line gate, if all its targets were captured and pass")
	flags.BoolVar(&opts.prune, "prune", false, "also delete the golden files of lines that are removed")
	flags.BoolVar(&opts.dryRun, "dry-run", false, "print what would be done, and write nothing")
	grouped(flags, "Repository")
	flags.StringVar(&opts.engineUse, "engine", engineAuto, "engine for CPUs to capture with: auto (if one is installed), install (6 GB) or never")
	opts.engine.addFlags(flags)
	flags.StringVar(&opts.work, "work", workPath, workUsage)
	flags.StringVar(&opts.upload, "upload", "", uploadUsage)
	grouped(flags, "Capture")
	flags.StringVar(&opts.format, "format", formText, "format of the report: text, json or markdown")
	flags.StringVarP(&opts.output, "output", "o", "", outputUsage)
	addOutputFlag(flags, &opts.outputs)
	grouped(flags, "Report")
	opts.store.addFlags(flags)
	common(flags, "repo", "max-stable", "fidelity-validated", "prune", "dry-run", "engine", "work", "format", "output")
}

// check refuses flags that say nothing sensible, before anything is read.
func (opts *adoptOptions) check() error {
	if _, err := chooseOne("--format", opts.format, formText, formJSON, formMarkdown); err != nil {
		return err
	}
	if _, err := chooseOne("--engine", opts.engineUse, engineAuto, engineInstall, engineNever); err != nil {
		return err
	}
	switch {
	case opts.maxStable < 1:
		return fmt.Errorf("--max-stable %d: want 1 or more", opts.maxStable)
	case opts.validated && opts.engineUse == engineNever:
		return errors.New("--fidelity-validated and --engine never: give only one of them, as a line needs captured goldens to gate")
	case opts.rev != "" && (len(opts.rev) < 9 || strings.Trim(opts.rev, "0123456789abcdef") != ""):
		return fmt.Errorf("--rev %q: want a commit of 9 to 40 hexadecimal digits", opts.rev)
	}
	return nil
}

// enter goes to the folder of the repository, once the paths that begin here are known.
func (opts *adoptOptions) enter(env *environment, source string) (string, error) {
	if exists(source) {
		path, err := filepath.Abs(source)
		if err != nil {
			return "", err
		}
		source = path
	}
	if opts.output != "" {
		path, err := filepath.Abs(opts.output)
		if err != nil {
			return "", err
		}
		opts.output = path
	}
	if err := env.chdir(opts.repo); err != nil {
		return "", fmt.Errorf("--repo: %w", err)
	}
	if !exists(vcr.CompatPath) {
		return "", fmt.Errorf("--repo %s: it has no %s: the repository needs one, with at least one line", opts.repo, vcr.CompatPath)
	}
	return source, nil
}

// An adoption is one run of drift adopt.
type adoption struct {
	env    *environment
	flags  adoptOptions
	tree   adopt.Tree
	plan   *adopt.Plan
	report *adopt.Report
	code   int // exit code so far
}

func runDriftAdopt(ctx context.Context, env *environment, opts adoptOptions, source string) error {
	if err := opts.check(); err != nil {
		return err
	}
	source, err := opts.enter(env, source)
	if err != nil {
		return err
	}
	var in inputs
	if err := opts.store.resolve(env, &in); err != nil {
		return err
	}
	run := &adoption{env: env, flags: opts, tree: adopt.FindTree(".", cmp.Or(opts.manifest, env.getenv("CONFORMANCE_MANIFEST")))}
	if err := run.loadProfiles(); err != nil {
		return err
	}
	if err := run.prepare(ctx, source); err != nil {
		return err
	}
	if run.report.Outcome == adopt.Planned && !opts.dryRun {
		if err := run.carryOut(ctx); err != nil {
			return err
		}
	}
	return run.print()
}

// loadProfiles takes in the lines that the tree has, whatever this build has: the profile goes to where theirs are.
func (run *adoption) loadProfiles() (err error) {
	if run.env.profilesNamed {
		run.tree = run.tree.WithProfiles(run.env.profiles)
		return nil
	}
	if err := loadLineProfiles(run.env, run.tree.Profiles); err != nil {
		return err
	}
	run.env.profiles, err = filepath.Abs(run.tree.Profiles) // the tap is another process, and will need what is adopted
	return err
}

// prepare reads the release and makes the plan. A release that does not fit is a report; what cannot be read is an error.
func (run *adoption) prepare(ctx context.Context, source string) error {
	profile, err := adoptedProfile(ctx, run.env, source, run.flags.engine.index)
	if err != nil {
		return err
	}
	release, todo := run.lock(ctx, source, profile.Version)
	run.plan, err = adopt.Prepare(adopt.Options{
		Tree: run.tree, Profile: profile, Release: release, Rev: run.flags.rev, Lines: run.flags.maxStable, Prune: run.flags.prune,
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
	if todo != "" {
		run.report.ToDo = append(run.report.ToDo, todo)
	}
	return nil
}

// lock reads what may run of a release that is not known yet, by its digests, and makes it known to this process. Without
// that the release works too, so what is in the way is left to a person.
func (run *adoption) lock(ctx context.Context, source, version string) (release *pinned.Release, todo string) {
	if known := pinned.Lookup(version); known != nil && known.Engine != nil {
		return nil, ""
	}
	command := "vllm-vcr capture engine --lock " + version
	switch _, err := compat.ParseVersion(source); {
	case err != nil:
		return nil, fmt.Sprintf("write the digests of what may run of %s once the index has it: %s", version, command)
	case run.flags.dryRun:
		return nil, ""
	}
	steps := openSteps(run.env)
	defer steps.close()
	release, err := cpuengine.Lock(ctx, run.flags.engine.options(steps, "lock", version), false)
	if err != nil {
		return nil, fmt.Sprintf("write the digests of what may run of %s: %s: %v", version, command, oneLine(err))
	}
	pinned.Learn(release)
	return release, ""
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
	run.acceptAdopted(ctx)
	if ctx.Err() == nil {
		run.conform(ctx, captured && err == nil)
	}
	if ctx.Err() != nil {
		run.code = conformance.ExitInfra
		run.addToDo("run the same again: it was interrupted, and captures what is absent")
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
			if shown++; shown <= maxFailures {
				run.report.ToDo = append(run.report.ToDo, fmt.Sprintf("%s %s: %s", r.Verdict, r.Case.Name(), failure.Message))
			}
		}
	}
	if shown > maxFailures {
		run.report.ToDo = append(run.report.ToDo, fmt.Sprintf("and %d more: vllm-vcr conform", shown-maxFailures))
	}
}

// maxFailures are how many failures of conform a report has.
const maxFailures = 20

// judgeTree runs conform with what is in the tree now.
func (run *adoption) judgeTree(ctx context.Context) (*conformance.Report, error) {
	in := inputs{compat: run.tree.Compat}
	if exists(run.tree.Manifest) {
		in.manifest = run.tree.Manifest
	}
	matrix, mf, err := loadInputs(run.env, &in)
	if err != nil {
		return nil, err
	}
	sel := conformance.Selection{Enforce: conformance.EnforceValidated}
	cases, err := conformance.NewPlan(matrix, mf, sel)
	if err != nil {
		return nil, err
	}
	all, err := conformance.EveryCase(matrix, mf, sel)
	if err != nil {
		return nil, err
	}
	expected, err := loadExpectations(run.env, "", false, all)
	if err != nil {
		return nil, err
	}
	store, err := openStore(run.env, &run.flags.store)
	if err != nil {
		return nil, err
	}
	runner := conformance.Runner{
		Store: store, Log: run.env.log, Progress: func(r conformance.Result) { logResult(run.env, r) }, Expectations: expected, All: all,
		Subject: conformance.Description{Kind: "player"},
	}
	return runner.Run(ctx, cases), nil
}

// print writes the report, and chooses the exit code.
func (run *adoption) print() error {
	write := func(w io.Writer) error {
		switch run.flags.format {
		case formJSON:
			return run.report.JSON(w)
		case formMarkdown:
			return run.report.Markdown(w, bodyLimit)
		}
		return run.report.Text(w)
	}
	err := writeResult(run.env, run.flags.output, write)
	if run.flags.outputs {
		err = errors.Join(err, setOutputs(run.env, run.stepOutputs()...))
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
		{"summary", safetext.Line(run.report.Reason)},
		{"body", strings.ReplaceAll(body.String(), outputFence, "(fence)")},
	}
}

// capture captures the targets of the line that have no golden of its release yet, and reports whether the line has all of
// its goldens then. An error is about targets that failed, or about all of them.
func (run *adoption) capture(ctx context.Context) (whole bool, err error) {
	here, elsewhere, err := run.uncaptured()
	if err != nil {
		return false, err
	}
	for _, t := range elsewhere {
		run.addToDo("capture %s on a cluster: vllm-vcr capture run %s", t.Name(), t.Name())
	}
	if len(here) == 0 {
		return len(elsewhere) == 0, nil
	}
	if there, err := run.hasEngine(ctx); err != nil || !there {
		run.addCaptureToDo(len(here), err)
		return false, nil
	}
	opts := run.captureOptions()
	var outcomes []capture.Outcome
	for _, t := range here { // one after the other, so that each is registered whatever becomes of the next
		one, err := captureHere(ctx, run.env, opts, []target.Target{t})
		if err != nil {
			return false, errors.Join(err, run.addOutcomes(outcomes))
		}
		outcomes = append(outcomes, one...)
	}
	return len(elsewhere) == 0, run.addOutcomes(outcomes)
}

// addToDo leaves something to a person.
func (run *adoption) addToDo(format string, args ...any) {
	run.report.ToDo = append(run.report.ToDo, fmt.Sprintf(format, args...))
}

// uncaptured are the targets of the line that the manifest has no golden of the release of: those of this machine, and
// those that need a cluster.
func (run *adoption) uncaptured() (here, elsewhere []target.Target, err error) {
	_, file, err := targetOptions{targets: run.tree.Targets, compat: run.tree.Compat}.load(run.env)
	if err != nil {
		return nil, nil, err
	}
	mf := &manifest.Manifest{}
	if exists(run.tree.Manifest) {
		mf, _ = manifest.Load(run.tree.Manifest) // its findings were told by the plan
	}
	for _, t := range file.Targets {
		switch {
		case t.Line != run.plan.Line || isCaptured(mf, t):
		case local.CheckTarget(t) == nil:
			here = append(here, t)
		default:
			elsewhere = append(elsewhere, t)
		}
	}
	return here, elsewhere, nil
}

// isCaptured reports whether all goldens of a target are registered, and are of its release.
func isCaptured(mf *manifest.Manifest, t target.Target) bool {
	ids := []string{t.ID}
	if t.Wire {
		ids = append(ids, t.WireID())
	}
	for _, id := range ids {
		if !slices.ContainsFunc(mf.Goldens, func(g manifest.Golden) bool {
			release, _, _ := strings.Cut(g.VLLMVersion, "+")
			return g.Line == t.Line && g.ID == id && release == t.Release()
		}) {
			return false
		}
	}
	return true
}

// hasEngine reports whether there is an engine to capture with, or is to be one.
func (run *adoption) hasEngine(ctx context.Context) (bool, error) {
	switch run.flags.engineUse {
	case engineNever:
		return false, nil
	case engineInstall:
		return true, nil
	}
	_, err := cpuengine.Find(ctx, cpuengine.Options{
		Release: run.plan.Release, Dir: run.flags.engine.dir, Index: run.flags.engine.index, Log: run.env.log,
	})
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// addCaptureToDo says how the targets of the line are captured, as they were not.
func (run *adoption) addCaptureToDo(count int, err error) {
	why := "there is no engine of it for the CPU here"
	if err != nil {
		why = err.Error()
	}
	if run.flags.engineUse == engineNever {
		why = "--engine never"
	}
	run.addToDo("capture %d targets of line %s (%s): vllm-vcr drift adopt %s --engine install --fidelity-validated, "+
		"or make goldens LINE=%s and then vllm-vcr compat set --line %s --fidelity-validated", count, run.plan.Line, why, run.plan.Release,
		run.plan.Line, run.plan.Line)
}

// captureOptions are those of capture run --local.
func (run *adoption) captureOptions() captureRunOptions {
	opts := captureRunOptions{
		engine: run.flags.engine, engines: 1, bootTimeout: local.DefaultBootTimeout, work: run.flags.work,
		manifest: run.tree.Manifest, goldens: cmp.Or(run.flags.store.goldens, run.tree.Goldens),
		upload: run.flags.upload, s3: run.flags.store.s3,
	}
	opts.targets.compat = run.tree.Compat
	return opts
}

// addOutcomes puts what became of the captures into the report.
func (run *adoption) addOutcomes(outcomes []capture.Outcome) error {
	var failed []string
	for _, o := range outcomes {
		for _, w := range o.Accepted.Warnings {
			run.addToDo("look at %s: %s", o.Target.Name(), w)
		}
		if o.Err != nil {
			failed = append(failed, o.Err.Error())
			continue
		}
		run.report.Goldens = append(run.report.Goldens, strings.Split(o.Text(), "\n")...)
	}
	if len(failed) > 0 {
		return oneLine(fmt.Errorf("%d of %d targets failed: %s", len(failed), len(outcomes), strings.Join(failed, "; ")))
	}
	return nil
}

// adoptedProfile is the wire profile of a release: out of a file that has one, or else read from the sources of the release. What
// could not be read of them is an error, as nobody may build on half a profile.
func adoptedProfile(ctx context.Context, env *environment, source, index string) (*protocol.Profile, error) {
	if strings.HasSuffix(source, ".json") {
		return readProfile(source)
	}
	got, err := extractProfile(ctx, env, extract.Request{Name: source, Index: index})
	if err != nil || len(got.Gaps) == 0 {
		return got.Profile, err
	}
	for _, g := range got.Gaps {
		env.printErr("not read: " + g.String())
	}
	return nil, exitError{conformance.ExitInfra, fmt.Errorf("release %s could not be read as a whole: %d parts of its wire are not "+
		"known, see above: nothing was written", got.Profile.Version, len(got.Gaps))}
}

// readProfile reads a file that drift extract wrote.
func readProfile(path string) (*protocol.Profile, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, exitError{conformance.ExitInfra, err}
	}
	defer file.Close()
	p, err := protocol.ReadProfile(file)
	if err != nil {
		return nil, exitError{conformance.ExitInfra, fmt.Errorf("%s: %w", path, err)}
	}
	return p, nil
}
