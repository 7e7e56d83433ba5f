package replay

import (
	"bytes"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/player"
	"github.com/vllm-vcr/conformance/trace"
)

// WireSession is what the frames of a golden show: what a real frontend sent to a
// real engine, what that said, and which request each output answers.
type WireSession struct {
	name         string
	codec        *protocol.Codec
	utilityField int           // the position of utility_output in EngineCoreOutputs
	statuses     []WireMessage // HELLO and READY
	registration WireMessage
	Sent         []*wireSend // on the input socket, in order
	Said         []*WireSaid // on the output socket, in order
	requests     []*wireRequest
	byID         map[string]*wireRequest
	offer        []byte // the first kv_transfer_params of the engine, nil without any
}

// WireMessage is a message with its number in the frames file, from 1, notes
// included.
type WireMessage struct {
	trace.Message
	number int
}

type wireSend struct {
	WireMessage
	request *wireRequest   // of an ADD
	aborted []*wireRequest // of an ABORT
	call    protocol.UtilityCall
	answer  int // of a UTILITY: the index of its answer in said, -1 without one
	// answered is that answer, nil without one.
	answered *protocol.UtilityOutput
	passed   int // it passed the tap before said[passed]
	Place    int // it is to be sent before said[place], see wirePlaces
}

// WireSaid is a message of the engine.
type WireSaid struct {
	WireMessage
	class wireClass
	// Requests are those that the outputs answer, in order.
	Requests []*wireRequest
	// Left says why the message is not compared; empty for most.
	Left string
	// drains: nothing is left to do after it, which an engine reports in one more
	// message. drained: that message was recorded.
	drains, drained bool
}

// wireClass distinguishes the messages of an engine.
type wireClass string

const (
	WireStep    wireClass = "a step with outputs"
	wireIdle    wireClass = "a step without outputs"
	WireUtility wireClass = "an answer to a utility call"
	wireOther   wireClass = "a message that is no EngineCoreOutputs"
)

type wireRequest struct {
	index  int // in the order of the first ADD
	id     string
	added  *wireSend
	tokens []uint32
	chunks []int
	steps  []int // the index in said of each output
	finish protocol.FinishReason
	stop   []byte // stop_reason of the last output, nil without one
	cached int    // tokens of the prompt
	tables bool   // of log-probabilities were asked for
}

// lastStep is the index in said of the last output, -1 without one.
func (r *wireRequest) lastStep() int {
	if len(r.steps) == 0 {
		return -1
	}
	return r.steps[len(r.steps)-1]
}

// NewWireSession reads the messages of a golden of role wire. What no player could
// be asked to repeat is an error that names the line.
func NewWireSession(name string, codec *protocol.Codec, messages []trace.Message) (*WireSession, error) {
	w := &WireSession{
		name: name, codec: codec, byID: map[string]*wireRequest{},
		utilityField: codec.Profile().Structs["EngineCoreOutputs"].Index("utility_output"),
	}
	for i := range messages {
		m := WireMessage{messages[i], i + 1}
		if m.Note != "" {
			continue
		}
		if err := w.add(m); err != nil {
			return nil, fmt.Errorf("%s: line %d: %w", name, m.Line, err)
		}
	}
	if len(w.requests) == 0 || len(w.Said) == 0 {
		return nil, fmt.Errorf("%s: no request of a frontend and no output of an engine is in it, so there is nothing to replay", name)
	}
	if err := w.arrange(); err != nil {
		return nil, err
	}
	return w, nil
}

func (w *WireSession) add(m WireMessage) error {
	switch {
	case m.Rank != 0 || m.Client != 0:
		return fmt.Errorf("a message of engine %d and client %d: only the frames of one engine and one client can be replayed", m.Rank, m.Client)
	case m.Elided > 0:
		return fmt.Errorf("%d bytes of a message were left out", m.Elided)
	case m.Channel == "coordinator_input" || m.Channel == "coordinator_output":
		return fmt.Errorf("a message of a data-parallel coordinator, which no player has")
	case m.Channel == "handshake" && m.Direction == trace.EngineToFrontend:
		w.statuses = append(w.statuses, m)
	case m.Channel == "input" && m.Direction == trace.EngineToFrontend:
		w.registration = m
	case m.Channel == "input":
		return w.addSent(m)
	case m.Channel == "output" && m.Direction == trace.EngineToFrontend:
		return w.addSaid(m)
	}
	return nil
}

// addSent takes a message of the frontend: [type, payload, auxiliary frames...].
func (w *WireSession) addSent(m WireMessage) error {
	if len(m.Frames) < 2 || len(m.Frames[0]) != 1 {
		return fmt.Errorf("a message of %d frames does not begin with a request type and a payload", len(m.Frames))
	}
	s := &wireSend{WireMessage: m, passed: len(w.Said), answer: -1}
	w.Sent = append(w.Sent, s)
	switch m.Frames[0][0] {
	case protocol.TypeAdd:
		return w.addRequest(s)
	case protocol.TypeAbort:
		ids, err := protocol.DecodeAbort(m.Frames[1])
		for _, id := range ids {
			if r := w.byID[id]; r != nil {
				s.aborted = append(s.aborted, r)
			}
		}
		return err
	case protocol.TypeUtility:
		var err error
		s.call, err = protocol.DecodeUtilityCall(m.Frames[1])
		return err
	}
	return nil
}

func (w *WireSession) addRequest(s *wireSend) error {
	var r protocol.Request
	if err := w.codec.DecodeRequest(s.Frames[1], &r); err != nil {
		return err
	}
	if known := w.byID[r.ID]; known != nil {
		return fmt.Errorf("request %q is added for the second time, first in line %d", r.ID, known.added.Line)
	}
	s.request = &wireRequest{
		index: len(w.requests), id: r.ID, added: s,
		tables: r.Sampling.Logprobs != protocol.NoLogprobs || r.Sampling.PromptLogprobs != protocol.NoLogprobs,
	}
	w.requests = append(w.requests, s.request)
	w.byID[r.ID] = s.request
	return nil
}

