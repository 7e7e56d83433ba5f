package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/upstream/drift"
	"github.com/vllm-vcr/conformance/internal/upstream/extract"
	"github.com/vllm-vcr/conformance/internal/upstream/wirediff"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// What makes drift diff end with exit code 1.
const (
	failBreaking = "breaking"
	failAny      = "any"
	failNever    = "never"
)

// diffFormats are the forms that drift diff writes.
var diffFormats = map[string]func(io.Writer, *wirediff.Diff) error{
	"text": wirediff.Text,
	"json": wirediff.JSON,
	"markdown": func(w io.Writer, d *wirediff.Diff) error {
		return wirediff.Markdown(w, d, wirediff.MarkdownLimit)
	},
	"sarif": func(w io.Writer, d *wirediff.Diff) error { return wirediff.SARIF(w, d, buildVersion()) },
}

// diffOptions are the flags of drift diff.
type diffOptions struct {
	format string
	output string
	failOn string
	index  string
}

func newDriftDiffCommand(env *environment) *cobra.Command {
	var opts diffOptions
	cmd := &cobra.Command{
		Use:   "diff A B",
		Short: "Say what changed on the wire from one release to another, and who fails of it",
		Long: "Compare two wire profiles. Each change says whom it breaks of those who were written for A and meet B: engines,\n" +
			"frontends, taps (consumers of KV events among them), or nobody; why; where upstream declares it; and what\n" +
			"this build needs for it.\n\n" +
			"A and B are each a line of this build (0.33, no network), a release (0.33.0), a wheel, a folder with the\n" +
			"sources, a URL, or a profile that drift extract wrote (FILE.json).\n\n" +
			"Exit codes: 0 nothing breaks, 1 something does, 3 a side could not be read, or not all of it. --fail-on any\n" +
			"makes every change exit code 1, --fail-on never none: what could not be read is 3 in any case.",
		Example: "  vllm-vcr drift diff 0.32 0.33\n" +
			"  vllm-vcr drift diff 0.33 0.34.0rc1 --format markdown -o changes.md\n" +
			"  vllm-vcr drift diff 0.27.0 0.27.1 --fail-on any",
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runDriftDiff(cmd.Context(), env, opts, args[0], args[1])
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&opts.format, "format", "text", "text, json, markdown (at most 60 kB), or sarif")
	flags.StringVarP(&opts.output, "output", "o", "", "write to this file instead of stdout")
	flags.StringVar(&opts.failOn, "fail-on", failBreaking, "what makes the exit code 1: breaking, any, never")
	flags.StringVar(&opts.index, "index", "", "package index for releases (default as for drift check)")
	return cmd
}

func runDriftDiff(ctx context.Context, env *environment, opts diffOptions, from, to string) error {
	if _, err := chooseOne("--fail-on", opts.failOn, failBreaking, failAny, failNever); err != nil {
		return err
	}
	if _, err := chooseOne("--format", opts.format, "text", "json", "markdown", "sarif"); err != nil {
		return err
	}
	before, gapsBefore, err := diffSide(ctx, env, from, opts.index)
	if err != nil {
		return err
	}
	after, gapsAfter, err := diffSide(ctx, env, to, opts.index)
	if err != nil {
		return err
	}
	d := wirediff.Compare(before, after)
	d.Gaps = append(append(d.Gaps, gapsBefore...), gapsAfter...)
	if err := writeDiff(env, opts, d); err != nil {
		return err
	}
	return opts.outcome(d)
}

func writeDiff(env *environment, opts diffOptions, d *wirediff.Diff) error {
	write := func(w io.Writer) error { return diffFormats[opts.format](w, d) }
	if err := writeResult(env, opts.output, write); err != nil {
		return exitError{conformance.ExitInfra, err}
	}
	return nil
}

// outcome is the exit code of a comparison that was written.
func (opts *diffOptions) outcome(d *wirediff.Diff) error {
	switch {
	case len(d.Gaps) > 0:
		return exitError{conformance.ExitInfra, fmt.Errorf(
			"not all could be read: there may be more changes than these: %s", d.Headline())}
	case opts.failOn == failBreaking && d.Verdict() == wirediff.Breaks, opts.failOn == failAny && len(d.Changes) > 0:
		return exitError{conformance.ExitFail, errReported}
	}
	return nil
}

// linePattern is the name of a line.
var linePattern = regexp.MustCompile(`^v?[0-9]+\.[0-9]+$`)

// diffSide is a profile that an argument names, and what could not be read of it.
func diffSide(ctx context.Context, env *environment, name, index string) (*protocol.Profile, []wirediff.Gap, error) {
	if linePattern.MatchString(name) {
		p, err := protocol.LoadProfile(name)
		if err != nil {
			err = fmt.Errorf("%w: of another line name a release, as %s.0", err, name)
		}
		return p, nil, err
	}
	if strings.HasSuffix(name, ".json") {
		p, err := readProfile(name)
		if err != nil {
			return nil, nil, err
		}
		if err := plausible(p); err != nil {
			return nil, nil, exitError{conformance.ExitInfra, fmt.Errorf("%s: %w", name, err)}
		}
		return p, nil, nil
	}
	if protocol.HasProfile(name) {
		if p, err := protocol.LoadProfile(name); err == nil && p.Version == strings.TrimPrefix(name, "v") {
			return p, nil, nil
		}
	}
	return extractSide(ctx, env, name, index)
}

// plausible refuses a profile that no release has: a comparison with it would say nothing.
func plausible(p *protocol.Profile) error {
	if line := protocol.LineOf(p.Version); line == p.Version || line != p.Line {
		return fmt.Errorf("it is of line %q and release %q: want a release of the line", p.Line, p.Version)
	}
	for _, name := range slices.Sorted(maps.Keys(p.Structs)) {
		s := p.Structs[name]
		if s.Encoding != "array" && s.Encoding != "map" {
			return fmt.Errorf("struct %q has the encoding %q: want array or map", name, s.Encoding)
		}
		seen := map[string]bool{}
		for _, f := range s.Fields {
			if seen[f.Name] {
				return fmt.Errorf("struct %q has the field %q twice", name, f.Name)
			}
			seen[f.Name] = true
		}
	}
	return nil
}

// extractSide reads the sources of a release.
func extractSide(ctx context.Context, env *environment, name, index string) (*protocol.Profile, []wirediff.Gap, error) {
	profile, gaps, err := extractProfile(ctx, env, name, index, extract.Options{})
	if err != nil {
		return nil, nil, err
	}
	return profile, drift.Gaps(profile, gaps), nil
}
