package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

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
	request      drift.Request
	check        drift.Check
	layers       []string
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
		Args:  cobra.MaximumNArgs(1),
		RunE:  func(cmd *cobra.Command, args []string) error { return runDriftCheck(cmd.Context(), env, &opts, args) },
	}
	flags := cmd.Flags()
	engines := &opts.check.Engines
	flags.BoolVar(&opts.request.Candidates, "pre", false, "let the newest release be a release candidate")
	flags.BoolVar(&opts.request.Nightly, "nightly", false, "check the newest build of the main branch, or the build VERSION; the index is --index, else "+drift.NightlyIndex)
	exclusive(flags, "pre", "nightly")
	flags.StringVar(&opts.request.Index, "index", "", indexUsage)
	flags.StringVar(&opts.request.Frontend, "frontend", "", "check this vllm-rs `FILE` instead of one from the index; before 0.29, give VERSION too")
	flags.StringSliceVar(&opts.layers, "layers", texts(drift.Layers()), "layers to check")
	choices(flags, "layers", drift.Layers()...)
	flags.StringVar((*string)(&engines.Mode), "engine", string(drift.EngineAuto), "engine for CPUs: auto (if one is installed), install (6 GB), never, or the path of its environment")
	flags.StringVar(&engines.Options.Dir, "peers", "", peersUsage)
	flags.DurationVar(&opts.check.BootTimeout, "start-timeout", local.DefaultBootTimeout, "maximum time for the engine to start")
	flags.StringVar(&opts.model, "model", "", "`FOLDER` of the model for the frontend (default the one in the binary)")
	flags.StringVar(&opts.expectations, "expectations", "", "`FILE` of known failures (default none)")
	above0(flags, "start-timeout")
	exclusive(flags, "frontend", "index")
	exclusive(flags, "frontend", "nightly")
	grouped(flags, "What is checked")
	opts.report.addFlags(flags)
	flags.StringVar(&opts.layersJSON, "layers-json", "", "`FILE` to write the verdict of each layer to as JSON; --report-dir has it as "+drift.JSONFile+" (default none)")
	grouped(flags, "Report")
	opts.in.addFlags(flags)
	opts.store.addFlags(flags)
	mustLookup(flags, "cache-dir").Usage = "`FOLDER` for downloaded goldens, and for frontends in its subfolder frontends (default vllm-vcr in the user's cache directory)"
	common(flags, "pre", "nightly", "index", "frontend", "layers", "engine", "model", "report-dir", "report-json")
	return cmd
}

// checkArguments refuses flags that cannot be meant together.
func (opts *driftOptions) checkArguments(args []string) error {
	named := len(args) > 0
	isWheel := named && isWheel(args[0])
	request := &opts.request
	switch {
	case len(opts.layers) == 0:
		return errors.New("--layers is empty: nothing would be checked")
	case request.Frontend != "" && isWheel:
		return fmt.Errorf("--frontend and %s: give only one of them", args[0])
	case isWheel && (request.Index != "" || request.Nightly):
		return fmt.Errorf("--index and --nightly need a version, but %s is a wheel", args[0])
	case opts.store.Offline && request.Frontend == "" && !(isWheel && !isURL(args[0])):
		return errors.New("--offline: the frontend of a release is downloaded: give a local one with --frontend")
	case request.Candidates && (named || request.Frontend != ""):
		return errors.New("--pre selects the newest release of the index, but another release is given")
	case opts.model != "" && !exists(filepath.Join(opts.model, "config.json")):
		return fmt.Errorf("--model %s: want a folder with config.json and tokenizer.json", opts.model)
	}
	return nil
}

