package protocol

import (
	"fmt"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// step is what an engine says of one step in steady state: a token for each of
// n requests, and the statistics.
type step struct {
	batch   *Batch
	streams []*Stream
	outputs []Output
	stats   SchedulerStats
}

func newStep(tb testing.TB, n int) *step {
	tb.Helper()
	c := codecOf(tb, recorded)
	s := &step{batch: c.NewBatch(0), stats: SchedulerStats{Running: n, KVCacheUsage: 0.5, StepCounter: 1000}}
	for i := range n {
		s.streams = append(s.streams, c.NewStream(plainRequest(fmt.Sprintf("cmpl-0123456789abcdef-0-%08x", i))))
		s.outputs = append(s.outputs, Output{Tokens: []uint32{uint32(100 + 400*i)}})
	}
	return s
}

func (s *step) encode() (ClientMessage, error) {
	s.batch.Reset()
	for i := range s.streams {
		if err := s.batch.Add(s.streams[i], &s.outputs[i]); err != nil {
			return nil, err
		}
	}
	return s.batch.Finish(&s.stats, 12345.678)
}

// longRequest has a prompt of n random-looking ids of a 150,000-token vocabulary.
func longRequest(n int) *Request {
	r := plainRequest("cmpl-0123456789abcdef-0123abcd")
	r.ExternalID, r.ArrivalTime = "cmpl-0123456789abcdef", 1763711000.5
	r.Sampling.MaxTokens, r.Sampling.EOSTokenID, r.Sampling.StopTokenIDs = 128, 2, []uint32{0, 7}
	r.PromptTokenIDs = make([]uint32, n)
	x := uint32(1)
	for i := range r.PromptTokenIDs {
		x = x*1664525 + 1013904223
		r.PromptTokenIDs[i] = (x >> 8) % 150_000
	}
	return r
}

// TestSteadyStateAllocatesNothing: a step of an engine, and reading it, cost no
// garbage once buffers have grown.
func TestSteadyStateAllocatesNothing(t *testing.T) {
	c := codecOf(t, recorded)
	for _, n := range []int{1, 64} {
		s := newStep(t, n)
		m, err := s.encode()
		require.NoError(t, err)
		frame := append([]byte(nil), m[0]...)
		var o Outputs
		sent := longRequest(1000)
		payload := c.AppendRequest(nil, sent)
		buf := make([]byte, 0, 2*len(payload))
		for _, test := range []struct {
			name string
			run  func() error
		}{
			{"encode outputs", func() error { _, err := s.encode(); return err }},
			{"decode outputs", func() error { return c.DecodeOutputs(frame, &o) }},
			{"encode a request", func() error { buf = c.AppendRequest(buf[:0], sent); return nil }},
		} {
			t.Run(fmt.Sprintf("%s/%d", test.name, n), func(t *testing.T) {
				got := testing.AllocsPerRun(100, func() {
					require.NoError(t, test.run())
				})
				if got != 0 {
					t.Errorf("%v allocations a step, want none", got)
				}
			})
		}
	}
}

// TestDecodeRequestAllocatesLittle: what is kept of a request beyond the next
// one is its two ids; the prompt lies in the reused slice. The third allocation is where it is read.
func TestDecodeRequestAllocatesLittle(t *testing.T) {
	c := codecOf(t, recorded)
	payload := c.AppendRequest(nil, longRequest(10_000))
	var r Request
	got := testing.AllocsPerRun(100, func() {
		require.NoError(t, c.DecodeRequest(payload, &r))
	})
	if got > 3 {
		t.Errorf("%v allocations a request, want 3 at most", got)
	}
}

func BenchmarkEncodeOutputs(b *testing.B) {
	for _, n := range []int{1, 64} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := newStep(b, n)
			b.ReportAllocs()
			for b.Loop() {
				m, err := s.encode()
				require.NoError(b, err)
				b.SetBytes(int64(len(m[0])))
			}
			perOutput(b, n)
		})
	}
}

func BenchmarkDecodeOutputs(b *testing.B) {
	for _, n := range []int{1, 64} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			m, err := newStep(b, n).encode()
			require.NoError(b, err)
			c := codecOf(b, recorded)
			var o Outputs
			b.SetBytes(int64(len(m[0])))
			b.ReportAllocs()
			for b.Loop() {
				require.NoError(b, c.DecodeOutputs(m[0], &o))
			}
			perOutput(b, n)
		})
	}
}

func perOutput(b *testing.B, n int) {
	b.Helper()
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/output")
}

func BenchmarkDecodeRequest(b *testing.B) {
	for _, n := range []int{128, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c := codecOf(b, recorded)
			payload := c.AppendRequest(nil, longRequest(n))
			var r Request
			b.SetBytes(int64(len(payload)))
			b.ReportAllocs()
			for b.Loop() {
				require.NoError(b, c.DecodeRequest(payload, &r))
			}
		})
	}
}
