//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/frontends/coreclient"
	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// BenchmarkRecord is the tap as its own process between a player of its own and a
// client in this one: requests of 128 tokens in and out a second, the tap's processor
// time a token, and its resident memory. "direct" is the same without it.
func BenchmarkRecord(b *testing.B) {
	binary := buildBinary(b)
	for _, inFlight := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("direct/inflight=%d", inFlight), func(b *testing.B) {
			f, _ := startPair(b, binary, false)
			b.ResetTimer()
			generate(b, f, b.N, inFlight)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
		})
		b.Run(fmt.Sprintf("recorded/inflight=%d", inFlight), func(b *testing.B) {
			f, tap := startPair(b, binary, true)
			generate(b, f, 200, inFlight)
			before, messages := cpuAtRest(b, tap), 0
			b.ResetTimer()
			messages = generate(b, f, b.N, inFlight)
			b.StopTimer()
			cpu := cpuAtRest(b, tap) - before
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
			b.ReportMetric(cpu.Seconds()*1e6/float64(b.N)/benchTokens, "tap-cpu-µs/token")
			b.ReportMetric(cpu.Seconds()*1e6/float64(messages), "tap-cpu-µs/message")
			b.ReportMetric(testenv.Resident(b, tap), "MB-resident")
		})
	}
}

// BenchmarkRecordMemory passes a million messages of the engine, and says how the
// tap's resident memory grows between the first tenth of them and the last.
func BenchmarkRecordMemory(b *testing.B) {
	binary := buildBinary(b)
	for b.Loop() {
		f, tap := startPair(b, binary, true)
		early, messages := 0.0, 0
		for messages < 1_000_000 {
			messages += generate(b, f, 400, 2)
			if early == 0 && messages > 100_000 {
				early = testenv.Resident(b, tap)
			}
		}
		b.ReportMetric(early, "MB-after-100k")
		b.ReportMetric(testenv.Resident(b, tap), "MB-after-1M")
	}
}

const benchTokens = 128

func buildBinary(b *testing.B) string {
	b.Helper()
	binary := filepath.Join(b.TempDir(), "vllm-vcr")
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", binary, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as it is released: a dynamic binary starts slower
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	return binary
}

// startPair starts a player, with a tap before it if it is to be recorded, and returns
// the frontend's side and the tap's process id.
func startPair(b *testing.B, binary string, recorded bool) (f *coreclient.Frontend, tap int) {
	b.Helper()
	codec, err := protocol.CodecFor(protocol.Newest())
	require.NoError(b, err)
	if f, err = coreclient.Listen(coreclient.Options{Codec: codec}); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { f.Close() })
	engine := f.Handshake()
	if recorded {
		engine = freeAddress(b)
		tap = startProcess(b, binary, "record", "--frontend-handshake", f.Handshake(), "--engine-handshake", engine,
			"--trace-out", filepath.Join(b.TempDir(), "run.jsonl.gz"), "--record-tokens", "--quiet")
	}
	startProcess(b, binary, "play", "--frontend-handshake", engine, "--vocab-size", "2048")
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	if _, err := f.Accept(ctx); err != nil {
		b.Fatal(err)
	}
	return f, tap
}

// freeAddress is one where nobody listens.
func freeAddress(b testing.TB) string {
	return fmt.Sprintf("tcp://127.0.0.1:%d", testenv.FreePort(b))
}

// startProcess runs the program until the benchmark ends.
func startProcess(b *testing.B, binary string, args ...string) (pid int) {
	b.Helper()
	cmd := exec.Command(binary, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	require.NoError(b, cmd.Start())
	b.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if b.Failed() {
			b.Logf("%s: %s", args[0], stderr.String())
		}
	})
	return cmd.Process.Pid
}

// generate runs requests of 128 tokens in and out, so many in flight, and counts the
// engine's messages.
func generate(b *testing.B, f *coreclient.Frontend, requests, inFlight int) (messages int) {
	b.Helper()
	ctx, stop := context.WithTimeout(context.Background(), 10*time.Minute)
	defer stop()
	var outputs protocol.Outputs
	sent, done := 0, 0
	for done < requests {
		for ; sent < requests && sent-done < inFlight; sent++ {
			err := f.Submit(&protocol.Request{
				ID: "load-" + strconv.Itoa(sent), PromptTokenIDs: make([]uint32, benchTokens), DataParallelRank: -1, HasSampling: true,
				Sampling: protocol.Sampling{
					MaxTokens: benchTokens, HasMaxTokens: true, EOSTokenID: -1,
					Logprobs: protocol.NoLogprobs, PromptLogprobs: protocol.NoLogprobs,
				},
			})
			require.NoError(b, err)
		}
		if _, err := f.Next(ctx, 0, &outputs); err != nil {
			b.Fatal(err)
		}
		messages++
		for _, o := range outputs.Outputs {
			if o.Finish != protocol.Unfinished {
				done++
			}
		}
	}
	return messages
}

// cpuAtRest is cpuOf once the process has nothing left to do, as what the tap has
// forwarded it may still have to observe.
func cpuAtRest(b *testing.B, pid int) time.Duration {
	b.Helper()
	for last := cpuOf(b, pid); ; {
		time.Sleep(50 * time.Millisecond)
		now := cpuOf(b, pid)
		if now == last {
			return now
		}
		last = now
	}
}

// cpuOf is the processor time of a process so far, user and system, from /proc in
// ticks of 10 ms.
func cpuOf(b *testing.B, pid int) time.Duration {
	b.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	require.NoError(b, err)
	_, rest, _ := strings.Cut(string(stat), ") ") // the name may have spaces
	fields := strings.Fields(rest)
	ticks := 0
	for _, field := range fields[11:13] {
		n, err := strconv.Atoi(field)
		require.NoError(b, err)
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
