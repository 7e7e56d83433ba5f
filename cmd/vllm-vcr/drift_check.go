package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/capture/local"
	"github.com/vllm-vcr/conformance/internal/report"
	"github.com/vllm-vcr/conformance/internal/upstream/drift"
	"github.com/vllm-vcr/conformance/manifest"
)

// driftOptions are the flags of drift check.
type driftOptions struct {
	in           inputs
	index        string
	pre, nightly bool
	frontend     string
	layers       []string
	engine       string
	peers        string
	bootTimeout  time.Duration
	model        string
	store        storeOptions
	expectations string
	layersJSON   string
	report       reportOptions
}

func newDriftCheckCommand(env *environment) *cobra.Command {
	var opts driftOptions
	cmd := &cobra.Command{
		Use:   "check [VERSION|WHEEL|URL]",
		Short: "Check whether a vLLM release still works with this build",
		Long: "Check a vLLM release, by default the newest stable release of the package index, in layers:\n\n" +
			"  static   compare the protocol in its Python sources with the profile of its line\n" +
			"  live     run the frontend suite on its vllm-rs, with the player as engine\n" +
			"  goldens  replay the goldens of its line behind that vllm-rs\n" +
			"  engine   run the live suite on its engine for CPUs, and record it; only if the engine is installed\n" +
			"  python   run its Python client with the player as engine; only if an engine is installed\n" +
			"  builtin  compare the answers of its vllm-rs and of serve --frontend builtin, request by request\n\n" +
			"A release whose line is not in compat.toml is checked as the newest line before it. The last line of the output is " +
			"drift: none (exit code 0), found (1) or unknown (3, or 4 if nothing was checked), and why. It is the worst of all " +
			"checked layers; a layer that cannot be checked, for example without an engine, does not count.\n\n" +
			"Downloaded programs run with the rights of this command: run it where there are no secrets. Wheels exist only for " +
			"Linux. docs/drift.md has more.",
		Example: "  vllm-vcr drift check\n" +
			"  vllm-vcr drift check 0.33.0 --report-dir report\n" +
			"  vllm-vcr drift check --nightly --layers static\n" +
			"  vllm-vcr drift check --frontend ./vllm-rs",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return runDriftCheck(cmd.Context(), env, opts, args) },
	}
	opts.addFlags(cmd.Flags())
	return cmd
}

func (opts *driftOptions) addFlags(flags *pflag.FlagSet) {
	flags.BoolVar(&opts.pre, "pre", false, "let the newest release be a release candidate")
	flags.BoolVar(&opts.nightly, "nightly", false, "check the newest build of the main branch, or the build VERSION; the index is --index, else "+drift.NightlyIndex)
	exclusive(flags, "pre", "nightly")
	flags.StringVar(&opts.index, "index", "", indexUsage)
	flags.StringVar(&opts.frontend, "frontend", "", "check this vllm-rs `FILE` instead of one from the index; before 0.29, give VERSION too")
	flags.StringSliceVar(&opts.layers, "layers", layerNames(), "layers to check")
	flags.StringVar(&opts.engine, "engine", string(drift.EngineAuto), "engine for CPUs: auto (if one is installed), install (6 GB), never, or the path of its environment")
	flags.StringVar(&opts.peers, "peers", "", peersUsage)
	flags.DurationVar(&opts.bootTimeout, "start-timeout", local.DefaultBootTimeout, "maximum time for the engine to start")
	flags.StringVar(&opts.model, "model", "", "`FOLDER` of the model for the frontend (default the one in the binary)")
	flags.StringVar(&opts.expectations, "expectations", "", "`FILE` of known failures (default none)")
	grouped(flags, "What is checked")
	opts.report.addFlags(flags)
	flags.StringVar(&opts.layersJSON, "layers-json", "", "`FILE` to write the verdict of each layer to as JSON; --report-dir has it as "+drift.JSONFile+" (default none)")
	grouped(flags, "Report")
	opts.in.addFlags(flags)
	opts.store.addFlags(flags)
	mustLookup(flags, "cache").Usage = "`FOLDER` for downloaded goldens, and for frontends in its subfolder frontends (default vllm-vcr in the user's cache directory)"
	common(flags, "pre", "nightly", "index", "frontend", "layers", "engine", "model", "report-dir", "report-json")
}

func layerNames() []string {
	var names []string
	for _, name := range drift.Layers() {
		names = append(names, string(name))
	}
	return names
}

