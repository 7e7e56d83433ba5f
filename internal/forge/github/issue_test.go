package github_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/forge/github"
	"github.com/vllm-vcr/conformance/internal/forge/github/githubtest"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func drift() github.Issue {
	return github.Issue{Key: "drift", Title: "vLLM 0.34 differs", Body: "F001\r\nin 3 goldens", Labels: []string{"drift"}, Open: true}
}

const issuesPath = "/repos/vllm-vcr/conformance/issues"

func TestIssueLife(t *testing.T) {
	server := start(t, nil)
	opened := drift()
	updated := drift()
	updated.Body, updated.Title, updated.Labels = "F002", "vLLM 0.35 differs", []string{"Drift", "0.35"}
	gone := github.Issue{Key: "drift"}
	goneBecause := github.Issue{Key: "drift", Body: "vLLM 0.35.1 is as it was."}

	steps := []struct {
		name    string
		want    github.Issue
		action  github.Action
		changes []string
	}{
		{"nothing to close", gone, github.Unchanged, nil},
		{"open", opened, github.Created, []string{"POST " + issuesPath}},
		{"again", opened, github.Unchanged, nil},
		{"update", updated, github.Updated, []string{"PATCH " + issuesPath + "/1", "POST " + issuesPath + "/1/labels"}},
		{"update again", updated, github.Unchanged, nil},
		{"close", goneBecause, github.Closed, []string{"PATCH " + issuesPath + "/1", "POST " + issuesPath + "/1/comments"}},
		{"close again", gone, github.Unchanged, nil},
		{"reopen", updated, github.Updated, []string{"PATCH " + issuesPath + "/1", "POST " + issuesPath + "/1/comments"}},
		{"reopen again", updated, github.Unchanged, nil},
		{"close without a word", gone, github.Closed, []string{"PATCH " + issuesPath + "/1", "POST " + issuesPath + "/1/comments"}},
		{"reopen with another body", opened, github.Updated, []string{
			"PATCH " + issuesPath + "/1", "PATCH " + issuesPath + "/1", "POST " + issuesPath + "/1/comments",
		}},
	}
	for _, step := range steps {
		c := client(t, server, func(o *github.Options) { o.Run = "https://github.com/o/r/actions/runs/1" })
		done, err := c.EnsureIssue(t.Context(), step.want)
		require.NoErrorf(t, err, "%s", step.name)
		require.Equal(t, done.Action, step.action, "%s", step.name)
		require.NoDiff(t, cmp.Diff(step.changes, server.Changes()), "%s: requests (-want +got)", step.name)
		require.True(t, len(server.Issues) == 0 || (done.Number == 1 && done.URL != ""), "%s: got %+v, want issue 1", step.name, done)
	}
	const run = "\n\nRun: https://github.com/o/r/actions/runs/1"
	want := []*githubtest.Issue{{
		Number: 1, Title: "vLLM 0.34 differs", Body: "F001\nin 3 goldens\n\n<!-- vllm-vcr: drift -->", State: "open",
		Author: githubtest.Login, Labels: []string{"drift", "0.35"},
		Comments: []string{
			"vLLM 0.35.1 is as it was." + run, "It is there again: reopened." + run,
			"It is no longer there: closed." + run, "It is there again: reopened." + run,
		},
	}}
	require.NoDiff(t, cmp.Diff(want, server.Issues), "issues (-want +got)")
}

