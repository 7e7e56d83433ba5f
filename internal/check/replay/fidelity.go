package replay

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/invariant"
	"github.com/vllm-vcr/conformance/internal/frontends/coreclient"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/internal/wire/zmq"
	"github.com/vllm-vcr/conformance/player"
	"github.com/vllm-vcr/conformance/trace"
)

// Codes of what the check reports.
const (
	CodeToken        check.Code = "F001" // a token id differs
	CodeNoTerminal   check.Code = "F002" // the stream has no terminal output
	CodeTerminals    check.Code = "F003" // the stream has more than one terminal output
	CodeFinishReason check.Code = "F004" // the finish reason differs
	CodeLate         check.Code = "F005" // outputs come after the terminal one
	CodeChunks       check.Code = "F006" // the tokens come in other chunks
	CodeRefused      check.Code = "F007" // the engine refused the request
	CodeUsage        check.Code = "F011" // HTTP usage counts other tokens
	CodePin          check.Code = "F012" // the golden's streams are not those that were registered
	CodeCount        check.Code = "F013" // the golden has other counts than registered
	CodeReplayDigest check.Code = "F014" // the replayed streams have another digest
	CodeAbortIgnored check.Code = "F017" // an aborted request goes on
)

//go:embed fidelity.md
var fidelityCheckCodes string

var fidelityCheck = check.Check{Name: check.Fidelity, Codes: fidelityCheckCodes + invariant.Codes, Levels: []check.Level{check.LevelCore, check.LevelStatistics}, Run: fidelity}

// fidelity replays every recorded stream of a golden, behind a frontend of ours or behind the real one of the case.
func fidelity(ctx context.Context, e *check.Env, g *check.Golden, c check.Case) (check.Outcome, error) {
	if c.Variant.ThroughFrontend() {
		return throughFrontend(ctx, e, g, c)
	}
	return throughPlayer(ctx, e, g, c)
}

// throughPlayer replays every recorded stream of a golden through a player and
// compares what comes back.
func throughPlayer(ctx context.Context, e *check.Env, g *check.Golden, c check.Case) (f check.Outcome, err error) {
	if g.Streams == 0 {
		return f, NothingToReplay(g)
	}
	t, streams := ReplayableStreams(&f, g, c.Variant.Match)
	if len(streams) == 0 {
		return f, nil
	}
	checkPin(&f, g)
	var faults refusals
	s, err := Boot(ctx, e, g.Codec, player.Options{
		VLLMVersion: check.PlayedVersion(c.Line), Trace: t, Replay: player.ReplayOptions{Match: c.Variant.Match, Strict: true}, OnRefused: faults.add,
	})
	if err != nil {
		return f, err
	}
	defer s.Close()
	s.keeps = e.Heard != nil && e.Wanted(c.Line.Name)
	err = s.replay(streams, c.Variant.Concurrency)
	faults.explain(streams)
	reportStrays(&f, s.strays)
	if err != nil {
		// What those show that came to their end is not lost with the others.
		compareAll(&f, slices.DeleteFunc(slices.Clone(streams), func(s *Stream) bool { return !s.ended() }), true)
		var wrong check.MessageError
		if errors.As(err, &wrong) {
			f.Fail(check.FailureOf(err))
			err = nil
		}
		s.reportLayout(&f)
		if err == nil {
			s.addImpossible(&f, s.impossible)
		}
		return f, err
	}
	if s.HasOwnTime() && !s.keeps && c.Variant.Match == player.MatchIndex && c.Variant.Concurrency == 1 {
		if err := s.checkAbort(&f, streams); err != nil {
			return f, s.WithOutput(s.Explain(err))
		}
	}
	s.reportLayout(&f)
	checkEngineIndexes(&f, s)
	compareStreams(&f, g, streams, true)
	f.Asserted++
	s.addImpossible(&f, append(s.impossible, s.invariant.Rest()...))
	if s.keeps && len(f.Failures) == 0 && s.kept <= maxSaid {
		e.Heard(c.Line.Name, s.conversation(g, c))
	}
	return f, nil
}

