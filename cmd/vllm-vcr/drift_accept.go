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
	"github.com/vllm-vcr/conformance/internal/base/plural"
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
	flags.IntVar(&opts.workers, "workers", 4, "how many frontends run at a time")
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
	cache, err := driftCache(opts.cache)
	if err != nil {
		return err
	}
	files, err := fs.Sub(vcr.Files, vcr.ModelPath)
	if err != nil {
		return err
	}
	model, err := drift.Model(files, cache)
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
		others, err := acceptance.ReadTables(os.DirFS(opts.output))
		if err != nil {
			return exitError{conformance.ExitInfra, fmt.Errorf("%s: %w", opts.output, err)}
		}
		text := table.Text(acceptance.BaseOf(others, table.Frontend, release))
		path := filepath.Join(opts.output, table.Name())
		before, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return exitError{conformance.ExitInfra, err}
		}
		if !bytes.Equal(before, text) {
			changed = append(changed, path)
		}
		if opts.check {
			continue
		}
		if err := errors.Join(os.MkdirAll(opts.output, 0o755), atomicfile.Write(path, text, 0o644)); err != nil {
			return exitError{conformance.ExitInfra, err}
		}
	}
	if opts.check && len(changed) > 0 {
		return exitError{conformance.ExitFail, fmt.Errorf("other outcomes than in %v: write them by the same command without --check, and look at the difference", changed)}
	}
	return nil
}

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
	table := acceptance.NewTable(acceptance.RustFrontend, release, messages, outcomes)
	count := map[acceptance.Outcome]int{}
	for _, o := range outcomes {
		count[o]++
	}
	fmt.Fprintf(env.stdout, "vllm-rs %s: %s", release, plural.Count(len(outcomes)-count[""], "message"))
	for _, o := range slices.Clone(acceptance.Outcomes) {
		fmt.Fprintf(env.stdout, ", %d %s", count[o], o)
	}
	fmt.Fprintln(env.stdout)
	return table, nil
}
