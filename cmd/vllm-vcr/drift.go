package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/atomicfile"
	"github.com/vllm-vcr/conformance/internal/upstream/drift"
	"github.com/vllm-vcr/conformance/internal/upstream/extract"
	"github.com/vllm-vcr/conformance/internal/upstream/wirediff"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// driftCache is the folder that frontends, models and sources are kept below.
func driftCache(named string) (string, error) {
	if named != "" {
		return filepath.Abs(named)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache directory: %w: give one with --cache-dir", err)
	}
	return filepath.Join(dir, "vllm-vcr"), nil
}

// writeResult writes a result to a file, which is there whole or not at all, or to stdout if none is named.
func writeResult(env *environment, path string, write func(io.Writer) error) error {
	if path == "" {
		return write(env.stdout)
	}
	return atomicfile.WriteFunc(path, 0o644, write)
}

// writeText writes a text.
func writeText(text string) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.WriteString(w, text)
		return err
	}
}

// Changes that make drift diff end with exit code 1.
const (
	failBreaking = "breaking"
	failAny      = "any"
	failNever    = "never"
)

// diffOptions are the flags of drift diff.
type diffOptions struct {
	format string
	output string
	failOn string
	strict bool
	index  string
}

func newDriftDiffCommand(env *environment) *cobra.Command {
	var opts diffOptions
	cmd := &cobra.Command{
		Use:   "diff A B",
		Short: "Compare the wire protocol of two releases, and show what the changes break",
		Args:  cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runDriftDiff(cmd.Context(), env, opts, args[0], args[1])
		},
	}
	flags := cmd.Flags()
	formatFlag(flags, &opts.format, formText, "output format: text, json, markdown (at most 60 kB) or sarif", formText, formJSON, formMarkdown, "sarif")
	flags.StringVarP(&opts.output, "output", "o", "", outputUsage)
	oneOf(flags, &opts.failOn, "fail-on", failBreaking, "changes that give exit code 1: breaking, any or never", failBreaking, failAny, failNever)
	flags.BoolVar(&opts.strict, "strict", false, "also take as breaking what fails a decoder that checks the length of arrays, as those with tuples of serde do")
	flags.StringVar(&opts.index, "index", "", indexUsage)
	return cmd
}

func runDriftDiff(ctx context.Context, env *environment, opts diffOptions, from, to string) error {
	before, err := readSide(ctx, env, from, opts.index)
	if err != nil {
		return err
	}
	after, err := readSide(ctx, env, to, opts.index)
	if err != nil {
		return err
	}
	d := wirediff.Compare(before.Profile, after.Profile)
	d.Gaps = append(append(d.Gaps, before.Gaps...), after.Gaps...)
	if opts.strict {
		d.AsStrict()
	}
	err = writeResult(env, opts.output, func(w io.Writer) error {
		switch opts.format {
		case formJSON:
			return wirediff.JSON(w, d)
		case formMarkdown:
			return wirediff.Markdown(w, d, wirediff.MarkdownLimit)
		case "sarif":
			return wirediff.SARIF(w, d, cmp.Or(workflowFile(env), "compat.toml"), buildVersion())
		}
		return wirediff.Text(w, d)
	})
	if err != nil {
		return infra(err)
	}
	switch {
	case len(d.Gaps) > 0:
		return exitError{conformance.ExitInfra, fmt.Errorf(
			"a release could not be read completely, so there may be more changes: %s", d.Headline())}
	case opts.failOn == failBreaking && d.Verdict() == wirediff.Breaks, opts.failOn == failAny && len(d.Changes) > 0:
		return exitError{conformance.ExitFail, errReported}
	}
	return nil
}

// readSide reads one side of a comparison. What is wrong with its name is an error of usage.
func readSide(ctx context.Context, env *environment, name, index string) (wirediff.Source, error) {
	side, err := drift.ReadSide(ctx, name, index, env.log)
	return side, releaseError(err)
}

// releaseError gives an error of a release its exit code.
func releaseError(err error) error {
	var unknown drift.UnknownLineError
	if err == nil || errors.Is(err, extract.ErrNotNamed) || errors.As(err, &unknown) {
		return err
	}
	return infra(err)
}