func NothingToReplay(g *check.Golden) error {
	return fmt.Errorf("%s: no record has both arrival_ms and output_token_ids, so there is nothing to replay", g.Location)
}

// ReplayableStreams returns the streams that a match can find, and the trace to find
// them in.
func ReplayableStreams(f *check.Outcome, g *check.Golden, match player.Match) (*trace.Trace, []*Stream) {
	if match == player.MatchPrefix {
		return findable(f, g)
	}
	return g.Trace, RecordedStreams(g.Trace)
}

// findable returns the streams whose prompts can be matched, and the trace to
// match them in. What is shorter than a block has no hash to be found by,
// neither here nor in an engine.
func findable(f *check.Outcome, g *check.Golden) (*trace.Trace, []*Stream) {
	blockSize := trace.Or(g.Trace.Meta.BlockSize, 0)
	if blockSize < 1 {
		f.AddNote("not matched by prompt: the golden has no block_size")
		return nil, nil
	}
	t := prefixPrompts(g.Trace, blockSize)
	streams := RecordedStreams(t)
	streams = slices.DeleteFunc(streams, func(s *Stream) bool { return len(s.Prompt) < blockSize })
	if left := g.Streams - len(streams); left > 0 {
		f.AddNote(fmt.Sprintf("%d of %d streams not matched by prompt: shorter than a block of %d tokens", left, g.Streams, blockSize))
	}
	return t, streams
}

// checkPin compares the golden's own streams with the digest in the manifest:
// what the player is going to say must not be what decides what is right.
func checkPin(f *check.Outcome, g *check.Golden) {
	if pin := g.Registered.TokensSHA256; pin == "" {
		f.AddNote("tokens_sha256 is not pinned in the manifest: it is " + g.Digest)
	} else if f.Asserted++; g.Digest != pin && g.ArrivalDigest != pin {
		f.Fail(check.Failed(CodePin, "%s: the token streams have digest %s, but tokens_sha256 is %s in the manifest: a token or a finish reason was changed after registration",
			g.Location, g.Digest, pin).Compared(pin, g.Digest))
	}
	checkCount(f, g, "records", g.Registered.Records, len(g.Trace.Records))
	checkCount(f, g, "streams", g.Registered.Streams, g.Streams)
	checkCount(f, g, "tokens", g.Registered.Tokens, g.Tokens)
}

// checkCount compares a count with the manifest's, which has 0 where it has none.
func checkCount(f *check.Outcome, g *check.Golden, key string, want, got int) {
	if want == 0 {
		return
	}
	f.Asserted++
	if got != want {
		f.Fail(check.Failed(CodeCount, "%s: the golden has %d %s, but the manifest has %s = %d", g.Location, got, key, key, want).Compared(want, got))
	}
}

// compareStreams compares what came back with the records and, when these are
// all streams of the golden, with the manifest's digest.
func compareStreams(f *check.Outcome, g *check.Golden, streams []*Stream, framed bool) {
	compareAll(f, streams, framed)
	pin := g.Registered.TokensSHA256
	if pin != g.Digest || len(f.Failures) > 0 || len(streams) < g.Streams {
		return // the streams were compared, and [checkPin] compares the records with a digest of older manifests
	}
	if got := digest(g, streams); got != pin {
		f.Fail(check.Failed(CodeReplayDigest, "%s: the replayed streams have digest %s, but tokens_sha256 is %s in the manifest", g.Location, got, pin).Compared(pin, got))
	}
}

// strays reports outputs for requests that were never sent.
func reportStrays(f *check.Outcome, ids []string) {
	for _, id := range ids {
		f.Fail(check.Failed(check.CodeStray, "an output names request %q, which was never sent", id).Within(-1, "EngineCoreOutputs.outputs[].request_id").Compared("a request that was sent", id))
	}
}

// engineIndexes reports messages that name another engine than the one that
// registered.
func checkEngineIndexes(f *check.Outcome, s *Replaying) {
	for _, index := range slices.Sorted(maps.Keys(s.indexes)) {
		if index != s.Engine.Index {
			f.Fail(check.Failed(check.CodeEngineIndex, "message %d: engine_index is %d, but engine %d registered", s.indexes[index], index, s.Engine.Index).
				Within(s.indexes[index], "EngineCoreOutputs.engine_index").Compared(s.Engine.Index, index))
		}
	}
}

