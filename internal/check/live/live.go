package live

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/invariant"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/trace"
)

// Assertions of the live suite, besides [Schema].
const (
	Handshake  check.Assertion = "handshake"
	Streaming  check.Assertion = "streaming"
	Stop       check.Assertion = "stop"
	Abort      check.Assertion = "abort"
	Utilities  check.Assertion = "utilities"
	Repeat     check.Assertion = "repeat"
	Logprobs   check.Assertion = "logprobs"
	Statistics check.Assertion = "statistics"
	Shutdown   check.Assertion = "shutdown"
)

// Checks are those of the live suite, in their order: what ends the engine comes last.
var Checks = []check.Check{
	handshake,
	schema,
	streaming,
	stop,
	abort,
	utilities,
	repeat,
	logprobs,
	statistics,
	shutdown,
}

// Cases lists the cases of the live suite on a line. What the engine registers
// with is compared with what the first of the line's goldens has, if there is one.
func Cases(line compat.Line, mf *manifest.Manifest, gating bool) []check.Case {
	var cases []check.Case
	for _, k := range Checks {
		a := k.Name
		c := check.Case{Line: line, Suite: check.SuiteLive, Assertion: a, Gating: gating}
		if goldens := mf.ForLine(line.Name); a == check.Schema && len(goldens) > 0 {
			c.Golden = goldens[0]
			c.Entry = fmt.Sprintf("%s:%d", mf.File, c.Golden.Pos)
		}
		cases = append(cases, c)
	}
	return cases
}

// live is an engine that generates tokens of its own, and what the cases of its
// line know of it. Whatever it is asked for, what it says is checked; what is wrong
// is a failure of the case that sees it.
type live struct {
	env    *check.Env
	line   compat.Line
	codec  *protocol.Codec
	asks   map[string]*ask // by id, the last one of an id that is used again
	number int             // of asks, which names them
	random *rand.Rand      // of prompts, the same in every run

	out       protocol.Outputs // scratch
	calls     map[uint64]*protocol.UtilityOutput
	invariant *invariant.Engine // what must hold of every engine
	ready     []check.Failure   // what is wrong with the registration
	timestamp map[int]float64   // of the last message to a client
	messages  int
	answered  bool          // some request has been
	client    int           // that calls are made by
	from      int           // the client that the last message came to
	short     time.Duration // see [check.Wait]
	mixed     bool          // requests of all kinds run together
	longest   time.Duration // that a message was waited for
	mute      bool          // no utility call is answered
	gauges    gauges
	statsSeen int

	// Of the case:
	s   *check.Session
	ctx context.Context
	f   *check.Outcome
	// golden is empty where the case has none.
	golden *check.Golden
	noted  map[string]bool // what has been reported once
	noise  int             // outputs that nobody asked for

	impossible []check.Failure // invariants that did not hold

	record map[*ask]*trace.Record // what an engine that replays a trace has to answer; nil for others

	// deferred are failures that another case of the line reports, by its assertion, and reported what it has reported.
	deferred map[check.Assertion][]check.Failure
	reported map[check.Assertion]map[string]bool
}

// owners are the cases that report what is wrong with a level, wherever it shows: a missing field of the statistics fails the case
// of the statistics, not that of aborts.
var owners = map[check.Level]check.Assertion{check.LevelStatistics: Statistics, check.LevelUtilities: Utilities, check.LevelLogprobs: Logprobs}

// leaveTo leaves a failure to the case of its level, if that is still to come or has reported it, and returns whether it did.
func (l *live) leaveTo(own check.Assertion, wrong check.Failure) bool {
	owner, known := owners[check.LevelOfPath(wrong.Path)]
	if !known || owner == own || !l.env.Plans(l.line.Name, owner) {
		return false
	}
	if done := l.reported[owner]; done != nil {
		return done[kindOf(wrong)]
	}
	l.deferred[owner] = append(l.deferred[owner], wrong)
	return true
}

// sort leaves failures of other levels to their cases, and takes over what other cases have left to this one.
func (l *live) sort(own check.Assertion) {
	l.f.Failures = slices.DeleteFunc(l.f.Failures, func(f check.Failure) bool { return l.leaveTo(own, f) })
	if left := l.deferred[own]; len(left) > 0 {
		l.f.Asserted++
		for _, f := range left {
			if !slices.ContainsFunc(l.f.Failures, func(known check.Failure) bool { return kindOf(known) == kindOf(f) }) {
				l.f.Fail(f)
			}
		}
		delete(l.deferred, own)
	}
	l.reported[own] = map[string]bool{}
	for _, f := range l.f.Failures {
		l.reported[own][kindOf(f)] = true
	}
}

