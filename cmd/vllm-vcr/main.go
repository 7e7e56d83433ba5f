// Command vllm-vcr checks, replays and records the boundary between vLLM
// frontends and engine cores. See README.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/process"
	"github.com/vllm-vcr/conformance/internal/base/program"
	"github.com/vllm-vcr/conformance/internal/upstream/adopt"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

func main() {
	ctx, finish := process.NotifyContext(context.Background(), conformance.ExitInfra)
	env := newEnvironment(os.Stdout, os.Stderr, os.LookupEnv)
	env.environ = os.Environ()
	code := env.main(ctx, os.Args[1:])
	finish()
	os.Exit(code)
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
		SilenceErrors: true, SilenceUsage: true, DisableSuggestions: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := env.fromEnvironment(cmd.Flags()); err != nil {
				return err
			}
			if err := env.openLog(); err != nil {
				return err
			}
			if _, err := chooseOne("--color", env.color, colorAuto, colorAlways, colorNever); err != nil {
				return err
			}
			if cmd.Name() != cobra.ShellCompRequestCmd && cmd.Name() != cobra.ShellCompNoDescRequestCmd {
				env.warnVariables(cmd.Root())
			}
			return loadProfiles(env, cmd)
		},
	}
	root.SetOut(env.stdout)
	root.SetHelpCommand(newHelpCommand(env, root))
	root.SetErr(env.stderr)
	root.SetFlagErrorFunc(flagError)
	root.PersistentFlags().BoolVarP(&env.verbose, "verbose", "v", false, "log what happens, not only what goes wrong")
	root.PersistentFlags().BoolVar(&env.quiet, "quiet", false, "do not show progress, which is a line on a terminal, and elsewhere a line every ten seconds")
	root.PersistentFlags().StringVar(&env.color, "color", colorAuto, "colors: auto (on a terminal, unless NO_COLOR is set, or wherever FORCE_COLOR is set), always, never")
	root.PersistentFlags().StringVar(&env.profiles, profilesFlag, "", "folder of wire profiles, such as 0.34.json, that count besides those of this build and before them (default the folder "+adopt.ProfilesPath+" beside compat.toml if it has any)")
	root.PersistentFlags().StringVar(&env.logFormat, "log-format", "text", "log as text or json")
	root.AddCommand(newConformCommand(env), newPlayCommand(env), newRecordCommand(env), newCompatCommand(env), newGoldenCommand(env), newCaptureCommand(env), newDriftCommand(env), newInspectCommand(env), newGithubCommand(env), newActionCommand(env), newVersionCommand(env), newReferenceCommand(env, root))
	explainArguments(root)
	addCompletion(env, root)
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
		env.twins = append(env.twins, f.Name)
		var wrong *pflag.InvalidValueError
		switch e := flags.Set(f.Name, value); {
		case errors.As(e, &wrong):
			err = valueError(envName(f.Name), f, value, wrong.Unwrap())
		case e != nil:
			err = fmt.Errorf("%s=%q: %w", envName(f.Name), value, e)
		}
	})
	return err
}

func envName(flag string) string {
	return "VLLM_VCR_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// group makes a command that only holds others refuse to do nothing.
func group(cmd *cobra.Command, children ...*cobra.Command) *cobra.Command {
	cmd.AddCommand(children...)
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return unknownCommand(cmd, args[0])
		}
		return fmt.Errorf("%s needs a command: see %s --help", cmd.CommandPath(), cmd.CommandPath())
	}
	return cmd
}

// version is set by the linker for releases.
var version string

func newVersionCommand(env *environment) *cobra.Command {
	var short bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version and the vLLM lines this binary speaks",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if short {
				_, err := fmt.Fprintln(env.stdout, buildVersion())
				return err
			}
			_, err := fmt.Fprintf(env.stdout, "vllm-vcr %s (%s, %s/%s)\nvLLM lines: %s\n", buildVersion(), runtime.Version(),
				runtime.GOOS, runtime.GOARCH, strings.Join(append([]string{protocol.Nightly}, protocol.Lines()...), " "))
			return err
		},
	}
	cmd.Flags().BoolVar(&short, "short", false, "print the version alone")
	return cmd
}

// buildVersion is the version of this binary.
func buildVersion() string { return program.Version(version) }