// Replaying is a session in which recorded streams are replayed.
type Replaying struct {
	*check.Session
	env      *check.Env
	answered bool // a request has been
	byID     map[string]*Stream
	outputs  protocol.Outputs // scratch
	strays   []string         // ids of outputs that belong to no request
	surplus  int              // outputs beyond what was asked for
	indexes  map[int]int      // the engine indexes of messages, and the first message that had each
	Frames   int              // messages received
	Quiet    *check.Silence   // ends the replay when nothing comes
	Layout   *LayoutCheck     // of every message; nil for an engine that takes its time from us

	logits     bool              // the engine sends logits as log-probabilities
	invariant  *invariant.Engine // what must hold of every engine
	impossible []check.Failure   // what did not
	ready      []check.Failure   // and in the registration

	keeps    bool // what is said, to be judged once more
	said     [][][]byte
	kept     int // bytes
	asked    []asked
	lastCall uint64 // the call that ends the replay
}

// Boot yields a session for a case. The messages of an engine with a time of its own
// are checked in it.
func Boot(ctx context.Context, e *check.Env, codec *protocol.Codec, opt player.Options) (*Replaying, error) {
	s, err := e.Session(ctx, codec, opt)
	if err != nil {
		return nil, err
	}
	r := &Replaying{Session: s, env: e, logits: e.Logits}
	if s.HasOwnTime() {
		r.Layout = &LayoutCheck{Codec: codec}
	}
	r.invariant, r.ready = r.impossibilities(codec, s.Engine.RawReady)
	return r, nil
}

// impossibilities begins to follow the engine, by what it registered with.
func (s *Replaying) impossibilities(codec *protocol.Codec, registration []byte) (*invariant.Engine, []check.Failure) {
	e := invariant.New(codec, invariant.Options{Scripted: true, Late: s.Shared != nil, Logits: s.logits})
	e.Init(protocol.Addresses{}) // of a coordinator there are none
	return e, e.Registered(s.Engine.Index, registration)
}

// Close ends the case's use of the session. Requests that the case left open in a
// shared one are aborted, and what the engine still says of them is taken off the wire.
func (s *Replaying) Close() {
	s.Session.Close()
	var open []string
	for id, st := range s.byID {
		if !st.ended() {
			open = append(open, id)
		}
	}
	if s.Shared == nil || len(open) == 0 || s.Shared.Lost != nil {
		return
	}
	ctx, stop := context.WithTimeout(s.Shared.Context, s.Limits.Idle)
	defer stop()
	err := s.Front.Abort(0, open...)
	if err == nil {
		s.Quiet = s.WatchSilence(func() {})
		defer s.Quiet.Stop()
		err = s.barrier(ctx)
	}
	if err != nil {
		s.Lose(fmt.Errorf("it did not come to rest after a case that broke off: %w", err))
	}
}

// replay sends every stream's request, so many at a time, in replay order, and
// collects the outputs until each has ended.
func (s *Replaying) replay(streams []*Stream, concurrency int) error {
	ctx, stop := s.listening("output")
	defer stop()
	s.byID = make(map[string]*Stream, len(streams))
	for next, open := 0, 0; open > 0 || next < len(streams); {
		for ; open < concurrency && next < len(streams); next++ {
			st := streams[next]
			s.byID[st.ID()] = st
			request := st.Request()
			s.invariant.Ask(request)
			s.keepAsked(request)
			if err := s.Front.Submit(request); err != nil {
				return s.brokenOff(err, streams[:next+1])
			}
			open++
		}
		ended, err := s.Receive(ctx)
		if err != nil {
			return s.brokenOff(err, streams[:next])
		}
		open -= ended
	}
	if err := s.barrier(ctx); err != nil {
		return s.brokenOff(err, nil)
	}
	return nil
}

