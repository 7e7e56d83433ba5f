package selftest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/trace"
)

// session is a golden of recorded frames, cut to the messages that faults are
// played in.
type session struct {
	stored
	whole stored // before it was cut
	cases []conformance.Case
}

// session is the smallest golden of recorded frames of a line, up to the first rest
// behind the last message that a fault changes: what the real engine said after that
// shows nothing about faults, and is the most of what a self-test would spend its
// time on. The zero session if the line has none.
func (st *stage) session(ctx context.Context, line compat.Line, s *scene, faults []Fault) (session, error) {
	goldens := st.cfg.ofRole(line, manifest.Wire)
	if len(goldens) == 0 {
		return session{}, nil
	}
	whole := stored{golden: goldens[0]}
	var err error
	if whole.data, whole.location, err = st.cfg.Store.Fetch(ctx, goldens[0]); err != nil {
		return session{}, err
	}
	cut, err := cutSession(whole, s, faults)
	if err != nil {
		return session{}, err
	}
	cases, err := st.plan(line, goldens[0])
	for i := range cases {
		cases[i].Golden = cut.golden
	}
	return session{cut, whole, cases}, err
}

// cutSession registers the first messages of a session as a golden.
func cutSession(whole stored, s *scene, faults []Fault) (stored, error) {
	reader, err := check.OpenFrames(whole.data, whole.location)
	if err != nil {
		return whole, err
	}
	codec, err := protocol.NewCodec(s.profile)
	if err != nil {
		return whole, err
	}
	messages, err := untilRest(reader, codec, s.framedTampers(faults))
	if err != nil {
		return whole, err
	}
	data, err := check.WriteFrames(whole.location, reader.Meta(), messages)
	return whole.register(data), err
}

// framedTampers are those of the faults that show in recorded frames.
func (s *scene) framedTampers(faults []Fault) (tampers []tamper) {
	for _, f := range faults {
		if _, framed := f.red[conformance.Wire]; framed && f.wire != nil {
			tampers = append(tampers, f.wire(s.during(true)))
		}
	}
	return tampers
}

// untilRest reads messages until each tamper has changed one, of those that change
// any, and the engine has come to rest after that.
func untilRest(reader *trace.FrameReader, codec *protocol.Codec, tampers []tamper) ([]trace.Message, error) {
	open := unanswered{codec: codec, requests: map[string]bool{}, calls: map[uint64]bool{}}
	var messages []trace.Message
	upTo := 0 // 0 until then
	for {
		var m trace.Message
		err := reader.Next(&m)
		if errors.Is(err, io.EOF) {
			if upTo == 0 {
				upTo = len(messages)
			}
			return messages[:upTo], nil
		}
		if err == nil {
			err = open.see(&m)
		}
		if err != nil {
			return nil, err
		}
		for i, frame := range m.Frames {
			m.Frames[i] = bytes.Clone(frame)
		}
		messages = append(messages, m)
		if m.Channel != "output" {
			continue
		}
		left := slices.DeleteFunc(tampers, func(t tamper) bool { return changes(t, m.Frames) })
		if len(left) < len(tampers) {
			tampers, upTo = left, 0
		}
		if upTo == 0 && open.none() {
			upTo = len(messages)
		}
	}
}

// changes reports whether a message does not go out as it came.
func changes(t tamper, frames [][]byte) bool {
	out, err := t(message{output, slices.Clone(frames)})
	return err != nil || len(out) != 1 || !slices.EqualFunc(out[0].frames, frames, bytes.Equal)
}

// unanswered is what the engine of a session has been asked and not yet done.
type unanswered struct {
	codec    *protocol.Codec
	outputs  protocol.Outputs // scratch
	requests map[string]bool
	calls    map[uint64]bool
}

func (u *unanswered) none() bool { return len(u.requests)+len(u.calls) == 0 }

// see takes in a message of either side.
func (u *unanswered) see(m *trace.Message) error {
	switch {
	case m.Channel == "input" && m.Direction == trace.FrontendToEngine && len(m.Frames) > 1 && len(m.Frames[0]) == 1:
		return u.asked(m.Frames[0][0], m.Frames[1])
	case m.Channel == "output" && m.Direction == trace.EngineToFrontend && len(m.Frames) > 0:
		return u.answered(m.Frames[0])
	}
	return nil
}

func (u *unanswered) asked(typ byte, payload []byte) error {
	switch typ {
	case protocol.TypeAdd:
		var r protocol.Request
		err := u.codec.DecodeRequest(payload, &r)
		u.requests[r.ID] = true
		return err
	case protocol.TypeAbort:
		ids, err := protocol.DecodeAbort(payload)
		for _, id := range ids {
			delete(u.requests, id)
		}
		return err
	case protocol.TypeUtility:
		call, err := protocol.DecodeUtilityCall(payload)
		u.calls[call.CallID] = true
		return err
	}
	return nil
}

func (u *unanswered) answered(frame []byte) error {
	if err := u.codec.DecodeOutputs(frame, &u.outputs); err != nil {
		return fmt.Errorf("a recorded message: %w", err)
	}
	for _, o := range u.outputs.Outputs {
		if o.Finish != protocol.Unfinished {
			delete(u.requests, string(o.ID))
		}
	}
	if u.outputs.Utility != nil {
		delete(u.calls, u.outputs.Utility.CallID)
	}
	return nil
}
