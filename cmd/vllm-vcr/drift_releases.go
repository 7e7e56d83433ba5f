package main

import (
	"context"
	"encoding/json"

	"github.com/spf13/cobra"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/upstream/canary"
	"github.com/vllm-vcr/conformance/internal/upstream/pypi"
)

// driftReleasesOptions are the flags of drift releases.
type driftReleasesOptions struct {
	in      inputs
	index   string
	nightly bool
	outputs bool
}

func newDriftReleasesCommand(env *environment) *cobra.Command {
	var opts driftReleasesOptions
	cmd := &cobra.Command{
		Use:   "releases",
		Short: "Print the releases that are worth a look, as the matrix of a workflow",
		Long: "Print one line of JSON: an array with an object for each release that a nightly check should look at, the newest\n" +
			"first, with line, version, kind and check, which is the argument of drift check.\n\n" +
			"known      the release that a line of compat.toml stands for, when there is no newer one\n" +
			"patch      the newest release of a line of compat.toml, when it is another\n" +
			"added      the newest release of a line that is newer than those of compat.toml\n" +
			"candidate  the newest release candidate, when it is newer than all releases; its line is rc\n" +
			"nightly    the nightly build, which is looked for by drift check itself; its line is nightly\n\n" +
			"--github-output sets matrix, the same array, and adopt, an array of those that drift adopt would bring in: of\n" +
			"the kinds patch and added, the oldest first.\n" +
			"Exit code 3: the index could not be read.",
		Example: "  vllm-vcr drift releases --github-output",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return runDriftReleases(cmd.Context(), env, opts) },
	}
	flags := cmd.Flags()
	opts.in.addFlags(flags)
	flags.StringVar(&opts.index, "index", "", "package index (default $PIP_INDEX_URL, $UV_DEFAULT_INDEX, $UV_INDEX_URL, else "+pypi.DefaultURL+")")
	flags.BoolVar(&opts.nightly, "nightly", true, "the nightly build too")
	addOutputFlag(flags, &opts.outputs)
	return cmd
}

func runDriftReleases(ctx context.Context, env *environment, opts driftReleasesOptions) error {
	window, _, err := loadInputs(env, opts.in)
	if err != nil {
		return err
	}
	index := &pypi.Index{URL: opts.index, Log: env.log}
	published, err := index.Releases(ctx, "vllm")
	if err != nil {
		return exitError{conformance.ExitInfra, err}
	}
	var known []compat.Release
	for _, r := range published {
		v, err := compat.ParseVersion(r.Version)
		if err != nil {
			return exitError{conformance.ExitInfra, err}
		}
		known = append(known, compat.Release{Version: v, Yanked: r.Yanked})
	}
	rows, err := canary.Releases(window, known, opts.nightly)
	if err != nil {
		return exitError{conformance.ExitInfra, err}
	}
	if opts.outputs {
		adopt, err := json.Marshal(canary.ToAdopt(rows))
		if err != nil {
			return err
		}
		if err := setOutputs(env, output{"adopt", string(adopt)}); err != nil {
			return err
		}
	}
	return printMatrix(env, rows, opts.outputs)
}
