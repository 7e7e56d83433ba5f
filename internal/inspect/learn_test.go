package inspect

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/engine/latency"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/trace"
)

// A truth is an engine whose steps take a known time, and the load that it gets.
type truth struct {
	law      latency.Law
	engine   Engine
	requests int
	rate     float64 // requests a second
}

var dense = truth{
	law:    latency.Law{12, 0.05, 6e-5, 0.04, 1e-7},
	engine: Engine{MaxNumSeqs: 32, MaxNumBatchedTokens: 2048, BlockSize: 16, Caching: true, Async: true}, requests: 120, rate: 6,
}

// results are what a load generator reports of each request: no time of a single token.
func (t *truth) results(name string, seed uint64) *trace.Trace {
	rng := rand.New(rand.NewPCG(seed, 0))
	asked := &trace.Trace{Name: name}
	at := 0.0
	for range t.requests {
		arrival := at
		r := trace.Record{PromptTokens: 20 + rng.IntN(1500), OutputTokens: 30 + rng.IntN(200), TTFTMs: 1, ArrivalMs: &arrival, Concurrency: 1}
		r.ITLSummary = &trace.ITLSummary{MeanMs: 1, Count: r.OutputTokens - 1}
		asked.Records = append(asked.Records, r)
		at += 1e3 * rng.ExpFloat64() / t.rate
	}
	w, err := WorkloadOf(asked)
	if err != nil {
		panic(err)
	}
	w.unrelate()
	answered, err := Simulate(w, t.engine, &t.law, 1)
	if err != nil {
		panic(err)
	}
	for _, a := range answered {
		r := &asked.Records[a.Line-1]
		r.TTFTMs, r.ITLSummary.MeanMs, r.Concurrency = a.TTFTMs, (a.EndMs(0)-a.TTFTMs)/float64(r.OutputTokens-1), a.Concurrency
	}
	return asked
}

func (t *truth) override() Override {
	return Override{MaxNumSeqs: t.engine.MaxNumSeqs, MaxNumBatchedTokens: t.engine.MaxNumBatchedTokens, BlockSize: t.engine.BlockSize}
}

func figure1(t *testing.T, r *Report, metric, statistic string) Estimate {
	t.Helper()
	i := slices.IndexFunc(r.Accuracy.Figures, func(e Estimate) bool { return e.Metric == metric && e.Statistic == statistic })
	if i < 0 {
		t.Fatalf("no %s %s in %+v", metric, statistic, r.Accuracy.Figures)
	}
	return r.Accuracy.Figures[i]
}

// What is learned from the first requests predicts the others, another load and another engine, also where requests wait for the KV cache,
// and where tokens share weights.
func TestLearnResults(t *testing.T) {
	full, experts, sync := dense, dense, dense
	full.engine.Blocks, full.rate = 700, 12
	experts.law[5] = 9
	sync.engine.Async = false
	for name, engine := range map[string]truth{"dense": dense, "full KV cache": full, "experts": experts, "not async": sync} {
		t.Run(name, func(t *testing.T) {
			results, other := engine.results("results", 1), engine
			other.rate, other.requests = 2, 60
			for _, o := range []Options{{Holdout: 60}, {Predict: []*trace.Trace{other.results("other", 2)}}} {
				o.Results, o.Engine = []*trace.Trace{results}, engine.override()
				if name != "not async" {
					o.Engine.Async = &engine.engine.Async
				}
				if name != "full KV cache" {
					o.Engine.Blocks = 1 << 12
				}
				r, err := Calibrate(o)
				require.NoError(t, err)
				for _, metric := range []string{"TTFT", "TPOT", "E2E"} {
					for _, statistic := range []string{"mean", "P99"} {
						if e := figure1(t, r, metric, statistic); math.Abs(e.Error) > 0.1 || statistic == "mean" && metric != "TTFT" && math.Abs(e.Error) > 0.02 || e.Low > e.Error+1e-9 || e.High < e.Error-1e-9 && metric != "TPOT" {
							t.Errorf("%s %s: %+v", metric, statistic, e)
						}
					}
				}
				if got := r.Learning.Engine; got.Async != engine.engine.Async || engine.engine.Blocks > 0 && math.Abs(float64(got.Blocks)-float64(engine.engine.Blocks)) > 0.05*float64(engine.engine.Blocks) {
					t.Errorf("learned %s, want %s", &got, &engine.engine)
				}
				if !r.Pass || r.Learning.Requests != len(results.Records)-o.Holdout || len(r.Learning.Residuals) != r.Learning.Requests {
					t.Errorf("pass %v, learned from %d, %d residuals", r.Pass, r.Learning.Requests, len(r.Learning.Residuals))
				}
			}
		})
	}
}

