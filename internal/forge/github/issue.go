package github

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	gh "github.com/google/go-github/v62/github"

	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
)

// An Issue is what there should be under a key: open with this title and body, or not open.
type Issue struct {
	Key    string // names the issue for ever; people do not see it
	Title  string
	Body   string // Markdown; of a closed issue the comment that it is closed with, which may be empty
	Labels []string
	Open   bool

	// State names what is known, in small letters and digits, such as "found 1a2b3c4d"; may be empty. The issue keeps it
	// where people do not see it, and another one than it has is commented.
	State string
	// Comment is what is said of another state, and when the issue is opened again; a few words that fit both if it is
	// empty.
	Comment string
	// Unclear leaves the title and the text of an open issue as they are: that nothing could be found out this time takes
	// back nothing that was.
	Unclear bool
}

// maxPages of a hundred issues each that this token has opened.
const maxPages = 50

var (
	issueKey   = lazyregexp.New(`^[a-z0-9]+([-._/][a-z0-9]+)*$`)
	issueState = lazyregexp.New(`^[a-z0-9]+( [a-z0-9]+)*$`)
)

func (i Issue) check() error {
	if !issueKey().MatchString(i.Key) || len(i.Key) > 100 {
		return usage("key %q: want small letters and digits, with single - . _ or / between", i.Key)
	}
	if i.State != "" && (!issueState().MatchString(i.State) || len(i.State) > 100) {
		return usage("state %q: want small letters and digits, in words with single blanks between", i.State)
	}
	if !i.Open {
		return nil
	}
	return checkTitle(i.Title)
}

// body is the text with what people do not see behind it.
func (i Issue) body() string { return withState(cut(i.Body), i.State, i.Key) }

