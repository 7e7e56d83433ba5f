package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/filedigest"
	"github.com/vllm-vcr/conformance/internal/capture/cpuengine"
	"github.com/vllm-vcr/conformance/internal/capture/local"
	"github.com/vllm-vcr/conformance/internal/frontends/vllmrs"
	"github.com/vllm-vcr/conformance/internal/report"
	"github.com/vllm-vcr/conformance/internal/upstream/drift"
	"github.com/vllm-vcr/conformance/internal/upstream/extract"
	"github.com/vllm-vcr/conformance/internal/upstream/pinned"
	"github.com/vllm-vcr/conformance/internal/upstream/pypi"
	"github.com/vllm-vcr/conformance/manifest"
)

// nightlyIndex is where the main branch of vLLM is built to.
const nightlyIndex = "https://wheels.vllm.ai/nightly"

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
	flags.BoolVar(&opts.nightly, "nightly", false, "check the newest build of the main branch, or the build VERSION; the index is --index, else "+nightlyIndex)
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
	case opts.pre && opts.nightly:
		return errors.New("--pre and --nightly: give only one of them")
	case opts.bootTimeout <= 0:
		return fmt.Errorf("--start-timeout %v: want more than 0", opts.bootTimeout)
	case opts.model != "" && !exists(filepath.Join(opts.model, "config.json")):
		return fmt.Errorf("--model %s: want a folder with config.json and tokenizer.json", opts.model)
	}
	return nil
}

