package selftest

import (
	"slices"
	"strings"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/replay"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// layoutFaults put something into a message that the line has not there.
func layoutFaults(s *scene) []Fault {
	length, kind := replay.CodeWireLength, replay.CodeWireKind
	const outputAt, tokensAt = "EngineCoreOutputs.outputs[0]", "EngineCoreOutputs.outputs[0].new_token_ids"
	faults := []Fault{
		s.undecodable("long-output", "an output has a field more than the line knows", "outputs[", differingOutput(length, outputAt), func(o *spoken) {
			o.node().items = append(o.node().items, null())
		}),
		s.undecodable("long-envelope", "a message has a field more than the line knows", "EngineCoreOutputs", differing(length, "EngineCoreOutputs"), func(o *spoken) {
			o.root.items = append(o.root.items, null())
		}),
		s.undecodable("token-as-text", "a token id is a str", "new_token_ids", differingOutput(kind, tokensAt+"[0]"), func(o *spoken) {
			o.tokens.items[0] = text("7")
		}),
		s.undecodable("negative-token", "a token id is negative", "new_token_ids", differingOutput(replay.CodeWireValue, tokensAt+"[0]"), func(o *spoken) {
			o.tokens.items[0] = &node{kind: pack.Int, leaf: pack.AppendInt(nil, -1)}
		}),
		s.undecodable("tokens-as-number", "the token ids are no array", "new_token_ids", differingOutput(kind, tokensAt), func(o *spoken) {
			o.tokens.become(number(7))
		}),
		s.undecodable("id-as-number", "the id of a request is a number", "request_id", differingOutput(kind, outputAt+".request_id"), func(o *spoken) {
			o.node().items[0] = number(7)
		}),
		s.undecodable("outputs-as-map", "the outputs are a map", "outputs", differing(kind, "EngineCoreOutputs.outputs"), func(o *spoken) {
			o.root.items[1] = &node{kind: pack.Map}
		}),
		s.undecodable("bare-output", "an output has no fields besides its id", "outputs[", differingOutput(length, outputAt), func(o *spoken) {
			o.node().items = o.node().items[:1]
		}),
		s.undecodable("finish-as-text", "a finish reason is a str", "finish_reason", differingOutput(kind, outputAt+".finish_reason"), func(o *spoken) {
			o.finish().become(text("length"))
		}),
		s.undecodable("unknown-finish", "a finish reason is none of the line's", "finish_reason", differingOutput(kind, outputAt+".finish_reason"), func(o *spoken) {
			o.finish().become(number(9))
		}),
	}
	return append(faults, s.driftFaults()...)
}

// undecodable is a fault in the middle of the target after which the message is
// none that a frontend of the line can read. framed is what the wire check says.
func (s *scene) undecodable(name, says, path string, framed want, edit func(*spoken)) Fault {
	red := and(only(conformance.Fidelity, unreadable(path)), conformance.Wire, framed)
	return Fault{Name: name, Says: says, red: red, layout: s.layoutLike(framed), wire: inMiddle(edit)}
}

// layoutLike is what the check by the line's profile says where the wire check says
// that something is of another length or kind. Another value is of the line, too, and
// an output that names its request by none is of no request.
func (s *scene) layoutLike(framed want) map[conformance.Assertion]want {
	switch {
	case framed.code == replay.CodeWireValue:
		return nil
	case framed.request == someone && !strings.HasSuffix(framed.path, ".request_id"):
		return only(conformance.Fidelity, s.layoutOf(framed.path))
	}
	return only(conformance.Fidelity, layoutAt(framed.path))
}

// unreadable is what is wanted of a message that does not decode.
func unreadable(path string) want {
	return want{
		code: check.CodeUndecodable, request: anywhere, position: anywhere, inFrame: true, path: path,
		says: []string{"does not decode: ", path, " open: request "},
	}
}

// driftFaults shift fields, so that what is read in their place is something else
// of a kind that fits: the end of a stream is not seen.
func (s *scene) driftFaults() []Fault {
	unseen := about(check.CodeSilence, s.target.index, len(s.target.tokens))
	unseen.says = append(unseen.says, "no output for ")
	finishKind := differingOutput(replay.CodeWireKind, "EngineCoreOutputs.outputs[0].finish_reason")
	return []Fault{
		{
			Name: "swapped-fields", Says: "finish_reason and stop_reason have changed places",
			red: and(only(conformance.Fidelity, unseen), conformance.Wire, finishKind), waits: idle,
			wire: atEnd(func(o *spoken) {
				items := o.node().items
				f, r := o.scene.field("EngineCoreOutput", "finish_reason"), o.scene.field("EngineCoreOutput", "stop_reason")
				items[f], items[r] = items[r], items[f]
			}),
		},
		{
			Name: "shifted-fields", Says: "the fields behind new_token_ids have moved by one",
			red:    and(only(conformance.Fidelity, unreadable("outputs[")), conformance.Wire, finishKind),
			layout: only(conformance.Fidelity, s.layoutOf("EngineCoreOutputs.outputs[0].")),
			wire: atEnd(func(o *spoken) {
				items := o.node().items
				items = slices.Delete(items, len(items)-1, len(items))
				o.node().items = slices.Insert(items, 2, null())
			}),
		},
	}
}
