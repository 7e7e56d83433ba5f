package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/serve/simulator"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// TestSimulatorFlags compares the table of flags with those that llm-d-inference-sim has: each is translated, or
// refused by its name.
func TestSimulatorFlags(t *testing.T) {
	text, err := os.ReadFile("testdata/simulator-flags.txt")
	require.NoError(t, err)
	env := newEnvironment(io.Discard, io.Discard, func(string) (string, bool) { return "", false })
	serve, _, err := newRootCommand(env).Find([]string{"serve"})
	require.NoError(t, err)
	var listed []string
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "#" {
			continue
		}
		name, isSwitch := words[0], len(words) > 1
		listed = append(listed, name)
		at := slices.IndexFunc(simulator.Table, func(f simulator.Flag) bool { return f.Name == name })
		if at < 0 {
			t.Errorf("--%s of llm-d-inference-sim is neither translated nor refused: add it to simulator.Table", name)
			continue
		}
		f := &simulator.Table[at]
		own := serve.Flags().Lookup(name)
		switch no := serve.Flags().Lookup("no-" + name); {
		case own == nil || isSwitch && no == nil:
			t.Errorf("--%s is in the table, and serve does not take it, or not its form with no-", name)
		case (f.Kind == "switch") != isSwitch:
			t.Errorf("--%s: its kind is %s, and switch in the list is %v", name, f.Kind, isSwitch)
		case f.Action == simulator.Same && simulator.IsFlag(own):
			t.Errorf("--%s is the same, says the table, and serve has no such flag", name)
		case f.Action != simulator.Same && f.Here == "" && f.Action != simulator.Own:
			t.Errorf("--%s: the table does not say what serve does with it", name)
		case simulator.IsFlag(own) && !own.Hidden:
			t.Errorf("--%s is in the help of serve", name)
		case f.Fallback != "":
			require.NoErrorf(t, f.Check(f.Fallback), "--%s: its own default", name)
		}
	}
	for _, f := range simulator.Table {
		require.True(t, slices.Contains(listed, f.Name), "--%s is in the table, and no release of llm-d-inference-sim in testdata/simulator-flags.txt has it", f.Name)
	}
}

// TestSimulatorPage compares the table of docs/simulator.md with that of the program.
func TestSimulatorPage(t *testing.T) {
	const page, begin, end = "../../docs/simulator.md", "<!-- flags -->\n", "<!-- /flags -->\n"
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	before, rest, found := strings.Cut(string(text), begin)
	got, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatalf("%s has no %s", page, begin)
	}
	what := map[simulator.Action]string{
		simulator.Same: "the same", simulator.Own: "the same, only with `--simulator`", simulator.Ignored: "accepted, without an effect", simulator.Refused: "refused",
	}
	var rows []string // what serve does, in the order of the table
	flags := map[string][]string{}
	for _, f := range simulator.Table {
		name := "`" + f.Name + "`"
		if f.Kind == "switch" {
			name += ", `no-" + f.Name + "`"
		}
		if f.Fallback != "" {
			name += " (" + f.Fallback + ")"
		}
		row := what[f.Action]
		if row == "" || f.Here == "" {
			row += f.Here
		} else {
			row += ": " + f.Here
		}
		if flags[row] == nil {
			rows = append(rows, row)
		}
		flags[row] = append(flags[row], name)
	}
	var b strings.Builder
	b.WriteString("| flag (its default) | here |\n|---|---|\n")
	for _, row := range rows {
		fmt.Fprintf(&b, "| %s | %s |\n", strings.Join(flags[row], ", "), row)
	}
	if b.String() == got {
		return
	}
	if !*update {
		t.Fatalf("%s has another table: go test ./cmd/vllm-vcr -run TestSimulatorPage -update writes it\n%s", page, cmp.Diff(got, b.String()))
	}
	require.NoError(t, os.WriteFile(page, []byte(before+begin+b.String()+end+after), 0o644))
}

// TestSimulatorConfig: which files of --config alone mean the simulator, which has the builtin frontend. All are refused after
// that, for their port.
func TestSimulatorConfig(t *testing.T) {
	for _, test := range []struct {
		name, file, args string
		simulator        bool
	}{
		{"keys that vLLM has too", "model: m\nmax-num-seqs: 5\nmax-loras: 2\n", "", true},
		{"adapters in JSON", "model: m\nlora-modules: ['{\"name\": \"a\"}']\n", "", true},
		{"no model", "max-num-seqs: 5\n", "", false},
		{"a key of serve", "model: m\nfaults: [http-fail:1]\n", "", false},
		{"a flag of serve", "model: m\nport: 1\n", "--restart", false},
		{"the mode that is given", "model: m\n", "--simulator=false", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "config.yaml")
			require.NoError(t, os.WriteFile(path, []byte(test.file), 0o600))
			env := newEnvironment(io.Discard, io.Discard, func(string) (string, bool) { return "", false })
			root := newRootCommand(env)
			root.SetArgs(simulator.CommandLine(append([]string{"/bin/vllm-vcr", "serve", "--port", "70000", "--config", path}, strings.Fields(test.args)...)))
			serve, err := root.ExecuteContextC(t.Context())
			if on := serve.Flags().Lookup("frontend").Value.String() == "builtin"; on != test.simulator || err == nil {
				t.Errorf("simulator: %v, want %v; %v", on, test.simulator, err)
			}
		})
	}
}

func TestSimulatorArguments(t *testing.T) {
	for _, test := range []struct{ name, args, want string }{
		{"another command", "play --served-model-name a b", ""},
		{"several values", "serve --model m --served-model-name a b --port 1", "serve --model m --served-model-name=a --served-model-name=b --port 1"},
		{"several JSON values", `serve --model=m --lora-modules {"name":"a"} {"name":"b"}`, `serve --model=m --lora-modules={"name":"a"} --lora-modules={"name":"b"}`},
		{"the model after a list", "serve --served-model-name a M", ""},
		{"the model before a list", "serve M --served-model-name a b", "serve M --served-model-name=a --served-model-name=b"},
		{"a switch with a value", "serve --enable-kvcache true --no-omni false --omni", "serve --enable-kvcache=true --no-omni=false --omni"},
		{"verbosity of klog", "serve --model m -v 5 -v=2 -v", "serve --model m --v=5 --v=2 -v"},
		{"verbosity of serve", "serve -v M", ""},
		{"a list without values", "serve --model m --failure-types --port 1", "serve --model m --port 1"},
		{"flags of the frontend", "serve --model m -- --served-model-name a b", ""},
		{"the name of the simulator", "llm-d-inference-sim --port 1 --model m", "serve --simulator --port 1 --model m"},
	} {
		t.Run(test.name, func(t *testing.T) {
			args := strings.Fields(test.args)
			if args[0] == "llm-d-inference-sim" {
				args = simulator.CommandLine(args)
			}
			got := strings.Join(simulator.Arguments(args), " ")
			want := test.want
			if want == "" {
				want = test.args // nothing is changed
			}
			require.True(t, got == want, "got  %s\nwant %s", got, want)
		})
	}
}
