package inspect

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/vllm-vcr/conformance/internal/engine/latency"
	"github.com/vllm-vcr/conformance/trace"
)

// Options of [Calibrate].
type Options struct {
	// Fit are the recordings that are learned from, Predict those that are predicted: each on
	// an engine of its own, and all of them are judged together.
	Fit     []*trace.Trace
	Predict []*trace.Trace
	// Results are results of requests to learn from, in place of Fit. See [LearnResults]. With Holdout, so many of their last requests are
	// not learned from but predicted, in place of Predict.
	Results []*trace.Trace
	Holdout int
	// Engine is what is set of the engines of Predict, in place of what their metas say.
	Engine Override
	// Seed decides what the model draws, and Runs how often the requests are answered, each time with other draws:
	// the prediction is all of them together. 0 is DefaultRuns.
	Seed uint64
	Runs int
	// Band is where the slow band begins, as a multiple of the recorded median gap; 0
	// is DefaultBand.
	Band float64
	// MedianTolerance is by how much of the recorded median the predicted one may be off,
	// BandTolerance by how many points of a hundred the part of the gaps in the band may
	// be; 0 is the default of each.
	MedianTolerance, BandTolerance float64
	// WhatIf are changes whose effect is predicted too. They change no verdict.
	WhatIf []WhatIf
	// Targets are limits of times: for the load, and for each of WhatIf, the number of engines that meets all is looked for.
	Targets []Target
	// Server answers the requests in place of the simulation; nil is the simulation.
	Server Server

	learning *Learning // nil if not from results
}

// Defaults of [Options].
const (
	DefaultRuns            = 10
	DefaultBand            = 2.0
	DefaultMedianTolerance = 0.10
	DefaultBandTolerance   = 2.0
)

const maxRuns = 1000

func (o Options) withDefaults() Options {
	o.Runs = cmp.Or(o.Runs, DefaultRuns)
	o.Band = cmp.Or(o.Band, DefaultBand)
	o.MedianTolerance = cmp.Or(o.MedianTolerance, DefaultMedianTolerance)
	o.BandTolerance = cmp.Or(o.BandTolerance, DefaultBandTolerance)
	return o
}

func (o *Options) check() error {
	if len(o.Fit)+len(o.Results) == 0 {
		return errors.New("no recording to learn from: give --latency-trace or --latency-results")
	}
	if len(o.Fit) > 0 && len(o.Results) > 0 {
		return errors.New("recordings with a time of each token and results of requests cannot be learned from together: leave out one of them")
	}
	if o.Holdout < 0 || o.Holdout > 0 && len(o.Results) == 0 {
		return fmt.Errorf("holdout is %d: want a number of requests of results to learn from", o.Holdout)
	}
	if len(o.Predict) == 0 && o.Holdout == 0 {
		return errors.New("no recording to predict: give --predict, or --holdout with --latency-results")
	}
	if o.Holdout > 0 && o.Server != nil {
		return errors.New("--holdout is judged by the simulation: with --over-wire, give --predict")
	}
	if o.Runs < 1 || o.Runs > maxRuns {
		return fmt.Errorf("runs is %d: want 1 to %d", o.Runs, maxRuns)
	}
	if !(o.Band > 1) || math.IsInf(o.Band, 0) {
		return fmt.Errorf("band is %v: want a multiple of the median gap above 1", o.Band)
	}
	for _, limit := range []struct {
		name  string
		value float64
	}{{"median-tolerance", o.MedianTolerance}, {"band-tolerance", o.BandTolerance}} {
		if !(limit.value > 0) || math.IsInf(limit.value, 0) {
			return fmt.Errorf("%s is %v: want a number above 0", limit.name, limit.value)
		}
	}
	named := map[string]bool{}
	for _, what := range o.WhatIf {
		if named[what.Name] { // their results could not be distinguished
			return fmt.Errorf("what-if %s is given twice", what.Name)
		}
		named[what.Name] = true
	}
	return unseen(append(o.Fit[:len(o.Fit):len(o.Fit)], o.Results...), o.Predict)
}

