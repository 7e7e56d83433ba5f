package latency

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

const ms = time.Millisecond

func TestKnobs(t *testing.T) {
	r := NewRequest(1, "a", 50, 10)
	long := NewRequest(1, "b", 1000, 0)
	whole := []Chunk{{Request: r, Tokens: 40, Depth: 10, Last: true}}
	decode := []Decode{{Request: r, Context: 51, Tokens: 1}}
	tests := []struct {
		name  string
		knobs Knobs
		step  Step
		want  time.Duration
	}{
		{name: "nothing"},
		{
			name: "overhead and tokens", knobs: Knobs{PrefillOverhead: 100 * ms, PrefillPerToken: 2 * ms},
			step: Step{Chunks: whole}, want: 180 * ms,
		},
		{
			name: "a part of a prompt", knobs: Knobs{PrefillOverhead: 100 * ms, PrefillPerToken: 2 * ms},
			step: Step{Chunks: []Chunk{{Request: r, Tokens: 10, Depth: 10}}}, want: 25*ms + 20*ms,
		},
		{
			name: "overhead once, tokens of all", knobs: Knobs{PrefillOverhead: 100 * ms, PrefillPerToken: 2 * ms},
			step: Step{Chunks: []Chunk{{Request: long, Tokens: 100}, whole[0]}}, want: 100*ms + 280*ms,
		},
		{name: "fixed", knobs: Knobs{TimeToFirstToken: 100 * ms}, step: Step{Chunks: whole}, want: 100 * ms},
		{
			name: "fixed, a quarter of the prompt", knobs: Knobs{TimeToFirstToken: 100 * ms},
			step: Step{Chunks: []Chunk{{Request: r, Tokens: 10, Depth: 10}}}, want: 25 * ms,
		},
		{
			name: "fixed, the longest of a step", knobs: Knobs{TimeToFirstToken: 100 * ms},
			step: Step{Chunks: []Chunk{whole[0], {Request: long, Tokens: 500}}}, want: 100 * ms,
		},
		{
			name: "decodes wait", knobs: Knobs{TimeToFirstToken: 100 * ms, InterTokenLatency: 10 * ms},
			step: Step{Chunks: whole, Decodes: decode}, want: 100 * ms,
		},
		{
			name: "a chunk hides behind decodes", knobs: Knobs{PrefillPerToken: 1000, InterTokenLatency: 10 * ms},
			step: Step{Chunks: whole, Decodes: decode}, want: 10 * ms,
		},
		{
			name: "less than a millisecond", knobs: Knobs{InterTokenLatency: 900 * time.Microsecond},
			step: Step{Decodes: decode}, want: 900 * time.Microsecond,
		},
		{
			name: "one of five running", knobs: Knobs{InterTokenLatency: 100 * ms, LoadFactor: 3},
			step: Step{Running: 1, Limit: 5, Decodes: decode}, want: 100 * ms,
		},
		{
			name: "three of five", knobs: Knobs{InterTokenLatency: 100 * ms, LoadFactor: 3},
			step: Step{Running: 3, Limit: 5, Decodes: decode}, want: 200 * ms,
		},
		{
			name: "all of five", knobs: Knobs{TimeToFirstToken: 100 * ms, LoadFactor: 2},
			step: Step{Running: 5, Limit: 5, Chunks: whole}, want: 200 * ms,
		},
		{
			name: "one may run", knobs: Knobs{InterTokenLatency: 100 * ms, LoadFactor: 3},
			step: Step{Running: 1, Limit: 1, Decodes: decode}, want: 100 * ms,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			require.NoError(t, test.knobs.Validate())
			require.NoDiff(t, cmp.Diff(test.want, test.knobs.Duration(&test.step)), "(-want +got)")
		})
	}
}

func TestKnobsTransfer(t *testing.T) {
	tests := []struct {
		name  string
		knobs Knobs
		want  time.Duration
	}{
		{name: "nothing"},
		{name: "fixed", knobs: Knobs{TransferLatency: 30 * ms, LoadFactor: 5}, want: 30 * ms},
		{name: "per token of the whole prompt", knobs: Knobs{TransferPerToken: 2 * ms}, want: 100 * ms},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			require.NoDiff(t, cmp.Diff(test.want, test.knobs.Transfer(NewRequest(1, "a", 50, 10))), "(-want +got)")
		})
	}
}

