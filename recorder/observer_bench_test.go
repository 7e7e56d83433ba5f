package recorder

import (
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
