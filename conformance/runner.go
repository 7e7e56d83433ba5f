package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/coverage"
	"github.com/vllm-vcr/conformance/internal/check/replay"
	"github.com/vllm-vcr/conformance/internal/golden"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/trace"
)

// Store yields the bytes of goldens.
type Store interface {
	// Fetch returns the bytes of a golden, and where they are. A
	// *golden.MismatchError says that what is there is not what was registered,
	// and fails the golden's integrity. Any other error ends its cases as errors.
	Fetch(ctx context.Context, g manifest.Golden) (data []byte, location string, err error)
}

// A Prefetcher is a Store that can get goldens ahead of their use.
type Prefetcher interface {
	Store
	// Prefetch begins to get the goldens, in this order, and returns. It changes how
	// long a Fetch takes, and nothing else. The returned function ends it and waits
	// until it has ended.
	Prefetch(ctx context.Context, goldens []manifest.Golden) (stop func())
}

// Runner runs the cases of a plan.
type Runner struct {
	Store    Store
	Timeouts Timeouts
	Log      *slog.Logger
	// Progress is called with each result as it is known; may be nil.
	Progress func(Result)
	// Step is called with what a subject is waited for while it starts: "waiting for HELLO"; may be nil.
	Step func(step string)
	// MaxFailures ends the run after so many cases that failed or could not be judged: those left are skipped. 0 is no limit.
	MaxFailures int
	// EveryCase runs the other cases of a line, too, after its subject hung, could not be started, or ended at its start with
	// two goldens. By default these are skipped, with the name of the case that says why.
	EveryCase bool

	// Engine makes the engine under test of a case, default [Player].
	Engine Engine
	// Address, unless empty, is where an engine that somebody else starts is awaited
	// instead; all cases share it. See [CheckAddress].
	Address string
	// Logits: the engine under test was started with --logprobs-mode raw_logits or processed_logits, so it sends numbers
	// above 0 as log-probabilities. The wire does not tell.
	Logits bool
	// NIXL is a Python with the package nixl, which the suites prefill and decode need.
	NIXL string
	// FramesOut, unless nil, is given the messages of the first cases of these suites, for a golden of role nixl.
	FramesOut func([]trace.Message) error
	// KeepAlive, unless nil, is for a person with a debugger: it is told of each
	// subject as it starts, no deadline counts, and the last one stays until the
	// run's context ends or it does.
	KeepAlive func(Attached)
	// Subject describes what is under test; what it says it is, is filled in.
	Subject Description

	// Levels are those that gate, without any all do.
	Levels []Level
	// Expectations are what is known to fail; may be nil. All are the cases that
	// their patterns must be of, see [EveryCase], default the cases of the run.
	Expectations *Expectations
	All          []Case
	// Now decides which expectations have expired, default [time.Now].
	Now func() time.Time

	// Coverage asks for the names of all that is covered, and of all that is not; NoCoverage for no coverage at all.
	Coverage, NoCoverage bool

	// Frontend is what the cases of the frontend suite are made of; nil for the others.
	Frontend *FrontendUnderTest
	// Consumer is what the cases of the suite kv-consumer are made of; nil for the others.
	Consumer *ConsumerUnderTest

	// Router is what the cases of the router suite are made of; nil for the others.
	Router *RouterUnderTest
	// Generate is what the suite generated does.
	Generate check.Generate
}

// run is one run of a [Runner], whose settings it has with the defaults filled in. It is used by one goroutine, which takes the
// results in the order of the cases; see [pool] for those that make them.
type run struct {
	Runner
	env     *check.Env
	covered []*coverage.Line
	heard   map[string]*coverage.Line // of the engine under test
	faced   map[string]*coverage.Line // what passed between the frontend under test and its engine
	red     []string                  // the names of the cases that failed or could not be judged
	gaveUp  map[string]string         // why the other cases of a line are skipped, by line
	atStart bool                      // the last case failed before its subject had come through the handshake
	ended   map[string]Case           // the first case, by line, whose subject ended before that
}

