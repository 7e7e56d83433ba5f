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

// actionRun does what the inputs ask for. Whatever happens, the outputs verdict and
// exit-code tell how it ended: until the end, that it did not.
func (a *app) actionRun(ctx context.Context) error {
	if err := a.setActionVerdict(conformance.ExitInfra); err != nil {
		return err
	}
	a.hideStep()
	code, err := a.actionServe(ctx)
	if set := a.setActionVerdict(code); set != nil && code == conformance.ExitOK {
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

// hideStep keeps the inputs, and the files by which a step hands something on, from the programs that this one starts:
// an engine under test that is itself made for workflows would take them for its own.
func (a *app) hideStep() {
	hidden, lookup := map[string]string{}, a.lookupEnv
	for _, variable := range os.Environ() {
		name, value, _ := strings.Cut(variable, "=")
		if strings.HasPrefix(name, "INPUT_") || slices.Contains(ofStep, name) {
			hidden[name] = value
			os.Unsetenv(name)
		}
	}
	a.lookupEnv = func(name string) (string, bool) {
		if value, found := hidden[name]; found {
			return value, true
		}
		return lookup(name)
	}
}

// setActionVerdict sets the outputs of every mode.
func (a *app) setActionVerdict(code int) error {
	verdict := "error"
	switch code {
	case conformance.ExitOK:
		verdict = "pass"
	case conformance.ExitFail:
		verdict = "fail"
	case conformance.ExitVacuous:
		verdict = "vacuous"
	}
	return a.setOutputs(output{"verdict", verdict}, output{"exit-code", strconv.Itoa(code)})
}

// actionServe runs what serves the inputs, and returns its exit code, with the error
// unless a report has said everything.
func (a *app) actionServe(ctx context.Context) (int, error) {
	in, plan, err := a.readAction()
	for _, secret := range in.Secrets() {
		a.issue("add-mask", "", "", secret)
	}
	name := ""
	if err == nil {
		name, err = in.ArtifactName(a.job())
	}
	if err != nil {
		if in["annotations"] != "off" {
			a.issue("error", "", "", err.Error())
		}
		return conformance.ExitUsage, err
	}
	log := &actionLog{w: a.stdout}
	a.issue("group", "", "", "vllm-vcr "+plan.Mode)
	code, err := newApp(log.stream(logStdout), log.stream(logStderr), a.lookupEnv).execute(ctx, plan.Args)
	log.flush()
	a.issue("endgroup", "", "", "")
	if kept := a.setArtifact(plan, name); kept != nil {
		code, err = cmp.Or(code, conformance.ExitInfra), cmp.Or(err, kept)
	}
	if plan.Annotate {
		log.annotate(a, plan.Dir)
		if err != nil && !errors.Is(err, errReported) {
			a.issue("error", "", "", err.Error())
		}
	}
	// The verdict, which the group has hidden.
	if log.last != "" && plan.ReportDir != "" {
		fmt.Fprintln(a.stdout, log.last)
	}
	return code, err
}

// setArtifact tells the step that keeps the report what to keep, and under which name.
func (a *app) setArtifact(plan action.Plan, name string) error {
	if plan.ReportDir == "" || !exists(plan.ReportDir) {
		return nil
	}
	dir, err := filepath.Abs(plan.ReportDir)
	if err != nil {
		return err
	}
	return a.setOutputs(output{"artifact-name", name}, output{"report-dir", dir})
}

// issue writes a command to GitHub's runner, with the place that it is about, if any.
func (a *app) issue(name, file, line, message string) {
	c := githubactions.Command{Name: name, Message: message}
	if name == "error" || name == "warning" {
		c.Properties = githubactions.CommandProperties{"title": "vllm-vcr"}
		c.Message = report.OneLine(message)
	}
	if file != "" {
		c.Properties["file"], c.Properties["line"] = file, line
	}
	fmt.Fprintln(a.stdout, c.String())
}

// actionPlan sets the outputs cache-key and cache-dir. Without anything to restore, or
// when that cannot be told, there is no key: what is wrong, the run will say.
func (a *app) actionPlan(ctx context.Context) error {
	in, _, err := a.readAction()
	if err != nil {
		return nil
	}
	args, err := in.Key(a.usual())
	if err != nil || args == nil {
		return nil
	}
	var said strings.Builder
	asked := newApp(&said, &strings.Builder{}, a.lookupEnv)
	if code, err := asked.execute(ctx, args); code != conformance.ExitOK || err != nil {
		return nil
	}
	key := strings.TrimSpace(said.String())
	if key == "" {
		return nil
	}
	dir, err := filepath.Abs(in.CacheDir(a.usual()))
	if err != nil {
		return err
	}
	return a.setOutputs(output{"cache-key", key + in.KeySuffix()}, output{"cache-dir", dir})
}
