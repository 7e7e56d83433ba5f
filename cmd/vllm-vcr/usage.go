package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
)

// Mistakes on a command line and in the environment: the messages name what was written, where, and what is wanted.

// explainArguments replaces what cobra writes about arguments ("accepts 1 arg(s), received 0") by the names that the
// usage of each command has for them. How many a command accepts stays with the command.
func explainArguments(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			err := check(cmd, args)
			if err != nil && (strings.Contains(err.Error(), " arg(s)") || strings.HasPrefix(err.Error(), "unknown command ")) {
				return argumentError(cmd, args, err)
			}
			return err
		}
	}
	for _, child := range cmd.Commands() {
		explainArguments(child)
	}
}

// argumentError names the argument that is missing, or the first that is too many.
func argumentError(cmd *cobra.Command, args []string, err error) error {
	_, usage, _ := strings.Cut(cmd.Use, " ")
	var wanted []string
	repeats := false
	for _, word := range strings.Fields(usage) {
		name := strings.TrimSuffix(strings.TrimSuffix(strings.Trim(word, "[]"), "…"), "...")
		repeats = repeats || name != strings.Trim(word, "[]")
		if len(args) <= len(wanted) && !strings.HasPrefix(word, "[") {
			return fmt.Errorf("%s: the argument %s is missing: see %s --help", cmd.CommandPath(), name, cmd.CommandPath())
		}
		wanted = append(wanted, name)
	}
	switch {
	case repeats || len(args) <= len(wanted):
		return err
	case cmd.HasAvailableSubCommands():
		return unknownCommand(cmd, args[0])
	case len(wanted) == 0:
		return fmt.Errorf("%s takes no arguments, but %q is one: see %s --help", cmd.CommandPath(), args[0], cmd.CommandPath())
	}
	return fmt.Errorf("%s: the argument %q is too many: want only %s: see %s --help",
		cmd.CommandPath(), args[len(wanted)], strings.Join(wanted, " and "), cmd.CommandPath())
}

// unknownCommand is the error of a word that stands where a command of cmd belongs.
func unknownCommand(cmd *cobra.Command, word string) error {
	var known []string
	for _, child := range cmd.Commands() {
		if child.IsAvailableCommand() {
			known = append(known, child.Name())
		}
	}
	return fmt.Errorf("unknown command %q for %q%s", word, cmd.CommandPath(), tomlfile.DidYouMean(word, known, "see "+cmd.CommandPath()+" --help"))
}

// flagError is the error of a flag that cannot be read.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	var wrong *pflag.InvalidValueError
	help := "see " + cmd.CommandPath() + " --help"
	switch {
	case errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() == "":
		return fmt.Errorf("unknown flag: --%s%s", unknown.GetSpecifiedName(), nearFlag(cmd, unknown.GetSpecifiedName(), help))
	case errors.As(err, &wrong):
		err = valueError("--"+wrong.GetFlag().Name, wrong.GetFlag(), wrong.GetValue(), wrong.Unwrap())
	}
	return fmt.Errorf("%w: %s", err, help)
}

// nearFlag suggests flags of a command: those that begin with the word, as half of a name is remembered more often than it
// is mistyped, else the nearest.
func nearFlag(cmd *cobra.Command, word, more string) string {
	var known, begin []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		switch {
		case f.Hidden:
		case len(word) > 2 && strings.HasPrefix(f.Name, word+"-"):
			begin = append(begin, "--"+f.Name)
			fallthrough
		default:
			known = append(known, f.Name)
		}
	})
	if len(begin) > 0 {
		return "; did you mean " + strings.Join(begin, " or ") + "? " + strings.ToUpper(more[:1]) + more[1:]
	}
	// The hyphens are no letters that a slip could have left alone.
	return strings.Replace(tomlfile.DidYouMean(word, known, more), "mean ", "mean --", 1)
}

// wantedValues is what the types of flags read.
var wantedValues = map[string]string{
	"bool": "true or false", "duration": "a time with its unit, such as 30s or 5m", "float64": "a number",
	"int": "a whole number", "int64": "a whole number", "uint": "a whole number, 0 or more",
	"uint32": "a whole number, 0 or more", "uint64": "a whole number, 0 or more",
	"intSlice": "whole numbers separated by commas, such as 1,16", "stringToString": "KEY=VALUE", "stringSlice": "values separated by commas",
}

// ofParser is what package strconv puts before its reasons.
var ofParser = lazyregexp.New(`^strconv\.\w+: parsing "(?:[^"\\]|\\.)*": `)

// valueError is the error of a value that the type of its flag does not read. name is the flag, or its variable.
func valueError(name string, f *pflag.Flag, value string, cause error) error {
	reason := ofParser().ReplaceAllString(cause.Error(), "")
	isOurs := reason == cause.Error() && strings.Contains(reason, "want ") // of a type of this program
	wanted, known := wantedValues[f.Value.Type()]
	switch {
	case isOurs || !known:
		return fmt.Errorf("%s %q: %s", name, value, strings.TrimPrefix(reason, fmt.Sprintf("%q: ", value)))
	case strings.Contains(reason, "range"):
		return fmt.Errorf("%s %q: want %s; this one is out of range", name, value, wanted)
	}
	return fmt.Errorf("%s %q: want %s", name, value, wanted)
}

// A twin is a flag and the variable that has set it, by the name that the flag has or had.
type twin struct{ flag, variable string }

// A renamedError is an error with another text.
type renamedError struct {
	text string
	err  error
}

func (e renamedError) Error() string { return e.text }
func (e renamedError) Unwrap() error { return e.err }

// otherVariables are those that belong to no flag: of this program, its helper, the container, the tests and the scripts
// of this repository.
var otherVariables = []string{
	"VLLM_VCR_CACHE", "VLLM_VCR_CLUSTER_REQUEST", "VLLM_VCR_ENGINES", "VLLM_VCR_FRONTENDS", "VLLM_VCR_HUGE", "VLLM_VCR_LARGE_OBJECT",
	"VLLM_VCR_NETWORK", "VLLM_VCR_PD_SIDECAR", "VLLM_VCR_PEERS", "VLLM_VCR_RELEASES", "VLLM_VCR_REQUIRE_KUBE", "VLLM_VCR_REQUIRE_PEERS",
	"VLLM_VCR_BENCH_PEER", "VLLM_VCR_SLOW", "VLLM_VCR_TEMPLATES",
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
			if isSimulator(f) {
				return
			}
			for _, name := range slices.Concat([]string{f.Name}, f.Annotations[noteOld]) {
				known = append(known, envName(name))
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

// warnVariables prints a warning for each variable that looks like one of this program and means nothing: a twin with a
// slip would be ignored without a word.
func (env *environment) warnVariables() {
	var known []string
	for _, variable := range env.environ {
		name, value, _ := strings.Cut(variable, "=")
		if !strings.HasPrefix(name, variablePrefix) || strings.HasPrefix(name, testPrefix) || value == "" {
			continue
		}
		if known == nil {
			other := *env // as to make a command resets the variables of its flags
			known = knownVariables(newRootCommand(&other))
		}
		if _, found := slices.BinarySearch(known, name); !found {
			env.printErr(fmt.Sprintf("vllm-vcr: warning: the environment variable %s is ignored: no flag has that name%s", name, tomlfile.DidYouMean(name, known, "")))
		}
	}
}
