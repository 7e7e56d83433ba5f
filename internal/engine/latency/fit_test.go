package latency

import (
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/trace"
)

// exact is how close a computed time must be, ms.
var exact = cmpopts.EquateApprox(0, 1e-9)

func traceOf(records ...trace.Record) *trace.Trace {
	return &trace.Trace{Name: "some.jsonl", Records: records}
}

func mustFit(t testing.TB, budget int, records ...trace.Record) *Fit {
	t.Helper()
	f, err := NewFit(FitOptions{Budget: budget}, traceOf(records...))
	require.NoError(t, err)
	return f
}

// quiet are requests one at a time whose times to the first token are exactly
// 20 + 0.02·u + 1e-6·u² ms.
func quiet() []trace.Record {
	var records []trace.Record
	for i := range 12 {
		u := 100 + 700*i
		for range 6 {
			records = append(records, trace.Record{
				PromptTokens: u, OutputTokens: 2, TTFTMs: 20 + 0.02*float64(u) + 1e-6*float64(u*u), ITLMs: []float64{10},
				Concurrency: 1,
			})
		}
	}
	return records
}

// marked are requests of 40 gaps of 10 ms, but for four in which prompts ended, of which
// the last chunk of f tokens took 0.012·f ms and 2e-6 for each pair of tokens.
func marked() []trace.Record {
	var records []trace.Record
	for range 20 {
		r := trace.Record{PromptTokens: 16384, OutputTokens: 41, TTFTMs: 900, Concurrency: 16, ITLCtx: &trace.ITLCtx{
			NumRunning: make([]uint32, 40), PrefillTokens: make([]uint32, 40),
		}}
		r.ITLMs = slices.Repeat([]float64{10}, 40)
		for i, prompt := range []int{2048, 4096, 16384, 11008} {
			at := 5 + 10*i
			last := (prompt-1)%8192 + 1
			r.ITLCtx.PrefillTokens[at] = uint32(prompt)
			d1, d0 := float64(prompt), float64(prompt-last)
			r.ITLMs[at] += 0.012*float64(last) + 2e-6*(d1*d1-d0*d0)/2
		}
		records = append(records, r)
	}
	return records
}

// saturated are requests that saw four steps each, in which no prompt ended, of 200 ms
// and more.
func saturated() []trace.Record {
	var records []trace.Record
	for i := range 10 {
		r := trace.Record{
			PromptTokens: 500, OutputTokens: 41, TTFTMs: 900, Concurrency: 16, ITLMs: slices.Repeat([]float64{10}, 40),
			ITLCtx: &trace.ITLCtx{NumRunning: make([]uint32, 40), PrefillTokens: make([]uint32, 40)},
		}
		for j := range 4 {
			r.ITLMs[8*j+3] = float64(190 + i + j)
		}
		records = append(records, r)
	}
	return records
}

func TestService(t *testing.T) {
	var line, falling []trace.Record
	for i := range 3 {
		for k := range 10 {
			u := 100 + 700*i
			line = append(line, trace.Record{
				PromptTokens: u, OutputTokens: 2, TTFTMs: 10 + 0.01*float64(u) + float64(k), ITLMs: []float64{10}, Concurrency: 2,
			})
		}
	}
	for i := range 36 {
		falling = append(falling, trace.Record{
			PromptTokens: 100 + 700*(i/6), OutputTokens: 2, TTFTMs: float64(100 - 5*(i/6)), ITLMs: []float64{10}, Concurrency: 1,
		})
	}
	single := []trace.Record{{PromptTokens: 30, OutputTokens: 2, TTFTMs: 77, ITLMs: []float64{11}, Concurrency: 1}}
	loaded := append(quiet(), line...)
	for i := range loaded[72:] {
		loaded[72+i].Concurrency, loaded[72+i].TTFTMs = 30, 4000
	}
	cold := slices.Concat([]trace.Record{{
		PromptTokens: 40, OutputTokens: 2, TTFTMs: 9000, ITLMs: []float64{10}, Concurrency: 1,
	}}, falling[:3])

	// quantile is the draw where there is no curve.
	type at struct {
		uncached int
		quantile float64
		want     float64
	}
	tests := []struct {
		name    string
		records []trace.Record
		curve   bool
		at      []at
	}{
		{name: "quadratic", records: quiet(), curve: true, at: []at{
			{0, 0, 22.010},
			{1, 0, 22.010},
			{100, 0, 22.010},
			{500, 0, 30.25},
			{2000, 0, 64},
			{5000, 0, 145},
			{7800, 0, 236.84},
			{11000, 0, 361},
			{20000, 0, 820},
		}},
		{name: "loaded ones are left out", records: loaded, curve: true, at: []at{{500, 0, 30.25}, {20000, 0, 820}}},
		{name: "line", records: line, curve: true, at: []at{
			{1, 0, 12}, {100, 0, 12}, {800, 0, 19}, {1500, 0, 26}, {3000, 0, 41},
		}},
		{name: "falling", records: falling, at: []at{
			{100, 0.5, 100}, {800, 0.5, 95}, {3600, 0, 75}, {3600, 1, 85}, {100_000, 0.5, 640},
		}},
		{name: "one record", records: single, at: []at{
			{64, 0.3, 77},
			{65, 0.3, 77 * 65 / 30.0},
			{100, 0.3, 77 * 100 / 30.0},
			{129, 0.3, 331.1},
			{240, 0.3, 616},
			{9999, 0.3, 616},
		}},
		{name: "a warm-up is left out", records: cold, at: []at{{40, 0, 100 * 0.4}, {100, 0, 100}, {1000, 0, 800}}},
		{name: "zero tokens are left out", records: append(quiet(), trace.Record{PromptTokens: 1}), curve: true, at: []at{
			{1, 0, 22.010},
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := mustFit(t, 8192, test.records...)
			require.Equal(t, f.service.curve, test.curve, "curve")
			for _, at := range test.at {
				require.NoDiff(t, cmp.Diff(at.want, f.service.time(at.uncached, at.quantile), exact), "%d tokens (-want +got)", at.uncached)
			}
		})
	}
}

