package inspect

import (
	"strconv"
	"time"

	"github.com/vllm-vcr/conformance/internal/engine/latency"
)

// knobSamples are as many times as in s, drawn by knobs that are set to the mean and the
// deviation of s itself: no prediction, but the most that such knobs can say. A
// deviation larger than they take is the largest that they take.
func knobSamples(s samples, seed uint64) samples {
	const mostDeviation = 0.3 // of the mean
	knobs := latency.Knobs{
		TimeToFirstToken:  milliseconds(s.ttft.mean()),
		InterTokenLatency: milliseconds(s.itl.mean()),
	}
	knobs.TimeToFirstTokenStdDev = min(milliseconds(s.ttft.deviation()), part(knobs.TimeToFirstToken, mostDeviation))
	knobs.InterTokenLatencyStdDev = min(milliseconds(s.itl.deviation()), part(knobs.InterTokenLatency, mostDeviation))
	var drawn samples
	for i := range s.ttft {
		r := latency.NewRequest(seed, "first-"+strconv.Itoa(i), 1, 0)
		step := latency.Step{Running: 1, Limit: 1, Chunks: []latency.Chunk{{Request: r, Tokens: 1, Last: true}}}
		drawn.ttft = append(drawn.ttft, inMilliseconds(knobs.Duration(&step)))
	}
	for i := range s.itl {
		r := latency.NewRequest(seed, "next-"+strconv.Itoa(i), 1, 0)
		step := latency.Step{Running: 1, Limit: 1, Decodes: []latency.Decode{{Request: r, Context: 1, Tokens: 1}}}
		drawn.itl = append(drawn.itl, inMilliseconds(knobs.Duration(&step)))
	}
	return samples{sortedTimes(drawn.ttft), sortedTimes(drawn.itl)}
}

func part(d time.Duration, of float64) time.Duration { return time.Duration(float64(d) * of) }