// begin starts a run. It leaves the runner as it is.
func (r *Runner) begin(ctx context.Context) *run {
	started := &run{Runner: *r, gaveUp: map[string]string{}, ended: map[string]Case{}}
	started.setDefaults()
	started.env = started.newEnv(ctx)
	if r.Coverage && r.Frontend != nil {
		started.faced = map[string]*coverage.Line{}
		started.env.Exchanged = func(line string, x check.Exchange) {
			if started.faced[line] == nil {
				started.faced[line] = coverage.New(x.Codec)
			}
			started.faced[line].AddExchange(x)
		}
	}
	if r.Coverage && (r.Engine != nil || r.Address != "") {
		started.heard = map[string]*coverage.Line{}
		started.env.Wanted = func(line string) bool { return started.heard[line] == nil }
		started.env.Heard = func(line string, c check.Conversation) {
			started.heard[line] = coverage.New(c.Codec)
			started.heard[line].AddConversation(c)
		}
	}
	return started
}

// newEnv is what subjects of the run have in common. One is used by one goroutine.
func (r *run) newEnv(ctx context.Context) *check.Env {
	return &check.Env{
		Engine: r.Engine, Address: r.Address, Logits: r.Logits, NIXL: r.NIXL, FramesOut: r.FramesOut, Frontend: r.Frontend, Generate: r.Generate, Consumer: r.Consumer, Router: r.Router, KeepAlive: r.KeepAlive, Timeouts: r.Timeouts,
		Log: r.Log, Context: ctx, Versions: map[string]string{}, Step: r.Step,
	}
}

// Run runs the cases and reports on each, in their order: one whose golden cannot be
// fetched or read, or that the end of ctx came before, is an error, not a
// silence. A Runner can run several times, also at once.
func (r *Runner) Run(ctx context.Context, cases []Case) *Report {
	run := r.begin(ctx)
	defer run.prefetch(ctx, cases)()
	start := time.Now()
	all := r.All
	if all == nil {
		all = cases
	}
	expected := NewJudge(r.Expectations, all, run.Now())
	var results []Result
	groups := groupCases(cases)
	run.env.Planned = cases
	pool := run.startPool(ctx, r.workers(cases), groups)
	for _, group := range groups {
		g := pool.golden(group)
		run.cover(g)
		for i, c := range group.cases {
			result := expected.Apply(run.runCase(g, c, func() attempt { return pool.attempt(group, g, i) }))
			run.note(g, result)
			if r.MaxFailures > 0 && len(run.red) >= r.MaxFailures {
				pool.cancel() // the cases that are left are skipped
			}
			if r.Progress != nil {
				r.Progress(result)
			}
			results = append(results, result)
		}
		pool.release(group)
	}
	pool.wait()
	took := time.Since(start)
	report := NewReport(results, took, r.Levels...)
	report.Subject = r.Subject
	report.Subject.Versions = run.env.Versions
	for _, l := range run.covered {
		s := l.Summarise(r.Coverage)
		if heard := run.heard[l.Line]; heard != nil {
			s.Judge(heard)
		}
		if faced := run.faced[l.Line]; faced != nil {
			s.Face(faced)
		}
		report.Coverage = append(report.Coverage, s)
	}
	report.Blame(expected.Failures...)
	return report
}

// cover adds what a golden holds to what is known of its line.
func (r *run) cover(g *check.Golden) {
	if r.NoCoverage || g.Codec == nil || g.ReadErr != nil || g.Mismatch != nil {
		return
	}
	at := slices.IndexFunc(r.covered, func(l *coverage.Line) bool { return l.Line == g.Codec.Line() })
	if at < 0 {
		at = len(r.covered)
		r.covered = append(r.covered, coverage.New(g.Codec))
	}
	r.covered[at].AddGolden(g, r.Coverage)
}

