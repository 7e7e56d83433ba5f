package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sethvargo/go-githubactions"
	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/inspect/monitor"
	"github.com/vllm-vcr/conformance/internal/serve/simulator"
)

// environment is what a command has of the process that runs it: what it writes to, what it asks, and the flags that every
// command has.
//
// Output rules: stdout is the result and nothing else; stderr is progress and
// log. Messages are lower case, without a full stop.
type environment struct {
	stdout, stderr io.Writer
	lookupEnv      func(string) (string, bool)
	environ        []string // all variables, as "NAME=value"
	fromVariables  []string // names of the flags that variables have set
	args           []string // of the command line
	now            func() time.Time
	grace          time.Duration // after a signal, for a player
	chdir          func(dir string) error
	ticks          func(every time.Duration) (ticks <-chan time.Time, stop func())
	log            *slog.Logger
	quiet          bool   // show no progress
	color          string // --color
	logFormat      string
	verbose        bool
	profiles       string // folder of wire profiles in addition to those of the build, "" for none
	profilesNamed  bool   // by --profiles
	code           string // the first code that was printed to stderr, if possible of an error; empty if none was
	codeOfError    bool
	doing          *atomic.Pointer[func() string] // what the command does, for [environment.awaitRun]
	running        context.Context                // of the command
	begun          bool                           // the command line could be read
	diagnostics    *[]tomlfile.Diagnostic         // that were printed
}

func newEnvironment(stdout, stderr io.Writer, lookupEnv func(string) (string, bool)) *environment {
	return &environment{stdout: stdout, stderr: stderr, lookupEnv: lookupEnv, now: time.Now, grace: playGrace, chdir: os.Chdir, ticks: realTicks, running: context.Background(), doing: new(atomic.Pointer[func() string]), diagnostics: new([]tomlfile.Diagnostic)}
}

// above is the environment of a command whose terminal has a last line that is redrawn: it writes to stderr above that line.
func (env *environment) above(screen *monitor.Screen) *environment {
	inner := *env
	inner.stderr = screen
	inner.openLog()
	return &inner
}

// exitError is an error that chooses the exit code.
type exitError struct {
	code int
	err  error
}

func (e exitError) Error() string { return e.err.Error() }
func (e exitError) Unwrap() error { return e.err }

// errReported ends a command whose report has everything already.
var errReported = errors.New("")

// main runs the command line and returns the exit code.
func (env *environment) main(ctx context.Context, args []string) int {
	code, err := env.execute(ctx, args)
	if err != nil && !errors.Is(err, errReported) {
		env.printErr(fmt.Sprintf("vllm-vcr: error: %v", err))
	}
	if env.code != "" {
		env.printErr(explained(env.code))
	}
	return code
}

// explained names the command that explains a code.
func explained(code string) string { return "explain: vllm-vcr help " + code }

// execute runs the command line and returns the exit code, with the reason unless that is 0.
func (env *environment) execute(ctx context.Context, args []string) (int, error) {
	args = simulator.Arguments(args)
	root := newRootCommand(env, args...)
	if len(args) > 0 && isCompletion(args[0]) {
		addCompletion(env, root)
	}
	root.InitDefaultCompletionCmd(args...)
	if completion, _, err := root.Find([]string{"completion"}); err == nil {
		group(completion) // cobra's own prints help for the name of no shell, and succeeds
	}
	env.args, env.running = args, ctx
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return conformance.ExitOK, nil
	}
	if !env.begun {
		err = fmt.Errorf("%w (usage: %s; see --help)", aboutArguments(cmd, err), cmd.UseLine())
	}
	var coded exitError
	if errors.As(err, &coded) {
		return coded.code, err
	}
	return conformance.ExitUsage, env.namingVariables(err)
}

// getenv is the value of an environment variable, "" if it is not set.
func (env *environment) getenv(name string) string {
	value, _ := env.lookupEnv(name)
	return value
}

// printedCode finds the code of a diagnostic, and that of a failure in an error.
var printedCode = lazyregexp.New(`(?:^|: )([A-Z]\d{3}) (error|warning): `)

// printErr writes lines to stderr that have parts of files and subjects in them. The command that explains the first code,
// if possible that of an error, is printed at the end.
func (env *environment) printErr(text any) {
	if d, isDiagnostic := text.(tomlfile.Diagnostic); isDiagnostic {
		*env.diagnostics = append(*env.diagnostics, d)
	}
	said := fmt.Sprint(text)
	if found := printedCode().FindStringSubmatch(said); found != nil {
		isError := found[2] == "error"
		if env.code == "" || isError && !env.codeOfError {
			env.code, env.codeOfError = found[1], isError
		}
	}
	_ = safetext.Fprint(env.stderr, said) // there is no other place to report it
}

func (env *environment) openLog() {
	env.log = safetext.NewLog(env.stderr, env.verbose, env.logFormat)
}

// An output is a value that a step of a GitHub workflow hands on to others.
type output struct{ Name, Value string }

// outputFence ends a value in the file that GitHub reads: a value that has it could set other outputs.
const outputFence = "_GitHubActionsFileCommandDelimeter_"

// addOutputFlag adds the flag of the commands that set outputs.
func addOutputFlag(flags *pflag.FlagSet, wanted *bool) {
	flags.BoolVar(wanted, "github-output", false, "also write the outputs of the GitHub Actions step, to the file $GITHUB_OUTPUT")
}

// setOutputs hands values on to the next steps of a workflow.
func setOutputs[T ~struct{ Name, Value string }](env *environment, outputs ...T) (err error) {
	path := env.getenv("GITHUB_OUTPUT")
	if path == "" {
		return errors.New("--github-output: GITHUB_OUTPUT is not set: this does not run as a step of a GitHub workflow")
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
		action.SetOutput(output(o).Name, strings.ReplaceAll(output(o).Value, outputFence, "(fence)"))
	}
	return nil
}

// growHeap lets the heap grow by so many percent before it is collected, and collects more often from a limit in bytes on, if that is not 0,
// until restore is called. GOGC and GOMEMLIMIT, if they are given, have precedence.
func (env *environment) growHeap(percent int, limit int64) (restore func()) {
	_, hasPercent := env.lookupEnv("GOGC")
	_, hasLimit := env.lookupEnv("GOMEMLIMIT")
	percentBefore, limitBefore := -1, int64(-1)
	if !hasPercent {
		percentBefore = debug.SetGCPercent(percent)
	}
	if !hasLimit && limit > 0 {
		limitBefore = debug.SetMemoryLimit(limit)
	}
	return func() {
		if !hasPercent {
			debug.SetGCPercent(percentBefore)
		}
		debug.SetMemoryLimit(limitBefore) // a negative one changes nothing
	}
}
