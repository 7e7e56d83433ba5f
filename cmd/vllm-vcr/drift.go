package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/drift"
	"github.com/vllm-vcr/conformance/internal/pypi"
	"github.com/vllm-vcr/conformance/internal/report"
	"github.com/vllm-vcr/conformance/internal/vllmrs"
	"github.com/vllm-vcr/conformance/manifest"
)

// driftFlags are the flags of drift check.
type driftFlags struct {
	in           inputs
	index        string
	pre          bool
	frontend     string
	model        string
	store        storeFlags
	expectations string
	report       reportFlags
}

func (a *app) driftCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "drift",
		Short: "Tell whether a release of vLLM still speaks what this build knows",
	}, a.driftCheckCommand())
}

func (a *app) driftCheckCommand() *cobra.Command {
	var f driftFlags
	cmd := &cobra.Command{
		Use:   "check [VERSION]",
		Short: "Put the frontend of a release before the player, and replay the goldens behind it",
		Long: "Take vllm-rs out of the wheel of a release, by default the newest stable one of the package index, run the\n" +
			"frontend suite on it, and replay the goldens of its line behind it. A release without a line of its own is\n" +
			"judged as the newest line before it. Ends with one line: drift: none (exit code 0), found (1) or unknown (3,\n" +
			"or 4 when nothing was asserted), and why.\n\n" +
			"The binary that is downloaded runs with the rights of this command: run it where there are no secrets.\n" +
			"There are wheels for linux only. docs/drift.md has more.",
		Example: "  vllm-vcr drift check\n" +
			"  vllm-vcr drift check 0.33.0 --report-dir report\n" +
			"  vllm-vcr drift check --frontend ./vllm-rs",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.driftCheck(cmd.Context(), f, args) },
	}
	flags := cmd.Flags()
	f.in.addFlags(flags)
	flags.StringVar(&f.index, "index", "", "package index that speaks PEP 691 (default $PIP_INDEX_URL, $UV_DEFAULT_INDEX, $UV_INDEX_URL, else "+pypi.DefaultURL+")")
	flags.BoolVar(&f.pre, "pre", false, "the newest release may be a candidate")
	flags.StringVar(&f.frontend, "frontend", "", "look at this vllm-rs rather than one of the index; VERSION names its release if it does not tell (before 0.29)")
	flags.StringVar(&f.model, "model", "", "model directory for the frontend (default the one in the binary)")
	flags.StringVar(&f.expectations, "expectations", "", "what is known to fail (default nothing)")
	f.store.addFlags(flags)
	flags.Lookup("cache").Usage += "; frontends are kept in the folder frontends of it (default of vllm-vcr)"
	f.report.addFlags(flags)
	return cmd
}

// check refuses flags that say nothing sensible together. The version is that of the argument, or zero.
func (f *driftFlags) check(args []string) (version compat.Version, err error) {
	if err := f.report.check(); err != nil {
		return version, err
	}
	switch {
	case f.frontend != "" && f.index != "":
		return version, errors.New("--frontend and --index: a local frontend needs no index")
	case f.store.offline && f.frontend == "":
		return version, errors.New("--offline: the frontend of a release comes from the index: name one by --frontend")
	case f.pre && (len(args) > 0 || f.frontend != ""):
		return version, errors.New("--pre is for the newest release of the index, but another is named")
	case f.model != "" && !exists(filepath.Join(f.model, "config.json")):
		return version, fmt.Errorf("--model %s: want a directory with config.json and tokenizer.json", f.model)
	}
	if len(args) > 0 {
		return compat.ParseVersion(args[0])
	}
	return version, nil
}

// A driftRun is one check: what is looked at, as far as it is known, and what came out.
type driftRun struct {
	flags    driftFlags
	window   *compat.Matrix
	registry *manifest.Manifest
	cache    string // folder

	version  compat.Version
	uploaded time.Time
	line     compat.Line // that the release is judged as
	own      bool        // it is its own
	frontend drift.Frontend

	layer    drift.Layer
	document *report.Document // nil if nothing was run
	body     *report.Document // the same without what differs between equal runs
}

func (a *app) driftCheck(ctx context.Context, f driftFlags, args []string) error {
	started := time.Now()
	version, err := f.check(args)
	if err != nil {
		return err
	}
	if err := f.store.resolve(a, &f.in); err != nil {
		return err
	}
	run := &driftRun{flags: f, version: version}
	if run.window, run.registry, err = a.load(f.in); err != nil {
		return err
	}
	live, err := a.liveLayer(run)
	if err != nil {
		return err
	}
	if err := a.choose(ctx, run); err != nil {
		run.layer = drift.Unjudged(drift.LiveLayer, err)
	} else {
		live.Line, live.Binary = run.line.Name, run.frontend.Binary
		run.layer = live.Run(ctx)
	}
	if err := a.driftDocuments(run, started); err != nil {
		return err
	}
	return a.tellDrift(run)
}

