package inspect

import (
	"cmp"
	"errors"
	"fmt"
	"math"

	"github.com/vllm-vcr/conformance/internal/engine/latency"
	"github.com/vllm-vcr/conformance/trace"
)

// Options of [Calibrate].
type Options struct {
	// Fit are the recordings that are learned from, Predict those that are predicted: each on
	// an engine of its own, and all of them are judged together.
	Fit     []*trace.Trace
	Predict []*trace.Trace
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
}

// Defaults of [Options].
const (
	DefaultRuns            = 10
	DefaultBand            = 2.0
	DefaultMedianTolerance = 0.10
	DefaultBandTolerance   = 2.0
)

const mostRuns = 1000

func (o Options) withDefaults() Options {
	o.Runs = cmp.Or(o.Runs, DefaultRuns)
	o.Band = cmp.Or(o.Band, DefaultBand)
	o.MedianTolerance = cmp.Or(o.MedianTolerance, DefaultMedianTolerance)
	o.BandTolerance = cmp.Or(o.BandTolerance, DefaultBandTolerance)
	return o
}

func (o *Options) check() error {
	if len(o.Fit) == 0 {
		return errors.New("no recording to learn from")
	}
	if len(o.Predict) == 0 {
		return errors.New("no recording to predict")
	}
	if o.Runs < 1 || o.Runs > mostRuns {
		return fmt.Errorf("runs is %d: want 1 to %d", o.Runs, mostRuns)
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
	return unseen(o.Fit, o.Predict)
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
	// Pass is whether all criteria are met.
	Pass bool `json:"pass"`
	// Notes say what was left out of the recordings that were learned from.
	Notes []string `json:"notes,omitempty"`
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
	// BandMass is the part of the gaps that are in the slow band, 0 to 1, Tail the ratio
	// of the 99.9th percentile of gaps to the median.
	BandMass float64 `json:"band_mass"`
	Tail     float64 `json:"tail"`

	samples samples
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
)

// Calibrate learns a model from some recordings, predicts others with it, and compares.
// It refuses to learn from what it predicts.
func Calibrate(o Options) (*Report, error) {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return nil, err
	}
	fit, err := learn(o.Fit)
	if err != nil {
		return nil, err
	}
	r := &Report{Runs: o.Runs, Seed: o.Seed, Notes: fit.Notes()}
	for _, t := range o.Fit {
		r.Fit = append(r.Fit, Source{t.Name, len(t.Records)})
	}
	for _, t := range o.Predict {
		p, err := o.predict(fit, t)
		if err != nil {
			return nil, err
		}
		r.Predict = append(r.Predict, *p)
	}
	r.compare(&o)
	return r, nil
}

// predict answers the requests of a recording, and compares with what was recorded.
func (o *Options) predict(fit *latency.Fit, t *trace.Trace) (*Prediction, error) {
	w, err := WorkloadOf(t)
	if err != nil {
		return nil, err
	}
	engine, err := EngineOf(t)
	if err != nil {
		return nil, err
	}
	o.Engine.apply(&engine)
	var records []trace.Record
	for i := range o.Runs {
		model := *fit // of an engine that has not worked yet
		run, err := Simulate(w, engine, &model, o.Seed+uint64(i))
		if err != nil {
			return nil, err
		}
		records = append(records, run...)
	}
	p := &Prediction{
		Source: Source{t.Name, len(t.Records)}, Requests: w.Len(), Turns: w.Turns(), Clients: w.clients,
		real: samplesOf(w.recorded()), predicted: samplesOf(records),
	}
	p.BandFromMs = o.Band * p.real.itl.quantile(0.5)
	real, predicted := outcomeOf(p.real, p.BandFromMs), outcomeOf(p.predicted, p.BandFromMs)
	p.Criteria = o.criteria(&real, &predicted)
	return p, nil
}

// learn makes the model. All recordings must be of engines with steps of the same size.
func learn(traces []*trace.Trace) (*latency.Fit, error) {
	budget := 0
	for _, t := range traces {
		e, err := EngineOf(t)
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
	for i := range r.Predict {
		real, predicted = real.with(r.Predict[i].real), predicted.with(r.Predict[i].predicted)
	}
	r.BandFromMs = o.Band * real.itl.quantile(0.5)
	r.Real, r.Predicted = outcomeOf(real, r.BandFromMs), outcomeOf(predicted, r.BandFromMs)
	r.Knobs = outcomeOf(knobSamples(real, o.Seed), r.BandFromMs)
	r.Criteria, r.Pass = o.criteria(&r.Real, &r.Predicted), true
	for _, c := range r.Criteria {
		r.Pass = r.Pass && c.Pass
	}
}

func outcomeOf(s samples, bandFrom float64) Outcome {
	o := Outcome{
		TTFT: s.ttft.distribution(), ITL: s.itl.distribution(), BandMass: s.itl.above(bandFrom), samples: s,
	}
	if median := s.itl.quantile(0.5); median > 0 {
		o.Tail = s.itl.quantile(0.999) / median
	}
	return o
}

// criteria are what a prediction has to meet.
func (o *Options) criteria(real, predicted *Outcome) []Criterion {
	return []Criterion{
		relative("median TTFT", real.TTFT.P50, predicted.TTFT.P50, o.MedianTolerance),
		relative("median ITL", real.ITL.P50, predicted.ITL.P50, o.MedianTolerance),
		points("band mass", real.BandMass, predicted.BandMass, o.BandTolerance),
	}
}

// relative compares two times. What is 0 in truth can only be predicted as 0.
func relative(name string, real, predicted, limit float64) Criterion {
	off := math.Abs(predicted - real)
	if off > 0 {
		off /= real
	}
	return Criterion{name, real, predicted, off, limit, unitPart, off <= limit}
}

// points compares two parts of a whole.
func points(name string, real, predicted, limit float64) Criterion {
	off := 100 * math.Abs(predicted-real)
	return Criterion{name, real, predicted, off, limit, unitPoints, off <= limit}
}
