package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/upstream/extract"
	"github.com/vllm-vcr/conformance/internal/upstream/pypi"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

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
		Long: "Read the Python sources of a release and print its wire profile: every struct that crosses the wire with its\n" +
			"encoding, its fields in order, their types and defaults, and where each is declared; enums, constants, utility\n" +
			"methods, and the messages without a struct. Of a release of the index a few members of one wheel are downloaded.\n" +
			"Nothing of it is run, and no Python is needed.\n\n" +
			"DIR is a checkout of vLLM, an unpacked wheel or the site-packages of an installation; --version names the release\n" +
			"of a checkout, which does not tell.\n\n" +
			"What could not be read is named on stderr with its place, and the exit code is 3: nothing is printed then, as half\n" +
			"a profile looks like a whole one, unless --partial asks for it. A release that was yanked is refused with its\n" +
			"reason, and exit code 3, unless --yanked asks for it.",
		Example: "  vllm-vcr drift extract 0.33.0 -o 0.33.json\n" +
			"  vllm-vcr drift extract --format text ./vllm-0.33.0-cp38-abi3-manylinux1_x86_64.whl\n" +
			"  vllm-vcr drift extract ~/src/vllm --version 0.34.0",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runDriftExtract(cmd.Context(), env, opts, args[0])
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&opts.output, "output", "o", "", "write the profile to this file instead of stdout")
	flags.StringVar(&opts.format, "format", "json", "json, which every command takes for a profile, or text, for people")
	flags.StringVar(&opts.index, "index", "", "package index (default $PIP_INDEX_URL, $UV_DEFAULT_INDEX, $UV_INDEX_URL, else "+pypi.DefaultURL+")")
	flags.StringVar(&opts.version, "version", "", "release that the sources in DIR are of, if they do not tell")
	flags.BoolVar(&opts.partial, "partial", false, "print what could be read of a release that could not be read as a whole; the exit code stays 3")
	flags.BoolVar(&opts.yanked, "yanked", false, "read a release that was yanked")
	return cmd
}

func runDriftExtract(ctx context.Context, env *environment, opts driftExtractOptions, name string) error {
	if opts.format != "json" && opts.format != "text" {
		return fmt.Errorf("--format %q: want json or text", opts.format)
	}
	profile, gaps, err := extractProfile(ctx, env, name, opts.index, extract.Options{Version: opts.version, Yanked: opts.yanked})
	if err != nil {
		return err
	}
	if len(gaps) == 0 || opts.partial {
		if err := writeProfile(env, opts, profile); err != nil {
			return exitError{conformance.ExitInfra, err}
		}
	}
	if len(gaps) == 0 {
		return nil
	}
	for _, g := range gaps {
		env.printErr("not read: " + g.String())
	}
	parts := "1 part of its wire is"
	if len(gaps) > 1 {
		parts = fmt.Sprintf("%d parts of its wire are", len(gaps))
	}
	return exitError{
		conformance.ExitInfra,
		fmt.Errorf("release %s could not be read as a whole: %s not known: see above", profile.Version, parts),
	}
}

// extractProfile reads the sources of a release that an argument names, and what could not be read of them, within a time.
func extractProfile(ctx context.Context, env *environment, name, index string, opt extract.Options) (*protocol.Profile, []extract.Gap, error) {
	started := time.Now()
	ctx, cancel := extract.Limited(ctx)
	defer cancel()
	opt.Index = &pypi.Index{URL: index, Log: env.log}
	release, err := extract.Open(ctx, name, opt)
	if errors.Is(err, extract.ErrNotNamed) {
		return nil, nil, err
	}
	if err != nil {
		return nil, nil, exitError{conformance.ExitInfra, err}
	}
	defer release.Close()
	if release.Warning != "" {
		env.log.Warn(release.Warning)
	}
	profile, gaps, err := extract.Read(ctx, release)
	if err != nil {
		return nil, nil, exitError{conformance.ExitInfra, err}
	}
	env.log.Info("sources read", "release", profile.Version, "bytes", release.Downloaded(), "duration", time.Since(started))
	return profile, gaps, nil
}

func writeProfile(env *environment, opts driftExtractOptions, p *protocol.Profile) error {
	write := func(w io.Writer) error { return protocol.WriteProfile(w, p) }
	if opts.format == "text" {
		write = func(w io.Writer) error { return extract.Text(w, p) }
	}
	return writeResult(env, opts.output, write)
}
