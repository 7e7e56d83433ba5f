package conformance

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/trace"
)

// messagesOf reads the frames of a golden, which are the caller's to change.
func messagesOf(tb testing.TB, g *subjectGolden) []trace.Message {
	tb.Helper()
	_, messages, err := check.ReadFrames(g.data, g.BucketPath)
	require.NoError(tb, err)
	return messages
}

// inLine finds the message of a line.
func inLine(tb testing.TB, messages []trace.Message, line int) int {
	tb.Helper()
	at := slices.IndexFunc(messages, func(m trace.Message) bool { return m.Line == line })
	if at < 0 {
		tb.Fatalf("no message in line %d", line)
	}
	return at
}

// rewriteFrames writes the messages as the golden's, under the meta it had.
func (g *subjectGolden) rewriteFrames(tb testing.TB, messages []trace.Message) {
	tb.Helper()
	head, _, _ := bytes.Cut(inflated(tb, g.data), []byte("\n"))
	var meta struct {
		Meta json.RawMessage `json:"meta"`
	}
	require.NoError(tb, json.Unmarshal(head, &meta))
	var b bytes.Buffer
	w, err := trace.NewFrameWriter(&b, true, meta.Meta)
	require.NoError(tb, err)
	for i := range messages {
		require.NoError(tb, w.Write(&messages[i]))
	}
	require.NoError(tb, w.Close())
	g.register(b.Bytes())
}

// A sessionEdit changes the messages of a session.
type sessionEdit func(testing.TB, []trace.Message) []trace.Message

// drop leaves out the message of a line.
func drop(line int) sessionEdit {
	return func(tb testing.TB, m []trace.Message) []trace.Message {
		at := inLine(tb, m, line)
		return slices.Delete(m, at, at+1)
	}
}

// double repeats the message of a line at once.
func double(line int) sessionEdit {
	return func(tb testing.TB, m []trace.Message) []trace.Message {
		at := inLine(tb, m, line)
		return slices.Insert(m, at, m[at])
	}
}

// What cannot be replayed is an error that says in which line, not a failure of the
// engine under test.
func TestBadWireGolden(t *testing.T) {
	change := func(line int, f func(*trace.Message)) sessionEdit {
		return func(tb testing.TB, m []trace.Message) []trace.Message {
			f(&m[inLine(tb, m, line)])
			return m
		}
	}
	// Each line is of the golden of 0.33. A line that is left out counts no more.
	tests := []struct {
		name   string
		change sessionEdit
		says   string
	}{
		{"an output for nobody", drop(6), `line 6: EngineCoreOutputs.outputs[0]: an output for request "chatcmpl-f9d5b72f-f3aa3857", which the frontend has not added`},
		{"a request twice", double(6), `line 7: request "chatcmpl-f9d5b72f-f3aa3857" is added for the second time, first in line 6`},
		{"an output after the last", double(22), `line 23: EngineCoreOutputs.outputs[0]: an output for request "chatcmpl-f9d5b72f-f3aa3857", which has finished`},
		{"a request that is none", change(6, func(m *trace.Message) { m.Frames[1] = []byte{0xc1} }), "line 6: EngineCoreRequest: "},
		{"an answer to no call", drop(711), "line 712: it answers utility call 1, which the frontend has not made"},
		{"a request without a payload", change(6, func(m *trace.Message) { m.Frames = m.Frames[:1] }), "line 6: a message of 1 frames does not begin with a request type and a payload"},
		{"a request that was left out", change(6, func(m *trace.Message) { m.Frames, m.Elided = nil, 700 }), "line 6: 700 bytes of a message were left out"},
		{"an output that was left out", change(7, func(m *trace.Message) { m.Frames, m.Elided = nil, 700 }), "line 7: 700 bytes of a message of the engine were left out"},
		{"an output without frames", change(7, func(m *trace.Message) { m.Frames = [][]byte{} }), "line 7: a message of the engine without frames"},
		{"the end of the engine", change(24, func(m *trace.Message) { m.Frames[0] = []byte(protocol.EngineDead) }), "line 24: the engine reports that it is dead"},
		{"two clients", change(24, func(m *trace.Message) { m.Client = 1 }), "line 24: a message of engine 0 and client 1: only the frames of one"},
		{"a coordinator", change(24, func(m *trace.Message) { m.Channel = "coordinator_output" }), "line 24: a message of a data-parallel coordinator, which no player has"},
		{"an abort out of order", func(tb testing.TB, m []trace.Message) []trace.Message {
			// The engine answers a request that was added after the abort, and then the
			// aborted one again.
			return slices.Insert(m, inLine(tb, m, 316), m[inLine(tb, m, 311)])
		}, "line 312: it takes effect after a later message of the frontend has: the messages cannot be replayed in their order"},
		{"no requests", func(tb testing.TB, m []trace.Message) []trace.Message {
			m = m[:inLine(tb, m, 6)]
			return append(m, trace.Message{Channel: "output", Direction: trace.EngineToFrontend, Frames: [][]byte{{0x92, 0, 0x90}}})
		}, "no request of a frontend and no output of an engine is in it, so there is nothing to replay"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			g := pinnedWire(t)
			g.rewriteFrames(t, test.change(t, messagesOf(t, g)))
			report := g.judged(t, Runner{}, onlyWire)
			r := report.Results[0]
			if r.Verdict != Error || r.Failures[0].Code != check.CodeGolden || !strings.Contains(saidBy(r), test.says) || !strings.Contains(saidBy(r), "wire-edge-s1") {
				t.Errorf("%s %v, want an error %s that says %q", r.Verdict, r.Failures, check.CodeGolden, test.says)
			}
		})
	}
}

