package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// terminal returns both ends of a new terminal: what programs write to the second is read from the first.
func terminal(t *testing.T, columns uint16) (screen, programs *os.File) {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { screen.Close() })
	fd := int(screen.Fd())
	require.NoError(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	require.NoError(t, unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns}))
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	require.NoError(t, err)
	programs, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	return screen, programs
}

// TestRecordOnTerminal: a real terminal shows the progress line, cut at its edge and taken away at the end, and above it
// the log; with --quiet there is no line, nor on a terminal that cannot redraw one.
func TestRecordOnTerminal(t *testing.T) {
	const line = "\r\x1b[K0:00 | waiting for an eng" // 28 of 29 columns
	tests := []struct {
		name, term string
		args       []string
		want       bool
	}{
		{"line", "xterm", nil, true},
		{"quiet", "xterm", []string{"--quiet"}, false},
		{"dumb", "dumb", nil, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			screen, programs := terminal(t, 29)
			args := []string{"record", "--verbose", "--engine-handshake", "tcp://127.0.0.1:0", "--trace-out", t.TempDir() + "/run.jsonl"}
			cmd := exec.CommandContext(t.Context(), "vllm-vcr", append(args, test.args...)...)
			cmd.Env = append(os.Environ(), "TERM="+test.term)
			cmd.Stderr = programs
			require.NoError(t, cmd.Start())
			programs.Close()
			// The signal goes out when the line is there, or, if there is to be none, the log.
			until := "waiting for the engine"
			if test.want {
				until = line
			}
			seen := readUntil(t, screen, until)
			require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
			rest, _ := io.ReadAll(screen) // ends in EIO when the last program has closed its end
			seen += string(rest)
			cmd.Wait()
			require.Equal(t, cmd.ProcessState.ExitCode(), 3, "exit code")
			require.Equal(t, strings.Contains(seen, "\x1b"), test.want, "seen %q", seen)
			if error := "vllm-vcr: error: record ended before an engine connected: nothing was recorded\r\n"; !strings.HasSuffix(seen, error) ||
				test.want && !strings.HasSuffix(seen, "\r\x1b[K"+error) {
				t.Errorf("seen %q, want it to end in %q, on a line of its own", seen, error)
			}
		})
	}
}

func readUntil(t *testing.T, r io.Reader, text string) string {
	t.Helper()
	var seen []byte
	for buf := make([]byte, 1024); !strings.Contains(string(seen), text); {
		n, err := r.Read(buf)
		seen = append(seen, buf[:n]...)
		require.NoErrorf(t, err, "after %q, want %q", seen, text)
	}
	return string(seen)
}
