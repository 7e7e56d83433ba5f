package inspect

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/trace"
)

// steady is a recording of n requests, one after the other, whose steps took so many ms.
func steady(name string, n int, ms float64) *trace.Trace {
	t := &trace.Trace{Name: name}
	at := 0.0
	for i := range n {
		gaps := make([]float64, 20)
		for j := range gaps {
			gaps[j] = ms + float64((7*i+j)%5)/100
		}
		r := record(at, 100+i, 2*ms+float64(i)/1000, gaps...)
		t.Records = append(t.Records, r)
		at = r.EndMs(*r.ArrivalMs) + 1000
	}
	return t
}

// Recordings are judged together: one from a faster machine and one from a slower may make up for each other, and how
// far each is off is told beside it, as if it were the only one.
func TestTogether(t *testing.T) {
	fit := []*trace.Trace{steady("fit.jsonl", 40, 10)}
	slow, fast := steady("slow.jsonl", 30, 11.8), steady("fast.jsonl", 30, 8.4)
	few := steady("few.jsonl", 3, 8.4)
	same := steady("same.jsonl", 30, 10.3)
	tests := []struct {
		name    string
		predict []*trace.Trace
		failed  []string
		alone   []string
	}{
		{"one", []*trace.Trace{slow}, []string{"median TTFT", "median ITL"}, []string{"slow.jsonl median TTFT -15.2 %", "slow.jsonl median ITL -15.2 %"}},
		{"most are slow", []*trace.Trace{few, slow}, []string{"median TTFT", "median ITL"}, []string{
			"few.jsonl median TTFT +19.2 %", "few.jsonl median ITL +19.0 %", "slow.jsonl median TTFT -15.2 %", "slow.jsonl median ITL -15.2 %",
		}},
		{"around the truth", []*trace.Trace{slow, same, fast}, nil, []string{
			"slow.jsonl median TTFT -15.2 %", "slow.jsonl median ITL -15.2 %", "fast.jsonl median TTFT +19.1 %", "fast.jsonl median ITL +19.0 %",
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := Calibrate(Options{Fit: fit, Predict: test.predict})
			require.NoError(t, err)
			if diff := cmp.Diff(test.failed, failed(got.Criteria)); diff != "" || got.Pass != (test.failed == nil) {
				t.Errorf("pass is %v; failed (-want +got):\n%s", got.Pass, diff)
			}
			var alone []string
			count := 0
			for _, p := range got.Predict {
				count += p.Requests
				for _, c := range p.Criteria {
					if !c.Pass {
						alone = append(alone, p.Name+" "+c.Name+" "+c.signed())
					}
				}
			}
			require.NoDiff(t, cmp.Diff(test.alone, alone), "fail alone (-want +got)")
			if want := DefaultBand * got.Real.ITL.P50; got.BandFromMs != want {
				t.Errorf("the band begins at %v ms, want %v", got.BandFromMs, want)
			}
			if got.Real.TTFT.Count != count || got.Predicted.TTFT.Count != count*DefaultRuns {
				t.Errorf("%d real and %d predicted first tokens of %d requests", got.Real.TTFT.Count, got.Predicted.TTFT.Count, count)
			}
		})
	}
}

