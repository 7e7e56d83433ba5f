package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/jsonout"
	"github.com/vllm-vcr/conformance/internal/upstream/drift"
	"github.com/vllm-vcr/conformance/internal/upstream/pypi"
)

// driftIssuesOptions are the flags of drift issues.
type driftIssuesOptions struct {
	matrix string
	labels []string
	dryRun bool
	json   bool
}

func newDriftIssuesCommand(env *environment) *cobra.Command {
	var opts driftIssuesOptions
	cmd := &cobra.Command{
		Use:   "issues DIR",
		Short: "Open, update and close a GitHub issue for each checked line",
		Long: "Open, update and close one issue for each line, from the results of drift check in DIR. The file " +
			"verdict-LINE/verdict.json has the outputs of a workflow step with drift check --github-output, as " +
			"toJSON(steps.ID.outputs) writes them. --matrix is the output of drift releases and lists the lines. The verdict " +
			"decides:\n\n" +
			"  found    the issue is open, with the text of the check\n" +
			"  unknown  the issue is open, but the text of an open issue stays, because the check found nothing out; a missing or broken file is unknown\n" +
			"  none     the issue is closed\n\n" +
			"A new text replaces the old one without a comment. A changed verdict, a changed verdict of a layer, or a changed " +
			"protocol is added as a comment. Issues of lines that are no longer checked are closed.\n\n" +
			"The token is read from GITHUB_TOKEN, the repository from GITHUB_REPOSITORY. The job needs the permission issues: " +
			"write.",
		Example: "  vllm-vcr drift issues verdicts --matrix \\\n" +
			"      '[{\"line\":\"0.33\",\"version\":\"0.33.0\",\"kind\":\"known\",\"check\":\"0.33.0\"}]'",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runDriftIssues(cmd.Context(), env, args[0], opts)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&opts.matrix, "matrix", "", "output of drift releases, as `JSON`; required")
	flags.StringSliceVar(&opts.labels, "label", nil, "label that each issue gets; may be repeated (default none)")
	flags.BoolVar(&opts.dryRun, "dry-run", false, "print what would be done, and change nothing")
	addJSONFlag(flags, &opts.json)
	return cmd
}

func runDriftIssues(ctx context.Context, env *environment, dir string, opts driftIssuesOptions) error {
	rows, err := drift.ParseRows(opts.matrix)
	if err != nil {
		return fmt.Errorf("--matrix: %w", err)
	}
	client, err := newGitHubClient(env, opts.dryRun)
	if err != nil {
		return err
	}
	folder, err := os.OpenRoot(dir) // a link in it leads nowhere else
	if err != nil {
		return err
	}
	defer folder.Close()
	unread := func(row drift.Row, err error) { env.printErr("vllm-vcr: line " + row.Line + ": " + err.Error()) }
	results, err := drift.SyncIssues(ctx, client, folder.FS(), rows, opts.labels, unread)
	if err != nil {
		return githubFailure(ctx, err)
	}
	if opts.json {
		document := struct {
			Schema string              `json:"schema"`
			DryRun bool                `json:"dry_run"`
			Issues []drift.IssueResult `json:"issues"`
		}{schemaOf("drift-issues"), opts.dryRun, results}
		if err := jsonout.Write(env.stdout, document); err != nil {
			return err
		}
	}
	var failed []error
	for _, r := range results {
		if r.Err != nil {
			failed = append(failed, fmt.Errorf("issue %s: %w", r.Key, githubFailure(ctx, r.Err)))
		} else if !opts.json {
			if err := printOutcomeText(env, r.Key+": issue", r.Outcome, opts.dryRun); err != nil {
				return err
			}
		}
	}
	if err := errors.Join(failed...); err != nil {
		return exitError{conformance.ExitInfra, err}
	}
	return nil
}

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
		Short: "Print the releases to check as the job matrix of a GitHub workflow",
		Long: "Print the releases that a nightly job should check as one line of JSON: an array with one object for each " +
			"release, newest first, with line, version, kind and check (the argument of drift check). The kinds are:\n\n" +
			"  known      the release in compat.toml, if its line has no newer one\n" +
			"  patch      the newest release of a line, if it is not the one in compat.toml\n" +
			"  added      the newest release of a line that is newer than those in compat.toml\n" +
			"  candidate  the newest release candidate, if it is newer than all releases; its line is rc\n" +
			"  nightly    the nightly build, which drift check finds by itself; its line is nightly\n\n" +
			"--github-output writes matrix, the same array, and adopt, an array of the releases that drift adopt would add: " +
			"those of the kinds patch and added, oldest first. Exit code 3: the index could not be read.",
		Example: "  vllm-vcr drift releases --github-output",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return runDriftReleases(cmd.Context(), env, opts) },
	}
	flags := cmd.Flags()
	flags.StringVar(&opts.index, "index", "", indexUsage)
	flags.BoolVar(&opts.nightly, "nightly", true, "include the nightly build")
	addOutputFlag(flags, &opts.outputs)
	grouped(flags, "Releases")
	opts.in.addFlags(flags)
	return cmd
}

func runDriftReleases(ctx context.Context, env *environment, opts driftReleasesOptions) error {
	matrix, _, err := loadInputs(env, &opts.in)
	if err != nil {
		return err
	}
	list, err := drift.ListReleases(ctx, &pypi.Index{URL: opts.index, Log: env.log})
	if err != nil {
		return exitError{conformance.ExitInfra, err}
	}
	rows, err := drift.Rows(matrix, list.Releases, opts.nightly)
	if err != nil {
		return exitError{conformance.ExitInfra, err}
	}
	if opts.outputs {
		adopt, err := json.Marshal(drift.ToAdopt(rows))
		if err != nil {
			return err
		}
		if err := setOutputs(env, output{"adopt", string(adopt)}); err != nil {
			return err
		}
	}
	return printMatrix(env, rows, opts.outputs)
}