// More engines, a smarter router and a lower rate shorten the wait, and the number that is needed for a limit is found.
func TestFleet(t *testing.T) {
	results := dense.results("results", 1)
	targets, err := ParseTargets("ttft.p99=1s,e2e.mean=8s")
	require.NoError(t, err)
	o := Options{Results: []*trace.Trace{results}, Holdout: 60, Engine: dense.override(), Targets: targets}
	o.Engine.Async, o.Engine.Blocks = &dense.engine.Async, 1<<12
	for _, text := range []string{"replicas=2,router=random", "replicas=2,router=round-robin", "replicas=2,router=least-loaded", "replicas=2,router=prefix-aware", "rate=0.25", "rate=3"} {
		what, err := ParseWhatIf(text)
		require.NoError(t, err)
		o.WhatIf = append(o.WhatIf, what)
	}
	r, err := Calibrate(o)
	require.NoError(t, err)
	var ttft []float64
	for _, s := range r.WhatIf {
		ttft = append(ttft, s.Predicted.TTFT.P90)
		if n := s.Needs; n == nil || n.Fast > n.Slow || n.Replicas < n.Fast || n.Replicas > n.Slow || s.Fast == nil {
			t.Errorf("%s needs %+v", s.Name, n)
		}
	}
	// Without hashes of prompts, prefix-aware is least-loaded.
	require.True(t, ttft[0] > ttft[1] && ttft[1] > ttft[3] && ttft[2] < ttft[1] && ttft[3] == ttft[4] && ttft[5] < ttft[0] && ttft[6] > ttft[0], "P90 of TTFT: %v", ttft)
	if few, many := r.WhatIf[5].Needs.Replicas, r.WhatIf[6].Needs.Replicas; few >= many || few < 1 {
		t.Errorf("%d and %d engines are needed", few, many)
	}
	var text, markdown bytes.Buffer
	require.NoError(t, r.WhatIfText(&text))
	require.NoError(t, r.Markdown(&markdown))
	require.True(t, strings.Contains(text.String(), "replicas needed") && strings.Contains(markdown.String(), "| E2E | P99 |"), "%s\n%s", &text, &markdown)
	if plots := r.Plots(); !slices.ContainsFunc(plots, func(p Plot) bool { return p.Name == "error-by-load" }) {
		t.Errorf("plots %v", plots)
	}
}

// A prefix-aware router sends the turns of a conversation to the engine that has computed its beginning.
func TestPrefixAware(t *testing.T) {
	turn := func(at float64, conversation, blocks uint64) trace.Record {
		var hashes []uint64
		for i := range blocks {
			hashes = append(hashes, 1000*conversation+i)
		}
		return hashed(record(at, int(4*blocks), 1, 1), hashes...)
	}
	w := mustWorkload(t, recorded(turn(0, 1, 9), turn(1000, 2, 9), turn(2000, 1, 10), turn(2001, 1, 11), turn(2002, 2, 10)))
	for router, want := range map[Router]int{PrefixAware: 36 + 36 + 36 + 36 + 4, RoundRobin: 36 + 36} {
		records, err := fleet(w, Engine{MaxNumSeqs: 9, MaxNumBatchedTokens: 99, BlockSize: 4, Caching: true}, &latency.Law{10}, WhatIf{Replicas: 2, Router: router}, 1)
		require.NoError(t, err)
		cached := 0
		for _, r := range records {
			cached += r.CachedTokens
		}
		require.Equal(t, router == PrefixAware, cached >= 36*3, "%s has %d cached tokens, about %d are expected: enough", router, cached, want)
	}
}

