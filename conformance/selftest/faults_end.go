package selftest

import (
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// endFaults are engines that fall silent or end.
func endFaults(s *scene) []Fault {
	died := func(parts ...string) want {
		return nowhere(check.CodeEngineEnded, append([]string{"engine: ", errDies.Error()}, parts...)...)
	}
	// The target has come to the chunk of its middle, and whatever was said before has
	// been heard.
	middle := &place{s.target.index, s.boundary(), len(s.target.tokens)}
	open := func(code conformance.Code, at *place, parts ...string) map[conformance.Assertion]want {
		return only(conformance.Fidelity, want{
			code: code, request: anywhere, position: anywhere, says: append(parts, " open: request "), alone: at,
		})
	}
	unanswered := nowhere(check.CodeUtility, "utility call is_sleeping was not answered within ")
	unanswered = unanswered.in("utility_output")
	dead := [][]byte{[]byte(protocol.EngineDead)}
	dies := func(message) ([]message, error) { return nil, errDies }
	return []Fault{
		{Name: "dies-before-hello", Says: "the engine ends before HELLO", red: started(died()), wire: status(hello, dies)},
		{Name: "dies-before-registration", Says: "the engine ends between HELLO and its registration", red: started(died()), wire: on(input, func(_ int, m message) ([]message, error) { return dies(m) })},
		{Name: "dies-before-ready", Says: "the engine ends between its registration and READY", red: started(died()), wire: status(ready, dies)},
		{
			Name: "dies-in-stream", Says: "the engine ends in the middle of a stream, without a word",
			red:  open(check.CodeEngineEnded, middle, "engine: ", errDies.Error()),
			wire: inMiddle(func(o *spoken) { o.held, o.end = true, errDies }),
		},
		{
			Name: "says-dead-and-dies", Says: "the engine says that it is dead in the middle of a stream, and ends",
			red:  open(check.CodeEngineEnded, middle, "engine: ", errDies.Error()),
			wire: inMiddle(func(o *spoken) { o.raw, o.end = dead, errDies }),
		},
		{
			Name: "says-dead", Says: "the engine says that it is dead in the middle of a stream, and stays",
			red: open(check.CodeEngineEnded, middle, "ENGINE_CORE_DEAD"), waits: idle,
			wire: func(s *scene) tamper {
				return silentAfter(s, func(o *spoken) { o.raw = dead })
			},
		},
		{
			Name: "silent-from-start", Says: "the engine takes requests and never answers",
			red: open(check.CodeSilence, nil, "no output for ", "request 0 ", " after 0 of "), waits: idle,
			wire: on(output, func(_ int, m message) ([]message, error) { return nothing(m) }),
		},
		{
			Name: "call-unanswered", Says: "the engine does not answer a utility call", red: only(conformance.Fidelity, unanswered), waits: idle,
			wire: s.unanswered,
		},
		{
			Name: "silent-in-stream", Says: "the engine falls silent in the middle of a stream",
			red: open(check.CodeSilence, middle, "no output for "), waits: idle,
			wire: func(s *scene) tamper {
				return silentAfter(s, func(o *spoken) { o.held = true })
			},
		},
	}
}

// unanswered drops the answers to utility calls.
func (s *scene) unanswered(*scene) tamper {
	at := s.field("EngineCoreOutputs", "utility_output")
	return func(m message) ([]message, error) {
		if m.to == output {
			if root, err := parse(m.frames[0]); err == nil && at < len(root.items) && !root.items[at].isNil() {
				return nil, nil
			}
		}
		return faithful(m)
	}
}

// silentAfter makes the last word of an engine in the middle of the target.
func silentAfter(s *scene, last func(*spoken)) tamper {
	silent := false
	speak := inMiddle(func(o *spoken) {
		last(o)
		silent = true
	})(s)
	return func(m message) ([]message, error) {
		if silent && m.to == output {
			return nil, nil
		}
		return speak(m)
	}
}
