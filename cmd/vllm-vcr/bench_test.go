//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/frontend"
	"github.com/vllm-vcr/conformance/internal/protocol"
)

// BenchmarkSpawn is a player as its own process: from start to READY, and its
// resident memory there and after 64 requests of 128 tokens at once.
func BenchmarkSpawn(b *testing.B) {
	binary := filepath.Join(b.TempDir(), "vllm-vcr")
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", binary, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as it is released: a dynamic binary starts slower
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	codec, err := protocol.CodecFor(protocol.Newest)
	if err != nil {
		b.Fatal(err)
	}
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
	f, err := frontend.Listen(frontend.Options{Codec: codec})
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	start := time.Now()
	cmd := exec.CommandContext(ctx, binary, "play", "--handshake-address", f.Handshake(), "--vocab-size", "2048")
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() {
		cmd.Process.Signal(os.Interrupt)
		cmd.Wait()
	}()
	if _, err := f.Accept(ctx); err != nil {
		b.Fatal(err)
	}
	ready = time.Since(start)
	idle = resident(b, cmd.Process.Pid)
	load(b, ctx, f)
	return ready, idle, resident(b, cmd.Process.Pid)
}

// load runs 640 requests of 128 tokens, 64 in flight.
func load(b *testing.B, ctx context.Context, f *frontend.Frontend) {
	b.Helper()
	const total, inFlight, tokens = 640, 64, 128
	var outputs protocol.Outputs
	sent, done := 0, 0
	for done < total {
		for ; sent < total && sent-done < inFlight; sent++ {
			err := f.Submit(&protocol.Request{
				ID: fmt.Sprintf("load-%d", sent), PromptTokenIDs: make([]uint32, tokens), DataParallelRank: -1, HasSampling: true,
				Sampling: protocol.Sampling{
					MaxTokens: tokens, HasMaxTokens: true, EOSTokenID: -1,
					Logprobs: protocol.NoLogprobs, PromptLogprobs: protocol.NoLogprobs,
				},
			})
			if err != nil {
				b.Fatal(err)
			}
		}
		if _, err := f.Next(ctx, 0, &outputs); err != nil {
			b.Fatal(err)
		}
		for _, o := range outputs.Outputs {
			if o.Finish != protocol.Unfinished {
				done++
			}
		}
	}
}

// resident is a process's resident memory in MB, from /proc.
func resident(b *testing.B, pid int) float64 {
	b.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	kb, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
	if err != nil {
		b.Fatal(err)
	}
	return kb / 1024
}
