package main

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/vllm-vcr/conformance/internal/forge/action"
)

// newActionCommand holds what the steps of action.yml run. It is hidden: nobody else has
// a use for commands that read INPUT_ variables.
func newActionCommand(env *environment) *cobra.Command {
	run := &cobra.Command{
		Use: "run", Short: "Do what the inputs of the action ask for", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runAction(cmd.Context(), env) },
	}
	plan := &cobra.Command{
		Use: "plan", Short: "Tell the action which goldens it may restore from a cache", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runActionPlan(cmd.Context(), env) },
	}
	pull := &cobra.Command{
		Use: "pull-request", Short: "Bring what watch has written into a pull request", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runActionPullRequest(cmd.Context(), env) },
	}
	holder := group(&cobra.Command{Use: "action", Short: "The steps of the GitHub action"}, run, plan, pull)
	holder.Hidden = true
	return holder
}

// readAction reads the inputs and goes where they say.
func readAction(env *environment) (action.Inputs, action.Plan, error) {
	in := action.Read(env.lookupEnv)
	for _, name := range []string{"cache-dir", "report-dir"} {
		if rest, ok := strings.CutPrefix(in[name], "~/"); ok {
			home, err := os.UserHomeDir()
			if err != nil {
				return in, action.Plan{}, fmt.Errorf("input %s: %w", name, err)
			}
			in[name] = filepath.Join(home, rest)
		}
	}
	plan, err := in.Plan(actionDefaults(env))
	if err == nil {
		err = workspaceDir(env, plan.Dir)
	}
	return in, plan, err
}

// actionDefaults is what the runner has for goldens, reports and captures.
func actionDefaults(env *environment) action.Usual {
	tools := env.getenv("RUNNER_TOOL_CACHE")
	if tools == "" {
		tools, _ = os.UserCacheDir()
	}
	temp := cmp.Or(env.getenv("RUNNER_TEMP"), os.TempDir())
	return action.Usual{
		CacheDir: filepath.Join(tools, "vllm-vcr", "goldens"),
		// A job may use the action twice.
		ReportDir: filepath.Join(temp, "vllm-vcr-report-"+word()),
		WorkDir:   filepath.Join(temp, "vllm-vcr-capture"),
	}
}

// word is one that nobody else has.
func word() string { return strings.ToLower(rand.Text()[:8]) }

// workspaceDir goes to a directory of the workspace, links followed.
func workspaceDir(env *environment, dir string) error {
	workspace, err := filepath.EvalSymlinks(cmp.Or(env.getenv("GITHUB_WORKSPACE"), "."))
	if err != nil {
		return fmt.Errorf("GITHUB_WORKSPACE: %w", err)
	}
	place, err := filepath.EvalSymlinks(filepath.Join(workspace, filepath.FromSlash(dir)))
	if err != nil {
		return fmt.Errorf("input working-directory: %w: is the repository checked out", err)
	}
	if below, err := filepath.Rel(workspace, place); err != nil || !filepath.IsLocal(below) {
		return fmt.Errorf("input working-directory is %q, which is a link out of the workspace", dir)
	}
	return os.Chdir(place)
}

// actionJob tells where this step runs.
func actionJob(env *environment) action.Job {
	return action.Job{
		Name:    env.getenv("GITHUB_JOB"),
		OS:      cmp.Or(env.getenv("RUNNER_OS"), runtime.GOOS),
		Arch:    cmp.Or(env.getenv("RUNNER_ARCH"), runtime.GOARCH),
		Attempt: cmp.Or(env.getenv("GITHUB_RUN_ATTEMPT"), "1"),
		Step:    word(),
	}
}