// prefetch lets the store get the goldens ahead of the cases, if it can.
func (r *run) prefetch(ctx context.Context, cases []Case) (stop func()) {
	store, ok := r.Store.(Prefetcher)
	if !ok {
		return func() {}
	}
	var goldens []manifest.Golden
	for i, c := range cases {
		if check.NeedsGolden(c) && (i == 0 || !sameGolden(c, cases[i-1]) || !check.NeedsGolden(cases[i-1])) {
			goldens = append(goldens, c.Golden)
		}
	}
	return store.Prefetch(ctx, goldens)
}

func (r *run) setDefaults() {
	usual := DefaultTimeouts()
	for _, limit := range []struct{ set, usual *time.Duration }{
		{&r.Timeouts.Connect, &usual.Connect}, {&r.Timeouts.Idle, &usual.Idle}, {&r.Timeouts.Golden, &usual.Golden},
	} {
		if *limit.set <= 0 {
			*limit.set = *limit.usual
		}
	}
	if r.KeepAlive != nil {
		r.Timeouts = check.WithoutDeadlines()
	}
	if r.Log == nil {
		r.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	if r.Engine == nil {
		r.Engine = Player
	}
	if r.Now == nil {
		r.Now = time.Now
	}
}

func sameGolden(a, b Case) bool {
	return a.Line.Name == b.Line.Name && a.Suite == b.Suite && a.Golden.ID == b.Golden.ID
}

// withDeadline bounds a case.
func (r *run) withDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, r.Timeouts.Golden,
		check.Infra(check.WithCode(check.CodeDeadline, fmt.Errorf("the case took longer than %v", r.Timeouts.Golden))))
}

// runCase makes the result of a case from an attempt at it, which is not asked for if the case is skipped.
func (r *run) runCase(g *check.Golden, c Case, try func() attempt) Result {
	result := Result{Case: c, Location: g.Location}
	skip, broken := cmp.Or(c.Skip, r.skips(c)), g.Unusable(c.Assertion)
	if skip == "" && broken != nil && g.Blamed != "" {
		skip = "not judged: see " + g.Blamed
	}
	if skip != "" {
		result.Verdict, result.Note = Skip, skip
		return result
	}
	if broken != nil {
		g.Blamed = c.Check()
	}
	made := try()
	f, err := made.outcome, made.err
	r.atStart = errors.As(err, new(check.StartError))
	if lost := (*check.LostError)(nil); errors.As(err, &lost) && slices.Contains(r.red, lost.In) && !r.EveryCase {
		r.gaveUp[c.Line.Name] = fmt.Sprintf("not judged: the engine was lost in %s: %s", lost.In, lost.Reason)
		result.Verdict, result.Note = Skip, r.gaveUp[c.Line.Name]
		return result
	}
	result.Failures, result.Asserted, result.Tokens, result.Note = f.Failures, f.Asserted, f.Tokens, f.Note
	result.Needs = f.Needs
	result.Duration = made.took
	var infra check.InfraError
	switch {
	case len(f.Failures) > 0:
		result.Verdict = Fail
	case err != nil:
		result.Verdict, result.Infra = Error, errors.As(err, &infra) || made.interrupted
	case f.Asserted == 0:
		result.Verdict = Skip
	default:
		result.Verdict = Pass
	}
	if err != nil {
		result.Failures = append(result.Failures, check.FailureOf(err))
	}
	return result
}

// skips is why a case is not run that comes after others, empty if it is.
func (r *run) skips(c Case) string {
	switch {
	case r.MaxFailures > 0 && len(r.red) >= r.MaxFailures:
		return fmt.Sprintf("not run: the run ends after %s, the last of which is %s", safetext.Count(r.MaxFailures, "failed case"), r.red[r.MaxFailures-1])
	case c.UsesSubject():
		return r.gaveUp[c.Line.Name]
	}
	return ""
}

