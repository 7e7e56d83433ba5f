package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// TestInterrupt: ^C during any kind of run ends it with a report of what ran and exit
// code 3, and no process is left.
func TestInterrupt(t *testing.T) {
	hangs, hung := fifo(t)
	sleeps, asleep := fifo(t)
	tests := []struct {
		name   string
		args   []string
		env    []string
		stderr string          // what is waited for there,
		event  <-chan struct{} // or another event
	}{
		{name: "player", args: []string{"-v"}, stderr: "msg=case name=0.33/multiturn-s7/fidelity-index-1 "},
		{name: "self-test", args: []string{"--self-test", "--line", "0.33", "-v"}, stderr: "msg=case name=0.33/self-test/"},
		{
			name: "an engine in the middle", env: []string{"MOCK_HANGS=" + hangs}, event: hung,
			args: []string{"--line", "0.33", "--golden", "edge-s1", "--assertion", "fidelity", "--engine-command", mockEngine(t, "hangs-midway", replaying)},
		},
		{name: "nobody's engine", args: []string{"--line", "0.33", "--golden", "edge-s1", "--run", "**/schema", "--engine-handshake", freeAddress(t)}, stderr: "waiting for an engine at tcp://127.0.0.1:"},
		{
			name: "an engine that generates", args: []string{"--line", "0.33", "--suite", "live", "-v", "--idle-timeout", "1m", "--engine-command", mockEngine(t, "silent", "--line {line}")},
			stderr: "msg=case name=0.33/live/schema ",
		},
		{
			name: "a frontend", event: asleep,
			args: []string{"--line", "0.33", "--frontend-command", fmt.Sprintf("sh -c 'echo > %s; sleep 600 & wait' {handshake} {http_port}", sleeps)},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := startSpied(t, test.env, append([]string{"conform"}, test.args...)...)
			if test.stderr != "" {
				s.await(t, s.stderr.has(test.stderr))
			} else {
				s.await(t, test.event)
			}
			s.Process.Signal(syscall.SIGINT)
			if code := s.end(t); code != 3 {
				t.Errorf("exit code %d, want 3:\n%s", code, s.stdout.text())
			}
			// E025: the signal came between two cases.
			says(t, s.stdout.text(), `^(  |ERROR \d+ cases: )(R008 |H001 .*|E025 .*)(not run: )?(interrupt signal received|.*interrupt signal received)`, `^(FAIL|ERROR): `)
			// What did not run is one line for each message, and the first line of the report.
			if n := strings.Count(s.stdout.text(), "R008 not run"); n > 2 {
				t.Errorf("%d lines about cases that did not run:\n%s", n, s.stdout.text())
			}
			says(t, s.stderr.text(), `^vllm-vcr: error: interrupted: the report covers what ran until then\n\z`)
		})
	}
}

// TestInterruptByTimeout: two signals at once, as `timeout` sends them to the process and to its group, are one interrupt:
// the report comes, and no folder is left.
func TestInterruptByTimeout(t *testing.T) {
	path, told := fifo(t)
	readyPath, ready := fifo(t)
	temp := t.TempDir()
	command := fmt.Sprintf(`sh -c 'trap "echo > %s; exit 0" TERM; echo > %s; sleep 600 & wait' {handshake} {trace}`, path, readyPath)
	s := startSpied(t, []string{"TMPDIR=" + temp}, append(oneReplay("0.33"), "--engine-command", command)...)
	s.await(t, ready)
	s.Process.Signal(syscall.SIGINT)
	s.await(t, told) // the first has been seen
	s.Process.Signal(syscall.SIGINT)
	require.Equal(t, s.end(t), 3, "exit code")
	says(t, s.stdout.text(), `interrupt signal received`, `^ERROR: could not be judged on 0.33`)
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("left in the folder of temporary files: %v, %v", left, err)
	}
}

// TestKeepAlive: once all cases have results, ^C is how a person says that it is enough:
// the exit code is the report's.
func TestKeepAlive(t *testing.T) {
	frontend := fmt.Sprintf("'%s' serve {model} --data-parallel-size 1 --data-parallel-size-local 0 --data-parallel-address {handshake_host} "+
		"--data-parallel-rpc-port {handshake_port} --host 127.0.0.1 --port {http_port}", testenv.Frontend(t, "0.33.0"))
	tests := []struct {
		name         string
		args         []string
		code         int
		stdout, said string
	}{
		{
			"a good engine", append(oneReplay("0.33"), "--engine-command", mockEngine(t, "", replaying)),
			0, `^PASS: every gate holds: 1 passed; `, `^handshake at tcp://127\.0\.0\.1:\d+, process \d+$`,
		},
		{
			"a wrong one", append(oneReplay("0.33"), "--engine-command", mockEngine(t, "", "--line {line}")),
			1, `^FAIL: does not conform on 0.33: 0 passed, 1 failed; `, `^handshake at tcp://`,
		},
		{
			"a frontend",
			[]string{"conform", "--line", "0.33", "--run", "**/handshake", "--run", "**/requests", "--model", "testdata/model/tiny", "--frontend-command", frontend},
			0, `^PASS: every gate holds: 2 passed; `, `^handshake at tcp://127\.0\.0\.1:\d+, HTTP at http://127\.0\.0\.1:\d+, process \d+$`,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := startSpied(t, nil, append(test.args, "--keep-alive")...)
			s.await(t, s.stderr.has("interrupt (^C) to stop"))
			require.True(t, len(marked(t, s.mark)) >= 2, "nothing is kept alive")
			s.Process.Signal(syscall.SIGINT)
			if code := s.end(t); code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}
			says(t, s.stdout.text(), test.stdout)
			says(t, s.stderr.text(), test.said)
			if strings.Contains(s.stderr.text(), "interrupted") {
				t.Errorf("stderr %q: nothing was interrupted", s.stderr.text())
			}
		})
	}
}

// TestInterruptInspect: a command that reads or computes prints how far it is, ends at once, and leaves nothing of what it wrote.
func TestInterruptInspect(t *testing.T) {
	path, dir := filepath.Join(t.TempDir(), "trace.jsonl"), t.TempDir()
	require.NoError(t, syscall.Mkfifo(path, 0o600))
	pipe, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer pipe.Close()
	ticks := make(chan time.Time)
	var stderr spy
	env := newEnvironment(io.Discard, &stderr, func(string) (string, bool) { return "", false })
	env.ticks = func(time.Duration) (<-chan time.Time, func()) { return ticks, func() {} }
	ctx, interrupt := context.WithCancel(t.Context())
	code := make(chan int)
	go func() {
		code <- env.main(ctx, []string{"inspect", "convert", path, "--to", "otlp", "-o", filepath.Join(dir, "out.json")})
	}()
	// More than a pipe holds: most of it has been converted then.
	record := `{"prompt_tokens":4,"output_tokens":1,"ttft_ms":1.0,"itl_ms":[],"arrival_ms":1.0}` + "\n"
	_, err = pipe.WriteString(strings.Repeat(record, 3000))
	require.NoError(t, err)
	ticks <- time.Time{}
	interrupt()
	require.Equal(t, <-code, conformance.ExitInfra, "exit code")
	says(t, stderr.text(), `\Avllm-vcr: reading .*/trace\.jsonl\nvllm-vcr: error: interrupted\n\z`)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.True(t, len(left) == 0, "left behind: %v", left)
}
