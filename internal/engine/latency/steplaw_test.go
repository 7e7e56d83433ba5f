package latency

import (
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/trace"
)

// An engineLaw is what the engine of a test takes: known, so that it can be found again.
type engineLaw struct {
	base, perRequest, perContext float64
	once, c0, c1                 float64
	hides                        bool
	wake                         float64 // from a request to the first step of an idle engine
}

func (e engineLaw) time(s *step) float64 {
	decodes := e.base + e.perRequest*float64(s.requests()) + e.perContext*float64(s.context)
	if s.chunks == 0 {
		return decodes
	}
	chunks := e.once + e.c0*float64(s.tokens) + e.c1*s.pairs
	if e.hides {
		return max(decodes, chunks)
	}
	return decodes + chunks
}

// A task is a request of an engine of a test.
type task struct {
	record         trace.Record
	arrival, spoke float64
	left           int // of the prompt
}

// run lets an engine of this law serve requests, first come, first served, and returns
// what a tap would record of it.
func (e engineLaw) run(seed uint64, requests, budget int, mean float64) []trace.Record {
	r := rand.New(rand.NewPCG(seed, 1))
	var waiting, running []*task
	var records []trace.Record
	arrival := 0.0
	for i := range requests {
		arrival += r.ExpFloat64() * mean
		if i%4 == 0 {
			arrival += 4000 // so that some meet an idle engine
		}
		prompt := 20 + r.IntN(1500)
		cached := r.IntN(prompt/16) * 16 / 2
		waiting = append(waiting, &task{arrival: arrival, left: prompt - cached, record: trace.Record{
			PromptTokens: prompt, CachedTokens: cached, OutputTokens: 20 + r.IntN(60), Concurrency: 1, ArrivalMs: new(arrival),
		}})
	}
	now := 0.0
	for len(waiting)+len(running) > 0 {
		if len(running) == 0 && waiting[0].arrival > now {
			now = waiting[0].arrival + e.wake
		}
		for len(waiting) > 0 && waiting[0].arrival <= now {
			running, waiting = append(running, waiting[0]), waiting[1:]
		}
		now, running, records = e.step(now, budget, running, records)
	}
	for i := range records {
		records[i].Concurrency = inFlight(records, *records[i].ArrivalMs)
	}
	return records
}

// inFlight counts the requests that had arrived and not ended.
func inFlight(records []trace.Record, at float64) uint64 {
	n := uint64(0)
	for _, r := range records {
		end := *r.ArrivalMs + r.TTFTMs
		for _, ms := range r.ITLMs {
			end += ms
		}
		if *r.ArrivalMs <= at && end > at {
			n++
		}
	}
	return n
}

// step makes one step of the running tasks. It returns its end, those that go on, and the
// records with those of the ended ones.
func (e engineLaw) step(
	now float64, budget int, running []*task, records []trace.Record,
) (float64, []*task, []trace.Record) {
	var s step
	left := budget
	var speaking []*task
	for _, t := range running {
		if t.left == 0 {
			s.decodes++
			s.context += t.record.PromptTokens + len(t.record.ITLMs) + 1
			left--
			speaking = append(speaking, t)
		}
	}
	for _, t := range running {
		if n := min(t.left, left); n > 0 {
			s.chunks++
			s.tokens += n
			s.pairs += pairs(n, t.record.PromptTokens-t.left)
			t.left, left = t.left-n, left-n
			if t.left == 0 {
				speaking = append(speaking, t)
			}
		}
	}
	now += e.time(&s)
	for _, t := range speaking {
		if t.spoke == 0 {
			t.record.TTFTMs = now - t.arrival
		} else {
			t.record.ITLMs = append(t.record.ITLMs, now-t.spoke)
		}
		t.spoke = now
		if len(t.record.ITLMs) == t.record.OutputTokens-1 {
			records = append(records, t.record)
			running = slices.DeleteFunc(slices.Clone(running), func(other *task) bool { return other == t })
		}
	}
	return now, running, records
}

