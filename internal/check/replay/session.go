package replay

import (
	"sync"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

// maxJudged bounds the messages that a [SessionJudge] looks at: it remembers each request.
const maxJudged = 1 << 22

// A SessionJudge judges the messages of engines while they pass. The first registration of an engine says of which line its messages are.
// It is safe for concurrent use.
type SessionJudge struct {
	// Found gets each kind of failure of an engine once, with the message that shows it, which is valid during the call.
	Found func(rank int, f check.Failure, m *trace.Message)

	mu      sync.Mutex
	engines map[int]*judgedEngine
}

type judgedEngine struct {
	judge   *FramesJudge // nil before the registration, and if its line is not known
	waiting []trace.Message
	unknown error
	kinds   int // of failures so far
	judged  int
}

// Message judges the next message of an engine. Messages that came before its registration are judged with that.
func (s *SessionJudge) Message(m *trace.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.engines[m.Rank]
	if e == nil {
		if s.engines == nil {
			s.engines = map[int]*judgedEngine{}
		}
		e = &judgedEngine{}
		s.engines[m.Rank] = e
	}
	switch {
	case e.unknown != nil || e.judged >= maxJudged || len(m.Frames) == 0:
		return
	case e.judge != nil:
		s.judge(e, m)
		return
	}
	e.waiting = append(e.waiting, m.Clone())
	if m.Channel != "input" || m.Direction != trace.EngineToFrontend {
		return
	}
	var codec *protocol.Codec
	ready, err := protocol.DecodeReady(m.Frames[0])
	if err == nil {
		codec, err = protocol.CodecFor(ready.VLLMVersion)
	}
	if err != nil {
		e.unknown = err
		s.Found(m.Rank, check.Failed(CodeFramesNothing, "the registration of the engine does not say of which line it is, so nothing is judged: %v", err), m)
		return
	}
	e.judge = NewFramesJudge("session", codec)
	for i := range e.waiting {
		s.judge(e, &e.waiting[i])
	}
	e.waiting = nil
}

func (s *SessionJudge) judge(e *judgedEngine, m *trace.Message) {
	e.judged++
	j := e.judge
	kinds, found := len(j.layout.Kinds), len(j.found.found)
	j.judge(e.judged, e.judged, m)
	for _, k := range j.layout.Kinds[kinds:] {
		e.kinds++
		s.Found(m.Rank, k.first, m)
	}
	for _, f := range j.found.found[found:] {
		e.kinds++
		s.Found(m.Rank, f.Failure, m)
	}
}

// Judged returns how many messages were judged, how many kinds of failures they showed, and how many engines were of no known line.
func (s *SessionJudge) Judged() (messages, kinds, unknown int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.engines {
		messages += e.judged
		kinds += e.kinds
		if e.judge == nil {
			unknown++
		}
	}
	return messages, kinds, unknown
}
