package replay

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/player"
	"github.com/vllm-vcr/conformance/trace"
)

// wireInOwnTime lets an engine with a time of its own go through a recorded session. It is sent the real frontend's messages in
// their order, the request ids aside, and the tokens to answer with are in its trace. Which outputs share a message is not
// compared, as that is a matter of time. Judged are: the layout of every message, what must hold of every engine, the tokens and
// the end of each request, its stop_reason, and the answers to the utility calls.
//
// What the engine says that it cannot do, by finish reason error or by a failed call, is not held against it, nor are the
// answers to calls after one that it did not carry out.
func wireInOwnTime(ctx context.Context, e *check.Env, g *check.Golden, c check.Case, w *WireSession) (f check.Outcome, err error) {
	t, err := w.trace(g.Trace.Meta)
	if err != nil {
		return f, check.WithCode(check.CodeGolden, err)
	}
	s, err := Boot(ctx, e, g.Codec, player.Options{
		VLLMVersion: check.PlayedVersion(c.Line), Trace: t, Replay: player.ReplayOptions{Match: player.MatchIndex, Strict: true},
	})
	if err != nil {
		return f, err
	}
	defer s.Close()
	o := &ownTime{
		Replaying: s, session: w, streams: RecordedStreams(t), stops: make([][]byte, len(w.requests)), answers: map[uint64]*protocol.UtilityOutput{},
	}
	err = o.all()
	o.compare(&f)
	s.reportLayout(&f)
	checkEngineIndexes(&f, s)
	reportStrays(&f, s.strays)
	if err == nil {
		s.impossible = append(s.impossible, s.invariant.Rest()...)
	}
	s.addImpossible(&f, append(s.ready, s.impossible...))
	if wrong := (check.MessageError{}); errors.As(err, &wrong) {
		f.Fail(check.FailureOf(err))
		err = nil
	}
	return f, err
}

// trace is what the real engine said in the session, as a trace to replay: record i answers request i.
func (w *WireSession) trace(meta trace.Meta) (*trace.Trace, error) {
	registration := hex.EncodeToString(w.registration.Frames[0])
	meta.ReadyResponseHex = &registration
	t := &trace.Trace{Name: w.name, Meta: meta}
	for i, q := range w.requests {
		var asked protocol.Request
		if err := w.codec.DecodeRequest(q.added.Frames[1], &asked); err != nil {
			return nil, fmt.Errorf("%s: line %d: %w", w.name, q.added.Line, err)
		}
		arrival := float64(i)
		r := trace.Record{
			PromptTokens: len(asked.PromptTokenIDs), PromptTokenIDs: slices.Clone(asked.PromptTokenIDs), CachedTokens: q.cached,
			OutputTokens: len(q.tokens), OutputTokenIDs: q.tokens, ArrivalMs: &arrival, Concurrency: 1, Line: q.added.Line,
		}
		if r.OutputTokenIDs == nil {
			r.OutputTokenIDs = []uint32{}
		}
		for _, n := range q.chunks {
			if n > 0 {
				r.ITLMs, r.ITLTokens = append(r.ITLMs, 0), append(r.ITLTokens, uint32(n))
			}
		}
		if len(r.ITLMs) > 0 { // the first chunk is that of TTFTMs
			r.ITLMs, r.ITLTokens = r.ITLMs[1:], r.ITLTokens[1:]
		}
		if r.EndedByFrontend = q.finish == protocol.Unfinished; r.EndedByFrontend {
			r.FinishReason = trace.FinishAbort
		} else {
			r.FinishReason = trace.FinishReason(q.finish - 1)
		}
		t.Records = append(t.Records, r)
	}
	return t, nil
}

// ownTime is the replay of a session by an engine with a time of its own.
type ownTime struct {
	*Replaying
	session *WireSession
	streams []*Stream // by the index of the request
	sent    int       // requests sent so far
	stops   [][]byte  // stop_reason of each request's end, nil without one
	answers map[uint64]*protocol.UtilityOutput
	ctx     context.Context
}

// all sends every message of the frontend and listens until the last request has ended and the last call is answered.
func (o *ownTime) all() error {
	ctx, stop := o.listening("message")
	defer stop()
	o.ctx = ctx
	o.byID = make(map[string]*Stream, len(o.streams))
	w := o.session
	for i, s := range w.Sent {
		if err := o.await(w.Sent[:i], s.Place, s.aborted); err != nil {
			return err
		}
		frames, err := o.addressed(s)
		if err != nil {
			return fmt.Errorf("%s: line %d: %w", w.name, s.Line, err)
		}
		o.invariant.Sent(frames)
		if err := o.Front.SendRaw(0, frames...); err != nil {
			return o.brokenOff(err, o.streams[:o.sent])
		}
	}
	if err := o.await(w.Sent, len(w.Said), nil); err != nil {
		return err
	}
	// What the engine said before it answers one more call has then been received.
	call := protocol.UtilityCall{CallID: FirstPoke, Method: check.LastCall}
	o.invariant.Call(call)
	if err := o.Front.SendRaw(0, []byte{protocol.TypeUtility}, protocol.AppendUtilityCall(nil, call)); err != nil {
		return o.brokenOff(err, nil)
	}
	return o.receiveUntil(func() bool { return o.answers[FirstPoke] != nil }, fmt.Sprintf("%d (%s)", FirstPoke, check.LastCall))
}

