package inspect

import (
	"math"
	"slices"

	"github.com/vllm-vcr/conformance/trace"
)

// Distribution is what times were, ms.
type Distribution struct {
	Count int     `json:"count"`
	Mean  float64 `json:"mean_ms"`
	P50   float64 `json:"p50_ms"`
	P90   float64 `json:"p90_ms"`
	P99   float64 `json:"p99_ms"`
}

// times are times in ms, sorted.
type times []float64

func sortedTimes(ms []float64) times {
	slices.Sort(ms)
	return ms
}

// quantile is the value that so much of the times does not exceed (nearest rank).
func (t times) quantile(q float64) float64 {
	if len(t) == 0 {
		return 0
	}
	rank := int(math.Ceil(q*float64(len(t)))) - 1
	return t[min(max(rank, 0), len(t)-1)]
}

func (t times) mean() float64 {
	sum := 0.0
	for _, ms := range t {
		sum += ms
	}
	return sum / float64(max(len(t), 1))
}

// deviation is the standard deviation of the sample.
func (t times) deviation() float64 {
	mean, sum := t.mean(), 0.0
	for _, ms := range t {
		sum += (ms - mean) * (ms - mean)
	}
	return math.Sqrt(sum / float64(max(len(t)-1, 1)))
}

// above is the part of the times that exceed a limit, 0 to 1.
func (t times) above(limit float64) float64 {
	at, _ := slices.BinarySearchFunc(t, limit, func(ms, limit float64) int {
		if ms <= limit {
			return -1
		}
		return 1
	})
	return float64(len(t)-at) / float64(max(len(t), 1))
}

func (t times) distribution() Distribution {
	return Distribution{len(t), t.mean(), t.quantile(0.5), t.quantile(0.9), t.quantile(0.99)}
}

// samples are the times of records: to the first token, and between two outputs.
type samples struct {
	ttft, itl times
}

func samplesOf(records []trace.Record) samples {
	var s samples
	for i := range records {
		if r := &records[i]; r.OutputTokens > 0 {
			s.ttft = append(s.ttft, r.TTFTMs)
			s.itl = append(s.itl, r.ITLMs...)
		}
	}
	return samples{sortedTimes(s.ttft), sortedTimes(s.itl)}
}

// with are the times of both.
func (s samples) with(other samples) samples {
	return samples{sortedTimes(slices.Concat(s.ttft, other.ttft)), sortedTimes(slices.Concat(s.itl, other.itl))}
}
