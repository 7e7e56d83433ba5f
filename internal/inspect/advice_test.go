package inspect

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/trace"
)

// TestAdvice: the obvious pair of goldens is told why it cannot be predicted, and each reason only where it holds.
func TestAdvice(t *testing.T) {
	read := func(name string) *trace.Trace {
		paths, err := filepath.Glob("../../testdata/goldens/conformance/v0.33.0/cpu/tiny/" + name + "-*.jsonl.gz")
		if err != nil || len(paths) != 1 {
			t.Fatalf("%s: %d files, %v", name, len(paths), err)
		}
		recording, err := trace.Read(paths[0], trace.Options{})
		require.NoError(t, err)
		return recording
	}
	kinds := func(r *Report) (kinds []string) {
		for _, line := range r.Advice {
			kind, _, _ := strings.Cut(line, ": ")
			kinds = append(kinds, kind)
		}
		return slices.Compact(kinds)
	}
	fit, predict := read("multiturn-s7"), read("multiturn-s13")
	report, err := Calibrate(Options{Fit: []*trace.Trace{fit}, Predict: []*trace.Trace{predict}, Seed: 1, Runs: 1})
	require.NoError(t, err)
	if want := []string{"noise", "one recording", "short recordings", "short steps", "warm-up"}; report.Pass || !slices.Equal(want, kinds(report)) {
		t.Errorf("pass %v, advice %q, want %q", report.Pass, report.Advice, want)
	}

	// The same figures of longer, steadier recordings of another load.
	longer := func(t *trace.Trace, prompt, open int) *trace.Trace {
		scaled := *t
		scaled.Records = slices.Clone(t.Records)
		for i := range scaled.Records {
			r := &scaled.Records[i]
			at := *r.ArrivalMs * 100
			r.ArrivalMs, r.TTFTMs, r.PromptTokens, r.Concurrency = &at, 20, prompt, uint64(open)
		}
		return &scaled
	}
	o := Options{Fit: []*trace.Trace{longer(fit, 100, 2), longer(fit, 100, 2)}, Predict: []*trace.Trace{longer(predict, 700, 8)}}.withDefaults()
	steady := Report{Real: Outcome{ITL: Distribution{P50: 20}}}
	if steady.Advice = o.advice(&steady); !slices.Equal([]string{"another load"}, kinds(&steady)) || len(steady.Advice) != 2 ||
		!strings.Contains(steady.Advice[0], "100 tokens in --latency-trace, and 700 in --predict") || !strings.Contains(steady.Advice[1], "at most 2 requests") {
		t.Errorf("advice %q, want the longest prompt and the open requests", steady.Advice)
	}
}
