package trace

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// handed counts the writes of what it keeps.
type handed struct {
	bytes.Buffer
	writes int
}

func (h *handed) Write(p []byte) (int, error) {
	h.writes++
	return h.Buffer.Write(p)
}

// TestGather: records that were gathered are nowhere until a Flush, and then all of
// them are readable, in one write, though the file has no end yet.
func TestGather(t *testing.T) {
	for _, gz := range []bool{false, true} {
		var out handed
		w, err := NewWriter(&out, gz, Meta{})
		require.NoError(t, err)
		for n := range 5 {
			before := out.writes
			for i := range n {
				rec := small(i)
				require.NoError(t, w.Gather(&rec))
			}
			if safe := w.Records(); out.writes != before || safe != n*(n-1)/2 {
				t.Errorf("gzip %v: %d writes for records that were only gathered, %d are called safe", gz, out.writes-before, safe)
			}
			require.NoError(t, w.Flush())
			tr, err := readBytes(out.Bytes(), gz, Options{})
			if err != nil || len(tr.Records) != w.Records() || len(tr.Records) != n*(n+1)/2 || out.writes-before > 1 {
				t.Errorf("gzip %v: %d records in %d writes, %d are called safe, %v", gz, len(tr.Records), out.writes-before, w.Records(), err)
			}
		}
		rec := small(9)
		require.NoError(t, errors.Join(w.Gather(&rec), w.Close()))
		if tr, err := readBytes(out.Bytes(), gz, Options{Strict: true}); err != nil || len(tr.Records) != 11 {
			t.Errorf("gzip %v: %d records at the end, %v", gz, len(tr.Records), err)
		}
	}
}

// TestGatherIsBounded: nobody flushes, and yet not everything is kept.
func TestGatherIsBounded(t *testing.T) {
	var out handed
	w := NewStepWriter(&out, false)
	line := StepStats{Raw: jsonRaw(`{"text":"` + strings.Repeat("x", 1000) + `"}`)}
	for range 10_000 {
		require.NoError(t, w.Gather(&line))
	}
	if kept := 10_000*1000 - out.Len(); kept > 2*maxGathered || out.writes > 100 {
		t.Errorf("%d bytes are kept after %d writes", kept, out.writes)
	}
	if w.Lines() == 0 || w.Lines() == 10_000 {
		t.Errorf("%d lines are called safe", w.Lines())
	}
}

// TestStepCostsLittle: a line of statistics is checked without a copy of itself.
func TestStepCostsLittle(t *testing.T) {
	w := NewStepWriter(io.Discard, false)
	line := StepStats{Raw: jsonRaw(`{"num_running_reqs":1,"prefix_cache_stats":{"reset":false,"queries":7},"kv_cache_usage":0.5,"new":{"a":[1,2]}}`)}
	allocs := testing.AllocsPerRun(100, func() {
		require.NoError(t, w.Write(&line))
	})
	if allocs > 3 {
		t.Errorf("%v allocations a line", allocs)
	}
}
