package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/capture"
	"github.com/vllm-vcr/conformance/internal/capture/deploy"
	"github.com/vllm-vcr/conformance/internal/capture/local"
	"github.com/vllm-vcr/conformance/internal/capture/target"
)

// workPath is where captures of this machine keep their files.
const workPath = ".cache/goldens"

// captureRunOptions are those of capture run.
type captureRunOptions struct {
	remoteOptions
	local bool

	engine engineOptions
	here   local.Options // of a capture on this machine
	accept capture.AcceptOptions
	s3     s3Options

	repo       string
	noRegister bool
}

func newCaptureRunCommand(env *environment) *cobra.Command {
	var opts captureRunOptions
	cmd := &cobra.Command{
		Use:   "run TARGET…",
		Short: "Capture targets and register them as goldens",
		RunE: func(cmd *cobra.Command, args []string) error {
			if opts.here.BootTimeout = local.DefaultBootTimeout; cmd.Flags().Changed("start-timeout") {
				opts.here.BootTimeout = opts.jobs.run.Start
			}
			return runCaptureRun(cmd.Context(), env, opts, args)
		},
	}
	flags := cmd.Flags()
	opts.targets.addFlags(flags)
	flags.BoolVar(&opts.local, "local", false, "run on this machine, without a GPU and without a cluster")
	flags.IntVar(&opts.here.Jobs, "jobs", 1, "number of engines that run at the same time with --local; engines that share two cores distort each other's latencies")
	above0(flags, "jobs")
	opts.engine.addFlags(flags)
	grouped(flags, "Capture on this machine")
	flags.StringVar(&opts.repo, "repo", "", "`FOLDER` of the repository: its compat.toml, targets and manifest are used, and relative paths start there (default the current folder)")
	flags.StringVar(&opts.here.Dir, "work", workPath, workUsage)
	flags.BoolVar(&opts.noRegister, "no-register", false, "only record: do not check, replay or register the recordings")
	flags.StringVar(&opts.accept.Manifest, "manifest", "", editedUsage)
	flags.StringVar(&opts.accept.Goldens, "goldens", vcr.GoldensPath, "`FOLDER` to store the goldens in; bucket_path of the manifest is a path in it")
	flags.StringVar(&opts.accept.Upload, "upload", "", uploadUsage)
	flags.BoolVar(&opts.here.FailFast, "fail-fast", false, "stop all targets when one fails")
	grouped(flags, "Result")
	opts.addRunFlags(flags)
	opts.addAdmissionFlag(flags)
	opts.s3.addFlags(flags)
	common(flags, "line", "local", "jobs", "work", "no-register", "manifest", "goldens", "upload", "fail-fast", "run-id", "kubeconfig", "namespace")
	return cmd
}

func runCaptureRun(ctx context.Context, env *environment, opts captureRunOptions, args []string) error {
	if opts.repo != "" {
		if err := env.chdir(opts.repo); err != nil {
			return fmt.Errorf("--repo: %w", err)
		}
	}
	if err := loadProfilesBeside(env, cmp.Or(opts.targets.compat, vcr.CompatPath)); err != nil {
		return err
	}
	if err := opts.s3.resolve(); err != nil {
		return err
	}
	opts.accept.Manifest = cmp.Or(opts.accept.Manifest, env.getenv("CONFORMANCE_MANIFEST"), vcr.ManifestPath)
	request, err := opts.request(env, deploy.RunTargets, args)
	if err != nil {
		return err
	}
	if !opts.local {
		if request.Targets, err = forCluster(env, request.Targets); err != nil {
			return err
		}
		request.Work, request.FailFast = opts.here.Dir, opts.here.FailFast
		if request.Accept, err = opts.acceptRemotely(env); err != nil {
			return err
		}
		return callHelper(ctx, env, request)
	}
	outcomes, err := captureHere(ctx, env, opts, request.Targets)
	if err != nil {
		return err
	}
	code, err := capture.Report(env.stdout, env.stderr, outcomes)
	if ctx.Err() != nil {
		return infra(errors.New("interrupted"))
	}
	if err != nil {
		return exitError{code, err}
	}
	return nil
}