// Draws vary around their mean as far as the deviation says, and never leave 0.3 to 1.7 of it.
func TestKnobsDeviation(t *testing.T) {
	const mean, deviation, n = 10.0, 3.0, 20_000
	knobs := Knobs{
		TimeToFirstToken: 10 * ms, TimeToFirstTokenStdDev: 3 * ms,
		InterTokenLatency: 10 * ms, InterTokenLatencyStdDev: 3 * ms,
		TransferLatency: 10 * ms, TransferLatencyStdDev: 3 * ms,
	}
	prefill := Knobs{PrefillOverhead: 9 * ms, PrefillPerToken: ms / 10, PrefillStdDev: 3 * ms}
	draws := map[string]func(*Request) time.Duration{
		"first token": func(r *Request) time.Duration {
			return knobs.Duration(&Step{Chunks: []Chunk{{Request: r, Tokens: 10, Last: true}}})
		},
		"in parts": func(r *Request) time.Duration {
			return knobs.Duration(&Step{Chunks: []Chunk{{Request: r, Tokens: 6}}}) +
				knobs.Duration(&Step{Chunks: []Chunk{{Request: r, Tokens: 4, Depth: 6, Last: true}}})
		},
		"prefill": func(r *Request) time.Duration {
			return prefill.Duration(&Step{Chunks: []Chunk{{Request: r, Tokens: 10, Last: true}}})
		},
		"decode": func(r *Request) time.Duration {
			return knobs.Duration(&Step{Decodes: []Decode{{Request: r, Context: 99}}})
		},
		"transfer": knobs.Transfer,
	}
	for name, draw := range draws {
		t.Run(name, func(t *testing.T) {
			sum, squares := 0.0, 0.0
			for i := range n {
				x := float64(draw(NewRequest(1, fmt.Sprint(i), 10, 0))) / float64(ms)
				if x < 0.3*mean-1e-5 || x > 1.7*mean+1e-5 {
					t.Fatalf("%v leaves 3 to 17", x)
				}
				sum, squares = sum+x, squares+x*x
			}
			gotMean := sum / n
			gotDeviation := math.Sqrt(squares/n - gotMean*gotMean)
			// Clamping at 2.3 deviations takes 2 % of them.
			if math.Abs(gotMean-mean) > 0.1 || math.Abs(gotDeviation-deviation) > 0.2 {
				t.Errorf("got %.3f ± %.3f, want %v ± %v", gotMean, gotDeviation, mean, deviation)
			}
		})
	}
}

func TestKnobsErrors(t *testing.T) {
	tests := []struct {
		name  string
		knobs Knobs
		want  string // part of the error; none is wanted if empty
	}{
		{name: "none"},
		{name: "largest deviation", knobs: Knobs{InterTokenLatency: 10 * ms, InterTokenLatencyStdDev: 3 * ms}},
		{name: "negative", knobs: Knobs{PrefillOverhead: -ms}, want: "prefill-overhead is -1ms: a time cannot be negative"},
		{name: "negative transfer", knobs: Knobs{TransferStdDev: -ms}, want: "kv-cache-transfer-time-std-dev is -1ms"},
		{
			name: "deviation of the first token", knobs: Knobs{TimeToFirstToken: 10 * ms, TimeToFirstTokenStdDev: 3*ms + 1},
			want: "time-to-first-token-std-dev is 3.000001ms: want at most 3ms, 30% of time-to-first-token",
		},
		{name: "deviation of nothing", knobs: Knobs{InterTokenLatencyStdDev: 1}, want: "inter-token-latency-std-dev is 1ns"},
		{
			name: "deviation of a transfer", knobs: Knobs{TransferLatency: 1, TransferLatencyStdDev: 1},
			want: "kv-cache-transfer-latency-std-dev is 1ns",
		},
		{name: "deviation of no prefill", knobs: Knobs{PrefillStdDev: 1}, want: "prefill-time-std-dev is 1ns, but neither"},
		{
			name: "deviation of no transfer", knobs: Knobs{TransferStdDev: 1},
			want: "kv-cache-transfer-time-std-dev is 1ns, but",
		},
		{
			name: "two ways to the first token", knobs: Knobs{TimeToFirstToken: 1, PrefillPerToken: 1},
			want: "prefill-time-per-token has no effect together with time-to-first-token",
		},
		{
			name: "two ways to transfer", knobs: Knobs{TransferLatency: 1, TransferPerToken: 1},
			want: "kv-cache-transfer-time-per-token has no effect together with kv-cache-transfer-latency",
		},
		{name: "factor", knobs: Knobs{LoadFactor: 0.5}, want: "time-factor-under-load is 0.5: want at least 1"},
		{name: "factor is no number", knobs: Knobs{LoadFactor: math.NaN()}, want: "time-factor-under-load is NaN"},
		{name: "factor without end", knobs: Knobs{LoadFactor: math.Inf(1)}, want: "time-factor-under-load is +Inf"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := test.knobs.Validate()
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got error %v, want %q", err, test.want)
			}
		})
	}
}

func TestClamped(t *testing.T) {
	for _, z := range []float64{-9, -1, 0, 1, 9} {
		if got, want := clamped(100, 50*z), min(max(100+50*z, 30), 170); got != want {
			t.Errorf("%v deviations: got %v, want %v", z, got, want)
		}
	}
}