// A recording beside others is answered by its own engine, as if it were alone.
func TestEachOnItsOwnEngine(t *testing.T) {
	fit := []*trace.Trace{steady("fit.jsonl", 40, 10)}
	small := "max_num_seqs=1"
	burst := func(name string, ms float64) *trace.Trace {
		r := steady(name, 30, ms)
		for i := range r.Records {
			*r.Records[i].ArrivalMs = float64(i)
		}
		return r
	}
	many, one := burst("many.jsonl", 10.2), burst("one.jsonl", 10.1)
	one.Meta.EngineConfig = &small
	both := []*trace.Trace{many, one}
	together, err := Calibrate(Options{Fit: fit, Predict: both})
	require.NoError(t, err)
	for i, predict := range both {
		alone, err := Calibrate(Options{Fit: fit, Predict: []*trace.Trace{predict}})
		require.NoError(t, err)
		require.NoDiff(t, cmp.Diff(alone.Criteria, together.Predict[i].Criteria), "%s (-alone +together)", predict.Name)
	}
	if many, one := together.Predict[0].Criteria[0].Predicted, together.Predict[1].Criteria[0].Predicted; one < 10*many {
		t.Errorf("first tokens took %v ms one after the other, and %v ms at once", one, many)
	}
	forced, err := Calibrate(Options{Fit: fit, Predict: both, Engine: Override{MaxNumSeqs: 1}})
	require.NoError(t, err)
	if all, one := forced.Predict[0].Criteria[0].Predicted, forced.Predict[1].Criteria[0].Predicted; all != one {
		t.Errorf("with one engine for all, first tokens took %v and %v ms", all, one)
	}
}

// A trace that does not say how many tokens a step has is learned from with the number that is given, as it is predicted with.
func TestLearningTakesWhatTracesDoNotSay(t *testing.T) {
	config := "max_num_batched_tokens=512"
	says := steady("says.jsonl", 40, 10)
	says.Meta.EngineConfig = &config
	fit := []*trace.Trace{says, steady("silent.jsonl", 40, 10)}
	if _, err := learn(fit, Override{}); err == nil || !strings.Contains(err.Error(), "max_num_batched_tokens is 8192, and 512 in says.jsonl") {
		t.Errorf("steps of two sizes: %v", err)
	}
	_, err := Calibrate(Options{Fit: fit, Predict: []*trace.Trace{steady("other.jsonl", 41, 11)}, Engine: Override{MaxNumBatchedTokens: 512}})
	require.NoError(t, err)
	_, err = learn(fit[:1], Override{MaxNumBatchedTokens: 4096}) // it said so itself
	require.NoError(t, err)
}

// Recordings that contradict each other are too noisy for a limit below what they contradict each other by, and the report says so.
func TestNoiseOfRecordings(t *testing.T) {
	slow := []*trace.Trace{steady("a.jsonl", 40, 10), steady("b.jsonl", 40, 10), steady("c.jsonl", 40, 16)}
	for _, test := range []struct {
		name  string
		fit   []*trace.Trace
		limit float64
		noisy bool
	}{
		{"the same", slow[:2], 0.15, false},
		{"one is slower", slow, 0.15, true},
		{"one is slower, and may be", slow, 2, false},
	} {
		r, err := Calibrate(Options{Fit: test.fit, Predict: []*trace.Trace{steady("other.jsonl", 41, 10.5)}, MedianTolerance: test.limit})
		require.NoError(t, err)
		var text bytes.Buffer
		require.NoError(t, r.Text(&text, strings.TrimSpace))
		if said := strings.Contains(text.String(), "too noisy for a limit of"); said != test.noisy || r.Confidence.TooNoisy != test.noisy {
			t.Errorf("%s: %+v, told: %v", test.name, r.Confidence, said)
		}
	}
}

// stalled makes every tenth gap a slow one.
func stalled(t *trace.Trace) *trace.Trace {
	for i := range t.Records {
		t.Records[i].ITLMs[5] *= 5
		t.Records[i].ITLMs[15] *= 5
	}
	return t
}

