package selftest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/player"
)

// Config is what [Run] needs.
type Config struct {
	Matrix   *compat.Matrix
	Manifest *manifest.Manifest
	Store    conformance.Store
	// Lines are names or tags of lines that have a golden of role fidelity. The
	// default is those that the patterns of Run begin with, else the newest, one in
	// the middle and the oldest.
	Lines []string
	// Run and Skip are patterns of the names of cases, such as "0.33/self-test/no-*",
	// see [conformance.ParsePattern]: what one of Run matches is played, all without
	// one, and what one of Skip matches is not.
	Run, Skip []string
	// Log gets what runner and players say, if it takes what is of use in
	// debugging: that faults are warned of is what they are for.
	Log *slog.Logger
	// Progress is called with each result as it is known, in any order and one at a time;
	// may be nil.
	Progress func(conformance.Result)

	// Frontend starts a frontend that waits for an engine of the line: the faults of the suite frontend are put in front of it.
	// Without it, they are left out.
	Frontend func(ctx context.Context, line string) (*RunningFrontend, error)

	// Fleet starts engines for the faults of routers. Without it, they are left out.
	Fleet startFleet

	// runner makes the runner that is tested; tests take another.
	runner func(conformance.Runner) runs
}

type startFleet = func(ctx context.Context, o check.FleetOptions) (urls []string, model string, stop func(), err error)

// runs is a runner, as far as the self-test needs it.
type runs interface {
	Run(ctx context.Context, cases []conformance.Case) *conformance.Report
}

// How many faults are played at a time: workers of those that wait for messages,
// waiters of those that wait for a deadline and cost nothing meanwhile.
const workers, waiters = 8, 16

// task is a fault to be played, and what came of it.
type task struct {
	fault  Fault
	scene  *scene
	lacks  string // why there is nothing to play
	result conformance.Result
}

// Run plays every fault on every line and reports on each as a case of
// [conformance.SuiteSelfTest]. A line that is unknown, or whose golden cannot be
// had or has no stream to hit, is an error.
func Run(ctx context.Context, cfg Config) (*conformance.Report, error) {
	start := time.Now()
	if cfg.Log != nil && !cfg.Log.Enabled(ctx, slog.LevelDebug) {
		cfg.Log = nil
	}
	tasks, err := cfg.tasks(ctx)
	if err != nil {
		return nil, err
	}
	if cfg.Fleet != nil {
		var end func()
		cfg.Fleet, end = sharedFleets(ctx, cfg.Fleet)
		defer end()
	}
	cfg.control(ctx, tasks)
	cfg.play(ctx, tasks)
	var results []conformance.Result
	for _, t := range tasks {
		results = append(results, t.result)
	}
	report := conformance.NewReport(results, time.Since(start))
	report.Subject = conformance.Description{Kind: "player"}
	return report, nil
}

// Entry is a fault on a line, as [List] gives it.
type Entry struct {
	Case conformance.Case
	Says string // what is wrong, in a sentence
}

// List lists what [Run] would play, in its order. A case that has nothing to show
// it with says so in its Skip.
func List(ctx context.Context, cfg Config) ([]Entry, error) {
	tasks, err := cfg.tasks(ctx)
	var entries []Entry
	for _, t := range tasks {
		c := t.fault.in(t.scene.cases[0].Line)
		c.Skip = t.lacks
		entries = append(entries, Entry{c, t.fault.Says})
	}
	return entries, err
}

// in is the case of a fault on a line.
func (f *Fault) in(line compat.Line) conformance.Case {
	return conformance.Case{Line: line, Suite: conformance.SuiteSelfTest, Assertion: conformance.Assertion(f.Name), Gating: true}
}

// play plays the tasks, those that wait for a deadline after the others: a busy
// machine is what makes a deadline pass too early.
func (cfg *Config) play(ctx context.Context, tasks []*task) {
	var told sync.Mutex
	for _, round := range []struct {
		workers int
		waits   bool
	}{{workers, false}, {waiters, true}} {
		todo := make(chan *task)
		var working sync.WaitGroup
		for range round.workers {
			working.Go(func() {
				for t := range todo {
					t.result = cfg.judged(ctx, t)
					told.Lock()
					if cfg.Progress != nil {
						cfg.Progress(t.result)
					}
					told.Unlock()
				}
			})
		}
		for _, t := range tasks {
			if (t.fault.waits != none) == round.waits {
				todo <- t
			}
		}
		close(todo)
		working.Wait()
	}
}

// control runs each scene without a fault and without the tamperer, for the
// verdicts that are usual.
func (cfg *Config) control(ctx context.Context, tasks []*task) {
	for _, t := range tasks {
		s := t.scene
		if s.expected != nil {
			continue
		}
		s.expected = map[string]conformance.Verdict{}
		runner := conformance.Runner{Store: shelf{[]stored{s.stored, s.framed.stored, s.heard.stored}, cfg.Store}, Log: cfg.Log, NoCoverage: true}
		for _, r := range runner.Run(ctx, slices.Concat(s.cases, s.framed.cases, s.heard.cases)).Results {
			s.expected[r.Case.Name()] = r.Verdict
			if r.Verdict.Red() && s.broken == "" {
				s.broken = fmt.Sprintf("%s is %s", r.Case.Name(), describe(r))
			}
		}
	}
}