// What the recordings of an engine tell is the law that the engine kept to.
func TestStepLaw(t *testing.T) {
	tests := []struct {
		name   string
		law    engineLaw
		budget int
	}{
		{name: "a CPU: chunks are added", budget: 2048, law: engineLaw{
			base: 2, perRequest: 0.2, perContext: 1e-4, once: 0.5, c0: 0.01, c1: 2e-6, wake: 1.5,
		}},
		{name: "prompts in many chunks", budget: 256, law: engineLaw{
			base: 2, perRequest: 0.2, perContext: 1e-4, once: 0.5, c0: 0.01, c1: 2e-6, wake: 1.5,
		}},
		{name: "small chunks hide", budget: 512, law: engineLaw{base: 10, c0: 0.05, c1: 1e-5, hides: true, wake: 1}},
		{name: "neither contexts nor depth matter", budget: 2048, law: engineLaw{
			base: 5, perRequest: 0.1, c0: 0.02, wake: 2,
		}},
	}
	near := cmpopts.EquateApprox(0, 1e-6)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := mustFit(t, test.budget, test.law.run(1, 300, test.budget, 60)...)
			l := f.steps
			if l == nil {
				t.Fatal("no law")
			}
			got := []float64{l.perContext, l.once, l.chunk.c0, l.chunk.c1}
			want := []float64{test.law.perContext, test.law.once, test.law.c0, test.law.c1}
			if diff := cmp.Diff(want, got, near); diff != "" || l.hides != test.law.hides {
				t.Errorf("hides %v (-want +got):\n%s", l.hides, diff)
			}
			for _, n := range []float64{1, 2.5, 4} {
				require.NoDiff(t, cmp.Diff(test.law.base+test.law.perRequest*n, l.level(n), near), "%v requests (-want +got)", n)
			}
			wake := []float64{test.law.wake, test.law.wake}
			require.NoDiff(t, cmp.Diff(wake, []float64{f.idle[0], f.idle[len(f.idle)-1]}, near), "idle (-want +got)")
			require.True(t, len(l.clean) >= 1000 && len(l.mixed) >= 100, "only %d steps without chunks and %d with", len(l.clean), len(l.mixed))
			worst := 0.0
			for _, part := range slices.Concat(l.clean, l.mixed) {
				worst = max(worst, math.Abs(part-1))
			}
			require.True(t, worst <= 1e-6, "a step is off by a factor of %v", worst)
		})
	}
}

// A model of one capture tells the steps of another one of the same engine: median and
// spread, with and without prompts in them. The captures of 0.26 were made on a quiet machine.
func TestStepLawOfRealEngine(t *testing.T) {
	folder := filepath.Join("..", "..", "..", "testdata", "goldens", "conformance", "v0.26.0", "cpu", "tiny")
	read := func(pattern string) *trace.Trace {
		paths, err := filepath.Glob(filepath.Join(folder, pattern))
		if err != nil || len(paths) != 1 {
			t.Fatalf("%s: %v, %v", pattern, paths, err)
		}
		tr, err := trace.Read(paths[0], trace.Options{})
		require.NoError(t, err)
		return tr
	}
	f, err := NewFit(FitOptions{}, read("multiturn-s7-*"), read("multiturn-s13-*"))
	require.NoError(t, err)
	if f.steps == nil {
		t.Fatal("no law")
	}
	unseen := stepsOf(read("multiturn-nocache-*").Records, usualBudget)
	var clean, mixed []float64
	for i := range unseen {
		part := unseen[i].ms / f.steps.of(&unseen[i])
		if unseen[i].chunks == 0 {
			clean = append(clean, part)
		} else {
			mixed = append(mixed, part)
		}
	}
	slices.Sort(clean)
	slices.Sort(mixed)
	t.Logf("unseen steps as a part of what the law says: median %.3f without chunks, %.3f with",
		quantile(clean, .5), quantile(mixed, .5))
	require.True(t, len(clean) >= 500 && len(mixed) >= 100, "only %d and %d steps", len(clean), len(mixed))
	for name, median := range map[string]float64{"without chunks": quantile(clean, .5), "with": quantile(mixed, .5)} {
		require.True(t, math.Abs(median-1) <= 0.15, "the median step %s takes %.3f of what the law says", name, median)
	}
}

