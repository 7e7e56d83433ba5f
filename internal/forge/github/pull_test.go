package github_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/forge/github"
	"github.com/vllm-vcr/conformance/internal/forge/github/githubtest"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

const (
	branch    = "auto/rc"
	pullsPath = "/repos/vllm-vcr/conformance/pulls"
	oldCompat = "tag = \"v0.33.0\"\n"
	newCompat = "tag = \"v0.33.1\"\n"
)

func repository() map[string]string {
	return map[string]string{"compat.toml": oldCompat, "README.md": "# read me\n", "goldens/a.gz": "a", "goldens/b.gz": "b"}
}

func roll(content string) github.PullRequest {
	return github.PullRequest{
		Branch: branch, Base: "main", Title: "Roll vLLM", Body: "| line | tag |", Labels: []string{"vllm"},
		Files: github.Files{Patterns: []string{"compat.toml"}, Content: map[string][]byte{"compat.toml": []byte(content)}},
	}
}

func TestPullRequestLife(t *testing.T) {
	server := start(t, repository())
	first, second, nothing := roll(newCompat), roll("tag = \"v0.34.0\"\n"), roll(oldCompat)
	draft := first
	draft.Draft, draft.Title, draft.Labels = true, "Roll vLLM again", []string{"VLLM", "rc"}
	commits := []string{"POST /graphql Refs", "POST /graphql Commit", "POST /graphql Refs"}
	steps := []struct {
		name    string
		before  func()
		want    github.PullRequest
		action  github.Action
		number  int
		changes []string
	}{
		{name: "nothing to do", want: nothing, action: github.Unchanged},
		{
			name: "create", want: first, action: github.Created, number: 1,
			changes: append(commits[:3:3], "POST "+pullsPath, "POST "+issuesPath+"/1/labels"),
		},
		{name: "again", want: first, action: github.Unchanged, number: 1},
		{name: "other files", want: second, action: github.Updated, number: 1, changes: commits},
		{name: "other files again", want: second, action: github.Unchanged, number: 1},
		{
			name: "base moved", before: func() { server.Push("main", "octocat", map[string]string{"README.md": "# more\n"}) },
			want: second, action: github.Updated, number: 1, changes: commits,
		},
		{name: "base moved, again", want: second, action: github.Unchanged, number: 1},
		{
			name: "title and labels", want: func() github.PullRequest { p := draft; p.Files = second.Files; return p }(),
			action: github.Updated, number: 1, changes: []string{"PATCH " + pullsPath + "/1", "POST " + issuesPath + "/1/labels"},
		},
		{
			name: "merged by squashing", before: func() {
				server.Push("main", "octocat", map[string]string{"compat.toml": "tag = \"v0.34.0\"\n"})
			},
			want: second, action: github.Closed, number: 1,
			changes: []string{"PATCH " + pullsPath + "/1", "POST " + issuesPath + "/1/comments", "POST /graphql Refs"},
		},
		{name: "no difference", want: second, action: github.Unchanged},
		{
			name: "a new one", want: draft, action: github.Created, number: 2,
			changes: append(commits[:3:3], "POST "+pullsPath, "POST "+issuesPath+"/2/labels"),
		},
		{
			name: "closed by hand", before: func() { server.Issues[1].State = "closed" }, want: draft, action: github.Created,
			number: 3, changes: []string{"POST " + pullsPath, "POST " + issuesPath + "/3/labels"},
		},
		{
			name: "branch deleted by hand", before: func() { server.Issues[2].State = "closed"; delete(server.Refs, branch) },
			want: draft, action: github.Created, number: 4, changes: append(commits[:3:3], "POST "+pullsPath, "POST "+issuesPath+"/4/labels"),
		},
	}
	for _, step := range steps {
		if step.before != nil {
			step.before()
		}
		done, err := client(t, server).EnsurePullRequest(t.Context(), step.want)
		require.NoErrorf(t, err, "%s", step.name)
		require.True(t, done.Action == step.action && done.Number == step.number, "%s: got %+v, want %s #%d", step.name, done, step.action, step.number)
		require.NoDiff(t, cmp.Diff(step.changes, server.Changes()), "%s: requests (-want +got)", step.name)
		checkBranch(t, server, step.name, step.want, step.number != 0 && step.action != github.Closed)
	}
	if got := server.Issues[1]; !got.Draft || got.Title != draft.Title || !strings.HasSuffix(got.Body, "\n\n<!-- vllm-vcr: auto/rc -->") {
		t.Errorf("got %+v", got)
	}
	require.NoDiff(t, cmp.Diff([]string{"vllm", "rc"}, server.Issues[0].Labels), "labels (-want +got)")
}