func TestNeverLearnFromWhatIsPredicted(t *testing.T) {
	p := steady("p.jsonl", 30, 10)
	other := func(change func(*trace.Trace)) []*trace.Trace {
		copied := steady("elsewhere/other.jsonl", 30, 10)
		change(copied)
		return []*trace.Trace{steady("fit.jsonl", 40, 11), copied}
	}
	tests := []struct {
		name string
		fit  []*trace.Trace
		want string
	}{
		{"itself", []*trace.Trace{p}, "p.jsonl has 30 records of p.jsonl"},
		{"by another name", other(func(*trace.Trace) {}), "elsewhere/other.jsonl has 30 records of p.jsonl, the first is record 0 of elsewhere/other.jsonl and record 0 of p.jsonl: never learn"},
		{"in another order", other(func(t *trace.Trace) { slices.Reverse(t.Records) }), "has 30 records"},
		{"a part", other(func(t *trace.Trace) { t.Records = t.Records[7:8] }), "has 1 records of p.jsonl, the first is record 0 of elsewhere/other.jsonl and record 7 of p.jsonl"},
		{"at another time", other(func(t *trace.Trace) {
			for i := range t.Records {
				*t.Records[i].ArrivalMs += 1e6
				t.Records[i].Line, t.Records[i].OutputTokenIDs = i+2, nil
			}
		}), "the first is elsewhere/other.jsonl:2 and record 0"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if _, err := Calibrate(Options{Fit: test.fit, Predict: []*trace.Trace{p}}); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want …%s…", err, test.want)
			}
		})
	}
}

func TestCalibrateErrors(t *testing.T) {
	fit, p := steady("fit.jsonl", 40, 11), steady("p.jsonl", 30, 10)
	config := "max_num_batched_tokens=512"
	smaller := steady("small.jsonl", 20, 9)
	smaller.Meta.EngineConfig = &config
	tests := []struct {
		name   string
		change func(*Options)
		want   string
	}{
		{"nothing to learn from", func(o *Options) { o.Fit = nil }, "no recording to learn from"},
		{"no recording to predict", func(o *Options) { o.Predict = nil }, "no recording to predict"},
		{"predicted twice", func(o *Options) { o.Predict = append(o.Predict, steady("q.jsonl", 1, 10)) }, "q.jsonl has 1 records of p.jsonl, the first is record 0 of q.jsonl and record 0 of p.jsonl: predict every recording once"},
		{"learned from the second that is predicted", func(o *Options) { o.Predict = append([]*trace.Trace{steady("q.jsonl", 9, 12)}, o.Fit...) }, "fit.jsonl has 40 records of fit.jsonl"},
		{"one of two that cannot be predicted", func(o *Options) { o.Predict = append(o.Predict, &trace.Trace{Name: "e.jsonl"}) }, "e.jsonl: no record has arrival_ms"},
		{"runs below 0", func(o *Options) { o.Runs = -1 }, "runs is -1: want 1 to 1000"},
		{"no band", func(o *Options) { o.Band = 1 }, "band is 1: want a multiple of the median gap above 1"},
		{"a band of no number", func(o *Options) { o.Band = math.NaN() }, "band is NaN"},
		{"a tolerance below 0", func(o *Options) { o.MedianTolerance = -1 }, "median-tolerance is -1: want a number above 0"},
		{"an endless tolerance", func(o *Options) { o.BandTolerance = math.Inf(1) }, "band-tolerance is +Inf"},
		{"nothing to predict", func(o *Options) { o.Predict = []*trace.Trace{{Name: "e.jsonl"}} }, "e.jsonl: no record has arrival_ms"},
		{"steps of two sizes", func(o *Options) { o.Fit = append(o.Fit, smaller) }, "small.jsonl: max_num_batched_tokens is 512, and 8192 in fit.jsonl"},
		{"an engine that cannot be", func(o *Options) { o.Engine.MaxNumSeqs = -1 }, "max-num-seqs is -1"},
		{"nothing in it", func(o *Options) { o.Fit = []*trace.Trace{{Name: "e.jsonl"}} }, "e.jsonl: no records"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			o := Options{Fit: []*trace.Trace{fit}, Predict: []*trace.Trace{p}}
			test.change(&o)
			if _, err := Calibrate(o); err == nil || !strings.HasPrefix(err.Error(), test.want) {
				t.Errorf("got %v, want %s…", err, test.want)
			}
		})
	}
}

