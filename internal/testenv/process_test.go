package testenv

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestProcessStopsAtTestEndAndLogsOnFailure(t *testing.T) {
	tests := []struct {
		name, script string
		fail         bool
		want         []string // in the log; none: no log
	}{
		{name: "test passed", script: "echo ready; exec sleep 600"},
		{
			name: "test failed", script: "echo to-stderr >&2; echo ready; exec sleep 600", fail: true,
			want: []string{"was stopped: demo (sh", "signal: terminated", "to-stderr"},
		},
		{
			name: "test failed as the process died", script: "echo broken >&2; exit 3", fail: true,
			want: []string{"ended by itself: demo (sh", "exit status 3", "broken"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			fake := newFakeTB(t)
			var peer *Peer
			fake.run(func(tb testing.TB) {
				cmd := exec.Command("sh", "-c", test.script)
				r := pipeStdout(t, cmd)
				peer = Process(tb, "demo", cmd)
				cmd.Stdout.(io.Closer).Close()
				if _, err := r.ReadString('\n'); err != nil {
					<-peer.Done()
				}
				if test.fail {
					tb.Fatal("something else")
				}
			})
			if peer.process.Exit() == nil {
				t.Fatal("the process outlived its test")
			}
			require.True(t, len(test.want) != 0 || fake.logged == "", "a passing test logged %q", fake.logged)
			for _, want := range test.want {
				require.Contains(t, fake.logged, want)
			}
		})
	}
}

func TestProcessThatCannotStart(t *testing.T) {
	fake := newFakeTB(t)
	fake.run(func(tb testing.TB) { Process(tb, "demo", exec.Command("/nonexistent/binary")) })
	require.True(t, strings.Contains(fake.fatal, "start demo") && strings.Contains(fake.fatal, "/nonexistent/binary"), "got fatal %q, want one that names the peer and the path", fake.fatal)
}

func pipeStdout(t *testing.T, cmd *exec.Cmd) *bufio.Reader {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() { r.Close(); w.Close() })
	cmd.Stdout = w
	return bufio.NewReader(r)
}

// TestWriteProgram: what was written can be started at once, whatever is forked meanwhile.
func TestWriteProgram(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there are no scripts that can be executed")
	}
	path, done := filepath.Join(t.TempDir(), "program"), make(chan struct{})
	var forks sync.WaitGroup
	for range 4 {
		forks.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					_ = exec.Command("/bin/true").Run()
				}
			}
		})
	}
	for range 100 {
		WriteProgram(t, path, "#!/bin/sh\n")
		if err := exec.Command(path).Run(); err != nil {
			t.Error(err)
		}
	}
	close(done)
	forks.Wait()
}
