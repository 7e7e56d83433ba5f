package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/sethvargo/go-githubactions"
	"github.com/spf13/pflag"
)

// An output is a value that a step of a GitHub workflow hands on to others.
type output struct{ name, value string }

// outputFence ends a value in the file that GitHub reads: a value that has it could set other outputs.
const outputFence = "_GitHubActionsFileCommandDelimeter_"

// addOutputFlag adds the flag of the commands that set outputs.
func addOutputFlag(flags *pflag.FlagSet, wanted *bool) {
	flags.BoolVar(wanted, "github-output", false, "also set the outputs of a GitHub step, in the file that $GITHUB_OUTPUT names")
}

// setOutputs hands values on to the next steps of a workflow.
func setOutputs(env *environment, outputs ...output) (err error) {
	path := env.getenv("GITHUB_OUTPUT")
	if path == "" {
		return errors.New("--github-output: GITHUB_OUTPUT is not set: this is no step of a GitHub workflow")
	}
	for _, o := range outputs {
		if strings.Contains(o.value, outputFence) {
			return fmt.Errorf("output %s: its value has %s in it", o.name, outputFence)
		}
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("GITHUB_OUTPUT: %w", err)
	}
	if err := file.Close(); err != nil {
		return fmt.Errorf("GITHUB_OUTPUT: %w", err)
	}
	// The library panics when it cannot write.
	defer func() {
		if failed := recover(); failed != nil {
			err = fmt.Errorf("GITHUB_OUTPUT: %v", failed)
		}
	}()
	action := githubactions.New(githubactions.WithGetenv(func(name string) string { return env.getenv(name) }))
	for _, o := range outputs {
		action.SetOutput(o.name, o.value)
	}
	return nil
}
