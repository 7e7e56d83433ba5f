package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/upstream/drift"
	"github.com/vllm-vcr/conformance/internal/upstream/pypi"
)

// What compat watch looks after.
const (
	watchStable = "stable"
	watchRC     = "rc"
)

// defaultIndex is what --index without a URL means.
const defaultIndex = "default"

// compatWatchOptions are the flags of compat watch.
type compatWatchOptions struct {
	in              inputs
	tagsFile, index string
	maxStable       int
	dryRun, write   bool
	outputs         bool
}

func newCompatWatchCommand(env *environment) *cobra.Command {
	var opts compatWatchOptions
	cmd := &cobra.Command{
		Use:       "watch stable|rc",
		Short:     "Update compat.toml to the current vLLM releases",
		ValidArgs: []string{watchStable, watchRC},
		Args:      watchArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return runCompatWatch(cmd.Context(), env, args[0], opts)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&opts.tagsFile, "tags-file", "", "`FILE` with the output of git ls-remote --tags")
	flags.StringVar(&opts.index, "index", "",
		"`URL` of the Python package index; --index without a URL is $PIP_INDEX_URL, else "+pypi.DefaultURL)
	flags.Lookup("index").NoOptDefVal = defaultIndex
	flags.IntVar(&opts.maxStable, "max-stable", 9, "maximum number of stable lines in compat.toml")
	flags.BoolVar(&opts.dryRun, "dry-run", false, "print what has to change and write nothing, as without --write")
	flags.BoolVar(&opts.write, "write", false, "change compat.toml")
	exclusive(flags, "write", "dry-run")
	exclusive(flags, "index", "tags-file")
	addOutputFlag(flags, &opts.outputs)
	above0(flags, "max-stable")
	grouped(flags, "Update")
	opts.in.addFlags(flags)
	return cmd
}

func watchArgs(_ *cobra.Command, args []string) error {
	if len(args) == 2 && strings.Contains(args[1], "://") {
		return fmt.Errorf("give the URL of the index as --index=%s", safetext.Line(args[1]))
	}
	if len(args) != 1 {
		return errors.New("want one argument: compat watch stable, or compat watch rc")
	}
	return oneOfWords("compat watch", args[0], []string{watchStable, watchRC})
}

func runCompatWatch(ctx context.Context, env *environment, axis string, opts compatWatchOptions) error {
	switch {
	case opts.tagsFile == "" && opts.index == "":
		return errors.New("no list of releases is given: want --index, or --tags-file FILE")
	case opts.write && opts.in.compat == "" && !exists(vcr.CompatPath):
		return fmt.Errorf("--write: there is no %s in this folder: give the file with --compat", vcr.CompatPath)
	}
	matrix, data, err := watchedMatrix(env, opts.in.compat)
	if err != nil {
		return err
	}
	list, failure, err := listReleases(ctx, env, opts)
	if err != nil {
		return err
	}
	var decision *compat.Decision
	if axis == watchRC {
		decision, err = matrix.WatchRC(list.Releases)
	} else {
		decision, err = matrix.WatchStable(list.Releases, opts.maxStable)
	}
	if err != nil {
		return exitError{failure, fmt.Errorf("%s: %w", list.Where, err)}
	}
	if err := decision.Resolve(list.CommitOf); err != nil {
		return infra(err)
	}
	for _, n := range decision.Notes {
		env.printErr("vllm-vcr: note: " + n)
	}
	return concludeWatch(env, opts, &matrixEdit{Matrix: matrix, before: data}, drift.Watch{Decision: decision, List: list})
}

// watchedMatrix loads a compat matrix without errors, and its text.
func watchedMatrix(env *environment, path string) (*compat.Matrix, []byte, error) {
	matrix, diagnostics := loadCompat(path)
	if tomlfile.HasErrors(diagnostics) {
		return nil, nil, refuse(env, matrix.File, diagnostics)
	}
	if isEmbedded(matrix.File) {
		return matrix, embedded(vcr.CompatPath), nil
	}
	data, matrix, err := compat.LoadText(matrix.File)
	return matrix, data, err
}

// listReleases lists the releases, and returns the exit code for a list that nothing can be made of.
func listReleases(ctx context.Context, env *environment, opts compatWatchOptions) (list drift.ReleaseList, failure int, err error) {
	if opts.tagsFile != "" {
		if list, err = drift.ReadTags(opts.tagsFile); err != nil {
			err = fmt.Errorf("--tags-file: %w", err)
		}
		return list, conformance.ExitUsage, err
	}
	index := &pypi.Index{Log: env.log}
	if opts.index != defaultIndex && opts.index != "true" {
		index.URL = opts.index
	}
	if list, err = drift.ListReleases(ctx, index); err != nil {
		err = infra(err)
	}
	return list, conformance.ExitInfra, err
}

// concludeWatch prints what was decided, and writes it. The outputs come before the file: after the edit the next run prints that nothing
// has changed.
func concludeWatch(env *environment, opts compatWatchOptions, edit *matrixEdit, decided drift.Watch) (err error) {
	done := "unchanged"
	if decided.Changed() {
		done = "has to change, see --write"
		if edit.after, err = compat.Rewrite(edit.File, edit.before, decided.Lines); err != nil {
			return err
		}
		if err := edit.check(env, opts.in.manifest, true); err != nil {
			return err
		}
		decided.AddToDo(edit.edited, edit.diagnostics, countGoldens(edit.mf), buildVersion())
	}
	if opts.outputs {
		if err := setOutputs(env, decided.Outputs()...); err != nil {
			return err
		}
	}
	if decided.Changed() && opts.write {
		done = "edited"
		if err := edit.write(); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(env.stdout, "%s: %s\n%s", edit.File, done, decided.Text())
	return err
}
