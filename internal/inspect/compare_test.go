package inspect

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/base/jsonout"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/trace"
)

// drifting is a trace of an engine whose speed changes slowly, as that of real machines does: gaps of ten ms, and one in
// twenty of forty. slow changes each time.
func drifting(name string, seed uint64, requests int, slow func(gap bool, ms float64) float64) *trace.Trace {
	rng := rand.New(rand.NewPCG(seed, 7))
	tr := recorded()
	tr.Name = name
	speed := 1.0
	for i := range requests {
		speed += 0.1*(1-speed) + 0.02*rng.NormFloat64()
		var gaps []float64
		for range 10 {
			ms := 10 * speed * (1 + 0.05*rng.NormFloat64())
			if rng.IntN(20) == 0 {
				ms *= 4
			}
			gaps = append(gaps, slow(true, ms))
		}
		tr.Records = append(tr.Records, record(float64(100*i), 64, slow(false, 30*speed*(1+0.2*rng.Float64())), gaps...))
	}
	return tr
}

func asItIs(_ bool, ms float64) float64 { return ms }

func compared(t *testing.T, opt CompareOptions, traces ...*trace.Trace) *Comparison {
	t.Helper()
	var all []*Compared
	for _, tr := range traces {
		one, err := ReadCompared(readerOf(t, tr))
		require.NoError(t, err)
		all = append(all, one)
	}
	c, err := Compare(all, opt)
	require.NoError(t, err)
	return c
}

func TestCompare(t *testing.T) {
	base := drifting("base.jsonl", 1, 200, asItIs)
	tests := []struct {
		name   string
		other  *trace.Trace
		limits map[string]float64
		worse  []string
		better bool
		differ []string
	}{
		{name: "the same", other: base},
		{name: "another run", other: drifting("b", 2, 200, asItIs)},
		{
			name: "all slower", other: drifting("b", 2, 200, func(_ bool, ms float64) float64 { return 1.3 * ms }),
			worse: FigureNames(), differ: metrics[:],
		},
		{
			name: "only the first tokens", other: drifting("b", 2, 200, func(gap bool, ms float64) float64 {
				if gap {
					return ms
				}
				return 2 * ms
			}),
			worse:  []string{"ttft.mean", "ttft.p50", "ttft.p90", "ttft.p99", "e2e.mean", "e2e.p50", "e2e.p90", "e2e.p99"},
			differ: []string{"ttft", "e2e"},
		},
		{
			name: "only the slowest gaps", other: drifting("b", 2, 200, func(gap bool, ms float64) float64 {
				if gap && ms > 25 {
					return 2 * ms
				}
				return ms
			}),
			worse: []string{"itl.p99", "tpot.p99", "tpot.p90", "itl.mean", "tpot.mean", "e2e.p90", "e2e.p99", "e2e.mean"},
		},
		{
			name: "a limit of its own", other: drifting("b", 2, 200, func(_ bool, ms float64) float64 { return 1.3 * ms }),
			limits: map[string]float64{
				"ttft.mean": 1, "ttft.p50": 1, "ttft.p90": 1, "ttft.p99": 1, "tpot.mean": 1, "tpot.p50": 1, "tpot.p90": 1, "tpot.p99": 1,
				"e2e.mean": 1, "e2e.p50": 1, "e2e.p90": 1, "e2e.p99": 1, "itl.mean": 1, "itl.p90": 1, "itl.p99": 1,
			},
			worse: []string{"itl.p50"}, differ: metrics[:],
		},
		{name: "faster", other: drifting("b", 2, 200, func(_ bool, ms float64) float64 { return 0.7 * ms }), better: true, differ: metrics[:]},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c := compared(t, CompareOptions{Tolerance: 0.1, Limits: test.limits, Seed: 1}, base, test.other)
			want, got := map[string]bool{}, map[string]bool{}
			for _, name := range test.worse {
				want[name] = true
			}
			for _, f := range c.Regressions {
				got[f.Name] = true
			}
			if test.name != "only the slowest gaps" {
				require.NoDiff(t, cmp.Diff(want, got), "regressions (-want +got)")
			} else if !got["itl.p99"] || got["itl.p50"] || got["ttft.p50"] || got["ttft.p99"] {
				t.Errorf("regressions are %v", got)
			}
			require.True(t, c.Pass == (len(test.worse) == 0) && c.Judged == 16, "pass %v, %d figures judged", c.Pass, c.Judged)
			for _, f := range c.Figures {
				require.Equal(t, f.Verdict == verdictBetter, test.better, "%s is %s", f.Name, f.Verdict)
				if *f.Low > *f.Change+1e-9 || *f.High < *f.Change-1e-9 {
					t.Logf("%s: the change %v is outside of %v to %v", f.Name, *f.Change, *f.Low, *f.High)
				}
			}
			var differ []string
			for _, d := range c.Distributions {
				if d.Differs {
					differ = append(differ, d.Metric)
				}
			}
			if test.name != "only the slowest gaps" {
				require.NoDiff(t, cmp.Diff(test.differ, differ), "distributions that differ (-want +got)")
			}
			for i := 1; i < len(c.Regressions); i++ {
				if a, b := c.Regressions[i-1], c.Regressions[i]; *a.Change-a.Limit < *b.Change-b.Limit {
					t.Errorf("%s stands before %s", a.Name, b.Name)
				}
			}
		})
	}
}

