package inspect

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

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
	// Replicas is how many engines share the load, 0 for one, and Router who gets a request.
	Replicas int
	Router   Router
}

// Keys of [ParseWhatIf]: those of engine_config, the rate of arrivals, and those of several engines.
const (
	keySeqs     = "max_num_seqs"
	keyBudget   = "max_num_batched_tokens"
	keyBlock    = "block_size"
	keyBlocks   = "num_gpu_blocks_override"
	keyCaching  = "enable_prefix_caching"
	keyAsync    = "async_scheduling"
	keyRate     = "rate"
	keyReplicas = "replicas"
	keyRouter   = "router"
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
	counts := map[string]*int{keySeqs: &w.Engine.MaxNumSeqs, keyBudget: &w.Engine.MaxNumBatchedTokens, keyBlock: &w.Engine.BlockSize, keyBlocks: &w.Engine.Blocks, keyReplicas: &w.Replicas}
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
	case key == keyRouter:
		if w.Router = Router(value); !slices.Contains(Routers, w.Router) {
			return fmt.Errorf("%s is %q: want one of %v", key, value, Routers)
		}
	default:
		return fmt.Errorf("%q: want one of %s", key, strings.Join([]string{keySeqs, keyBudget, keyBlock, keyBlocks, keyCaching, keyRate, keyReplicas, keyRouter}, ", "))
	}
	if w.Replicas > maxReplicas {
		return fmt.Errorf("%s is %d: want at most %d", keyReplicas, w.Replicas, maxReplicas)
	}
	return err
}

// Scenario is what is predicted for a [WhatIf].
type Scenario struct {
	Name      string  `json:"name"`
	Predicted Outcome `json:"predicted"`
	// Fast and Slow are predicted with constants that are as likely as the learned ones, at the ends of an interval of 90 %. They are
	// nil unless results of requests were learned from.
	Fast *Outcome `json:"fast,omitempty"`
	Slow *Outcome `json:"slow,omitempty"`
	// Needs is how many engines meet all of [Options].Targets, nil without any.
	Needs *Needs `json:"needs,omitempty"`
}

// Needs is how many engines are needed, and how many if they are as fast or as slow as the constants may be; 0 if maxReplicas are too few.
type Needs struct {
	Replicas int `json:"replicas"`
	Fast     int `json:"fast"`
	Slow     int `json:"slow"`
}

const maxReplicas = 256

const unchanged = "as it is"

// scenarios predicts all of WhatIf for all recordings together, and first what is asked of the load as it is, if there are targets.
func (o *Options) scenarios(model latency.Learned, r *Report) ([]Scenario, error) {
	var all []Scenario
	changes := o.WhatIf
	if len(o.Targets) > 0 || len(changes) > 0 && o.learning != nil { // all of the load, not only what is judged
		changes = append([]WhatIf{{Name: unchanged}}, changes...)
	}
	for _, what := range changes {
		wrap := func(err error) error { return fmt.Errorf("what if %s: %w", what.Name, err) }
		predicted, err := o.scenario(model, what)
		if err != nil {
			return nil, wrap(err)
		}
		s := Scenario{Name: what.Name, Predicted: outcomeOf(predicted, r.BandFromMs)}
		ends := []latency.Learned{model, model}
		if o.learning != nil {
			ends = o.learning.ends()
			for i, to := range []**Outcome{&s.Fast, &s.Slow} {
				if predicted, err = o.scenario(ends[i], what); err != nil {
					return nil, wrap(err)
				}
				outcome := outcomeOf(predicted, r.BandFromMs)
				*to = &outcome
			}
		}
		if len(o.Targets) > 0 {
			s.Needs = &Needs{}
			for i, to := range []*int{&s.Needs.Replicas, &s.Needs.Fast, &s.Needs.Slow} {
				if *to, err = o.needed([]latency.Learned{model, ends[0], ends[1]}[i], what); err != nil {
					return nil, wrap(err)
				}
			}
		}
		all = append(all, s)
	}
	return all, nil
}

// scenario is what a load would be answered like.
func (o *Options) scenario(model latency.Learned, what WhatIf) (predicted samples, err error) {
	for _, t := range o.Predict {
		w, engine, err := o.subject(model, t)
		if err != nil {
			return predicted, err
		}
		what.Engine.apply(&engine)
		for i := range w.asks {
			// Requests that wait for no answer come at earlier times, the others after shorter pauses.
			w.asks[i].at /= cmp.Or(what.Rate, 1)
		}
		var records []trace.Record
		if what.Replicas > 1 {
			records, err = fleet(w, engine, model, what, o.Seed)
		} else {
			var runs [][]trace.Record
			runs, err = o.answers(model, w, engine)
			records = slices.Concat(runs...)
		}
		if err != nil {
			return predicted, err
		}
		predicted = predicted.with(samplesOf(records))
	}
	return predicted, nil
}

// needed is the least number of engines that meets all targets, 0 if there is none.
func (o *Options) needed(model latency.Learned, what WhatIf) (int, error) {
	meets := func(replicas int) (bool, error) {
		what.Replicas = replicas
		predicted, err := o.scenario(model, what)
		for _, target := range o.Targets {
			if err == nil && target.of(predicted) > target.Ms {
				return false, nil
			}
		}
		return err == nil, err
	}
	less, enough := 0, 1
	for ; ; less, enough = enough, 2*enough {
		if enough > maxReplicas {
			return 0, nil
		}
		if ok, err := meets(enough); err != nil {
			return 0, err
		} else if ok {
			break
		}
	}
	for enough-less > 1 {
		middle := (less + enough) / 2
		ok, err := meets(middle)
		if err != nil {
			return 0, err
		}
		if ok {
			enough = middle
		} else {
			less = middle
		}
	}
	return enough, nil
}

