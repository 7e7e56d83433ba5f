package selftest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/protocol"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/player"
)

// Config is what [Run] needs.
type Config struct {
	Window   *compat.Matrix
	Registry *manifest.Manifest
	Store    conformance.Store
	// Lines are names or tags of lines that have a golden of role fidelity. The
	// default is those that the patterns of Run begin with, else the newest, one in
	// the middle and the oldest.
	Lines []string
	// Run and Skip are patterns of the names of cases, such as "0.33/self-test/no-*",
	// see [conformance.ParsePattern]: what one of Run matches is played, all without
	// one, and what one of Skip matches is not.
	Run, Skip []string
	// Log is told what runner and players say, if it takes what is of use in
	// debugging: that faults are warned of is what they are for.
	Log *slog.Logger
	// Progress is told each result as it is known, in any order and one at a time;
	// may be nil.
	Progress func(conformance.Result)

	// runner makes the runner that is tested; tests take another.
	runner func(conformance.Runner) runs
}

// runs is a runner, as far as the self-test needs it.
type runs interface {
	Run(ctx context.Context, cases []conformance.Case) *conformance.Report
}

// workers is how many faults are played at a time. Most of them wait.
const workers = 8

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
	queue := slices.Clone(tasks)
	slices.SortStableFunc(queue, func(a, b *task) int { return int(min(a.fault.waits, 1)) - int(min(b.fault.waits, 1)) })
	todo := make(chan *task)
	var told sync.Mutex
	var working sync.WaitGroup
	for range workers {
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
	for _, t := range queue {
		todo <- t
	}
	close(todo)
	working.Wait()
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
		runner := conformance.Runner{Store: shelf{s.stored, cfg.Store}, Log: cfg.Log}
		for _, r := range runner.Run(ctx, slices.Concat(s.cases, s.frames)).Results {
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
	start := time.Now()
	result := conformance.Result{Case: t.fault.in(t.scene.cases[0].Line), Verdict: conformance.Skip, Note: t.lacks, Location: t.scene.stored.location}
	for try, last := 0, t.lacks != ""; !last && result.Verdict != conformance.Pass; try++ {
		var limits conformance.Timeouts
		limits, last = t.fault.timeouts(try)
		report, err := cfg.run(ctx, t, limits)
		if err != nil {
			result.Verdict, result.Failures = conformance.Error, []conformance.Failure{wrong(CodeNotPlayed, "%v", err)}
			result = result.WithInfra(ctx.Err() != nil)
			break
		}
		result.Failures = t.fault.judge(t.scene, report.Results)
		result.Note, result.Asserted, result.Tokens = seen(report.Results), len(report.Results), report.Tokens
		if result.Verdict = conformance.Pass; len(result.Failures) > 0 {
			result.Verdict = conformance.Fail
		}
	}
	result.Duration = time.Since(start)
	return result
}

// run lets the runner judge an engine or a golden with the fault.
func (cfg *Config) run(ctx context.Context, t *task, limits conformance.Timeouts) (*conformance.Report, error) {
	if broken := t.scene.broken; broken != "" && t.fault.red != nil {
		return nil, fmt.Errorf("not played: without a fault, %s", broken)
	}
	golden := t.scene.stored
	cases := t.cases()
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
	runner := cfg.runner(conformance.Runner{
		Store: shelf{golden, cfg.Store}, Timeouts: limits, Log: cfg.Log, Engine: t.engine,
	})
	report := runner.Run(ctx, cases)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("not played to its end: %w", context.Cause(ctx))
	}
	return report, nil
}

// cases are those that are run: all of the golden, and those of recorded frames
// where the fault, or the lack of one, must show there.
func (t *task) cases() []conformance.Case {
	cases := slices.Clone(t.scene.cases)
	if _, framed := t.fault.red[conformance.Wire]; framed || t.fault.red == nil {
		cases = append(cases, t.scene.frames...)
	}
	return cases
}

// engine makes a player behind a tamperer.
func (t *task) engine(opt player.Options) (conformance.Subject, error) {
	if opt.Codec == nil {
		return nil, errors.New("the runner names no codec")
	}
	subject := &tamperer{opt: opt, tamper: faithful, identity: t.fault.identity}
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

// shelf is a store that has one golden itself.
type shelf struct {
	stored
	others conformance.Store
}

// Fetch returns the bytes as they are.
func (s shelf) Fetch(ctx context.Context, g manifest.Golden) (data []byte, location string, err error) {
	if g.Line == s.golden.Line && g.ID == s.golden.ID {
		return s.data, s.location, nil
	}
	return s.others.Fetch(ctx, g)
}