func (w *WireSession) addSaid(m WireMessage) error {
	if len(m.Frames) == 0 {
		return fmt.Errorf("a message of the engine without frames")
	}
	var o protocol.Outputs
	if err := w.codec.DecodeOutputs(m.Frames[0], &o); err != nil {
		return err
	}
	s := &WireSaid{WireMessage: m, class: wireIdle}
	w.Said = append(w.Said, s)
	switch {
	case o.Utility != nil:
		s.class = WireUtility
		return w.answer(o.Utility)
	case len(o.Outputs) > 0:
		s.class = WireStep
	}
	for i := range o.Outputs {
		if err := w.addOutput(s, &o.Outputs[i]); err != nil {
			return fmt.Errorf("EngineCoreOutputs.outputs[%d]: %w", i, err)
		}
	}
	return nil
}

// answer finds the call that the last message answers.
func (w *WireSession) answer(u *protocol.UtilityOutput) error {
	for _, s := range w.Sent {
		if s.Frames[0][0] == protocol.TypeUtility && s.answer < 0 && s.call.CallID == u.CallID {
			s.answer, s.answered = len(w.Said)-1, u
			return nil
		}
	}
	return fmt.Errorf("it answers utility call %d, which the frontend has not made", u.CallID)
}

// addOutput takes an output of the last message.
func (w *WireSession) addOutput(s *WireSaid, o *protocol.RequestOutput) error {
	r := w.byID[string(o.ID)]
	switch {
	case r == nil:
		return fmt.Errorf("an output for request %q, which the frontend has not added", o.ID)
	case r.finish != protocol.Unfinished:
		return fmt.Errorf("an output for request %q, which has finished", o.ID)
	}
	if o.Prefill != nil && len(r.steps) == 0 {
		counts := protocol.ViewOf(o.Prefill)
		r.cached = int(counts.Field("num_cached_tokens").Count() - counts.Field("num_external_cached_tokens").Count()) // what it pulls, it pulls again
	}
	if w.offer == nil {
		w.offer = bytes.Clone(o.KVTransfer)
	}
	s.Requests = append(s.Requests, r)
	r.tokens = append(r.tokens, o.Tokens...)
	r.chunks = append(r.chunks, len(o.Tokens))
	r.steps = append(r.steps, len(w.Said)-1)
	r.finish, r.stop = o.Finish, o.StopReason
	return nil
}

// wireHeard is a message of the engine under test.
type wireHeard struct {
	frames [][]byte
	Class  wireClass
	Call   uint64 // of an answer to a utility call
}

// Look finds a message's class from as little of it as possible: what else is wrong
// with it is for the comparison to say.
func (w *WireSession) Look(frames [][]byte) wireHeard {
	m := wireHeard{frames: frames, Class: wireOther}
	if len(frames) == 0 {
		return m
	}
	root := protocol.ViewOf(frames[0])
	if root.Kind() != pack.Array {
		return m
	}
	if outputs := root.At(1); outputs.Len() > 0 && outputs.Kind() == pack.Array {
		m.Class = WireStep
	} else if outputs.Kind() == pack.Array {
		m.Class = wireIdle
	}
	if answer := root.At(w.utilityField); answer.Kind() == pack.Array {
		m.Class = WireUtility
		m.Call = uint64(answer.At(0).Count()) // another kind is not a call of ours
	}
	return m
}

// StepClock is the time of a replay that is driven step by step: it does not move
// until it is set. Whoever waits for it must be woken by a message.
type StepClock struct {
	now   atomic.Int64
	asked atomic.Bool
}

// Now is the time of the step that is being replayed.
func (c *StepClock) Now() time.Duration {
	c.asked.Store(true)
	return time.Duration(c.now.Load())
}

// After never delivers.
func (c *StepClock) After(time.Duration) <-chan time.Time { return nil }

func (c *StepClock) Set(t time.Duration) { c.now.Store(int64(t)) }

// StepTime is the time of the engine's message with this index: an hour, so that
// no stamp is 0, and a second for each step.
func StepTime(at int) time.Duration { return time.Hour + time.Duration(at)*time.Second }

// beforeStep is when what comes before a step is sent: nothing is due then.
func beforeStep(at int) time.Duration { return StepTime(at) - time.Second/2 }

// foreverAfter is when an aborted request would have gone on.
const foreverAfter = 1 << 20 * time.Hour

// Script makes a session a [player.Source]: a request is answered as the real
// engine answered the one with its id, each output at the time of its step.
func (w *WireSession) Script(r *player.Request) (player.Script, error) {
	q := w.byID[r.ID]
	if q == nil {
		return player.Script{}, fmt.Errorf("%s: no request has the id %q", w.name, r.ID)
	}
	s := player.Script{Tokens: q.tokens, Chunks: q.chunks, Finish: q.finish, CachedTokens: q.cached, FirstToken: foreverAfter}
	last := beforeStep(q.added.Place)
	for i, step := range q.steps {
		if i == 0 {
			s.FirstToken = StepTime(step) - last
		} else {
			s.Gaps = append(s.Gaps, StepTime(step)-last)
		}
		last = StepTime(step)
	}
	if q.finish == protocol.Unfinished {
		// What it would have said next is not known, and never asked for.
		s.Gaps, s.Fill = append(s.Gaps, foreverAfter), func(int) uint32 { return 0 }
	}
	return s, nil
}