// Report is what [Calibrate] found. Times are in ms.
type Report struct {
	Fit     []Source     `json:"fit"`
	Predict []Prediction `json:"predict"`
	// Runs is how often the requests of each recording were answered.
	Runs int    `json:"runs"`
	Seed uint64 `json:"seed"`
	// BandFromMs is where the slow band of gaps begins, in the recordings as in what is
	// compared with them.
	BandFromMs float64 `json:"band_from_ms"`
	// Real is what was recorded in all of Predict, Predicted what the model makes of their requests, and
	// Knobs what a mean and a deviation can be at their best: set to those of Real.
	Real      Outcome     `json:"real"`
	Predicted Outcome     `json:"predicted"`
	Knobs     Outcome     `json:"knobs"`
	Criteria  []Criterion `json:"criteria"`
	// Accuracy has the errors of the predicted requests, and Learning what was learned from results of requests, nil if from traces.
	Accuracy *Accuracy `json:"accuracy"`
	Learning *Learning `json:"learning,omitempty"`
	// WhatIf is what is predicted for each of [Options].WhatIf.
	WhatIf []Scenario `json:"what_if,omitempty"`
	// Pass is whether all criteria are met.
	Pass       bool       `json:"pass"`
	Confidence Confidence `json:"confidence"`
	// Notes say what was left out of the recordings that were learned from, and what they contradict each other in.
	Notes []string `json:"notes,omitempty"`
	// Advice says why a prediction that does not hold may be off, and what helps.
	Advice []string `json:"advice,omitempty"`
}

// Confidence is how far step times can be known from the recordings at all, as parts of them. All are 0 if the recordings do
// not show whole steps.
type Confidence struct {
	// Spread is by how much recordings differ in what the same step takes, a standard deviation.
	Spread float64 `json:"spread"`
	// Learned is by how much the learned times may be off (two standard errors), and Expected by how much they may be off
	// from those of the predicted recordings, as noise alone may have it.
	Learned  float64 `json:"learned"`
	Expected float64 `json:"expected"`
	// TooNoisy reports whether Learned exceeds what a median may be off: another prediction may pass or fail by chance.
	TooNoisy bool `json:"too_noisy"`
}

func (o *Options) confidence(fit *latency.Fit) Confidence {
	spread, uncertain := fit.Noise()
	c := Confidence{Spread: spread, Learned: 2 * uncertain}
	c.Expected = 2 * math.Sqrt(uncertain*uncertain+spread*spread/float64(len(o.Predict)))
	c.TooNoisy = c.Learned > o.MedianTolerance
	return c
}

// Prediction is what became of one of the recordings that were predicted.
type Prediction struct {
	Source
	Requests int `json:"requests"`
	// Turns of the requests waited for the answer to an earlier one.
	Turns int `json:"turns"`
	// Clients is how many began a conversation whenever they had ended one, 0 if conversations came at times of their own.
	Clients int `json:"clients,omitempty"`
	// BandFromMs and Criteria are those of this recording alone. They decide nothing if there are others.
	BandFromMs float64     `json:"band_from_ms"`
	Criteria   []Criterion `json:"criteria"`

	real, predicted samples
	runs            []samples // of predicted
	pairs           []pairOfTimes
	subject         string // model and hardware
}

// Source is a recording.
type Source struct {
	Name    string `json:"name"`
	Records int    `json:"records"`
}

// Outcome is what a client saw.
type Outcome struct {
	TTFT Distribution `json:"ttft"`
	ITL  Distribution `json:"itl"`
	TPOT Distribution `json:"tpot"`
	E2E  Distribution `json:"e2e"`
	// BandMass is the part of the gaps that are in the slow band, 0 to 1, Tail the ratio
	// of the 99.9th percentile of gaps to the median.
	BandMass float64 `json:"band_mass"`
	Tail     float64 `json:"tail"`
	// Accepted is, for each number of tokens from 2, the part of the outputs after the first of a request that have at least so many: with
	// speculative decoding, how often the guess at each position was accepted. TokensPerOutput is their mean. Both are left out where
	// each output has one token.
	Accepted        []float64 `json:"accepted_by_position,omitempty"`
	TokensPerOutput float64   `json:"tokens_per_output,omitempty"`

	samples samples
	runs    []samples
}

// Criterion is what a prediction has to meet.
type Criterion struct {
	Name      string  `json:"name"`
	Real      float64 `json:"real"`
	Predicted float64 `json:"predicted"`
	// Off is how far the prediction is off, and Limit how far it may be: parts of the
	// real value, or points of a hundred.
	Off   float64 `json:"off"`
	Limit float64 `json:"limit"`
	Unit  string  `json:"unit"`
	Pass  bool    `json:"pass"`
}

// Units of [Criterion].
const (
	unitPart   = "part"
	unitPoints = "points"
	unitTokens = "tokens" // parts of a number of tokens
)