// What steps are seen in a recording, by hand: a budget of 100 tokens.
func TestStepsOf(t *testing.T) {
	// said is a request of one token a chunk, at these times.
	said := func(prompt int, arrival float64, at ...float64) trace.Record {
		r := trace.Record{
			PromptTokens: prompt, OutputTokens: len(at), TTFTMs: at[0] - arrival, ArrivalMs: new(arrival),
			ITLMs: []float64{},
		}
		for i := range at[1:] {
			r.ITLMs = append(r.ITLMs, at[i+1]-at[i])
		}
		return r
	}
	tests := []struct {
		name    string
		records []trace.Record
		want    []step
	}{
		{name: "alone", records: []trace.Record{said(10, 0, 5, 7, 10)}, want: []step{
			{at: 7, ms: 2, decodes: 1, context: 11, position: 1}, {at: 10, ms: 3, decodes: 1, context: 12, position: 2},
		}},
		{name: "another prompt", records: []trace.Record{said(10, 0, 5, 7, 10), said(30, 6, 10)}, want: []step{
			{at: 7, ms: 2, decodes: 1, context: 11, position: 1},
			{at: 10, ms: 3, decodes: 1, context: 12, chunks: 1, tokens: 30, pairs: 450, position: 2},
		}},
		{name: "in two chunks", records: []trace.Record{said(10, 0, 5, 7, 10), said(120, 5, 10)}, want: []step{
			{at: 7, ms: 2, decodes: 1, context: 11, chunks: 1, tokens: 99, pairs: 99 * 99 / 2.0, full: true, position: 1},
			{at: 10, ms: 3, decodes: 1, context: 12, chunks: 1, tokens: 21, pairs: (120*120 - 99*99) / 2.0, position: 2},
		}},
		{
			// It waited for something else than room in the step.
			name: "not begun at once", records: []trace.Record{said(10, 0, 5, 7, 10), said(50, 4, 10)}, want: []step{
				{at: 7, ms: 2, decodes: 1, context: 11, position: 1},
				{at: 10, ms: 3, decodes: 1, context: 12, chunks: 1, tokens: 50, pairs: 1250, position: 2},
			},
		},
		{
			// The rest of it was computed before anybody spoke.
			name: "not seen", records: []trace.Record{said(10, 0, 5, 7, 10, 12), said(150, 6, 10)}, want: []step{
				{at: 12, ms: 2, decodes: 1, context: 13, position: 3},
			},
		},
		{
			name: "ended when nobody spoke", records: []trace.Record{said(10, 0, 5, 7), said(150, 4, 10, 12)}, want: []step{
				{at: 12, ms: 2, decodes: 1, context: 151, position: 3},
			},
		},
		{
			name:    "two at once, the earlier first",
			records: []trace.Record{said(10, 0, 5, 7, 10, 14), said(60, 5.5, 10), said(130, 5, 10)},
			want: []step{
				{at: 7, ms: 2, decodes: 1, context: 11, chunks: 1, tokens: 99, pairs: 99 * 99 / 2.0, full: true, position: 1},
				{at: 10, ms: 3, decodes: 1, context: 12, chunks: 2, tokens: 91, pairs: (130*130-99*99)/2.0 + 1800, position: 2},
				{at: 14, ms: 4, decodes: 1, context: 13, position: 3},
			},
		},
		{name: "held up", records: []trace.Record{said(10, 0, 5, 7, 9, 9, 12)}, want: []step{
			{at: 7, ms: 2, decodes: 1, context: 11, position: 1}, {at: 12, ms: 3, decodes: 1, context: 14, position: 3},
		}},
		{name: "another engine's between", records: []trace.Record{said(10, 0, 5, 7), said(10, 0, 6, 8)}},
		{name: "no arrivals", records: []trace.Record{{PromptTokens: 10, OutputTokens: 2, ITLMs: []float64{3}}}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := stepsOf(test.records, 100)
			opts := cmp.Options{cmp.AllowUnexported(step{}), exact, cmpopts.EquateEmpty()}
			require.NoDiff(t, cmp.Diff(test.want, got, opts), "(-want +got)")
		})
	}
}

