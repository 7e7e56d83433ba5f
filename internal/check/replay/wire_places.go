package replay

import (
	"fmt"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// The reasons for which a message of the engine is not compared.
const (
	leftUnderWay = "without outputs, under way when its requests were aborted"
	leftGrammar  = "without outputs, while a grammar was compiled"
)

// arrange finds where among the engine's messages each of the frontend's took
// effect. The tap saw a message when it passed, and an engine takes it in between
// two steps, of which the first is on its way to the tap by then: so a request is
// added just before the first step that shows it, an abort comes just after the
// last step that answers its requests, and a utility call just before its answer.
// The order in which the frontend sent them stays.
func (w *WireSession) arrange() error {
	next := len(w.Said)
	for i := len(w.Sent) - 1; i >= 0; i-- {
		s := w.Sent[i]
		s.Place = min(w.latest(s), next)
		next = s.Place
	}
	for _, s := range w.Sent {
		if s.Place >= w.earliest(s) {
			continue
		}
		return fmt.Errorf("%s: line %d: it takes effect after a later message of the frontend has: the messages cannot be replayed in their order", w.name, s.Line)
	}
	w.classify()
	return nil
}

// latest is the index in said before which a message must have been sent.
func (w *WireSession) latest(s *wireSend) int {
	switch {
	case s.request != nil && len(s.request.steps) > 0:
		// The first sign of a prompt longer than a step takes, or of one whose grammar is compiled, is a step without outputs.
		first := s.request.steps[0]
		for first > s.passed && w.Said[first-1].class == wireIdle && w.unfinished(first-1) > 0 {
			first--
		}
		return first
	case s.answer >= 0:
		return s.answer
	}
	return max(s.passed, w.earliest(s))
}

// earliest is the index in said before which a message must not be sent: its
// requests were answered until then.
func (w *WireSession) earliest(s *wireSend) int {
	place := 0
	for _, r := range s.aborted {
		if r.finish == protocol.Unfinished {
			place = max(place, r.lastStep()+1)
		}
	}
	return place
}

// unfinished is how many requests the engine had after a step, by its own account.
func (w *WireSession) unfinished(at int) int {
	s := w.stats(at)
	return s.Running + s.Waiting + s.Skipped
}

// stats are the statistics that the engine sent after a step, all 0 if it sent none: whether they are right is judged by the
// comparison.
func (w *WireSession) stats(at int) protocol.SchedulerStats {
	var o protocol.Outputs
	if err := w.codec.DecodeOutputs(w.Said[at].Frames[0], &o); err != nil || o.SchedulerStats == nil {
		return protocol.SchedulerStats{}
	}
	s, _ := protocol.DecodeStats(o.SchedulerStats)
	return s
}

// classify follows the open requests, to tell the steps that every engine makes
// from those that are a matter of time.
func (w *WireSession) classify() {
	o := openRequests{ids: map[string]bool{}}
	sent := w.Sent
	for at, m := range w.Said {
		for ; len(sent) > 0 && sent[0].Place <= at; sent = sent[1:] {
			o.send(sent[0])
		}
		switch {
		case m.class == WireStep:
			o.step(m, at)
		case m.class != wireIdle:
		case len(o.ids) > 0 && w.stats(at).Running == 0:
			m.Left = leftGrammar
		case len(o.ids) > 0: // a part of a long prompt
		case o.emptied != nil && !o.emptied.drained:
			o.emptied.drained = true
		default:
			m.Left = leftUnderWay
		}
		o.last = m
	}
}

// openRequests are the requests that an engine has.
type openRequests struct {
	ids     map[string]bool
	last    *WireSaid // its last message
	emptied *WireSaid // the one after which it had none left, nil while it has some
}

// send takes in what the frontend sent.
func (o *openRequests) send(s *wireSend) {
	if s.request != nil {
		o.ids[s.request.id] = true
	}
	before := len(o.ids)
	for _, r := range s.aborted {
		delete(o.ids, r.id)
	}
	if len(o.ids) < before {
		o.empty(o.last)
	}
}

// step takes in the outputs of a step.
func (o *openRequests) step(m *WireSaid, at int) {
	for _, r := range m.Requests {
		if r.finish != protocol.Unfinished && r.lastStep() == at {
			delete(o.ids, r.id)
		}
	}
	o.emptied = nil
	o.empty(m)
}

// empty notes the message after which the last request was gone.
func (o *openRequests) empty(m *WireSaid) {
	if len(o.ids) == 0 && m != nil {
		o.emptied, m.drains = m, true
	}
}
