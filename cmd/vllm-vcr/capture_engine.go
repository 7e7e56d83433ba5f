package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
	"github.com/vllm-vcr/conformance/internal/base/jsonout"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/capture/local"
	"github.com/vllm-vcr/conformance/internal/upstream/drift"
)

// engineOptions are the flags of the folder and of the index of engines for CPUs.
type engineOptions struct{ dir, index string }

func newCaptureEngineCommand(env *environment) *cobra.Command {
	var opts engineOptions
	var frontendOnly, lock, asJSON bool
	cmd := &cobra.Command{
		Use:   "engine VERSION…",
		Short: "Install released engines that run on a CPU, and their frontends",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runCaptureEngine(env, asJSON, releasesOf(args), func(s *steps, version string) (engineJSON, string, error) {
				if lock {
					return opts.lock(cmd.Context(), env, s, version, frontendOnly)
				}
				return opts.install(cmd.Context(), s, version, frontendOnly)
			})
		},
	}
	opts.addFlags(cmd.Flags())
	cmd.Flags().BoolVar(&frontendOnly, "frontend-only", false, "install only vllm-rs: at most 100 MB, and no Python is needed")
	cmd.Flags().BoolVar(&lock, "lock", false, "write the digests of each release and, without --frontend-only, of the packages of its engine; install nothing")
	addJSONFlag(cmd.Flags(), &asJSON)
	return cmd
}

func (opts *engineOptions) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&opts.dir, "peers", "", peersUsage)
	flags.StringVar(&opts.index, "index", "", indexUsage)
}

// runCaptureEngine does something for each release, and prints it.
func runCaptureEngine(env *environment, asJSON bool, versions []string, do func(s *steps, version string) (engineJSON, string, error)) error {
	steps := openSteps(env)
	defer steps.close()
	result := enginesJSON{Schema: schemaOf("capture-engine")}
	for _, version := range versions {
		done, text, err := do(steps, version)
		if err != nil {
			return err
		}
		if result.Engines = append(result.Engines, done); asJSON {
			continue
		}
		if _, err := fmt.Fprintln(env.stdout, safetext.Line(text)); err != nil {
			return err
		}
	}
	if asJSON {
		return jsonout.Write(env.stdout, result)
	}
	return nil
}

// install installs the engine of a release, or its frontend alone.
func (opts engineOptions) install(ctx context.Context, s *steps, version string, frontendOnly bool) (engineJSON, string, error) {
	done := engineJSON{Kind: "engine"}
	what := ""
	var err error
	if frontendOnly {
		done.Kind = "frontend"
		done.Engine, err = local.EnsureFrontend(ctx, opts.options(s, done.Kind, version))
		err, what = engineError(err), done.VLLMRS
	} else {
		done.Engine, err = opts.ensure(ctx, s, version)
		what = fmt.Sprintf("%s (%s)", done.Home, done.Origin)
	}
	state := "installed already"
	if done.Installed {
		state = "installed"
	}
	return done, fmt.Sprintf("%s %s: %s: %s", done.Kind, done.Release, state, what), err
}

// lock writes the file with the digests of a release.
func (opts engineOptions) lock(ctx context.Context, env *environment, s *steps, version string, frontendOnly bool) (engineJSON, string, error) {
	release, err := local.Lock(ctx, opts.options(s, "lock", version), frontendOnly)
	if err != nil {
		return engineJSON{}, "", engineError(err)
	}
	tree := drift.FindTree(".", "")
	if env.profilesNamed {
		tree = tree.WithProfiles(env.profiles)
	}
	path := tree.Release(version)
	err = os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = atomicfile.Write(path, release.Text(), 0o644)
	}
	done := engineJSON{Kind: "lock", Engine: local.Engine{Release: version}, LockFile: path, Wheels: len(release.Wheels)}
	return done, fmt.Sprintf("release %s: %s: %s", version, path, safetext.Count(done.Wheels, "wheel")), infra(err)
}

// ensure installs an engine unless it is there.
func (opts engineOptions) ensure(ctx context.Context, s *steps, release string) (local.Engine, error) {
	engine, err := local.Ensure(ctx, opts.options(s, "engine", release))
	return engine, engineError(err)
}

// packages installs what an engine needs in addition to its own packages, unless it is there.
func (opts engineOptions) packages(ctx context.Context, s *steps, e local.Engine, lines []string) (string, error) {
	dir, err := local.EnsurePackages(ctx, opts.options(s, "packages", e.Release), e, lines)
	return dir, engineError(err)
}

func (opts engineOptions) options(s *steps, kind, release string) local.EngineOptions {
	return local.EngineOptions{
		Release: release, Dir: opts.dir, Index: opts.index, Log: s.env.log,
		Progress: func(step string) { s.show(kind+" "+release, step) },
	}
}

// engineError gives the error of an installation its exit code.
func engineError(err error) error {
	if err == nil || errors.Is(err, local.ErrOptions) {
		return err
	}
	return infra(err)
}
