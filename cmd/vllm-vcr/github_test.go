package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/vllm-vcr/conformance/internal/forge/github/githubtest"
)

type githubKey struct{}

// TestGitHubScripts runs testdata/github/*.txtar, each with a GitHub of its own, in the environment of a step of a
// workflow. Besides the usual commands they have exits, as [TestScripts], and
//
//	push BRANCH NAME LINE      commits a file as somebody else
//	list                       prints issues, pull requests and branches to ./github
func TestGitHubScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:   "testdata/github",
		Setup: setUpGitHub,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"documented": documented, "exits": exits, "push": pushGitHub, "list": listGitHub,
		},
		UpdateScripts:       *update,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
	})
}

func setUpGitHub(env *testscript.Env) error {
	server, err := githubtest.Start("../../testdata/github", map[string]string{"compat.toml": "tag = \"v0.33.0\"\n"})
	if err != nil {
		return err
	}
	env.Values[githubKey{}] = server
	env.Defer(func() {
		server.Close()
		if problems := server.Violations(); len(problems) > 0 {
			env.T().Fatal(strings.Join(problems, "\n"))
		}
	})
	env.Setenv("GITHUB_API_URL", server.URL)
	env.Setenv("GITHUB_TOKEN", githubtest.Token)
	env.Setenv("GITHUB_REPOSITORY", githubtest.Owner+"/"+githubtest.Name)
	env.Setenv("GITHUB_SERVER_URL", "https://github.com")
	env.Setenv("GITHUB_RUN_ID", "17")
	env.Setenv("MAIN", server.Head("main").SHA)
	return nil
}

func pushGitHub(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: push BRANCH NAME LINE")
	}
	ts.Value(githubKey{}).(*githubtest.Server).Push(args[0], "octocat", map[string]string{args[1]: args[2] + "\n"})
}

func listGitHub(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: list")
	}
	server := ts.Value(githubKey{}).(*githubtest.Server)
	var text strings.Builder
	for _, i := range server.Issues {
		fmt.Fprintf(&text, "#%d %s %q %q %q %q\n", i.Number, i.State, i.Title, i.Body, i.Labels, i.Comments)
	}
	fmt.Fprintf(&text, "%q\n", slices.Sorted(maps.Keys(server.Refs)))
	ts.Check(os.WriteFile(ts.MkAbs("github"), []byte(text.String()), 0o600))
}