// Target is a limit of a figure of what is predicted, ms.
type Target struct {
	Name string
	Ms   float64
	of   func(samples) float64
}

// ParseTargets reads a list such as "ttft.p99=2s,tpot.mean=50ms".
func ParseTargets(text string) (all []Target, err error) {
	metrics := map[string]func(samples) times{
		"ttft": func(s samples) times { return s.ttft }, "itl": func(s samples) times { return s.itl },
		"tpot": func(s samples) times { return s.tpot }, "e2e": func(s samples) times { return s.e2e },
	}
	for pair := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(pair), "=")
		metric, statistic, _ := strings.Cut(name, ".")
		limit, err := time.ParseDuration(value)
		i := slices.IndexFunc(accuracyStatistics, func(s accuracyStatistic) bool { return strings.EqualFold(s.name, statistic) })
		if of := metrics[metric]; err == nil && of != nil && i >= 0 && limit > 0 {
			all = append(all, Target{name, inMilliseconds(limit), func(s samples) float64 { return accuracyStatistics[i].of(of(s)) }})
			continue
		}
		return nil, fmt.Errorf("%q: want METRIC.STATISTIC=TIME, such as ttft.p99=2s, with ttft, itl, tpot or e2e, and mean, p50, p90, p95 or p99", pair)
	}
	return all, nil
}

// subject is what a recording asked, and of which engine.
func (o *Options) subject(model latency.Learned, t *trace.Trace) (*Workload, Engine, error) {
	w, err := WorkloadOf(t)
	if err != nil {
		return nil, Engine{}, err
	}
	if w.several() && model.Drafts() == 0 && model.Block() == 0 && o.learning == nil {
		return nil, Engine{}, fmt.Errorf("%s: several tokens in one output, but the recordings to learn from have one token in each: "+
			"learn from an engine with the same speculative decoding", t.Name)
	}
	engine, err := EngineOf(t, Override{})
	o.Engine.apply(&engine)
	if l := o.learning; l != nil {
		engine.Async, engine.FrontMs, engine.Blocks = l.Engine.Async, l.Engine.FrontMs, cmp.Or(engine.Blocks, l.Engine.Blocks)
	}
	return w, engine, err
}

// answers lets the requests be answered as often as is wanted, each time with other draws.
func (o *Options) answers(model latency.Learned, w *Workload, engine Engine) (runs [][]trace.Record, err error) {
	for i := range o.Runs {
		var run []trace.Record
		if o.Server != nil {
			run, err = o.Server(w, engine, model.Again())
		} else {
			run, err = Simulate(w, engine, model.Again(), o.Seed+uint64(i))
		}
		if err != nil {
			return nil, err
		}
		runs = append(runs, run)
	}
	return runs, nil
}

// WhatIfText writes what is predicted for each [WhatIf], and what is predicted without it; nothing if there is none.
func (r *Report) WhatIfText(w io.Writer) error {
	t := r.whatIfTable()
	if t == nil {
		return nil
	}
	out := bufio.NewWriter(w)
	fmt.Fprintln(out)
	t.text(out)
	return out.Flush()
}

func (r *Report) whatIfTable() *table {
	if len(r.WhatIf) == 0 {
		return nil
	}
	t := &table{
		title: "what if the engine or the load of the prediction were another (times in ms):",
		head:  []string{"what if", "TTFT p50", "p90", "p99", "ITL p50", "p90", "p99", "E2E p99"}, left: 1,
	}
	all, hasBand := r.WhatIf, r.Real.ITL.Count > 0
	if all[0].Name != unchanged {
		all = append([]Scenario{{Name: unchanged, Predicted: r.Predicted}}, all...)
	}
	if hasBand {
		t.head = append(t.head, "slow band")
	}
	if all[0].Needs != nil {
		t.head = append(t.head, "replicas needed")
	}
	for _, s := range all {
		p := &s.Predicted
		row := []string{s.Name, msText(p.TTFT.P50), msText(p.TTFT.P90), "", msText(p.ITL.P50), msText(p.ITL.P90), "", ""}
		for cell, of := range map[int]func(*Outcome) float64{
			3: func(o *Outcome) float64 { return o.TTFT.P99 }, 6: func(o *Outcome) float64 { return o.ITL.P99 }, 7: func(o *Outcome) float64 { return o.E2E.P99 },
		} {
			row[cell] = msText(of(p))
			if s.Fast != nil {
				ends := []float64{of(p), of(s.Fast), of(s.Slow)}
				row[cell] += " (" + msText(slices.Min(ends)) + " to " + msText(slices.Max(ends)) + ")"
			}
		}
		if hasBand {
			row = append(row, fmt.Sprintf("%.2f %%", 100*p.BandMass))
		}
		if s.Needs != nil {
			row = append(row, s.Needs.String())
		}
		t.rows = append(t.rows, row)
	}
	return t
}

func (n *Needs) String() string {
	text := func(replicas int) string {
		if replicas == 0 {
			return fmt.Sprintf("more than %d", maxReplicas)
		}
		return strconv.Itoa(replicas)
	}
	if n.Fast == n.Slow {
		return text(n.Replicas)
	}
	return fmt.Sprintf("%s (%s to %s)", text(n.Replicas), text(n.Fast), text(n.Slow))
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