// Calibrate learns a model from some recordings, predicts others with it, and compares.
// It refuses to learn from what it predicts.
func Calibrate(o Options) (*Report, error) {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return nil, err
	}
	r := &Report{Seed: o.Seed}
	model, err := o.learn(r)
	if err != nil {
		return nil, err
	}
	r.Runs = o.Runs
	for _, t := range slices.Concat(o.Fit, o.Results) {
		r.Fit = append(r.Fit, Source{t.Name, len(t.Records) - o.Holdout})
	}
	if o.Holdout > 0 {
		o.Predict = append(o.Predict[:len(o.Predict):len(o.Predict)], o.Results...)
	}
	for _, t := range o.Predict {
		p, err := o.predict(model, t)
		if err != nil {
			return nil, err
		}
		r.Predict = append(r.Predict, *p)
	}
	r.compare(&o)
	if r.WhatIf, err = o.scenarios(model, r); err != nil {
		return nil, err
	}
	if !r.Pass && r.Learning == nil {
		r.Advice = o.advice(r)
	}
	return r, nil
}

// learn makes the model, and enters what it knows of itself.
func (o *Options) learn(r *Report) (latency.Learned, error) {
	if len(o.Results) > 0 {
		learning, err := LearnResults(o.Results, o.Holdout, o.Engine, o.Seed)
		if err != nil {
			return nil, err
		}
		r.Learning, r.Notes, o.learning = learning, learning.Notes, learning
		if o.Server == nil {
			o.Runs = 1 // it draws nothing
		}
		return &learning.law, nil
	}
	fit, err := learn(o.Fit, o.Engine)
	if err != nil {
		return nil, err
	}
	r.Confidence, r.Notes = o.confidence(fit), fit.Notes()
	return fit, nil
}

// predict answers the requests of a recording, and compares with what was recorded.
func (o *Options) predict(model latency.Learned, t *trace.Trace) (*Prediction, error) {
	w, engine, err := o.subject(model, t)
	if err != nil {
		return nil, err
	}
	runs, err := o.answers(model, w, engine)
	if err != nil {
		return nil, err
	}
	from := 0
	if slices.Contains(o.Results, t) {
		from = w.Len() - o.Holdout
		for i := range runs {
			runs[i] = slices.DeleteFunc(runs[i], func(r trace.Record) bool { return r.Line <= from })
		}
	}
	records := slices.Concat(runs...)
	p := &Prediction{
		Source: Source{t.Name, len(t.Records)}, Requests: w.Len() - from, Turns: w.Turns(), Clients: w.clients,
		real: samplesOf(w.recorded()[from:]), predicted: samplesOf(records), pairs: pairsOf(w.recorded(), records, from),
		subject: subjectOf(trace.Or(t.Meta.Model, ""), trace.Or(t.Meta.GPU, "")),
	}
	for _, run := range runs {
		p.runs = append(p.runs, samplesOf(run))
	}
	p.BandFromMs = o.Band * p.real.itl.quantile(0.5)
	real, predicted := outcomeOf(p.real, p.BandFromMs), outcomeOf(p.predicted, p.BandFromMs)
	p.Criteria = o.criteria(&real, &predicted)
	return p, nil
}

// learn makes the model. All traces must be of engines with steps of the same size.
// What a trace does not say of its engine is as in the prediction.
func learn(traces []*trace.Trace, otherwise Override) (*latency.Fit, error) {
	budget := 0
	for _, t := range traces {
		e, err := EngineOf(t, otherwise)
		if err != nil {
			return nil, err
		}
		if budget != 0 && e.MaxNumBatchedTokens != budget {
			return nil, fmt.Errorf("%s: max_num_batched_tokens is %d, and %d in %s: learn from engines with steps of one size",
				t.Name, e.MaxNumBatchedTokens, budget, traces[0].Name)
		}
		budget = e.MaxNumBatchedTokens
	}
	return latency.NewFit(latency.FitOptions{Budget: budget}, traces...)
}

