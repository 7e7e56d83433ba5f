package main

import (
	_ "embed"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/conformance/selftest"
	"github.com/vllm-vcr/conformance/internal/base/tomlfile"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/upstream/extract"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// docsURL is where all pages are, with links that work.
const docsURL = "https://github.com/vllm-vcr/conformance/tree/main/docs"

// newHelpCommand is cobra's help command, which also prints the pages that are in the binary.
func newHelpCommand(env *environment, root *cobra.Command) *cobra.Command {
	help := &cobra.Command{
		Use:     "help [COMMAND | TOPIC | CODE]",
		Short:   "Print the help of a command, a guide, or what a code means",
		Example: "  vllm-vcr help conform\n  vllm-vcr help engine-author\n  vllm-vcr help wire 0.33\n  vllm-vcr help F001",
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
			if err != nil || len(rest) > 0 || cmd.Hidden {
				return runHelp(env, strings.Join(args, " "))
			}
			cmd.InitDefaultHelpFlag()
			err = cmd.Help()
			if name := strings.Join(args, " "); slices.ContainsFunc(topics(), func(t topic) bool { return t.name == name }) {
				fmt.Fprintf(env.stdout, "\nGuide: vllm-vcr help %s.md\n", name)
			}
			return err
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

// topic is a page of the documentation.
type topic struct{ name, title, text string }

// topics are the pages, by their names.
func topics() []topic {
	paths, err := fs.Glob(vcr.Files, vcr.DocsPath+"/*.md")
	if err != nil {
		panic(err)
	}
	all := []topic{
		{"cli", "All commands and flags", reference(newRootCommand(newEnvironment(io.Discard, io.Discard, func(string) (string, bool) { return "", false })))},
		{"findings", "All codes of reports", findingsPage()},
	}
	for _, path := range paths {
		text := string(embedded(path))
		title, _, _ := strings.Cut(strings.TrimPrefix(text, "# "), "\n")
		all = append(all, topic{strings.TrimSuffix(strings.TrimPrefix(path, vcr.DocsPath+"/"), ".md"), title, text})
	}
	slices.SortFunc(all, func(a, b topic) int { return strings.Compare(a.name, b.name) })
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
	if topic, line, _ := strings.Cut(name, " "); topic == "wire" {
		return helpWire(env, line)
	}
	if _, known := explanationOf(name); known {
		return runExplain(env, name)
	}
	meant := ""
	near, ok := tomlfile.Nearest(name, names)
	if at := slices.IndexFunc(names, func(topic string) bool { return strings.HasPrefix(topic, name) }); !ok && at >= 0 {
		near, ok = names[at], true
	}
	if ok {
		meant = "did you mean " + near + "? "
	}
	return fmt.Errorf("help %q: there is no such command, topic or code: %svllm-vcr help --help lists the topics", name, meant)
}

// helpWire prints what the messages of a line consist of, and what their keys mean.
func helpWire(env *environment, line string) error {
	codec, err := protocol.CodecFor(line)
	if err != nil {
		return fmt.Errorf("help wire %s: %w", line, err)
	}
	_, err = fmt.Fprintf(env.stdout, "%s\n%s", embedded(vcr.DocsPath+"/wire.md"), extract.Text(codec.Profile()))
	return err
}

// rulePages explain the codes of the configuration files.
var rulePages = []string{"compat/rules.md", "manifest/rules.md", "internal/capture/target/rules.md"}

// explanations are those of all codes that the program reports.
var explanations = sync.OnceValue(func() []conformance.Explanation {
	pages := []string{selftest.Codes}
	for _, path := range rulePages {
		pages = append(pages, string(embedded(path)))
	}
	return append(conformance.Explanations(), check.Explain(pages...)...)
})

// explanationOf is the explanation of a code, in whatever case it is given.
func explanationOf(code string) (conformance.Explanation, bool) {
	all := explanations()
	at := slices.IndexFunc(all, func(e conformance.Explanation) bool { return strings.EqualFold(string(e.Code), code) })
	if at < 0 {
		return conformance.Explanation{}, false
	}
	return all[at], true
}

// titleOf is the title of a code in reports.
func titleOf(code conformance.Code) string {
	e, _ := explanationOf(string(code))
	return e.Title
}

// runExplain prints the explanation of a code.
func runExplain(env *environment, code string) error {
	e, known := explanationOf(code)
	if !known {
		return fmt.Errorf("--explain %q: no failure has that code%s", code, nearCodes(code))
	}
	_, err := fmt.Fprintf(env.stdout, "%s %s\n\n%s\n", e.Code, e.Title, e.Text)
	return err
}

// nearCodes suggests the code that was meant among those of the same letter, or lists the letters.
func nearCodes(code string) string {
	var family, letters []string
	for _, e := range explanations() {
		known := string(e.Code)
		if !slices.Contains(letters, known[:1]) {
			letters = append(letters, known[:1])
		}
		if code != "" && strings.EqualFold(known[:1], code[:1]) {
			family = append(family, known)
		}
	}
	if len(family) == 0 {
		return ": codes begin with one of " + strings.Join(letters, ", ")
	}
	if near, ok := tomlfile.Nearest(code, family); ok {
		return fmt.Sprintf(": did you mean %s? There are %s", near, strings.Join(family, ", "))
	}
	return ": there are " + strings.Join(family, ", ")
}

//go:embed findings.md
var findingsHead string

// findingsPage is docs/findings.md.
func findingsPage() string {
	var b strings.Builder
	b.WriteString("<!-- Written by go generate ./cmd/vllm-vcr from the explanations next to each check: change those, not this file. -->\n\n")
	b.WriteString(findingsHead)
	for _, e := range explanations() {
		fmt.Fprintf(&b, "\n## %s %s\n\n%s\n", e.Code, e.Title, e.Text)
	}
	return b.String()
}
