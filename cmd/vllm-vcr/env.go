package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/report"
	"github.com/vllm-vcr/conformance/internal/upstream/adopt"
)

// app is the command line: its effects on the outside are its fields.
//
// Output rules: stdout is the result and nothing else; stderr is progress and
// log. Messages are lower case, without a full stop.
type environment struct {
	stdout, stderr io.Writer
	lookupEnv      func(string) (string, bool)
	log            *slog.Logger
	logFormat      string
	verbose        bool
	bundled        map[string][]byte // files out of a bundle, by the names that they are given
	profiles       string            // folder of wire profiles besides the build's own; empty if there is none
	profilesNamed  bool              // by --profiles
}

func newEnvironment(stdout, stderr io.Writer, lookupEnv func(string) (string, bool)) *environment {
	return &environment{stdout: stdout, stderr: stderr, lookupEnv: lookupEnv}
}

// exitError is an error that chooses the exit code.
type exitError struct {
	code int
	err  error
}

func (e exitError) Error() string { return e.err.Error() }
func (e exitError) Unwrap() error { return e.err }

// errReported ends a command whose report has said everything already.
var errReported = errors.New("")

// main runs the command line and returns the exit code.
func (env *environment) main(ctx context.Context, args []string) int {
	code, err := env.execute(ctx, args)
	if err != nil && !errors.Is(err, errReported) {
		env.printErr(fmt.Sprintf("vllm-vcr: error: %v", err))
	}
	return code
}

// execute runs the command line and returns the exit code, with the reason unless that is 0.
func (env *environment) execute(ctx context.Context, args []string) (int, error) {
	root := newRootCommand(env)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return conformance.ExitOK, nil
	}
	var coded exitError
	if errors.As(err, &coded) {
		return coded.code, err
	}
	return conformance.ExitUsage, err
}

// getenv is the value of an environment variable, "" if it is not set.
func (env *environment) getenv(name string) string {
	value, _ := env.lookupEnv(name)
	return value
}

// printErr writes lines to stderr that have parts of files and subjects in them.
func (env *environment) printErr(text any) {
	for line := range strings.SplitSeq(fmt.Sprint(text), "\n") {
		fmt.Fprintln(env.stderr, report.OneLine(line))
	}
}

// logLines writes a log, a line a call, of which no line is a command to a CI.
type logLines struct{ w io.Writer }

func (l logLines) Write(p []byte) (int, error) {
	_, err := fmt.Fprintln(l.w, report.OneLine(strings.TrimSuffix(string(p), "\n")))
	return len(p), err
}

// newRootCommand is the command tree. Every flag has a twin in the environment.
func newRootCommand(env *environment) *cobra.Command {
	root := &cobra.Command{
		Use:   "vllm-vcr",
		Short: "Check, replay and record the vLLM engine-core boundary",
		Long: "vllm-vcr tells whether a side of the vLLM engine-core boundary still speaks, and says, exactly\n" +
			"what the real engine of each vLLM line did. No GPU is needed.\n\n" +
			"Every flag can be set in the environment: --golden is VLLM_VCR_GOLDEN. The command line wins, and an\n" +
			"empty variable is as good as none.\n" +
			"Exit codes: 0 all gates hold, 1 conformance failure, 2 usage or configuration,\n" +
			"3 infrastructure, 4 nothing was asserted.",
		SilenceErrors: true, SilenceUsage: true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := env.fromEnvironment(cmd.Flags()); err != nil {
				return err
			}
			if err := env.openLog(); err != nil {
				return err
			}
			return loadProfiles(env, cmd)
		},
	}
	root.SetOut(env.stdout)
	root.SetErr(env.stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w: see %s --help", err, cmd.CommandPath())
	})
	root.PersistentFlags().BoolVarP(&env.verbose, "verbose", "v", false, "log what happens, not only what goes wrong")
	root.PersistentFlags().StringVar(&env.profiles, profilesFlag, "", "folder of wire profiles, such as 0.34.json, that count besides those of this build and before them (default the folder "+adopt.ProfilesPath+" beside compat.toml if it has any)")
	root.PersistentFlags().StringVar(&env.logFormat, "log-format", "text", "log as text or json")
	root.AddCommand(newConformCommand(env), newPlayCommand(env), newRecordCommand(env), newCompatCommand(env), newGoldenCommand(env), env.captureCommand(), newDriftCommand(env), newInspectCommand(env), newGithubCommand(env), newActionCommand(env), newVersionCommand(env), newReferenceCommand(env, root))
	return root
}

// fromEnvironment sets the flags that the command line left alone from their
// twins. A CI passes on inputs that nobody filled in as empty variables.
func (env *environment) fromEnvironment(flags *pflag.FlagSet) (err error) {
	flags.VisitAll(func(f *pflag.Flag) {
		value, set := env.lookupEnv(envName(f.Name))
		if !set || value == "" || f.Changed || f.Name == "help" || err != nil {
			return
		}
		if e := flags.Set(f.Name, value); e != nil {
			err = fmt.Errorf("%s=%q: %w", envName(f.Name), value, e)
		}
	})
	return err
}

// group makes a command that only holds others refuse to do nothing.
func group(cmd *cobra.Command, children ...*cobra.Command) *cobra.Command {
	cmd.AddCommand(children...)
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return fmt.Errorf("unknown command %q for %q: see %s --help", args[0], cmd.CommandPath(), cmd.CommandPath())
		}
		return fmt.Errorf("%s needs a command: see %s --help", cmd.CommandPath(), cmd.CommandPath())
	}
	return cmd
}

func envName(flag string) string {
	return "VLLM_VCR_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

func (env *environment) openLog() error {
	opt := &slog.HandlerOptions{Level: slog.LevelWarn}
	if env.verbose {
		opt.Level = slog.LevelDebug
	}
	switch env.logFormat {
	case "text":
		env.log = slog.New(slog.NewTextHandler(logLines{env.stderr}, opt))
	case "json":
		env.log = slog.New(slog.NewJSONHandler(logLines{env.stderr}, opt))
	default:
		return fmt.Errorf("--log-format %q: want text or json", env.logFormat)
	}
	return nil
}