// The same seed says the same, to the byte.
func TestCalibrateRepeats(t *testing.T) {
	var predicted []Outcome
	said := func(seed uint64) string {
		r, err := Calibrate(Options{Fit: []*trace.Trace{steady("fit.jsonl", 40, 10)}, Predict: []*trace.Trace{steady("p.jsonl", 30, 10.3)}, Seed: seed})
		require.NoError(t, err)
		predicted = append(predicted, r.Predicted)
		var b bytes.Buffer
		require.NoError(t, r.JSON(&b))
		return b.String()
	}
	first := said(1)
	require.Equal(t, first, said(1), "the same seed said something else")
	require.True(t, first != said(2) && predicted[0].ITL != predicted[2].ITL, "another seed said the same")
	var doc map[string]any
	require.NoError(t, json.Unmarshal([]byte(first), &doc))
	for _, key := range []string{"fit", "predict", "real", "predicted", "knobs", "criteria", "pass", "band_from_ms"} {
		if _, ok := doc[key]; !ok {
			t.Errorf("the report has no key %s", key)
		}
	}
}

// Knobs have the mean of what they are set to, and no tail.
func TestKnobs(t *testing.T) {
	var s samples
	for i := range 1000 {
		s.itl = append(s.itl, 10)
		if i%10 == 0 {
			s.itl = append(s.itl, 100)
		}
		s.ttft = append(s.ttft, 50)
	}
	s.itl = sortedTimes(s.itl)
	got := knobSamples(s, 1)
	if mean, want := got.itl.mean(), s.itl.mean(); math.Abs(mean-want) > 0.05*want {
		t.Errorf("mean %v, want about %v", mean, want)
	}
	if most := got.itl[len(got.itl)-1]; most > 1.701*s.itl.mean() {
		t.Errorf("the longest is %v, of a mean of %v", most, s.itl.mean())
	}
	if got.ttft[0] != 50 || got.ttft[999] != 50 {
		t.Errorf("times that are all 50 became %v to %v", got.ttft[0], got.ttft[999])
	}
}

// TestCalibrateSpeculation: how many tokens a step says is learned and predicted, and judged as times are.
func TestCalibrateSpeculation(t *testing.T) {
	load := func(name string, from float64, sizes ...uint32) *trace.Trace {
		var all []trace.Record
		for i := range 20 {
			r := record(from+1000*float64(i), 8, 20+float64(i)/100, 10, 10.5, 10, 10.25, 10, 10, 10.125, 10)
			for k := range r.ITLMs {
				r.ITLTokens = append(r.ITLTokens, sizes[k%len(sizes)])
				r.OutputTokens += int(r.ITLTokens[k]) - 1
				r.ITLMs[k] += from / 1000
			}
			all = append(all, r)
		}
		tr := recorded(all...)
		tr.Name = name
		return tr
	}
	one, two, other := load("one", 0, 1), load("two", 1, 1, 3), load("other", 2, 1, 3)
	_, err := Calibrate(Options{Fit: []*trace.Trace{one}, Predict: []*trace.Trace{two}})
	if err == nil || !strings.HasPrefix(err.Error(), "two: several tokens in one output, but the recordings to learn from have one token in each: ") {
		t.Errorf("learned from one token in an output: %v", err)
	}
	for _, test := range []struct {
		fit, predict *trace.Trace
		tokens       float64 // of an output, as predicted
		pass         bool
	}{{other, two, 2, true}, {other, one, 2, false}} {
		r, err := Calibrate(Options{Fit: []*trace.Trace{test.fit}, Predict: []*trace.Trace{test.predict}, MedianTolerance: 0.15})
		require.NoError(t, err)
		last := r.Criteria[len(r.Criteria)-1]
		if last.Name != "tokens in an output" || last.Pass != test.pass || math.Abs(last.Predicted-test.tokens) > 0.3 {
			t.Errorf("%s by %s: %v, want about %v", test.predict.Name, test.fit.Name, last, test.tokens)
		}
	}
	r, err := Calibrate(Options{Fit: []*trace.Trace{two}, Predict: []*trace.Trace{other}})
	require.NoError(t, err)
	require.NoDiff(t, cmp.Diff([]float64{0.5, 0.5}, r.Real.Accepted), "accepted by position (-want +got)")
}
