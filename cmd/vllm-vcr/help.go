package main

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"text/template"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// usageTemplate is what cobra prints below the description of a command. Cobra's own one lists the flags in one group.
const usageTemplate = `Usage:
  {{.UseLine}}
{{with .Example}}
Examples:
{{.}}
{{end}}{{if .HasAvailableSubCommands}}
Commands:
{{range .Commands}}{{if .IsAvailableCommand}}{{entry .Name .Short}}{{end}}{{end}}{{end}}{{range flagGroups .}}
{{.Title}}:
{{range .Flags}}{{flag .}}{{end}}{{end}}{{with more .}}
{{.}}
{{end}}`

const helpTemplate = `{{with .Long}}{{wrap .}}{{else}}{{wrap (print .Short ".")}}{{end}}

{{.UsageString}}`

// setTemplates has cobra print the help with flags in groups.
func setTemplates(root *cobra.Command) {
	cobra.AddTemplateFuncs(template.FuncMap{
		"entry": entry, "flag": flagEntry, "wrap": wrapText, "more": moreFlags,
		"flagGroups": func(cmd *cobra.Command) []flagGroup { return flagGroups(cmd, wantsAll(cmd)) },
	})
	root.SetUsageTemplate(usageTemplate)
	root.SetHelpTemplate(helpTemplate)
}

//go:embed commands.md
var commandTexts string

// describe gives commands their descriptions and examples.
func describe(root *cobra.Command) {
	sections := map[string]string{}
	for _, section := range strings.Split(commandTexts, "\n## ")[1:] {
		path, text, _ := strings.Cut(section, "\n")
		sections[path] = text
	}
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		if text, known := sections[cmd.CommandPath()]; known {
			long, example, _ := strings.Cut(text, "\n```\n")
			cmd.Long, cmd.Example = joined(strings.Trim(long, "\n")), strings.TrimSuffix(strings.TrimRight(example, "\n"), "\n```")
		}
		for _, child := range cmd.Commands() {
			walk(child)
		}
	}
	walk(root)
}

// joined puts each paragraph on a line, but for rows of lists.
func joined(text string) string {
	isPlain := func(line string) bool { return line != "" && !strings.HasPrefix(line, "  ") }
	lines := strings.Split(text, "\n")
	for i := 1; i < len(lines); i++ {
		if isPlain(lines[i-1]) && isPlain(lines[i]) {
			lines[i-1] += " " + lines[i]
			lines = slices.Delete(lines, i, i+1)
			i--
		}
	}
	return strings.Join(lines, "\n")
}

// wantsAll reports whether --help-all was given.
func wantsAll(cmd *cobra.Command) bool {
	return mustLookup(cmd.Root().PersistentFlags(), "help-all").Value.String() == "true"
}

// flagGroup is some flags of a command under a title.
type flagGroup struct {
	Title string
	Flags []*pflag.Flag
}

// flagGroups returns the flags of a command in the order in which they were defined, those of every command last. Without
// all it returns only those of the short help.
func flagGroups(cmd *cobra.Command, all bool) (groups []flagGroup) {
	own, global := visibleFlags(cmd)
	all = all || !slices.ContainsFunc(own, isCommon)
	for _, f := range own {
		if !all && !isCommon(f) {
			continue
		}
		title := "Flags"
		if named := f.Annotations[noteGroup]; named != nil {
			title = named[0]
		}
		at := slices.IndexFunc(groups, func(g flagGroup) bool { return g.Title == title })
		if at < 0 {
			at = len(groups)
			groups = append(groups, flagGroup{Title: title})
		}
		groups[at].Flags = append(groups[at].Flags, f)
	}
	if !wantsAll(cmd) {
		global = slices.DeleteFunc(global, func(f *pflag.Flag) bool { return !isCommon(f) && f.Name != "help" && f.Name != "version" })
	}
	return append(groups, flagGroup{"Flags of every command", global})
}

func isCommon(f *pflag.Flag) bool { return f.Annotations[noteCommon] != nil }

