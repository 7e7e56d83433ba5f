// Command vllm-vcr checks, replays and records the boundary between vLLM
// frontends and engine cores. See README.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/base/jsonout"
	"github.com/vllm-vcr/conformance/internal/base/process"
	"github.com/vllm-vcr/conformance/internal/base/program"
	"github.com/vllm-vcr/conformance/internal/upstream/adopt"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

func main() {
	log.SetOutput(io.Discard) // libraries log there what they also return
	ctx, finish := process.NotifyContext(context.Background(), conformance.ExitInfra)
	env := newEnvironment(os.Stdout, os.Stderr, os.LookupEnv)
	env.environ = os.Environ()
	code := env.main(ctx, os.Args[1:])
	finish()
	os.Exit(code)
}

// A child is a command directly below the root.
type child struct {
	name string
	make func(*environment) *cobra.Command
}

// children are the commands below the root. Its help sorts them.
func children() []child {
	return []child{
		{"conform", newConformCommand},
		{"play", newPlayCommand},
		{"serve", newServeCommand},
		{"record", newRecordCommand},
		{"compat", newCompatCommand},
		{"golden", newGoldenCommand},
		{"capture", newCaptureCommand},
		{"drift", newDriftCommand},
		{"inspect", newInspectCommand},
		{"github", newGithubCommand},
		{"action", newActionCommand},
		{"version", newVersionCommand},
		{"cli-reference", newReferenceCommand},
	}
}

// newCommandFor is the command tree as far as a command line needs it: if it begins with the name of a command, without the
// others. To make all of them takes a tenth of the time in which a player starts.
func newCommandFor(env *environment, args []string) *cobra.Command {
	for _, c := range children() {
		if len(args) > 0 && args[0] == c.name {
			return newRoot(env, c.make(env))
		}
	}
	return newRootCommand(env)
}

// newRootCommand is the whole command tree.
func newRootCommand(env *environment) *cobra.Command {
	var all []*cobra.Command
	for _, c := range children() {
		all = append(all, c.make(env))
	}
	return newRoot(env, all...)
}

// newRoot is the root of a command tree. Every flag has a twin in the environment.
func newRoot(env *environment, children ...*cobra.Command) *cobra.Command {
	helpAll := false
	root := &cobra.Command{
		Use:   "vllm-vcr",
		Short: "Test both sides of the connection between a vLLM frontend and an engine core",
		Long: "vllm-vcr tests, without a GPU, whether a vLLM frontend or a vLLM engine core still sends exactly what " +
			"the released engine of its vLLM line sent. A line is a vLLM release series, such as 0.33. A golden is a " +
			"recorded session of a released engine.\n\n" +
			"Every flag can also be set by an environment variable: --golden by VLLM_VCR_GOLDEN. The command line " +
			"takes precedence. An empty variable counts as unset.\n\n" +
			"Exit codes:\n" +
			"  0  success: no gating line failed\n" +
			"  1  a conformance failure\n" +
			"  2  an error in the command line or in a configuration file\n" +
			"  3  an error of the infrastructure: network, disk, a process that did not start, an interrupt\n" +
			"  4  nothing was checked\n\n" +
			"Guides: vllm-vcr help engine-author, frontend-author, router-author, troubleshooting; vllm-vcr help --help " +
			"lists all topics. Documentation: " + docsURL,
		Example: "  vllm-vcr conform\n" +
			"  vllm-vcr conform --engine-command './my-engine {handshake} {trace}'\n" +
			"  vllm-vcr play --help",
		// Printed behind the name and "version". A template of our own would link text/template, which keeps every exported
		// method of every type: 8 MB.
		Version:       strings.TrimSpace(strings.TrimPrefix(versionText(), "vllm-vcr ")),
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
			if !isCompletion(cmd.Name()) {
				env.warnVariables()
			}
			return loadProfiles(env, cmd)
		},
	}
	root.SetOut(env.stdout)
	root.SetHelpCommand(newHelpCommand(env, root))
	root.SetErr(env.stderr)
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) { fmt.Fprint(env.stdout, helpText(cmd, helpAll)) })
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if helpAll {
			return pflag.ErrHelp
		}
		return flagError(cmd, err)
	})
	flags := root.PersistentFlags()
	flags.Var(helpFlag{&helpAll}, "help-all", "print this help with all flags")
	mustLookup(flags, "help-all").NoOptDefVal = "true"
	flags.BoolVarP(&env.verbose, "verbose", "v", false, "also log what the command does; without it, only warnings and errors are logged")
	flags.BoolVar(&env.quiet, "quiet", false, "show no progress; without it, progress is a line on a terminal, and elsewhere a line every ten seconds")
	flags.StringVar(&env.color, "color", colorAuto, "colors: auto (on a terminal unless NO_COLOR is set, and wherever FORCE_COLOR is set), always or never")
	flags.StringVar(&env.logFormat, "log-format", "text", "format of the log on stderr: text or json")
	flags.StringVar(&env.profiles, profilesFlag, "", "`FOLDER` of wire profiles, such as 0.34.json, that are used in addition to the built-in ones and take precedence over them (default the folder "+adopt.ProfilesPath+" beside compat.toml, if it has profiles)")
	common(flags, "help-all", "verbose")
	root.AddCommand(children...)
	explainArguments(root)
	return root
}

// helpFlag ends the parsing of a command line, whatever else is wrong with it: its help is wanted.
type helpFlag struct{ all *bool }

func (helpFlag) String() string   { return "" }
func (helpFlag) Type() string     { return "bool" }
func (helpFlag) IsBoolFlag() bool { return true }

func (f helpFlag) Set(string) error {
	*f.all = true
	return pflag.ErrHelp
}

// hasVariable reports whether a flag can be set in the environment.
func hasVariable(f *pflag.Flag) bool {
	return f.Name != "help" && f.Name != "help-all" && !isSimulator(f)
}

// fromEnvironment sets the flags that the command line left alone from their
// twins, or else from the twins of names that they had. A CI passes on inputs that nobody filled in as empty variables.
func (env *environment) fromEnvironment(flags *pflag.FlagSet) (err error) {
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed || !hasVariable(f) || err != nil {
			return
		}
		for _, name := range slices.Concat([]string{f.Name}, f.Annotations[noteOld]) {
			value, set := env.lookupEnv(envName(name))
			if !set || value == "" {
				continue
			}
			env.twins = append(env.twins, twin{f.Name, envName(name)})
			var wrong *pflag.InvalidValueError
			switch e := flags.Set(f.Name, value); {
			case errors.As(e, &wrong):
				err = valueError(envName(name), f, value, wrong.Unwrap())
			case e != nil:
				err = fmt.Errorf("%s=%q: %w", envName(name), value, e)
			}
			return
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
	var short, asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of vllm-vcr and the vLLM lines it supports",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if asJSON {
				return jsonout.Write(env.stdout, versionResult())
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
func buildVersion() string { return program.Version(version) }
