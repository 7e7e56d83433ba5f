// Command vllm-vcr checks, replays and records the boundary between vLLM
// frontends and engine cores. See README.md.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/jsonout"
	"github.com/vllm-vcr/conformance/internal/base/process"
	"github.com/vllm-vcr/conformance/internal/serve/simulator"
	"github.com/vllm-vcr/conformance/internal/upstream/drift"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

func main() {
	log.SetOutput(io.Discard) // libraries log there what they also return
	ctx, finish := process.NotifyContext(context.Background(), conformance.ExitInfra)
	env := newEnvironment(os.Stdout, os.Stderr, os.LookupEnv)
	env.environ = os.Environ()
	code := env.main(ctx, simulator.CommandLine(os.Args))
	finish()
	os.Exit(code)
}

// newRootCommand makes the command tree. Every flag can also be set by a variable of the environment. For a command line that
// begins with the name of a command it makes only that one: all of them take a seventh of the time until a player is READY.
func newRootCommand(env *environment, args ...string) *cobra.Command {
	root := &cobra.Command{
		Use:           "vllm-vcr",
		Short:         "Test both sides of the connection between a vLLM frontend and an engine core",
		Version:       strings.TrimSpace(strings.TrimPrefix(versionText(), "vllm-vcr ")),
		SilenceErrors: true, SilenceUsage: true,
		Args: onlyCommands,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			env.begun = true
			if err := env.fromEnvironment(cmd.Flags()); err != nil {
				return err
			}
			if err := checkFlags(cmd.Flags()); err != nil {
				return err
			}
			env.openLog()
			if !isCompletion(cmd.Name()) {
				env.warnVariables()
			}
			return loadProfiles(env, cmd)
		},
	}
	root.SetOut(env.stdout)
	root.SetHelpCommand(newHelpCommand(env, root))
	root.SetErr(env.stderr)
	setTemplates(root)
	root.SetFlagErrorFunc(suggestFlag)
	flags := root.PersistentFlags()
	flags.VarPF(new(helpFlag), "help-all", "", "print this help with all flags").NoOptDefVal = "true"
	flags.BoolVarP(&env.verbose, "verbose", "v", false, "also log what the command does; without it, only warnings and errors are logged")
	flags.BoolVar(&env.quiet, "quiet", false, "show no progress; without it, progress is a line on a terminal, and elsewhere a line every ten seconds")
	oneOf(flags, &env.color, "color", colorAuto, "colors: auto (on a terminal unless NO_COLOR is set, and wherever FORCE_COLOR is set), always or never", colorAuto, colorAlways, colorNever)
	oneOf(flags, &env.logFormat, "log-format", formText, "format of the log on stderr: text or json", formText, formJSON)
	flags.StringVar(&env.profiles, profilesFlag, "", "`FOLDER` of wire profiles, such as 0.34.json, that are used in addition to the built-in ones and take precedence over them (default the folder "+drift.ProfilesPath+" next to compat.toml, if it has profiles)")
	common(flags, "help-all", "verbose")
	commands := map[string]func(*environment) *cobra.Command{
		"conform": newConformCommand, "board": newBoardCommand, "play": newPlayCommand, "serve": newServeCommand, "record": newRecordCommand,
		"github": groupOf("github", "Open, update or close an issue or a pull request on GitHub", newGithubIssueCommand, newGithubPullRequestCommand),
		"compat": groupOf("compat", "Manage compat.toml, the matrix of supported vLLM lines",
			newCompatCheckCommand, newCompatMatrixCommand, newCompatSetCommand, newCompatSkewCommand, newCompatWatchCommand),
		"golden": groupOf("golden", "Manage goldens, the recorded sessions of released engines",
			newGoldenAddCommand, newGoldenListCommand, newGoldenShowCommand, newGoldenPullCommand, newGoldenVerifyCommand, newGoldenBundleCommand, newGoldenExportCommand),
		"capture": groupOf("capture", "Capture goldens from released engines",
			newCaptureLoadCommand, newCapturePodCommand, newCaptureListCommand, newCaptureRenderCommand, newCaptureEngineCommand, newCaptureNIXLCommand, newCaptureRunCommand,
			newCaptureSubmitCommand, newCaptureStatusCommand, newCaptureFetchCommand, newCaptureCleanCommand, newCaptureDescribeCommand, newCaptureCredentialCommand),
		"deploy": groupOf("deploy", "Deploy servers without GPUs, and what routes requests to them", newDeployRenderCommand),
		"drift": groupOf("drift", "Find what a vLLM release changed in the protocol between frontend and engine core",
			newDriftCheckCommand, newDriftExtractCommand, newDriftDiffCommand, newDriftAdoptCommand, newDriftAcceptCommand, newDriftHistoryCommand,
			newDriftReleasesCommand, newDriftIssuesCommand),
		"inspect": groupOf("inspect", "Show what is in a trace, and predict times from traces",
			interruptible(newInspectCalibrateCommand), interruptible(newInspectCompareCommand), interruptible(newInspectConvertCommand),
			newInspectDemoCommand, interruptible(newInspectSummaryCommand), interruptible(newInspectTimelineCommand)),
		"action": newActionCommand, "version": newVersionCommand,
		"cli-reference": newReferenceCommand,
	}
	if len(args) > 0 && commands[args[0]] != nil {
		root.AddCommand(commands[args[0]](env))
		describe(root)
		return root
	}
	for _, make := range commands { // cobra sorts them
		root.AddCommand(make(env))
	}
	describe(root)
	return root
}

