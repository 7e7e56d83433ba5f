package conformance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/player"
)

// checkWire lets the engine under test go through the session that a golden of
// role wire recorded: it is sent the real frontend's messages byte for byte, says
// to each request what the real engine said, and every message of it is compared
// with the real engine's.
//
// For that it must take its answers from [player.Options] Source and its time from
// Clock, as the player does, whoever stands between: only then are its steps those
// of the real engine. One that has a time of its own is not judged. It would need
// to be told, besides the tokens, in which step each output leaves.
func (r *Runner) checkWire(ctx context.Context, g *check.Golden, c Case) (f check.Outcome, err error) {
	w, err := newWireSession(g.Location, g.Codec, g.Frames)
	if err != nil {
		return f, check.WithCode(check.CodeGolden, err)
	}
	f, err = r.replayWire(ctx, g, c, w)
	if errors.Is(err, errNotStepped) {
		return check.Outcome{Note: "not judged: " + errNotStepped.Error()}, nil
	}
	return f, err
}

// replayWire replays a session and says what was found.
func (r *Runner) replayWire(ctx context.Context, g *check.Golden, c Case, w *wireSession) (f check.Outcome, err error) {
	run, err := r.bootWire(ctx, g, c, w)
	if err != nil {
		return f, err
	}
	defer run.close()
	err = run.all()
	run.comparison.report(&f)
	if left := w.leftOut(); left != "" {
		f.AddNote(left)
	}
	return f, err
}

// bootWire starts the engine under test on a session.
func (r *Runner) bootWire(ctx context.Context, g *check.Golden, c Case, w *wireSession) (*wireReplay, error) {
	clock := new(stepClock)
	clock.set(beforeStep(0))
	run := &wireReplay{recorded: w, comparison: newWireComparison(g.Location, g.Codec, clock), clock: clock}
	var err error
	run.session, err = r.boot(ctx, g.Codec, player.Options{
		VLLMVersion: check.PlayedVersion(c.Line), Trace: g.Trace, Source: w, Timing: player.Timing{Pace: player.PaceRecorded}, Clock: run.clock,
	})
	if err != nil {
		return nil, err
	}
	run.listen = func(ctx context.Context) ([][]byte, error) { return run.front.NextRaw(ctx, 0) }
	return run, nil
}

// wireReplay is a session that is being replayed.
type wireReplay struct {
	*session
	recorded   *wireSession
	comparison *wireComparison
	clock      *stepClock
	listen     func(context.Context) ([][]byte, error) // the engine's next message

	ctx     context.Context // ends also when the engine is silent
	next    int             // the first message of the frontend that has not been sent
	pokes   uint64
	pending []wireHeard // heard, and not yet compared
	drained bool        // what a real engine says when nothing is left to do was not recorded, and may come
}

// errNotStepped is the error of an engine that has a time of its own.
var errNotStepped = errors.New("the engine under test does not take its answers and its time from the runner, without which its messages are not those of the recorded steps")

// all replays the whole session.
func (w *wireReplay) all() error {
	ctx, stop := context.WithCancelCause(w.session.ctx)
	defer stop(nil)
	w.ctx = ctx
	w.quiet = time.AfterFunc(w.limits.Idle, func() {
		stop(check.Infra(check.WithCode(check.CodeSilence, fmt.Errorf("no message for %v", w.limits.Idle))))
	})
	defer w.quiet.Stop()
	w.handshake()
	for at, m := range w.recorded.said {
		if err := w.step(at); err != nil {
			return fmt.Errorf("%s: line %d: while it was replayed: %w", w.recorded.name, m.Line, w.explain(err))
		}
	}
	w.expectDrain(len(w.recorded.said))
	w.strays(w.recorded.said[len(w.recorded.said)-1], len(w.pending))
	return nil
}

// handshake compares what the engine said before it was sent anything.
func (w *wireReplay) handshake() {
	for i := range w.recorded.statuses {
		var got [][]byte
		if i < len(w.engine.Statuses) {
			got = w.engine.Statuses[i : i+1]
		}
		w.comparison.message("EngineStatus", &w.recorded.statuses[i], nil, got)
	}
	w.comparison.message("EngineCoreReadyResponse", &w.recorded.registration, nil, [][]byte{w.engine.RawReady})
}

