package testenv

import (
	"bufio"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

func TestRealPythonSpeaksZeroMQAndMessagePack(t *testing.T) {
	const program = `import msgspec, zmq; print(zmq.zmq_version_info() >= (4, 3), msgspec.msgpack.encode([1, "a"]).hex())`
	peer := Process(t, "python", exec.Command(Python(t), "-c", program))
	require.NoError(t, peer.Err())
	if got, want := peer.Tail(), "True 9201a161\n"; got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
}

// Each frontend accepts the tiny model, waits for an engine, and goes at SIGTERM.
func TestRealFrontendsWaitForAnEngine(t *testing.T) {
	for _, version := range FrontendVersions() {
		t.Run(version, func(t *testing.T) {
			cmd := exec.Command(Frontend(t, version), "serve", ModelDir(t), "--served-model-name", "tiny",
				"--data-parallel-size", "1", "--data-parallel-size-local", "0", "--data-parallel-address", "127.0.0.1",
				"--data-parallel-rpc-port", strconv.Itoa(FreePort(t)), "--port", strconv.Itoa(FreePort(t)))
			output := pipeStdout(t, cmd)
			cmd.Stderr = cmd.Stdout
			peer := Process(t, "vllm-rs "+version, cmd)
			cmd.Stdout.(io.Closer).Close()

			wantText(t, output, "waiting for engines to connect")
			peer.Stop()
			if killedBy(peer.Err()) == syscall.SIGKILL {
				t.Errorf("SIGTERM did not end it: %v", peer.Err())
			}
		})
	}
}

// wantText reads lines until one contains text; the end of the stream comes first if the process dies.
func wantText(t *testing.T, r *bufio.Reader, text string) {
	t.Helper()
	var seen strings.Builder
	for {
		line, err := r.ReadString('\n')
		seen.WriteString(line)
		if strings.Contains(line, text) {
			return
		}
		if err != nil {
			t.Fatalf("%v before a line with %q, after:\n%s", err, text, seen.String())
		}
	}
}
