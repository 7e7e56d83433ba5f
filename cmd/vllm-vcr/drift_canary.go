package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/jsonout"
	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
	"github.com/vllm-vcr/conformance/internal/forge/github"
	"github.com/vllm-vcr/conformance/internal/upstream/canary"
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

// rowLine is what a line of a row is called: it is part of a path and of the key of an issue.
var rowLine = lazyregexp.New(`^([0-9]+\.[0-9]+|[a-z]+)$`)

// readRows reads what drift releases printed.
func readRows(text string) ([]canary.Release, error) {
	var rows []canary.Release
	if err := json.Unmarshal([]byte(text), &rows); err != nil {
		return nil, fmt.Errorf("--matrix: want the output of drift releases: %w", err)
	}
	if len(rows) == 0 {
		return nil, errors.New("--matrix has no release: want the output of drift releases")
	}
	for i, r := range rows {
		if !rowLine().MatchString(r.Line) {
			return nil, fmt.Errorf("--matrix: line %q in row %d: want a line such as 0.33, or nightly", r.Line, i)
		}
		if slices.ContainsFunc(rows[:i], func(other canary.Release) bool { return other.Line == r.Line }) {
			return nil, fmt.Errorf("--matrix: line %s is given twice", r.Line)
		}
	}
	return rows, nil
}

// runDriftIssues brings every issue to its state. One that fails does not keep the others from it.
func runDriftIssues(ctx context.Context, env *environment, dir string, opts driftIssuesOptions) error {
	rows, err := readRows(opts.matrix)
	if err != nil {
		return err
	}
	client, err := newGitHubClient(env, opts.dryRun)
	if err != nil {
		return err
	}
	wanted, err := wantedIssues(ctx, env, client, dir, rows, opts.labels)
	if err != nil {
		return err
	}
	var failed []error
	result := issuesJSON{Schema: schemaOf("drift-issues"), DryRun: opts.dryRun, Issues: []issueJSON{}}
	for _, issue := range wanted {
		done, err := client.EnsureIssue(ctx, issue)
		result.Issues = append(result.Issues, issueResult(issue.Key, done, err))
		if err != nil {
			failed = append(failed, fmt.Errorf("issue %s: %w", issue.Key, githubFailure(ctx, err)))
			continue
		}
		if opts.json {
			continue
		}
		if err := printOutcomeText(env, issue.Key+": issue", done, opts.dryRun); err != nil {
			return err
		}
	}
	if opts.json {
		if err := jsonout.Write(env.stdout, result); err != nil {
			return err
		}
	}
	if err := errors.Join(failed...); err != nil {
		return exitError{conformance.ExitInfra, err}
	}
	return nil
}

// wantedIssues are the issues that there should be, and those that should be no more.
func wantedIssues(
	ctx context.Context, env *environment, client *github.Client, dir string, rows []canary.Release, labels []string,
) ([]github.Issue, error) {
	folder, err := os.OpenRoot(dir) // a link in it leads nowhere else
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	var wanted []github.Issue
	for _, row := range rows {
		verdict, err := canary.Read(folder.FS(), row)
		if err != nil {
			env.printErr("vllm-vcr: line " + row.Line + ": " + err.Error())
		}
		wanted = append(wanted, canary.Issue(row, verdict, labels))
	}
	keys, err := client.OpenKeys(ctx, canary.KeyPrefix)
	if err != nil {
		return nil, githubFailure(ctx, err)
	}
	for _, key := range keys {
		if !slices.ContainsFunc(wanted, func(i github.Issue) bool { return i.Key == key }) {
			wanted = append(wanted, canary.Unwatched(key))
		}
	}
	return wanted, nil
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
	rows, err := canary.Releases(matrix, known, opts.nightly)
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
