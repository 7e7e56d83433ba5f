package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/capture/load"
	"github.com/vllm-vcr/conformance/internal/frontends/openai"
	"github.com/vllm-vcr/conformance/internal/frontends/vllmrs"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/trace"
)

// A capturePod is what runs in the pod of a capture, with the player as its engine, as processes that share a folder.
type capturePod struct {
	dir       string
	server    *vllmrs.Server
	tap, load *command
	log       <-chan string // the lines of the load generator's stderr
}

// startPod starts a pod whose workload is to be fetched.
func startPod(t *testing.T, version, dir string, args ...string) *capturePod {
	t.Helper()
	p := &capturePod{dir: dir}
	var err error
	p.server, err = vllmrs.Start(t.Context(), vllmrs.Options{
		Binary: testenv.Frontend(t, version), ModelDir: testenv.ModelDir(t), ServedName: "tiny", Env: []string{"VLLM_SERVER_DEV_MODE=1"},
	})
	require.NoError(t, err)
	t.Cleanup(func() { p.server.Close() })
	engine := fmt.Sprintf("tcp://127.0.0.1:%d", testenv.FreePort(t))
	// The load generator begins first, as it may in a pod, and waits.
	p.startLoad(t, append([]string{
		"capture", "load", p.server.URL(), "--model", "tiny", "--trace-dir", dir, "--server-timeout", "1m", "--fetch-timeout", "1m",
	}, args...)...)
	p.tap = start(t, "record", "--frontend-handshake", p.server.Handshake(), "--engine-handshake", engine, "--until", filepath.Join(dir, load.Done),
		"--trace-out", filepath.Join(dir, load.Trace), "--step-stats-out", filepath.Join(dir, load.Steps), "--frames-out", filepath.Join(dir, load.Frames),
		"--record-tokens", "--vllm-version", "v"+version, "--verbose")
	start(t, "play", "--frontend-handshake", engine, "--vllm-version", version, "--vocab-size", "2048", "--seed", "7")
	return p
}

func (p *capturePod) startLoad(t *testing.T, args ...string) {
	t.Helper()
	c := &command{Cmd: exec.CommandContext(t.Context(), "vllm-vcr", args...)}
	c.Stdout = &c.stdout
	stderr, err := c.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	t.Cleanup(func() { c.Process.Kill() })
	lines := make(chan string, 100)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(stderr); s.Scan(); {
			lines <- s.Text()
		}
	}()
	p.load, p.log = c, lines
}

// line is the next line of the load generator's stderr, "" at its end.
func (p *capturePod) line(t *testing.T) string {
	t.Helper()
	select {
	case line := <-p.log:
		return line
	case <-time.After(patience):
		t.Fatalf("the load generator says nothing; the tap said %s", &p.tap.stderr)
	}
	return ""
}

// fetch has a file sent, and checks what arrived.
func (p *capturePod) fetch(t *testing.T, name string) []byte {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "vllm-vcr", "capture", "pod", "send", name, "--dir", p.dir).Output()
	require.NoError(t, err)
	line, data, _ := bytes.Cut(out, []byte("\n"))
	var head load.Header
	require.NoError(t, json.Unmarshal(line, &head))
	if sum := sha256.Sum256(data); int64(len(data)) != head.Size || hex.EncodeToString(sum[:]) != head.SHA256 {
		t.Errorf("%s: %d bytes do not fit %+v", name, len(data), head)
	}
	return data
}

// TestCapturePod: a load, its recording and the fetch of both, while everything still runs.
func TestCapturePod(t *testing.T) {
	t.Parallel()
	for _, version := range testenv.FrontendVersions() {
		t.Run(version, func(t *testing.T) { capturePodOf(t, version) })
	}
}

func capturePodOf(t *testing.T, version string) {
	p := startPod(t, version, t.TempDir(), "--workload", "edge", "--seed", "1")
	if got := p.line(t); got != "phases done, waiting for fetch" {
		t.Fatalf("the load generator said %q; the tap said %s", got, &p.tap.stderr)
	}
	require.NoErrorf(t, exec.CommandContext(t.Context(), "vllm-vcr", "capture", "pod", "ready", "--dir", p.dir).Run(), "not ready")
	home := t.TempDir()
	for _, name := range []string{load.Trace, load.Steps, load.Frames, load.ReportFile, load.Requests} {
		require.NoError(t, os.WriteFile(filepath.Join(home, name), p.fetch(t, name), 0o666))
	}
	// The tap still passes on what is said.
	if _, err := p.server.Complete(t.Context(), openai.Request{Prompt: []uint32{5}, MaxTokens: 3}); err != nil {
		t.Error(err)
	}
	require.NoErrorf(t, exec.CommandContext(t.Context(), "vllm-vcr", "capture", "pod", "release", "--dir", p.dir).Run(), "release")
	if code := p.load.end(t); code != 0 || p.line(t) != "" {
		t.Errorf("the load generator ended with %d", code)
	}
	require.NoError(t, p.tap.Process.Signal(syscall.SIGTERM))
	if code := p.tap.end(t); code != 0 || !strings.Contains(p.tap.stderr.String(), "the recording is complete; messages are still forwarded") {
		t.Errorf("the tap ended with %d: %s", code, &p.tap.stderr)
	}
	p.agrees(t, home)
}

// agrees compares what was fetched.
func (p *capturePod) agrees(t *testing.T, home string) {
	t.Helper()
	records, err := load.ReadRecords(filepath.Join(home, load.Requests))
	require.NoError(t, err)
	tr, err := trace.Open(filepath.Join(home, load.Trace), trace.Options{Strict: true, KeepExtra: true})
	require.NoError(t, err)
	defer tr.Close()
	if findings, err := load.Compare(records, tr); err != nil || len(findings) > 0 || len(records) != 65 {
		t.Errorf("%d records, %v, %q", len(records), err, findings)
	}
	file, err := os.Open(filepath.Join(home, load.Steps))
	require.NoError(t, err)
	defer file.Close()
	if n, err := io.Copy(io.Discard, file); n == 0 || err != nil {
		t.Errorf("%d bytes of step statistics, %v", n, err)
	}
}

// TestCapturePodInterrupted: a pod that is taken away says so, and its records are whole.
func TestCapturePodInterrupted(t *testing.T) {
	p := startPod(t, testenv.FrontendVersions()[0], t.TempDir(), "--workload", "bursts", "--bursts", "1000", "--every", "100ms", "--verbose")
	for !strings.Contains(p.line(t), "msg=request id=load-000020") {
		if t.Failed() {
			return
		}
	}
	require.NoError(t, p.load.Process.Signal(syscall.SIGTERM))
	last := ""
	for line := p.line(t); line != ""; line = p.line(t) {
		last = line
	}
	if code := p.load.end(t); code != 3 || last != "vllm-vcr: error: interrupted: the report covers the requests until then" {
		t.Errorf("exit code %d, %q", code, last)
	}
	reason, err := os.ReadFile(filepath.Join(p.dir, load.FailedFile))
	require.True(t, err == nil && strings.HasPrefix(string(reason), "interrupted: "), "failed: %q, %v", reason, err)
	if records, err := load.ReadRecords(filepath.Join(p.dir, load.Requests)); err != nil || len(records) < 16 {
		t.Errorf("%d records, %v", len(records), err)
	}
	if _, err := os.Stat(filepath.Join(p.dir, load.Done)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the tap was told that the load is done: %v", err)
	}
}
