package inspect

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/vllm-vcr/conformance/internal/engine/latency"
	"github.com/vllm-vcr/conformance/trace"
)

// WhatIf is a change of the engine or of the load of a recording, whose effect is predicted.
type WhatIf struct {
	// Name is what it was parsed from.
	Name   string
	Engine Override
	// Rate is by how much faster requests come; 0 is 1.
	Rate float64
}

// Keys of [ParseWhatIf]: those of engine_config, and the rate of arrivals.
const (
	keySeqs    = "max_num_seqs"
	keyBudget  = "max_num_batched_tokens"
	keyBlock   = "block_size"
	keyBlocks  = "num_gpu_blocks_override"
	keyCaching = "enable_prefix_caching"
	keyRate    = "rate"
)

// ParseWhatIf reads a list such as "max_num_seqs=8,enable_prefix_caching=false,rate=2".
func ParseWhatIf(text string) (WhatIf, error) {
	w := WhatIf{Name: text}
	seen := map[string]bool{}
	for pair := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(strings.TrimSpace(pair), "=")
		if !ok || value == "" {
			return w, fmt.Errorf("%q: want KEY=VALUE, such as max_num_seqs=8", pair)
		}
		if seen[key] {
			return w, fmt.Errorf("%s is given twice", key)
		}
		seen[key] = true
		if err := w.set(key, value); err != nil {
			return w, err
		}
	}
	return w, nil
}

func (w *WhatIf) set(key, value string) (err error) {
	counts := map[string]*int{keySeqs: &w.Engine.MaxNumSeqs, keyBudget: &w.Engine.MaxNumBatchedTokens, keyBlock: &w.Engine.BlockSize, keyBlocks: &w.Engine.Blocks}
	switch at := counts[key]; {
	case at != nil:
		*at, err = countOf(key, value)
	case key == keyCaching:
		w.Engine.Caching = new(bool)
		*w.Engine.Caching, err = switchOf(key, value)
	case key == keyRate:
		if w.Rate, err = strconv.ParseFloat(value, 64); err != nil || !(w.Rate > 0) || math.IsInf(w.Rate, 0) {
			return fmt.Errorf("%s is %q: want a factor above 0, such as 2", key, value)
		}
	default:
		return fmt.Errorf("%q: want one of %s, %s, %s, %s, %s and %s", key, keySeqs, keyBudget, keyBlock, keyBlocks, keyCaching, keyRate)
	}
	return err
}

// Scenario is what is predicted for a [WhatIf].
type Scenario struct {
	Name      string  `json:"name"`
	Predicted Outcome `json:"predicted"`
}

// scenarios predicts all of WhatIf for all recordings together.
func (o *Options) scenarios(fit *latency.Fit, bandFrom float64) ([]Scenario, error) {
	var all []Scenario
	for _, what := range o.WhatIf {
		var predicted samples
		for _, t := range o.Predict {
			w, engine, err := o.subject(fit, t)
			if err != nil {
				return nil, err
			}
			what.Engine.apply(&engine)
			for i := range w.asks {
				// Requests that wait for no answer come at earlier times, the others after shorter pauses.
				w.asks[i].at /= cmp.Or(what.Rate, 1)
			}
			records, err := o.answers(fit, w, engine)
			if err != nil {
				return nil, fmt.Errorf("what if %s: %w", what.Name, err)
			}
			predicted = predicted.with(samplesOf(records))
		}
		all = append(all, Scenario{what.Name, outcomeOf(predicted, bandFrom)})
	}
	return all, nil
}

// subject is what a recording asked, and of which engine.
func (o *Options) subject(fit *latency.Fit, t *trace.Trace) (*Workload, Engine, error) {
	w, err := WorkloadOf(t)
	if err != nil {
		return nil, Engine{}, err
	}
	if w.several() && fit.Drafts() == 0 && fit.Block() == 0 {
		return nil, Engine{}, fmt.Errorf("%s: several tokens in one output, but the recordings to learn from have one token in each: "+
			"learn from an engine with the same speculative decoding", t.Name)
	}
	engine, err := EngineOf(t, Override{})
	o.Engine.apply(&engine)
	return w, engine, err
}

// answers lets the requests be answered as often as is wanted, each time with other draws.
func (o *Options) answers(fit *latency.Fit, w *Workload, engine Engine) (records []trace.Record, err error) {
	for i := range o.Runs {
		model := *fit // of an engine that has not worked yet
		var run []trace.Record
		if o.Server != nil {
			run, err = o.Server(w, engine, &model)
		} else {
			run, err = Simulate(w, engine, &model, o.Seed+uint64(i))
		}
		if err != nil {
			return nil, err
		}
		records = append(records, run...)
	}
	return records, nil
}

// WhatIfText writes what is predicted for each [WhatIf], and what is predicted without it; nothing if there is none. Names are
// written by clean.
func (r *Report) WhatIfText(w io.Writer, clean func(string) string) error {
	if len(r.WhatIf) == 0 {
		return nil
	}
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, "\nwhat if the engine or the load of the prediction were another:\n")
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "TTFT p50 ms\tp90\tp99\tITL p50 ms\tp90\tp99\tslow band\t\n")
	row := func(name string, o *Outcome) {
		fmt.Fprintf(t, "%.1f\t%.1f\t%.1f\t%.2f\t%.2f\t%.2f\t%.2f %%\t  %s\n", o.TTFT.P50, o.TTFT.P90, o.TTFT.P99, o.ITL.P50, o.ITL.P90, o.ITL.P99, 100*o.BandMass, name)
	}
	row("as it is", &r.Predicted)
	for i := range r.WhatIf {
		row(clean(r.WhatIf[i].Name), &r.WhatIf[i].Predicted)
	}
	_ = t.Flush() // out keeps the error
	return out.Flush()
}

// WriteSamples writes all times, sorted, as one JSON object: "real", "predicted", "best_knobs" and, for each [WhatIf], its name
// below "what_if". Each has "ttft_ms" and "itl_ms".
func (r *Report) WriteSamples(w io.Writer) error {
	type times struct {
		TTFT []float64 `json:"ttft_ms"`
		ITL  []float64 `json:"itl_ms"`
	}
	of := func(o *Outcome) times { return times{o.samples.ttft, o.samples.itl} }
	all := struct {
		Real      times            `json:"real"`
		Predicted times            `json:"predicted"`
		Knobs     times            `json:"best_knobs"`
		WhatIf    map[string]times `json:"what_if,omitempty"`
	}{of(&r.Real), of(&r.Predicted), of(&r.Knobs), map[string]times{}}
	for i := range r.WhatIf {
		all.WhatIf[r.WhatIf[i].Name] = of(&r.WhatIf[i].Predicted)
	}
	return json.NewEncoder(w).Encode(all)
}
