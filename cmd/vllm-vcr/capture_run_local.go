package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/capture"
	"github.com/vllm-vcr/conformance/internal/capture/cpuengine"
	"github.com/vllm-vcr/conformance/internal/capture/local"
	"github.com/vllm-vcr/conformance/internal/capture/target"
	"github.com/vllm-vcr/conformance/internal/upstream/drift"
)

// localFlags are the flags of capture run that are about this machine.
type localFlags struct {
	engine      engineFlags
	jobs        int
	bootTimeout time.Duration
	work, out   string
	noRegister  bool
}

// workPath is where captures of this machine keep their files.
const workPath = ".cache/goldens"

func (f *localFlags) addFlags(flags *pflag.FlagSet) {
	f.engine.addFlags(flags)
	flags.IntVar(&f.jobs, "jobs", 1, "with --local, how many engines run at a time: those that share two cores spoil each other's times")
	flags.DurationVar(&f.bootTimeout, "boot-timeout", local.DefaultBootTimeout, "with --local, how long an engine may take to start")
	flags.StringVar(&f.work, "work", workPath, "where recordings, raw frames and logs stay, in a folder LINE/ID each")
	flags.StringVar(&f.out, "out", "", "be in this folder: its support window, targets and registry count")
	flags.BoolVar(&f.noRegister, "no-register", false, "leave the recordings where they are")
}

// enter goes to the folder of --out.
func (f *localFlags) enter() error {
	if f.jobs < 1 {
		return fmt.Errorf("--jobs %d: want 1 or more", f.jobs)
	}
	if f.bootTimeout <= 0 {
		return fmt.Errorf("--boot-timeout %v: want more than 0", f.bootTimeout)
	}
	if f.out == "" {
		return nil
	}
	if err := os.Chdir(f.out); err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	return nil
}

// beginRegistry makes an empty registry where there is none, so that the first golden has a place.
func beginRegistry(path string) error {
	if exists(path) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, nil, 0o644)
}

// runLocal captures targets on this machine, and hands over what became of each.
func (a *app) runLocal(ctx context.Context, targets []target.Target, f localFlags, failFast bool) ([]capture.Outcome, error) {
	if len(targets) == 0 {
		return nil, errors.New("no target is chosen: nothing would be captured")
	}
	for _, t := range targets {
		if err := local.CheckTarget(t); err != nil {
			return nil, err
		}
	}
	steps := a.openSteps()
	defer steps.close()
	opt := local.Options{
		Dir: f.work, Engines: map[string]cpuengine.Engine{}, Models: map[string]string{}, Jobs: f.jobs, BootTimeout: f.bootTimeout,
		Profiles: a.profiles, FailFast: failFast, Log: a.log, Progress: func(t target.Target, step string) { steps.tell(t.Name(), step) },
	}
	var err error
	if opt.VCR, err = os.Executable(); err != nil {
		return nil, exitError{conformance.ExitInfra, err}
	}
	for _, t := range targets {
		if err := prepareLocal(ctx, a, f, steps, t, opt); err != nil {
			return nil, err
		}
	}
	outcomes, err := local.CaptureAll(ctx, opt, targets)
	if ctx.Err() != nil {
		err = errors.New("interrupted: nothing was registered")
	}
	if err != nil {
		return nil, exitError{conformance.ExitInfra, err}
	}
	return outcomes, nil
}

// timed says what it takes to accept a recording; nil stays nil.
func (a *app) timed(
	accept func(context.Context, capture.Recording) (capture.Accepted, error),
) func(context.Context, capture.Recording) (capture.Accepted, error) {
	if accept == nil {
		return nil
	}
	return func(ctx context.Context, rec capture.Recording) (capture.Accepted, error) {
		began := time.Now()
		accepted, err := accept(ctx, rec)
		if err == nil {
			a.tellTarget(rec.Target, fmt.Sprintf("checked, replayed and registered in %.1f s", time.Since(began).Seconds()))
		}
		return accepted, err
	}
}

// prepareLocal finds the engine and the model of a target.
func prepareLocal(ctx context.Context, a *app, f localFlags, s *steps, t target.Target, opt local.Options) (err error) {
	release, key := t.Release(), t.Model.Key
	if _, ok := opt.Engines[release]; !ok {
		if opt.Engines[release], err = f.engine.ensure(ctx, a, s, release); err != nil {
			return err
		}
	}
	folder, isFolder := t.Model.Folder()
	if _, ok := opt.Models[key]; ok || !isFolder {
		return nil
	}
	if opt.Models[key], err = modelFolder(folder); err != nil {
		return exitError{conformance.ExitInfra, fmt.Errorf("model %s: %w", key, err)}
	}
	return nil
}

// modelFolder is the absolute path of a model's folder. The one in the binary is laid into the cache where there is none
// of that path here.
func modelFolder(path string) (string, error) {
	dir := filepath.FromSlash(path)
	if exists(filepath.Join(dir, "config.json")) {
		return filepath.Abs(dir)
	}
	if path != vcr.ModelPath {
		return "", fmt.Errorf("there is no %s", filepath.Join(dir, "config.json"))
	}
	files, err := fs.Sub(vcr.Files, vcr.ModelPath)
	if err != nil {
		return "", err
	}
	cache, err := driftCache("")
	if err != nil {
		return "", err
	}
	return drift.Model(files, cache)
}
