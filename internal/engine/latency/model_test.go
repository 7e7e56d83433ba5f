package latency

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/trace"
)

// models are one of each kind that draws.
func models(t testing.TB) map[string]Model {
	law := engineLaw{base: 2, perRequest: 0.2, perContext: 1e-4, once: 0.5, c0: 0.01, c1: 2e-6, wake: 1.5}
	donors := quiet()
	for i := range donors {
		donors[i].ITLMs = []float64{10 + float64(i%13), 30 - float64(i%11)}
		donors[i].OutputTokens = 3
	}
	seen := mustFit(t, 2048, law.run(1, 300, 2048, 60)...)
	seen.steps.clean = []float64{0.5, 1, 2}
	seen.steps.mixed = slices.Repeat([]float64{0.5, 1, 2}, 20)
	return map[string]Model{
		"knobs": &Knobs{
			TimeToFirstToken: 10 * ms, TimeToFirstTokenStdDev: 3 * ms,
			InterTokenLatency: 10 * ms, InterTokenLatencyStdDev: 3 * ms,
		},
		"donors": mustFit(t, 8192, donors...),
		"steps":  seen,
	}
}

// A speculating engine's tokens come from the recordings, and never exceed what was scheduled.
func TestSpokenTokens(t *testing.T) {
	tests := []struct {
		name          string
		sizes         []uint32
		scheduled     int
		drafts, block int
		want          []int // that may be said
	}{
		{name: "one each", sizes: []uint32{1, 1, 1}, scheduled: 4, want: []int{4}},
		{name: "speculation", sizes: []uint32{1, 3, 1, 4}, scheduled: 4, drafts: 3, want: []int{1, 3, 4}},
		{name: "fewer scheduled", sizes: []uint32{1, 3, 1, 4}, scheduled: 2, drafts: 3, want: []int{1, 2}},
		{name: "none drafted", sizes: []uint32{3, 3, 1, 4}, scheduled: 1, drafts: 3, want: []int{1}},
		{name: "blocks", sizes: []uint32{64, 64, 64, 11}, scheduled: 64, block: 64, want: []int{64, 11}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := trace.Record{PromptTokens: 9, OutputTokens: 1, TTFTMs: 5, ITLTokens: test.sizes}
			for i, n := range test.sizes {
				r.ITLMs = append(r.ITLMs, float64(10*i+10))
				r.OutputTokens += int(n)
			}
			f := mustFit(t, 8192, slices.Repeat([]trace.Record{r}, 4)...)
			if f.Drafts() != test.drafts || f.Block() != test.block {
				t.Errorf("got %d drafts, blocks of %d, want %d and %d", f.Drafts(), f.Block(), test.drafts, test.block)
			}
			said := make(map[int]bool)
			for i := range 200 {
				r := NewRequest(1, fmt.Sprint(i), 9, 0)
				s := Step{Running: 1, Decodes: []Decode{{Request: r, Context: i, Tokens: test.scheduled}}}
				f.Duration(&s)
				said[s.Decodes[0].Tokens] = true
			}
			want := make(map[int]bool)
			for _, n := range test.want {
				want[n] = true
			}
			require.NoDiff(t, cmp.Diff(want, said), "said (-want +got)")
		})
	}
}

