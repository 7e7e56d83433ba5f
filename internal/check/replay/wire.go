package replay

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/player"
	"github.com/vllm-vcr/conformance/trace"
)

//go:embed wire.md
var wireCheckCodes string

var wireCheck = check.Check{Name: check.Wire, Codes: wireCheckCodes, Levels: []check.Level{check.LevelCore, check.LevelStatistics}, Run: checkWire}

// checkWire lets the engine under test go through the session that a golden of
// role wire recorded: it is sent the real frontend's messages byte for byte, says
// to each request what the real engine said, and every message of it is compared
// with the real engine's.
//
// For that it must take its answers from [player.Options] Source and its time from
// Clock, as the player does, with or without a proxy between them: only then are its steps those
// of the real engine. Of one that has a time of its own less is compared, see
// [wireInOwnTime], and nothing of one that somebody else started: it has no trace of ours.
func checkWire(ctx context.Context, e *check.Env, g *check.Golden, c check.Case) (f check.Outcome, err error) {
	w, err := NewWireSession(g.Location, g.Codec, g.Frames)
	if err != nil {
		return f, check.WithCode(check.CodeGolden, err)
	}
	f, err = replayWire(ctx, e, g, c, w)
	switch {
	case !errors.Is(err, check.ErrNotStepped):
		return f, err
	case e.Address != "":
		return check.Outcome{Note: "not judged: nobody gave the engine this session to replay"}, nil
	}
	return wireInOwnTime(ctx, e, g, c, w)
}

func replayWire(ctx context.Context, e *check.Env, g *check.Golden, c check.Case, w *WireSession) (f check.Outcome, err error) {
	run, err := BootWire(ctx, e, g, c, w)
	if err != nil {
		return f, err
	}
	defer run.Close()
	err = run.All()
	run.Comparison.Report(&f)
	if left := w.leftOut(); left != "" {
		f.AddNote(left)
	}
	return f, err
}

// BootWire starts the engine under test on a session.
func BootWire(ctx context.Context, e *check.Env, g *check.Golden, c check.Case, w *WireSession) (*WireReplay, error) {
	clock := new(StepClock)
	clock.Set(beforeStep(0))
	run := &WireReplay{Recorded: w, Comparison: NewWireComparison(g.Location, g.Codec, clock), clock: clock}
	var err error
	run.Replaying, err = Boot(ctx, e, g.Codec, player.Options{
		VLLMVersion: check.PlayedVersion(c.Line), Trace: g.Trace, Source: w, Timing: player.Timing{Pace: player.PaceRecorded}, Clock: run.clock,
		Transfer: w.connector(g.Trace.Meta), Pooling: w.pooling(),
	})
	if err != nil {
		return nil, err
	}
	run.Listen = func(ctx context.Context) ([][]byte, error) { return run.Front.NextRaw(ctx, 0) }
	return run, nil
}

// connector is the KV connector of the recorded engine, nil without one. It names itself as that did. What it pulls is there at
// once, as no other engine takes part in a replay.
func (w *WireSession) connector(meta trace.Meta) *player.Transfer {
	text, is := check.EngineOption(meta, "kv_transfer_config")
	if !is {
		return nil
	}
	t, err := player.ParseTransfer(text, func(string) string { return "" })
	if err != nil {
		return nil // a connector that the player does not have
	}
	offer := protocol.ViewOf(w.offer)
	t.EngineID, t.Host = offer.Field("remote_engine_id").Text(), offer.Field("remote_host").Text()
	t.Port = int(offer.Field("remote_port").Count())
	return t
}

// pooling is what the recorded engine reported of its tasks, and the size of its embeddings.
func (w *WireSession) pooling() (p player.PoolingOptions) {
	for _, s := range w.Sent {
		if s.call.Method != "get_supported_tasks" || s.answered == nil {
			continue
		}
		for task := range protocol.ViewOf(s.answered.Result).Parts() {
			if name := task.Text(); name != "generate" && !slices.Contains(p.Tasks, name) {
				p.Tasks = append(p.Tasks, name)
			}
		}
	}
	for _, m := range w.Said {
		outputs := w.codec.Read(new(protocol.View), protocol.KindOutputs, m.Frames[0], m.Frames[1:]...).Field("outputs")
		if shape := outputs.At(0).Field("pooling_output").At(1); p.Size == 0 && shape.Len() > 0 {
			p.Size = int(shape.At(shape.Len() - 1).Count())
		}
	}
	return p
}

// WireReplay is a session that is being replayed.
type WireReplay struct {
	*Replaying
	Recorded   *WireSession
	Comparison *wireComparison
	clock      *StepClock
	Listen     func(context.Context) ([][]byte, error) // the engine's next message

	ctx     context.Context // ends also when the engine is silent
	next    int             // the first message of the frontend that has not been sent
	pokes   uint64
	pending []wireHeard // received, and not yet compared
	drained bool        // what a real engine says when nothing is left to do was not recorded, and may come
}

// All replays the whole session.
func (w *WireReplay) All() error {
	ctx, stop := w.listening("message")
	defer stop()
	w.ctx = ctx
	w.Handshake()
	for at, m := range w.Recorded.Said {
		if err := w.step(at); err != nil {
			return fmt.Errorf("%s: line %d: while it was replayed: %w", w.Recorded.name, m.Line, w.Explain(err))
		}
	}
	w.expectDrain(len(w.Recorded.Said))
	w.strays(w.Recorded.Said[len(w.Recorded.Said)-1], len(w.pending))
	return nil
}