// checkAbort sends the longest request once more, aborts it at once, and makes calls: when the first is answered, the engine has
// read the abort, and it may send nothing more of the request.
func (s *Replaying) checkAbort(f *check.Outcome, streams []*Stream) error {
	longest := slices.MaxFunc(streams, func(a, b *Stream) int { return len(a.Record.OutputTokenIDs) - len(b.Record.OutputTokenIDs) })
	again := &Stream{Index: longest.Index, Record: longest.Record, Prompt: longest.Prompt, Finish: trace.FinishAbsent}
	ctx, stop := s.listening("answer to a call")
	defer stop()
	defer func(st *Stream) { s.byID[st.ID()] = st }(longest)
	s.byID[again.ID()] = again
	request := again.Request()
	s.invariant.Ask(request)
	if err := s.Front.Submit(request); err != nil {
		return err
	}
	s.invariant.Abort(request.ID)
	if err := s.Front.Abort(0, request.ID); err != nil {
		return err
	}
	before := 0
	for i := range 3 {
		if err := s.barrier(ctx); err != nil {
			return err
		}
		if i == 0 {
			before = len(again.got)
		}
	}
	f.Asserted++
	if more := len(again.got) - before; more > 0 {
		f.Fail(again.problem(CodeAbortIgnored, "it was aborted, the engine had read that, and %s came after it", safetext.Count(more, "token")).
			Within(-1, "EngineCoreOutputs.outputs[].request_id").Compared("nothing more", safetext.Count(more, "token")))
	}
	return nil
}

// listening begins a time that ends when the subject sends nothing for too long; what names that.
func (s *Replaying) listening(what string) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(s.Context)
	s.Quiet = s.WatchSilence(func() {
		cancel(check.Infra(check.WithCode(check.CodeSilence, fmt.Errorf("no %s for %v", what, s.Limits.Idle))))
	})
	return ctx, func() {
		s.Quiet.Stop()
		cancel(nil)
	}
}

// brokenOff says why a replay did not come to its end, and where it was.
func (s *Replaying) brokenOff(err error, sent []*Stream) error {
	err = s.Explain(s.lastWords(err))
	if at := unfinished(sent); at != "" {
		separator := "; "
		if strings.Contains(err.Error(), "\n") { // what the engine wrote is quoted
			separator = "\n"
		}
		err = Placed(sent, fmt.Errorf("%w%s%s", err, separator, at))
	}
	return s.WithOutput(err)
}

// lastWords receives what an engine that can be sent no more had said until then, so
// that how far it came, and which streams had ended, does not depend on when it was
// noticed.
func (s *Replaying) lastWords(err error) error {
	if !errors.Is(err, zmq.ErrNoPeer) {
		return err
	}
	ctx, stop := context.WithTimeout(s.Context, min(s.Limits.Idle, lingering))
	defer stop()
	for {
		_, next := s.Receive(ctx)
		var wrong check.MessageError
		switch {
		case errors.As(next, &wrong):
			return next
		case next != nil:
			return err
		}
	}
}

// lingering is how long what an engine had said before it ended may take to arrive.
const lingering = 5 * time.Second

// next waits for a message of the subject. That the subject has ended is often known
// before its last messages have been read, so they are waited for until its
// connection is seen to end, too.
func (s *Replaying) next(ctx context.Context) error {
	err := s.nextOrReason(ctx)
	if err == nil || ctx.Err() == nil || check.CodeOf(context.Cause(s.Context)) != check.CodeEngineEnded {
		return err
	}
	for _, final := range []error{coreclient.ErrUndecodable, coreclient.ErrEngineGone, protocol.ErrEngineDead} {
		if errors.Is(err, final) {
			return err
		}
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), min(s.Limits.Idle, lingering))
	defer stop()
	_, more := s.Front.Next(ctx, 0, &s.outputs)
	if more != nil && ctx.Err() != nil {
		return err
	}
	return more
}

