//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/frontends/coreclient"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// command is the vllm-vcr of this test binary as a process. patience is only
// used up by a process that hangs.
type command struct {
	*exec.Cmd
	stdout, stderr bytes.Buffer
}

const patience = 5 * time.Minute

func start(t *testing.T, args ...string) *command {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	c := &command{Cmd: exec.CommandContext(ctx, "vllm-vcr", args...)}
	c.Stdout, c.Stderr = &c.stdout, &c.stderr
	require.NoError(t, c.Start())
	t.Cleanup(func() { c.Process.Kill() })
	return c
}

// end waits for the process and returns its exit code; -1 after a signal that it
// did not handle.
func (c *command) end(t *testing.T) int {
	t.Helper()
	err := c.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return c.ProcessState.ExitCode()
}

// listen accepts a connection and says nothing, as a frontend that hangs.
func listen(t *testing.T) (address string, dialed <-chan net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	conns := make(chan net.Conn, 1)
	go func() {
		if c, err := ln.Accept(); err == nil {
			t.Cleanup(func() { c.Close() })
			conns <- c
		}
	}()
	return "tcp://" + ln.Addr().String(), conns
}

// TestPlayEndsOnSignal: a player that waits for its frontend's handshake ends
// with exit code 0 when it is told to, long before the handshake's five minutes.
func TestPlayEndsOnSignal(t *testing.T) {
	for _, sig := range []os.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			address, dialed := listen(t)
			c := start(t, "play", "--frontend-handshake", address)
			select {
			case <-dialed:
			case <-time.After(patience):
				t.Fatal("the player never dialed the handshake address")
			}
			require.NoError(t, c.Process.Signal(sig))
			if code := c.end(t); code != 0 || c.stdout.Len() > 0 || c.stderr.Len() > 0 {
				t.Errorf("exit code %d, stdout %q, stderr %q, want 0 and silence", code, &c.stdout, &c.stderr)
			}
		})
	}
}

// TestPlayEndsWhateverRuns: a player that is stuck, here in a file that nobody writes, ends all the same.
func TestPlayEndsWhateverRuns(t *testing.T) {
	stuck := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, syscall.Mkfifo(stuck, 0o600))
	var stdout, stderr bytes.Buffer
	env := newEnvironment(&stdout, &stderr, func(string) (string, bool) { return "", false })
	env.grace = time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	code := env.main(ctx, []string{"play", "--trace", stuck})
	require.True(t, code == 3 && strings.Contains(stderr.String(), "the player did not end within 1ms after the signal"), "exit code %d, stderr %q, want 3 and the reason", code, &stderr)
	writer, err := os.OpenFile(stuck, os.O_WRONLY, 0) // lets what was stuck go on, which finds a file of nothing
	require.NoError(t, err)
	writer.Close()
}

// frontendOf is a frontend of the newest line that waits for its engine.
func frontendOf(t *testing.T) *coreclient.Frontend {
	t.Helper()
	codec, err := protocol.CodecFor(protocol.Newest())
	require.NoError(t, err)
	f, err := coreclient.Listen(coreclient.Options{Codec: codec})
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

// TestPlayTellsItsFrontend: a player that serves and is told to end says so to
// its frontend.
func TestPlayTellsItsFrontend(t *testing.T) {
	f := frontendOf(t)
	c := start(t, "play", "--frontend-handshake", f.Handshake(), "--vllm-version", protocol.Newest())
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := f.Accept(ctx); err != nil {
		t.Fatal(err)
	}
	require.NoError(t, c.Process.Signal(syscall.SIGTERM))
	var outputs protocol.Outputs
	for {
		_, err := f.Next(ctx, 0, &outputs)
		if errors.Is(err, protocol.ErrEngineDead) {
			break
		}
		require.NoErrorf(t, err, "want to be told that the engine is dead")
	}
	if code := c.end(t); code != 0 || c.stdout.Len() > 0 {
		t.Errorf("exit code %d, stdout %q, want 0 and silence", code, &c.stdout)
	}
}

// TestPlayEndsWithItsFrontend: without a frontend there is nobody to serve, which
// is not the player's failure.
func TestPlayEndsWithItsFrontend(t *testing.T) {
	f := frontendOf(t)
	c := start(t, "play", "--frontend-handshake", f.Handshake(), "--vllm-version", protocol.Newest())
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := f.Accept(ctx); err != nil {
		t.Fatal(err)
	}
	require.NoError(t, f.Close())
	if code := c.end(t); code != 0 || !strings.Contains(c.stderr.String(), "the frontend closed its connections: the player ends") {
		t.Errorf("exit code %d, stderr %q, want 0 and the reason", code, &c.stderr)
	}
}