// deadlines are tried one after the other by a fault that has to run into one, so
// that the first can be short: on a busy machine an engine that is well may miss it.
var deadlines = []time.Duration{200 * time.Millisecond, 2 * time.Second, 10 * time.Second}

// timeouts are those of a try, and whether there is none after it.
func (f *Fault) timeouts(try int) (limits conformance.Timeouts, last bool) {
	limits = conformance.DefaultTimeouts()
	switch f.waits {
	case connect:
		limits.Connect = deadlines[try]
	case idle:
		limits.Idle = deadlines[try]
	default:
		return limits, true
	}
	return limits, try == len(deadlines)-1
}

// judged plays a fault and judges what the runner made of it.
func (cfg *Config) judged(ctx context.Context, t *task) conformance.Result {
	if t.fault.router != nil && ctx.Err() == nil {
		return cfg.judgedRouter(ctx, t)
	}
	if t.fault.suite != nil && ctx.Err() == nil {
		return cfg.judgedSuite(ctx, t)
	}
	start := time.Now()
	result := conformance.Result{Case: t.fault.in(t.scene.cases[0].Line), Verdict: conformance.Skip, Note: t.lacks, Location: t.scene.stored.location}
	if ctx.Err() != nil {
		unplayed(ctx, &result, nil)
		return result
	}
	for try, last := 0, t.lacks != ""; !last && result.Verdict != conformance.Pass; try++ {
		var limits conformance.Timeouts
		limits, last = t.fault.timeouts(try)
		var err error
		if result, err = cfg.try(ctx, t, limits, result); err != nil {
			unplayed(ctx, &result, err)
			break
		}
	}
	result.Duration = time.Since(start)
	return result
}

// unplayed is the result of a fault that could not be played, or was not played to its end, as the run was interrupted.
func unplayed(ctx context.Context, result *conformance.Result, err error) {
	failure := check.Failed(CodeNotPlayed, "%v", err)
	if ctx.Err() != nil {
		failure = check.Failed(check.CodeNotRun, "not run: %v", context.Cause(ctx))
	}
	result.Verdict, result.Failures, result.Infra = conformance.Error, []conformance.Failure{failure}, ctx.Err() != nil
}

// try plays a fault once, and once more with an engine that has a time of its own
// where that makes a difference, or where nothing is wrong.
func (cfg *Config) try(ctx context.Context, t *task, limits conformance.Timeouts, result conformance.Result) (conformance.Result, error) {
	plays := []play{{t.fault, t.cases(), false}}
	if t.fault.ownTime {
		plays = []play{{t.fault, t.scene.framed.cases, true}}
	} else if t.fault.layout != nil || t.fault.red == nil {
		plays = append(plays, t.ownTimed())
	}
	result.Verdict, result.Failures, result.Asserted, result.Tokens = conformance.Pass, nil, 0, 0
	var results []conformance.Result
	for _, p := range plays {
		report, err := cfg.run(ctx, t, p, limits)
		if err != nil {
			return result, err
		}
		for _, f := range p.fault.judge(t.scene, report.Results) {
			if p.ownTime {
				f.Message = "with a time of its own: " + f.Message
			}
			result.Verdict, result.Failures = conformance.Fail, append(result.Failures, f)
		}
		result.Asserted, result.Tokens = result.Asserted+len(report.Results), result.Tokens+report.Tokens
		results = append(results, report.Results...)
	}
	result.Note = seen(results)
	return result, nil
}

// play is a fault with the cases that it is played to.
type play struct {
	fault   Fault
	cases   []conformance.Case
	ownTime bool // of the engine
}

// ownTimed is the play of an engine with a time of its own, one request at a time.
func (t *task) ownTimed() play {
	p := play{t.fault, nil, true}
	if t.fault.red != nil {
		p.fault.red = maps.Clone(t.fault.red)
		maps.Copy(p.fault.red, t.fault.layout)
	}
	for _, c := range t.scene.cases {
		if c.Assertion == conformance.Schema || c.Variant == (conformance.Variant{Match: player.MatchIndex, Concurrency: 1}) {
			p.cases = append(p.cases, c)
		}
	}
	if t.fault.red == nil {
		p.cases = append(p.cases, t.scene.framed.cases...)
	}
	return p
}

