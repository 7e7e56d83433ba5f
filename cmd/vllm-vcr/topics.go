package main

import (
	"fmt"
	"io/fs"
	"strings"

	"github.com/spf13/cobra"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
)

// docsURL is where all pages are, with links that work.
const docsURL = "https://github.com/vllm-vcr/conformance/tree/main/docs"

// newHelpCommand is cobra's help command, which also prints the pages that are in the binary.
func newHelpCommand(env *environment, root *cobra.Command) *cobra.Command {
	help := &cobra.Command{
		Use:     "help [COMMAND | TOPIC | CODE]",
		Short:   "Print the help of a command, a guide, or what a code means",
		Example: "  vllm-vcr help conform\n  vllm-vcr help engine-author\n  vllm-vcr help F001",
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
			if len(args) == 0 {
				for _, topic := range topics() {
					names = append(names, topic.name)
				}
				for _, child := range root.Commands() {
					if child.IsAvailableCommand() {
						names = append(names, child.Name())
					}
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error {
			cmd, rest, err := root.Find(args)
			if err == nil && len(rest) == 0 {
				cmd.InitDefaultHelpFlag()
				return cmd.Help()
			}
			return runHelp(env, strings.Join(args, " "))
		},
	}
	// The pages are read when somebody wants to see their list, not at each start.
	help.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		var list strings.Builder
		for _, t := range topics() {
			fmt.Fprintf(&list, "  %-18s %s\n", t.name, t.title)
		}
		cmd.Long = "Print the help of a command, a page of the documentation, or the explanation of a code such as F001.\n\n" +
			"Topics:\n\n" + list.String() + "\nAll pages are at " + docsURL
		root.HelpFunc()(cmd, args)
	})
	return help
}

// topic is a page in the binary.
type topic struct{ name, title, text string }

// topics are the pages in the binary, by their names.
func topics() []topic {
	paths, err := fs.Glob(vcr.Files, vcr.DocsPath+"/*.md")
	if err != nil {
		panic(err)
	}
	var all []topic
	for _, path := range paths {
		text := string(embedded(path))
		title, _, _ := strings.Cut(strings.TrimPrefix(text, "# "), "\n")
		all = append(all, topic{strings.TrimSuffix(strings.TrimPrefix(path, vcr.DocsPath+"/"), ".md"), title, text})
	}
	return all
}

// runHelp prints the page or the code of a name, in whatever case it is given.
func runHelp(env *environment, name string) error {
	var names []string
	for _, t := range topics() {
		if strings.EqualFold(strings.TrimSuffix(name, ".md"), t.name) {
			_, err := fmt.Fprint(env.stdout, t.text)
			return err
		}
		names = append(names, t.name)
	}
	if _, known := explanationOf(name); known {
		return runExplain(env, name)
	}
	meant := ""
	if near, ok := tomlfile.Nearest(name, names); ok {
		meant = "did you mean " + near + "? "
	}
	return fmt.Errorf("help %q: there is no such command, topic or code: %svllm-vcr help --help lists the topics", name, meant)
}
