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

// actionCommand holds what the steps of action.yml run. It is hidden: nobody else has
// a use for commands that read INPUT_ variables.
func (a *app) actionCommand() *cobra.Command {
	run := &cobra.Command{
		Use: "run", Short: "Do what the inputs of the action ask for", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.actionRun(cmd.Context()) },
	}
	plan := &cobra.Command{
		Use: "plan", Short: "Tell the action which goldens it may restore from a cache", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.actionPlan(cmd.Context()) },
	}
	pull := &cobra.Command{
		Use: "pull-request", Short: "Bring what watch has written into a pull request", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.actionPull(cmd.Context()) },
	}
	holder := group(&cobra.Command{Use: "action", Short: "The steps of the GitHub action"}, run, plan, pull)
	holder.Hidden = true
	return holder
}

// readAction reads the inputs and goes where they say.
func (a *app) readAction() (action.Inputs, action.Plan, error) {
	in := action.Read(a.lookupEnv)
	for _, name := range []string{"cache-dir", "report-dir"} {
		if rest, ok := strings.CutPrefix(in[name], "~/"); ok {
			home, err := os.UserHomeDir()
			if err != nil {
				return in, action.Plan{}, fmt.Errorf("input %s: %w", name, err)
			}
			in[name] = filepath.Join(home, rest)
		}
	}
	plan, err := in.Plan(a.usual())
	if err == nil {
		err = a.enter(plan.Dir)
	}
	return in, plan, err
}

// usual is what the runner has for goldens, reports and captures.
func (a *app) usual() action.Usual {
	tools := a.orEnv("", "RUNNER_TOOL_CACHE")
	if tools == "" {
		tools, _ = os.UserCacheDir()
	}
	temp := cmp.Or(a.orEnv("", "RUNNER_TEMP"), os.TempDir())
	return action.Usual{
		CacheDir: filepath.Join(tools, "vllm-vcr", "goldens"),
		// A job may use the action twice.
		ReportDir: filepath.Join(temp, "vllm-vcr-report-"+word()),
		WorkDir:   filepath.Join(temp, "vllm-vcr-capture"),
	}
}

// word is one that nobody else has.
func word() string { return strings.ToLower(rand.Text()[:8]) }

// enter goes to a directory of the workspace, links followed.
func (a *app) enter(dir string) error {
	workspace, err := filepath.EvalSymlinks(cmp.Or(a.orEnv("", "GITHUB_WORKSPACE"), "."))
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

// job tells where this step runs.
func (a *app) job() action.Job {
	return action.Job{
		Name:    a.orEnv("", "GITHUB_JOB"),
		OS:      cmp.Or(a.orEnv("", "RUNNER_OS"), runtime.GOOS),
		Arch:    cmp.Or(a.orEnv("", "RUNNER_ARCH"), runtime.GOARCH),
		Attempt: cmp.Or(a.orEnv("", "GITHUB_RUN_ATTEMPT"), "1"),
		Step:    word(),
	}
}