// nextOrReason waits for a message. While an engine with a time of its own has answered no request, the reason is looked for. That
// has its own limit of silence: the other one, which ends ctx at the same moment, would end the search.
func (s *Replaying) nextOrReason(ctx context.Context) (err error) {
	if s.answered || !s.HasOwnTime() {
		_, err = s.Front.Next(ctx, 0, &s.outputs)
		return err
	}
	var open *protocol.Request
	for _, st := range s.byID {
		if open == nil || st.ID() < open.ID {
			open = st.Request()
		}
	}
	_, err = s.Session.Next(s.Context, s.env, &s.outputs, check.Wait{First: true, What: func() (string, *protocol.Request) { return "an output", open }})
	s.answered = len(s.outputs.Outputs) > 0
	return err
}

// Receive takes one message of the subject and returns how many streams it
// ended.
func (s *Replaying) Receive(ctx context.Context) (ended int, err error) {
	err = s.next(ctx)
	if err != nil && !errors.Is(err, coreclient.ErrUndecodable) {
		return 0, err
	}
	s.Frames++
	s.keep()
	frames := s.Front.Last(0)
	if s.Layout != nil { // of a message that does not decode, too
		s.Layout.Outputs(s.Frames, frames, s.requestOf)
	}
	for _, wrong := range s.invariant.Said(s.Frames, 0, frames) {
		s.impossible = append(s.impossible, ofOutput(wrong, frames, s.requestOf))
	}
	if err != nil {
		return 0, s.Undecodable(err)
	}
	s.Quiet.Heard()
	s.noteIndex()
	for i := range s.outputs.Outputs {
		ended += s.deliver(&s.outputs.Outputs[i])
	}
	if s.surplus > check.MaxSurplus {
		return 0, check.ErrFlood
	}
	return ended, nil
}

func (s *Replaying) noteIndex() {
	if _, known := s.indexes[s.outputs.EngineIndex]; known || len(s.indexes) == maxStrays {
		return
	}
	if s.indexes == nil {
		s.indexes = map[int]int{}
	}
	s.indexes[s.outputs.EngineIndex] = s.Frames
}

// maxStrays bounds what is kept of a subject that talks nonsense.
const maxStrays = 16

// deliver hands an output to its stream and returns 1 if it is the stream's end.
func (s *Replaying) deliver(o *protocol.RequestOutput) (ended int) {
	st := s.byID[string(o.ID)]
	if st == nil {
		if len(s.strays) < maxStrays {
			s.strays = append(s.strays, string(o.ID))
		}
		s.surplus++
		return 0
	}
	if st.surfeited() {
		s.surplus++
	}
	finished := o.Finish != protocol.Unfinished
	if finished && st.terminals == 0 {
		ended = 1
	}
	st.Take(o.Tokens, finished, trace.FinishReason(o.Finish-1))
	if o.Error != nil {
		st.refused("the engine reports " + check.Describe(o.Error))
	}
	return ended
}

// barrier makes one utility call: what the engine said before its answer has
// then been received, so nothing late goes unseen.
func (s *Replaying) barrier(ctx context.Context) error {
	id, err := s.Front.Call(0, check.LastCall)
	if err != nil {
		return err
	}
	s.invariant.Call(protocol.UtilityCall{CallID: id, Method: check.LastCall})
	s.lastCall = id
	s.keepAsked(nil)
	for {
		if _, err := s.Receive(ctx); check.CodeOf(err) == check.CodeSilence {
			return s.unanswered(check.LastCall)
		} else if err != nil {
			return fmt.Errorf("%w; utility call %d (%s) was not answered", err, id, check.LastCall)
		}
		if u := s.outputs.Utility; u != nil && u.CallID >= id {
			return s.Answered(u, id)
		}
	}
}

func (s *Replaying) unanswered(call string) error {
	return check.AboutMessage(check.Unanswered(call, s.Limits.Idle), check.Failed("", "").
		Within(-1, "EngineCoreOutputs.utility_output").Compared("an answer", "none"))
}

