//go:build unix

package conformance

import (
	"context"
	"fmt"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/check/replay"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/player"
)

// benchSession is a player of the newest line with random tokens and a frontend
// of ours in front of it, over loopback TCP.
func benchSession(b *testing.B, opt player.Options) *replay.Replaying {
	b.Helper()
	codec, err := protocol.CodecFor(protocol.Newest())
	require.NoError(b, err)
	s, err := replay.Boot(context.Background(), new(Runner).begin(context.Background()).env, codec, opt)
	require.NoError(b, err)
	b.Cleanup(s.Close)
	return s
}

// BenchmarkPlayer is a player behind a frontend-side client on the same cores:
// 128 tokens in, 128 tokens out, a fixed number of requests in flight.
func BenchmarkPlayer(b *testing.B) {
	for _, inFlight := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("in-flight=%d", inFlight), func(b *testing.B) {
			s := benchSession(b, player.Options{Limits: player.Limits{MaxNumSeqs: 1024}, Vocab: 2048})
			const tokens = 128
			prompt := make([]uint32, tokens)
			for i := range prompt {
				prompt[i] = uint32(i * 7)
			}
			before := cpuTime(b)
			b.ReportAllocs()
			b.ResetTimer()
			got, err := generate(s, b.N, inFlight, prompt, tokens)
			b.StopTimer()
			cpu := cpuTime(b) - before
			if err != nil || got != b.N*tokens {
				b.Fatalf("%d tokens of %d: %v", got, b.N*tokens, err)
			}
			seconds := b.Elapsed().Seconds()
			b.ReportMetric(float64(got)/seconds, "tokens/s")
			b.ReportMetric(seconds/float64(b.N)*1e6*float64(inFlight), "µs/request")
			b.ReportMetric(cpu.Seconds()/float64(got)*1e6, "cpu-µs/token")
		})
	}
}

// cpuTime is the processor time of this process so far, user and system: of the
// player and of the client together.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// generate runs n requests, so many in flight, and counts the tokens.
func generate(s *replay.Replaying, n, inFlight int, prompt []uint32, tokens int) (int, error) {
	var outputs protocol.Outputs
	sent, done, got := 0, 0, 0
	for done < n {
		for ; sent < n && sent-done < inFlight; sent++ {
			if err := s.Front.Submit(benchRequest(sent, prompt, tokens)); err != nil {
				return got, err
			}
		}
		if _, err := s.Front.Next(s.Context, 0, &outputs); err != nil {
			return got, s.Explain(err)
		}
		for i := range outputs.Outputs {
			o := &outputs.Outputs[i]
			got += len(o.Tokens)
			if o.Finish != protocol.Unfinished {
				done++
			}
		}
	}
	return got, nil
}

func benchRequest(i int, prompt []uint32, tokens int) *protocol.Request {
	id := "bench-" + strconv.Itoa(i)
	return &protocol.Request{
		ID: id, ExternalID: id, PromptTokenIDs: prompt, DataParallelRank: -1, HasSampling: true,
		Sampling: protocol.Sampling{
			MaxTokens: tokens, HasMaxTokens: true, EOSTokenID: -1,
			Logprobs: protocol.NoLogprobs, PromptLogprobs: protocol.NoLogprobs, Temperature: 1,
		},
	}
}

// BenchmarkFourGoldens is the fidelity run over the four multiturn goldens of 0.27, 720
// streams one at a time, from bytes on disk to verdicts.
func BenchmarkFourGoldens(b *testing.B) {
	matrix, mf := repository(b)
	cases, err := NewPlan(matrix, mf, Selection{
		Lines:   []string{"0.27"},
		Goldens: []string{"multiturn-s7", "multiturn-s13", "multiturn-nocache-s7", "multiturn-ngram-k3-s7"},
		Matches: []player.Match{player.MatchIndex}, Concurrency: []int{1},
	})
	require.NoError(b, err)
	for b.Loop() {
		if report := liveRunner().Run(context.Background(), cases); report.ExitCode != ExitOK || report.Counts[Pass] != len(cases) {
			b.Fatalf("%s: %v", report.Reason, report.Counts)
		}
	}
}

// BenchmarkReady is the time from nothing to a registered engine.
func BenchmarkReady(b *testing.B) {
	codec, err := protocol.CodecFor(protocol.Newest())
	require.NoError(b, err)
	e := new(Runner).begin(context.Background()).env
	for b.Loop() {
		s, err := replay.Boot(context.Background(), e, codec, player.Options{})
		require.NoError(b, err)
		s.Close()
	}
}
