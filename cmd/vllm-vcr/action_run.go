package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/sethvargo/go-githubactions"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/forge/action"
	"github.com/vllm-vcr/conformance/internal/report"
)

// runAction does what the inputs ask for. Whatever happens, the outputs verdict and
// exit-code tell how it ended: until the end, that it did not.
func runAction(ctx context.Context, env *environment) error {
	if err := setActionVerdict(env, conformance.ExitInfra); err != nil {
		return err
	}
	hideStepVariables(env)
	code, err := runActionMode(ctx, env)
	if set := setActionVerdict(env, code); set != nil && code == conformance.ExitOK {
		code, err = conformance.ExitInfra, set
	}
	if code == conformance.ExitOK {
		return nil
	}
	if err == nil {
		err = errReported
	}
	return exitError{code, err}
}

// ofStep are variables by which a step hands something on.
var ofStep = []string{"GITHUB_OUTPUT", "GITHUB_ENV", "GITHUB_PATH", "GITHUB_STATE", "GITHUB_STEP_SUMMARY"}

// hideStepVariables keeps the inputs, and the files by which a step hands something on, from the programs that this one starts:
// an engine under test that is itself made for workflows would take them for its own.
func hideStepVariables(env *environment) {
	hidden, lookup := map[string]string{}, env.lookupEnv
	for _, variable := range os.Environ() {
		name, value, _ := strings.Cut(variable, "=")
		if strings.HasPrefix(name, "INPUT_") || slices.Contains(ofStep, name) {
			hidden[name] = value
			os.Unsetenv(name)
		}
	}
	env.lookupEnv = func(name string) (string, bool) {
		if value, found := hidden[name]; found {
			return value, true
		}
		return lookup(name)
	}
}

// setActionVerdict sets the outputs of every mode.
func setActionVerdict(env *environment, code int) error {
	verdict := "error"
	switch code {
	case conformance.ExitOK:
		verdict = "pass"
	case conformance.ExitFail:
		verdict = "fail"
	case conformance.ExitVacuous:
		verdict = "vacuous"
	}
	return setOutputs(env, output{"verdict", verdict}, output{"exit-code", strconv.Itoa(code)})
}

// runActionMode runs what serves the inputs, and returns its exit code, with the error
// unless a report has said everything.
func runActionMode(ctx context.Context, env *environment) (int, error) {
	in, plan, err := readAction(env)
	for _, secret := range in.Secrets() {
		printWorkflowCommand(env, "add-mask", "", "", secret)
	}
	name := ""
	if err == nil {
		name, err = in.ArtifactName(actionJob(env))
	}
	if err != nil {
		if in["annotations"] != "off" {
			printWorkflowCommand(env, "error", "", "", err.Error())
		}
		return conformance.ExitUsage, err
	}
	log := &actionLog{w: env.stdout}
	printWorkflowCommand(env, "group", "", "", "vllm-vcr "+plan.Mode)
	code, err := newEnvironment(log.stream(logStdout), log.stream(logStderr), env.lookupEnv).execute(ctx, plan.Args)
	log.flush()
	printWorkflowCommand(env, "endgroup", "", "", "")
	if kept := setArtifactOutputs(env, plan, name); kept != nil {
		code, err = cmp.Or(code, conformance.ExitInfra), cmp.Or(err, kept)
	}
	if plan.Annotate {
		log.annotate(env, plan.Dir)
		if err != nil && !errors.Is(err, errReported) {
			printWorkflowCommand(env, "error", "", "", err.Error())
		}
	}
	// The verdict, which the group has hidden.
	if log.last != "" && plan.ReportDir != "" {
		fmt.Fprintln(env.stdout, log.last)
	}
	return code, err
}

// setArtifactOutputs tells the step that keeps the report what to keep, and under which name.
func setArtifactOutputs(env *environment, plan action.Plan, name string) error {
	if plan.ReportDir == "" || !exists(plan.ReportDir) {
		return nil
	}
	dir, err := filepath.Abs(plan.ReportDir)
	if err != nil {
		return err
	}
	return setOutputs(env, output{"artifact-name", name}, output{"report-dir", dir})
}

// printWorkflowCommand writes a command to GitHub's runner, with the place that it is about, if any.
func printWorkflowCommand(env *environment, name, file, line, message string) {
	c := githubactions.Command{Name: name, Message: message}
	if name == "error" || name == "warning" {
		c.Properties = githubactions.CommandProperties{"title": "vllm-vcr"}
		c.Message = report.OneLine(message)
	}
	if file != "" {
		c.Properties["file"], c.Properties["line"] = file, line
	}
	fmt.Fprintln(env.stdout, c.String())
}

// runActionPlan sets the outputs cache-key and cache-dir. Without anything to restore, or
// when that cannot be told, there is no key: what is wrong, the run will say.
func runActionPlan(ctx context.Context, env *environment) error {
	in, _, err := readAction(env)
	if err != nil {
		return nil
	}
	args, err := in.Key(actionDefaults(env))
	if err != nil || args == nil {
		return nil
	}
	var said strings.Builder
	asked := newEnvironment(&said, &strings.Builder{}, env.lookupEnv)
	if code, err := asked.execute(ctx, args); code != conformance.ExitOK || err != nil {
		return nil
	}
	key := strings.TrimSpace(said.String())
	if key == "" {
		return nil
	}
	dir, err := filepath.Abs(in.CacheDir(actionDefaults(env)))
	if err != nil {
		return err
	}
	return setOutputs(env, output{"cache-key", key + in.KeySuffix()}, output{"cache-dir", dir})
}