// check refuses flags that say nothing sensible together.
func (opts *driftOptions) check(args []string) error {
	if err := opts.report.check(); err != nil {
		return err
	}
	if _, err := choose("--layers", opts.layers, drift.Layers()...); err != nil {
		return err
	}
	named := len(args) > 0
	isWheel := named && isWheel(args[0])
	switch {
	case len(opts.layers) == 0:
		return errors.New("--layers is empty: nothing would be checked")
	case opts.frontend != "" && (opts.index != "" || opts.nightly):
		return errors.New("--frontend and --index or --nightly: give only one of them, as a local frontend needs no index")
	case opts.frontend != "" && isWheel:
		return fmt.Errorf("--frontend and %s: give only one of them", args[0])
	case isWheel && (opts.index != "" || opts.nightly):
		return fmt.Errorf("--index and --nightly need a version, but %s is a wheel", args[0])
	case opts.store.offline && opts.frontend == "" && !(isWheel && !isURL(args[0])):
		return errors.New("--offline: the frontend of a release is downloaded: give a local one with --frontend")
	case opts.pre && (named || opts.frontend != ""):
		return errors.New("--pre selects the newest release of the index, but another release is given")
	case opts.bootTimeout <= 0:
		return fmt.Errorf("--start-timeout %v: want more than 0", opts.bootTimeout)
	case opts.model != "" && !exists(filepath.Join(opts.model, "config.json")):
		return fmt.Errorf("--model %s: want a folder with config.json and tokenizer.json", opts.model)
	}
	return nil
}

// A driftRun is one check: what is checked, as far as it is known, and what came out.
type driftRun struct {
	flags   driftOptions
	matrix  *compat.Matrix
	mf      *manifest.Manifest
	cache   string // folder
	subject drift.Subject
	failed  error // why there is no release to check
	result  drift.Result
	started time.Time
}

func runDriftCheck(ctx context.Context, env *environment, opts driftOptions, args []string) error {
	run := &driftRun{flags: opts, started: env.now()}
	if err := opts.check(args); err != nil {
		return err
	}
	if err := run.flags.store.resolve(env, &run.flags.in); err != nil {
		return err
	}
	request, err := run.request(args)
	if err != nil {
		return err
	}
	if run.matrix, run.mf, err = loadInputs(env, &run.flags.in); err != nil {
		return err
	}
	defer run.flags.report.openDir()()
	live, err := liveLayers(env, run)
	if err != nil {
		return err
	}
	if run.subject, run.failed = drift.Choose(ctx, request, run.matrix, run.mf, env.log); run.failed != nil {
		run.result.Verdict, run.result.Frontend = drift.Unknown, run.subject.Local
	} else if run.result, err = checkRelease(ctx, env, run, live); err != nil {
		return err
	}
	r, err := newDriftReport(env, run, request)
	if err != nil {
		return err
	}
	return printDrift(env, r, &run.flags)
}

// checkRelease makes all layers.
func checkRelease(ctx context.Context, env *environment, run *driftRun, live drift.Live) (drift.Result, error) {
	opts := &run.flags
	self, err := os.Executable()
	if err != nil {
		return drift.Result{}, exitError{conformance.ExitInfra, err}
	}
	steps := openSteps(env)
	defer steps.close()
	var wanted []drift.LayerName
	for _, name := range opts.layers {
		wanted = append(wanted, drift.LayerName(name))
	}
	check := drift.Check{
		Subject: run.subject, Layers: wanted, Live: live, VCR: self, BootTimeout: opts.bootTimeout, Cache: run.cache,
		Step: func(layer drift.LayerName, step string) { steps.show(string(layer), step) },
		Engines: drift.Engines{Mode: drift.EngineMode(opts.engine), Options: local.EngineOptions{
			Dir: opts.peers, Index: opts.index, Log: env.log,
			Progress: func(step string) { steps.show("engine "+run.subject.Build.String(), step) },
		}},
	}
	return check.Run(ctx), nil
}

// liveLayers are the layers of the player but for what is looked at.
func liveLayers(env *environment, run *driftRun) (live drift.Live, err error) {
	opts := &run.flags
	if run.cache, err = driftCache(opts.store.cache); err != nil {
		return live, err
	}
	if opts.model == "" {
		files, err := fs.Sub(vcr.Files, vcr.ModelPath)
		if err != nil {
			return live, err
		}
		if opts.model, err = drift.Model(files, run.cache); err != nil {
			return live, exitError{conformance.ExitInfra, fmt.Errorf("model directory: %w", err)}
		}
	}
	if opts.model, err = filepath.Abs(opts.model); err != nil {
		return live, err
	}
	live = drift.Live{Matrix: run.matrix, Manifest: run.mf, Model: opts.model, Log: env.log, Progress: func(r conformance.Result) { logResult(env, r) }}
	if live.Store, err = openStore(env, &opts.store); err != nil || opts.expectations == "" {
		return live, err
	}
	all, err := conformance.EveryCase(run.matrix, run.mf, conformance.Selection{})
	if err != nil {
		return live, err
	}
	live.Expectations, err = loadExpectations(env, opts.expectations, false, all)
	return live, err
}

