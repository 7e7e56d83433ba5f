package main

import (
	"context"
	"fmt"
	"io/fs"
	"time"

	"github.com/spf13/cobra"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/capture/local"
	"github.com/vllm-vcr/conformance/internal/upstream/acceptance"
	"github.com/vllm-vcr/conformance/internal/upstream/drift"
)

// driftAcceptOptions are the flags of drift accept.
type driftAcceptOptions struct {
	engine engineOptions
	in     inputs
	cache  string
	output string
	jobs   int
	check  bool
	client string // the frontend
	core   bool   // measure an engine core instead
}

func newDriftAcceptCommand(env *environment) *cobra.Command {
	var opts driftAcceptOptions
	cmd := &cobra.Command{
		Use:   "accept [RELEASE...]",
		Short: "Measure which engine messages the released frontend of a line accepts",
		RunE: func(cmd *cobra.Command, args []string) error {
			return runDriftAccept(cmd.Context(), env, opts, releasesOf(args))
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&opts.output, "output", "o", acceptance.Folder, "`FOLDER` of the tables")
	oneOf(flags, &opts.client, "frontend", acceptance.RustFrontend, "the frontend: "+acceptance.RustFrontend+" or "+acceptance.PythonFrontend, acceptance.RustFrontend, acceptance.PythonFrontend)
	flags.BoolVar(&opts.core, "engine-core", false, "measure the engine core: which messages of a frontend it accepts")
	flags.IntVar(&opts.jobs, "jobs", defaultAcceptJobs, "number of frontends or engines that run at the same time")
	above0(flags, "jobs")
	flags.BoolVar(&opts.check, "check", false, "compare with the existing tables, and write nothing")
	opts.engine.addFlags(flags)
	flags.StringVar(&opts.cache, "cache-dir", "", "`FOLDER` for the model of the frontends (default vllm-vcr in the user's cache directory)")
	grouped(flags, "Measurement")
	opts.in.addFlags(flags)
	return cmd
}

func runDriftAccept(ctx context.Context, env *environment, opts driftAcceptOptions, releases []string) error {
	if opts.core {
		opts.client = acceptance.EngineCore
	}
	if len(releases) == 0 {
		matrix, _, err := loadInputs(env, &opts.in)
		if err != nil {
			return err
		}
		for _, line := range matrix.Lines {
			if version, err := compat.ParseVersion(line.Tag); err == nil && !compat.IsTracker(line.Name) {
				releases = append(releases, version.String())
			}
		}
	}
	model, err := acceptanceModel(opts.cache)
	if err != nil {
		return infra(fmt.Errorf("model directory: %w", err))
	}
	var changed []string
	for _, release := range releases {
		table, err := measureAcceptance(ctx, env, opts, release, model)
		if err != nil {
			return infra(fmt.Errorf("%s: %w", release, err))
		}
		fmt.Fprintf(env.stdout, "%s %s:", opts.client, release)
		for i, o := range acceptance.Outcomes {
			fmt.Fprintf(env.stdout, "%s %d %s", []string{"", ","}[min(i, 1)], table.Count(o), o)
		}
		fmt.Fprintln(env.stdout)
		path, same, err := table.Keep(opts.output, opts.check)
		if err != nil {
			return infra(err)
		}
		if !same {
			changed = append(changed, path)
		}
	}
	if opts.check && len(changed) > 0 {
		return exitError{conformance.ExitFail, fmt.Errorf("the outcomes differ from those in %v: run the command without --check to write them, and review the difference", changed)}
	}
	return nil
}

// acceptanceModel is the folder of the model that frontends are given.
func acceptanceModel(named string) (string, error) {
	cache, err := driftCache(named)
	if err != nil {
		return "", err
	}
	return modelIn(cache)
}

// modelIn is the folder of the model of the binary in a cache, to which it is written unless it is there.
func modelIn(cache string) (string, error) {
	files, err := fs.Sub(vcr.Files, vcr.ModelPath)
	if err != nil {
		return "", err
	}
	return drift.Model(files, cache)
}

// defaultAcceptJobs is how many frontends are measured at a time.
const defaultAcceptJobs = 4

// measureAcceptance makes the table of a release.
func measureAcceptance(ctx context.Context, env *environment, opts driftAcceptOptions, release, model string) (*acceptance.Table, error) {
	steps := openSteps(env)
	defer steps.close()
	started, tenth := time.Now(), 0
	return acceptance.Measurement{
		Release: release, Peer: opts.client, Model: model, Workers: opts.jobs, Log: env.log,
		Frontend: func(ctx context.Context) (string, error) {
			frontend, err := local.EnsureFrontend(ctx, opts.engine.options(steps, "frontend "+release, release))
			return frontend.VLLMRS, err
		},
		Python: func(ctx context.Context) (string, error) {
			engine, err := opts.engine.ensure(ctx, steps, release)
			return engine.Python, err
		},
		Progress: func(done, of int) {
			if now := 10 * done / of; now > tenth {
				tenth = now
				steps.show(opts.client+" "+release, fmt.Sprintf("%d of %d messages after %.0f s", done, of, time.Since(started).Seconds()))
			}
		},
	}.Make(ctx)
}
