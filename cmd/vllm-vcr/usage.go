package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/serve/simulator"
)

// Mistakes on a command line and in the environment.

// onlyCommands is the check of the arguments of a command that has others below it, and takes no arguments itself.
func onlyCommands(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return fmt.Errorf("unknown command %q for %q%s", args[0], cmd.CommandPath(), tomlfile.DidYouMean(args[0], commandsBelow(cmd), ""))
}

func commandsBelow(cmd *cobra.Command) (names []string) {
	for _, child := range cmd.Commands() {
		if child.IsAvailableCommand() {
			names = append(names, child.Name())
		}
	}
	return names
}

// aboutArguments is an error of cobra about the number of arguments, in words that name them.
func aboutArguments(cmd *cobra.Command, err error) error {
	args, names := cmd.Flags().Args(), strings.Fields(cmd.Use)[1:]
	text := err.Error()
	switch wrong := strings.HasPrefix(text, "accepts ") || strings.HasPrefix(text, "requires at least ") || strings.HasPrefix(text, "unknown command "); {
	case !wrong || cmd.HasSubCommands():
		return err
	case len(args) < len(names):
		return fmt.Errorf("%s: the argument %s is missing", cmd.CommandPath(), strings.Trim(names[len(args)], "[].…"))
	case len(names) == 0:
		return fmt.Errorf("%s takes only flags, not %q", cmd.CommandPath(), args[0])
	}
	return fmt.Errorf("%s: %q is one argument too many", cmd.CommandPath(), args[len(names)])
}

// suggestFlag adds to the error of an unknown flag the flags that may be meant: those that begin with the word, as half of
// a name is remembered more often than it is mistyped, else the nearest.
func suggestFlag(cmd *cobra.Command, err error) error {
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) && invalid.GetFlag().Value.Type() == "stringToString" {
		name, _ := pflag.UnquoteUsage(invalid.GetFlag())
		return fmt.Errorf("--%s %q: want %s", invalid.GetFlag().Name, invalid.GetValue(), name)
	}
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) || unknown.GetSpecifiedShortnames() != "" {
		return err
	}
	word := unknown.GetSpecifiedName()
	var known, longer []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		known = append(known, "--"+f.Name)
		if len(word) > 2 && strings.HasPrefix(f.Name, word+"-") {
			longer = append(longer, "--"+f.Name)
		}
	})
	if len(longer) > 0 {
		return fmt.Errorf("%w; did you mean %s?", err, strings.Join(longer, " or "))
	}
	var having []string
	for _, child := range cmd.Commands() {
		if !cmd.HasParent() && child.Flags().Lookup(word) != nil {
			having = append(having, child.CommandPath())
		}
	}
	if len(having) > 0 {
		return fmt.Errorf("%w: it is a flag of %s", err, strings.Join(having, ", "))
	}
	return fmt.Errorf("%w%s", err, tomlfile.DidYouMean("--"+word, known, ""))
}

// hasVariable reports whether a flag can be set in the environment.
func hasVariable(f *pflag.Flag) bool {
	return f.Name != "help" && f.Name != "help-all" && !simulator.IsFlag(f)
}

// envName is the variable of a flag.
func envName(flag string) string {
	return variablePrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// fromEnvironment sets the flags that the command line does not set from their variables. An empty variable counts as
// unset: a CI passes on inputs that were left empty in this way.
func (env *environment) fromEnvironment(flags *pflag.FlagSet) (err error) {
	flags.VisitAll(func(f *pflag.Flag) {
		value := env.getenv(envName(f.Name))
		if value == "" || f.Changed || !hasVariable(f) || err != nil {
			return
		}
		env.fromVariables = append(env.fromVariables, f.Name)
		if e := flags.Set(f.Name, value); e != nil {
			err = fmt.Errorf("%s: %w", envName(f.Name), e)
		}
	})
	return err
}

// namingVariables adds to an error the variables of the flags that it names, where these were set by variables.
func (env *environment) namingVariables(err error) error {
	named := strings.FieldsFunc(err.Error(), func(r rune) bool { return strings.ContainsRune(` "[]:;,()`, r) })
	inGroup := strings.HasPrefix(err.Error(), "if any flags in the group ") // of exclusive
	var set []string
	for _, flag := range env.fromVariables {
		if (slices.Contains(named, "--"+flag) || inGroup && slices.Contains(named, flag)) && !slices.Contains(named, envName(flag)) {
			set = append(set, fmt.Sprintf("%s sets --%s", envName(flag), flag))
		}
	}
	if set == nil {
		return err
	}
	return fmt.Errorf("%w (%s)", err, strings.Join(set, ", "))
}

// otherVariables are those that belong to no flag: of this program, its helper, the container, the tests and the scripts
// of this repository.
var otherVariables = []string{
	"VLLM_VCR_CACHE_DIR", "VLLM_VCR_CLUSTER_REQUEST", "VLLM_VCR_DUCKDB_PYTHON", "VLLM_VCR_ENGINES", "VLLM_VCR_EPP", "VLLM_VCR_FRONTENDS", "VLLM_VCR_LARGE_OBJECT",
	"VLLM_VCR_NETWORK", "VLLM_VCR_PD_SIDECAR", "VLLM_VCR_PEERS", "VLLM_VCR_PROGRAM", "VLLM_VCR_RELEASES", "VLLM_VCR_REQUIRE_KUBE", "VLLM_VCR_REQUIRE_PEERS",
	"VLLM_VCR_BENCH_PEER", "VLLM_VCR_SLOW", "VLLM_VCR_SOAK", "VLLM_VCR_SOAK_STREAMS", "VLLM_VCR_TEMPLATES",
}

// variablePrefix begins the names of all variables of this project; those of single tests go on with testPrefix.
const (
	variablePrefix = "VLLM_VCR_"
	testPrefix     = variablePrefix + "TEST_"
)

// knownVariables are the variables that mean something to a command of this program, or to this repository.
func knownVariables(root *cobra.Command) []string {
	known := slices.Clone(otherVariables)
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		add := func(f *pflag.Flag) {
			if !simulator.IsFlag(f) {
				known = append(known, envName(f.Name))
			}
		}
		cmd.Flags().VisitAll(add)
		cmd.PersistentFlags().VisitAll(add)
		for _, child := range cmd.Commands() {
			walk(child)
		}
	}
	walk(root)
	slices.Sort(known)
	return slices.Compact(known)
}

// warnVariables prints a warning for each variable that looks like one of this program and sets nothing: a
// misspelt one would be ignored silently.
func (env *environment) warnVariables() {
	var known []string
	for _, variable := range env.environ {
		name, value, _ := strings.Cut(variable, "=")
		if !strings.HasPrefix(name, variablePrefix) || strings.HasPrefix(name, testPrefix) || value == "" {
			continue
		}
		if known == nil {
			other := *env // a new command tree resets the variables of its flags
			known = knownVariables(newRootCommand(&other))
		}
		if _, found := slices.BinarySearch(known, name); !found {
			env.printErr(fmt.Sprintf("vllm-vcr: warning: the environment variable %s is ignored: no flag has that name%s", name, tomlfile.DidYouMean(name, known, "")))
		}
	}
}
