package github_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/forge/github"
	"github.com/vllm-vcr/conformance/internal/forge/github/githubtest"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// TestIssueState follows one issue from night to night: what each leaves of it.
func TestIssueState(t *testing.T) {
	const hidden = "\n\n<!-- vllm-vcr state: STATE -->\n<!-- vllm-vcr: canary/0.34 -->"
	found := func(state, body string) github.Issue {
		return github.Issue{Key: "canary/0.34", Title: "0.34: found", Body: body, State: state, Open: true, Comment: "now " + state}
	}
	unclear := github.Issue{
		Key: "canary/0.34", Title: "0.34: unknown", Body: "index: 403", State: "unknown", Open: true, Comment: "index: 403", Unclear: true,
	}
	none := github.Issue{Key: "canary/0.34", Body: "as it was"}
	steps := []struct {
		name                   string
		edit                   string // what somebody leaves of the body in a browser, before it
		want                   github.Issue
		action                 github.Action
		state                  string
		title, body, bodyState string
		comments               []string // that are new
	}{
		{"opened", "", found("found a1", "A"), github.Created, "open", "0.34: found", "A", "found a1", nil},
		{"the same", "", found("found a1", "A"), github.Unchanged, "open", "0.34: found", "A", "found a1", nil},
		{"another text of the same state", "", found("found a1", "B"), github.Updated, "open", "0.34: found", "B", "found a1", nil},
		{"another state", "", found("found b2", "B"), github.Updated, "open", "0.34: found", "B", "found b2", []string{"now found b2"}},
		{"unclear", "", unclear, github.Updated, "open", "0.34: found", "B", "unknown", []string{"index: 403"}},
		{"unclear again", "", unclear, github.Unchanged, "open", "0.34: found", "B", "unknown", nil},
		{"clear", "", found("found b2", "C"), github.Updated, "open", "0.34: found", "C", "found b2", []string{"now found b2"}},
		{
			"edited in a browser", "C\r\n\r\n<!-- vllm-vcr state: found b2 -->\r\n<!-- vllm-vcr: canary/0.34 -->\r\n",
			found("found b2", "C"), github.Unchanged, "open", "0.34: found", "C", "found b2", nil,
		},
		{
			"edited, and unclear", "C\r\n\r\n<!-- vllm-vcr state: found b2 -->\r\n<!-- vllm-vcr: canary/0.34 -->\r\n",
			unclear, github.Updated, "open", "0.34: found", "C", "unknown",
			[]string{"index: 403"},
		},
		{"gone", "", none, github.Closed, "closed", "0.34: found", "C", "unknown", []string{"as it was"}},
		{"unclear when it is closed", "", unclear, github.Updated, "open", "0.34: unknown", "index: 403", "unknown", []string{"index: 403"}},
		{"without a comment of its own", "", github.Issue{
			Key: "canary/0.34", Title: "0.34: found", Body: "D", State: "found c3", Open: true,
		}, github.Updated, "open", "0.34: found", "D", "found c3", []string{"It has changed: now found c3."}},
		{
			"the state was removed in a browser", "D\n\n<!-- vllm-vcr: canary/0.34 -->",
			found("found d4", "D"), github.Updated, "open", "0.34: found", "D", "found d4", nil,
		},
	}
	server := start(t, nil)
	said := 0
	for _, step := range steps {
		if step.edit != "" {
			server.Issues[0].Body = step.edit
		}
		done, err := client(t, server).EnsureIssue(t.Context(), step.want)
		require.NoErrorf(t, err, "%s", step.name)
		require.Equal(t, done.Action, step.action, "%s", step.name)
		have := *server.Issues[0]
		have.Body, have.Comments = strings.ReplaceAll(have.Body, "\r\n", "\n"), have.Comments[said:]
		said += len(have.Comments)
		want := githubtest.Issue{
			Number: 1, Title: step.title, State: step.state, Author: githubtest.Login, Comments: step.comments,
			Body: step.body + strings.Replace(hidden, "STATE", step.bodyState, 1),
		}
		have.Body = strings.TrimSpace(have.Body)
		if len(have.Comments) == 0 {
			have.Comments = nil
		}
		require.NoDiff(t, cmp.Diff(want, have), "%s: issue (-want +got)", step.name)
	}
	require.Equal(t, len(server.Issues), 1, "issues")
}

func TestOpenKeys(t *testing.T) {
	server := start(t, nil)
	for _, issue := range []githubtest.Issue{
		{Author: githubtest.Login, Body: "a\n\n<!-- vllm-vcr state: found 1 -->\n<!-- vllm-vcr: canary/0.33 -->"},
		{Author: githubtest.Login, Body: "b\r\n\r\n<!-- vllm-vcr: canary/0.26 -->\r\n"},
		{Author: githubtest.Login, Body: "twice\n\n<!-- vllm-vcr: canary/0.26 -->"},
		{Author: githubtest.Login, Body: "c\n\n<!-- vllm-vcr: canary/0.25 -->", State: "closed"},
		{Author: githubtest.Login, Body: "d\n\n<!-- vllm-vcr: watch -->"},
		{Author: githubtest.Login, Body: "<!-- vllm-vcr: canary/0.24 -->\nquoted"},
		{Author: githubtest.Login, Body: "<!-- vllm-vcr: canary/<b> -->"},
		{Author: "mallory", Body: "<!-- vllm-vcr: canary/0.23 -->"},
		{Author: githubtest.Login, Body: "<!-- vllm-vcr: canary/0.22 -->", Head: "x", Base: "main"},
	} {
		issue.Number = len(server.Issues) + 1
		if issue.State == "" {
			issue.State = "open"
		}
		issue.Title = "t"
		server.Issues = append(server.Issues, &issue)
	}
	got, err := client(t, server).OpenKeys(t.Context(), "canary/")
	require.NoError(t, err)
	require.NoDiff(t, cmp.Diff([]string{"canary/0.26", "canary/0.33"}, got), "-want +got")
}
