//go:build linux

package main

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/frontends/coreclient"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// BenchmarkSpawn is a player as its own process: from start to READY, and its
// resident memory there and after 64 requests of 128 tokens at once.
func BenchmarkSpawn(b *testing.B) {
	binary := buildBinary(b)
	codec, err := protocol.CodecFor(protocol.Newest())
	require.NoError(b, err)
	var ready time.Duration
	var idle, loaded float64
	for b.Loop() {
		took, atReady, after := spawn(b, binary, codec)
		ready += took
		idle, loaded = max(idle, atReady), max(loaded, after)
	}
	b.ReportMetric(float64(ready.Microseconds())/1e3/float64(b.N), "ms-to-READY")
	b.ReportMetric(idle, "MB-at-READY")
	b.ReportMetric(loaded, "MB-loaded")
}

func spawn(b *testing.B, binary string, codec *protocol.Codec) (ready time.Duration, idle, loaded float64) {
	b.Helper()
	f, err := coreclient.Listen(coreclient.Options{Codec: codec})
	require.NoError(b, err)
	defer f.Close()
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	start := time.Now()
	cmd := exec.CommandContext(ctx, binary, "play", "--frontend-handshake", f.Handshake(), "--vocab-size", "2048")
	require.NoError(b, cmd.Start())
	defer func() {
		cmd.Process.Signal(os.Interrupt)
		cmd.Wait()
	}()
	if _, err := f.Accept(ctx); err != nil {
		b.Fatal(err)
	}
	ready = time.Since(start)
	idle = testenv.Resident(b, cmd.Process.Pid)
	generate(b, f, 640, 64)
	return ready, idle, testenv.Resident(b, cmd.Process.Pid)
}

// BenchmarkCommands makes the whole command tree, as help does.
func BenchmarkCommands(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		newRootCommand(quietEnvironment())
	}
}
