package main

import (
	"bytes"
	"flag"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

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
	if err != nil {
		t.Fatalf("%v: go generate ./cmd/vllm-vcr writes it", err)
	}
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
	if flags < 30 {
		t.Errorf("%d flags seen: the tree was not walked", flags)
	}
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

// TestCommandAlone: the help of a command is that of the whole tree, though a run makes only the command that it is called with.
func TestCommandAlone(t *testing.T) {
	visit(newRootCommand(quietEnvironment()), func(cmd *cobra.Command) {
		path := strings.Fields(cmd.CommandPath())[1:]
		root := newCommandFor(quietEnvironment(), path)
		if len(path) > 0 && len(root.Commands()) > 2 { // help is the other one
			t.Errorf("%s: %d commands were made", cmd.CommandPath(), len(root.Commands()))
		}
		alone, _, err := root.Find(path)
		require.NoError(t, err)
		require.NoDiff(t, cmp.Diff(helpText(cmd, true), helpText(alone, true)), "%s, in the whole tree and alone", cmd.CommandPath())
	})
}

// TestEnvironmentTwinsAreUnique: one variable stands for one flag of a command.
func TestEnvironmentTwinsAreUnique(t *testing.T) {
	visit(newRootCommand(quietEnvironment()), func(cmd *cobra.Command) {
		seen := map[string]string{}
		add := func(f *pflag.Flag) {
			for _, flag := range append([]string{f.Name}, f.Annotations[noteOld]...) {
				name := envName(flag)
				if other, ok := seen[name]; ok && other != f.Name {
					t.Errorf("%s: --%s and --%s are both %s", cmd.CommandPath(), other, f.Name, name)
				}
				seen[name] = f.Name
			}
		}
		cmd.NonInheritedFlags().VisitAll(add)
		cmd.InheritedFlags().VisitAll(add)
	})
}

// TestHelpFitsTheTerminal: every help has lines of at most 80 columns, lists each flag once, and the short one lists no flag
// that the long one does not.
func TestHelpFitsTheTerminal(t *testing.T) {
	visit(newRootCommand(quietEnvironment()), func(cmd *cobra.Command) {
		short, long := helpText(cmd, false), helpText(cmd, true)
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

// TestOldNamesOfFlags: flags can be given by the names that they had, on the command line and in the environment. The new
// name wins in the environment.
func TestOldNamesOfFlags(t *testing.T) {
	tests := []struct{ command, old, now, value string }{
		{"golden add", "goldens-dir", "goldens", "kept"},
		{"golden export", "out", "output", "trace.jsonl"},
		{"golden bundle", "out", "output", "goldens.tar"},
		{"capture run", "goldens-dir", "goldens", "kept"},
		{"capture run", "out", "repo", "elsewhere"},
		{"capture describe", "body", "output", "body.md"},
		{"capture load", "report", "report-json", "load.json"},
		{"capture load", "arrivals", "arrival-trace", "run.jsonl"},
		{"conform merge", "json", "report-json", "report.json"},
		{"drift check", "json", "report-json", "report.json"},
		{"drift adopt", "window", "max-stable", "3"},
		{"drift accept", "workers", "jobs", "3"},
		{"drift extract", "version", "vllm-version", "0.34.0"},
		{"compat set", "validated", "fidelity-validated", "true"},
		{"play", "replay-tokens", "trace", "run.jsonl"},
		{"play", "handshake-address", "frontend-handshake", "tcp://127.0.0.1:1"},
		{"serve", "handshake-address", "frontend-handshake", "tcp://127.0.0.1:1"},
		{"serve", "replay-tokens", "trace", "run.jsonl"},
		{"serve", "num-gpu-blocks", "num-gpu-blocks-override", "77"},
		{"conform", "engine-address", "engine-handshake", "tcp://127.0.0.1:1"},
		{"serve", "engine-address", "engine-handshake", "tcp://127.0.0.1:1"},
		{"conform", "connect-timeout", "start-timeout", "3s"},
		{"drift check", "boot-timeout", "start-timeout", "3s"},
		{"capture run", "boot-timeout", "start-timeout", "3s"},
		{"capture load", "wait-for-fetch", "fetch-timeout", "3s"},
		{"play", "num-gpu-blocks", "num-gpu-blocks-override", "77"},
		{"record", "tp", "tensor-parallel-size", "4"},
		{"inspect calibrate", "fit", "latency-trace", "[run.jsonl]"},
		{"inspect calibrate", "kv-block-size", "block-size", "32"},
		{"inspect calibrate", "kv-blocks", "num-gpu-blocks-override", "77"},
	}
	known := 0
	visit(newRootCommand(quietEnvironment()), func(cmd *cobra.Command) {
		cmd.NonInheritedFlags().VisitAll(func(f *pflag.Flag) { known += len(f.Annotations[noteOld]) })
	})
	if known != len(tests) {
		t.Errorf("%d flags have old names, and %d are tested", known, len(tests))
	}
	for _, test := range tests {
		t.Run(test.command+" --"+test.old, func(t *testing.T) {
			given := strings.Trim(test.value, "[]")
			flagsOf := func(variables map[string]string) (*environment, *pflag.FlagSet) {
				env := newEnvironment(io.Discard, io.Discard, func(name string) (string, bool) { value, ok := variables[name]; return value, ok })
				cmd, _, err := newRootCommand(env).Find(strings.Fields(test.command))
				require.NoError(t, err)
				return env, cmd.Flags()
			}
			_, flags := flagsOf(nil)
			require.NoError(t, flags.Parse([]string{"--" + test.old + "=" + given}))
			if f := flags.Lookup(test.now); !f.Changed || f.Value.String() != test.value {
				t.Errorf("--%s: --%s is %q, want %q", test.old, test.now, f.Value, test.value)
			}
			variables := map[string]string{envName(test.old): given}
			env, flags := flagsOf(variables)
			if err := env.fromEnvironment(flags); err != nil || flags.Lookup(test.now).Value.String() != test.value {
				t.Errorf("%s: %v, --%s is %q, want %q", envName(test.old), err, test.now, flags.Lookup(test.now).Value, test.value)
			}
			variables[envName(test.old)], variables[envName(test.now)] = "wrong", given
			env, flags = flagsOf(variables)
			if err := env.fromEnvironment(flags); err != nil || flags.Lookup(test.now).Value.String() != test.value {
				t.Errorf("%s beside %s: %v, --%s is %q, want %q", envName(test.now), envName(test.old), err, test.now, flags.Lookup(test.now).Value, test.value)
			}
		})
	}
}