// step sends what comes before one message of the real engine, lets the engine
// under test make that step, and compares what it says.
func (w *wireReplay) step(at int) error {
	want := w.recorded.said[at]
	w.expectDrain(at)
	w.clock.set(beforeStep(at))
	if err := w.send(at); err != nil || want.left != "" {
		return err
	}
	w.clock.set(stepTime(at))
	if err := w.await(want.class); err != nil {
		return err
	}
	w.compare(want)
	return nil
}

// expectDrain tolerates the message by which an engine tells that nothing is left
// to do, where the real engine was asked for more before it came to that.
func (w *wireReplay) expectDrain(at int) {
	if at > 0 {
		before := w.recorded.said[at-1]
		w.drained = w.drained || before.drains && !before.drained
	}
}

// send sends what comes before a message, and waits until it has been taken in:
// all of it belongs to one step.
func (w *wireReplay) send(at int) error {
	first := w.next
	for ; w.next < len(w.recorded.sent) && w.recorded.sent[w.next].place <= at; w.next++ {
		if err := w.front.SendRaw(0, w.recorded.sent[w.next].Frames...); err != nil {
			return err
		}
	}
	if w.next == first {
		return nil
	}
	if err := w.poke(); err != nil {
		return err
	}
	if !w.clock.asked.Load() {
		return errNotStepped
	}
	return nil
}

// await makes sure that what the engine says in a step has been heard. It answers
// calls between two steps: when it has answered the second, it has made the step
// before, and when the third, also the one in which it finds nothing left to do.
// What came by the second shows outputs that nobody expects, too.
func (w *wireReplay) await(class wireClass) error {
	for pokes := 0; ; pokes++ {
		enough := w.heard(class) >= 0 && (class != wireStep || pokes >= 2)
		if enough || pokes == 3 {
			return nil
		}
		if err := w.poke(); err != nil {
			return err
		}
	}
}

// heard is the index of the first pending message of a class, -1 for none.
func (w *wireReplay) heard(class wireClass) int {
	return slices.IndexFunc(w.pending, func(m wireHeard) bool { return m.class == class })
}

// compare compares a message with the pending one that is its counterpart. Those
// before that are strays, and so are more steps with outputs and more answers: no
// other is due.
func (w *wireReplay) compare(want *wireSaid) {
	at := w.heard(want.class)
	if at < 0 {
		at = w.heard(wireOther)
	}
	if at < 0 {
		w.comparison.unsaid(want)
		return
	}
	w.strays(want, at)
	w.comparison.message("EngineCoreOutputs", &want.wireMessage, want.requests, w.pending[0].frames)
	w.pending = w.pending[1:]
	w.drained = false
	for _, class := range []wireClass{wireStep, wireUtility} {
		for more := w.heard(class); more >= 0; more = w.heard(class) {
			w.strays(want, more+1)
		}
	}
}

// strays reports the first n pending messages as such.
func (w *wireReplay) strays(beside *wireSaid, n int) {
	for _, m := range w.pending[:n] {
		if m.class == wireIdle && w.drained {
			w.drained = false
			continue
		}
		w.comparison.stray(beside, m)
	}
	w.pending = w.pending[n:]
}

// firstPoke is the id of the first call of ours; a frontend counts from 1.
const firstPoke = 1 << 62

// poke makes a utility call of our own, which also wakes an engine that waits for
// its clock, and listens until it is answered.
func (w *wireReplay) poke() error {
	id := firstPoke + w.pokes
	w.pokes++
	call := protocol.AppendUtilityCall(nil, protocol.UtilityCall{CallID: id, Method: "is_sleeping"})
	if err := w.front.SendRaw(0, []byte{protocol.TypeUtility}, call); err != nil {
		return err
	}
	for {
		frames, err := w.listen(w.ctx)
		if err != nil {
			return err
		}
		w.quiet.Reset(w.limits.Idle)
		if len(frames) == 1 && string(frames[0]) == protocol.EngineDead {
			return protocol.ErrEngineDead
		}
		m := w.recorded.look(frames)
		if m.class == wireUtility && m.call == id {
			return nil
		}
		if len(w.pending) < maxStrays {
			w.pending = append(w.pending, m)
		}
	}
}

// leftOut says which messages were not compared.
func (w *wireSession) leftOut() string {
	counts := map[string]int{}
	for _, m := range w.said {
		if m.left != "" {
			counts[m.left]++
		}
	}
	var parts []string
	for _, reason := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d %s", counts[reason], reason))
	}
	if parts == nil {
		return ""
	}
	return "not compared: " + strings.Join(parts, ", ")
}