// Handshake compares what the engine said before it was sent anything.
func (w *WireReplay) Handshake() {
	for i := range w.Recorded.statuses {
		var got [][]byte
		if i < len(w.Engine.Statuses) {
			got = w.Engine.Statuses[i : i+1]
		}
		w.Comparison.Message("EngineStatus", &w.Recorded.statuses[i], nil, got)
	}
	w.Comparison.Message("EngineCoreReadyResponse", &w.Recorded.registration, nil, [][]byte{w.Engine.RawReady})
}

// step sends what comes before one message of the real engine, lets the engine
// under test make that step, and compares what it says.
func (w *WireReplay) step(at int) error {
	want := w.Recorded.Said[at]
	w.expectDrain(at)
	w.clock.Set(beforeStep(at))
	if err := w.send(at); err != nil || want.Left != "" {
		return err
	}
	w.clock.Set(StepTime(at))
	if err := w.await(want.class); err != nil {
		return err
	}
	w.compare(want)
	return nil
}

// expectDrain tolerates the message by which an engine says that nothing is left
// to do, where the real engine was asked for more before it came to that.
func (w *WireReplay) expectDrain(at int) {
	if at > 0 {
		before := w.Recorded.Said[at-1]
		w.drained = w.drained || before.drains && !before.drained
	}
}

// send sends what comes before a message, and waits until it has been taken in:
// all of it belongs to one step.
func (w *WireReplay) send(at int) error {
	first := w.next
	for ; w.next < len(w.Recorded.Sent) && w.Recorded.Sent[w.next].Place <= at; w.next++ {
		if err := w.Front.SendRaw(0, w.Recorded.Sent[w.next].Frames...); err != nil {
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
		return check.ErrNotStepped
	}
	return nil
}

// await makes sure that what the engine says in a step has arrived. It answers
// calls between two steps: when it has answered the second, it has made the step
// before, and when the third, also the one in which it finds nothing left to do.
// What came by the second shows unexpected outputs, too.
func (w *WireReplay) await(class wireClass) error {
	for pokes := 0; ; pokes++ {
		enough := w.heard(class) >= 0 && (class != WireStep || pokes >= 2)
		if enough || pokes == 3 {
			return nil
		}
		if err := w.poke(); err != nil {
			return err
		}
	}
}

// heard is the index of the first pending message of a class, -1 for none.
func (w *WireReplay) heard(class wireClass) int {
	return slices.IndexFunc(w.pending, func(m wireHeard) bool { return m.Class == class })
}

// compare compares a message with the pending one that is its counterpart. Those
// before that are strays, and so are more steps with outputs and more answers: no
// other is due.
func (w *WireReplay) compare(want *WireSaid) {
	at := w.heard(want.class)
	if at < 0 {
		at = w.heard(wireOther)
	}
	if at < 0 {
		w.Comparison.unsaid(want)
		return
	}
	w.strays(want, at)
	w.Comparison.Message("EngineCoreOutputs", &want.WireMessage, want.Requests, w.pending[0].frames)
	w.pending = w.pending[1:]
	w.drained = false
	for _, class := range []wireClass{WireStep, WireUtility} {
		for more := w.heard(class); more >= 0; more = w.heard(class) {
			w.strays(want, more+1)
		}
	}
}

// strays reports the first n pending messages as such.
func (w *WireReplay) strays(beside *WireSaid, n int) {
	for _, m := range w.pending[:n] {
		if m.Class == wireIdle && w.drained {
			w.drained = false
			continue
		}
		w.Comparison.Stray(beside, m)
	}
	w.pending = w.pending[n:]
}

// FirstPoke is the id of the first call of ours; a frontend counts from 1.
const FirstPoke = 1 << 62

// poke makes a utility call of our own, which also wakes an engine that waits for
// its clock, and listens until it is answered.
func (w *WireReplay) poke() error {
	id := FirstPoke + w.pokes
	w.pokes++
	call := protocol.AppendUtilityCall(nil, protocol.UtilityCall{CallID: id, Method: "is_sleeping"})
	if err := w.Front.SendRaw(0, []byte{protocol.TypeUtility}, call); err != nil {
		return err
	}
	for {
		frames, err := w.Listen(w.ctx)
		if err != nil {
			return err
		}
		w.Quiet.Heard()
		if len(frames) == 1 && string(frames[0]) == protocol.EngineDead {
			return protocol.ErrEngineDead
		}
		m := w.Recorded.Look(frames)
		if m.Class == WireUtility && m.Call == id {
			return nil
		}
		if len(w.pending) < maxStrays {
			w.pending = append(w.pending, m)
		}
	}
}

// leftOut says which messages were not compared.
func (w *WireSession) leftOut() string {
	counts := map[string]int{}
	for _, m := range w.Said {
		if m.Left != "" {
			counts[m.Left]++
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

func (c *wireComparison) unsaid(want *WireSaid) {
	var r *wireRequest
	if len(want.Requests) > 0 {
		r = want.Requests[0]
	}
	c.fail(&want.WireMessage, r, CodeWireUnsaid, "EngineCoreOutputs", string(want.class), "no such message")
}