// visibleFlags returns the flags that only a command has, and those that every command has.
func visibleFlags(cmd *cobra.Command) (own, global []*pflag.Flag) {
	cmd.InheritedFlags() // adds the flags of the parents, as running the command does
	inOrder(cmd.Flags(), func(f *pflag.Flag) {
		switch {
		case f.Hidden:
		case f.Name == "help" || f.Name == "version" && !cmd.HasParent() || cmd.Root().PersistentFlags().Lookup(f.Name) == f:
			global = append(global, f)
		default:
			own = append(own, f)
		}
	})
	return own, global
}

// moreFlags is the end of the help: how to list the flags that the short help leaves out, and how to set flags in the environment.
func moreFlags(cmd *cobra.Command) string {
	own, _ := visibleFlags(cmd)
	if len(own) == 0 {
		return ""
	}
	text := fmt.Sprintf("Every flag can also be set by an environment variable: --%s by %s.", own[0].Name, envName(own[0].Name))
	hidden := slices.DeleteFunc(slices.Clone(own), isCommon)
	if !wantsAll(cmd) && 0 < len(hidden) && len(hidden) < len(own) {
		text = fmt.Sprintf("%s --help-all lists %d more flags. ", cmd.CommandPath(), len(hidden)) + text
	}
	return wrapText(text)
}

// helpColumns is the width of the help: a terminal of 80 columns shows it as it is.
const helpColumns = 80

// helpIndent is where the text of a flag or a command begins.
const helpIndent = 24

// flagEntry is a flag with its text and its default.
func flagEntry(f *pflag.Flag) string {
	name, usage, fallback := describeFlag(f)
	if fallback != "" {
		usage += " (default " + fallback + ")"
	}
	return entry(name, usage)
}

// describeFlag returns a flag as it is written on the command line, what it does, and its default, "" for that of the type.
// A text that ends in "(default …)" explains the default.
func describeFlag(f *pflag.Flag) (name, usage, fallback string) {
	kind, usage := pflag.UnquoteUsage(f)
	name = "--" + f.Name
	switch {
	case kind != "" && f.NoOptDefVal != "":
		name += "[=" + kind + "]"
	case kind != "":
		name += " " + kind
	}
	if f.Shorthand != "" {
		name = "-" + f.Shorthand + ", " + name
	}
	if before, after, found := strings.Cut(usage, " (default "); found {
		return name, before, strings.TrimSuffix(after, ")")
	}
	switch f.DefValue {
	case "", "0", "0s", "[]", "false":
		return name, usage, ""
	}
	if f.Value.Type() == "duration" {
		return name, usage, shortDuration(f.DefValue)
	}
	return name, usage, f.DefValue
}

// shortDuration leaves out the units that are zero: 5m0s is 5m.
func shortDuration(text string) string {
	return strings.Replace(strings.Replace(text, "m0s", "m", 1), "h0m", "h", 1)
}

// entry is a name and its text, which begins on the next line if the name is long.
func entry(name, text string) string {
	name = "  " + name
	indent := strings.Repeat(" ", helpIndent)
	first := fmt.Sprintf("%-*s", helpIndent, name)
	if utf8.RuneCountInString(name) > helpIndent-2 {
		first = name + "\n" + indent
	}
	return first + strings.Join(wrapWords(text, helpColumns-helpIndent), "\n"+indent) + "\n"
}

// wrapText breaks the lines of a text. The text of a list, "  word  text", goes on below where it begins.
func wrapText(text string) string {
	var out []string
	for line := range strings.SplitSeq(text, "\n") {
		indent := 0
		if word, rest, isRow := strings.Cut(strings.TrimPrefix(line, "  "), "  "); isRow && word != "" {
			indent = len(line) - len(strings.TrimLeft(rest, " "))
		}
		lead := line[:indent]
		for _, words := range wrapWords(line[indent:], helpColumns-indent) {
			out = append(out, lead+words)
			lead = strings.Repeat(" ", indent)
		}
	}
	return strings.Join(out, "\n")
}

// wrapWords breaks a text into lines of at most so many columns.
func wrapWords(text string, columns int) (lines []string) {
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > columns {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}