func kindOf(f check.Failure) string { return string(f.Code) + check.Place(f.Path) }

// Errors that end a case whose failures say why.
var (
	errUnreadable = errors.New("the engine's message does not decode")
	errUnanswered = errors.New("the engine does not answer a utility call")
)

// judged makes the function of a check: it asks the engine of the line, which the first case starts.
func judged(judge func(*live) error) func(context.Context, *check.Env, *check.Golden, check.Case) (check.Outcome, error) {
	return func(ctx context.Context, e *check.Env, g *check.Golden, c check.Case) (f check.Outcome, err error) {
		l, err := liveEngine(e, c)
		switch {
		case err != nil && c.Assertion == Handshake && check.CodeOf(err) == check.CodeHandshake:
			f.Asserted = 1
			f.Fail(check.Failed(CodeEngineOrder, "%v", err))
			return f, nil
		case err != nil:
			if l, ok := (*e.State()).(*live); ok { // what was left to cases that will not run is not lost
				for _, a := range slices.Sorted(maps.Keys(l.deferred)) {
					f.Failures = append(f.Failures, l.deferred[a]...)
				}
				clear(l.deferred)
			}
			return f, err
		}
		l.begin(ctx, &f)
		defer l.leave()
		if l.golden = g; g.Codec == nil {
			g.Codec = l.codec
		}
		if err = judge(l); errors.Is(err, errUnreadable) || errors.Is(err, errUnanswered) {
			err = nil
		}
		if errors.As(err, new(check.MessageError)) {
			f.Fail(check.FailureOf(err))
			err = nil
		}
		for _, wrong := range l.impossible {
			invariant.Add(&f, wrong)
		}
		if err == nil { // a case that breaks off keeps what it has seen
			l.sort(c.Assertion)
		}
		return f, err
	}
}

// liveEngine returns the engine of the line, which the first case starts.
func liveEngine(e *check.Env, c check.Case) (*live, error) {
	codec, err := check.CodecFor(c.Line)
	if err != nil {
		return nil, err
	}
	s, err := e.ShareEngine(c.Suite, c.Line, codec)
	if err != nil {
		return nil, err
	}
	state := e.State()
	if *state == nil {
		*state = newLive(e, c, codec, s)
	}
	return (*state).(*live), nil
}

func newLive(e *check.Env, c check.Case, codec *protocol.Codec, s *check.Session) *live {
	l := &live{
		env: e, line: c.Line, codec: codec, asks: map[string]*ask{}, s: s, timestamp: map[int]float64{},
		random: rand.New(rand.NewPCG(1, 2)), calls: map[uint64]*protocol.UtilityOutput{},
		deferred: map[check.Assertion][]check.Failure{}, reported: map[check.Assertion]map[string]bool{},
		invariant: invariant.New(codec, invariant.Options{Logits: e.Logits, Scripted: e.Generate.Replays}),
	}
	l.invariant.Init(protocol.Addresses{}) // of a coordinator there are none
	l.ready = l.invariant.Registered(s.Engine.Index, s.Engine.RawReady)
	return l
}

func (l *live) begin(ctx context.Context, f *check.Outcome) {
	l.s = l.s.Owner().During(ctx)
	l.ctx, l.f, l.noted, l.noise = l.s.Context, f, map[string]bool{}, 0
	l.impossible = nil
	l.invariant.Again()
}

// leave ends a case. Requests that it left open are aborted, and what the engine
// still says of them belongs to no other case.
func (l *live) leave() {
	defer l.s.Close()
	owner := l.s.Owner()
	var open []*ask
	for _, a := range l.asks {
		if !a.closed {
			open = append(open, a)
		}
	}
	if owner.Lost != nil || owner.Context.Err() != nil || len(open) == 0 {
		return
	}
	var unheard check.Outcome
	ctx, stop := context.WithTimeout(owner.Context, l.s.Limits.Idle)
	defer stop()
	l.ctx, l.f = ctx, &unheard
	if err := l.abort(open...); err != nil && !errors.Is(err, errUnreadable) {
		l.s.Lose(fmt.Errorf("it did not come to rest after a case that broke off: %w", err))
	}
}

// fail reports something wrong, of its kind and place once a case: an engine that
// is wrong in one way is so in every message.
func (l *live) fail(place string, wrong check.Failure) {
	if key := string(wrong.Code) + place; !l.noted[key] {
		l.noted[key] = true
		l.f.Fail(wrong)
	}
}