func TestLearnResultsRefuses(t *testing.T) {
	change := func(of func(*trace.Trace)) *trace.Trace {
		few := dense
		few.requests = 20
		r := few.results("r.csv", 1)
		of(r)
		return r
	}
	model := "another"
	several := change(func(tr *trace.Trace) {
		for i := range tr.Records {
			r := &tr.Records[i]
			r.ITLSummary, r.ITLMs, r.ITLTokens = nil, []float64{9, 9}, []uint32{3, uint32(r.OutputTokens - 4)}
		}
	})
	tests := map[string]struct {
		results []*trace.Trace
		want    string
	}{
		"one request":     {[]*trace.Trace{change(func(tr *trace.Trace) { tr.Records = tr.Records[:1] })}, "r.csv: 1 requests to learn from: want at least 8"},
		"no outputs":      {[]*trace.Trace{change(func(tr *trace.Trace) { clear(tr.Records) })}, "r.csv: no record has arrival_ms"},
		"a clock back":    {[]*trace.Trace{change(func(tr *trace.Trace) { tr.Records[2].ITLSummary.MeanMs = -40 })}, "r.csv: request 3: its first token is"},
		"not streamed":    {[]*trace.Trace{change(func(tr *trace.Trace) { wholeAnswers(tr) })}, "r.csv: 0 requests have more than one token and a time after the first"},
		"several tokens":  {[]*trace.Trace{several}, "r.csv: 2"},
		"several engines": {[]*trace.Trace{change(func(*trace.Trace) {}), change(func(tr *trace.Trace) { tr.Meta.Model = &model })}, "r.csv and r.csv are results of different engines or models"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := LearnResults(test.results, 0, dense.override(), 1)
			require.True(t, err != nil && strings.HasPrefix(err.Error(), test.want), "got %v, want %s…", err, test.want)
		})
	}
	results := change(func(*trace.Trace) {})
	_, err := Calibrate(Options{Results: []*trace.Trace{results}, Predict: []*trace.Trace{results}})
	require.True(t, err != nil && strings.Contains(err.Error(), "never learn from what is predicted"), "a record on both sides: %v", err)
}

func wholeAnswers(t *trace.Trace) {
	for i := range t.Records {
		t.Records[i].ITLSummary.MeanMs = 0
	}
}

// A load that never fills the engine, and always has several requests, says so.
func TestLearnResultsNotes(t *testing.T) {
	idle := dense
	idle.rate, idle.requests, idle.engine.MaxNumSeqs = 4, 40, 256
	r, err := LearnResults([]*trace.Trace{idle.results("r", 1)}, 0, Override{}, 1)
	require.NoError(t, err)
	notes := strings.Join(r.Notes, "\n")
	for _, want := range []string{"so the load does not show how the engine behaves when it is full", "max_num_seqs is not known", "max_num_batched_tokens is not known", "async_scheduling is not known", "does not show the size of the KV cache"} {
		require.Contains(t, notes, want)
	}
	require.True(t, slices.ContainsFunc(r.Constants, func(c Constant) bool { return !c.Shown }), "all constants are shown: %+v", r.Constants)
}

