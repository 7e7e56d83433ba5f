package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/sethvargo/go-githubactions"
	"github.com/spf13/cobra"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/forge/action"
	"github.com/vllm-vcr/conformance/internal/report"
)

// newActionCommand holds what the steps of action.yml run. It is hidden: its
// commands read INPUT_ variables, which only the action sets.
func newActionCommand(env *environment) *cobra.Command {
	run := &cobra.Command{
		Use: "run", Short: "Do what the inputs of the action ask for", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runAction(cmd.Context(), env) },
	}
	plan := &cobra.Command{
		Use: "plan", Short: "Print which goldens the action can restore from a cache", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runActionPlan(cmd.Context(), env) },
	}
	pull := &cobra.Command{
		Use: "pull-request", Short: "Open a pull request with the changes of watch", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runActionPullRequest(cmd.Context(), env) },
	}
	holder := group(&cobra.Command{Use: "action", Short: "The steps of the GitHub action"}, run, plan, pull)
	holder.Hidden = true
	return holder
}

// readAction reads the inputs and enters the working directory that they name.
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
		err = enterWorkspaceDir(env, plan.Dir)
	}
	return in, plan, err
}

// actionDefaults is what the runner has for goldens, reports and captures.
func actionDefaults(env *environment) action.Defaults {
	tools := env.getenv("RUNNER_TOOL_CACHE")
	if tools == "" {
		tools, _ = os.UserCacheDir()
	}
	temp := cmp.Or(env.getenv("RUNNER_TEMP"), os.TempDir())
	return action.Defaults{
		CacheDir: filepath.Join(tools, "vllm-vcr", "goldens"),
		// A job may use the action twice.
		ReportDir: filepath.Join(temp, "vllm-vcr-report-"+word()),
		WorkDir:   filepath.Join(temp, "vllm-vcr-capture"),
	}
}

// word returns a random word, for names.
func word() string { return strings.ToLower(rand.Text()[:8]) }

// enterWorkspaceDir enters a directory of the workspace, links followed.
func enterWorkspaceDir(env *environment, dir string) error {
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
	return env.chdir(place)
}

// actionJob is the job that this step runs in.
func actionJob(env *environment) action.Job {
	return action.Job{
		Name:    env.getenv("GITHUB_JOB"),
		OS:      cmp.Or(env.getenv("RUNNER_OS"), runtime.GOOS),
		Arch:    cmp.Or(env.getenv("RUNNER_ARCH"), runtime.GOARCH),
		Attempt: cmp.Or(env.getenv("GITHUB_RUN_ATTEMPT"), "1"),
		Step:    word(),
	}
}

// runAction does what the inputs ask for. Whatever happens, the outputs verdict and
// exit-code hold how it ended: until the end, that it did not.
func runAction(ctx context.Context, env *environment) error {
	if err := setActionVerdict(env, conformance.ExitInfra); err != nil {
		return err
	}
	env = hideStepVariables(env)
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

// stepVariables are variables by which a step hands something on.
var stepVariables = []string{"GITHUB_OUTPUT", "GITHUB_ENV", "GITHUB_PATH", "GITHUB_STATE", "GITHUB_STEP_SUMMARY"}

// hideStepVariables removes the inputs, and the files by which a step hands something on, from the environment of the programs
// that this one starts: an engine under test that is itself made for workflows would take them for its own. The environment
// that it returns still has them.
func hideStepVariables(env *environment) *environment {
	hidden, lookup := map[string]string{}, env.lookupEnv
	for _, variable := range os.Environ() {
		name, value, _ := strings.Cut(variable, "=")
		if strings.HasPrefix(name, "INPUT_") || slices.Contains(stepVariables, name) {
			hidden[name] = value
			os.Unsetenv(name)
		}
	}
	inner := *env
	inner.lookupEnv = func(name string) (string, bool) {
		if value, found := hidden[name]; found {
			return value, true
		}
		return lookup(name)
	}
	return &inner
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
// unless a report has it already.
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
	var writing sync.Mutex
	stdout, stderr := &actionLog{mu: &writing, w: env.stdout}, &actionLog{mu: &writing, w: env.stdout}
	printWorkflowCommand(env, "group", "", "", "vllm-vcr "+plan.Mode)
	inner := newEnvironment(stdout, stderr, env.lookupEnv)
	code, err := inner.execute(ctx, plan.Args)
	printWorkflowCommand(env, "endgroup", "", "", "")
	if kept := setArtifactOutputs(env, plan, name); kept != nil {
		code, err = cmp.Or(code, conformance.ExitInfra), cmp.Or(err, kept)
	}
	if plan.Annotate {
		annotateDiagnostics(env, *inner.diagnostics, plan.Dir)
		if err != nil && !errors.Is(err, errReported) {
			printWorkflowCommand(env, "error", "", "", err.Error())
		}
	}
	// The verdict, which the group has hidden.
	if plan.ReportDir != "" {
		fmt.Fprint(env.stdout, stdout.lastLine())
	}
	return code, err
}

// setArtifactOutputs sets the outputs that name the folder of the report, and the artifact to keep it as.
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
		c.Message = safetext.Line(message)
	}
	if file = cmp.Or(file, workflowFile(env)); file != "" && c.Properties != nil {
		c.Properties["file"], c.Properties["line"] = file, cmp.Or(line, "1")
	}
	fmt.Fprintln(env.stdout, c.String())
}