// compare judges all predictions together: each has as much weight as it has times.
func (r *Report) compare(o *Options) {
	var real, predicted samples
	runs := make([]samples, o.Runs)
	var pairs []pairOfTimes
	for i := range r.Predict {
		for n, run := range r.Predict[i].runs {
			runs[n] = runs[n].with(run)
		}
		pairs = append(pairs, r.Predict[i].pairs...)
		real, predicted = real.with(r.Predict[i].real), predicted.with(r.Predict[i].predicted)
	}
	r.Accuracy = newAccuracy(pairs, o.Seed)
	r.BandFromMs = o.Band * real.itl.quantile(0.5)
	r.Real, r.Predicted = outcomeOf(real, r.BandFromMs), outcomeOf(predicted, r.BandFromMs)
	r.Predicted.runs = runs
	r.Knobs = outcomeOf(knobSamples(real, o.Seed), r.BandFromMs)
	r.Criteria, r.Pass = o.criteria(&r.Real, &r.Predicted), true
	for _, c := range r.Criteria {
		r.Pass = r.Pass && c.Pass
	}
}

func outcomeOf(s samples, bandFrom float64) Outcome {
	o := Outcome{
		TTFT: s.ttft.distribution(), ITL: s.itl.distribution(), TPOT: s.tpot.distribution(), E2E: s.e2e.distribution(), BandMass: s.itl.above(bandFrom), samples: s,
	}
	if median := s.itl.quantile(0.5); median > 0 {
		o.Tail = s.itl.quantile(0.999) / median
	}
	if len(s.atLeast) > 1 {
		for _, n := range s.atLeast {
			o.TokensPerOutput += float64(n) / float64(s.atLeast[0])
		}
		for _, n := range s.atLeast[1:] {
			o.Accepted = append(o.Accepted, float64(n)/float64(s.atLeast[0]))
		}
	}
	return o
}

// criteria are what a prediction has to meet.
func (o *Options) criteria(real, predicted *Outcome) []Criterion {
	if real.ITL.Count == 0 {
		return []Criterion{
			relative("median TTFT", real.TTFT.P50, predicted.TTFT.P50, o.MedianTolerance),
			relative("median TPOT", real.TPOT.P50, predicted.TPOT.P50, o.MedianTolerance),
		}
	}
	all := []Criterion{
		relative("median TTFT", real.TTFT.P50, predicted.TTFT.P50, o.MedianTolerance),
		relative("median ITL", real.ITL.P50, predicted.ITL.P50, o.MedianTolerance),
		points("band mass", real.BandMass, predicted.BandMass, o.BandTolerance),
	}
	if real.TokensPerOutput > 0 || predicted.TokensPerOutput > 0 {
		tokens := relative("tokens in an output", max(real.TokensPerOutput, 1), max(predicted.TokensPerOutput, 1), o.MedianTolerance)
		tokens.Unit = unitTokens
		all = append(all, tokens)
	}
	return all
}

// relative compares two times. What is 0 in truth can only be predicted as 0.
func relative(name string, real, predicted, limit float64) Criterion {
	off := math.Abs(predicted - real)
	if off > 0 {
		off /= real
	}
	return Criterion{name, real, predicted, off, limit, unitPart, off <= limit}
}

func points(name string, real, predicted, limit float64) Criterion {
	off := 100 * math.Abs(predicted-real)
	return Criterion{name, real, predicted, off, limit, unitPoints, off <= limit}
}

// knobSamples are as many times as in s, drawn by knobs that are set to the mean and the
// deviation of s itself: no prediction, but the most that such knobs can say. A
// deviation larger than they take is the largest that they take.
func knobSamples(s samples, seed uint64) samples {
	const maxDeviation = 0.3 // of the mean
	knobs := latency.Knobs{
		TimeToFirstToken:  milliseconds(s.ttft.mean()),
		InterTokenLatency: milliseconds(s.itl.mean()),
	}
	knobs.TimeToFirstTokenStdDev = min(milliseconds(s.ttft.deviation()), part(knobs.TimeToFirstToken, maxDeviation))
	knobs.InterTokenLatencyStdDev = min(milliseconds(s.itl.deviation()), part(knobs.InterTokenLatency, maxDeviation))
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
	return samples{ttft: sortedTimes(drawn.ttft), itl: sortedTimes(drawn.itl)}
}

func part(d time.Duration, of float64) time.Duration { return time.Duration(float64(d) * of) }

// unseen refuses recordings to learn from that have a record of those to predict, and recordings to
// predict that have a record of each other, whatever their names and in whatever order.
func unseen(fits, predicts []*trace.Trace) error {
	seen := map[[sha256.Size]byte]origin{}
	for _, t := range predicts {
		if s := sharedWith(t, seen); s != nil {
			return fmt.Errorf("%w: predict every recording once", s)
		}
		for i := range t.Records {
			if print, ok := timesPrint(&t.Records[i]); ok {
				seen[print] = origin{t, i}
			}
		}
	}
	for _, t := range fits {
		if s := sharedWith(t, seen); s != nil {
			return fmt.Errorf("%w: never learn from what is predicted, give a recording of another load", s)
		}
	}
	return nil
}