// Where the tap saw a message pass is not where it took effect: a request may have
// passed before the engine said its last word of the one before, an abort long
// before the engine took it in, and a real engine that is asked at once has no time
// to say that nothing is left to do.
func TestWirePlaces(t *testing.T) {
	move := func(from, to int) sessionEdit {
		return func(tb testing.TB, m []trace.Message) []trace.Message {
			i, j := inLine(tb, m, from), inLine(tb, m, to)
			moved := m[i]
			m = slices.Delete(m, i, i+1)
			if j > i {
				j--
			}
			return slices.Insert(m, j, moved)
		}
	}
	for _, test := range []struct {
		name   string
		change sessionEdit
		fails  bool
	}{
		{"as it was", func(_ testing.TB, m []trace.Message) []trace.Message { return m }, false},
		{"a request after the engine's last word", move(23, 25), false},
		{"a request before the end of another", move(23, 20), false},
		{"an abort long before", move(312, 309), false},
		{"an abort and the next request long before", func(tb testing.TB, m []trace.Message) []trace.Message {
			return move(313, 310)(tb, move(312, 309)(tb, m))
		}, false},
		{"a call long before its answer", move(711, 705), false},
		{"no last word", drop(24), false},
		{"no last word after an abort", drop(57), false},
		{"no last word at the end", drop(780), false},
		{"two last words", double(57), false},
		{"no step of a grammar", drop(547), false},
		{"no first half of a long prompt", drop(526), true},
		{"no abort", drop(312), true},
		{"a step without a request that goes on", drop(10), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := pinnedWire(t)
			g.rewriteFrames(t, test.change(t, messagesOf(t, g)))
			r := g.judged(t, Runner{}, onlyWire).Results[0]
			want := Pass
			if test.fails {
				want = Fail
			}
			require.True(t, r.Verdict == want, "%s: %v, want %s", r.Verdict, r.Failures, want)
		})
	}
}

// TestSessionsAreRepeated: where KV caches go to another engine and come from there, the player repeats what requests are told of
// them, and how their prompts were computed. When a pull ends is the other engine's. A model that pools has the recorded tasks.
func TestSessionsAreRepeated(t *testing.T) {
	for id, places := range map[string][]string{
		"frames-transfer": {"kv_transfer_params", "num_local_cached_tokens", "num_external_cached_tokens", "num_cache_creation_tokens", "new_token_ids"},
		"frames-pooling":  {"utility_output", "finish_reason", "prefill_stats", "error", "finished_requests"},
	} {
		matrix, mf := repository(t)
		cases, err := NewPlan(matrix, mf, Selection{Lines: []string{"0.33"}, Goldens: []string{id}})
		require.NoError(t, err)
		report := liveRunner().Run(t.Context(), cases)
		note := report.Results[len(report.Results)-1].Note
		if report.ExitCode != ExitOK || !strings.HasPrefix(note, "the player ") {
			t.Fatalf("%s: %s: %q", id, report.Reason, note)
		}
		for _, place := range places {
			require.True(t, !strings.Contains(note, place), "%s: %s is among what the player does not repeat: %s", id, place, note)
		}
	}
}
