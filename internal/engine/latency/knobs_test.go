package latency

import (
	"math"
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
			require.ErrorText(t, err, test.want)
		})
	}
}
