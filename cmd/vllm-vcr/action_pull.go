package main

import (
	"cmp"
	"context"
	"fmt"
	"os"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/forge/action"
)

// runActionPullRequest brings what the mode watch has written into a pull request. Its number is the output pr. When there is none
// although there should be, the outputs verdict and exit-code say so.
func runActionPullRequest(ctx context.Context, env *environment) error {
	code, err := openPullRequest(ctx, env)
	if code == conformance.ExitOK {
		return nil
	}
	if set := setActionVerdict(env, code); set != nil {
		err = cmp.Or(err, set)
	}
	printWorkflowCommand(env, "error", "", "", fmt.Sprintf("the pull request: %v", err))
	return exitError{code, err}
}

func openPullRequest(ctx context.Context, env *environment) (int, error) {
	in := action.Read(env.lookupEnv)
	args, err := in.PullRequest(env.getenv("GITHUB_REF"))
	if err == nil {
		err = workspaceDir(env, ".")
	}
	if err != nil {
		return conformance.ExitUsage, err
	}
	body, err := os.CreateTemp(env.getenv("RUNNER_TEMP"), "vllm-vcr-*.md")
	if err != nil {
		return conformance.ExitInfra, err
	}
	defer os.Remove(body.Name())
	_, err = body.WriteString(env.getenv("WATCH_BODY"))
	if err = cmp.Or(err, body.Close()); err != nil {
		return conformance.ExitInfra, err
	}
	// Also when nothing is to be changed: the pull request of an earlier run may be out of date.
	title := cmp.Or(env.getenv("WATCH_TITLE"), "The support window is current")
	args = append(args, "--title="+title, "--body-file="+body.Name())
	return newEnvironment(env.stdout, env.stderr, env.lookupEnv).execute(ctx, args)
}