func TestAcceptance(t *testing.T) {
	// Of 8 steps one was cut at the end of its request after two tokens.
	tests := []struct {
		name string
		make func() (*Acceptance, error)
		want []float64
		err  string
	}{
		{
			name: "rates", make: func() (*Acceptance, error) { return NewAcceptance(0.8, 0.5, 0) },
			want: []float64{0.8, 0.5, 0},
		},
		{name: "length", make: func() (*Acceptance, error) { return AcceptanceOfLength(2.4, 3) }, want: []float64{1, 0.4, 0}},
		{
			name: "whole length", make: func() (*Acceptance, error) { return AcceptanceOfLength(4, 3) },
			want: []float64{1, 1, 1},
		},
		{name: "no rates", make: func() (*Acceptance, error) { return NewAcceptance() }, err: "no acceptance rates"},
		{name: "too likely", make: func() (*Acceptance, error) { return NewAcceptance(1.1) }, err: "position 0 is 1.1"},
		{
			name: "rising", make: func() (*Acceptance, error) { return NewAcceptance(0.5, 0.6) },
			err: "position 1 is 0.6, more than the 0.5",
		},
		{
			name: "too long", make: func() (*Acceptance, error) { return AcceptanceOfLength(4.1, 3) },
			err: "length is 4.1: want 1 to 4",
		},
		{name: "no drafts", make: func() (*Acceptance, error) { return AcceptanceOfLength(1, 0) }, err: "0 draft tokens"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			a, err := test.make()
			if test.err != "" {
				require.ErrorContains(t, err, test.err)
				return
			}
			require.NoError(t, err)
			require.NoDiff(t, cmp.Diff(test.want, a.rates, exact), "rates (-want +got)")
			drawn := make([]float64, len(a.rates))
			const n = 20_000
			for i := range n {
				for p := range a.Accepted(NewRequest(3, fmt.Sprint(i), 1, 0), 77, len(a.rates)) {
					drawn[p] += 1.0 / n
				}
			}
			for p, rate := range test.want {
				if drawn[p] < rate-0.02 || drawn[p] > rate+0.02 {
					t.Errorf("position %d was accepted in %.3f of the steps, want %.3f", p, drawn[p], rate)
				}
			}
			require.Equal(t, a.Accepted(NewRequest(3, "x", 1, 0), 1, 0), 0, "of 0 drafts were accepted")
		})
	}
}

// large is a step of 1,024 decodes and two chunks.
func large(multi int) *Step {
	s := &Step{Running: 1026, Limit: 2048, Budget: 8192, Left: 100}
	for i := range 1024 {
		r := NewRequest(1, fmt.Sprint(i), 100+7*i, 0)
		s.Decodes = append(s.Decodes, Decode{Request: r, Context: 200 + 7*i, Tokens: multi})
	}
	for i := range 2 {
		s.Chunks = append(s.Chunks, Chunk{Request: NewRequest(2, fmt.Sprint(i), 900, 0), Tokens: 900, Last: true})
	}
	return s
}

// speculating is a fit whose every decode draws what it says.
func speculating(t testing.TB) *Fit {
	records := quiet()
	for i := range records {
		records[i].ITLMs, records[i].ITLTokens, records[i].OutputTokens = nil, nil, 1
		for j := range 40 {
			records[i].ITLMs = append(records[i].ITLMs, float64(10+j%5))
			records[i].ITLTokens = append(records[i].ITLTokens, uint32(1+(i+j)%4))
			records[i].OutputTokens += 1 + (i+j)%4
		}
	}
	return mustFit(t, 8192, records...)
}

func BenchmarkDuration(b *testing.B) {
	all := models(b)
	all["speculating"] = speculating(b)
	for name, m := range all {
		b.Run(name, func(b *testing.B) {
			s := large(4)
			for b.Loop() {
				for i := range s.Decodes {
					s.Decodes[i].Context++
					s.Decodes[i].Tokens = 4
				}
				m.Duration(s)
			}
		})
	}
}

var _ = []Model{&Knobs{}, &Fit{}}

// Under churn, requests that ran under churn are the donors, and only where there are
// none others; and the other way round.
func TestChurn(t *testing.T) {
	calm := trace.Record{PromptTokens: 40_000, OutputTokens: 2, TTFTMs: 5, ITLMs: []float64{10}, Concurrency: 1}
	churned := trace.Record{
		PromptTokens: 10, OutputTokens: 3, TTFTMs: 5, ITLMs: []float64{50, 90}, Concurrency: 1,
		ITLCtx: &trace.ITLCtx{NumRunning: []uint32{2, 2}, PrefillTokens: []uint32{0, 5000}},
	}
	tests := []struct {
		name        string
		records     []trace.Record
		calm, churn float64
	}{
		{name: "both", records: []trace.Record{calm, churned}, calm: 10, churn: 50},
		{name: "calm only", records: []trace.Record{calm}, calm: 10, churn: 10},
		{name: "churn only", records: []trace.Record{churned}, calm: 50, churn: 50},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := mustFit(t, 8192, test.records...)
			for _, prompt := range []int{10, 40_000} {
				d := Decode{Request: NewRequest(1, "r", prompt, 0), Context: prompt + 1, Tokens: 1}
				if got := f.draw(&d, 1).ms; got != test.calm {
					t.Errorf("prompt of %d: %v ms, want %v", prompt, got, test.calm)
				}
			}
			f.Duration(&Step{Running: 1, Chunks: []Chunk{{Request: NewRequest(1, "big", 5000, 0), Tokens: 2048}}})
			d := Decode{Request: NewRequest(1, "r", 40_000, 0), Context: 40_001, Tokens: 1}
			if got := f.draw(&d, 1).ms; got != test.churn {
				t.Errorf("after a large prompt: %v ms, want %v", got, test.churn)
			}
			chunk := Step{Chunks: []Chunk{{Request: NewRequest(1, "small", 10, 0), Tokens: 10, Last: true}}}
			for range 2 * churnWindow / 5 { // each takes the 5 ms to the first token
				f.Duration(&chunk)
			}
			if got := f.draw(&d, 1).ms; got != test.calm {
				t.Errorf("long after a large prompt: %v ms, want %v", got, test.calm)
			}
		})
	}
}

