package inspect

import (
	"cmp"
	"errors"
	"fmt"
	"math"

	"github.com/vllm-vcr/conformance/internal/latency"
	"github.com/vllm-vcr/conformance/internal/trace"
)

// Options of [Calibrate].
type Options struct {
	// Fit are the recordings that are learned from, Predict the one that is predicted.
	Fit     []*trace.Trace
	Predict *trace.Trace
	// Engine, if not nil, is the engine of Predict in place of what its meta says.
	Engine *Engine
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
	Fit      []Source `json:"fit"`
	Predict  Source   `json:"predict"`
	Requests int      `json:"requests"`
	// Turns of the requests waited for the answer to an earlier one.
	Turns int `json:"turns"`
	// Clients is how many began a conversation whenever they had ended one, 0 if conversations came at times of their own.
	Clients int `json:"clients,omitempty"`
	// Runs is how often the requests were answered.
	Runs int    `json:"runs"`
	Seed uint64 `json:"seed"`
	// BandFromMs is where the slow band of gaps begins, in the recording as in what is
	// compared with it.
	BandFromMs float64 `json:"band_from_ms"`
	// Real is the recording, Predicted what the model makes of its requests, and Knobs
	// what a mean and a deviation can be at their best: set to those of Real.
	Real      Outcome     `json:"real"`
	Predicted Outcome     `json:"predicted"`
	Knobs     Outcome     `json:"knobs"`
	Criteria  []Criterion `json:"criteria"`
	// Pass is whether all criteria are met.
	Pass bool `json:"pass"`
	// Notes say what was left out of the recordings that were learned from.
	Notes []string `json:"notes,omitempty"`
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

// Calibrate learns a model from some recordings, predicts another with it, and compares.
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
	w, err := WorkloadOf(o.Predict)
	if err != nil {
		return nil, err
	}
	engine, err := EngineOf(o.Predict)
	if o.Engine != nil {
		engine, err = *o.Engine, nil
	}
	if err != nil {
		return nil, err
	}
	var predicted []trace.Record
	for i := range o.Runs {
		run, err := Simulate(w, engine, fit, o.Seed+uint64(i))
		if err != nil {
			return nil, err
		}
		predicted = append(predicted, run...)
	}
	return o.compare(w, predicted, fit.Notes()), nil
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

func (o *Options) compare(w *Workload, predicted []trace.Record, notes []string) *Report {
	asked := make([]trace.Record, 0, len(w.asks))
	for i := range w.asks {
		asked = append(asked, *w.asks[i].record)
	}
	truth := samplesOf(asked)
	r := &Report{
		Predict: Source{o.Predict.Name, len(o.Predict.Records)}, Requests: w.Len(), Turns: w.Turns(), Clients: w.clients,
		Runs: o.Runs, Seed: o.Seed, BandFromMs: o.Band * truth.itl.quantile(0.5), Notes: notes,
	}
	for _, t := range o.Fit {
		r.Fit = append(r.Fit, Source{t.Name, len(t.Records)})
	}
	r.Real = r.outcome(truth)
	r.Predicted = r.outcome(samplesOf(predicted))
	r.Knobs = r.outcome(knobSamples(truth, o.Seed))
	r.judge(o)
	return r
}

func (r *Report) outcome(s samples) Outcome {
	o := Outcome{
		TTFT: s.ttft.distribution(), ITL: s.itl.distribution(), BandMass: s.itl.above(r.BandFromMs), samples: s,
	}
	if median := s.itl.quantile(0.5); median > 0 {
		o.Tail = s.itl.quantile(0.999) / median
	}
	return o
}

func (r *Report) judge(o *Options) {
	real, predicted := &r.Real, &r.Predicted
	r.Criteria = []Criterion{
		relative("median TTFT", real.TTFT.P50, predicted.TTFT.P50, o.MedianTolerance),
		relative("median ITL", real.ITL.P50, predicted.ITL.P50, o.MedianTolerance),
		points("band mass", real.BandMass, predicted.BandMass, o.BandTolerance),
	}
	r.Pass = true
	for _, c := range r.Criteria {
		r.Pass = r.Pass && c.Pass
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