// Runs of the same engine are seldom found to differ, if a block lasts longer than its changes of speed: here some ten requests.
func TestCompareByChance(t *testing.T) {
	figures, differ := 0, 0
	const pairs = 6
	for seed := range uint64(pairs) {
		c := compared(t, CompareOptions{Tolerance: 0, Seed: seed}, drifting("a", 100+seed, 500, asItIs), drifting("b", 200+seed, 500, asItIs))
		figures += len(c.Regressions)
		for _, d := range c.Distributions {
			if d.Differs {
				differ++
			}
		}
	}
	// Single requests in place of blocks find 8 distributions or more that differ.
	t.Logf("of %d pairs, %d of 96 figures are regressions without a tolerance, and %d of 24 distributions differ", pairs, figures, differ)
	require.True(t, figures <= 5 && differ <= 2, "want less")
}

func TestCompareTooLittle(t *testing.T) {
	c := compared(t, CompareOptions{Tolerance: 0.1}, recorded(record(0, 4, 10, 5)), recorded(record(0, 4, 100, 50)))
	require.True(t, c.Pass && c.Judged == 0 && c.Figures[0].Verdict == verdictNone && *c.Figures[0].Change == 9, "got %+v", c)
	var b bytes.Buffer
	require.NoError(t, c.Text(&b))
	for _, want := range []string{"note: too few requests with output for a verdict: want at least 8 in each trace\n", "NOTHING JUDGED: "} {
		require.Contains(t, b.String(), want)
	}
	zero := drifting("zero", 1, 20, func(bool, float64) float64 { return 0 })
	c = compared(t, CompareOptions{Tolerance: 0.1}, zero, drifting("b", 1, 20, asItIs))
	if c.Judged != 0 || len(c.Plots()) == 0 {
		t.Errorf("%d figures are judged against 0, and there are %d plots", c.Judged, len(c.Plots()))
	}
	if _, err := jsonout.Bytes(c); err != nil {
		t.Error(err)
	}
	for _, p := range c.Plots() {
		var svg bytes.Buffer
		require.NoError(t, p.Write(&svg))
		require.True(t, !strings.Contains(svg.String(), "NaN") && !strings.Contains(svg.String(), "Inf"), "%s has no numbers", p.Name)
	}
}

