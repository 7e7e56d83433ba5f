package inspect

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/trace"
)

func demo(t *testing.T, seed uint64) *trace.Trace {
	t.Helper()
	tr, err := Demo(DemoOptions{Seed: seed, Requests: 100})
	require.NoError(t, err)
	tr.Name = "demo"
	return tr
}

// Each change has the effect that it has in an engine.
func TestWhatIf(t *testing.T) {
	tests := []struct {
		text string
		// grows is what the change makes at least twice as long, "" for nothing.
		grows string
	}{
		{"max_num_seqs=2", "ttft"},
		{"enable_prefix_caching=false", "ttft"},
		{"max_num_batched_tokens=32", "ttft"},
		{"rate=1", ""},
		{"num_gpu_blocks_override=2048,block_size=16,enable_prefix_caching=true,max_num_seqs=16", ""},
	}
	o := Options{Fit: []*trace.Trace{demo(t, 1)}, Predict: []*trace.Trace{demo(t, 2)}, Runs: 1}
	for _, test := range tests {
		what, err := ParseWhatIf(test.text)
		require.NoError(t, err)
		o.WhatIf = append(o.WhatIf, what)
	}
	r, err := Calibrate(o)
	require.NoError(t, err)
	for i, test := range tests {
		got := r.WhatIf[i]
		factor := got.Predicted.TTFT.P90 / r.Predicted.TTFT.P90
		if got.Name != test.text || (test.grows == "ttft") != (factor > 1.5) || test.grows == "" && factor != 1 {
			t.Errorf("%s: %s makes the 90th percentile of TTFT %.2f times as long", test.text, got.Name, factor)
		}
	}
	var text, dump bytes.Buffer
	require.NoError(t, r.WhatIfText(&text))
	if lines := strings.Count(text.String(), "\n"); lines != len(tests)+5 || !strings.Contains(text.String(), "enable_prefix_caching=false") {
		t.Errorf("%d lines:\n%s", lines, &text)
	}
	require.NoError(t, r.WriteSamples(&dump))
	var samples struct {
		Real   map[string][]float64            `json:"real"`
		WhatIf map[string]map[string][]float64 `json:"what_if"`
	}
	require.NoError(t, json.Unmarshal(dump.Bytes(), &samples))
	if len(samples.Real["ttft_ms"]) != 100 || len(samples.WhatIf["rate=1"]["itl_ms"]) != r.Predicted.ITL.Count {
		t.Errorf("samples of %d real and %d predicted times", len(samples.Real["ttft_ms"]), len(samples.WhatIf["rate=1"]["itl_ms"]))
	}
}

// A load without turns that comes faster waits longer.
func TestWhatIfFaster(t *testing.T) {
	fit, predict := steady("fit.jsonl", 40, 10), steady("p.jsonl", 30, 10.3)
	r, err := Calibrate(Options{Fit: []*trace.Trace{fit}, Predict: []*trace.Trace{predict}, Runs: 1, Engine: Override{MaxNumSeqs: 1}, WhatIf: []WhatIf{{Name: "rate=1000", Rate: 1000}}})
	require.NoError(t, err)
	if got, want := r.WhatIf[0].Predicted.TTFT.P50, 20*r.Predicted.TTFT.P50; got < want {
		t.Errorf("the median TTFT is %v ms, want at least %v", got, want)
	}
}

func TestParseWhatIfRefuses(t *testing.T) {
	tests := []struct{ text, want string }{
		{"", `"": want KEY=VALUE`},
		{"max_num_seqs", `"max_num_seqs": want KEY=VALUE`},
		{"max_num_seqs=0", `max_num_seqs is "0": want a number above 0`},
		{"rate=NaN", `rate is "NaN": want a factor above 0`},
		{"enable_prefix_caching=perhaps", `want true or false`},
		{"gpu=H200", `"gpu": want one of max_num_seqs, `},
		{"rate=2,rate=3", `rate is given twice`},
	}
	for _, test := range tests {
		if _, err := ParseWhatIf(test.text); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: got %v, want %q", test.text, err, test.want)
		}
	}
}
