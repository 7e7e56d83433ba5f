package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
	"github.com/vllm-vcr/conformance/internal/capture/cpuengine"
	"github.com/vllm-vcr/conformance/internal/upstream/acceptance"
	"github.com/vllm-vcr/conformance/internal/upstream/drift"
)

// driftAcceptOptions are the flags of drift accept.
type driftAcceptOptions struct {
	engine  engineOptions
	in      inputs
	cache   string
	output  string
	workers int
	check   bool
}

func newDriftAcceptCommand(env *environment) *cobra.Command {
	var opts driftAcceptOptions
	cmd := &cobra.Command{
		Use:   "accept [RELEASE...]",
		Short: "Measure which messages of an engine the released frontend of a line takes",
		Long: "Play the engine to the released vllm-rs of each line, or of the releases that are named, and send it every place of\n" +
			"HELLO, the registration, READY, EngineCoreOutputs and the answers to calls in one variant at a time: nil, missing, of\n" +
			"another kind, wider, longer, with a key more, with a wrong value. The line's profile says which places there are.\n" +
			"What became of the frontend is written into a table for each release, RELEASE-vllm-rs.txt:\n\n" +
			"  served   its client is answered as without the variant\n" +
			"  altered  its client is answered with something else\n" +
			"  failed   its client gets an error, or no answer; the frontend serves on\n" +
			"  dead     the frontend serves nobody any more, or does not begin to\n\n" +
			"A release takes some minutes. docs/drift.md has more. What is downloaded runs with the rights of this command.\n\n" +
			"Exit codes: 0 the tables are written, 1 --check found other outcomes, 3 a frontend could not be measured.",
		Example: "  vllm-vcr drift accept\n" +
			"  vllm-vcr drift accept 0.33.0 --check",
		RunE: func(cmd *cobra.Command, args []string) error { return runDriftAccept(cmd.Context(), env, opts, args) },
	}
	flags := cmd.Flags()
	opts.engine.addFlags(flags)
	opts.in.addFlags(flags)
	flags.StringVar(&opts.cache, "cache", "", "folder for the model that frontends are given (default that of vllm-vcr in the cache directory)")
	flags.StringVarP(&opts.output, "output", "o", acceptance.Folder, "folder of the tables")
	flags.IntVar(&opts.workers, "workers", defaultAcceptWorkers, "how many frontends run at a time")
	flags.BoolVar(&opts.check, "check", false, "write nothing, and compare with the tables that are there")
	return cmd
}

func runDriftAccept(ctx context.Context, env *environment, opts driftAcceptOptions, releases []string) error {
	if opts.workers < 1 {
		return fmt.Errorf("--workers %d: want 1 or more", opts.workers)
	}
	if len(releases) == 0 {
		window, _, err := loadInputs(env, &opts.in)
		if err != nil {
			return err
		}
		for _, line := range window.Lines {
			if version, err := compat.ParseVersion(line.Tag); err == nil && !compat.IsTracker(line.Name) {
				releases = append(releases, version.String())
			}
		}
	}
	model, err := acceptanceModel(opts.cache)
	if err != nil {
		return exitError{conformance.ExitInfra, fmt.Errorf("model directory: %w", err)}
	}
	slices.SortFunc(releases, acceptance.CompareVersions) // the table of a release has what differs from the one before it
	var changed []string
	for _, release := range releases {
		table, err := measureAcceptance(ctx, env, opts, release, model)
		if err != nil {
			return exitError{conformance.ExitInfra, fmt.Errorf("%s: %w", release, err)}
		}
		fmt.Fprintf(env.stdout, "vllm-rs %s:", release)
		for i, o := range acceptance.Outcomes {
			fmt.Fprintf(env.stdout, "%s %d %s", []string{"", ","}[min(i, 1)], table.Count(o), o)
		}
		fmt.Fprintln(env.stdout)
		path, same, err := keepAcceptance(table, opts.output, opts.check)
		if err != nil {
			return exitError{conformance.ExitInfra, err}
		}
		if !same {
			changed = append(changed, path)
		}
	}
	if opts.check && len(changed) > 0 {
		return exitError{conformance.ExitFail, fmt.Errorf("other outcomes than in %v: write them by the same command without --check, and look at the difference", changed)}
	}
	return nil
}

// keepAcceptance writes a table into a folder, unless it is only to be compared, and tells whether it was there as it is.
func keepAcceptance(table *acceptance.Table, folder string, compare bool) (path string, same bool, err error) {
	path = filepath.Join(folder, table.Name())
	others, err := acceptance.ReadTables(os.DirFS(folder))
	if err != nil {
		return path, false, fmt.Errorf("%s: %w", folder, err)
	}
	text := table.Text(acceptance.BaseOf(others, table.Frontend, table.Version))
	before, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return path, false, err
	}
	if same = bytes.Equal(before, text); same || compare {
		return path, same, nil
	}
	return path, false, errors.Join(os.MkdirAll(folder, 0o755), atomicfile.Write(path, text, 0o644))
}

// acceptAdopted measures the frontend of a line that was adopted, where the repository keeps such tables.
func (run *adoption) acceptAdopted(ctx context.Context) {
	if !exists(acceptance.Folder) || ctx.Err() != nil {
		return
	}
	model, err := acceptanceModel("")
	if err == nil {
		var table *acceptance.Table
		opts := driftAcceptOptions{engine: run.flags.engine, workers: defaultAcceptWorkers}
		if table, err = measureAcceptance(ctx, run.env, opts, run.plan.Release, model); err == nil {
			_, _, err = keepAcceptance(table, acceptance.Folder, false)
		}
	}
	if err != nil {
		run.addToDo("measure which messages its frontend takes: vllm-vcr drift accept %s: %v", run.plan.Release, oneLine(err))
	}
}

// acceptanceModel is the folder of the model that frontends are given.
func acceptanceModel(named string) (string, error) {
	cache, err := driftCache(named)
	if err != nil {
		return "", err
	}
	files, err := fs.Sub(vcr.Files, vcr.ModelPath)
	if err != nil {
		return "", err
	}
	return drift.Model(files, cache)
}

// defaultAcceptWorkers is how many frontends are measured at a time.
const defaultAcceptWorkers = 4

// measureAcceptance makes the table of a release.
func measureAcceptance(ctx context.Context, env *environment, opts driftAcceptOptions, release, model string) (*acceptance.Table, error) {
	steps := openSteps(env)
	defer steps.close()
	frontend, err := cpuengine.EnsureFrontend(ctx, opts.engine.options(steps, "frontend "+release, release))
	if err != nil {
		return nil, err
	}
	messages, err := acceptance.New(release)
	if err != nil {
		return nil, err
	}
	started, tenth := time.Now(), 0
	outcomes, err := acceptance.Rust{
		Binary: frontend.VLLMRS, Model: model, Workers: opts.workers, Log: env.log,
		Progress: func(done, of int) {
			if now := 10 * done / of; now > tenth {
				tenth = now
				steps.show("vllm-rs "+release, fmt.Sprintf("%d of %d messages after %.0f s", done, of, time.Since(started).Seconds()))
			}
		},
	}.Measure(ctx, messages)
	if err != nil {
		return nil, err
	}
	return acceptance.NewTable(acceptance.RustFrontend, release, messages, outcomes), nil
}