// request is what the arguments and flags name.
func (run *driftRun) request(args []string) (drift.Request, error) {
	r := drift.Request{
		Index: run.flags.index, Nightly: run.flags.nightly, Candidates: run.flags.pre, Frontend: run.flags.frontend,
	}
	var err error
	switch {
	case len(args) == 0:
	case isWheel(args[0]):
		r.Wheel = args[0]
	case r.Nightly:
		r.Build, err = compat.ParseBuild(args[0])
	default:
		matrix, _ := loadCompat(run.flags.in.compat) // its diagnostics are printed when it is used
		r.Build.Version, err = compat.ParseVersion(releaseNamed(args[0], matrix))
	}
	return r, err
}

// isWheel reports whether an argument names a wheel, by a URL or a path, rather than a version.
func isWheel(arg string) bool { return isURL(arg) || strings.HasSuffix(arg, ".whl") }

func isURL(arg string) bool { return strings.Contains(arg, "://") }

// bodyLimit is how long the text of an issue may be, in bytes: GitHub refuses more than 65,536 characters.
const bodyLimit = 60_000

// newDriftReport is the report on a check, with those of all cases that ran.
func newDriftReport(env *environment, run *driftRun, request drift.Request) (*drift.Report, error) {
	opts := &run.flags
	r := &drift.Report{
		Subject: run.subject, Repeat: request.Repeat(run.subject.Build), Compat: run.matrix.File, Failed: run.failed,
		Result: run.result, Took: time.Since(run.started),
	}
	in := conformOptions{in: opts.in, store: opts.store, enforce: string(conformance.EnforceAll)}
	in.plan.expectations = opts.expectations
	var parts, stable []report.Named
	for _, layer := range run.result.Layers {
		for _, ran := range layer.Reports {
			ran.Flags = append(in.inputFlags(), ran.Flags...)
			meta := newReportMeta(env, opts.report, &opts.in, run.started, run.matrix.File, run.mf.File)
			meta.Arguments = opts.report.command("vllm-vcr", "drift", "check")
			parts = append(parts, report.Named{Name: string(layer.Name), Document: report.New(ran, meta)})
			meta.Deterministic = true
			stable = append(stable, report.Named{Name: string(layer.Name), Document: report.New(ran, meta)})
		}
	}
	if len(parts) == 0 {
		return r, nil
	}
	var err error
	if r.Runs, err = report.Merge(parts); err == nil {
		r.Stable, err = report.Merge(stable)
	}
	return r, err
}

// printDrift writes everything of a finished check. What cannot be written keeps neither the others from it nor a found
// drift from its exit code.
func printDrift(env *environment, r *drift.Report, opts *driftOptions) error {
	var failed []error
	if path := env.getenv("GITHUB_STEP_SUMMARY"); path != "" {
		failed = append(failed, appendSummary(path, r.Markdown))
	}
	failed = append(failed, r.Text(env.stdout))
	if opts.layersJSON != "" {
		failed = append(failed, r.WriteJSON(opts.layersJSON))
	}
	switch {
	case opts.report.opened != nil:
		failed = append(failed, r.WriteDir(opts.report.opened, buildVersion()))
	case r.Runs == nil: // else it is reported with them
		failed = append(failed, opts.report.failed)
	}
	if r.Runs != nil {
		_, err := fmt.Fprintln(env.stdout)
		failed = append(failed, err, report.Text(env.stdout, r.Runs, report.TextOptions{Colour: env.colours(env.stdout)}))
		failed = append(failed, writeReports(env, r.Runs, opts.report))
	}
	_, err := fmt.Fprintf(env.stdout, "drift: %s: %s\n", r.Result.Verdict, r.Summary())
	failed = append(failed, err)
	if opts.report.githubOutput {
		outputs, err := r.Outputs(bodyLimit)
		failed = append(failed, err, setOutputs(env, withoutFences(stepOutputs(outputs))...))
	}
	code := r.Result.ExitCode()
	if err := errors.Join(failed...); err != nil {
		return exitError{cmp.Or(code, conformance.ExitInfra), fmt.Errorf("write report: %w", err)}
	}
	if code != conformance.ExitOK {
		return exitError{code, errReported}
	}
	return nil
}