func TestNotes(t *testing.T) {
	records := quiet()
	records[5].TTFTMs, records[6].ITLMs = -1, []float64{-3}
	records[0].TTFTMs = 90_000
	f := mustFit(t, 8192, records...)
	want := []string{
		"some.jsonl: 1 requests at the start are left out of the times to the first token: the engine was warming up",
		"some.jsonl: 2 negative times are left out: the clock of the recording went back",
	}
	require.NoDiff(t, cmp.Diff(want, f.Notes()), "notes (-want +got)")
}

// Records that make little sense, but which the format allows, make a model all the same.
func TestOddRecords(t *testing.T) {
	at := new(0.0)
	odd := map[string]trace.Record{
		"no prompt":  {OutputTokens: 2, ITLMs: []float64{1}},
		"all cached": {PromptTokens: 9, CachedTokens: 90, OutputTokens: 2, ITLMs: []float64{1}, Concurrency: 1},
		"no time":    {PromptTokens: 9, OutputTokens: 3, ITLMs: []float64{0, 0}, ArrivalMs: at},
		"huge": {
			PromptTokens: maxTokens, OutputTokens: maxTokens, TTFTMs: 1e15, ITLMs: []float64{1e15}, ArrivalMs: at,
		},
		"negative times": {PromptTokens: 9, OutputTokens: 3, TTFTMs: -5, ITLMs: []float64{-1, 4}, ArrivalMs: at},
		"more gaps":      {PromptTokens: 9, OutputTokens: 1, TTFTMs: 5, ITLMs: []float64{1, 1, 1}, ArrivalMs: at},
		"all at once":    {PromptTokens: 9, OutputTokens: 9, ITLMs: []float64{1e-9, 1e-9, 1e-9}, ArrivalMs: at},
		"large chunks": {
			PromptTokens: 9, OutputTokens: maxTokens, ITLMs: []float64{1, 1}, ITLTokens: []uint32{1 << 30, 9},
		},
		"huge concurrency": {PromptTokens: 9, OutputTokens: 2, TTFTMs: 5, ITLMs: []float64{1}, Concurrency: math.MaxUint64},
		"marked, all of it": {
			PromptTokens: 9, OutputTokens: 2, TTFTMs: 5, ITLMs: []float64{1}, Concurrency: 2,
			ITLCtx: &trace.ITLCtx{NumRunning: []uint32{math.MaxUint32}, PrefillTokens: []uint32{math.MaxUint32}},
		},
	}
	for name, record := range odd {
		for _, n := range []int{1, 400} {
			t.Run(fmt.Sprint(name, " ", n), func(t *testing.T) {
				f := mustFit(t, 8192, slices.Repeat([]trace.Record{record}, n)...)
				for i := range 20 {
					r := NewRequest(1, fmt.Sprint(i), 100*i, 50*i)
					s := Step{
						Running: i, Limit: 5, Decodes: []Decode{{Request: r, Context: 100 * i, Tokens: 2}},
						Chunks: []Chunk{{Request: NewRequest(2, "c", 1000, 0), Tokens: 400, Depth: 600, Last: true}},
					}
					took := f.Duration(&s)
					s.Decodes, s.Left = nil, 10
					if alone := f.Duration(&s); took < 0 || alone < 0 {
						t.Fatalf("took %v, and %v without decodes", took, alone)
					}
				}
			})
		}
	}
}