func runDriftCheck(ctx context.Context, env *environment, opts *driftOptions, args []string) error {
	started := env.now()
	if err := opts.checkArguments(args); err != nil {
		return err
	}
	if err := opts.store.resolve(env, &opts.in); err != nil {
		return err
	}
	if err := opts.choose(args); err != nil {
		return err
	}
	matrix, mf, err := loadInputs(env, &opts.in)
	if err != nil {
		return err
	}
	defer opts.report.openDir()()
	if err := opts.prepare(env, matrix, mf); err != nil {
		return err
	}
	r := &drift.Report{Compat: matrix.File}
	subject, failed := drift.Choose(ctx, opts.request, matrix, mf, env.log)
	if r.Subject, r.Failed = subject, failed; failed != nil {
		r.Result.Verdict, r.Result.Frontend = drift.Unknown, subject.Local
	} else {
		steps := openSteps(env)
		opts.check.Subject, opts.check.Layers = subject, as[drift.LayerName](opts.layers)
		opts.check.Step = func(layer drift.LayerName, step string) { steps.show(string(layer), step) }
		engines := &opts.check.Engines.Options
		engines.Index, engines.Log = opts.request.Index, env.log
		engines.Progress = func(step string) { steps.show("engine "+subject.Build.String(), step) }
		r.Result = opts.check.Run(ctx)
		steps.close()
	}
	r.Repeat, r.Took = opts.request.Repeat(subject.Build), time.Since(started)
	if err := opts.document(env, r, newReportMeta(env, opts.report, &opts.in, started, matrix.File, mf.File)); err != nil {
		return err
	}
	return opts.print(env, r)
}

// prepare completes what all layers have in common.
func (opts *driftOptions) prepare(env *environment, matrix *compat.Matrix, mf *manifest.Manifest) (err error) {
	if opts.check.VCR, err = os.Executable(); err != nil {
		return infra(err)
	}
	if opts.check.Cache, err = driftCache(opts.store.Cache); err != nil {
		return err
	}
	if opts.model == "" {
		if opts.model, err = modelIn(opts.check.Cache); err != nil {
			return infra(fmt.Errorf("model directory: %w", err))
		}
	}
	if opts.model, err = filepath.Abs(opts.model); err != nil {
		return err
	}
	live := &opts.check.Live
	*live = drift.Live{Matrix: matrix, Manifest: mf, Model: opts.model, Log: env.log, Progress: func(r conformance.Result) { logResult(env, r) }}
	if live.Store, err = openStore(env, &opts.store); err != nil || opts.expectations == "" {
		return err
	}
	_, live.Expectations, err = expectations(env, opts.expectations, false, matrix, mf, conformance.Selection{})
	return err
}

// choose reads which release the arguments name.
func (opts *driftOptions) choose(args []string) (err error) {
	r := &opts.request
	switch {
	case len(args) == 0:
	case isWheel(args[0]):
		r.Wheel = args[0]
	case r.Nightly:
		r.Build, err = compat.ParseBuild(args[0])
	default:
		matrix, _ := loadCompat(opts.in.compat) // its diagnostics are printed when it is used
		r.Build.Version, err = compat.ParseVersion(releaseNamed(args[0], matrix))
	}
	return err
}

// isWheel reports whether an argument names a wheel, by a URL or a path, rather than a version.
func isWheel(arg string) bool { return isURL(arg) || strings.HasSuffix(arg, ".whl") }

func isURL(arg string) bool { return strings.Contains(arg, "://") }

// bodyLimit is how long the text of an issue may be, in bytes: GitHub refuses more than 65,536 characters.
const bodyLimit = 60_000

// document adds the reports on all cases that ran.
func (opts *driftOptions) document(env *environment, r *drift.Report, meta report.Meta) (err error) {
	meta.Arguments = opts.report.command("vllm-vcr", "drift", "check")
	given := opts.report.given
	flags := slices.Concat(repeated(given, "compat", "manifest", "expectations"), []string{"--enforce", string(conformance.EnforceAll)}, repeated(given, storeFlags...))
	var parts, stable []report.Named
	for _, layer := range r.Result.Layers {
		for _, ran := range layer.Reports {
			ran.Flags = slices.Concat(flags, ran.Flags)
			parts = append(parts, report.Named{Name: string(layer.Name), Document: report.New(ran, meta)})
			fixed := meta
			fixed.Deterministic = true
			stable = append(stable, report.Named{Name: string(layer.Name), Document: report.New(ran, fixed)})
		}
	}
	if len(parts) == 0 {
		return nil
	}
	if r.Runs, err = report.Merge(parts); err == nil {
		r.Stable, err = report.Merge(stable)
	}
	return err
}

// print writes everything of a finished check. What cannot be written keeps neither the others from it nor a found
// drift from its exit code.
func (opts *driftOptions) print(env *environment, r *drift.Report) error {
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
		failed = append(failed, r.WriteDir(opts.report.opened, cmp.Or(opts.report.annotateFile, workflowFile(env), "compat.toml"), buildVersion()))
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
		failed = append(failed, err, setOutputs(env, outputs...))
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
