package selftest

import (
	"slices"

	"github.com/vllm-vcr/conformance/conformance"
	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/invariant"
	"github.com/vllm-vcr/conformance/internal/check/replay"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

// rewriteFrames changes the messages of raw frames, writes them anew, and registers the bytes.
func (b stored) rewriteFrames(change func([]trace.Message) []trace.Message) (stored, error) {
	reader, err := check.OpenFrames(b.data, b.location)
	if err != nil {
		return b, err
	}
	var messages []trace.Message
	var m trace.Message
	for reader.Next(&m) == nil { // a line that does not read is for the check to find
		messages = append(messages, m.Clone())
	}
	data, err := check.WriteFrames(b.location, reader.Meta(), change(messages))
	return b.register(data), err
}

// sessionFaults are in what both sides of a recorded session said.
func sessionFaults(s *scene) []Fault {
	red := func(w want) map[conformance.Assertion]want { return only(conformance.Frames, w) }
	at := func(code conformance.Code, path string) want {
		w := nowhere(code, "line ", path).in(path)
		w.inFrame, w.distinct = true, true
		return w
	}
	ofRequest := func(w want) want {
		w.request = someone
		return w
	}
	const root, outputAt = "EngineCoreOutputs", "EngineCoreOutputs.outputs["
	index, timestamp := s.field(root, "engine_index"), s.field(root, "timestamp")
	var out protocol.Outputs
	utility := func(m *trace.Message) bool {
		return s.codec.DecodeOutputs(m.Frames[0], &out) == nil && out.Utility != nil
	}
	last := func(m *trace.Message) bool {
		return s.codec.DecodeOutputs(m.Frames[0], &out) == nil &&
			slices.ContainsFunc(out.Outputs, func(o protocol.RequestOutput) bool { return o.Finish != protocol.Unfinished })
	}
	whatever := func(*trace.Message) bool { return true }
	return []Fault{
		{
			Name: "session-short-message", Says: "in a recorded session a message of the engine lacks its last field", red: red(at(check.CodeLayout, root)),
			frames: said(whatever, func(m *trace.Message) []trace.Message {
				return reworded(m, 0, func(n *node) { n.items = n.items[:len(n.items)-1] })
			}),
		},
		{
			Name: "session-spare-field", Says: "in a recorded session a request has a field more than the line knows",
			red: red(at(check.CodeLayout, "EngineCoreRequest")),
			frames: asked(protocol.TypeAdd, func(m *trace.Message) []trace.Message {
				return reworded(m, 1, func(n *node) { n.items = append(n.items, number(1)) })
			}),
		},
		{
			Name: "session-spare-key", Says: "in a recorded session an engine says HELLO with a key that the line does not know",
			red: red(at(check.CodeLayout, "Status.surprise")),
			frames: first(func(m *trace.Message) bool { return m.Channel == "handshake" && m.Direction == trace.EngineToFrontend },
				func(m *trace.Message) []trace.Message {
					return reworded(m, 0, func(n *node) { n.items = append(n.items, text("surprise"), number(1)) })
				}),
		},
		{
			Name: "session-no-request", Says: "a recorded session lacks a request that is answered", red: red(at(replay.CodeFramesStray, outputAt)),
			frames: asked(protocol.TypeAdd, func(*trace.Message) []trace.Message { return nil }),
		},
		{
			Name: "session-output-twice", Says: "in a recorded session the last output of a request comes twice",
			red:    red(ofRequest(at(replay.CodeFramesLate, outputAt))),
			frames: said(last, func(m *trace.Message) []trace.Message { return []trace.Message{*m, *m} }),
		},
		{
			Name: "session-answer-twice", Says: "in a recorded session a utility call is answered twice",
			red:    red(at(replay.CodeFramesAnswer, root+".utility_output.call_id")),
			frames: said(utility, func(m *trace.Message) []trace.Message { return []trace.Message{*m, *m} }),
			lacks: func(s *scene) string {
				found := false
				_, err := s.heard.rewriteFrames(func(all []trace.Message) []trace.Message {
					found = slices.ContainsFunc(all, func(m trace.Message) bool { return m.Channel == "output" && len(m.Frames) > 0 && utility(&m) })
					return all
				})
				return unless(err == nil && found, "no utility call is answered in the session")
			},
		},
		{
			Name: "session-other-engine", Says: "in a recorded session a message names another engine", red: red(at(replay.CodeFramesRank, root+".engine_index")),
			frames: said(whatever, func(m *trace.Message) []trace.Message {
				return reworded(m, 0, func(n *node) { n.items[index] = number(7) })
			}),
		},
		{
			Name: "session-earlier", Says: "in a recorded session a message is older than those before it", red: red(at(invariant.CodeEnvelope, root+".timestamp")),
			frames: said(last, func(m *trace.Message) []trace.Message {
				return reworded(m, 0, func(n *node) { n.items[timestamp] = &node{kind: pack.Float, leaf: pack.AppendFloat64(nil, 1)} })
			}),
		},
	}
}

// ownTimeFaults are of an engine that goes through a recorded session in a time of its own.
func ownTimeFaults(*scene) (all []Fault) {
	for _, f := range []struct {
		name, says string
		code       conformance.Code
		path       string
		finds      string
		edit       edit
	}{
		{"no-stop-reason", "no token is named that ended a request", replay.CodeWireValue, ".stop_reason", "stop_reason is nil, but", put("outputs.stop_reason", nil, 0)},
		{"other-result", "a utility call has another result", replay.CodeWireValue, "utility_output.result", "is answered by", instead("utility_output.result.1", true, false)},
		{"refuses", "every request is refused", replay.CodeRefused, "", "refused every request", put("outputs.finish_reason", 3, 0)},
		{"garbled", "a message cannot be read", check.CodeUndecodable, "new_token_ids", "does not decode", put("outputs.new_token_ids.0", "x", 5)},
	} {
		w := want{code: f.code, request: anywhere, position: anywhere, path: f.path, says: []string{f.finds}, besides: true}
		all = append(all, Fault{
			Name: "own-time-" + f.name, Says: "in a time of its own, " + f.says, red: only(conformance.Wire, w), ownTime: true,
			wire: func(s *scene) tamper { return f.edit.tamper(s.codec) },
		})
	}
	return all
}

// first changes the first message of a session that fits.
func first(fits func(*trace.Message) bool, change func(*trace.Message) []trace.Message) func([]trace.Message) []trace.Message {
	return func(all []trace.Message) []trace.Message {
		at := slices.IndexFunc(all, func(m trace.Message) bool { return m.Note == "" && len(m.Frames) > 0 && fits(&m) })
		if at < 0 {
			return all
		}
		return slices.Concat(all[:at], change(&all[at]), all[at+1:])
	}
}

// said changes the first message of an engine's outputs that fits, asked the first of a frontend with this type.
func said(fits func(*trace.Message) bool, change func(*trace.Message) []trace.Message) func([]trace.Message) []trace.Message {
	return first(func(m *trace.Message) bool { return m.Channel == "output" && fits(m) }, change)
}

func asked(typ byte, change func(*trace.Message) []trace.Message) func([]trace.Message) []trace.Message {
	return first(func(m *trace.Message) bool {
		return m.Channel == "input" && m.Direction == trace.FrontendToEngine && len(m.Frames) > 1 && m.Frames[0][0] == typ
	}, change)
}

// reworded is a message with one of its frames changed.
func reworded(m *trace.Message, frame int, change func(*node)) []trace.Message {
	own := m.Clone()
	tree, err := parse(own.Frames[frame])
	if err != nil {
		return []trace.Message{own} // unchanged, which the self-test reports
	}
	change(tree)
	own.Frames[frame] = tree.bytes()
	return []trace.Message{own}
}
