package main

import (
	"bytes"
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

var update = flag.Bool("update", false, "rewrite docs/cli.md and the expected files of the scripts")

const referencePath = "../../docs/cli.md"

// quietEnvironment has no variables, and discards what is written.
func quietEnvironment() *environment {
	return newEnvironment(&bytes.Buffer{}, &bytes.Buffer{}, func(string) (string, bool) { return "", false })
}

func TestReferenceIsCurrent(t *testing.T) {
	got := reference(newRootCommand(quietEnvironment()))
	if *update {
		require.NoError(t, os.WriteFile(referencePath, []byte(got), 0o644))
	}
	want, err := os.ReadFile(referencePath)
	require.NoErrorf(t, err, "go generate ./cmd/vllm-vcr writes it")
	require.NoDiff(t, cmp.Diff(string(want), got), "docs/cli.md is not current (go generate ./cmd/vllm-vcr rewrites it), -want +got")
}

// TestReferenceIsComplete: every command and flag that can be used is on the page.
func TestReferenceIsComplete(t *testing.T) {
	root := newRootCommand(quietEnvironment())
	page := reference(root)
	flags := 0
	visit(root, func(cmd *cobra.Command) {
		if !cmd.HasSubCommands() && !strings.Contains(page, "\n## "+cmd.CommandPath()+"\n") {
			t.Errorf("%s has no section", cmd.CommandPath())
		}
		cmd.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
			if f.Hidden || !hasVariable(f) || f.Name == "version" && !cmd.HasParent() {
				return
			}
			flags++
			row := regexp.MustCompile("\n\\| `(-., )?--" + f.Name + "[` [].*\\| `" + envName(f.Name) + "` \\|")
			if !row.MatchString(page) {
				t.Errorf("%s --%s has no row", cmd.CommandPath(), f.Name)
			}
		})
	})
	require.True(t, flags >= 30, "%d flags seen: the tree was not walked", flags)
}

// visit walks the commands that are not hidden.
func visit(cmd *cobra.Command, f func(*cobra.Command)) {
	if cmd.Hidden {
		return
	}
	f(cmd)
	for _, child := range cmd.Commands() {
		visit(child, f)
	}
}

// TestHelp: commands and flags are described in the same way: a short text that
// begins with a capital for commands and without for flags, and has no full stop.
func TestHelp(t *testing.T) {
	visit(newRootCommand(quietEnvironment()), func(cmd *cobra.Command) {
		if s := cmd.Short; s == "" || s[:1] != strings.ToUpper(s[:1]) || strings.HasSuffix(s, ".") {
			t.Errorf("%s: %q", cmd.CommandPath(), s)
		}
		cmd.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
			if f.Name != "help" && (f.Usage == "" || strings.HasSuffix(f.Usage, ".") || regexp.MustCompile(`^[A-Z][a-z]`).MatchString(f.Usage)) {
				t.Errorf("%s --%s: %q", cmd.CommandPath(), f.Name, f.Usage)
			}
		})
	})
}

// TestDescriptionsAreOfCommands: each section of commands.md is about a command, and it has the codes of all rules.
func TestDescriptionsAreOfCommands(t *testing.T) {
	root := newRootCommand(quietEnvironment())
	for _, section := range strings.Split(commandTexts, "\n## ")[1:] {
		path, _, _ := strings.Cut(section, "\n")
		if cmd, rest, err := root.Find(strings.Fields(path)[1:]); err != nil || len(rest) > 0 || cmd.CommandPath() != path {
			t.Errorf("commands.md describes %q, which is not a command", path)
		}
	}
	for _, page := range rulePages {
		rules := check.Explain(string(embedded(page)))
		if codes := string(rules[0].Code + " to " + rules[len(rules)-1].Code); !strings.Contains(strings.ReplaceAll(commandTexts, "\n", " "), codes) {
			t.Errorf("commands.md does not have the rules %s", codes)
		}
	}
}

// TestEnvironmentTwinsAreUnique: one variable stands for one flag of a command.
func TestEnvironmentTwinsAreUnique(t *testing.T) {
	visit(newRootCommand(quietEnvironment()), func(cmd *cobra.Command) {
		seen := map[string]string{}
		add := func(f *pflag.Flag) {
			name := envName(f.Name)
			if other, ok := seen[name]; ok && other != f.Name {
				t.Errorf("%s: --%s and --%s are both %s", cmd.CommandPath(), other, f.Name, name)
			}
			seen[name] = f.Name
		}
		cmd.NonInheritedFlags().VisitAll(add)
		cmd.InheritedFlags().VisitAll(add)
	})
}

func helpOf(t *testing.T, cmd *cobra.Command) string {
	t.Helper()
	var b strings.Builder
	cmd.SetOut(&b)
	require.NoError(t, cmd.Help())
	return b.String()
}

// TestHelpFitsTheTerminal: every help has lines of at most 80 columns, lists each flag once, and the short one lists no flag
// that the long one does not.
func TestHelpFitsTheTerminal(t *testing.T) {
	visit(newRootCommand(quietEnvironment()), func(cmd *cobra.Command) {
		short := helpOf(t, cmd)
		mustLookup(cmd.Root().PersistentFlags(), "help-all").Value.Set("true")
		long := helpOf(t, cmd)
		*mustLookup(cmd.Root().PersistentFlags(), "help-all").Value.(*helpFlag) = false
		for line := range strings.Lines(short + long) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > helpColumns {
				t.Errorf("%s --help: %d columns: %s", cmd.CommandPath(), n, line)
			}
		}
		cmd.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
			entry := regexp.MustCompile(`(?m)^  (-., )?--` + f.Name + `([ [=]|$)`)
			inShort, inLong := len(entry.FindAllString(short, -1)), len(entry.FindAllString(long, -1))
			if want := 1; !f.Hidden && inLong != want || f.Hidden && inLong != 0 || inShort > inLong {
				t.Errorf("%s --%s: %d times in the help, %d times in that of all flags", cmd.CommandPath(), f.Name, inShort, inLong)
			}
		})
	})
}