// run lets the runner judge an engine or a golden with the fault.
func (cfg *Config) run(ctx context.Context, t *task, p play, limits conformance.Timeouts) (*conformance.Report, error) {
	if broken := t.scene.broken; broken != "" && t.fault.red != nil {
		return nil, fmt.Errorf("not played: without a fault, %s", broken)
	}
	golden, cases := t.scene.stored, p.cases
	if t.fault.store != nil {
		var err error
		if golden, err = t.fault.store(t.scene, golden); err != nil {
			return nil, err
		}
		for i := range cases {
			if cases[i].Golden.ID == golden.golden.ID {
				cases[i].Golden = golden.golden
			}
		}
	}
	heard := t.scene.heard.stored
	if t.fault.session != "" {
		heard = t.scene.stored
	}
	if t.fault.frames != nil {
		var err error
		if heard, err = heard.rewriteFrames(t.fault.frames); err != nil {
			return nil, err
		}
		for i := range cases {
			if cases[i].Golden.ID == heard.golden.ID {
				cases[i].Golden = heard.golden
			}
		}
	}
	runner := cfg.runner(conformance.Runner{
		Store: shelf{[]stored{heard, golden, t.scene.framed.stored}, cfg.Store}, Timeouts: limits, Log: cfg.Log, EveryCase: true, NoCoverage: true,
		Engine: func(opt player.Options) (conformance.Subject, error) { return t.engine(opt, p.ownTime) },
	})
	report := runner.Run(ctx, cases)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return report, nil
}

// cases are those that are run: all of the golden, and those of recorded frames
// where the fault, or the lack of one, must show there. That a fault shows in no
// replay one of them proves, the one with requests in flight.
func (t *task) cases() []conformance.Case {
	cases := slices.Clone(t.scene.cases)
	if t.fault.session != "" {
		return cases
	}
	control := t.fault.red == nil
	if _, framed := t.fault.red[conformance.Wire]; framed || control {
		cases = append(cases, t.scene.framed.cases...)
	}
	if _, heard := t.fault.red[conformance.Frames]; heard || control {
		cases = append(cases, t.scene.heard.cases...)
	}
	if _, replayed := t.fault.red[conformance.Fidelity]; replayed || control {
		return cases
	}
	once := conformance.Variant{Match: player.MatchIndex, Concurrency: 16}
	return slices.DeleteFunc(cases, func(c conformance.Case) bool {
		return c.Assertion == conformance.Fidelity && c.Variant != once
	})
}

// engine makes a player behind a tamperer.
func (t *task) engine(opt player.Options, ownTime bool) (conformance.Subject, error) {
	if opt.Codec == nil {
		return nil, errors.New("the runner names no codec")
	}
	if ownTime && opt.Clock != nil {
		return nil, check.ErrNotStepped
	}
	subject := &tamperer{opt: opt, tamper: faithful, identity: t.fault.identity, ownTime: ownTime}
	if subject.identity == nil {
		subject.identity = protocol.Identity(opt.EngineIndex)
	}
	if t.fault.wire != nil {
		subject.tamper = t.fault.wire(t.scene.during(opt.Clock != nil))
	}
	return subject, nil
}

// kept is a store that asks another once for each golden.
type kept struct {
	conformance.Store
	mu    sync.Mutex
	known map[string]stored
}

// Fetch returns the bytes of a golden.
func (k *kept) Fetch(ctx context.Context, g manifest.Golden) (data []byte, location string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	name := g.Line + "/" + g.ID
	if b, ok := k.known[name]; ok {
		return b.data, b.location, nil
	}
	if data, location, err = k.Store.Fetch(ctx, g); err == nil {
		k.known[name] = stored{g, data, location}
	}
	return data, location, err
}

// shelf is a store that has some goldens itself.
type shelf struct {
	own    []stored
	others conformance.Store
}

// Fetch returns the bytes as they are.
func (s shelf) Fetch(ctx context.Context, g manifest.Golden) (data []byte, location string, err error) {
	for _, b := range s.own {
		if g.Line == b.golden.Line && g.ID == b.golden.ID {
			return b.data, b.location, nil
		}
	}
	return s.others.Fetch(ctx, g)
}

// seen says in a line what went red, checks that said the same together.
func seen(results []conformance.Result) string {
	type finding struct {
		code              conformance.Code
		request, position int
	}
	var order []finding
	checks := map[finding][]string{}
	for _, r := range results {
		if !r.Verdict.Red() || len(r.Failures) == 0 {
			continue
		}
		f := finding{r.Failures[0].Code, r.Failures[0].Request, r.Failures[0].Position}
		if checks[f] == nil {
			order = append(order, f)
		}
		checks[f] = append(checks[f], r.Case.Check())
	}
	slices.SortStableFunc(order, func(a, b finding) int { return cmp.Compare(len(checks[b]), len(checks[a])) })
	var parts []string
	for _, f := range order {
		place := ""
		if f.request >= 0 {
			place = fmt.Sprintf(" request %d", f.request)
		}
		if f.position >= 0 {
			place += fmt.Sprintf(" position %d", f.position)
		}
		parts = append(parts, fmt.Sprintf("%s%s in %s", f.code, place, strings.Join(checks[f], ", ")))
	}
	return strings.Join(parts, "; ")
}
