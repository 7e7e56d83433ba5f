package inspect

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/vllm-vcr/conformance/trace"
)

// From where on something about recordings may explain why a prediction is off.
const (
	enoughSeconds   = 60.0 // of recordings to learn from
	shortStep       = 10.0 // ms, a median gap
	warmUpRequests  = 8
	warmUpFactor    = 2.0 // of the median time to the first token
	enoughOfLargest = 0.8 // of the largest prompt, or number of requests at a time, to predict
)

// advice says why a prediction that does not hold may be off, and what helps, as far as the recordings show it.
func (o *Options) advice(r *Report) (advice []string) {
	add := func(format string, args ...any) { advice = append(advice, fmt.Sprintf(format, args...)) }
	o.adviseOnNoise(r, add)
	if len(o.Fit) == 1 {
		add("one recording: it does not show how the speed of the machine changes from one run of the engine to the next. " +
			"Record the same load at least three times, and give --latency-trace for each recording")
	}
	learned, asked := totalOf(o.Fit), totalOf(o.Predict)
	if learned.seconds < enoughSeconds {
		add("short recordings: --latency-trace has %.1f s in all, --predict %.1f s. Record for a minute or longer", learned.seconds, asked.seconds)
	}
	if gap := r.Real.ITL.P50; gap < shortStep {
		add("short steps: half of the recorded gaps are %.2f ms or less, as with a tiny model on a CPU, so %.2f ms of other work on the machine "+
			"are already %.0f %%. Goldens of such models are made to compare tokens, not times: record the engine whose times you want to predict",
			gap, o.MedianTolerance*gap, 100*o.MedianTolerance)
	}
	for _, t := range slices.Concat(o.Fit, o.Predict) {
		if first, rest := firstTokens(t); first > warmUpFactor*rest && rest > 0 {
			add("warm-up: the first %d requests of %s took %.1f ms to the first token, the others %.1f ms (medians): the first steps of an engine take longer, "+
				"and nothing is in its prefix cache. Send some requests before you record", warmUpRequests, t.Name, first, rest)
		}
	}
	if float64(learned.prompt) < enoughOfLargest*float64(asked.prompt) {
		add("another load: the longest prompt has %d tokens in --latency-trace, and %d in --predict. Give a --latency-trace recording with prompts as long", learned.prompt, asked.prompt)
	}
	if float64(learned.open) < enoughOfLargest*float64(asked.open) {
		add("another load: at most %d requests are open at a time in --latency-trace, and %d in --predict. Give a --latency-trace recording with as many", learned.open, asked.open)
	}
	return advice
}

// adviseOnNoise reports whether the recordings could decide at all.
func (o *Options) adviseOnNoise(r *Report, add func(string, ...any)) {
	const helps = "Stop other work on the machine, record again, and give several recordings"
	for _, c := range r.Criteria {
		if c.Unit == unitPart && !c.Pass && c.Off <= r.Confidence.Expected {
			add("noise: the %s is off by %.1f %%, and the noise of these recordings alone may be %.1f %%. So it does not show that the model is wrong. %s",
				c.Name, 100*c.Off, 100*r.Confidence.Expected, helps)
			return
		}
	}
	if r.Confidence.TooNoisy {
		add("noise: step times are learned to within %.1f %% only, and %.1f %% is allowed. %s", 100*r.Confidence.Learned, 100*o.MedianTolerance, helps)
	}
}

// meaning explains the figures of a report.
var meaning = []string{
	"TTFT: the time from a request to its first token. ITL: the gap between two outputs of a request",
	"real: as recorded in --predict. predicted: as `play` with the same --latency-trace answers the same requests",
	"best knobs: the best that --time-to-first-token and --inter-token-latency can do, set to the mean and deviation of --predict itself",
	"ITL above N ms (band mass): the part of the gaps that are longer than --band times the recorded median: steps that computed a prompt too",
	"off by N %: a simulation with these times is that much too fast or too slow, in the median. off by N points: the difference of two percentages",
}

// total is what recordings have together: their time, and the largest of each.
type total struct {
	seconds      float64
	prompt, open int // tokens; requests at a time
}

func totalOf(traces []*trace.Trace) (all total) {
	for _, t := range traces {
		s := Summarize(t)
		if s.Seconds != nil {
			all.seconds += *s.Seconds
		}
		all.prompt, all.open = max(all.prompt, s.PromptTokens.Max), max(all.open, s.Concurrency.Max)
	}
	return all
}

// firstTokens are the median times to the first token of the first requests, and of the others; 0 of too few.
func firstTokens(t *trace.Trace) (first, rest float64) {
	var records []*trace.Record
	for i := range t.Records {
		if r := &t.Records[i]; r.ArrivalMs != nil && r.OutputTokens > 0 {
			records = append(records, r)
		}
	}
	if len(records) < 2*warmUpRequests {
		return 0, 0
	}
	slices.SortFunc(records, func(a, b *trace.Record) int { return cmp.Compare(*a.ArrivalMs, *b.ArrivalMs) })
	median := func(records []*trace.Record) float64 {
		var ms []float64
		for _, r := range records {
			ms = append(ms, r.TTFTMs)
		}
		return sortedTimes(ms).quantile(0.5)
	}
	return median(records[:warmUpRequests]), median(records[warmUpRequests:])
}
