package player

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/engine/latency"
	"github.com/vllm-vcr/conformance/internal/frontends/coreclient"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// A step takes what the model says, and the next one begins when it ends: so says
// every timeline, to the nanosecond.
func TestModelledPace(t *testing.T) {
	plain := latency.Knobs{TimeToFirstToken: 100 * ms, InterTokenLatency: 10 * ms}
	type arrival struct {
		at     time.Duration
		id     string
		prompt []uint32
		tokens int
	}
	for _, tt := range []struct {
		name     string
		opt      Options
		knobs    latency.Knobs
		arrivals []arrival
		want     map[string][]time.Duration // when each output left
		chunks   map[string][]int           // tokens of each, if not one
	}{
		{
			name: "one request", knobs: plain,
			arrivals: []arrival{{0, "a", count(0, 4), 3}},
			want:     map[string][]time.Duration{"a": {100 * ms, 110 * ms, 120 * ms}},
		},
		{
			name: "a prompt in three chunks takes as long as in one", knobs: plain, opt: Options{Limits: Limits{MaxNumBatchedTokens: 100}},
			arrivals: []arrival{{0, "a", count(0, 250), 2}},
			want:     map[string][]time.Duration{"a": {100 * ms, 110 * ms}},
		},
		{
			name: "a prompt occupies the engine", knobs: plain,
			arrivals: []arrival{{0, "a", count(0, 4), 5}, {105 * ms, "b", count(100, 4), 2}},
			want: map[string][]time.Duration{
				"a": {100 * ms, 110 * ms, 210 * ms, 220 * ms, 230 * ms}, "b": {210 * ms, 220 * ms},
			},
		},
		{
			name: "two prompts in one step take as long as the longer", knobs: plain,
			arrivals: []arrival{{0, "a", count(0, 4), 2}, {0, "b", count(100, 40), 2}},
			want:     map[string][]time.Duration{"a": {100 * ms, 110 * ms}, "b": {100 * ms, 110 * ms}},
		},
		{
			name: "who waits for room waits", knobs: plain, opt: Options{Limits: Limits{MaxNumSeqs: 1}},
			arrivals: []arrival{{0, "a", count(0, 4), 2}, {0, "b", count(100, 4), 2}},
			want:     map[string][]time.Duration{"a": {100 * ms, 110 * ms}, "b": {210 * ms, 220 * ms}},
		},
		{
			name:     "tokens that are cached take no time",
			knobs:    latency.Knobs{PrefillOverhead: 5 * ms, PrefillPerToken: ms, InterTokenLatency: 10 * ms},
			arrivals: []arrival{{0, "a", count(0, 20), 1}, {100 * ms, "b", count(0, 20), 1}},
			want:     map[string][]time.Duration{"a": {25 * ms}, "b": {109 * ms}},
		},
		{
			name: "under load", opt: Options{Limits: Limits{MaxNumSeqs: 2}},
			knobs:    latency.Knobs{TimeToFirstToken: 100 * ms, InterTokenLatency: 10 * ms, LoadFactor: 2},
			arrivals: []arrival{{0, "a", count(0, 4), 2}, {0, "b", count(100, 4), 3}},
			want:     map[string][]time.Duration{"a": {200 * ms, 220 * ms}, "b": {200 * ms, 220 * ms, 230 * ms}},
		},
		{
			name: "guesses", opt: Options{Decoding: Decoding{SpeculativeTokens: 3, Acceptance: rates(t, 1, 1, 0)}}, knobs: plain,
			arrivals: []arrival{{0, "a", count(0, 4), 8}},
			want:     map[string][]time.Duration{"a": {100 * ms, 110 * ms, 120 * ms, 130 * ms}},
			chunks:   map[string][]int{"a": {1, 3, 3, 1}},
		},
		{
			name: "diffusion", opt: Options{Decoding: Decoding{TokensPerStep: 4}}, knobs: plain,
			arrivals: []arrival{{0, "a", count(0, 4), 9}},
			want:     map[string][]time.Duration{"a": {100 * ms, 110 * ms, 120 * ms}},
			chunks:   map[string][]int{"a": {4, 4, 1}},
		},
		{
			name: "an hour in 36 seconds", opt: Options{Timing: Timing{Scale: 100}}, knobs: plain,
			arrivals: []arrival{{0, "a", count(0, 4), 3}},
			want:     map[string][]time.Duration{"a": {ms, 1100 * time.Microsecond, 1200 * time.Microsecond}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.opt.Timing.Pace, tt.opt.Timing.Latency = PaceModelled, &tt.knobs
			r := newRig(t, tt.opt, 1)
			for _, a := range tt.arrivals {
				r.runUntil(a.at)
				r.clock.advance(start + a.at - r.clock.Now())
				r.submit(ask(a.id, a.prompt, a.tokens))
			}
			r.runAll()
			got, chunks := map[string][]time.Duration{}, map[string][]int{}
			for id, a := range r.answers() {
				got[id] = a.at
				if tt.chunks != nil {
					chunks[id] = sizes(a.chunks)
				}
			}
			equal(t, "outputs left at", tt.want, got)
			if tt.chunks != nil && !cmp.Equal(tt.chunks, chunks) {
				t.Errorf("outputs have %v tokens, want %v", chunks, tt.chunks)
			}
			for i, e := range r.envelopes {
				if want := (start + e.at).Seconds(); e.Timestamp != want {
					t.Errorf("envelope %d is stamped %v, want %v", i, e.Timestamp, want)
				}
			}
		})
	}
}