func TestIssueIsFoundAmongOthers(t *testing.T) {
	const marker = "text\n\n<!-- vllm-vcr: drift -->"
	ours := githubtest.Issue{Author: githubtest.Login, Title: "vLLM 0.34 differs", Body: marker, Labels: []string{"drift"}}
	with := func(change func(*githubtest.Issue)) githubtest.Issue {
		i := ours
		change(&i)
		return i
	}
	tests := []struct {
		name   string
		issues []githubtest.Issue // and after them 130 others of ours
		number int
		action github.Action
	}{
		{"on the second page", []githubtest.Issue{ours}, 1, github.Updated},
		{
			"of somebody else",
			[]githubtest.Issue{with(func(i *githubtest.Issue) { i.Author = "mallory" })},
			132, github.Created,
		},
		{
			"marker in the text only",
			[]githubtest.Issue{with(func(i *githubtest.Issue) { i.Body += "\n\nmore" })},
			132, github.Created,
		},
		{
			"another key",
			[]githubtest.Issue{with(func(i *githubtest.Issue) { i.Body = "<!-- vllm-vcr: drift-2 -->" })},
			132, github.Created,
		},
		{
			"a pull request",
			[]githubtest.Issue{with(func(i *githubtest.Issue) { i.Head, i.Base = "x", "main" })},
			132, github.Created,
		},
		{
			"edited in a browser",
			[]githubtest.Issue{with(func(i *githubtest.Issue) { i.Body = "F001\r\nin 3 goldens\r\n\r\n<!-- vllm-vcr: drift -->\r\n" })},
			1, github.Unchanged,
		},
		{
			"the newest of closed ones",
			[]githubtest.Issue{
				with(func(i *githubtest.Issue) { i.State = "closed" }), with(func(i *githubtest.Issue) { i.State = "closed" }),
			},
			2, github.Updated,
		},
		{"an open one before newer ones that are closed", []githubtest.Issue{
			ours, with(func(i *githubtest.Issue) { i.State = "closed" }),
		}, 1, github.Updated},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server := start(t, nil)
			for _, i := range test.issues {
				server.Open(i)
			}
			for i := range 131 - len(test.issues) {
				server.Open(githubtest.Issue{Author: githubtest.Login, Title: fmt.Sprint("other ", i), State: "closed"})
			}
			server.AnyCreator = test.number == 132 // whether or not the list is what was asked for
			done, err := client(t, server).EnsureIssue(t.Context(), drift())
			require.NoError(t, err)
			require.True(t, done.Number == test.number && done.Action == test.action, "got %+v, want #%d %s", done, test.number, test.action)
		})
	}
}

// Two runs at once may both have opened one.
func TestIssueOpenedTwiceIsClosedOnce(t *testing.T) {
	server := start(t, nil)
	for range 3 {
		server.Open(githubtest.Issue{Author: githubtest.Login, Body: "<!-- vllm-vcr: drift -->"})
	}
	for range 2 {
		if _, err := client(t, server).EnsureIssue(t.Context(), drift()); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for _, i := range server.Issues {
		got = append(got, fmt.Sprint(i.Number, i.State, i.Comments))
	}
	want := []string{"1open[]", "2closed[The same as #1: closed.]", "3closed[The same as #1: closed.]"}
	require.NoDiff(t, cmp.Diff(want, got), "issues (-want +got)")
}

func TestLongBodyIsCutAtALine(t *testing.T) {
	server := start(t, nil)
	issue := drift()
	issue.Body = strings.Repeat(strings.Repeat("ä", 50)+"\n", 1000)
	for _, want := range []github.Action{github.Created, github.Unchanged} {
		done, err := client(t, server).EnsureIssue(t.Context(), issue)
		if err != nil || done.Action != want {
			t.Fatalf("got %v, %v, want %s", done, err, want)
		}
	}
	body := server.Issues[0].Body
	if len(body) > 61_000 || !strings.HasSuffix(body, "ä\n\n(cut here: the rest is in the run's report)\n\n<!-- vllm-vcr: drift -->") {
		t.Errorf("%d bytes, ending %q", len(body), body[len(body)-200:])
	}
}

func TestIssueRefused(t *testing.T) {
	tests := []struct {
		name, want string
		issue      github.Issue
	}{
		{"no key", "key", github.Issue{Title: "t", Open: true}},
		{"key that ends the comment", "key", github.Issue{Key: "a-->", Title: "t", Open: true}},
		{"no title", "title", github.Issue{Key: "k", Open: true}},
		{"title of two lines", "title", github.Issue{Key: "k", Title: "a\nb", Open: true}},
		{"state of two lines", "state", github.Issue{Key: "k", Title: "t", State: "a\nb", Open: true}},
		{"state that ends the comment", "state", github.Issue{Key: "k", Title: "t", State: "a -->", Open: true}},
		{"long title", "title", github.Issue{Key: "k", Title: strings.Repeat("x", 251), Open: true}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server := start(t, nil)
			_, err := client(t, server).EnsureIssue(t.Context(), test.issue)
			require.ErrorContains(t, err, test.want)
			if changes := server.Changes(); changes != nil {
				t.Errorf("requests: %q", changes)
			}
		})
	}
}

func TestDryRunChangesNothing(t *testing.T) {
	server := start(t, nil)
	dry := client(t, server, func(o *github.Options) { o.DryRun = true })
	wet := client(t, server)
	for _, want := range []github.Issue{drift(), {Key: "drift"}, drift()} {
		would, err := dry.EnsureIssue(t.Context(), want)
		require.NoError(t, err)
		if changes := server.Changes(); changes != nil {
			t.Errorf("requests: %q", changes)
		}
		done, err := wet.EnsureIssue(t.Context(), want)
		require.True(t, err == nil && done.Action == would.Action, "got %+v, %v, after a dry run that said %s", done, err, would.Action)
		server.Changes()
	}
}
