package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/player"
)

// Assertions of the live suite, besides [Schema].
const (
	Handshake  Assertion = "handshake"
	Streaming  Assertion = "streaming"
	Stop       Assertion = "stop"
	Abort      Assertion = "abort"
	Utilities  Assertion = "utilities"
	Repeat     Assertion = "repeat"
	Statistics Assertion = "statistics"
	Shutdown   Assertion = "shutdown"
)

// LiveAssertions are those of the live suite, in their order: what ends the engine
// comes last.
func LiveAssertions() []Assertion {
	return []Assertion{Handshake, Schema, Streaming, Stop, Abort, Utilities, Repeat, Statistics, Shutdown}
}

// liveCases lists the cases of the live suite on a line. What the engine registers
// with is compared with what the first of the line's goldens has, if there is one.
func liveCases(line compat.Line, registry *manifest.Manifest, gating bool) []Case {
	var cases []Case
	for _, a := range LiveAssertions() {
		c := Case{Line: line, Suite: SuiteLive, Assertion: a, Gating: gating}
		if goldens := registry.ForLine(line.Name); a == Schema && len(goldens) > 0 {
			c.Golden = goldens[0]
			c.Entry = fmt.Sprintf("%s:%d", registry.File, c.Golden.Pos)
		}
		cases = append(cases, c)
	}
	return cases
}

// live is an engine that generates tokens of its own, and what the cases of its
// line know of it. Whatever it is asked for, what it says is checked; what is wrong
// is a finding of the case that sees it.
type live struct {
	runner *Runner
	line   compat.Line
	codec  *protocol.Codec
	asks   map[string]*ask // by id, the last one of an id that is used again
	number int             // of asks, which names them
	random *rand.Rand      // of prompts, the same in every run

	out       protocol.Outputs // scratch
	calls     map[uint64]*protocol.UtilityOutput
	timestamp float64 // of the last message
	messages  int
	gauges    gauges
	statsSeen int

	// Of the case:
	s     *session
	ctx   context.Context
	f     *check.Outcome
	noted map[string]bool // what has been reported once
	noise int             // outputs that nobody asked for
}

// errUnreadable ends a case whose finding says why.
var errUnreadable = errors.New("the engine's message does not decode")

// assertLive makes one assertion of the live suite.
func (r *Runner) assertLive(ctx context.Context, g *check.Golden, c Case) (f check.Outcome, err error) {
	l, err := r.liveEngine(ctx, c)
	switch {
	case err != nil && c.Assertion == Handshake && check.CodeOf(err) == check.CodeHandshake:
		f.Asserted = 1
		f.Fail(check.Failed(CodeEngineOrder, "%v", err))
		return f, nil
	case err != nil:
		return f, err
	}
	l.begin(ctx, &f)
	defer l.leave()
	if g.Codec == nil {
		g.Codec = l.codec
	}
	if err = l.check(g, c.Assertion); errors.Is(err, errUnreadable) {
		err = nil
	}
	return f, err
}

func (l *live) check(g *check.Golden, a Assertion) error {
	switch a {
	case Handshake:
		return l.checkHandshake()
	case Schema:
		return l.checkSchema(g)
	case Streaming:
		return l.checkStreaming()
	case Stop:
		return l.checkStop()
	case Abort:
		return l.checkAbort()
	case Utilities:
		return l.checkUtilities()
	case Repeat:
		return l.checkRepeat()
	case Statistics:
		return l.checkStatistics()
	case Shutdown:
		return l.checkShutdown()
	}
	return fmt.Errorf("the live suite has no assertion %q", a)
}

// liveEngine returns the engine of the line, which the first case starts.
func (r *Runner) liveEngine(ctx context.Context, c Case) (*live, error) {
	codec, err := check.CodecFor(c.Line)
	if err != nil {
		return nil, err
	}
	s, err := r.share("live "+c.Line.Name, func() (*session, error) {
		opt := player.Options{VLLMVersion: check.PlayedVersion(c.Line)}
		if r.Address != "" {
			return r.join(r.run(ctx), codec, opt)
		}
		return r.start(r.run(ctx), codec, opt)
	})
	if err != nil {
		return nil, err
	}
	if r.sharing.live == nil {
		r.sharing.live = &live{
			runner: r, line: c.Line, codec: codec, asks: map[string]*ask{}, s: s,
			random: rand.New(rand.NewPCG(1, 2)), calls: map[uint64]*protocol.UtilityOutput{},
		}
	}
	return r.sharing.live, nil
}

// begin starts a case.
func (l *live) begin(ctx context.Context, f *check.Outcome) {
	l.s = l.s.owner().during(ctx)
	l.ctx, l.f, l.noted, l.noise = l.s.ctx, f, map[string]bool{}, 0
}

// leave ends a case. Requests that it left open are aborted, and what the engine
// still says of them belongs to no other case.
func (l *live) leave() {
	defer l.s.leave()
	owner := l.s.owner()
	if owner.lost != nil || owner.ctx.Err() != nil || !l.anyOpen() {
		return
	}
	var unheard check.Outcome
	ctx, stop := context.WithTimeout(owner.ctx, l.s.limits.Idle)
	defer stop()
	l.ctx, l.f = ctx, &unheard
	if err := l.abortOpen(); err != nil && !errors.Is(err, errUnreadable) {
		l.s.lose(fmt.Errorf("it did not come to rest after a case that broke off: %w", err))
	}
}

// fail reports something wrong, of its kind and place once a case: an engine that
// is wrong in one way is so in every message.
func (l *live) fail(place string, wrong Failure) {
	if key := string(wrong.Code) + place; !l.noted[key] {
		l.noted[key] = true
		l.f.Fail(wrong)
	}
}
