package coverage

import (
	"fmt"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

// Kinds of message that a profile has no name for.
const (
	add          = "ADD"
	abort        = "ABORT"
	startWave    = "START_DP_WAVE"
	call         = "UTILITY"
	initial      = "INIT"
	registration = "registration"
	outputs      = "outputs"
	answer       = "utility answer"
	dead         = protocol.EngineDead
	kvEvents     = "KV events"
)

// Add adds what a recorded message holds, and reports whether it is of a kind that has fields.
func (l *Line) Add(m *trace.Message) bool {
	l.values = l.values[:0]
	if m.Note != "" || len(m.Frames) == 0 || m.Elided > 0 {
		return false
	}
	fromEngine, last := m.Direction == trace.EngineToFrontend, m.Frames[len(m.Frames)-1]
	switch m.Channel {
	case "handshake":
		l.handshake(fromEngine, last)
	case "input", "coordinator_input":
		if fromEngine {
			l.Registration(last)
		} else {
			l.ToEngine(m.Frames)
		}
	case "output", "coordinator_output":
		if fromEngine {
			l.FromEngine(m.Frames)
		}
	case "kv_events":
		l.see(message, kvEvents)
		l.payload(protocol.KindKVEvents, last)
	}
	return len(l.values) > 0
}

// handshake adds HELLO, INIT or READY.
func (l *Line) handshake(fromEngine bool, payload []byte) {
	if !fromEngine {
		l.see(message, initial)
		l.payload(protocol.KindInit, payload)
		return
	}
	if s, err := protocol.DecodeStatus(payload); err == nil {
		l.see(message, s.Status)
	}
}

// Registration adds what an engine registers with.
func (l *Line) Registration(payload []byte) {
	if cur := pack.NewCursor(payload); cur.Kind() == pack.Map {
		l.see(message, registration)
		l.payload(protocol.KindReady, payload)
	}
}

// ToEngine adds what an engine receives: [type, payload, auxiliary frames...].
func (l *Line) ToEngine(frames [][]byte) {
	if len(frames) < 2 || len(frames[0]) != 1 {
		return
	}
	for _, m := range l.codec.Profile().Enums["EngineCoreRequestType"].Members {
		if string(m.Value) == fmt.Sprintf(`"0x%02x"`, frames[0][0]) {
			l.see(member, "EngineCoreRequestType."+m.Name)
			l.see(message, m.Name)
		}
	}
	switch frames[0][0] {
	case protocol.TypeAdd:
		l.payload(protocol.KindRequest, frames[1], frames[2:]...)
	case protocol.TypeAbort:
		l.payload(protocol.KindAbort, frames[1])
	case protocol.TypeUtility:
		l.payload(protocol.KindUtility, frames[1], frames[2:]...)
	}
}

// FromEngine adds what an engine says of requests and calls.
func (l *Line) FromEngine(frames [][]byte) {
	if string(frames[0]) == protocol.EngineDead {
		l.see(message, dead)
		return
	}
	l.see(message, outputs)
	l.payload(protocol.KindOutputs, frames[0], frames[1:]...)
	for _, v := range l.values {
		if l.fields[v.Declared()].FullName() == "UtilityOutput.call_id" {
			l.see(message, answer)
		}
	}
}