// runActionPlan sets the outputs cache-key and cache-dir. Without anything to restore, or
// after an error there is no key: the run will report the error.
func runActionPlan(ctx context.Context, env *environment) error {
	in, _, err := readAction(env)
	if err != nil {
		return nil
	}
	args, err := in.Key(actionDefaults(env))
	if err != nil || args == nil {
		return nil
	}
	var stdout strings.Builder
	asked := newEnvironment(&stdout, &strings.Builder{}, env.lookupEnv)
	if code, err := asked.execute(ctx, args); code != conformance.ExitOK || err != nil {
		return nil
	}
	key := strings.TrimSpace(stdout.String())
	if key == "" {
		return nil
	}
	dir, err := filepath.Abs(in.CacheDir(actionDefaults(env)))
	if err != nil {
		return err
	}
	return setOutputs(env, output{"cache-key", key + in.KeySuffix()}, output{"cache-dir", dir})
}

// runActionPullRequest brings what the mode watch has written into a pull request. Its number is the output pr. When there is none
// although there should be, the outputs verdict and exit-code are those of the error.
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
		err = enterWorkspaceDir(env, ".")
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
	title := cmp.Or(env.getenv("WATCH_TITLE"), "The compat matrix is current")
	args = append(args, "--title="+title, "--body-file="+body.Name())
	return newEnvironment(env.stdout, env.stderr, env.lookupEnv).execute(ctx, args)
}

// An actionLog takes one of the streams of a command, and passes it on to one that takes both, so that the order stays.
type actionLog struct {
	mu   *sync.Mutex
	w    io.Writer
	tail []byte
}

// maxTail is how much of a stream an [actionLog] remembers, in bytes.
const maxTail = 4 << 10

func (l *actionLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tail = append(l.tail, p...)
	l.tail = l.tail[max(0, len(l.tail)-maxTail):]
	return l.w.Write(p)
}

// lastLine is the last line that is not empty, with its end; "" if there is none.
func (l *actionLog) lastLine() string {
	text := strings.TrimRight(string(l.tail), "\n")
	if text == "" {
		return ""
	}
	return text[strings.LastIndexByte(text, '\n')+1:] + "\n"
}

// annotateDiagnostics marks diagnostics of files of the repository where they are. Another annotation says how the run ended.
func annotateDiagnostics(env *environment, diagnostics []tomlfile.Diagnostic, dir string) {
	marked := map[tomlfile.Severity]int{}
	for _, d := range diagnostics {
		_, text, _ := strings.Cut(d.String(), d.Code+" "+string(d.Severity)+": ")
		if marked[d.Severity]++; marked[d.Severity] < report.AnnotationLimit && d.Line > 0 && filepath.IsLocal(d.File) {
			printWorkflowCommand(env, string(d.Severity), path.Join(dir, filepath.ToSlash(d.File)), strconv.Itoa(d.Line), d.Code+" "+text)
		}
	}
}