// driftExtractOptions are the flags of drift extract.
type driftExtractOptions struct {
	index, output, format, version string
	partial, yanked                bool
}

func newDriftExtractCommand(env *environment) *cobra.Command {
	var opts driftExtractOptions
	cmd := &cobra.Command{
		Use:   "extract WHEEL|VERSION|DIR|URL",
		Short: "Read the wire profile of a release from its Python sources",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.version = strings.TrimPrefix(opts.version, "v")
			return runDriftExtract(cmd.Context(), env, opts, releasesOf(args)[0])
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&opts.output, "output", "o", "", outputUsage)
	formatFlag(flags, &opts.format, formJSON, "output format: json (a profile that other commands read) or text", formJSON, formText)
	flags.StringVar(&opts.index, "index", "", indexUsage)
	flags.StringVar(&opts.version, "vllm-version", "", "vLLM `VERSION` of the sources in DIR, if they do not contain it")
	flags.BoolVar(&opts.partial, "partial", false, "print an incomplete profile too; the exit code is still 3")
	flags.BoolVar(&opts.yanked, "yanked", false, "read a yanked release too")
	return cmd
}

func runDriftExtract(ctx context.Context, env *environment, opts driftExtractOptions, name string) error {
	got, err := extract.Read(ctx, extract.Request{Name: name, Index: opts.index, Version: opts.version, Yanked: opts.yanked}, env.log)
	if err != nil {
		return releaseError(err)
	}
	if len(got.Gaps) == 0 || opts.partial {
		write := func(w io.Writer) error { return protocol.WriteProfile(w, got.Profile) }
		if opts.format == formText {
			write = writeText(extract.Text(got.Profile))
		}
		if err := writeResult(env, opts.output, write); err != nil {
			return infra(err)
		}
	}
	if len(got.Gaps) == 0 {
		return nil
	}
	for _, g := range got.Gaps {
		env.printErr("not read: " + g.String())
	}
	parts := "1 part of its protocol is"
	if len(got.Gaps) > 1 {
		parts = fmt.Sprintf("%d parts of its protocol are", len(got.Gaps))
	}
	return exitError{
		conformance.ExitInfra,
		fmt.Errorf("release %s could not be read completely: %s not known, see above", got.Profile.Version, parts),
	}
}

// driftHistoryOptions are the flags of drift history.
type driftHistoryOptions struct {
	index, format, output string
}

func newDriftHistoryCommand(env *environment) *cobra.Command {
	var opts driftHistoryOptions
	cmd := &cobra.Command{
		Use:   "history [RELEASE...]",
		Short: "Write a page with the wire changes of every line",
		RunE:  func(cmd *cobra.Command, args []string) error { return runDriftHistory(cmd.Context(), env, opts, args) },
	}
	flags := cmd.Flags()
	flags.StringVar(&opts.index, "index", "", indexUsage)
	formatFlag(flags, &opts.format, "html", "output format: html, json or markdown", "html", formJSON, formMarkdown)
	flags.StringVarP(&opts.output, "output", "o", "", outputUsage)
	return cmd
}

func runDriftHistory(ctx context.Context, env *environment, opts driftHistoryOptions, args []string) error {
	var named []wirediff.Source
	for _, name := range args {
		side, err := readSide(ctx, env, name, opts.index)
		if err != nil {
			return err
		}
		named = append(named, side)
	}
	sources, err := wirediff.WithLines(named)
	if err != nil {
		return err
	}
	h, err := wirediff.NewHistory(sources)
	if err != nil {
		return err
	}
	write := map[string]func(io.Writer) error{"html": h.HTML, formJSON: h.JSON, formMarkdown: h.Markdown}[opts.format]
	if err := writeResult(env, opts.output, write); err != nil {
		return infra(fmt.Errorf("write history: %w", err))
	}
	if n := h.Gaps(); n > 0 {
		return infra(fmt.Errorf("%d declarations could not be read, so there may be more changes: the history lists them", n))
	}
	return nil
}