// note remembers what a result means for the cases after it.
func (r *run) note(g *check.Golden, result Result) {
	if !result.Verdict.Red() {
		return
	}
	c := result.Case
	r.red = append(r.red, c.Name())
	if r.EveryCase || r.gaveUp[c.Line.Name] != "" || g.FetchErr != nil || len(result.Failures) == 0 {
		return
	}
	why := ""
	switch result.Failures[len(result.Failures)-1].Code { // what ends a case comes last
	case check.CodeStart:
		if !result.Infra {
			return // it refuses what this case plays
		}
		why = "could not be started"
	case check.CodeNoHandshake, check.CodeSilence, check.CodeDeadline:
		why = "did not answer in time"
	case check.CodeConsumerProtocol:
		why = "does not follow the protocol, as seen"
	case check.CodeStrict:
		why = "answers only shorter requests, as seen"
	case check.CodeEngineSessionLost:
		why = "was gone"
	case check.CodeEngineEnded:
		first, again := r.ended[c.Line.Name]
		switch {
		case !r.atStart:
			return
		case !again:
			r.ended[c.Line.Name] = c
			return
		case first.Golden.ID == c.Golden.ID:
			return // it may be the golden that it cannot play
		}
		why = "ended before it had registered, also"
	default:
		return
	}
	r.gaveUp[c.Line.Name] = fmt.Sprintf("not run: the subject %s in %s", why, c.Name())
}

// assert makes one assertion.
func (r *run) assert(ctx context.Context, env *check.Env, g *check.Golden, c Case) (f check.Outcome, err error) {
	if ctx.Err() != nil {
		return f, notRun(ctx)
	}
	if err := g.Unusable(c.Assertion); err != nil {
		if c.Assertion == Integrity && g.Mismatch != nil {
			return g.Integrity, nil
		}
		return f, err
	}
	ctx, stop := r.withDeadline(ctx)
	defer stop()
	k, known := checkOf(c)
	if !known {
		return f, fmt.Errorf("suite %s has no assertion %q", c.Suite, c.Assertion)
	}
	return k.Run(ctx, env, g, c)
}

// load fetches and reads a case's golden.
func (r *run) load(ctx context.Context, c Case) *check.Golden {
	g := &check.Golden{Registered: c.Golden}
	if !check.NeedsGolden(c) {
		return g
	}
	if ctx.Err() != nil {
		g.FetchErr = notRun(ctx)
		return g
	}
	ctx, stop := context.WithTimeoutCause(ctx, r.Timeouts.Golden, &golden.TimeoutError{After: r.Timeouts.Golden})
	defer stop()
	var data []byte
	data, g.Location, g.FetchErr = r.Store.Fetch(ctx, c.Golden)
	var mismatch *golden.MismatchError
	switch {
	case errors.As(g.FetchErr, &mismatch):
		g.FetchErr, g.Mismatch = nil, g.FetchErr // which may tell of other locations too
	case errors.As(g.FetchErr, new(*golden.TimeoutError)):
		g.FetchErr = check.Infra(check.WithCode(check.CodeDeadline, g.FetchErr))
	case g.FetchErr != nil:
		g.FetchErr = check.Infra(check.WithCode(check.CodeFetch, g.FetchErr))
	default:
		if g.Integrity = replay.CheckIntegrity(c.Golden, g.Location, data); len(g.Integrity.Failures) > 0 {
			g.Mismatch = errors.New(g.Integrity.Failures[0].Message)
		} else {
			g.ReadErr = check.WithCode(check.CodeGolden, g.Read(c.Line, data))
		}
	}
	if g.Mismatch != nil && len(g.Integrity.Failures) == 0 {
		g.Integrity = replay.WrongBytes(g.Mismatch)
	}
	return g
}

// notRun is the error of a case that the end of the run came before.
func notRun(ctx context.Context) error {
	return check.Infra(check.WithCode(check.CodeNotRun, fmt.Errorf("not run: %w", context.Cause(ctx))))
}
