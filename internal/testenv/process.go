package testenv

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/base/process"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// A Peer is a running process that belongs to one test.
type Peer struct {
	process *process.Process
}

// Process starts cmd and stops it when the test ends. If the test failed by then, it logs how the process ended and the
// last of what it wrote to stdout and stderr; a stream that cmd directs elsewhere stays with the caller.
//
// Whatever it started stops with it, and on Linux it dies too if the test binary is killed: see package process. Its
// name is for messages only.
func Process(t testing.TB, name string, cmd *exec.Cmd) *Peer {
	t.Helper()
	started, err := process.Start(cmd, process.Options{Name: name})
	require.NoError(t, err)
	p := &Peer{process: started}
	t.Cleanup(func() {
		how := "was stopped"
		if p.process.Exit() != nil {
			how = "ended by itself"
		}
		p.Stop()
		if t.Failed() {
			t.Logf("%s: %v", how, p.process.Exit())
		}
	})
	return p
}

// Done returns a channel that is closed when the process has ended and its output is complete.
func (p *Peer) Done() <-chan struct{} { return p.process.Done() }

// Err waits for the end of the process and returns nil for exit code 0, else a [*process.ExitError].
func (p *Peer) Err() error { return p.process.Wait(context.Background()) }

// Tail returns the last 16 KiB that the process has written to stdout and stderr so far, in the order written.
func (p *Peer) Tail() string { return p.process.Tail() }

// Stop ends the process and its group, by SIGTERM, and by SIGKILL if it is still there after five seconds. It returns
// when the process is gone. Stopping a process that has ended is not an error.
func (p *Peer) Stop() {
	// The only error is a process that hangs inside the kernel; its test has failed by then, for want of an answer.
	_ = p.process.Stop(context.Background())
}

// Act returns the path of act, which runs GitHub workflows on this machine. Its tests are slow ones.
func Act(t testing.TB) string {
	t.Helper()
	Slow(t, "runs a whole workflow")
	path, err := findInstalled(PeersDir(t), "act", "act")
	settle(t, err)
	return path
}

// Helm returns the path of helm.
func Helm(t testing.TB) string {
	t.Helper()
	path, err := findInstalled(PeersDir(t), "helm", "helm")
	settle(t, err)
	return path
}

// ImageTool returns the path of a program that the tests of images need: buildah, skopeo, jq or docker-registry. These
// tests are slow ones.
func ImageTool(t testing.TB, name string) string {
	t.Helper()
	Slow(t, "builds an image")
	path, err := exec.LookPath(name)
	if err != nil {
		path, err = findInstalled(PeersDir(t), name, "image")
	}
	settle(t, err)
	return path
}

// Absent ends a test for want of something that .ci/peers cannot install: it is skipped, or fails where peers are
// required.
func Absent(t testing.TB, why string) {
	t.Helper()
	if required() {
		t.Fatal(why)
	}
	t.Skip(why)
}

// findInstalled finds a program that .ci/peers puts into the folder of peers.
func findInstalled(dir, name, kind string) (string, error) {
	return found(filepath.Join(dir, "bin", name), name, kind)
}

// A builtProgram is one that goes when this process does.
type builtProgram struct {
	path    string
	cleaner *janitor
}

var builtVCR shared[builtProgram]

// VCR returns the path of vllm-vcr, as a program of its own that pods can run. It is built for the first test that needs it,
// and removed once the test binary has ended.
func VCR(t testing.TB) string {
	t.Helper()
	return builtVCR.get(func() builtProgram {
		dir, cleaner := processDir(t)
		path := filepath.Join(dir, "vllm-vcr")
		out, err := exec.Command("go", "build", "-o", path, "github.com/vllm-vcr/conformance/cmd/vllm-vcr").CombinedOutput()
		require.NoErrorf(t, err, "go build: %s", out)
		return builtProgram{path, cleaner}
	}).path
}

// Resident is the resident memory of a process in MB, from /proc.
func Resident(t testing.TB, pid int) float64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	kb, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
	require.NoError(t, err)
	return kb / 1024
}