func TestTableOfRequests(t *testing.T) {
	const vllm = `{"input_toks":10,"output_toks":3,"arrival_time":1787267980.0,"queued_ts":100.0,"scheduled_ts":100.01,"first_token_ts":100.5,"last_token_ts":101.5}
{"input_toks":20,"output_toks":1,"arrival_time":1787267981.0,"queued_ts":101.25,"scheduled_ts":101.25,"first_token_ts":101.5,"last_token_ts":101.5}
{"input_toks":20,"output_toks":0,"arrival_time":1787267982.0,"queued_ts":102.25,"scheduled_ts":null,"first_token_ts":null,"last_token_ts":null}
`
	tests := map[string]struct{ text, columns, want, err string }{
		"vLLM's names, two clocks": {text: vllm, want: "0 10/3 500+1000 queued 10\n1000 20/1 500+0 queued 250\nleft out: [1 request without an answer]"},
		"CSV":                      {text: "arrival_ms,prompt_tokens,output_tokens,ttft_ms,latency_ms\n5,7,2,10,30\n6,8,2,20,30\n", want: "0 7/2 10+20 queued \n1 8/2 20+10 queued \nleft out: []"},
		"dates and names": {
			text: "when,in,out,token,done\n2026-01-31T12:00:00.5Z,7,2,2026-01-31T12:00:01Z,2026-01-31T12:00:02Z\n", columns: "arrival=when,prompt=in,output=out,first=token,end=done",
			want: "0 7/2 500+1000 queued \nleft out: []",
		},
		"units":           {text: "a,p,o,t,l\n5,7,2,10,30\n", columns: "arrival=a:us,prompt=p,output=o,ttft=t:ms,latency=l:ms", want: "0 7/2 10+20 queued \nleft out: []"},
		"two engines":     {text: "arrival,prompt_tokens,output_tokens,ttft,latency,engine\n1,7,2,1,3,a\n2,7,2,1,3,b\n", err: `f: line 3: it is a result of "b", and line 2 of "a"`},
		"back":            {text: "arrival,prompt_tokens,output_tokens,first_token,end\n5,7,2,4,9\n", err: "f: line 2: the first token is -1000.000 ms"},
		"no outputs":      {text: "arrival,prompt_tokens,output_tokens,ttft,latency\n5,7,0,,\n", err: "f: no request in it has an answer"},
		"not a number":    {text: "arrival,prompt_tokens,output_tokens,ttft,latency\n5,7,2,soon,9\n", err: `f: line 2: ttft is "soon": want a number`},
		"no arrival":      {text: "prompt_tokens,output_tokens,ttft,latency\n7,2,1,9\n", err: "f: line 2: it has no arrival"},
		"half a token":    {text: "arrival,prompt_tokens,output_tokens,ttft,latency\n5,7.5,2,1,9\n", err: `f: line 2: prompt_tokens is "7.5"`},
		"a missing field": {text: "arrival,prompt_tokens,output_tokens,ttft,latency\n5,7\n", err: "f: record on line 2: wrong number of fields"},
		"other columns":   {text: "a,b\n1,2\n", columns: "prompt=a", err: "f: line 2: want prompt, output, first or ttft, and end or latency; the columns are a, b"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var columns Columns
			if test.columns != "" {
				var err error
				columns, err = ParseColumns(test.columns)
				require.NoError(t, err)
			}
			got, in, err := ReadInput("f", strings.NewReader(test.text), columns)
			if test.err != "" {
				if err == nil || !strings.HasPrefix(err.Error(), test.err) {
					t.Fatalf("got %v, want %s…", err, test.err)
				}
				return
			}
			require.NoError(t, err)
			var b strings.Builder
			for i := range got.Records {
				r := &got.Records[i]
				require.NoError(t, r.Validate())
				fmt.Fprintf(&b, "%.0f %d/%d %.0f+%.0f queued %s\n", *r.ArrivalMs, r.PromptTokens, r.OutputTokens, r.TTFTMs, r.EndMs(0)-r.TTFTMs, strings.TrimSuffix(string(r.Extra[queueKey]), ".000"))
			}
			fmt.Fprintf(&b, "left out: %v", in.Skipped())
			require.True(t, b.String() == test.want, "got\n%s\nwant\n%s", &b, test.want)
		})
	}
}
