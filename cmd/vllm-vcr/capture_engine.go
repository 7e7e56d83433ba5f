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

// engineOptions say where engines for the CPU come from and go to.
type engineOptions struct{ dir, index string }

func newCaptureEngineCommand(env *environment) *cobra.Command {
	var opts engineOptions
	var frontendOnly, lock, asJSON bool
	cmd := &cobra.Command{
		Use:   "engine VERSION…",
		Short: "Install released engines that run on a CPU, and their frontends",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			args = releasesOf(args)
			if lock {
				return runLock(cmd.Context(), env, opts, frontendOnly, asJSON, args)
			}
			return runCaptureEngine(cmd.Context(), env, opts, frontendOnly, asJSON, args)
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

func runCaptureEngine(ctx context.Context, env *environment, opts engineOptions, frontendOnly, asJSON bool, versions []string) error {
	steps := openSteps(env)
	defer steps.close()
	result := enginesJSON{Schema: schemaOf("capture-engine")}
	for _, version := range versions {
		var engine local.Engine
		var err error
		kind, what := "engine", ""
		if frontendOnly {
			kind = "frontend"
			engine, err = local.EnsureFrontend(ctx, opts.options(steps, kind, version))
			err, what = engineError(err), engine.VLLMRS
		} else {
			engine, err = opts.ensure(ctx, steps, version)
			what = fmt.Sprintf("%s (%s)", engine.Home, engine.Origin)
		}
		if err != nil {
			return err
		}
		if result.Engines = append(result.Engines, engineJSON{Kind: kind, Engine: engine}); asJSON {
			continue
		}
		state := "installed already"
		if engine.Installed {
			state = "installed"
		}
		if _, err := fmt.Fprintln(env.stdout, safetext.Line(fmt.Sprintf("%s %s: %s: %s", kind, engine.Release, state, what))); err != nil {
			return err
		}
	}
	if asJSON {
		return jsonout.Write(env.stdout, result)
	}
	return nil
}

// runLock writes the file of each release.
func runLock(ctx context.Context, env *environment, opts engineOptions, frontendOnly, asJSON bool, versions []string) error {
	steps := openSteps(env)
	defer steps.close()
	result := enginesJSON{Schema: schemaOf("capture-engine")}
	tree := drift.FindTree(".", "")
	if env.profilesNamed {
		tree = tree.WithProfiles(env.profiles)
	}
	for _, version := range versions {
		release, err := local.Lock(ctx, opts.options(steps, "lock", version), frontendOnly)
		if err != nil {
			return engineError(err)
		}
		path := tree.Release(version)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return infra(err)
		}
		if err := atomicfile.Write(path, release.Text(), 0o644); err != nil {
			return infra(err)
		}
		if result.Engines = append(result.Engines, engineJSON{Kind: "lock", Engine: local.Engine{Release: version}, LockFile: path, Wheels: len(release.Wheels)}); asJSON {
			continue
		}
		if _, err := fmt.Fprintln(env.stdout, safetext.Line(fmt.Sprintf("release %s: %s: %s", version, path, safetext.Count(len(release.Wheels), "wheel")))); err != nil {
			return err
		}
	}
	if asJSON {
		return jsonout.Write(env.stdout, result)
	}
	return nil
}

// ensure installs an engine unless it is there.
func (opts engineOptions) ensure(ctx context.Context, s *steps, release string) (local.Engine, error) {
	engine, err := local.Ensure(ctx, opts.options(s, "engine", release))
	return engine, engineError(err)
}

// packages installs what an engine needs beside its own packages, unless it is there.
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