// checkBranch holds what must be so after every step.
func checkBranch(t *testing.T, server *githubtest.Server, step string, want github.PullRequest, there bool) {
	t.Helper()
	if _, left := server.Refs[branch+"-next"]; left {
		t.Errorf("%s: branch %s-next is left over", step, branch)
	}
	head := server.Head(branch)
	if (head != nil) != there {
		t.Fatalf("%s: branch %s is there: %v, want %v", step, branch, head != nil, there)
	}
	if head == nil {
		return
	}
	if !head.Verified || head.Parent != server.Refs["main"] || !strings.HasSuffix(head.Message, "\n\nMade-by: vllm-vcr for auto/rc") {
		t.Errorf("%s: commit %+v, want one of ours on main", step, head)
	}
	for name, content := range want.Files.Content {
		require.True(t, head.Has(name, string(content)), "%s: the branch has another %s", step, name)
	}
}

func TestPullRequestAddsAndDeletes(t *testing.T) {
	server := start(t, repository())
	want := roll(newCompat)
	want.Files = github.Files{
		Patterns: []string{"goldens/*.gz"},
		Content:  map[string][]byte{"goldens/b.gz": []byte("b"), "goldens/c.gz": {0, 255, 10}, "goldens/empty.gz": {}},
	}
	if _, err := client(t, server).EnsurePullRequest(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	head := server.Head(branch)
	if _, ok := head.Tree["goldens/a.gz"]; ok || len(head.Tree) != 5 {
		t.Errorf("the branch has %v", head.Tree)
	}
	require.True(t, head.Has("goldens/c.gz", "\x00\xff\n") && head.Has("goldens/empty.gz", "") && head.Has("compat.toml", oldCompat), "the branch has %v", head.Tree)
}

func TestBranchOfPeopleIsLeft(t *testing.T) {
	other, wanted := map[string]string{"compat.toml": "x"}, map[string]string{"compat.toml": newCompat}
	const theirs = "of somebody else"
	ours := githubtest.Commit{Author: githubtest.Login, Message: "Roll\n\nMade-by: vllm-vcr for auto/rc", Verified: true}
	with := func(change func(*githubtest.Commit)) githubtest.Commit {
		c := ours
		change(&c)
		return c
	}
	tests := []struct {
		name    string
		commit  githubtest.Commit
		files   map[string]string
		refused string
	}{
		{"ours with other files", ours, other, ""},
		{"without our line", with(func(c *githubtest.Commit) { c.Message = "Roll" }), other, theirs},
		{"the wanted files, without our line", with(func(c *githubtest.Commit) { c.Message = "Roll" }), wanted, theirs},
		{"of another branch", with(func(c *githubtest.Commit) { c.Message += "-2" }), other, theirs},
		{"not signed", with(func(c *githubtest.Commit) { c.Verified = false }), other, theirs},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server := start(t, repository())
			head := server.PushCommit(branch, test.commit, test.files)
			_, err := client(t, server).EnsurePullRequest(t.Context(), roll(newCompat))
			var refused *github.RefusedError
			if errors.As(err, &refused) != (test.refused != "") || err != nil && !strings.Contains(err.Error(), test.refused) {
				t.Fatalf("got %v, want a refusal: %q", err, test.refused)
			}
			require.Equal(t, server.Head(branch) == head, test.refused != "", "branch left as it is")
			if changes := server.Changes(); test.refused != "" && changes != nil {
				t.Errorf("requests: %q", changes)
			}
		})
	}
}