// liveLayer is the layer but for what is looked at.
func (a *app) liveLayer(run *driftRun) (live drift.Live, err error) {
	f := &run.flags
	if run.cache, err = driftCache(f.store.cache); err != nil {
		return live, err
	}
	if f.model == "" {
		files, err := fs.Sub(vcr.Files, vcr.ModelPath)
		if err != nil {
			return live, err
		}
		if f.model, err = drift.Model(files, run.cache); err != nil {
			return live, exitError{conformance.ExitInfra, fmt.Errorf("model directory: %w", err)}
		}
	}
	live = drift.Live{Window: run.window, Registry: run.registry, Model: f.model, Log: a.log, Progress: a.progress}
	if live.Store, err = a.openStore(&f.store); err != nil || f.expectations == "" {
		return live, err
	}
	all, err := conformance.EveryCase(run.window, run.registry, conformance.Selection{})
	if err != nil {
		return live, err
	}
	live.Expectations, err = a.loadExpectations(f.expectations, all)
	return live, err
}

// driftCache is the folder that frontends and models are kept below.
func driftCache(named string) (string, error) {
	if named != "" {
		return filepath.Abs(named)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache directory: %w: name one by --cache", err)
	}
	return filepath.Join(dir, "vllm-vcr"), nil
}

// choose finds the frontend to look at, and the line that it is judged as.
func (a *app) choose(ctx context.Context, run *driftRun) error {
	choose := a.chooseRelease
	if run.flags.frontend != "" {
		choose = a.chooseLocal
	}
	return choose(ctx, run)
}

func (run *driftRun) chooseLine() (err error) {
	run.line, run.own, err = drift.LineFor(run.window, run.registry, run.version)
	return err
}

// chooseLocal takes the binary of --frontend.
func (a *app) chooseLocal(ctx context.Context, run *driftRun) (err error) {
	path, err := filepath.Abs(run.flags.frontend)
	if err != nil {
		return err
	}
	run.frontend.Binary = path
	if run.frontend.SHA256, err = drift.Digest(path); err != nil {
		return fmt.Errorf("--frontend: %w", err)
	}
	if run.version == (compat.Version{}) {
		if run.version, err = releaseOf(ctx, path); err != nil {
			return err
		}
	}
	return run.chooseLine()
}

// releaseOf is the release that a binary says it is of.
func releaseOf(ctx context.Context, binary string) (compat.Version, error) {
	if err := drift.Runs(ctx, binary); err != nil {
		return compat.Version{}, err
	}
	said, err := vllmrs.Version(ctx, binary)
	if err != nil {
		return compat.Version{}, fmt.Errorf("--frontend: its release is not known: name it, as drift check VERSION: %w", err)
	}
	version, err := compat.ParseVersion(said)
	if err != nil {
		return version, fmt.Errorf("--frontend: it is of no release: name one, as drift check VERSION: %w", err)
	}
	return version, nil
}

// chooseRelease takes the frontend out of the wheel of a release.
func (a *app) chooseRelease(ctx context.Context, run *driftRun) error {
	index := &pypi.Index{URL: run.flags.index, Log: a.log}
	releases, err := index.Releases(ctx, "vllm")
	if err != nil {
		return err
	}
	release, err := run.release(releases)
	if err != nil {
		return fmt.Errorf("package index %s: %w", index.Where(), err)
	}
	run.uploaded = release.Uploaded
	if run.version, err = compat.ParseVersion(release.Version); err != nil {
		return err
	}
	if err := run.chooseLine(); err != nil {
		return err
	}
	wheel, err := release.Wheel(runtime.GOOS, runtime.GOARCH)
	if err != nil {
		return fmt.Errorf("package index %s: %w", index.Where(), err)
	}
	run.frontend, err = drift.Fetch(ctx, index, wheel, run.cache, a.log)
	return err
}

// release is the one that was named, else the newest.
func (run *driftRun) release(releases []pypi.Release) (pypi.Release, error) {
	if run.version == (compat.Version{}) {
		return drift.Newest(releases, run.flags.pre)
	}
	return drift.Find(releases, run.version)
}