// await waits until what the real engine had done before its message of this index is done, of what has been sent: requests have
// ended and calls are answered. Of requests that are to be aborted, it waits for as many tokens as the real engine generated.
func (o *ownTime) await(sent []*wireSend, place int, aborted []*wireRequest) error {
	for _, s := range sent {
		switch r := s.request; {
		case r != nil && r.finish != protocol.Unfinished && r.lastStep() < place:
			st := o.streams[r.index]
			if err := o.receiveUntil(func() bool { return st.terminals > 0 }, ""); err != nil {
				return err
			}
		case s.answer >= 0 && s.answer < place:
			what := fmt.Sprintf("%d (%s)", s.call.CallID, s.call.Method)
			if err := o.receiveUntil(func() bool { return o.answers[s.call.CallID] != nil }, what); err != nil {
				return err
			}
		}
	}
	for _, r := range aborted {
		st := o.streams[r.index]
		if err := o.receiveUntil(func() bool { return st.terminals > 0 || len(st.got) >= len(r.tokens) }, ""); err != nil {
			return err
		}
	}
	return nil
}

// receiveUntil receives messages until something has happened; call names the utility call that is waited for, if it is one.
func (o *ownTime) receiveUntil(happened func() bool, call string) error {
	for !happened() {
		if _, err := o.Receive(o.ctx); err != nil {
			switch {
			case call != "" && check.CodeOf(err) == check.CodeSilence:
				err = o.unanswered(call)
			case call != "":
				err = fmt.Errorf("%w; utility call %s was not answered", err, call)
			}
			return o.brokenOff(err, o.streams[:o.sent])
		}
		for i := range o.outputs.Outputs {
			out := &o.outputs.Outputs[i]
			if st := o.byID[string(out.ID)]; st != nil && out.StopReason != nil {
				o.stops[st.Index] = slices.Clone(out.StopReason)
			}
		}
		if u := o.outputs.Utility; u != nil && o.answers[u.CallID] == nil {
			known := *u
			known.Result = slices.Clone(u.Result)
			o.answers[u.CallID] = &known
		}
	}
	return nil
}

// addressed is a message of the frontend with the ids by which the engine finds its records.
func (o *ownTime) addressed(s *wireSend) ([][]byte, error) {
	frames := slices.Clone(s.Frames)
	switch {
	case s.request != nil:
		st := o.streams[s.request.index]
		o.byID[st.ID()] = st
		o.sent++
		frames[1] = protocol.ViewOf(s.Frames[1]).At(0).Set(pack.AppendString(nil, st.ID())) // request_id is the first field in every line
	case s.Frames[0][0] == protocol.TypeAbort:
		ids, err := protocol.DecodeAbort(s.Frames[1])
		if err != nil {
			return nil, err
		}
		for i, id := range ids {
			if r := o.session.byID[id]; r != nil {
				ids[i] = o.streams[r.index].ID()
			}
		}
		frames[1] = protocol.AppendAbort(nil, ids...)
	}
	return frames, nil
}

// compare reports what differs from what the real engine said, as far as it was asked.
func (o *ownTime) compare(f *check.Outcome) {
	refused := 0
	var judged []*Stream
	for _, st := range o.streams[:o.sent] {
		switch {
		case st.Finish == trace.FinishError && st.Record.FinishReason != trace.FinishError:
			refused++
			continue
		case st.Record.EndedByFrontend: // how many tokens it had when it was aborted is a matter of time
			st.got = st.got[:min(len(st.got), len(st.Record.OutputTokenIDs))]
			st.terminals, st.Finish, st.Chunks = 1, st.Record.ReplayEnd(), nil
		}
		judged = append(judged, st)
	}
	if !compareAll(f, judged, true) {
		for _, st := range judged {
			o.compareStop(f, st, o.session.requests[st.Index])
		}
	}
	failed := o.compareAnswers(f)
	if refused > 0 {
		f.AddNote(fmt.Sprintf("not judged: %d of %s, which the engine refused by finish reason error", refused, safetext.Count(o.sent, "request")))
	}
	if failed > 0 {
		f.AddNote(fmt.Sprintf("not judged: %s, which the engine answered by a failure", safetext.Count(failed, "utility call")))
	}
	if o.sent > 0 && refused == o.sent {
		f.Fail(check.Failed(CodeRefused, "%s: the engine refused every request of the session", o.session.name).Compared("tokens", "finish reason error"))
	}
}

// compareStop compares which stop id or string ended a request.
func (o *ownTime) compareStop(f *check.Outcome, st *Stream, r *wireRequest) {
	if r.finish == protocol.Unfinished || st.terminals == 0 {
		return
	}
	f.Asserted++
	if expected, actual := check.Describe(r.stop), check.Describe(o.stops[r.index]); expected != actual {
		f.Fail(st.problem(CodeWireValue, "stop_reason is %s, but the real engine said %s", actual, expected).
			Within(-1, "EngineCoreOutputs.outputs[].stop_reason").Compared(expected, actual))
	}
}

// compareAnswers compares the answers to the frontend's utility calls, and returns how many failed that the real engine
// carried out.
func (o *ownTime) compareAnswers(f *check.Outcome) (failed int) {
	for _, s := range o.session.Sent {
		want, got := s.answered, o.answers[s.call.CallID]
		if want == nil || got == nil {
			continue
		}
		f.Asserted++
		expected, actual := check.Describe(want.Result), check.Describe(got.Result)
		switch {
		case got.Failed && !want.Failed:
			failed++
			continue
		case want.Failed && !got.Failed:
			expected = "a failure: " + want.Failure
		case want.Failed || expected == actual || failed > 0:
			continue
		}
		f.Fail(check.Failed(CodeWireValue, "%s: line %d: utility call %d (%s) is answered by %s, but the real engine said %s",
			o.session.name, s.Line, s.call.CallID, s.call.Method, actual, expected).
			Within(-1, "EngineCoreOutputs.utility_output.result").Compared(expected, actual))
	}
	return failed
}
