package inspect

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/engine/latency"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/trace"
)

// ten takes 10 ms for a step, and one more for each token of a chunk.
type ten struct{}

func (ten) Duration(s *latency.Step) time.Duration {
	d := 10 * time.Millisecond
	for _, c := range s.Chunks {
		d += time.Duration(c.Tokens) * time.Millisecond
	}
	return d
}

func (ten) Transfer(*latency.Request) time.Duration { return 0 }

// small is an engine whose steps are easy to follow.
var small = Engine{MaxNumSeqs: 4, MaxNumBatchedTokens: 8, BlockSize: 4, Blocks: 100}

// recorded is a recording with these records, and blocks of 4.
func recorded(records ...trace.Record) *trace.Trace {
	size := 4
	return &trace.Trace{Name: "t.jsonl", Meta: trace.Meta{BlockSize: &size}, Records: records}
}

// record came at a time, had a first token after ttft, and others after these gaps.
func record(at float64, prompt int, ttft float64, gaps ...float64) trace.Record {
	return trace.Record{
		PromptTokens: prompt, OutputTokens: 1 + len(gaps), TTFTMs: ttft, ITLMs: append([]float64{}, gaps...),
		Concurrency: 1, ArrivalMs: &at,
	}
}

// hashed is a record with the hashes of its prompt's blocks.
func hashed(r trace.Record, hashes ...uint64) trace.Record {
	r.BlockHashes = hashes
	return r
}

func mustWorkload(t *testing.T, tr *trace.Trace) *Workload {
	t.Helper()
	w, err := WorkloadOf(tr)
	require.NoError(t, err)
	return w
}

// timeline is what a simulation says, a line for each request: when it came, the tokens
// that it found, and when it said what, in ms.
func timeline(records []trace.Record) string {
	var b strings.Builder
	for i := range records {
		r := &records[i]
		at := *r.ArrivalMs + r.TTFTMs
		fmt.Fprintf(&b, "%v +%d cached %d beside %d: %v", *r.ArrivalMs, r.PromptTokens, r.CachedTokens, r.Concurrency, at)
		for _, ms := range r.ITLMs {
			at += ms
			fmt.Fprintf(&b, " %v", at)
		}
		b.WriteByte('\n')
	}
	return b.String()
}