func TestStepTime(t *testing.T) {
	law := func(hides bool) *stepLaw {
		return &stepLaw{
			levels: []level{{requests: 2, ms: 10}, {requests: 4, ms: 20}, {requests: 6, ms: 20}}, perContext: 0.01, once: 1, chunk: chunkLaw{0.1, 0.001}, hides: hides,
			clean: []float64{1}, mixed: slices.Repeat([]float64{2}, observationsLeast),
			full: slices.Repeat([]float64{3}, observationsLeast),
		}
	}
	decodes := func(n int) (d []Decode) {
		for range n {
			d = append(d, Decode{Request: NewRequest(1, "d", 90, 0), Context: 100, Tokens: 1})
		}
		return d
	}
	chunks := []Chunk{{Request: NewRequest(1, "c", 300, 0), Tokens: 20, Depth: 80}} // 1 + 2 + 1.8 ms
	tests := []struct {
		name  string
		hides bool
		step  Step
		want  time.Duration
	}{
		{name: "fewer than seen", step: Step{Decodes: decodes(1), Left: 1}, want: 11 * ms},
		{name: "as seen", step: Step{Decodes: decodes(2), Left: 1}, want: 12 * ms},
		{name: "between", step: Step{Decodes: decodes(3), Left: 1}, want: 18 * ms},
		{name: "more than seen", step: Step{Decodes: decodes(8), Left: 1}, want: 33 * ms},
		{
			name: "with a chunk", step: Step{Decodes: decodes(3), Chunks: chunks, Left: 1},
			want: 2 * (23*ms + 4800*time.Microsecond),
		},
		{name: "full", step: Step{Decodes: decodes(3), Chunks: chunks}, want: 3 * (23*ms + 4800*time.Microsecond)},
		{name: "full of decodes", step: Step{Decodes: decodes(3)}, want: 18 * ms},
		{name: "hidden", hides: true, step: Step{Decodes: decodes(3), Chunks: chunks, Left: 1}, want: 46 * ms},
		{name: "chunks alone", step: Step{Chunks: chunks}, want: 10*ms + 4800*time.Microsecond},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := &Fit{budget: 100, steps: law(test.hides), lastLarge: math.Inf(-1)}
			require.NoDiff(t, cmp.Diff(test.want, f.Duration(&test.step)), "(-want +got)")
		})
	}
}

// A pause while an engine warms up is no step that others may take; a later one is.
func TestStepNoise(t *testing.T) {
	var steps []step
	for i := range 200 {
		steps = append(steps, step{ms: 10, decodes: 1, position: i})
	}
	steps[3].ms, steps[150].ms, steps[170].ms, steps[180].ms = 900, 200, 39, 80
	l := newStepLaw(steps)
	require.NoDiff(t, cmp.Diff(3.9, slices.Max(l.clean), exact), "largest part (-want +got)")
	require.NoDiff(t, cmp.Diff([]float64{70, 190}, l.pauses, exact), "pauses (-want +got)")
	require.NoDiff(t, cmp.Diff(1990.0/2, l.pausesEvery, exact), "a pause every ms (-want +got)")
}

// Without prompts beside decodes, the times to the first token tell what chunks take.
func TestChunksOfServiceCurve(t *testing.T) {
	records := quiet()
	for i := range records {
		records[i].ArrivalMs = new(float64(10_000 * i))
		records[i].ITLMs, records[i].OutputTokens = slices.Repeat([]float64{10}, 20), 21
	}
	f := mustFit(t, 100_000, records...)
	if f.steps == nil {
		t.Fatal("no law")
	}
	for _, u := range []int{800, 5000, 20_000} {
		want := 20 + 0.02*float64(u) + 1e-6*float64(u*u)
		got := f.compose(&Step{Chunks: []Chunk{{Request: NewRequest(1, "r", u, 0), Tokens: u, Last: true}}}, nil)
		require.NoDiff(t, cmp.Diff(want, got, exact), "%d tokens (-want +got)", u)
	}
}

// Readers refuse times that sum up to no number; another caller may have some.
func TestStepsOfTimesWithoutEnd(t *testing.T) {
	far := trace.Record{ArrivalMs: new(1e308), TTFTMs: 1e308, PromptTokens: 1, OutputTokens: 2, ITLMs: []float64{1}}
	if steps := stepsOf([]trace.Record{far, far}, 8192); len(steps) != 0 {
		t.Errorf("%d steps", len(steps))
	}
}
