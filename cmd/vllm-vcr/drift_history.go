package main

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/upstream/history"
	"github.com/vllm-vcr/conformance/internal/upstream/pypi"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// The forms of a history.
const (
	historyHTML     = "html"
	historyJSON     = "json"
	historyMarkdown = "markdown"
)

// driftHistoryOptions are the flags of drift history.
type driftHistoryOptions struct {
	index, format, output string
}

func newDriftHistoryCommand(env *environment) *cobra.Command {
	var opts driftHistoryOptions
	cmd := &cobra.Command{
		Use:   "history [RELEASE...]",
		Short: "Put the lines beside each other: what each release changed on the wire",
		Long: "Write a page that needs nothing else: a table of what each line changed, struct by struct, each change with its\n" +
			"reason, whom it breaks and its place upstream, how long every array is, which keys the handshake has, and what\n" +
			"the engine's methods answer. A reader can choose whose trouble is shown. Every cell has an address, such as\n" +
			"#0.28-EngineCoreOutput.\n\n" +
			"It has the lines that this build knows, for which no network is needed, and the releases that are named beside\n" +
			"them, as drift diff takes them: a version, a wheel, a folder, a URL, or the file of a profile.\n\n" +
			"Exit code 3: of a release not all could be read. The page is written all the same, and says what is missing.",
		Example: "  vllm-vcr drift history -o history.html\n" +
			"  vllm-vcr drift history 0.23.0 0.24.0 --format markdown",
		RunE: func(cmd *cobra.Command, args []string) error { return runDriftHistory(cmd.Context(), env, opts, args) },
	}
	flags := cmd.Flags()
	flags.StringVar(&opts.index, "index", "", "package index of named versions (default $PIP_INDEX_URL, $UV_DEFAULT_INDEX, $UV_INDEX_URL, else "+pypi.DefaultURL+")")
	flags.StringVar(&opts.format, "format", historyHTML, "form of the history: html, json, markdown")
	flags.StringVarP(&opts.output, "output", "o", "", "write it to this file instead of stdout")
	return cmd
}

func runDriftHistory(ctx context.Context, env *environment, opts driftHistoryOptions, args []string) error {
	format, err := chooseOne("--format", opts.format, historyHTML, historyJSON, historyMarkdown)
	if err != nil {
		return err
	}
	sources, err := historySources(ctx, env, opts.index, args)
	if err != nil {
		return err
	}
	h, err := history.New(sources)
	if err != nil {
		return err
	}
	write := map[string]func(io.Writer, *history.History) error{
		historyHTML: history.HTML, historyJSON: history.JSON, historyMarkdown: history.Markdown,
	}[format]
	if err := writeResult(env, opts.output, func(w io.Writer) error { return write(w, h) }); err != nil {
		return exitError{conformance.ExitInfra, fmt.Errorf("write history: %w", err)}
	}
	if n := h.Gaps(); n > 0 {
		return exitError{conformance.ExitInfra, fmt.Errorf("%d places could not be read, which the history names: what is missing may have changed", n)}
	}
	return nil
}

// historySources are the lines of this build and the releases that were named. One that is named takes the place of the same
// release of the build.
func historySources(ctx context.Context, env *environment, index string, named []string) ([]history.Source, error) {
	var sources []history.Source
	for _, name := range named {
		p, gaps, err := diffSide(ctx, env, name, index)
		if err != nil {
			return nil, err
		}
		sources = append(sources, history.Source{Profile: p, Gaps: gaps})
	}
	for _, line := range protocol.Lines() {
		p, err := protocol.LoadProfile(line)
		if err != nil {
			return nil, err
		}
		isNamed := func(s history.Source) bool { return s.Profile.Version == p.Version }
		if !slices.ContainsFunc(sources, isNamed) {
			sources = append(sources, history.Source{Profile: p})
		}
	}
	return sources, nil
}
