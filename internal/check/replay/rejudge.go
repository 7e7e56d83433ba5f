package replay

import (
	"bytes"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// maxSaid bounds what is kept of an engine's messages to be judged once more, in bytes.
const maxSaid = 32 << 20

// keep keeps the message that came last, if somebody wants to know what was said.
func (s *Replaying) keep() {
	if !s.keeps || s.kept > maxSaid {
		return
	}
	var frames [][]byte
	for _, frame := range s.Front.Last(0) {
		frames = append(frames, bytes.Clone(frame))
		s.kept += len(frame)
	}
	s.said = append(s.said, frames)
}

// asked is what was sent to an engine, a request or the last call, and how many messages it had said until then.
type asked struct {
	request *protocol.Request
	said    int
}

// keepAsked keeps what is sent, nil for the last call, likewise.
func (s *Replaying) keepAsked(r *protocol.Request) {
	if s.keeps {
		s.asked = append(s.asked, asked{r, len(s.said)})
	}
}

// conversation is what was said in a case, and how fidelity would have judged something else.
func (s *Replaying) conversation(g *check.Golden, c check.Case) check.Conversation {
	return check.Conversation{
		Codec: g.Codec, Registration: s.Engine.RawReady, Said: s.said,
		Finds: func(at int, frames [][]byte) bool { return s.finds(g, c, at, frames) },
		Registers: func(payload []byte) bool {
			_, wrong := s.impossibilities(g.Codec, payload)
			return len(wrong) > 0
		},
	}
}

// finds judges all that was said in a case anew, with other frames in the place of those of one message, and reports whether
// anything is wrong then.
func (s *Replaying) finds(g *check.Golden, c check.Case, at int, frames [][]byte) bool {
	if s.Layout != nil && len(check.OutputsLayout(g.Codec, frames)) > 0 {
		return true
	}
	var f check.Outcome
	_, streams := ReplayableStreams(&f, g, c.Variant.Match)
	again := &Replaying{Session: &check.Session{Engine: s.Engine}, logits: s.logits, byID: map[string]*Stream{}}
	for _, stream := range streams {
		again.byID[stream.ID()] = stream
	}
	follows, _ := again.impossibilities(g.Codec, s.Engine.RawReady)
	asked, answered := s.asked, false
	for i, said := range s.said {
		for ; len(asked) > 0 && asked[0].said <= i; asked = asked[1:] {
			if r := asked[0].request; r != nil {
				follows.Ask(r)
			} else {
				follows.Call(protocol.UtilityCall{CallID: s.lastCall, Method: check.LastCall})
			}
		}
		if i == at {
			said = frames
		}
		again.Frames++
		if len(follows.Said(again.Frames, 0, said)) > 0 {
			return true
		}
		if len(said) == 0 || g.Codec.DecodeOutputs(said[0], &again.outputs) != nil {
			return true
		}
		again.noteIndex()
		for o := range again.outputs.Outputs {
			again.deliver(&again.outputs.Outputs[o])
		}
		if u := again.outputs.Utility; u != nil && u.CallID >= s.lastCall {
			if again.Answered(u, s.lastCall) != nil {
				return true
			}
			answered = true
		}
	}
	reportStrays(&f, again.strays)
	checkEngineIndexes(&f, again)
	compareStreams(&f, g, streams, true)
	return !answered || len(f.Failures)+len(follows.Rest()) > 0
}
