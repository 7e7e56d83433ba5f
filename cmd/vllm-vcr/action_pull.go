package main

import (
	"cmp"
	"context"
	"fmt"
	"os"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/forge/action"
)

// actionPull brings what the mode watch has written into a pull request. Its number is the output pr. When there is none
// although there should be, the outputs verdict and exit-code say so.
func (a *app) actionPull(ctx context.Context) error {
	code, err := a.actionPulled(ctx)
	if code == conformance.ExitOK {
		return nil
	}
	if set := a.setActionVerdict(code); set != nil {
		err = cmp.Or(err, set)
	}
	a.issue("error", "", "", fmt.Sprintf("the pull request: %v", err))
	return exitError{code, err}
}

func (a *app) actionPulled(ctx context.Context) (int, error) {
	in := action.Read(a.lookupEnv)
	args, err := in.PullRequest(a.orEnv("", "GITHUB_REF"))
	if err == nil {
		err = a.enter(".")
	}
	if err != nil {
		return conformance.ExitUsage, err
	}
	body, err := os.CreateTemp(a.orEnv("", "RUNNER_TEMP"), "vllm-vcr-*.md")
	if err != nil {
		return conformance.ExitInfra, err
	}
	defer os.Remove(body.Name())
	_, err = body.WriteString(a.orEnv("", "WATCH_BODY"))
	if err = cmp.Or(err, body.Close()); err != nil {
		return conformance.ExitInfra, err
	}
	// Also when nothing is to be changed: the pull request of an earlier run may be out of date.
	title := cmp.Or(a.orEnv("", "WATCH_TITLE"), "The support window is current")
	args = append(args, "--title="+title, "--body-file="+body.Name())
	return newApp(a.stdout, a.stderr, a.lookupEnv).execute(ctx, args)
}
