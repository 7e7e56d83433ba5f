package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/capture"
	"github.com/vllm-vcr/conformance/internal/capture/local"
	"github.com/vllm-vcr/conformance/internal/capture/target"
	"github.com/vllm-vcr/conformance/internal/upstream/acceptance"
	"github.com/vllm-vcr/conformance/internal/upstream/drift"
	"github.com/vllm-vcr/conformance/internal/upstream/extract"
	"github.com/vllm-vcr/conformance/internal/upstream/pinned"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// Forms of documents.
const (
	formText     = "text"
	formJSON     = "json"
	formMarkdown = "markdown"
	formCSV      = "csv"
)

// adoptOptions are the flags of drift adopt.
type adoptOptions struct {
	repo, manifest string
	maxStable      int
	rev            string
	engineUse      drift.EngineMode
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
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runDriftAdopt(cmd.Context(), env, opts, releasesOf(args)[0])
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&opts.repo, "repo", ".", "`FOLDER` of the repository; relative paths start there")
	flags.StringVar(&opts.manifest, "manifest", "", "manifest, the `FILE` that lists the goldens; it is edited (default $CONFORMANCE_MANIFEST, else ./"+vcr.ManifestPath+" or ./manifest.toml)")
	flags.IntVar(&opts.maxStable, "max-stable", drift.DefaultLines, "maximum number of stable lines in compat.toml")
	above0(flags, "max-stable")
	flags.StringVar(&opts.rev, "rev", "", "`COMMIT` of the vLLM repository that the release was built from (default that in its wheel)")
	flags.BoolVar(&opts.validated, "fidelity-validated", false, "let the line gate, if all its targets were captured and pass")
	flags.BoolVar(&opts.prune, "prune", false, "also delete the golden files of lines that are removed")
	flags.BoolVar(&opts.dryRun, "dry-run", false, "print what would be done, and write nothing")
	grouped(flags, "Repository")
	oneOf(flags, (*string)(&opts.engineUse), "engine", drift.EngineAuto, "engine for CPUs to capture with: auto (if one is installed), install (6 GB) or never",
		drift.EngineAuto, drift.EngineInstall, drift.EngineNever)
	opts.engine.addFlags(flags)
	flags.StringVar(&opts.work, "work", workPath, workUsage)
	flags.StringVar(&opts.upload, "upload", "", uploadUsage)
	grouped(flags, "Capture")
	formatFlag(flags, &opts.format, formText, "format of the report: text, json or markdown", formText, formJSON, formMarkdown)
	flags.StringVarP(&opts.output, "output", "o", "", outputUsage)
	addOutputFlag(flags, &opts.outputs)
	grouped(flags, "Report")
	opts.store.addFlags(flags)
	common(flags, "repo", "max-stable", "fidelity-validated", "prune", "dry-run", "engine", "work", "format", "output")
	return cmd
}

// check refuses flags that cannot be meant together, before anything is read.
func (opts *adoptOptions) check() error {
	switch {
	case opts.validated && opts.engineUse == drift.EngineNever:
		return errors.New("--fidelity-validated and --engine never: give only one of them, as a line needs captured goldens to gate")
	case opts.rev != "" && (len(opts.rev) < 9 || strings.Trim(opts.rev, "0123456789abcdef") != ""):
		return fmt.Errorf("--rev %q: want a commit of 9 to 40 hexadecimal digits", opts.rev)
	}
	return nil
}

// enter goes to the folder of the repository, once the paths that begin here are known.
func (opts *adoptOptions) enter(env *environment, source string) (string, error) {
	for _, path := range []*string{&source, &opts.output} {
		if exists(source) && path == &source || *path != "" && path == &opts.output {
			absolute, err := filepath.Abs(*path)
			if err != nil {
				return "", err
			}
			*path = absolute
		}
	}
	if err := env.chdir(opts.repo); err != nil {
		return "", fmt.Errorf("--repo: %w", err)
	}
	if !exists(vcr.CompatPath) {
		return "", fmt.Errorf("--repo %s: it has no %s: the repository needs one, with at least one line", opts.repo, vcr.CompatPath)
	}
	return source, nil
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
	tree, err := adoptTree(env, opts)
	if err != nil {
		return err
	}
	profile, err := adoptedProfile(ctx, env, source, opts.engine.index)
	if err != nil {
		return err
	}
	run := &drift.Adoption{
		AdoptOptions: drift.AdoptOptions{Tree: tree, Profile: profile, Rev: opts.rev, Lines: opts.maxStable, Prune: opts.prune},
		DryRun:       opts.dryRun, Validated: opts.validated, NoEngine: opts.engineUse == drift.EngineNever,
		Targets: func() ([]target.Target, error) {
			_, file, err := targetOptions{targets: tree.Targets, compat: tree.Compat}.load(env)
			if err != nil {
				return nil, err
			}
			return file.Targets, nil
		},
		HasEngine: func(ctx context.Context) (bool, error) { return opts.hasEngine(ctx, env, profile.Version) },
		Capture: func(ctx context.Context, t target.Target) ([]capture.Outcome, error) {
			return captureHere(ctx, env, opts.captureOptions(tree), []target.Target{t})
		},
		Judge: func(ctx context.Context) (*conformance.Report, error) { return judgeTree(ctx, env, tree, &opts.store) },
	}
	if _, err := compat.ParseVersion(source); err == nil {
		run.Lock = func(ctx context.Context) (*pinned.Release, error) {
			steps := openSteps(env)
			defer steps.close()
			return local.Lock(ctx, opts.engine.options(steps, "lock", profile.Version), false)
		}
	}
	if exists(acceptance.Folder) {
		run.Measure = func(ctx context.Context, peer string) (string, error) {
			model, err := acceptanceModel("")
			if err != nil {
				return "", err
			}
			accept := driftAcceptOptions{engine: opts.engine, jobs: defaultAcceptJobs, client: peer}
			table, err := measureAcceptance(ctx, env, accept, profile.Version, model)
			if err != nil {
				return "", err
			}
			path, _, err := table.Keep(acceptance.Folder, false)
			return path, err
		}
	}
	result, code, err := run.Do(ctx)
	if err != nil {
		return exitError{code, err}
	}
	return printAdoption(env, opts, result, code)
}