func TestCompareRefuses(t *testing.T) {
	one, err := ReadCompared(readerOf(t, recorded(record(0, 4, 1))))
	require.NoError(t, err)
	for want, opt := range map[string]CompareOptions{
		`there is no figure "ttft.p95": want one of ttft.mean, ttft.p50`:            {Limits: map[string]float64{"ttft.p95": 1}},
		`limit of ttft.p50 is -1: want a number of 0 or more, such as 0.1 for 10 %`: {Limits: map[string]float64{"ttft.p50": -1}},
		`tolerance is -0.1: want a number of 0 or more, such as 0.1 for 10 %`:       {Tolerance: -0.1},
	} {
		if _, err := Compare([]*Compared{one, one}, opt); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if _, err := ReadCompared(readerOf(t, recorded())); err == nil || err.Error() != "t.jsonl: the trace has no records, so there is nothing to compare" {
		t.Errorf("got %v", err)
	}
}

// The same seed gives the same result, whatever the number of requests; blocks never exceed their limit.
func TestCompareRepeats(t *testing.T) {
	many := drifting("many", 3, 5*maxBlocks+3, asItIs)
	one, err := ReadCompared(readerOf(t, many))
	require.NoError(t, err)
	if n := len(one.blocks); n > maxBlocks || n < maxBlocks/2 {
		t.Errorf("%d blocks", n)
	}
	count := 0
	for i := range one.blocks {
		count += one.blocks[i][0].count
	}
	require.True(t, count == len(many.Records), "%d times to the first token are in blocks, want %d", count, len(many.Records))
	first := compared(t, CompareOptions{Seed: 5}, many, drifting("b", 4, 50, asItIs))
	again := compared(t, CompareOptions{Seed: 5}, many, drifting("b", 4, 50, asItIs))
	require.NoDiff(t, cmp.Diff(first.Figures, again.Figures), "(-first +again)")
	require.NoDiff(t, cmp.Diff(first.Distributions, again.Distributions), "(-first +again)")
}

// Kolmogorov-Smirnov and Wasserstein by hand: 1, 2, 3 against 2, 3, 4.
func TestApart(t *testing.T) {
	p := &pointSet{
		points: []point{{1, 1, 0}, {2, 1, 0}, {2, 1, 1}, {3, 1, 0}, {3, 1, 1}, {4, 1, 1}}, sizes: []int{3, 3},
	}
	if ks, mean := p.apart([]bool{false, true}); math.Abs(ks-1.0/3) > 1e-9 || math.Abs(mean-1) > 1e-9 {
		t.Errorf("KS %v, mean distance %v, want a third and 1", ks, mean)
	}
}

func TestComparePage(t *testing.T) {
	other := drifting("</style><script>.jsonl", 2, 60, func(_ bool, ms float64) float64 { return 1.5 * ms })
	for i := range other.Records {
		r := &other.Records[i]
		r.ITLTokens, r.OutputTokens = make([]uint32, len(r.ITLMs)), 1+2*len(r.ITLMs)
		for k := range r.ITLTokens {
			r.ITLTokens[k] = 2
		}
	}
	c := compared(t, CompareOptions{Tolerance: 0.1}, drifting("a", 1, 60, asItIs), other)
	var b bytes.Buffer
	require.NoError(t, c.HTML(&b))
	if strings.Contains(b.String(), "</style><script>.jsonl") || !strings.Contains(b.String(), "&lt;/style&gt;&lt;script&gt;.jsonl: itl.p50: ") {
		t.Error("the name of a trace is markup, or a regression is missing")
	}
	var names []string
	for _, p := range c.Plots() {
		names = append(names, p.Name)
		var svg bytes.Buffer
		require.NoError(t, p.Write(&svg))
		wellFormed(t, p.Name, svg.Bytes())
	}
	want := []string{
		"ttft-survival", "ttft-qq", "itl-survival", "itl-qq", "tpot-survival", "tpot-qq", "e2e-survival", "e2e-qq",
		"mean-1", "mean-2", "tokens-of-outputs",
	}
	require.NoDiff(t, cmp.Diff(want, names), "plots (-want +got)")
	if n := strings.Count(b.String(), "<svg "); n != len(want) {
		t.Errorf("the page has %d plots, want %d", n, len(want))
	}
}

func TestShortNames(t *testing.T) {
	tests := []struct {
		name        string
		paths, want []string
	}{
		{"folders", []string{"a/first/load.jsonl.gz", "a/fourth/load.jsonl.gz"}, []string{"first", "fourth"}},
		{"files", []string{"a/main.jsonl.gz", "a/change.jsonl.gz"}, []string{"main.jsonl.gz", "change.jsonl.gz"}},
		{"the same", []string{"a/x.jsonl", "a/x.jsonl"}, []string{"x.jsonl", "x.jsonl"}},
		{"one in the other", []string{"b/x", "a/b/x"}, []string{"b", "a/b"}},
		{"nothing in common", []string{"x", "y/z", "w"}, []string{"x", "y/z", "w"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			require.NoDiff(t, cmp.Diff(test.want, shortNames(test.paths)), "(-want +got)")
		})
	}
}

// TestCompareTakes: what differs by as much from take to take of the same engine is no regression.
func TestCompareTakes(t *testing.T) {
	take := func(name string, seed uint64, factor float64) *Compared {
		one, err := ReadCompared(readerOf(t, drifting(name, seed, 200, func(_ bool, ms float64) float64 { return factor * ms })))
		require.NoError(t, err)
		return one
	}
	fast, slow, slower := take("fast.jsonl", 1, 1), take("slow.jsonl", 2, 1.4), take("slower.jsonl", 3, 1.45)
	figure := func(base, other []*Compared) Figure {
		c, err := Compare([]*Compared{Together(base), Together(other)}, CompareOptions{Tolerance: 0.1, Seed: 1})
		require.NoError(t, err)
		for _, f := range c.Figures {
			if f.Name == "itl.mean" {
				return f
			}
		}
		t.Fatal("no itl.mean")
		return Figure{}
	}
	for _, test := range []struct {
		name        string
		base, other []*Compared
		trace, want string
	}{
		{"one take each", []*Compared{fast}, []*Compared{slow}, "slow.jsonl", verdictWorse},
		{"takes differ as much", []*Compared{fast, slow}, []*Compared{slow}, "slow.jsonl", verdictUnclear},
		{"all takes are slower", []*Compared{fast, fast}, []*Compared{slow, slower}, "slow.jsonl and 1 more take", verdictWorse},
	} {
		if f := figure(test.base, test.other); f.Verdict != test.want || f.Trace != test.trace {
			t.Errorf("%s: %+v, want %s of %s", test.name, f, test.want, test.trace)
		}
	}
	both := Together([]*Compared{fast, slow})
	if got, want := both.summary.Records, 400; got != want || both.whole(0).count != want || len(both.take) != len(both.blocks) {
		t.Errorf("%d records, %d first tokens in %d blocks of %d, want %d records", got, both.whole(0).count, len(both.blocks), len(both.take), want)
	}
}

// TestCompareByConcurrency: a level that alone is slower is found.
func TestCompareByConcurrency(t *testing.T) {
	levels := func(name string, factor float64) *trace.Trace {
		tr := drifting(name, 1, 200, asItIs)
		for i := range tr.Records {
			if r := &tr.Records[i]; i%4 == 3 {
				r.Concurrency = 7
				r.TTFTMs *= factor
			}
		}
		return tr
	}
	base, other := levels("base.jsonl", 1), levels("other.jsonl", 2)
	if c := compared(t, CompareOptions{Tolerance: 0.25}, base, other); slices.ContainsFunc(c.Figures, func(f Figure) bool { return f.Concurrency != "" }) {
		t.Errorf("figures by concurrency without being asked: %v", c.Figures)
	}
	c := compared(t, CompareOptions{Tolerance: 0.25, ByConcurrency: true}, base, other)
	got := map[string]string{}
	for _, f := range c.Figures {
		if f.Concurrency != "" && strings.HasPrefix(f.Name, "ttft.") {
			got[f.Name+" at "+f.Concurrency] = f.Verdict
		}
	}
	require.NoDiff(t, cmp.Diff(map[string]string{"ttft.p50 at 1": verdictSame, "ttft.p50 at 5-8": verdictWorse}, got), "verdicts (-want +got)")
	var text strings.Builder
	require.NoError(t, c.Text(&text))
	for _, want := range []string{"by concurrency (requests in flight", "ttft.p50 at concurrency 5-8: "} {
		require.Contains(t, text.String(), want)
	}
}
