package selftest

import (
	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/replay"
)

// frameFaults are messages that are wrong as a whole.
func frameFaults(s *scene) []Fault {
	index := nowhere(check.CodeEngineIndex, "message ")
	index = index.in("engine_index").compares("0", "1")
	index.inFrame = true
	call := nowhere(check.CodeUtility, "is_sleeping")
	call = call.in("utility_output.call_id").compares("1", "424242")
	call.inFrame = true
	instead := func(name, says string, code conformance.Code, frames func(message []byte) [][]byte) Fault {
		return s.undecodable(name, says, "EngineCoreOutputs", differing(code, "EngineCoreOutputs"), func(o *spoken) { o.raw = frames(o.root.bytes()) })
	}
	syntax := replay.CodeWireSyntax
	return []Fault{
		instead("garbage", "a message is no MessagePack", syntax, func([]byte) [][]byte { return [][]byte{{0xc1, 0xff, 0x00}} }),
		instead("empty-frame", "a message is empty", syntax, func([]byte) [][]byte { return [][]byte{{}} }),
		instead("not-an-array", "a message is a number", replay.CodeWireKind, func([]byte) [][]byte { return [][]byte{number(7).bytes()} }),
		instead("truncated-message", "a message ends in its middle", syntax, func(m []byte) [][]byte { return [][]byte{m[:len(m)/2]} }),
		instead("trailing-bytes", "a message is two", syntax, func(m []byte) [][]byte { return [][]byte{append(m, m...)} }),
		instead("lying-length", "an array claims 4294967295 elements", syntax, func([]byte) [][]byte {
			return [][]byte{{0xdd, 0xff, 0xff, 0xff, 0xff, 0x00}}
		}),
		instead("deep-nesting", "arrays are nested a thousand deep", syntax, func([]byte) [][]byte { return [][]byte{nested(1000)} }),
		{
			Name: "engine-index", Says: "a message names another engine",
			red:  and(only(conformance.Fidelity, index), conformance.Wire, differing(replay.CodeWireValue, "EngineCoreOutputs.engine_index")),
			wire: inMiddle(func(o *spoken) { o.root.items[0] = number(1) }),
		},
		{
			Name: "call-id", Says: "the answer to a utility call names another call", red: only(conformance.Fidelity, call),
			wire: s.answer(func(utility *node) { utility.items[0] = number(424242) }),
		},
		{
			Name: "failed-call", Says: "a utility call that must succeed is answered with a failure",
			red: only(conformance.Fidelity, failedCall()),
			wire: s.answer(func(utility *node) {
				utility.items[1], utility.items[2] = text("Call to is_sleeping method failed: no"), null()
			}),
		},
		{
			Name: "call-type-info", Says: "the result of a utility call claims to be of a Python type",
			red: only(conformance.Fidelity, want{
				code: check.CodeUndecodable, request: -1, position: -1, inFrame: true, path: "utility_output",
				says: []string{"type_info"},
			}),
			wire: s.answer(func(utility *node) { utility.items[2].items[0] = text("bool") }),
		},
	}
}

func failedCall() want {
	w := nowhere(check.CodeUtility, "is_sleeping")
	w.inFrame, w.path, w.actual = true, "utility_output.failure_message", "method failed: no"
	return w
}

// nested is an array in an array in an array.
func nested(depth int) []byte {
	b := make([]byte, 0, depth+1)
	for range depth {
		b = append(b, 0x91)
	}
	return append(b, 0xc0)
}

// answer edits the answers to utility calls.
func (s *scene) answer(edit func(utility *node)) func(*scene) tamper {
	at := s.field("EngineCoreOutputs", "utility_output")
	return func(*scene) tamper {
		return func(m message) ([]message, error) {
			root, err := parse(m.frames[0])
			if m.to != output || err != nil || at >= len(root.items) || root.items[at].isNil() {
				return faithful(m)
			}
			edit(root.items[at])
			m.frames[0] = root.bytes()
			return faithful(m)
		}
	}
}