// A capture may have no request that ran alone often enough to make a curve.
// TestSmallPromptsTakeAStep: what a prompt takes is not made shorter than a step of one token for a smaller prompt.
func TestSmallPromptsTakeAStep(t *testing.T) {
	record := trace.Record{PromptTokens: 100, OutputTokens: 4, TTFTMs: 20, ITLMs: []float64{10, 10, 10}, Concurrency: 1}
	f := mustFit(t, 0, record)
	for prompt, want := range map[int]float64{16: 10, 40: 10, 64: 20 * 64. / 100, 90: 20} {
		r := NewRequest(1, "a", prompt, 0)
		got := f.Duration(&Step{Running: 1, Limit: 1, Chunks: []Chunk{{Request: r, Tokens: prompt, Last: true}}})
		require.NoDiff(t, cmp.Diff(want, got.Seconds()*1000, exact), "%d tokens (-want +got)", prompt)
	}
	record.TTFTMs = 8 // it was recorded so
	require.NoDiff(t, cmp.Diff(8., mustFit(t, 0, record).service.time(16, 0), exact), "a fast one (-want +got)")
}

func TestChunks(t *testing.T) {
	f := mustFit(t, 8192, append(quiet(), marked()...)...)
	premium := mustFit(t, 8192, slices.Concat(quiet(), marked(), saturated())...)
	beyond := func(f *Fit, prompt, cached int) float64 { return f.beyond(NewRequest(1, "r", prompt, cached)) }
	tests := []struct {
		name      string
		want, got float64
	}{
		{"8192 at 0", 165.412864, f.cost(8192, 0, false)},
		{"2816 at 8192", 87.8592, f.cost(2816, 8192, false)},
		{"2816 at 0", 41.721856, f.cost(2816, 0, false)},
		{"no premium", 0, f.floor},
		{"beyond 5000", 60, beyond(f, 5000, 0)},
		{"beyond 5000, 4000 of them cached", 20, beyond(f, 5000, 4000)},
		{"beyond 20000", 180, beyond(f, 20000, 0)},
		{"beyond 8192", 85.536, beyond(f, 8192, 0)},
		{"beyond 8193", 85.544, beyond(f, 8193, 0)},
		{"premium", 186, premium.floor},
		{"beyond 20000 with a premium", 159.412864, beyond(premium, 20000, 0)},
	}
	for _, test := range tests {
		require.NoDiff(t, cmp.Diff(test.want, test.got, exact), "%s (-want +got)", test.name)
	}
}

func TestFitErrors(t *testing.T) {
	good := quiet()
	bad := func(change func(*trace.Record)) []trace.Record {
		records := slices.Clone(good)
		records[3].Line = 5
		change(&records[3])
		return records
	}
	tests := []struct {
		name    string
		opt     FitOptions
		records []trace.Record
		want    string // part of the error
	}{
		{name: "no records", want: "some.jsonl: no records"},
		{
			name: "no gaps", records: []trace.Record{{PromptTokens: 4, OutputTokens: 1, TTFTMs: 3}},
			want: "some.jsonl: no inter-token times",
		},
		{
			name: "time is no number", records: bad(func(r *trace.Record) { r.TTFTMs = math.NaN() }),
			want: "some.jsonl:5: ttft_ms is NaN",
		},
		{
			name: "gap is no number", records: bad(func(r *trace.Record) { r.ITLMs = []float64{math.Inf(1)} }),
			want: "some.jsonl:5: itl_ms[0] is +Inf",
		},
		{
			name: "counts disagree", records: bad(func(r *trace.Record) { r.ITLTokens = []uint32{1, 1} }),
			want: "some.jsonl:5: itl_tokens",
		},
		{
			name: "absurd prompt", records: bad(func(r *trace.Record) { r.PromptTokens = math.MaxInt }),
			want: "some.jsonl:5: 9223372036854775807 prompt",
		},
		{
			name: "knobs too", records: good, opt: FitOptions{Knobs: Knobs{InterTokenLatency: 1}},
			want: "inter-token-latency and recordings to learn times from cannot be given together",
		},
		{
			name: "load factor too", records: good, opt: FitOptions{Knobs: Knobs{LoadFactor: 2}},
			want: "time-factor-under-load and recordings to learn times from cannot be given together",
		},
		{
			name: "wrong transfer", records: good, opt: FitOptions{Knobs: Knobs{TransferLatency: -1}},
			want: "kv-cache-transfer-latency is -1ns",
		},
		{name: "budget", records: good, opt: FitOptions{Budget: -1}, want: "max-num-batched-tokens is -1"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := NewFit(test.opt, traceOf(test.records...))
			require.ErrorContains(t, err, test.want)
		})
	}
}
