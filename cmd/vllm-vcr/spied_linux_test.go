package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// spied is the vllm-vcr of this test binary as a process in the repository, whose words
// can be waited for, and of which nothing may be left when it has ended.
type spied struct {
	*exec.Cmd
	mark           string // in the environment of whatever it starts
	stdout, stderr spy
	ended          chan struct{}
}

// startSpied starts it with additional variables of the environment.
func startSpied(t *testing.T, env []string, args ...string) *spied {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	s := &spied{Cmd: exec.CommandContext(ctx, "vllm-vcr", args...), ended: make(chan struct{})}
	s.mark = fmt.Sprintf("VCR_TEST_MARK=%d %s", os.Getpid(), t.Name())
	s.Dir, s.Stdout, s.Stderr = "../..", &s.stdout, &s.stderr
	s.Env = append(os.Environ(), "GITHUB_ACTIONS=", "GITHUB_STEP_SUMMARY=", s.mark)
	s.Env = append(s.Env, env...)
	require.NoError(t, s.Start())
	t.Cleanup(func() { s.Process.Kill() })
	return s
}

// runSpied runs it to its end, and returns its exit code, too.
func runSpied(t *testing.T, env []string, args ...string) (*spied, int) {
	t.Helper()
	s := startSpied(t, env, args...)
	return s, s.end(t)
}

// end waits for the end of the process and of all that it has started.
func (s *spied) end(t *testing.T) int {
	t.Helper()
	err := s.Wait()
	close(s.ended)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	for _, pid := range marked(t, s.mark) {
		if !endOf(t, pid) {
			t.Errorf("process %d is left behind", pid)
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	if s.ProcessState.ExitCode() < 0 {
		t.Logf("ended by %v:\n%s%s", s.ProcessState, s.stdout.text(), s.stderr.text())
	}
	return s.ProcessState.ExitCode()
}

// marked are the living processes that have the mark in their environment.
func marked(t *testing.T, mark string) (pids []int) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	require.NoError(t, err)
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(append([]byte{0}, data...), []byte("\x00"+mark+"\x00")) {
			continue // it has gone, or is of somebody else
		}
		pid, err := strconv.Atoi(strings.Split(file, "/")[2])
		require.NoError(t, err)
		pids = append(pids, pid)
	}
	return pids
}

// endOf waits for the end of a process that was told to end: SIGKILL takes a moment.
func endOf(t *testing.T, pid int) bool {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return true
	}
	defer unix.Close(fd)
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 5000)
		if !errors.Is(err, unix.EINTR) {
			return err == nil && n == 1
		}
	}
}

// spy keeps what is written to it, and tells when a text has come.
type spy struct {
	mu     sync.Mutex
	buf    bytes.Buffer
	wanted map[string]chan struct{}
}

func (s *spy) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.buf.Write(p)
	s.tell()
	return len(p), nil
}

func (s *spy) tell() {
	for text, seen := range s.wanted {
		if bytes.Contains(s.buf.Bytes(), []byte(text)) {
			close(seen)
			delete(s.wanted, text)
		}
	}
}

// has is closed when the text has come.
func (s *spy) has(text string) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := make(chan struct{})
	if s.wanted == nil {
		s.wanted = map[string]chan struct{}{}
	}
	s.wanted[text] = seen
	s.tell()
	return seen
}

func (s *spy) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

// await waits for an event of the run.
func (s *spied) await(t *testing.T, event <-chan struct{}) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	select {
	case <-event:
	case <-ctx.Done():
		t.Fatalf("it never came to that:\n%s%s", s.stdout.text(), s.stderr.text())
	}
}

// says demands that a text has a match of each pattern.
func says(t *testing.T, text string, patterns ...string) {
	t.Helper()
	for _, pattern := range patterns {
		require.True(t, regexp.MustCompile("(?m)"+pattern).MatchString(text), "no %q in:\n%s", pattern, text)
	}
}

// mockEngine is the command of an engine that is none of ours, with a fault, and further
// flags of it.
func mockEngine(t *testing.T, fault string, flags ...string) string {
	t.Helper()
	python := testenv.Python(t)
	return fmt.Sprintf("'%s' -u testdata/engines/mock.py --handshake {handshake} --index {index} --fault '%s' %s",
		python, fault, strings.Join(flags, " "))
}

// replaying are the flags of an engine that has the recording of the case.
const replaying = "--line {line} --trace {trace}"

// fifo is a pipe with a name, and an event: somebody has opened it to write.
func fifo(t *testing.T) (path string, opened <-chan struct{}) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, syscall.Mkfifo(path, 0o600))
	// Opened both ways, it does not have to be waited for, and has no end.
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	t.Cleanup(func() { file.Close() })
	told := make(chan struct{})
	go func() {
		if _, err := file.Read(make([]byte, 1)); err == nil {
			close(told)
		}
	}()
	return path, told
}