// Request asks for the recorded stream: as many tokens as were recorded, no
// stop rule of its own.
func (s *Stream) Request() *protocol.Request {
	return &protocol.Request{
		ID: s.ID(), ExternalID: s.ID(), PromptTokenIDs: s.Prompt, DataParallelRank: -1, HasSampling: true,
		ArrivalTime: float64(time.Now().UnixMicro()) / 1e6,
		Sampling: protocol.Sampling{
			MaxTokens: max(len(s.Record.OutputTokenIDs), 1), HasMaxTokens: true, EOSTokenID: -1,
			Logprobs: protocol.NoLogprobs, PromptLogprobs: protocol.NoLogprobs, Temperature: 1,
		},
	}
}

// refusals collects why the player refused requests: before 0.33 the wire has
// no place for the reason.
type refusals struct {
	mu   sync.Mutex
	byID map[string]error
}

func (r *refusals) add(id string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byID == nil {
		r.byID = map[string]error{}
	}
	r.byID[id] = err
}

// explain attaches the reasons to the streams they are about.
func (r *refusals) explain(streams []*Stream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range streams {
		if err := r.byID[s.ID()]; err != nil {
			s.refused("the player refused it: " + err.Error())
		}
	}
}

// Placed says which request an error is about, if only one was open.
func Placed(sent []*Stream, err error) error {
	var open *Stream
	for _, s := range sent {
		switch {
		case s.ended():
		case open != nil:
			return err
		default:
			open = s
		}
	}
	if open == nil {
		return err
	}
	got, want := len(open.got), len(open.Record.OutputTokenIDs)
	expected := fmt.Sprintf("%d tokens and a terminal output", want)
	return check.AboutRequest(err, check.Failure{Request: open.Index, Position: got, Expected: expected, Actual: fmt.Sprintf("%d tokens", got)})
}

// outputsPath is how the errors of [protocol.Codec.DecodeOutputs] name a place.
var outputsPath = lazyregexp.New(`EngineCoreOutputs[\w.\[\]]*`)

// Undecodable is the error of a message that a frontend of the line cannot read.
func (s *Replaying) Undecodable(err error) error {
	place := check.Failure{Frame: s.Frames, Path: outputsPath().FindString(err.Error()), Expected: "a message of the line", Actual: "none"}
	return check.WithCode(check.CodeUndecodable, check.AboutMessage(fmt.Errorf("message %d: %w", s.Frames, err), place))
}

// Answered checks the answer to the call that ends a replay.
func (s *Replaying) Answered(u *protocol.UtilityOutput, id uint64) error {
	wrong := func(field string, expected, actual any, format string, args ...any) error {
		place := check.Failed("", "").Within(s.Frames, "EngineCoreOutputs.utility_output."+field).Compared(expected, actual)
		text := fmt.Sprintf(format, args...)
		return check.WithCode(check.CodeUtility, check.AboutMessage(fmt.Errorf("message %d: utility call %d (%s): %s", s.Frames, id, check.LastCall, text), place))
	}
	switch {
	case u.CallID != id:
		return wrong("call_id", id, u.CallID, "the answer names call %d, which was not made", u.CallID)
	case u.Failed:
		return wrong("failure_message", "none", u.Failure, "it failed: %s", u.Failure)
	}
	return nil
}

// unfinished names the first of the streams whose end has not come.
func unfinished(sent []*Stream) string {
	const shown = 3
	var places []string
	open := 0
	for _, s := range sent {
		if s.ended() {
			continue
		}
		if open++; open <= shown {
			places = append(places, fmt.Sprintf("request %d (line %d) after %d of %d tokens",
				s.Index, s.Record.Line, len(s.got), len(s.Record.OutputTokenIDs)))
		}
	}
	if open == 0 {
		return ""
	}
	if open > shown {
		places = append(places, "…")
	}
	return fmt.Sprintf("%d open: %s", open, strings.Join(places, ", "))
}

// digest is that of what came back, by the prompts of the golden: those that were sent may be shorter.
func digest(g *check.Golden, streams []*Stream) string {
	subset := trace.ReplaySubset(g.Trace.Records)
	var d trace.AnswersDigest
	for _, s := range streams {
		d.Add(&g.Trace.Records[subset[s.Index]], s.got, s.Finish)
	}
	return d.Hex()
}
