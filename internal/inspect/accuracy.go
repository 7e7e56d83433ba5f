package inspect

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/trace"
)

// Accuracy is how far predicted times are from real ones, in the figures in which simulators publish theirs.
type Accuracy struct {
	Requests int        `json:"requests"`
	Figures  []Estimate `json:"figures"`
	// MAPE is the mean of the absolute errors of single requests, as a part of the real value, by metric.
	MAPE map[string]float64 `json:"mape"`
	// RealThroughput and PredictedThroughput are tokens of answers in a second, from the first arrival to the last token.
	RealThroughput      float64 `json:"real_tokens_per_second"`
	PredictedThroughput float64 `json:"predicted_tokens_per_second"`

	pairs []pairOfTimes
}

// Estimate is one figure. Times are in ms, errors are parts of the real value.
type Estimate struct {
	Metric    string  `json:"metric"`
	Statistic string  `json:"statistic"`
	Real      float64 `json:"real_ms"`
	Predicted float64 `json:"predicted_ms"`
	Error     float64 `json:"error"`
	// Low and High are the interval of 95 % confidence of Error, by a bootstrap over blocks of consecutive requests.
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// pairOfTimes are the times of a request, real and predicted.
type pairOfTimes struct {
	real, predicted requestTimes
}

// requestTimes are times of a request, ms, by metric, NaN if there is none; and those of its gaps.
type requestTimes struct {
	of            [len(accuracyMetrics)]float64
	gaps          []float64
	arrival, end  float64
	tokens, level int
}

var accuracyMetrics = [...]string{"TTFT", "TPOT", "E2E", "queueing"}

const accuracyGaps = "ITL"

type accuracyStatistic struct {
	name string
	of   func(times) float64
}

var accuracyStatistics = []accuracyStatistic{
	{"mean", times.mean},
	{"P50", func(t times) float64 { return t.quantile(0.5) }},
	{"P90", func(t times) float64 { return t.quantile(0.9) }},
	{"P95", func(t times) float64 { return t.quantile(0.95) }},
	{"P99", func(t times) float64 { return t.quantile(0.99) }},
}

func timesOf(r *trace.Record) requestTimes {
	arrival := trace.Or(r.ArrivalMs, 0)
	t := requestTimes{gaps: r.ITLMs, arrival: arrival, end: r.EndMs(arrival), tokens: r.OutputTokens, level: int(r.Concurrency)}
	queue, err := strconv.ParseFloat(string(r.Extra[queueKey]), 64)
	if err != nil {
		queue = math.NaN()
	}
	t.of = [...]float64{r.TTFTMs, math.NaN(), r.EndMs(0), queue}
	if r.OutputTokens > 1 {
		t.of[1] = (r.EndMs(0) - r.TTFTMs) / float64(r.OutputTokens-1)
	}
	return t
}

// pairsOf puts the predicted requests next to the real ones from an index on. Line of a predicted record is 1 for the first of real.
func pairsOf(real, predicted []trace.Record, from int) []pairOfTimes {
	var pairs []pairOfTimes
	for i := range predicted {
		k := i
		if line := predicted[i].Line; line > 0 {
			k = line - 1
		}
		if k >= from && k < len(real) {
			pairs = append(pairs, pairOfTimes{timesOf(&real[k]), timesOf(&predicted[i])})
		}
	}
	slices.SortStableFunc(pairs, func(a, b pairOfTimes) int { return cmp.Compare(a.real.arrival, b.real.arrival) })
	return pairs
}

const (
	accuracyResamples = 200
	accuracyBlocks    = 32
	maxDrawnGaps      = 20_000 // of all requests, that the intervals of ITL are drawn from
)

func newAccuracy(pairs []pairOfTimes, seed uint64) *Accuracy {
	a := &Accuracy{Requests: len(pairs), MAPE: map[string]float64{}, pairs: pairs}
	rng := rand.New(rand.NewPCG(seed, 2))
	for m, name := range accuracyMetrics {
		off, count := 0.0, 0
		for _, p := range pairs {
			if r := p.real.of[m]; r > 0 && !math.IsNaN(p.predicted.of[m]) {
				off, count = off+math.Abs(p.predicted.of[m]/r-1), count+1
			}
		}
		if count > 0 && m < len(accuracyMetrics)-1 { // many requests hardly wait: their error has no meaning
			a.MAPE[name] = off / float64(count)
		}
		a.add(name, rng, func(t *requestTimes) []float64 {
			if math.IsNaN(t.of[m]) {
				return nil
			}
			return t.of[m : m+1]
		})
	}
	gaps := 0
	for _, p := range pairs {
		gaps += len(p.real.gaps)
	}
	every := gaps/maxDrawnGaps + 1
	a.add(accuracyGaps, rng, func(t *requestTimes) []float64 {
		var kept []float64
		for i := int(t.arrival) % every; i < len(t.gaps); i += every {
			kept = append(kept, t.gaps[i])
		}
		return kept
	})
	rate := func(of func(*pairOfTimes) *requestTimes) float64 {
		first, last, tokens := math.Inf(1), 0.0, 0
		for i := range pairs {
			t := of(&pairs[i])
			first, last, tokens = min(first, t.arrival), max(last, t.end), tokens+t.tokens
		}
		return 1e3 * float64(tokens) / (last - first)
	}
	a.RealThroughput = rate(func(p *pairOfTimes) *requestTimes { return &p.real })
	a.PredictedThroughput = rate(func(p *pairOfTimes) *requestTimes { return &p.predicted })
	return a
}

// add adds the figures of a metric, if all requests that were predicted have it.
func (a *Accuracy) add(metric string, rng *rand.Rand, values func(*requestTimes) []float64) {
	both := func(draw []int) (real, predicted times) {
		for _, i := range draw {
			r, p := values(&a.pairs[i].real), values(&a.pairs[i].predicted)
			if len(r) > 0 && len(p) > 0 {
				real, predicted = append(real, r...), append(predicted, p...)
			}
		}
		return sortedTimes(real), sortedTimes(predicted)
	}
	n := len(a.pairs)
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	real, predicted := both(all)
	if len(real) == 0 {
		return
	}
	errors := make([]times, len(accuracyStatistics))
	block := max(n/accuracyBlocks, 1)
	for range accuracyResamples {
		draw := all[:0:0]
		for len(draw) < n {
			from := rng.IntN(n)
			for i := range block {
				draw = append(draw, (from+i)%n)
			}
		}
		r, p := both(draw)
		for i, s := range accuracyStatistics {
			if len(r) > 0 {
				errors[i] = append(errors[i], errorOf(s.of(r), s.of(p)))
			}
		}
	}
	for i, s := range accuracyStatistics {
		e := Estimate{Metric: metric, Statistic: s.name, Real: s.of(real), Predicted: s.of(predicted)}
		sorted := sortedTimes(errors[i])
		e.Error, e.Low, e.High = errorOf(e.Real, e.Predicted), sorted.quantile(0.025), sorted.quantile(0.975)
		a.Figures = append(a.Figures, e)
	}
}

// errorOf is a part of the real value; of nothing, nothing is the only right prediction.
func errorOf(real, predicted float64) float64 {
	if real == 0 {
		return min(predicted, 1)
	}
	return predicted/real - 1
}

// table has a row for each figure.
func (a *Accuracy) table() *table {
	t := &table{
		title: fmt.Sprintf("%d predicted requests; error: predicted against real, with the interval of 95 %% confidence", a.Requests),
		head:  []string{"metric", "statistic", "real ms", "predicted ms", "error", "from", "to", "MAPE"}, left: 2,
	}
	for _, e := range a.Figures {
		mape := ""
		if v, ok := a.MAPE[e.Metric]; ok && e.Statistic == "mean" {
			mape = fmt.Sprintf("%.1f %%", 100*v)
		}
		t.add(e.Metric, e.Statistic, msText(e.Real), msText(e.Predicted), percent(e.Error), percent(e.Low), percent(e.High), mape)
	}
	t.add("tokens/s", "", fmt.Sprintf("%.0f", a.RealThroughput), fmt.Sprintf("%.0f", a.PredictedThroughput), percent(errorOf(a.RealThroughput, a.PredictedThroughput)), "", "", "")
	return t
}

// table has a row for each constant.
func (l *Learning) table() *table {
	t := &table{
		title: fmt.Sprintf("learned from the times of %d requests; intervals of 90 %% confidence", l.Requests),
		head:  []string{"what takes time", "unit", "value", "from", "to", ""}, left: 2,
	}
	for _, c := range l.Constants {
		shown := ""
		if !c.Shown {
			shown = "not shown by this load"
		}
		t.add(c.Name, c.Unit, fmt.Sprintf("%.3g", c.Value), fmt.Sprintf("%.3g", c.Low), fmt.Sprintf("%.3g", c.High), shown)
	}
	return t
}

// Markdown writes what was learned from results, the figures, and the verdict.
func (r *Report) Markdown(w io.Writer) error {
	out := bufio.NewWriter(w)
	if r.Learning != nil {
		r.Learning.table().markdown(out)
		fmt.Fprintln(out)
	}
	r.Accuracy.table().markdown(out)
	fmt.Fprintln(out)
	for _, c := range r.Criteria {
		fmt.Fprintf(out, "- %s\n", c)
	}
	for _, note := range r.Notes {
		fmt.Fprintf(out, "- %s\n", safetext.Markdown(note))
	}
	if t := r.whatIfTable(); t != nil {
		fmt.Fprintln(out)
		t.markdown(out)
	}
	return out.Flush()
}

// plots are the times of requests, and the errors by the number of requests in flight at an arrival.
func (a *Accuracy) plots() (plots []Plot) {
	errors := figure{title: "Error by load", xName: "requests in flight at arrival", yName: "median error, part of the real time"}
	levels := a.levels()
	for m, name := range accuracyMetrics[:3] {
		var real, predicted times
		for _, p := range a.pairs {
			if !math.IsNaN(p.real.of[m]) {
				real, predicted = append(real, p.real.of[m]), append(predicted, p.predicted.of[m])
			}
		}
		if m > 0 { // that of TTFT is among the others
			plots = append(plots, survivalPlot(strings.ToLower(name)+"-survival", name+" of requests", []curve{{"real", 0, sortedTimes(real)}, {"predicted", 1, sortedTimes(predicted)}})...)
		}
		l := line{name: name, color: seriesColors[m]}
		for _, pairs := range levels {
			var off times
			for _, p := range pairs {
				if r := p.real.of[m]; r > 0 {
					off = append(off, p.predicted.of[m]/r-1)
				}
			}
			if len(off) > 0 {
				point := [2]float64{float64(pairs[len(pairs)/2].real.level), sortedTimes(off).quantile(0.5)}
				l.points = append(l.points, point)
				errors.x.high = max(errors.x.high, point[0])
				errors.y.low, errors.y.high = min(errors.y.low, point[1]), max(errors.y.high, point[1])
			}
		}
		errors.lines = append(errors.lines, l)
	}
	if len(levels) < 2 {
		return plots
	}
	errors.y.low, errors.y.high = min(errors.y.low, -0.05), max(errors.y.high, 0.05)
	return append(plots, Plot{"error-by-load", errors})
}

// levels are up to ten groups of as many requests each, by the requests in flight when they came.
func (a *Accuracy) levels() (groups [][]pairOfTimes) {
	sorted := slices.SortedStableFunc(slices.Values(a.pairs), func(x, y pairOfTimes) int { return cmp.Compare(x.real.level, y.real.level) })
	if len(sorted) > 0 {
		groups = slices.Collect(slices.Chunk(sorted, len(sorted)/10+1))
	}
	return groups
}
