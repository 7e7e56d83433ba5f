package recorder

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// obsEvents are the messages of a capture as the tap would hand them on.
func obsEvents(tb testing.TB, name string) (events []Event) {
	tb.Helper()
	for _, m := range testenv.Capture(tb, name) {
		ev := Event{At: time.Duration(m.At), Frames: m.Frames, Direction: FromEngine}
		if m.Direction == "f2e" {
			ev.Direction = FromFrontend
		}
		for i, channel := range channelNames {
			if strings.TrimSuffix(m.Channel, "0") == channel {
				ev.Channel = Channel(i)
			}
		}
		events = append(events, ev)
	}
	return events
}

// obsBench observes into outputs that forget, of the names given.
func obsBench(b *testing.B, opt Options, names ...string) *obsSession {
	b.Helper()
	codec, err := protocol.CodecFor("0.33")
	require.NoError(b, err)
	s := &obsSession{t: b, codec: codec, at: time.Second}
	var files [3]*File
	for i, name := range names {
		files[i] = obsMemory(b, name, io.Discard)
	}
	s.o = NewObserver(opt, Sinks{files[0], files[1], files[2]}, &s.counts, slog.New(slog.DiscardHandler))
	return s
}

// perToken reports the cost of a token.
func (s *obsSession) perToken(b *testing.B) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(s.counts.Tokens.Load()), "ns/token")
}

// BenchmarkObserveCapture observes a real session of 8 requests at a time, all of
// it: requests, steps, records.
func BenchmarkObserveCapture(b *testing.B) {
	for _, test := range []struct {
		name  string
		files []string
	}{
		{"trace", []string{"a.jsonl.gz"}},
		{"trace+steps", []string{"a.jsonl.gz", "b.jsonl.gz"}},
		{"trace+steps+frames", []string{"a.jsonl.gz", "b.jsonl.gz", "c.jsonl.gz"}},
	} {
		b.Run(test.name, func(b *testing.B) {
			events := obsEvents(b, "0.33.0-multiturn-s7.jsonl.gz")
			s := obsBench(b, Options{RecordTokens: true}, test.files...)
			b.ReportAllocs()
			for b.Loop() {
				for i := range events {
					s.o.Observe(&events[i])
				}
			}
			s.perToken(b)
		})
	}
}

// BenchmarkObserveSteps observes decode steps of n requests, a token each, with
// statistics, which is what an engine says nearly all the time.
func BenchmarkObserveSteps(b *testing.B) {
	for _, n := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := obsBench(b, Options{RecordTokens: true}, "a.jsonl.gz")
			s.register("0.33.0")
			start := func() []byte {
				var outs []obsOut
				for i := range n {
					id := fmt.Sprintf("cmpl-0123456789abcdef-0-%08x", i)
					s.abort(id)
					s.add(obsRequest(id, 100))
					outs = append(outs, obsTokens(id, uint32(100+400*i)))
				}
				return s.envelope(n, outs...)
			}
			frame := start()
			ev := Event{Channel: Output, Frames: [][]byte{frame}}
			b.ReportAllocs()
			b.ResetTimer()
			for i := 0; b.Loop(); i++ {
				if i%1000 == 999 { // requests do not grow for ever
					b.StopTimer()
					start()
					b.StartTimer()
				}
				s.at += time.Millisecond
				ev.At = s.at
				s.o.Observe(&ev)
			}
			s.perToken(b)
		})
	}
}

// BenchmarkObserveRecord is a request of 129 tokens from its ADD to its record:
// 128 gaps, 1,000 prompt tokens.
func BenchmarkObserveRecord(b *testing.B) {
	for _, name := range []string{"a.jsonl", "a.jsonl.gz"} {
		b.Run(name, func(b *testing.B) {
			s := obsBench(b, Options{RecordTokens: true}, name)
			s.register("0.33.0")
			add := s.codec.AppendRequest(nil, obsRequest("a", 1000))
			out, end := s.envelope(64, obsTokens("a", 100)), s.envelope(64, obsEnd("a", protocol.FinishStop, 101))
			noise := uint32(1)
			b.ReportAllocs()
			for b.Loop() {
				s.event(Input, FromFrontend, []byte{protocol.TypeAdd}, add)
				for range 128 {
					noise = noise*1664525 + 1013904223
					s.at += 5*time.Millisecond + time.Duration(noise>>12)
					s.event(Output, FromEngine, out)
				}
				s.event(Output, FromEngine, end)
			}
			b.ReportMetric(float64(s.counts.Records.Load())/b.Elapsed().Seconds(), "records/s")
		})
	}
}
