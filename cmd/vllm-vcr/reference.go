package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

//go:generate go run . reference cli --output ../../docs/cli.md
//go:generate go run . reference findings --output ../../docs/findings.md
//go:generate go run . golden export --kv-events ../../vectors/kvevents

// newReferenceCommand writes the pages of the documentation that are made of the program: the commands and flags, and the codes
// of failures. It is hidden: only go generate has a use for it.
func newReferenceCommand(env *environment) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use: "reference cli|findings", Short: "Write docs/cli.md or docs/findings.md", Hidden: true, ValidArgs: []string{"cli", "findings"},
		Args: cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		RunE: func(_ *cobra.Command, args []string) error {
			text := findingsPage()
			if args[0] == "cli" {
				text = reference(newRootCommand(env))
			}
			return writeResult(env, output, writeText(text))
		},
	}
	cmd.Flags().StringVar(&output, "output", "", outputUsage)
	return cmd
}

// reference renders the command tree as Markdown. It depends on nothing but the
// tree: neither on the build nor on the environment.
func reference(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString("<!-- Written by go generate ./cmd/vllm-vcr: change the commands, not this file. -->\n\n")
	fmt.Fprintf(&b, "# %s\n\n%s\n", root.Name(), markdownText(root.Long))
	b.WriteString("\n| command | does |\n|---|---|\n")
	for _, cmd := range leaves(root) {
		fmt.Fprintf(&b, "| [`%s`](#%s) | %s |\n", cmd.CommandPath(), strings.ReplaceAll(cmd.CommandPath(), " ", "-"), cmd.Short)
	}
	b.WriteString("\n## Flags of every command\n\n")
	var global []*pflag.Flag
	root.PersistentFlags().VisitAll(func(f *pflag.Flag) { global = append(global, f) })
	flagTable(&b, global)
	for _, cmd := range leaves(root) {
		section(&b, cmd)
	}
	return b.String()
}

// leaves are the commands that do something, in the order of their names.
func leaves(cmd *cobra.Command) []*cobra.Command {
	var all []*cobra.Command
	for _, child := range cmd.Commands() {
		switch {
		case child.Hidden || child.Name() == "help" || child.Name() == "completion":
		case child.HasSubCommands():
			if child.LocalNonPersistentFlags().HasAvailableFlags() {
				all = append(all, child) // it does something by itself too
			}
			all = append(all, leaves(child)...)
		default:
			all = append(all, child)
		}
	}
	slices.SortFunc(all, func(a, b *cobra.Command) int { return cmp.Compare(a.CommandPath(), b.CommandPath()) })
	return all
}

func section(b *strings.Builder, cmd *cobra.Command) {
	fmt.Fprintf(b, "\n## %s\n\n%s\n", cmd.CommandPath(), markdownText(cmp.Or(cmd.Long, cmd.Short+".")))
	cmd.LocalFlags() // adds the flags of its parents, as running it does, so that its usage has them
	fmt.Fprintf(b, "\n```\n%s\n```\n", cmd.UseLine())
	if cmd.Example != "" {
		fmt.Fprintf(b, "\nExamples:\n\n```\n%s\n```\n", unindented(cmd.Example))
	}
	groups := flagGroups(cmd, true)
	for _, group := range groups[:len(groups)-1] {
		fmt.Fprintf(b, "\n**%s**\n\n", group.Title)
		flagTable(b, group.Flags)
	}
}

// markdownText makes the rows of lists, "  word  text", lists of Markdown.
func markdownText(text string) string {
	var out []string
	inList := false
	for line := range strings.SplitSeq(text, "\n") {
		row, isRow := strings.CutPrefix(line, "  ")
		if isRow && !inList && len(out) > 0 && out[len(out)-1] != "" {
			out = append(out, "")
		}
		if word, text, ok := strings.Cut(row, "  "); isRow && ok {
			line = "- `" + word + "`: " + strings.TrimLeft(text, " ")
		}
		out = append(out, line)
		inList = isRow
	}
	return strings.Join(out, "\n")
}

// flagTable lists flags in their order.
func flagTable(b *strings.Builder, flags []*pflag.Flag) {
	b.WriteString("| flag | environment | default | |\n|---|---|---|---|\n")
	for _, f := range flags {
		name, usage, fallback := describeFlag(f)
		variable := "`" + envName(f.Name) + "`"
		if !hasVariable(f) {
			variable = ""
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", name, variable, cell(fallback), cell(usage))
	}
}

// cell escapes a text for a table.
func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }

func unindented(text string) string {
	lines := strings.Split(strings.Trim(text, "\n"), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimPrefix(line, "  ")
	}
	return strings.Join(lines, "\n")
}
