package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

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
		Args:  cobra.ExactArgs(1),
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
	return infra(errors.Join(failed...))
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
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return runDriftReleases(cmd.Context(), env, opts) },
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
		return infra(err)
	}
	rows, err := drift.Rows(matrix, list.Releases, opts.nightly)
	if err != nil {
		return infra(err)
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