// adoptTree finds the files of the repository, and takes in the lines that it has, whatever this build has: the profile goes to
// where theirs are.
func adoptTree(env *environment, opts adoptOptions) (tree drift.Tree, err error) {
	tree = drift.FindTree(".", cmp.Or(opts.manifest, env.getenv("CONFORMANCE_MANIFEST")))
	if env.profilesNamed {
		return tree.WithProfiles(env.profiles), nil
	}
	if err := loadLineProfiles(env, tree.Profiles); err != nil {
		return tree, err
	}
	env.profiles, err = filepath.Abs(tree.Profiles) // the tap is another process, and will need what is adopted
	return tree, err
}

// hasEngine reports whether there is an engine to capture with, or is to be one.
func (opts *adoptOptions) hasEngine(ctx context.Context, env *environment, release string) (bool, error) {
	if opts.engineUse == drift.EngineInstall {
		return true, nil
	}
	_, err := local.Find(ctx, local.EngineOptions{Release: release, Dir: opts.engine.dir, Index: opts.engine.index, Log: env.log})
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// captureOptions are those of capture run --local.
func (opts *adoptOptions) captureOptions(tree drift.Tree) captureRunOptions {
	run := captureRunOptions{
		engine: opts.engine, here: local.Options{Dir: opts.work, Jobs: 1, BootTimeout: local.DefaultBootTimeout}, s3: opts.store.s3,
		accept: capture.AcceptOptions{Manifest: tree.Manifest, Goldens: cmp.Or(opts.store.Dir, tree.Goldens), Upload: opts.upload},
	}
	run.targets.compat = tree.Compat
	return run
}

// judgeTree runs conform with what is in the tree now.
func judgeTree(ctx context.Context, env *environment, tree drift.Tree, from *storeOptions) (*conformance.Report, error) {
	in := inputs{compat: tree.Compat}
	if exists(tree.Manifest) {
		in.manifest = tree.Manifest
	}
	matrix, mf, err := loadInputs(env, &in)
	if err != nil {
		return nil, err
	}
	sel := conformance.Selection{Enforce: conformance.EnforceValidated}
	cases, err := conformance.NewPlan(matrix, mf, sel)
	if err != nil {
		return nil, err
	}
	all, expected, err := expectations(env, "", false, matrix, mf, sel)
	if err != nil {
		return nil, err
	}
	store, err := openStore(env, from)
	if err != nil {
		return nil, err
	}
	runner := conformance.Runner{
		Store: store, Log: env.log, Progress: func(r conformance.Result) { logResult(env, r) }, Expectations: expected, All: all,
		Subject: conformance.Description{Kind: "player"},
	}
	return runner.Run(ctx, cases), nil
}

// printAdoption writes the report, and chooses the exit code.
func printAdoption(env *environment, opts adoptOptions, r *drift.AdoptReport, code int) error {
	write := map[string]func(io.Writer) error{
		formText: r.Text, formJSON: r.JSON, formMarkdown: func(w io.Writer) error { return r.Markdown(w, bodyLimit) },
	}[opts.format]
	err := writeResult(env, opts.output, write)
	if opts.outputs {
		err = errors.Join(err, setOutputs(env, r.Outputs(bodyLimit)...))
	}
	if err != nil {
		return exitError{cmp.Or(code, conformance.ExitInfra), fmt.Errorf("write report: %w", err)}
	}
	if code != conformance.ExitOK {
		return exitError{code, errReported}
	}
	return nil
}

// adoptedProfile is the wire profile of a release: out of a file that has one, or else read from the sources of the release. What
// could not be read of them is an error, as half a profile is of no use.
func adoptedProfile(ctx context.Context, env *environment, source, index string) (*protocol.Profile, error) {
	if strings.HasSuffix(source, ".json") {
		p, err := drift.ReadProfile(source)
		return p, releaseError(err)
	}
	got, err := extract.Read(ctx, extract.Request{Name: source, Index: index}, env.log)
	if err != nil || len(got.Gaps) == 0 {
		return got.Profile, releaseError(err)
	}
	for _, g := range got.Gaps {
		env.printErr("not read: " + g.String())
	}
	return nil, exitError{conformance.ExitInfra, fmt.Errorf("release %s could not be read as a whole: %d parts of its wire are not "+
		"known, see above: nothing was written", got.Profile.Version, len(got.Gaps))}
}
