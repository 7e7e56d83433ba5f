package latency

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/trace"
)

// stairs are steps without chunks of one recording: many for each number of requests, of base + requests ms. The stair of
// slowed requests takes slower times as long.
func stairs(take int, noise float64, slowed int, slower float64) (steps []step) {
	r := rand.New(rand.NewPCG(uint64(take), 7))
	for _, requests := range []int{1, 2, 4, 6, 8, 16} {
		for i := range 200 {
			ms := 10 + float64(requests)
			if requests == slowed {
				ms *= slower
			}
			if i/levelLeast%2 == 0 { // as the machine's speed changes, whole stretches are slower
				ms *= 1 + noise
			}
			ms *= 1 + 0.01*r.Float64()
			steps = append(steps, step{ms: ms, decodes: requests, position: len(steps), take: take})
		}
	}
	return steps
}

// Other work on the machine while one number of requests was recorded does not make fewer requests slower than more.
func TestLevelsOfNoisyStairs(t *testing.T) {
	for _, test := range []struct {
		name  string
		steps []step
		notes int
	}{
		{name: "quiet", steps: stairs(0, 0, 0, 1)},
		{name: "one stair of one recording", steps: stairs(0, 0, 6, 2.4), notes: 1},
		{name: "the first stair", steps: stairs(0, 0, 1, 2.4), notes: 1},
		{name: "of several recordings", steps: append(append(stairs(0, 0, 6, 2.4), stairs(1, 0, 0, 1)...), stairs(2, 0, 4, 3)...)},
		{name: "a noisy recording beside a quiet one", steps: append(stairs(0, 0, 0, 1), stairs(1, 0.8, 0, 1.5)...)},
	} {
		t.Run(test.name, func(t *testing.T) {
			levels, notes := levelsOf(test.steps, 0)
			require.Equal(t, len(notes), test.notes, "notes: %q", notes)
			for i, v := range levels {
				if want := 10 + v.requests; math.Abs(v.ms/want-1) > 0.2 {
					t.Errorf("%v requests: %.1f ms, want about %.1f", v.requests, v.ms, want)
				}
				if i > 0 && v.ms < levels[i-1].ms {
					t.Errorf("%v requests take %.1f ms, and %v requests %.1f", v.requests, v.ms, levels[i-1].requests, levels[i-1].ms)
				}
			}
		})
	}
}

// However noisy the recordings: with the same draw a step never takes less time because there is more in it, be it a request, a
// token of context, or a token of a prompt.
func TestStepsNeverFall(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 3))
		law := engineLaw{base: 5, perRequest: 0.3, perContext: 1e-4, once: 1, c0: 0.01, c1: 1e-6, wake: 1}
		var traces []*trace.Trace
		for range 3 {
			records := law.run(r.Uint64(), 60, 512, 40)
			for i := range records {
				factor := math.Exp(r.NormFloat64() / 2)
				records[i].TTFTMs *= factor
				for j := range records[i].ITLMs {
					records[i].ITLMs[j] *= factor
				}
			}
			traces = append(traces, &trace.Trace{Records: records})
		}
		f, err := NewFit(FitOptions{Budget: 512}, traces...)
		require.NoError(t, err)
		pacer := Decode{Request: NewRequest(1, "pacer", 100, 0), Context: 4000, Tokens: 1}
		took := func(requests, context, tokens int) time.Duration {
			s := Step{Decodes: []Decode{pacer}, Running: requests, Limit: 64, Left: 1}
			for range requests - 1 {
				s.Decodes = append(s.Decodes, Decode{Request: NewRequest(1, "other", 10, 0), Context: context, Tokens: 1})
			}
			if tokens > 0 {
				s.Chunks = []Chunk{{Request: NewRequest(1, "chunk", 400, 0), Tokens: tokens}}
			}
			return f.Duration(&s)
		}
		for _, more := range []struct {
			what string
			took func(n int) time.Duration
		}{
			{"requests", func(n int) time.Duration { return took(n+1, 500, 0) }},
			{"context", func(n int) time.Duration { return took(8, 50*n, 0) }},
			{"prompt tokens", func(n int) time.Duration { return took(8, 500, 8*n) }},
		} {
			last := time.Duration(0)
			for n := range 40 {
				now := more.took(n)
				require.True(t, now >= last, "seed %d: %d of %s: %v after %v", seed, n, more.what, now, last)
				last = now
			}
		}
	}
}

// What recordings contradict each other in is told, and counts as noise.
func TestNoiseOfRecordings(t *testing.T) {
	law := engineLaw{base: 5, perRequest: 0.3, once: 1, c0: 0.01, wake: 1}
	slow := engineLaw{base: 10, perRequest: 0.6, once: 2, c0: 0.02, wake: 2}
	recorded := func(laws ...engineLaw) []*trace.Trace {
		var traces []*trace.Trace
		for i, l := range laws {
			traces = append(traces, &trace.Trace{Records: l.run(uint64(i), 150, 512, 40)})
		}
		return traces
	}
	noise := func(laws ...engineLaw) (spread, uncertain float64) {
		f, err := NewFit(FitOptions{Budget: 512}, recorded(laws...)...)
		require.NoError(t, err)
		if strings.Contains(strings.Join(f.Notes(), "\n"), "requests are added") {
			t.Errorf("notes: %q", f.Notes())
		}
		return f.Noise()
	}
	if spread, uncertain := noise(law, law, law); spread > 0.02 || uncertain > spread {
		t.Errorf("equal recordings: spread %.3f, uncertain %.3f", spread, uncertain)
	}
	if spread, uncertain := noise(law, slow); spread < 0.3 || uncertain > spread {
		t.Errorf("one twice as slow: spread %.3f, uncertain %.3f", spread, uncertain)
	}
	four, of := noise(law, slow, law, slow)
	require.True(t, of <= 0.6*four, "four recordings: spread %.3f, uncertain %.3f", four, of)
}