func TestPeopleMayWorkOnOurBranch(t *testing.T) {
	server := start(t, repository())
	if _, err := client(t, server).EnsurePullRequest(t.Context(), roll(newCompat)); err != nil {
		t.Fatal(err)
	}
	head := server.Push(branch, "octocat", map[string]string{"profile.json": "{}"})
	server.Changes()
	done, err := client(t, server).EnsurePullRequest(t.Context(), roll(newCompat))
	require.True(t, err == nil && done.Action == github.Unchanged && done.Number == 1 && len(done.Notes) == 1, "got %+v, %v, want it to be left with a note", done, err)
	for _, content := range []string{"tag = \"v0.34.0\"\n", oldCompat} {
		var refused *github.RefusedError
		_, err = client(t, server).EnsurePullRequest(t.Context(), roll(content))
		require.True(t, errors.As(err, &refused) && strings.Contains(err.Error(), "auto/rc has 2 commits"), "got %v, want a refusal", err)
	}
	if changes := server.Changes(); changes != nil || server.Head(branch) != head {
		t.Errorf("requests: %q", changes)
	}
}

// Somebody pushes after the branch was looked at.
func TestPushMeanwhileIsKept(t *testing.T) {
	server := start(t, repository())
	if _, err := client(t, server).EnsurePullRequest(t.Context(), roll(newCompat)); err != nil {
		t.Fatal(err)
	}
	var pushed *githubtest.Commit
	server.Inject(githubtest.Fault{Request: "GET " + strings.TrimSuffix(issuesPath, "issues") + "compare"})
	server.Inject(githubtest.Fault{Request: "POST /graphql"}) // the session
	server.Inject(githubtest.Fault{Request: "POST /graphql"}) // the staging branch
	server.Inject(githubtest.Fault{Request: "POST /graphql", Before: func(s *githubtest.Server) {
		pushed = s.Push(branch, "octocat", map[string]string{"profile.json": "{}"})
	}})
	_, err := client(t, server).EnsurePullRequest(t.Context(), roll("tag = \"v0.34.0\"\n"))
	require.ErrorContains(t, err, "move branch auto/rc")
	require.True(t, pushed != nil && server.Head(branch) == pushed, "the commit of somebody else is lost")
	// What is left over does not matter to the next run, once people have made room.
	delete(server.Refs, branch)
	server.Issues[0].State = "closed"
	if _, err := client(t, server).EnsurePullRequest(t.Context(), roll(newCompat)); err != nil {
		t.Fatal(err)
	}
	checkBranch(t, server, "next run", roll(newCompat), true)
}

// The base has had our commit, as it is, and no longer has what it brought.
func TestMergedAndTakenBack(t *testing.T) {
	server := start(t, repository())
	if _, err := client(t, server).EnsurePullRequest(t.Context(), roll(newCompat)); err != nil {
		t.Fatal(err)
	}
	server.PushCommit("main", githubtest.Commit{Author: "octocat", Parent: server.Refs[branch]}, nil)
	server.Push("main", "octocat", map[string]string{"compat.toml": oldCompat})
	server.Issues[0].State = "closed"
	done, err := client(t, server).EnsurePullRequest(t.Context(), roll(newCompat))
	require.True(t, err == nil && done.Action == github.Created && done.Number == 2, "got %+v, %v, want a new one", done, err)
	checkBranch(t, server, "again", roll(newCompat), true)
}

func TestEditOfAnOldBase(t *testing.T) {
	tests := []struct {
		name   string
		files  map[string]string
		failed bool
	}{
		{"other files changed", map[string]string{"README.md": "# more\n"}, false},
		{"the same file changed", map[string]string{"compat.toml": "tag = \"v0.32.9\"\n"}, true},
		{"the same change was made", map[string]string{"compat.toml": newCompat}, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server := start(t, repository())
			want := roll(newCompat)
			want.EditedFrom = server.Refs["main"]
			server.Push("main", "octocat", test.files)
			_, err := client(t, server).EnsurePullRequest(t.Context(), want)
			require.True(t, (err != nil) == test.failed && (err == nil || strings.Contains(err.Error(), "main has changed the same files since")), "got %v, want an error: %v", err, test.failed)
		})
	}
}

