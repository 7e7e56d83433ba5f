package github

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	gh "github.com/google/go-github/v62/github"

	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
)

// A PullRequest is what there should be on a branch: one commit on the base that brings it the files.
type PullRequest struct {
	Branch string // fixed, and used by this program alone
	Base   string
	Title  string // of the commit too
	Body   string // Markdown
	Labels []string
	Files  Files
	Draft  bool // when it is opened
	// EditedFrom is the commit whose files were edited; may be empty. If the base has changed the same files since,
	// there is no pull request, as it would take that back.
	EditedFrom string
}

var (
	branchName = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*$`)
	commitID   = lazyregexp.New(`^[0-9a-f]{40}$`)
)

func (p PullRequest) check() error {
	for _, name := range []string{p.Branch, p.Base} {
		bad := strings.Contains(name, "..") || strings.HasSuffix(name, ".") || strings.Contains(name+"/", ".lock/")
		if bad || !branchName().MatchString(name) {
			return usage("branch %q: want a name of letters, digits and - . _ /", name)
		}
	}
	if p.EditedFrom != "" && !commitID().MatchString(p.EditedFrom) {
		return usage("commit %q: want 40 hex digits", p.EditedFrom)
	}
	if len(p.Files.Patterns) == 0 {
		return usage("a pull request needs files")
	}
	return checkTitle(p.Title)
}

// trailer is the line of the message by which a commit of this package is known again.
func (p PullRequest) trailer() string { return "Made-by: vllm-vcr for " + p.Branch }

// staging is the branch on which a commit is made.
func (p PullRequest) staging() string { return p.Branch + "-next" }

// A pullState is what there is before anything is changed.
type pullState struct {
	session
	base     string               // commit
	baseTree map[string]treeEntry // by path
	wanted   map[string]treeEntry // the base with the files in it
	changes  fileChanges
	head     string // commit of the branch, or none
	headTree map[string]treeEntry
	ahead    bool            // the branch has a commit that the base has not
	foreign  string          // what others have put onto the branch, or ""
	pull     *gh.PullRequest // or nil
}

// EnsurePullRequest makes the branch and its pull request what they should be. Without a difference to the base there
// has no pull request: an open one is closed, and the branch deleted. When the base has moved, the branch is made
// again from it. The title, the body and missing labels of an open one are set; whether it is a draft is left to
// people.
//
// A branch with commits of others is never changed: that is a [RefusedError], unless it has all that is wanted.
func (c *Client) EnsurePullRequest(ctx context.Context, want PullRequest) (Outcome, error) {
	if err := want.check(); err != nil {
		return Outcome{}, err
	}
	state, err := c.look(ctx, want)
	if err != nil {
		return Outcome{}, err
	}
	if state.foreign != "" {
		return leave(want, state)
	}
	if len(state.changes.Additions)+len(state.changes.Deletions) == 0 {
		return c.withdraw(ctx, want, state)
	}
	if err := c.checkBase(ctx, want, state); err != nil {
		return Outcome{}, err
	}
	moved := !state.ahead || !maps.Equal(state.headTree, state.wanted)
	if moved {
		if err := c.commit(ctx, want, state); err != nil {
			return Outcome{}, err
		}
	}
	if state.pull == nil {
		return c.openPull(ctx, want)
	}
	return c.updatePull(ctx, want, state.pull, moved)
}

// look finds out what there is.
func (c *Client) look(ctx context.Context, want PullRequest) (state pullState, err error) {
	if state.session, err = c.session(ctx); err != nil {
		return state, err
	}
	if want.Branch == want.Base || want.Branch == state.defaultBranch || want.staging() == want.Base {
		return state, usage("branch %s is one that people work on: give the pull request one of its own", want.Branch)
	}
	if state.base, err = c.branchHead(ctx, want.Base); err != nil {
		return state, err
	}
	if state.base == none {
		return state, fmt.Errorf("%s has no branch %s", c.full(), want.Base)
	}
	if state.baseTree, err = c.tree(ctx, state.base); err != nil {
		return state, err
	}
	if state.wanted, state.changes, err = want.Files.onto(state.baseTree); err != nil {
		return state, err
	}
	if state.pull, err = c.findPull(ctx, want); err != nil {
		return state, err
	}
	if state.head, err = c.branchHead(ctx, want.Branch); err != nil || state.head == none {
		return state, err
	}
	if state.headTree, err = c.tree(ctx, state.head); err != nil {
		return state, err
	}
	return state, c.lookAtBranch(ctx, want, &state)
}

// branchHead returns the commit of a branch, or none.
func (c *Client) branchHead(ctx context.Context, branch string) (string, error) {
	ref, _, err := c.rest.Git.GetRef(ctx, c.owner, c.name, "heads/"+branch)
	var answer *gh.ErrorResponse
	if errors.As(err, &answer) && answer.Response.StatusCode == http.StatusNotFound {
		return none, nil
	}
	if err != nil {
		return "", c.explain("look at branch "+branch, err, needRead)
	}
	return ref.GetObject().GetSHA(), nil
}

func (c *Client) tree(ctx context.Context, commit string) (map[string]treeEntry, error) {
	tree, _, err := c.rest.Git.GetTree(ctx, c.owner, c.name, commit, true)
	if err != nil {
		return nil, c.explain("list the files of "+commit, err, needRead)
	}
	if tree.GetTruncated() {
		return nil, fmt.Errorf("%s: list the files of %s: there are more than GitHub lists", c.full(), commit)
	}
	entries := map[string]treeEntry{}
	for _, e := range tree.Entries {
		if e.GetType() != "tree" {
			entries[e.GetPath()] = treeEntry{e.GetMode(), e.GetSHA()}
		}
	}
	return entries, nil
}

// findPull returns the open pull request of the branch, or nil.
func (c *Client) findPull(ctx context.Context, want PullRequest) (*gh.PullRequest, error) {
	opts := &gh.PullRequestListOptions{State: "open", Head: c.owner + ":" + want.Branch}
	pulls, _, err := c.rest.PullRequests.List(ctx, c.owner, c.name, opts)
	if err != nil {
		return nil, c.explain("list pull requests", err, needPulls)
	}
	for _, pull := range pulls {
		switch {
		case pull.GetHead().GetRef() != want.Branch:
		case pull.GetBase().GetRef() != want.Base:
			return nil, &RefusedError{fmt.Sprintf("pull request #%d takes %s into %s, not into %s: close it",
				pull.GetNumber(), want.Branch, pull.GetBase().GetRef(), want.Base)}
		case !hasMarker(pull.GetBody(), want.Branch):
			return nil, &RefusedError{fmt.Sprintf("pull request #%d of %s lacks the hidden last line of those that vllm-vcr "+
				"opens: close it, or give it back the line %q", pull.GetNumber(), want.Branch, marker(want.Branch))}
		default:
			return pull, nil
		}
	}
	return nil, nil
}

// lookAtBranch finds out whose the commits of the branch are. Ours have our line in the message and a signature of
// GitHub.
func (c *Client) lookAtBranch(ctx context.Context, want PullRequest, state *pullState) error {
	compared, _, err := c.rest.Repositories.CompareCommits(ctx, c.owner, c.name, state.base, state.head, nil)
	if err != nil {
		return c.explain("compare "+want.Branch+" with "+want.Base, err, needRead)
	}
	head := compared.GetMergeBaseCommit() // of a branch that is within the base: its own commit
	switch ahead := compared.GetAheadBy(); {
	case ahead > 1:
		state.foreign = fmt.Sprintf("%d commits", ahead)
		return nil
	case ahead == 1 && len(compared.Commits) == 1:
		head = compared.Commits[0]
	}
	commit := head.GetCommit()
	ours := commit.GetVerification().GetVerified() && hasLine(commit.GetMessage(), want.trailer())
	if head.GetSHA() != state.head || !ours {
		state.foreign = "commit " + state.head + " of somebody else"
		return nil
	}
	state.ahead = compared.GetAheadBy() == 1
	return nil
}

func hasLine(text, line string) bool {
	for l := range strings.Lines(text) {
		if strings.TrimSpace(l) == line {
			return true
		}
	}
	return false
}

// leave is for a branch that is not only ours: people may work on, on top of ours.
func leave(want PullRequest, state pullState) (Outcome, error) {
	has := fmt.Sprintf("branch %s has %s, and ", want.Branch, state.foreign)
	if state.pull == nil || !want.Files.sameIn(state.headTree, state.wanted) {
		return Outcome{}, &RefusedError{has + "would have to be made again: merge it or delete it"}
	}
	done := pullOutcome(Unchanged, state.pull)
	done.Notes = append(done.Notes, has+"the files that are wanted: left as it is")
	return done, nil
}

// checkBase makes sure that the files do not take back what has come to the base since they were edited.
func (c *Client) checkBase(ctx context.Context, want PullRequest, state pullState) error {
	if want.EditedFrom == "" || want.EditedFrom == state.base {
		return nil
	}
	tree, err := c.tree(ctx, want.EditedFrom)
	if err != nil {
		return err
	}
	if !want.Files.sameIn(tree, state.baseTree) {
		const text = "%s has changed the same files since %s: make the edit again on top of it"
		return fmt.Errorf(text, want.Base, want.EditedFrom)
	}
	return nil
}

// commit makes the commit and moves the branch to it. A branch that somebody has moved since it was looked at stays.
func (c *Client) commit(ctx context.Context, want PullRequest, state pullState) error {
	if c.dryRun {
		return nil
	}
	branch, staging := "refs/heads/"+want.Branch, "refs/heads/"+want.staging()
	put := refUpdate{Name: staging, After: state.base, Force: true} // it may be left over
	if err := c.updateRefs(ctx, state.session, "make branch "+want.staging(), put); err != nil {
		return err
	}
	input := commitInput{Changes: state.changes, ExpectedHead: state.base}
	input.Branch.Repository, input.Branch.Name = c.full(), want.staging()
	input.Message.Headline, input.Message.Body = want.Title, want.trailer()
	made, err := c.createCommit(ctx, input)
	if err != nil {
		return err
	}
	return c.updateRefs(ctx, state.session, "move branch "+want.Branch,
		refUpdate{Name: branch, Before: state.head, After: made, Force: true},
		refUpdate{Name: staging, Before: made, After: none})
}

// withdraw is for a base that has all that is wanted.
func (c *Client) withdraw(ctx context.Context, want PullRequest, state pullState) (Outcome, error) {
	done := Outcome{Action: Unchanged}
	if state.pull != nil {
		done = pullOutcome(Closed, state.pull)
		if err := c.closePull(ctx, want, state.pull.GetNumber()); err != nil {
			return Outcome{}, err
		}
	}
	if state.head == none {
		return done, nil
	}
	done.Notes = append(done.Notes, fmt.Sprintf("branch %s deleted", want.Branch))
	if c.dryRun {
		return done, nil
	}
	gone := refUpdate{Name: "refs/heads/" + want.Branch, Before: state.head, After: none}
	return done, c.updateRefs(ctx, state.session, "delete branch "+want.Branch, gone)
}

func (c *Client) closePull(ctx context.Context, want PullRequest, number int) error {
	if c.dryRun {
		return nil
	}
	closed := "closed"
	_, _, err := c.rest.PullRequests.Edit(ctx, c.owner, c.name, number, &gh.PullRequest{State: &closed})
	if err != nil {
		return c.explain(fmt.Sprintf("close pull request #%d", number), err, needPulls)
	}
	return c.comment(ctx, number, c.withRun(fmt.Sprintf("No difference to %s is left: closed.", want.Base)), needPulls)
}

func (c *Client) openPull(ctx context.Context, want PullRequest) (Outcome, error) {
	if c.dryRun {
		return Outcome{Action: Created}, nil
	}
	body := marked(want.Body, want.Branch)
	pull, _, err := c.rest.PullRequests.Create(ctx, c.owner, c.name, &gh.NewPullRequest{
		Title: &want.Title, Head: &want.Branch, Base: &want.Base, Body: &body, Draft: &want.Draft,
	})
	if err != nil {
		return Outcome{}, c.explain("open a pull request of "+want.Branch, err, needPulls)
	}
	_, err = c.addLabels(ctx, pull.GetNumber(), nil, want.Labels, needPulls)
	return pullOutcome(Created, pull), err
}

func (c *Client) updatePull(ctx context.Context, want PullRequest, have *gh.PullRequest, moved bool) (Outcome, error) {
	done := pullOutcome(Unchanged, have)
	body := marked(want.Body, want.Branch)
	edit := &gh.PullRequest{}
	if have.GetTitle() != want.Title {
		edit.Title = &want.Title
	}
	if !sameBody(have.GetBody(), body) {
		edit.Body = &body
	}
	edited := edit.Title != nil || edit.Body != nil
	if edited && !c.dryRun {
		if _, _, err := c.rest.PullRequests.Edit(ctx, c.owner, c.name, have.GetNumber(), edit); err != nil {
			return Outcome{}, c.explain(fmt.Sprintf("update pull request #%d", have.GetNumber()), err, needPulls)
		}
	}
	labelled, err := c.addLabels(ctx, have.GetNumber(), have.Labels, want.Labels, needPulls)
	if moved || edited || labelled {
		done.Action = Updated
	}
	return done, err
}

func pullOutcome(action Action, pull *gh.PullRequest) Outcome {
	return Outcome{Action: action, Number: pull.GetNumber(), URL: pull.GetHTMLURL()}
}

// createCommit returns the id of the new commit.
func (c *Client) createCommit(ctx context.Context, input commitInput) (string, error) {
	var data struct {
		CreateCommitOnBranch *struct{ Commit *struct{ OID string } }
	}
	err := c.query(ctx, "commit", commitRequest, map[string]any{"input": input}, &data, needCommit)
	if err != nil {
		return "", err
	}
	if data.CreateCommitOnBranch == nil || data.CreateCommitOnBranch.Commit == nil {
		return "", fmt.Errorf("%s: commit: GitHub's answer names no commit", c.full())
	}
	return data.CreateCommitOnBranch.Commit.OID, nil
}

// onto returns the base's tree with the files in it, and what that changes.
func (f Files) onto(base map[string]treeEntry) (tree map[string]treeEntry, changes fileChanges, err error) {
	tree = make(map[string]treeEntry, len(base))
	changes = fileChanges{Additions: []fileAddition{}, Deletions: []fileDeletion{}}
	for name, entry := range base {
		_, kept := f.Content[name]
		if (kept || f.match(name)) && entry.mode != plainFile {
			const text = "%s is no plain file on the base (mode %s): it cannot be changed this way"
			return nil, changes, fmt.Errorf(text, name, entry.mode)
		}
		if !kept && f.match(name) {
			changes.Deletions = append(changes.Deletions, fileDeletion{name})
			continue
		}
		tree[name] = entry
	}
	for name, data := range f.Content {
		entry := treeEntry{plainFile, blobSHA(data)}
		if base[name] != entry {
			changes.Additions = append(changes.Additions, fileAddition{name, data})
		}
		tree[name] = entry
	}
	slices.SortFunc(changes.Additions, func(a, b fileAddition) int { return strings.Compare(a.Path, b.Path) })
	slices.SortFunc(changes.Deletions, func(a, b fileDeletion) int { return strings.Compare(a.Path, b.Path) })
	return tree, changes, nil
}

// blobSHA is git's name of a file's content.
func blobSHA(data []byte) string {
	h := sha1.New()
	fmt.Fprintf(h, "blob %d\x00", len(data))
	h.Write(data)
	return hex.EncodeToString(h.Sum(nil))
}
