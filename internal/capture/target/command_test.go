package target

import (
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// exampleTargets are the shipped targets of the newest line, and those of the example with GPUs.
func exampleTargets(t testing.TB) []Target {
	t.Helper()
	shipped, _ := Load("../../../capture/targets.toml", shippedMatrix(t))
	gpus, _ := Load("testdata/gpus.toml", testMatrix())
	targets := slices.DeleteFunc(slices.Concat(shipped.Targets, gpus.Targets), func(t Target) bool { return t.Line != "0.33" })
	for _, s := range Scenarios() {
		if !slices.ContainsFunc(targets, func(t Target) bool { return t.Scenario == s }) {
			t.Fatalf("no example has the scenario %s", s)
		}
	}
	return targets
}

// addressesOf are where the programs of an example meet.
func addressesOf(t Target) Addresses {
	if folder, ok := t.Model.Folder(); ok {
		return Addresses{Model: "/models/" + path.Base(folder), HTTP: 8000, FrontendHandshake: 5570, EngineHandshake: 5580}
	}
	return Addresses{Host: "0.0.0.0", HTTP: 8000, FrontendHandshake: 5570, EngineHandshake: 5580, ReadyTimeout: time.Hour}
}

// What each target makes of the command lines is in testdata, so that a change shows.
func TestCommands(t *testing.T) {
	var got strings.Builder
	for _, one := range exampleTargets(t) {
		a := addressesOf(one)
		fmt.Fprintf(&got, "# %s\nconfig   %s\nhash     %s\n", one.Name(), one.EngineConfig(), one.ConfigHash())
		for _, program := range []struct {
			name string
			args []string
		}{
			{"env", one.EngineEnv()},
			{"engine", one.EngineArgs(a)},
			{"frontend", one.FrontendArgs(a)},
			{"tap", one.TapArgs(a, "/trace")},
			{"load", one.LoadArgs(a, "/trace")},
		} {
			if program.name == "load" && one.Session != nil {
				continue // its requests are in the session
			}
			fmt.Fprintf(&got, "%-8s %s\n", program.name, strings.Join(program.args, " "))
		}
		got.WriteString("\n")
	}
	const path = "testdata/commands.golden"
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(got.String()), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoDiff(t, cmp.Diff(string(want), got.String()), "%s (-want +got)", path)
}

// A trace that a workload repeats lies where the file of targets says, as seen from that file.
func TestArrivalsLieBesideTheTargets(t *testing.T) {
	absolute, err := filepath.Abs("monday.jsonl.gz")
	require.NoError(t, err)
	tests := []struct{ name, file, arrivals, want string }{
		{"below", "capture/targets.toml", "recorded/monday.jsonl.gz", "capture/recorded/monday.jsonl.gz"},
		{"above", "capture/targets.toml", "../monday.jsonl.gz", "monday.jsonl.gz"},
		{"beside a file of this folder", "targets.toml", "./monday.jsonl.gz", "monday.jsonl.gz"},
		{"from the root", "capture/targets.toml", absolute, absolute},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			file, findings := Parse(test.file, fmt.Appendf(nil, arrivalsTargets, test.arrivals), nil, testMatrix())
			if len(findings) > 0 || len(file.Targets) != 1 {
				t.Fatalf("%d targets, findings %v", len(file.Targets), findings)
			}
			args := file.Targets[0].LoadArgs(Addresses{HTTP: 8000}, "/trace")
			if want := "--arrival-trace=" + test.want; args[len(args)-1] != want {
				t.Errorf("arguments %q, want %s at the end", args, want)
			}
		})
	}
}

const arrivalsTargets = `
[models.a]
source = "a"
gpu = "cpu"
[workloads.again]
kind = "arrivals"
arrivals = %q
[[target]]
lines = ["0.33"]
models = ["a"]
scenarios = ["baseline"]
workloads = ["again"]
seeds = [7]
single_seed = "the trace decides"
`

// Published hashes of captures on H200s tie the configuration to that of others.
func TestPublishedHashes(t *testing.T) {
	m := Model{Source: "Qwen/Qwen3-8B", Served: "qwen", GPU: "H200", Engine: map[string]string{
		"block_size": "16", "enforce_eager": "true", "gpu_memory_utilization": "0.9", "max_model_len": "16384", "max_num_seqs": "256",
	}}
	tests := []struct {
		name, tag string
		scenario  Scenario
		want      string
	}{
		{"cached", "v0.27.1", Baseline, "008ec925f30d74759b6c62bd5e78b16efb7b450c687554c053726dad9740a9dd"},
		{"not cached", "v0.27.1", NoCache, "207648aeb128254e4e0c6d177c428abccd40a306478c04b0b8519a61b9c4ce8e"},
		{"another release", "v0.26.0", Baseline, "a50876aca900d094a2d58897176c1c96748203743b29a17ce1eb355fccbac84c"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			require.Equal(t, (Target{Tag: test.tag, Model: m, Scenario: test.scenario}).ConfigHash(), test.want, "hash")
		})
	}
}

// Every frontend that is installed takes the flags, and does not leave them to an engine of its own. It reads them in
// order, so that it prints its help only when it has understood all before --help.
func TestRealFrontendsTakeTheFlags(t *testing.T) {
	for _, version := range testenv.Frontends(t) {
		t.Run(version, func(t *testing.T) {
			binary := testenv.Frontend(t, version)
			if out, err := exec.Command(binary, "serve", "m", "--host", "h", "--port", "none", "--help").CombinedOutput(); err == nil {
				t.Fatalf("a wrong value is no error: %s", out)
			}
			checked := 0
			for _, one := range exampleTargets(t) {
				if one.Tag = "v" + version; one.impossible() != "" || one.PythonFrontend() {
					continue
				}
				checked++
				args := append(one.FrontendArgs(addressesOf(one)), "--help")
				help, err := exec.Command(binary, args...).CombinedOutput()
				require.NoErrorf(t, err, "%s: vllm-rs %v\n%s", one.Name(), args, help)
				wantOwnFlags(t, string(help), args)
			}
			require.True(t, checked != 0, "nothing was checked")
		})
	}
}

// wantOwnFlags wants each flag among those that the help says are the frontend's.
func wantOwnFlags(t *testing.T, help string, args []string) {
	t.Helper()
	own, managed, _ := strings.Cut(help, "\nOptions not implemented in Rust frontend yet:")
	if i := strings.Index(managed, "--data-parallel-address"); i >= 0 {
		own += "  " + managed[i:] // where the handshake is follows the others
	}
	for _, arg := range args {
		require.True(t, !strings.HasPrefix(arg, "--") || strings.Contains(own, "  "+arg+" ") || strings.Contains(own, arg+"\n"), "flag %s is not the frontend's own", arg)
	}
}