// EnsureIssue opens, updates, closes or reopens the issue of a key, whatever is needed. A title or body that differs is
// replaced without a comment, what people have labelled and written stays, and a change of state is commented: of that
// between open and closed, and of [Issue.State]. An issue that somebody closed by hand is opened again as long as it is
// wanted.
func (c *Client) EnsureIssue(ctx context.Context, want Issue) (Outcome, error) {
	if err := want.check(); err != nil {
		return Outcome{}, err
	}
	all, err := c.listOurs(ctx)
	if err != nil {
		return Outcome{}, err
	}
	ours := slices.DeleteFunc(all, func(issue *gh.Issue) bool { return !hasMarker(issue.GetBody(), want.Key) })
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

// OpenKeys returns the keys of the open issues that begin with a prefix, in their order.
func (c *Client) OpenKeys(ctx context.Context, prefix string) ([]string, error) {
	all, err := c.listOurs(ctx)
	if err != nil {
		return nil, err
	}
	var keys []string
	for _, issue := range all {
		_, last := splitLast(issue.GetBody())
		key := within(last, "<!-- vllm-vcr: ", " -->")
		if issue.GetState() == "open" && issueKey().MatchString(key) && strings.HasPrefix(key, prefix) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys), nil
}

// listOurs returns the issues that this token has opened. Anybody may write a marker: so the author counts.
func (c *Client) listOurs(ctx context.Context) ([]*gh.Issue, error) {
	s, err := c.session(ctx)
	if err != nil {
		return nil, err
	}
	var ours []*gh.Issue
	opts := &gh.IssueListByRepoOptions{State: "all", Creator: s.login, ListOptions: gh.ListOptions{PerPage: 100}}
	for range maxPages {
		page, resp, err := c.rest.Issues.ListByRepo(ctx, c.owner, c.name, opts)
		if err != nil {
			return nil, c.explain("list issues", err, needIssues)
		}
		for _, issue := range page {
			if !issue.IsPullRequest() && issue.GetUser().GetLogin() == s.login {
				ours = append(ours, issue)
			}
		}
		if resp.NextPage == 0 {
			return ours, nil
		}
		opts.Page = resp.NextPage
	}
	return nil, fmt.Errorf("%s: list issues: %s has opened more than %d: whether one of the others is wanted is not known",
		c.full(), s.login, 100*maxPages)
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
	body := want.body()
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
	isOpen := have.GetState() == "open"
	_, was := parts(have.GetBody(), want.Key)
	if edit, differs := editOf(have, want); differs {
		done.Action = Updated
		if err := c.editIssue(ctx, have.GetNumber(), "update the issue", edit); err != nil {
			return Outcome{}, err
		}
	}
	var err error
	switch {
	case !isOpen:
		done.Action = Updated
		done.Notes = append(done.Notes, "reopened")
		comment := c.withRun(cmp.Or(cut(want.Comment), "It is there again: reopened."))
		err = c.setState(ctx, have.GetNumber(), "open", "reopened", comment)
	case was != "" && want.State != "" && was != want.State:
		done.Notes = append(done.Notes, "commented: "+was+" is now "+want.State)
		err = c.comment(ctx, have.GetNumber(), c.withRun(cmp.Or(cut(want.Comment), "It has changed: now "+want.State+".")), needIssues)
	}
	if err != nil {
		return Outcome{}, err
	}
	labelled, err := c.addLabels(ctx, have.GetNumber(), have.Labels, want.Labels, needIssues)
	if labelled {
		done.Action = Updated
	}
	return done, err
}

// editOf is what has to be edited of an issue.
func editOf(have *gh.Issue, want Issue) (edit *gh.IssueRequest, differs bool) {
	edit = &gh.IssueRequest{}
	body := want.body()
	if want.Unclear && have.GetState() == "open" {
		text, _ := parts(have.GetBody(), want.Key)
		body = withState(text, want.State, want.Key)
	} else if have.GetTitle() != want.Title {
		edit.Title = &want.Title
	}
	if !sameBody(have.GetBody(), body) {
		edit.Body = &body
	}
	return edit, edit.Title != nil || edit.Body != nil
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

// cut leaves out what is longer than GitHub takes.
func cut(body string) string {
	const limit = 60_000 // bytes; GitHub takes 65,536 characters
	body = strings.TrimSpace(strings.ReplaceAll(body, "\r\n", "\n"))
	if len(body) <= limit {
		return body
	}
	body = strings.ToValidUTF8(body[:limit], "")
	if at := strings.LastIndexByte(body, '\n'); at > 0 {
		body = body[:at]
	}
	return body + "\n\n(cut here: the rest is in the run's report)"
}

// marked is a body with its hidden last line. Foreign text in the body cannot pretend to be it.
func marked(body, key string) string { return cut(body) + "\n\n" + marker(key) }

func marker(key string) string { return "<!-- vllm-vcr: " + key + " -->" }

// hasMarker reports whether the last line of a body is the marker of key.
func hasMarker(body, key string) bool {
	_, last := splitLast(body)
	return last == marker(key)
}

// withState is a text with the state and the key behind it, in hidden lines.
func withState(text, state, key string) string {
	text = strings.TrimSpace(text) + "\n\n"
	if state != "" {
		text += stateBegin + state + " -->\n"
	}
	return text + marker(key)
}

const stateBegin = "<!-- vllm-vcr state: "

// parts are the text of a body of the key and its state, without the hidden lines.
func parts(body, key string) (text, state string) {
	text, last := splitLast(body)
	if last != marker(key) {
		return strings.TrimSpace(body), ""
	}
	before, last := splitLast(text)
	if state = within(last, stateBegin, " -->"); state != "" {
		text = before
	}
	return strings.TrimSpace(text), state
}

// splitLast parts the last line of a text from those before it.
func splitLast(text string) (before, last string) {
	text = strings.TrimSpace(text)
	at := strings.LastIndexByte(text, '\n') + 1
	return text[:at], text[at:]
}

// within is what is between two ends of a line, or "".
func within(line, begin, end string) string {
	line, begins := strings.CutPrefix(line, begin)
	line, ends := strings.CutSuffix(line, end)
	if !begins || !ends {
		return ""
	}
	return line
}

// sameBody compares without what an edit in the browser changes: the ends of lines.
func sameBody(a, b string) bool {
	return strings.TrimSpace(strings.ReplaceAll(a, "\r\n", "\n")) == strings.TrimSpace(strings.ReplaceAll(b, "\r\n", "\n"))
}