// runUntil makes the steps that end before a moment.
func (r *rig) runUntil(moment time.Duration) {
	for r.clock.Now()-start < moment {
		r.run()
		due, ok := r.nextDue()
		if !ok || due-start >= moment {
			return
		}
		r.clock.advance(due - r.clock.Now())
	}
}

func sizes(chunks [][]uint32) []int {
	var n []int
	for _, c := range chunks {
		n = append(n, len(c))
	}
	return n
}

func rates(t *testing.T, rates ...float64) *latency.Acceptance {
	t.Helper()
	a, err := latency.NewAcceptance(rates...)
	must(t, err)
	return a
}

// agreeing is a model that lets every decode say two tokens.
type agreeing struct{ fixed }

func (agreeing) Duration(step *latency.Step) time.Duration {
	for i := range step.Decodes {
		step.Decodes[i].Tokens = min(step.Decodes[i].Tokens, 2)
	}
	return ms
}

// Without acceptance rates the model says how many guesses are right.
func TestTheModelAcceptsGuesses(t *testing.T) {
	r := ran(t, Options{Timing: Timing{Pace: PaceModelled, Latency: agreeing{}}, Decoding: Decoding{SpeculativeTokens: 3}}, ask("a", count(0, 4), 6))
	equal(t, "tokens of each output", []int{1, 2, 2, 1}, sizes(r.answer("a").chunks))
}

// A request that comes while a step is late to end is not scheduled before it is queued.
func TestNobodyIsScheduledBeforeBeingQueued(t *testing.T) {
	r := newRig(t, Options{Timing: Timing{Pace: PaceModelled, Latency: fixed{}}}, 1)
	r.submit(ask("a", count(0, 4), 3))
	r.run()
	r.clock.advance(1500 * time.Microsecond)
	r.submit(ask("b", count(100, 4), 1))
	r.runAll()
	for _, e := range r.envelopes {
		for _, out := range e.Outputs.Outputs {
			if string(out.ID) != "b" {
				continue
			}
			queued := (start + 1500*time.Microsecond).Seconds()
			want := []any{map[string]any{"type": int64(1), "timestamp": queued}, map[string]any{"type": int64(2), "timestamp": queued}}
			equal(t, "events", want, decoded(t, out.Events))
		}
	}
	r.answer("b")
}

