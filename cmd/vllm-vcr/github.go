package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/forge/github"
)

// githubOptions are those of both commands.
type githubOptions struct {
	title, bodyFile, quoteFile string

	labels         []string
	dryRun, output bool
}

func (opts *githubOptions) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&opts.title, "title", "", "`TITLE` of the issue or pull request")
	flags.StringVar(&opts.bodyFile, "body-file", "", "`FILE` with the text as Markdown")
	flags.StringVar(&opts.quoteFile, "quote-file", "", "`FILE` with text from others, which is added as a quotation without markup, mentions, references or commands")
	flags.StringSliceVar(&opts.labels, "label", nil, "label to add; may be repeated (default none)")
	flags.BoolVar(&opts.dryRun, "dry-run", false, "print what would be done, and change nothing")
	addOutputFlag(flags, &opts.output)
}

func newGithubIssueCommand(env *environment) *cobra.Command {
	var opts githubOptions
	var key, state string
	cmd := &cobra.Command{
		Use:   "issue",
		Short: "Open, update or close one issue",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			body, err := opts.body()
			if err != nil {
				return err
			}
			issue := github.Issue{Key: key, Title: opts.title, Body: body, Labels: opts.labels, Open: state == "open"}
			return ensureOnGitHub(cmd.Context(), env, opts, "issue", "issue", func(c *github.Client) (github.Outcome, error) {
				return c.EnsureIssue(cmd.Context(), issue)
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&key, "key", "", "hidden `NAME` of the issue, which never changes, such as drift; required")
	oneOf(flags, &state, "state", "", "`STATE` of the issue: open or closed; required", "open", "closed")
	required(flags, "state")
	opts.addFlags(flags)
	return cmd
}

// pullRequestOptions are those of github pull-request.
type pullRequestOptions struct {
	githubOptions
	pull     github.PullRequest
	patterns []string
}

func newGithubPullRequestCommand(env *environment) *cobra.Command {
	var opts pullRequestOptions
	cmd := &cobra.Command{
		Use:   "pull-request",
		Short: "Open, update or close one pull request with files of the work tree",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return runPullRequest(cmd.Context(), env, opts) },
	}
	flags := cmd.Flags()
	flags.StringVar(&opts.pull.Branch, "branch", "", "`BRANCH` of the pull request, used for nothing else; required")
	flags.StringVar(&opts.pull.Base, "base", "main", "`BRANCH` to merge into")
	flags.StringSliceVar(&opts.patterns, "file", nil, "`FILE` to include; the wildcards * ? [] are allowed; may be repeated")
	flags.BoolVar(&opts.pull.Draft, "draft", false, "open the pull request as a draft")
	flags.StringVar(&opts.pull.EditedFrom, "edited-from", "", "`COMMIT` that was edited; it is an error if the base has changed the files since (default $GITHUB_SHA)")
	opts.addFlags(flags)
	return cmd
}

func runPullRequest(ctx context.Context, env *environment, opts pullRequestOptions) error {
	body, err := opts.body()
	if err != nil {
		return err
	}
	opts.pull.Title, opts.pull.Body, opts.pull.Labels = opts.title, body, opts.labels
	opts.pull.EditedFrom = cmp.Or(opts.pull.EditedFrom, env.getenv("GITHUB_SHA"))
	if opts.pull.Files, err = github.ReadFiles(".", opts.patterns); err != nil {
		return fmt.Errorf("--file: %w", err)
	}
	return ensureOnGitHub(ctx, env, opts.githubOptions, "pull request", "pr", func(c *github.Client) (github.Outcome, error) {
		return c.EnsurePullRequest(ctx, opts.pull)
	})
}

// ensureOnGitHub runs do with a client of the workflow's repository, and prints what it did.
func ensureOnGitHub(
	ctx context.Context, env *environment, opts githubOptions, kind, number string, do func(*github.Client) (github.Outcome, error),
) error {
	client, err := newGitHubClient(env, opts.dryRun)
	if err != nil {
		return err
	}
	done, err := do(client)
	if err != nil {
		return githubFailure(ctx, err)
	}
	if err := printOutcomeText(env, kind, done, opts.dryRun); err != nil || !opts.output {
		return err
	}
	id := ""
	if done.Number != 0 {
		id = strconv.Itoa(done.Number)
	}
	return setOutputs(env, output{number, id}, output{"url", done.URL}, output{"action", string(done.Action)})
}

// newGitHubClient is a client of the workflow's repository.
func newGitHubClient(env *environment, dryRun bool) (*github.Client, error) {
	client, err := github.New(github.Options{
		Repository: env.getenv("GITHUB_REPOSITORY"), Token: env.getenv("GITHUB_TOKEN"), API: env.getenv("GITHUB_API_URL"),
		Run: workflowRunURL(env), DryRun: dryRun, Log: env.log,
	})
	if err != nil {
		return nil, fmt.Errorf("GITHUB_REPOSITORY, GITHUB_TOKEN, GITHUB_API_URL: %w", err)
	}
	return client, nil
}

// githubFailure gives an error of a client its exit code.
func githubFailure(ctx context.Context, err error) error {
	var usage *github.UsageError
	switch {
	case ctx.Err() != nil:
		return infra(errors.New("interrupted: run it again to bring it to an end"))
	case errors.As(err, &usage):
		return err
	}
	return infra(err)
}

// printOutcomeText prints what was done, and the notes on it.
func printOutcomeText(env *environment, kind string, done github.Outcome, dryRun bool) error {
	text := kind
	if done.Number != 0 {
		text += " #" + strconv.Itoa(done.Number)
	}
	text += ": " + string(done.Action)
	if dryRun {
		text = "dry run: " + text
	}
	if done.URL != "" {
		text += ": " + done.URL
	}
	for _, line := range append([]string{text}, done.Notes...) {
		if _, err := fmt.Fprintln(env.stdout, safetext.Line(line)); err != nil {
			return err
		}
	}
	return nil
}

// workflowRunURL is the page of the workflow run, or "".
func workflowRunURL(env *environment) string {
	server, repository := env.getenv("GITHUB_SERVER_URL"), env.getenv("GITHUB_REPOSITORY")
	run := env.getenv("GITHUB_RUN_ID")
	if server == "" || repository == "" || run == "" {
		return ""
	}
	return server + "/" + repository + "/actions/runs/" + run
}

// body reads the text of an issue or a pull request.
func (opts *githubOptions) body() (string, error) {
	body, err := readBody("--body-file", opts.bodyFile)
	if err != nil || opts.quoteFile == "" {
		return body, err
	}
	quoted, err := readBody("--quote-file", opts.quoteFile)
	return body + "\n" + safetext.Quotation(quoted), err
}

// readBody reads a text. What is too long for GitHub is cut later; this only bounds the memory.
func readBody(flag, path string) (string, error) {
	if path == "" {
		return "", nil
	}
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", flag, err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 1<<20))
	if err != nil {
		return "", fmt.Errorf("%s: %w", flag, err)
	}
	return string(text), nil
}
