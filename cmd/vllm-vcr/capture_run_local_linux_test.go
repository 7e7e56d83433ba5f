package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// A capture on this machine from the command line to the manifest, with a player in place of the engine.
func TestCaptureRunLocal(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, engine string
		args         []string
		code         int
		want         string // a part of what it writes
		registered   bool
	}{
		{name: "registered", engine: testenv.PlayerForEngine, args: []string{"0.33/multiturn-s7"}, want: ", 0 of 180 answers as before, sha256 ", registered: true},
		{name: "not registered", engine: testenv.PlayerForEngine, args: []string{"0.33/multiturn-s7", "--no-register"}, want: "180 requests"},
		{name: "no engine", engine: "echo '::error::cannot load' >&2; exit 1", args: []string{"0.33/multiturn-s7"}, code: 3, want: "\n0.33/multiturn-s7: failed: | ::error::cannot load\n"},
		{name: "unknown target", engine: testenv.PlayerForEngine, args: []string{"0.33/multiturn-s8"}, code: 2, want: `there is no target "0.33/multiturn-s8"`},
		{name: "no jobs", engine: testenv.PlayerForEngine, args: []string{"0.33/multiturn-s7", "--jobs", "0"}, code: 2, want: "--jobs 0: want more than 0"},
		{name: "nowhere", engine: testenv.PlayerForEngine, args: []string{"0.33/multiturn-s7", "--repo", "nowhere"}, code: 2, want: "--repo: chdir nowhere: no such file"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			checkout := newCheckout(t)
			cmd := exec.Command("vllm-vcr", append([]string{"capture", "run", "--local"}, test.args...)...)
			cmd.Dir, cmd.Env = checkout, append(os.Environ(), "VLLM_VCR_PEERS="+testenv.EnginePeers(t, test.engine))
			out, err := cmd.CombinedOutput()
			if code := cmd.ProcessState.ExitCode(); code != test.code {
				t.Fatalf("exit code %d (%v), want %d\n%s", code, err, test.code, out)
			}
			require.Contains(t, string(out), test.want)
			wantRegistered(t, checkout, test.registered)
			if test.code == 0 {
				wantConforming(t, checkout, "0.33")
			}
		})
	}
}

// newCheckout is a folder with the files of the repository that a capture reads and writes.
func newCheckout(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, vcr.Files))
	return dir
}

// wantRegistered checks whether the manifest of a checkout was changed.
func wantRegistered(t *testing.T, checkout string, want bool) {
	t.Helper()
	before, err := vcr.Files.ReadFile(vcr.ManifestPath)
	require.NoError(t, err)
	after, err := os.ReadFile(filepath.Join(checkout, vcr.ManifestPath))
	require.NoError(t, err)
	if changed := !bytes.Equal(before, after); changed != want {
		t.Errorf("the manifest was changed: %v, want %v\n%s", changed, want, cmp.Diff(string(before), string(after)))
	}
}

// wantConforming replays the golden multiturn-s7 of a checkout, of which the recording must still be there.
func wantConforming(t *testing.T, checkout, line string) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(checkout, workPath, line, "multiturn-s7", "trace.jsonl.gz")); err != nil {
		t.Errorf("the recording was not kept: %v", err)
	}
	cmd := exec.Command("vllm-vcr", "conform", "--line", line, "--golden", "multiturn-s7")
	cmd.Dir = checkout
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("conform: %v\n%s", err, out)
	}
}

// The same with released engines on the CPU.
func TestCaptureRunLocalRealEngine(t *testing.T) {
	versions := strings.Fields(os.Getenv("VLLM_VCR_ENGINES"))
	if len(versions) == 0 {
		t.Skip("set VLLM_VCR_ENGINES to the releases to start, such as \"0.33.0 0.27.1\": .ci/peers engine installs them")
	}
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			line, checkout := version[:strings.LastIndex(version, ".")], newCheckout(t)
			cmd := exec.Command("vllm-vcr", "capture", "run", "--local", line+"/multiturn-s7")
			cmd.Dir = checkout
			out, err := cmd.CombinedOutput()
			require.NoErrorf(t, err, "%s", out)
			t.Logf("%s", out)
			wantRegistered(t, checkout, true)
			wantConforming(t, checkout, line)
		})
	}
}