// A request that is aborted while a step runs leaves an idle engine whose last
// statistics say so.
func TestAnAbortWithinAStepIsReported(t *testing.T) {
	r := newRig(t, Options{Timing: Timing{Pace: PaceModelled, Latency: fixed{}}}, 1)
	r.submit(ask("a", count(0, 4), 3))
	r.run()
	r.abort([]string{"a"})
	r.runAll()
	all := slices.Concat(r.envelopes, r.quiet)
	if len(all) == 0 {
		t.Fatal("no statistics came")
	}
	last := all[len(all)-1].stats(t)
	if last["num_running_reqs"] != int64(0) || last["kv_cache_usage"] != 0.0 {
		t.Errorf("nothing runs, and the last statistics are %v", last)
	}
}

// However late the engine wakes up, 10,000 steps take 10,000 times as long as one.
func TestModelledPaceDoesNotDrift(t *testing.T) {
	const steps, late = 10_000, 300 * time.Microsecond
	r := newRig(t, Options{
		Timing: Timing{Pace: PaceModelled, Latency: &latency.Knobs{TimeToFirstToken: 5 * ms, InterTokenLatency: ms}}, Limits: Limits{MaxModelLen: 2 * steps},
	}, 1)
	r.submit(ask("a", count(0, 4), steps))
	r.run()
	for range steps {
		due, _ := r.nextDue()
		r.clock.advance(due + late - r.clock.Now())
		r.run()
	}
	a := r.answer("a")
	if len(a.at) != steps || a.finish.String() != "length" {
		t.Fatalf("%d outputs that end by %v, want %d by length", len(a.at), a.finish, steps)
	}
	if want := 5*ms + (steps-1)*ms + late; a.at[steps-1] != want {
		t.Errorf("the last of %d steps ended at %v, want %v", steps, a.at[steps-1], want)
	}
	stamps := make([]time.Duration, 0, steps)
	for _, e := range r.envelopes {
		stamps = append(stamps, time.Duration(e.Timestamp*1e9+0.5)-start)
	}
	slices.Sort(stamps)
	if last := stamps[len(stamps)-1]; last-(5*ms+(steps-1)*ms) > time.Microsecond {
		t.Errorf("the last one is stamped %v", last)
	}
}

// BenchmarkGaps tells how far the gaps between outputs are from what the model says, as
// a frontend beyond real sockets sees them, and how late the last of all is.
func BenchmarkGaps(b *testing.B) {
	const itl = 2 * ms
	ctx := b.Context()
	opt := Options{Timing: Timing{Pace: PaceModelled, Latency: &latency.Knobs{InterTokenLatency: itl}}}
	probe, err := New(opt)
	if err != nil {
		b.Fatal(err)
	}
	front, err := coreclient.Listen(coreclient.Options{Codec: probe.codec, Clients: 1})
	if err != nil {
		b.Fatal(err)
	}
	defer front.Close()
	opt.Handshake = front.Handshake()
	p, err := New(opt)
	if err != nil {
		b.Fatal(err)
	}
	ended := make(chan error, 1)
	running, stop := context.WithCancel(ctx)
	go func() { ended <- p.Run(running) }()
	if _, err := front.Accept(ctx); err != nil {
		b.Fatal(err)
	}
	<-p.Ready()

	next := func() time.Time {
		var o protocol.Outputs
		for len(o.Outputs) == 0 {
			if _, err := front.Next(ctx, 0, &o); err != nil {
				b.Fatal(err)
			}
		}
		return time.Now()
	}
	if err := front.Submit(ask("gaps", count(0, 4), b.N+1)); err != nil {
		b.Fatal(err)
	}
	first := next()
	b.ResetTimer()
	var off []time.Duration
	last := first
	for range b.N {
		now := next()
		off = append(off, (now.Sub(last) - itl).Abs())
		last = now
	}
	b.StopTimer()
	slices.Sort(off)
	b.ReportMetric(float64(off[len(off)/2].Microseconds()), "µs-off-p50")
	b.ReportMetric(float64(off[len(off)*9/10].Microseconds()), "µs-off-p90")
	b.ReportMetric(float64((last.Sub(first)-time.Duration(b.N)*itl).Microseconds())/float64(b.N), "µs-drift/step")
	stop()
	if err := <-ended; err != nil {
		b.Error(err)
	}
}