// helpFlag is --help-all. It ends the parsing of a command line, whatever else is wrong with it.
type helpFlag bool

func (f *helpFlag) String() string   { return strconv.FormatBool(bool(*f)) }
func (f *helpFlag) Type() string     { return "bool" }
func (f *helpFlag) IsBoolFlag() bool { return true }

func (f *helpFlag) Set(string) error {
	*f = true
	return pflag.ErrHelp
}

// groupOf makes commands of a name that only hold others.
func groupOf(name, short string, makers ...func(*environment) *cobra.Command) func(*environment) *cobra.Command {
	return func(env *environment) *cobra.Command {
		var children []*cobra.Command
		for _, maker := range makers {
			children = append(children, maker(env))
		}
		return group(&cobra.Command{Use: name, Short: short}, children...)
	}
}

// group makes a command that only holds others.
func group(cmd *cobra.Command, children ...*cobra.Command) *cobra.Command {
	cmd.AddCommand(children...)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return fmt.Errorf("%s needs a command: %s", cmd.CommandPath(), strings.Join(commandsBelow(cmd), ", "))
		}
		return onlyCommands(cmd, args)
	}
	cmd.RunE = func(*cobra.Command, []string) error { return nil } // its arguments are always wrong
	return cmd
}

// version is set by the linker for releases.
var version string

func newVersionCommand(env *environment) *cobra.Command {
	var short, asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of vllm-vcr and the vLLM lines it supports",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if asJSON {
				return jsonout.Write(env.stdout, versionJSON{
					schemaOf("version"), buildVersion(), buildCommit(), runtime.Version(), runtime.GOOS, runtime.GOARCH, append([]string{protocol.Nightly}, protocol.Lines()...),
				})
			}
			if short {
				_, err := fmt.Fprintln(env.stdout, buildVersion())
				return err
			}
			_, err := io.WriteString(env.stdout, versionText())
			return err
		},
	}
	cmd.Flags().BoolVar(&short, "short", false, "print only the version of vllm-vcr")
	addJSONFlag(cmd.Flags(), &asJSON)
	return cmd
}

func versionText() string {
	return fmt.Sprintf("vllm-vcr %s (%s, %s/%s)\nvLLM lines: %s\n", buildVersion(), runtime.Version(),
		runtime.GOOS, runtime.GOARCH, strings.Join(append([]string{protocol.Nightly}, protocol.Lines()...), " "))
}

// buildVersion is the version of this binary.
func buildVersion() string { return process.Version(version) }