// A driftRun is one check: what is looked at, as far as it is known, and what came out.
type driftRun struct {
	flags   driftOptions
	matrix  *compat.Matrix
	mf      *manifest.Manifest
	cache   string // folder
	subject driftSubject
	line    compat.Line // that the release is judged as
	own     bool        // it is its own

	failed  error // why there is no release to look at
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
	err := run.name(args)
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
	if run.failed = chooseSubject(ctx, env, run); run.failed != nil {
		run.result.Verdict = drift.Unknown
	} else if run.result, err = checkRelease(ctx, env, run, live); err != nil {
		return err
	}
	r, err := newDriftReport(env, run)
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
		Build: run.subject.build, Line: run.line, Own: run.own, Layers: wanted, Live: live, VCR: self, BootTimeout: opts.bootTimeout,
		Source: run.subject.source, Cache: run.cache,
		Frontend: func(ctx context.Context) (drift.Frontend, error) {
			return drift.Fetch(ctx, run.subject.source, run.cache, env.log)
		},
		Extract: func(ctx context.Context) (extract.Result, error) {
			request := extract.Request{Name: run.subject.source.Path}
			if request.Name == "" {
				request.Wheel, request.Index = &run.subject.source.File, run.subject.source.Index.URL
			}
			return extract.Read(ctx, request, env.log)
		},
		Step: func(layer drift.LayerName, step string) { steps.show(string(layer), step) },
		Engines: drift.Engines{Mode: drift.EngineMode(opts.engine), Options: cpuengine.Options{
			Dir: opts.peers, Index: opts.index, Log: env.log,
			Progress: func(step string) { steps.show("engine "+run.subject.build.String(), step) },
		}},
	}
	if local := run.subject.frontend; local.Binary != "" { // it has no sources beside it
		check.Frontend, check.Extract = func(context.Context) (drift.Frontend, error) { return local, nil }, nil
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

func (run *driftRun) chooseLine() (err error) {
	run.line, run.own, err = drift.LineFor(run.matrix, run.mf, run.subject.build.Version)
	return err
}

// A driftSubject is the release that is looked at.
type driftSubject struct {
	build    compat.Build
	wheel    string // path or URL, if it was named so
	uploaded time.Time
	source   pinned.Source  // of its wheel; none beside a local frontend
	frontend drift.Frontend // a local one
}

// known reports whether the release has a name yet.
func (s *driftSubject) known() bool { return s.build != (compat.Build{}) }

// String is the name of the release, or "".
func (s *driftSubject) String() string {
	if !s.known() {
		return ""
	}
	return s.build.String()
}

// isWheel reports whether an argument names a wheel, by a URL or a path, rather than a version.
func isWheel(arg string) bool { return isURL(arg) || strings.HasSuffix(arg, ".whl") }

func isURL(arg string) bool { return strings.Contains(arg, "://") }

// name takes the argument of the command.
func (run *driftRun) name(args []string) (err error) {
	if len(args) == 0 {
		return nil
	}
	if isWheel(args[0]) {
		run.subject.wheel = args[0]
		return nil
	}
	if run.flags.nightly {
		run.subject.build, err = compat.ParseBuild(args[0])
		return err
	}
	matrix, _ := loadCompat(run.flags.in.compat) // its diagnostics are printed when it is used
	version, err := compat.ParseVersion(releaseNamed(args[0], matrix))
	run.subject.build = compat.Build{Version: version}
	return err
}

// chooseSubject finds the release to look at, and the line that it is judged as.
func chooseSubject(ctx context.Context, env *environment, run *driftRun) error {
	choose := chooseRelease
	switch {
	case run.flags.frontend != "":
		choose = chooseLocalFrontend
	case run.subject.wheel != "":
		choose = chooseWheel
	}
	ctx, cancel := extract.Limited(ctx)
	defer cancel()
	return choose(ctx, env, run)
}

// chooseLocalFrontend takes the binary of --frontend.
func chooseLocalFrontend(ctx context.Context, env *environment, run *driftRun) error {
	path, err := filepath.Abs(run.flags.frontend)
	if err != nil {
		return err
	}
	s := &run.subject
	s.frontend.Binary = path
	if s.frontend.SHA256, err = filedigest.SHA256(path); err != nil {
		return fmt.Errorf("--frontend: %w", err)
	}
	run.result.Frontend = s.frontend
	if !s.known() {
		if s.build, err = releaseOf(ctx, path); err != nil {
			return err
		}
	}
	return run.chooseLine()
}

// releaseOf is the release that a binary says it is of.
func releaseOf(ctx context.Context, binary string) (compat.Build, error) {
	if err := drift.Runs(ctx, binary); err != nil {
		return compat.Build{}, err
	}
	version, err := vllmrs.Version(ctx, binary)
	if err != nil {
		return compat.Build{}, fmt.Errorf("--frontend: the release of the binary is not known: give it, as in drift check VERSION: %w", err)
	}
	build, err := compat.ParseBuild(version)
	if err != nil {
		return build, fmt.Errorf("--frontend: the binary does not report a release: give it, as in drift check VERSION: %w", err)
	}
	return build, nil
}

// chooseWheel takes a wheel that was named by its path or its URL.
func chooseWheel(ctx context.Context, env *environment, run *driftRun) error {
	s := &run.subject
	s.source = pinned.Source{Path: s.wheel}
	if isURL(s.wheel) {
		u, err := url.Parse(s.wheel)
		if err != nil {
			return fmt.Errorf("the URL of the wheel is of no use: want https")
		}
		file := pypi.File{Name: path.Base(u.Path), URL: s.wheel}
		if digest, ok := strings.CutPrefix(u.Fragment, "sha256="); ok { // as pip has it
			file.SHA256 = strings.ToLower(digest)
		}
		s.source = pinned.Source{Index: &pypi.Index{Log: env.log}, File: file}
	}
	wheel, err := s.source.Open(ctx)
	if err != nil {
		return err
	}
	defer wheel.Close()
	version, err := wheel.Version()
	if err != nil {
		return err
	}
	if s.build, err = compat.ParseBuild(version); err != nil {
		return fmt.Errorf("wheel %s: %w", wheel.File.Name, err)
	}
	return run.chooseLine()
}

// chooseRelease takes a release of the index.
func chooseRelease(ctx context.Context, env *environment, run *driftRun) error {
	index := &pypi.Index{URL: run.flags.index, Log: env.log}
	if run.flags.nightly {
		index.URL = cmp.Or(index.URL, nightlyIndex)
	}
	release, err := run.release(ctx, index)
	if err != nil {
		return err
	}
	s := &run.subject
	s.uploaded = release.Uploaded
	if s.build, err = compat.ParseBuild(release.Version); err != nil {
		return err
	}
	if err := run.chooseLine(); err != nil {
		return err
	}
	// Elsewhere too its sources can be read; that its programs do not run there, their layers say.
	wheel, err := release.Wheel("linux", runtime.GOARCH)
	if err != nil {
		return fmt.Errorf("package index %s: %w", index.Where(), err)
	}
	s.source = pinned.Source{Index: index, File: wheel}
	return nil
}

// release is the one that was named, else the newest.
func (run *driftRun) release(ctx context.Context, index *pypi.Index) (release pypi.Release, err error) {
	list := index.Releases
	if run.flags.nightly {
		list = index.ReleasesAndBuilds
	}
	releases, err := list(ctx, "vllm")
	if err != nil {
		return release, err
	}
	switch {
	case run.subject.known():
		release, err = drift.Find(releases, run.subject.build)
	case run.flags.nightly:
		release, err = drift.NewestBuild(releases)
	default:
		release, err = drift.Newest(releases, run.flags.pre)
	}
	if err != nil {
		err = fmt.Errorf("package index %s: %w", index.Where(), err)
	}
	return release, err
}

// bodyLimit is how long the text of an issue may be, in bytes: GitHub refuses more than 65,536 characters.
const bodyLimit = 60_000

// newDriftReport is the report on a check, with those of all cases that ran.
func newDriftReport(env *environment, run *driftRun) (*drift.Report, error) {
	opts, s := &run.flags, &run.subject
	r := &drift.Report{
		Build: s.build, Uploaded: s.uploaded, Wheel: cmp.Or(s.source.File.Name, filepath.Base(s.wheel)),
		Compat: run.matrix.File, Line: run.line, Own: run.own, Failed: run.failed, Result: run.result, Took: time.Since(run.started),
	}
	if s.known() && opts.frontend == "" && s.wheel == "" {
		r.Repeat = s.String()
		if opts.nightly {
			r.Repeat += " --nightly"
		}
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
	case r.Runs == nil: // else it is told with them
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
		outputs, err := driftOutputs(r)
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

// driftOutputs are what the next steps of a workflow get, beside the outputs of the report.
func driftOutputs(r *drift.Report) ([]output, error) {
	body, err := r.Issue(bodyLimit)
	verdicts := map[drift.LayerName]drift.Verdict{}
	changes := ""
	for _, l := range r.Result.Layers {
		verdicts[l.Name] = l.Verdict
		if l.Diff != nil {
			changes = strconv.Itoa(len(l.Diff.Changes))
		}
	}
	layers, failed := json.Marshal(verdicts)
	return []output{
		{"drift", string(r.Result.Verdict)},
		{"version", r.Release()},
		{"line", r.Line.Name},
		{"summary", r.Summary()},
		{"layers", string(layers)},
		{"changes", changes},
		{"wire", drift.Fingerprint(r.Result.Profile)},
		{"body", strings.ReplaceAll(body, outputFence, "(fence)")},
	}, errors.Join(err, failed)
}
