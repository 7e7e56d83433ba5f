package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/manifest"
)

// What a shell completes: `vllm-vcr completion bash` and its likes print the scripts, which ask this program for the values
// of flags and arguments. What is not here is completed as a path.

// completed are the values of flags by their names, or by "command/flag" where a command has others.
var completed = map[string]func(env *environment, cmd *cobra.Command) []string{
	"line":                 completeLines,
	"vllm-version":         func(env *environment, cmd *cobra.Command) []string { return append(completeLines(env, cmd), "auto") },
	"golden":               completeRegistered(func(g manifest.Golden) string { return g.ID }),
	"deploy render/golden": completeRegistered(func(g manifest.Golden) string { return g.Line + "/" + g.ID }),
	"assertion":            completeAssertions,
	"explain": func(*environment, *cobra.Command) (codes []string) {
		for _, e := range explanations() {
			codes = append(codes, cobra.CompletionWithDesc(string(e.Code), e.Title))
		}
		return codes
	},
}

// completedArguments are the values of arguments by command.
var completedArguments = map[string]func(env *environment, cmd *cobra.Command) []string{
	"capture engine": completeReleases,
	"capture fetch":  completeTargets,
	"capture list":   completeTargets,
	"capture render": completeTargets,
	"capture run":    completeTargets,
	"capture submit": completeTargets,
	"compat watch":   values(watchStable, watchRC),
	"deploy render":  values(deployTopologies()...),
	"drift adopt":    completeReleases,
	"drift check":    completeReleases,
	"drift diff":     completeLines,
}

// isCompletion reports whether a command is that by which the scripts of a shell ask for values.
func isCompletion(command string) bool {
	return command == cobra.ShellCompRequestCmd || command == cobra.ShellCompNoDescRequestCmd
}

// addCompletion has shells complete the values of the flags and arguments of all commands.
func addCompletion(env *environment, cmd *cobra.Command) {
	_, path, _ := strings.Cut(cmd.CommandPath(), " ")
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		find := completed[path+"/"+f.Name]
		if words := f.Annotations[noteChoices]; words != nil {
			find = values(words...)
		} else if find == nil {
			find = completed[f.Name]
		}
		if find == nil {
			return
		}
		_, isList := f.Value.(pflag.SliceValue)
		// It fails for a flag that has one already: those of the root, which each command has too.
		_ = cmd.RegisterFlagCompletionFunc(f.Name, func(cmd *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
			return beginningWith(find(env, cmd), word, isList), cobra.ShellCompDirectiveNoFileComp
		})
	})
	if find := completedArguments[path]; find != nil {
		cmd.ValidArgsFunction = func(cmd *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
			return beginningWith(find(env, cmd), word, false), cobra.ShellCompDirectiveDefault
		}
	}
	for _, child := range cmd.Commands() {
		addCompletion(env, child)
	}
}

// beginningWith are the values that go on with a word; of a list, with what is behind its last comma.
func beginningWith(known []string, word string, isList bool) []string {
	before := ""
	if at := strings.LastIndexByte(word, ','); isList && at >= 0 {
		before, word = word[:at+1], word[at+1:]
	}
	var fit []string
	for _, value := range known {
		if strings.HasPrefix(value, word) && value != "" {
			fit = append(fit, before+value)
		}
	}
	return fit
}

// values always completes the same words.
func values[T ~string](words ...T) func(*environment, *cobra.Command) []string {
	return func(*environment, *cobra.Command) []string { return texts(words) }
}

// flagText is the value of a flag, "" where the command has no such flag.
func flagText(cmd *cobra.Command, name string) string {
	if f := cmd.Flags().Lookup(name); f != nil {
		return f.Value.String()
	}
	return ""
}

// completeLines are the lines of the compat matrix.
func completeLines(_ *environment, cmd *cobra.Command) []string {
	matrix, _ := loadCompat(flagText(cmd, "compat"))
	var names []string
	for _, l := range matrix.Lines {
		names = append(names, l.Name)
	}
	return names
}

// completeReleases are the releases of the lines.
func completeReleases(_ *environment, cmd *cobra.Command) []string {
	matrix, _ := loadCompat(flagText(cmd, "compat"))
	var tags []string
	for _, l := range matrix.Lines {
		if version, isTag := strings.CutPrefix(l.Tag, "v"); isTag {
			tags = append(tags, version)
		}
	}
	return tags
}

// completeRegistered completes what name makes of the goldens of the manifest, of the lines of --line if there are any.
func completeRegistered(name func(manifest.Golden) string) func(*environment, *cobra.Command) []string {
	return func(env *environment, cmd *cobra.Command) []string {
		matrix, _ := loadCompat(flagText(cmd, "compat"))
		goldens, _ := loadManifest(env, flagText(cmd, "manifest"), matrix)
		lines, _ := cmd.Flags().GetStringSlice("line")
		var names []string
		for _, g := range goldens.Goldens {
			if len(lines) == 0 || slices.Contains(lines, g.Line) {
				names = append(names, name(g))
			}
		}
		slices.Sort(names)
		return slices.Compact(names)
	}
}

// completeAssertions are those of --suite, or of all suites.
func completeAssertions(_ *environment, cmd *cobra.Command) []string {
	var names []string
	for _, suite := range conformance.Suites() {
		if chosen := flagText(cmd, "suite"); chosen != "" && chosen != string(suite) {
			continue
		}
		for _, assertion := range conformance.AssertionsOf(suite) {
			names = append(names, string(assertion))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// completeTargets are the names of what is captured.
func completeTargets(_ *environment, cmd *cobra.Command) []string {
	matrix, _ := loadCompat(flagText(cmd, "compat"))
	file, _ := loadTargets(flagText(cmd, "targets"), matrix)
	var names []string
	for _, t := range file.Targets {
		names = append(names, t.Name())
	}
	return names
}
