package live

import (
	"errors"

	"github.com/vllm-vcr/conformance/compat"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/frontends/coreclient"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// An Asked is what an engine was asked for that says a message: a request, or a call.
type Asked struct {
	Request *protocol.Request // nil if it was a call
	CallID  uint64
	Method  string
}

// Inspect judges one message of an engine as the suite does that has asked for nothing else, and returns what is wrong with
// it: for who wants to know what the suite makes of a message, and has no engine that says it. What must hold of several
// messages together is not looked at.
func Inspect(codec *protocol.Codec, asked Asked, frames [][]byte) []check.Failure {
	l, f := inspector(codec)
	if r := asked.Request; r != nil {
		l.asks[r.ID] = &ask{id: r.ID, prompt: r.PromptTokenIDs, sampling: r.Sampling}
	} else {
		l.calls[asked.CallID] = nil
	}
	l.messages++
	if err := codec.DecodeOutputs(frames[0], &l.out); err != nil {
		if errors.Is(err, protocol.ErrEngineDead) {
			return []check.Failure{check.Failed(check.CodeEngineEnded, "%v", err)}
		}
		l.unreadable(err, frames)
		return f.Failures
	}
	l.read(frames[1:], frames)
	for _, a := range l.asks {
		if !a.closed {
			l.fail("", check.Failed(check.CodeSilence, "%v", errNoEnd))
		}
	}
	if asked.Request != nil {
		return f.Failures
	}
	declared := codec.Profile().Utilities[asked.Method]
	if answer := l.calls[asked.CallID]; answer != nil {
		l.checkAnswer(safeCall{method: asked.Method}, declared, answer)
	} else {
		l.fail("", check.Failed(check.CodeSilence, "%v", errNoEnd))
	}
	return f.Failures
}

// InspectHandshake judges HELLO, the registration and READY of an engine as the suite does, see [Inspect].
func InspectHandshake(codec *protocol.Codec, hello, registration, ready []byte) []check.Failure {
	l, f := inspector(codec)
	broken := func(err error) []check.Failure {
		return append(f.Failures, check.Failed(CodeEngineOrder, "%v", err))
	}
	steps := protocol.FrontendHandshake{Addresses: protocol.Addresses{Inputs: []string{"tcp://127.0.0.1:1"}, Outputs: []string{"tcp://127.0.0.1:2"}}}
	if _, err := steps.OnStatus(hello); err != nil {
		return broken(err)
	}
	registered, err := steps.OnRegister(0, [][]byte{registration})
	if err != nil {
		return broken(err)
	}
	if _, err := steps.OnStatus(ready); err != nil {
		return broken(err)
	}
	l.s.Engine = coreclient.Engine{
		Identity: protocol.Identity(0), Ready: registered, RawReady: registration, Statuses: [][]byte{hello, ready},
	}
	if err := l.checkStatuses(); err != nil {
		return broken(err)
	}
	l.checkIdentity()
	l.golden = &check.Golden{Codec: codec}
	if err := l.checkSchema(); err != nil {
		return broken(err)
	}
	return f.Failures
}

// errNoEnd is what an engine that says no more would be silent about.
var errNoEnd = errors.New("the request does not end by it, or the call is not answered")

// inspector is a suite without an engine.
func inspector(codec *protocol.Codec) (*live, *check.Outcome) {
	f := new(check.Outcome)
	return &live{
		codec: codec, line: compat.Line{Name: codec.Line()}, asks: map[string]*ask{}, calls: map[uint64]*protocol.UtilityOutput{},
		s: &check.Session{}, f: f, noted: map[string]bool{}, timestamp: map[int]float64{},
	}, f
}