// origin is a record of a recording.
type origin struct {
	trace *trace.Trace
	index int
}

func (o origin) String() string {
	if line := o.trace.Records[o.index].Line; line > 0 {
		return fmt.Sprintf("%s:%d", o.trace.Name, line)
	}
	return fmt.Sprintf("record %d of %s", o.index, o.trace.Name)
}

// sharedWith reports which records of a recording were seen in others, nil if none.
func sharedWith(t *trace.Trace, seen map[[sha256.Size]byte]origin) error {
	shared := 0
	var here, there origin
	for i := range t.Records {
		print, ok := timesPrint(&t.Records[i])
		if !ok {
			continue
		}
		if from, ok := seen[print]; ok {
			if shared == 0 {
				here, there = origin{t, i}, from
			}
			shared++
		}
	}
	if shared == 0 {
		return nil
	}
	return fmt.Errorf("%s has %d records of %s, the first is %s and %s", t.Name, shared, there.trace.Name, here, there)
}

// timesPrint identifies a record by its recorded times, which never come twice. One of a single
// gap or none cannot be distinguished from others.
func timesPrint(r *trace.Record) (print [sha256.Size]byte, ok bool) {
	all := append([]float64{r.TTFTMs}, r.ITLMs...)
	if s := r.ITLSummary; len(all) == 1 && s != nil && s.MeanMs > 0 {
		all = append(all, s.MeanMs, float64(s.Count))
	}
	if len(all) < 3 {
		return print, false
	}
	var b []byte
	for _, ms := range all {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(ms))
	}
	return sha256.Sum256(b), true
}

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
	ttft, itl, tpot, e2e times
	// atLeast[i] is how many outputs after the first of their request have more than i tokens.
	atLeast []int
}

func samplesOf(records []trace.Record) samples {
	var s samples
	for i := range records {
		if r := &records[i]; r.OutputTokens > 0 {
			s.ttft = append(s.ttft, r.TTFTMs)
			s.itl = append(s.itl, r.ITLMs...)
			s.e2e = append(s.e2e, r.EndMs(0))
			if r.OutputTokens > 1 {
				s.tpot = append(s.tpot, (r.EndMs(0)-r.TTFTMs)/float64(r.OutputTokens-1))
			}
			if sizes := r.Chunks(); len(sizes) > 1 {
				s.count(sizes[1:])
			}
		}
	}
	return samples{sortedTimes(s.ttft), sortedTimes(s.itl), sortedTimes(s.tpot), sortedTimes(s.e2e), s.atLeast}
}

// maxSize bounds the sizes of outputs that are counted one by one.
const maxSize = 1024

func (s *samples) count(sizes []int) {
	for _, size := range sizes {
		for i := range min(size, maxSize) {
			if i == len(s.atLeast) {
				s.atLeast = append(s.atLeast, 0)
			}
			s.atLeast[i]++
		}
	}
}

func (s samples) with(other samples) samples {
	join := func(a, b times) times { return sortedTimes(slices.Concat(a, b)) }
	both := samples{ttft: join(s.ttft, other.ttft), itl: join(s.itl, other.itl), tpot: join(s.tpot, other.tpot), e2e: join(s.e2e, other.e2e)}
	for i := range max(len(s.atLeast), len(other.atLeast)) {
		both.atLeast = append(both.atLeast, 0)
		for _, of := range []samples{s, other} {
			if i < len(of.atLeast) {
				both.atLeast[i] += of.atLeast[i]
			}
		}
	}
	return both
}

func (o *Override) apply(e *Engine) {
	e.MaxNumSeqs = cmp.Or(o.MaxNumSeqs, e.MaxNumSeqs)
	e.MaxNumBatchedTokens = cmp.Or(o.MaxNumBatchedTokens, e.MaxNumBatchedTokens)
	e.BlockSize = cmp.Or(o.BlockSize, e.BlockSize)
	e.Blocks = cmp.Or(o.Blocks, e.Blocks)
	if o.Caching != nil {
		e.Caching = *o.Caching
	}
	if o.Async != nil {
		e.Async = *o.Async
	}
}

func (w *Workload) recorded() []trace.Record {
	records := make([]trace.Record, len(w.asks))
	for i := range w.asks {
		records[i] = *w.asks[i].record
	}
	return records
}