// acceptRemotely is how the helper registers recordings; nil if it does not register any.
func (opts *captureRunOptions) acceptRemotely(env *environment) (*deploy.Accept, error) {
	if opts.noRegister {
		return nil, nil
	}
	matrix, _ := loadCompat(opts.targets.compat) // its diagnostics were printed when targets were chosen
	text, err := new(inputs).read(matrix.File)
	return &deploy.Accept{
		CompatFile: matrix.File, Compat: text, Manifest: opts.accept.Manifest, Goldens: opts.accept.Goldens, Upload: opts.accept.Upload,
		S3: opts.s3.Options, RunURL: workflowRunURL(env), Profiles: env.profiles, AllProfiles: env.profilesNamed,
	}, err
}

// captureHere captures targets on this machine, and accepts the recordings once all are made.
func captureHere(ctx context.Context, env *environment, opts captureRunOptions, targets []target.Target) ([]capture.Outcome, error) {
	outcomes, err := record(ctx, env, opts, targets)
	if err != nil || opts.noRegister {
		return outcomes, err
	}
	accept := opts.accept
	accept.Matrix, _ = loadCompat(opts.targets.compat) // its diagnostics were printed when targets were chosen
	accept.NewManifest, accept.S3, accept.Run, accept.Log = true, opts.s3.Options, workflowRunURL(env), env.log
	accept.Progress = func(r conformance.Result) { logResult(env, r) }
	accept.Store = conformance.NewStore(conformance.StoreOptions{Dir: accept.Goldens, S3: opts.s3.Options, Log: env.log})
	var failed error
	for i := range outcomes {
		o := &outcomes[i]
		o.Err = cmp.Or(o.Err, failed)
		if o.Err == nil {
			began := time.Now()
			if o.Accepted, o.Err = capture.Accept(ctx, accept, o.Recording); o.Err == nil {
				capture.PrintAbout(env.stderr, o.Target, fmt.Sprintf("checked, replayed and registered in %.1f s", time.Since(began).Seconds()))
			}
		}
		if o.Err != nil && opts.here.FailFast {
			failed = errors.New("not registered, because another target failed")
		}
	}
	return outcomes, nil
}

// record captures targets on this machine, and returns what became of each, with nothing accepted yet.
func record(ctx context.Context, env *environment, opts captureRunOptions, targets []target.Target) ([]capture.Outcome, error) {
	for _, t := range targets {
		if err := local.CheckTarget(t); err != nil {
			return nil, err
		}
	}
	self, err := os.Executable()
	if err != nil {
		return nil, infra(err)
	}
	steps := openSteps(env)
	defer steps.close()
	options := opts.here
	options.Engines, options.Models, options.Packages = map[string]local.Engine{}, map[string]string{}, map[string]string{}
	options.VCR, options.Profiles, options.Log = self, env.profiles, steps.env.log
	options.Progress = func(t target.Target, step string) { steps.show(t.Name(), step) }
	for _, t := range targets {
		release, key := t.Release(), t.Model.Key
		if _, ok := options.Engines[release]; !ok {
			if options.Engines[release], err = opts.engine.ensure(ctx, steps, release); err != nil {
				return nil, err
			}
		}
		if t.Session != nil && len(t.Session.Packages) > 0 {
			lines := strings.Join(t.Session.Packages, "\n")
			if options.Packages[lines], err = opts.engine.packages(ctx, steps, options.Engines[release], t.Session.Packages); err != nil {
				return nil, err
			}
		}
		folder, isFolder := t.Model.Folder()
		if _, ok := options.Models[key]; ok || !isFolder {
			continue
		}
		if options.Models[key], err = modelFolder(folder); err != nil {
			return nil, infra(fmt.Errorf("model %s: %w", key, err))
		}
	}
	outcomes, err := local.CaptureAll(ctx, options, targets)
	if ctx.Err() != nil {
		err = errors.New("interrupted: nothing was registered")
	}
	if err != nil {
		return nil, infra(err)
	}
	return outcomes, nil
}

// modelFolder is the absolute path of a model's folder. The one in the binary is written to the cache where there is none
// of that path here.
func modelFolder(path string) (string, error) {
	dir := filepath.FromSlash(path)
	if exists(filepath.Join(dir, "config.json")) {
		return filepath.Abs(dir)
	}
	if path != vcr.ModelPath {
		return "", fmt.Errorf("there is no %s", filepath.Join(dir, "config.json"))
	}
	return acceptanceModel("")
}