func TestPullRequestRefused(t *testing.T) {
	tests := []struct {
		name, want string
		change     func(*github.PullRequest, *githubtest.Server)
	}{
		{"the default branch", "people work on", func(p *github.PullRequest, _ *githubtest.Server) { p.Branch, p.Base = "main", "dev" }},
		{"the base", "people work on", func(p *github.PullRequest, _ *githubtest.Server) { p.Branch, p.Base = "dev", "dev" }},
		{"no such base", "has no branch release", func(p *github.PullRequest, _ *githubtest.Server) { p.Base = "release" }},
		{"bad name", "branch \"a..b\"", func(p *github.PullRequest, _ *githubtest.Server) { p.Branch = "a..b" }},
		{"name with a query", "branch \"a?b\"", func(p *github.PullRequest, _ *githubtest.Server) { p.Branch = "a?b" }},
		{"no files", "needs files", func(p *github.PullRequest, _ *githubtest.Server) { p.Files = github.Files{} }},
		{"no title", "title", func(p *github.PullRequest, _ *githubtest.Server) { p.Title = "" }},
		{"bad commit", "40 hex digits", func(p *github.PullRequest, _ *githubtest.Server) { p.EditedFrom = "main" }},
		{"link on the base", "mode 120000", func(_ *github.PullRequest, s *githubtest.Server) {
			s.Head("main").Modes = map[string]string{"compat.toml": "120000"}
		}},
		{"pull request of somebody", "lacks the hidden last line", func(_ *github.PullRequest, s *githubtest.Server) {
			s.Push(branch, "octocat", map[string]string{"x": "y"})
			s.Open(githubtest.Issue{Author: "octocat", Head: branch, Base: "main"})
		}},
		{"pull request into another branch", "into dev, not into main", func(_ *github.PullRequest, s *githubtest.Server) {
			s.Push("dev", "octocat", map[string]string{"x": "y"})
			s.Push(branch, "octocat", map[string]string{"x": "z"})
			s.Open(githubtest.Issue{Author: githubtest.Login, Head: branch, Base: "dev", Body: "<!-- vllm-vcr: auto/rc -->"})
		}},
		{"protected branch", "rule violations found: a rule of the repository protects the branch: exempt it", func(_ *github.PullRequest, s *githubtest.Server) {
			s.Protected = map[string]string{branch: "Repository rule violations found"}
		}},
		{"branch protected in the old way", "protects the branch", func(_ *github.PullRequest, s *githubtest.Server) {
			s.Protected = map[string]string{branch + "-next": "Protected branch update failed for refs/heads/auto/rc-next."}
		}},
		{"not allowed in the settings", "allow it in the repository's Settings", func(_ *github.PullRequest, s *githubtest.Server) {
			s.Inject(githubtest.Fault{
				Request: "POST " + pullsPath, Status: 403,
				Body: `{"message":"GitHub Actions is not permitted to create or approve pull requests."}`,
			})
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server := start(t, repository())
			server.Push("dev", "octocat", nil)
			want := roll(newCompat)
			test.change(&want, server)
			_, err := client(t, server).EnsurePullRequest(t.Context(), want)
			require.ErrorContains(t, err, test.want)
		})
	}
}

func TestDryPullRequestChangesNothing(t *testing.T) {
	server := start(t, repository())
	dry := client(t, server, func(o *github.Options) { o.DryRun = true })
	for _, content := range []string{newCompat, "other", oldCompat} {
		would, err := dry.EnsurePullRequest(t.Context(), roll(content))
		require.NoError(t, err)
		if changes := server.Changes(); changes != nil {
			t.Errorf("requests: %q", changes)
		}
		done, err := client(t, server).EnsurePullRequest(t.Context(), roll(content))
		require.True(t, err == nil && done.Action == would.Action, "got %+v, %v, after a dry run that said %s", done, err, would.Action)
		server.Changes()
	}
}
