package github

import (
	"context"
	"fmt"
	"regexp"
	"slices"

	gh "github.com/google/go-github/v62/github"
)

// An Issue is what there should be under a key: open with this title and body, or not open.
type Issue struct {
	Key    string // names the issue for ever; people do not see it
	Title  string
	Body   string // Markdown; of a closed issue the comment that it is closed with, which may be empty
	Labels []string
	Open   bool
}

// maxPages of a hundred issues each that this token has opened.
const maxPages = 50

var issueKey = regexp.MustCompile(`^[a-z0-9]+([-._/][a-z0-9]+)*$`)

// EnsureIssue opens, updates, closes or reopens the issue of a key, whatever is needed. A title or body that differs is
// replaced without a comment, what people have labelled and written stays, and a change of state is commented. An issue
// that somebody closed by hand is opened again as long as it is wanted.
func (c *Client) EnsureIssue(ctx context.Context, want Issue) (Outcome, error) {
	if !issueKey.MatchString(want.Key) || len(want.Key) > 100 {
		return Outcome{}, usage("key %q: want small letters and digits, with single - . _ or / between", want.Key)
	}
	if want.Open {
		if err := checkTitle(want.Title); err != nil {
			return Outcome{}, err
		}
	}
	s, err := c.session(ctx)
	if err != nil {
		return Outcome{}, err
	}
	ours, err := c.listOurs(ctx, s, want.Key)
	if err != nil {
		return Outcome{}, err
	}
	have, others := choose(ours)
	for _, other := range others {
		comment := fmt.Sprintf("The same as #%d: closed.", have.GetNumber())
		if err := c.setState(ctx, other.GetNumber(), "closed", "not_planned", comment); err != nil {
			return Outcome{}, err
		}
	}
	switch {
	case have == nil && want.Open:
		return c.openIssue(ctx, want)
	case have == nil:
		return Outcome{Action: Unchanged}, nil
	case want.Open:
		return c.updateIssue(ctx, have, want)
	}
	return c.closeIssue(ctx, have, want)
}

// listOurs returns the issues of a key that this token has opened. Anybody may write a marker: so the author counts.
func (c *Client) listOurs(ctx context.Context, s session, key string) ([]*gh.Issue, error) {
	var ours []*gh.Issue
	opts := &gh.IssueListByRepoOptions{State: "all", Creator: s.login, ListOptions: gh.ListOptions{PerPage: 100}}
	for range maxPages {
		page, resp, err := c.rest.Issues.ListByRepo(ctx, c.owner, c.name, opts)
		if err != nil {
			return nil, c.explain("list issues", err, needIssues)
		}
		for _, issue := range page {
			if !issue.IsPullRequest() && issue.GetUser().GetLogin() == s.login && hasMarker(issue.GetBody(), key) {
				ours = append(ours, issue)
			}
		}
		if resp.NextPage == 0 {
			return ours, nil
		}
		opts.Page = resp.NextPage
	}
	return nil, fmt.Errorf("%s: list issues: %s has opened more than %d: whether one has the key %s is not known",
		c.full(), s.login, 100*maxPages, key)
}

// choose returns the issue to keep, the oldest open one, else the newest, and other open ones.
func choose(ours []*gh.Issue) (keep *gh.Issue, others []*gh.Issue) {
	slices.SortFunc(ours, func(a, b *gh.Issue) int { return a.GetNumber() - b.GetNumber() })
	for _, issue := range ours {
		switch {
		case issue.GetState() != "open":
		case keep == nil:
			keep = issue
		default:
			others = append(others, issue)
		}
	}
	if keep == nil && len(ours) > 0 {
		keep = ours[len(ours)-1]
	}
	return keep, others
}

func (c *Client) openIssue(ctx context.Context, want Issue) (Outcome, error) {
	if c.dryRun {
		return Outcome{Action: Created}, nil
	}
	body := marked(want.Body, want.Key)
	request := &gh.IssueRequest{Title: &want.Title, Body: &body}
	if len(want.Labels) > 0 {
		request.Labels = &want.Labels
	}
	issue, _, err := c.rest.Issues.Create(ctx, c.owner, c.name, request)
	if err != nil {
		return Outcome{}, c.explain("open an issue", err, needIssues)
	}
	return issueOutcome(Created, issue), nil
}

func (c *Client) updateIssue(ctx context.Context, have *gh.Issue, want Issue) (Outcome, error) {
	done := issueOutcome(Unchanged, have)
	body := marked(want.Body, want.Key)
	edit := &gh.IssueRequest{}
	if have.GetTitle() != want.Title {
		edit.Title = &want.Title
	}
	if !sameBody(have.GetBody(), body) {
		edit.Body = &body
	}
	if edit.Title != nil || edit.Body != nil {
		done.Action = Updated
		if err := c.editIssue(ctx, have.GetNumber(), "update the issue", edit); err != nil {
			return Outcome{}, err
		}
	}
	if have.GetState() != "open" {
		done.Action = Updated
		done.Notes = append(done.Notes, "reopened")
		comment := c.withRun("It is there again: reopened.")
		if err := c.setState(ctx, have.GetNumber(), "open", "reopened", comment); err != nil {
			return Outcome{}, err
		}
	}
	labelled, err := c.addLabels(ctx, have.GetNumber(), have.Labels, want.Labels, needIssues)
	if labelled {
		done.Action = Updated
	}
	return done, err
}

func (c *Client) closeIssue(ctx context.Context, have *gh.Issue, want Issue) (Outcome, error) {
	if have.GetState() != "open" {
		return issueOutcome(Unchanged, have), nil
	}
	comment := cut(want.Body)
	if comment == "" {
		comment = "It is no longer there: closed."
	}
	if err := c.setState(ctx, have.GetNumber(), "closed", "completed", c.withRun(comment)); err != nil {
		return Outcome{}, err
	}
	return issueOutcome(Closed, have), nil
}

// setState changes the state first: a run that ends in between loses a comment, and the next one does not repeat it.
func (c *Client) setState(ctx context.Context, number int, state, reason, comment string) error {
	edit := &gh.IssueRequest{State: &state, StateReason: &reason}
	if err := c.editIssue(ctx, number, "make the issue "+state, edit); err != nil {
		return err
	}
	return c.comment(ctx, number, comment, needIssues)
}

func (c *Client) editIssue(ctx context.Context, number int, doing string, edit *gh.IssueRequest) error {
	if c.dryRun {
		return nil
	}
	_, _, err := c.rest.Issues.Edit(ctx, c.owner, c.name, number, edit)
	return c.explain(fmt.Sprintf("%s #%d", doing, number), err, needIssues)
}

func (c *Client) comment(ctx context.Context, number int, text, need string) error {
	if c.dryRun {
		return nil
	}
	_, _, err := c.rest.Issues.CreateComment(ctx, c.owner, c.name, number, &gh.IssueComment{Body: &text})
	return c.explain(fmt.Sprintf("comment on #%d", number), err, need)
}

func issueOutcome(action Action, issue *gh.Issue) Outcome {
	return Outcome{Action: action, Number: issue.GetNumber(), URL: issue.GetHTMLURL()}
}
