package conformance

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/check/replay"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// wireGolden is the edge session of a line.
func wireGolden(tb testing.TB, line string) *subjectGolden {
	tb.Helper()
	return goldenOf(tb, line, "wire-edge-s1")
}

// pinnedWire is an edge session of 0.33 whose messages tests name by their lines. A new capture of the golden, from which it
// was copied, does not replace it.
func pinnedWire(tb testing.TB) *subjectGolden {
	tb.Helper()
	data, err := os.ReadFile(pinnedWirePath)
	require.NoError(tb, err)
	g := wireGolden(tb, "0.33")
	g.register(data)
	return g
}

const pinnedWirePath = repoCaptures + "/0.33.0-wire-edge-s1.jsonl.gz"

// onlyWire selects the one case.
var onlyWire = Selection{Assertions: []Assertion{Wire}}

// bootedWire starts a player on a session, ready to be replayed.
func bootedWire(tb testing.TB, g *subjectGolden) *replay.WireReplay {
	tb.Helper()
	runner := (&Runner{Store: g}).begin(tb.Context())
	c := Case{Line: g.line, Golden: g.Golden}
	loaded := runner.load(tb.Context(), c)
	if loaded.ReadErr != nil {
		tb.Fatal(loaded.ReadErr)
	}
	w, err := replay.NewWireSession("golden", loaded.Codec, loaded.Frames)
	require.NoError(tb, err)
	run, err := replay.BootWire(tb.Context(), runner.env, loaded, c, w)
	require.NoError(tb, err)
	tb.Cleanup(run.Close)
	return run
}

// mustAgree replays the whole session of at least so many messages.
func mustAgree(r *replay.WireReplay, t *testing.T, atLeast int) {
	t.Helper()
	require.NoError(t, r.All())
	var f check.Outcome
	r.Comparison.Report(&f)
	for _, wrong := range f.Failures {
		t.Errorf("%s %s", wrong.Code, wrong.Message)
	}
	if f.Asserted < atLeast {
		t.Errorf("%d messages compared, want those of a whole session", f.Asserted)
	}
}

// The player says what the real engine of every line said, message by message, and
// nothing is masked that need not be.
func TestWireOfEveryLine(t *testing.T) {
	needed := map[string]int{}
	matrix, mf := repository(t)
	for _, l := range matrix.Lines {
		line := l.Name
		if !l.FidelityValidated && len(mf.ForLine(line)) == 0 {
			continue // it was adopted, and not captured yet
		}
		t.Run(line, func(t *testing.T) {
			run := bootedWire(t, wireGolden(t, line))
			mustAgree(run, t, 700)
			left := 0
			for _, m := range run.Recorded.Said {
				if m.Left != "" {
					left++
				}
			}
			if all := len(run.Recorded.Said); left > all/8 { // of a busy machine there are more without outputs
				t.Errorf("%d of %d messages not compared", left, all)
			}
			for place, n := range run.Comparison.Masked {
				needed[place] += n
			}
		})
	}
	for _, m := range replay.WireMasks {
		if needed[m.Path] == 0 {
			t.Errorf("the mask of %s is not needed on any line: take it out", m.Path)
		}
		if m.Reason == "" {
			t.Errorf("the mask of %s has no reason", m.Path)
		}
	}
}

// tamper changes the messages of a player on their way: of those that are no
// answers to our own calls, the one with index at.
func tamper(w *replay.WireReplay, at int, change func([][]byte) [][][]byte) {
	honest := w.Listen
	heard := 0
	var queue [][][]byte
	w.Listen = func(ctx context.Context) ([][]byte, error) {
		for {
			if len(queue) > 0 {
				m := queue[0]
				queue = queue[1:]
				return m, nil
			}
			m, err := honest(ctx)
			if err != nil {
				return nil, err
			}
			if seen := w.Recorded.Look(m); seen.Class == replay.WireUtility && seen.Call >= replay.FirstPoke {
				return m, nil
			}
			if heard++; heard-1 != at {
				return m, nil
			}
			queue = change(m)
		}
	}
}

// saidIn is the index of the engine's message in a line, among those that are
// compared.
func saidIn(w *replay.WireSession, tb testing.TB, line int) int {
	tb.Helper()
	at := 0
	for _, m := range w.Said {
		if m.Line == line {
			return at
		}
		if m.Left == "" {
			at++
		}
	}
	tb.Fatalf("line %d is no message of the engine", line)
	return 0
}

const stats = 2 // the position of scheduler_stats in EngineCoreOutputs

// Each of these is one message of the engine, changed: the first failure says what,
// where, in which message and about which request.
func TestTamperedWire(t *testing.T) {
	edit := func(change func(*node), path ...any) func(testing.TB, [][]byte) [][][]byte {
		return func(tb testing.TB, frames [][]byte) [][][]byte {
			return [][][]byte{edited(tb, frames, change, path...)}
		}
	}
	frames := func(change func(frames [][]byte) [][][]byte) func(testing.TB, [][]byte) [][][]byte {
		return func(_ testing.TB, frames [][]byte) [][][]byte { return change(frames) }
	}
	null, text := []byte{0xc0}, pack.AppendString(nil, "x")
	ext := func(code int8, n int) []byte { return pack.AppendExt(nil, code, make([]byte, n)) }
	tests := []struct {
		name    string
		line    int // of the golden of line 0.33
		change  func(testing.TB, [][]byte) [][][]byte
		code    Code
		request int
		path    string // below EngineCoreOutputs, or the whole
		want    string
		got     string
		others  []Code // that follow
	}{
		{"outputs one short", 676, edit(drops(9, 1), 1), replay.CodeWireLength, -1, ".outputs", "array of 10 elements", "array of 9 elements", nil},
		{
			"output shifted", 8, edit(func(n *node) { inserts(5, leaf(null))(n); drops(19, 1)(n) }, 1, 0),
			replay.CodeWireKind, 0, ".outputs[0].num_nans_in_logits", "0", "nil",
			[]Code{replay.CodeWireKind},
		},
		{"another id", 7, edit(becomes(text), 1, 0, 0), replay.CodeWireValue, 0, ".outputs[0].request_id", `"chatcmpl-f9d5b72f-f3aa3857"`, `"x"`, nil},
		{"a token of another value", 7, edit(becomes([]byte{7}), 1, 0, 1, 0), replay.CodeWireValue, 0, ".outputs[0].new_token_ids[0]", "201", "7", nil},
		{"one token more", 7, edit(inserts(0, leaf([]byte{7})), 1, 0, 1), replay.CodeWireLength, 0, ".outputs[0].new_token_ids", "array of 1 element", "array of 2 elements", []Code{replay.CodeWireValue}},
		{"no stop reason", 509, edit(becomes(null), 1, 0, 6), replay.CodeWireKind, 20, ".outputs[0].stop_reason", "304", "nil", nil},
		{"another event", 7, edit(becomes([]byte{3}), 1, 0, 7, 0, "type"), replay.CodeWireValue, 0, ".outputs[0].events[0].type", "1", "3", nil},
		{"a default left out", 7, edit(drops(24, 2), stats), replay.CodeWireMissing, -1, ".scheduler_stats.", "nil", "absent", nil},
		{"a key of another name", 7, edit(becomes(text), 1, 0, 7, 1, 0), replay.CodeWireMissing, 0, ".outputs[0].events[1].type", "2", "absent", []Code{replay.CodeWireExtra}},
		{"a gauge", 7, edit(becomes([]byte{9}), stats, "num_running_reqs"), replay.CodeWireValue, -1, ".scheduler_stats.num_running_reqs", "1", "9", nil},
		{"a statistic of no kind", 24, edit(becomes(null), stats), replay.CodeWireKind, -1, ".scheduler_stats", "{", "nil", nil},
		{"no time", 7, edit(becomes(pack.AppendFloat64(nil, 0)), 3), replay.CodeWireValue, -1, ".timestamp", "", "0", nil},
		{"a time before the last", 8, edit(becomes(pack.AppendFloat64(nil, 1)), 3), replay.CodeWireValue, -1, ".timestamp", "a time from that of the message before", "1", nil},
		{"a time to come", 7, edit(becomes(pack.AppendFloat64(nil, 1e9)), 3), replay.CodeWireValue, -1, ".timestamp", "a time from that of the message before up to now", "1000000000.0", nil},
		{"an event to come", 7, edit(becomes(pack.AppendFloat64(nil, 1e9)), 1, 0, 7, 0, "timestamp"), replay.CodeWireValue, 0, ".outputs[0].events[0].timestamp", "a time up to now", "1000000000.0", nil},
		{"a time of another kind", 7, edit(becomes([]byte{1}), 3), replay.CodeWireKind, -1, ".timestamp", "", "1", nil},
		{"another version of the weights", 7, edit(becomes(text), 8), replay.CodeWireValue, -1, ".weight_version", `"default"`, `"x"`, nil},
		{"a wave", 7, edit(becomes([]byte{1}), 6), replay.CodeWireKind, -1, ".wave_complete", "nil", "1", nil},
		{"logprobs as bytes", 43, edit(becomes(pack.AppendBin(nil, make([]byte, 16))), 1, 0, 2, 0, 2), replay.CodeWireKind, 2, ".outputs[0].new_logprobs.logprob_token_ids[2]", "", "", nil},
		{"a tensor too small", 43, edit(becomes(ext(3, 12)), 1, 0, 2, 1, 2), replay.CodeWireValue, 2, ".outputs[0].new_logprobs.logprobs[2]", "", "", nil},
		{"logprobs of another token", 43, edit(becomes(ext(3, 16)), 1, 0, 2, 0, 2), replay.CodeWireValue, 2, ".outputs[0].new_logprobs.logprob_token_ids[2]", "", "", nil},
		{"another type of numbers", 43, edit(becomes(pack.AppendString(nil, "<f8")), 1, 0, 2, 1, 0), replay.CodeWireValue, 2, ".outputs[0].new_logprobs.logprobs[0]", `"<f4"`, `"<f8"`, nil},
		{"no logprobs", 43, edit(becomes(null), 1, 0, 2), replay.CodeWireKind, 2, ".outputs[0].new_logprobs", "", "nil", nil},
		{"a frame too few", 287, frames(func(m [][]byte) [][][]byte { return [][][]byte{m[:2]} }), replay.CodeWireFrames, -1, "frames", "3 frames", "2 frames", nil},
		{"another token of the prompt", 287, frames(func(m [][]byte) [][][]byte {
			ids := slices.Clone(m[1])
			ids[len(ids)-8]++ // the last row
			return [][][]byte{{m[0], ids, m[2]}}
		}), replay.CodeWireValue, 16, ".outputs[0].new_prompt_logprobs_tensors.logprob_token_ids[2]", "id ", "", nil},
		{"a buffer too short", 287, frames(func(m [][]byte) [][][]byte { return [][][]byte{{m[0], m[1][1:], m[2]}} }), replay.CodeWireFrames, -1, "frames[1]", "352 bytes", "351 bytes", nil},
		{"no message", 7, frames(func([][]byte) [][][]byte { return nil }), replay.CodeWireUnsaid, 0, "", "a step with outputs", "no such message", nil},
		{"no message when all is done", 24, frames(func([][]byte) [][][]byte { return nil }), replay.CodeWireUnsaid, -1, "", "a step without outputs", "no such message", nil},
		{"no answer", 713, frames(func([][]byte) [][][]byte { return nil }), replay.CodeWireUnsaid, -1, "", "an answer to a utility call", "no such message", nil},
		{"a step too many", 24, frames(func(m [][]byte) [][][]byte { return [][][]byte{m, m} }), replay.CodeWireStray, -1, "", "no message", "a step without outputs: [0, [],", nil},
		{"a step after the last", 780, frames(func(m [][]byte) [][][]byte { return [][][]byte{m, m} }), replay.CodeWireStray, -1, "", "no message", "a step without outputs: [0, [],", nil},
		{"an answer twice", 713, frames(func(m [][]byte) [][][]byte { return [][][]byte{m, m} }), replay.CodeWireStray, -1, "", "no message", "an answer to a utility call: ", nil},
		{"another result", 713, edit(becomes([]byte{0xc2}), 4, 2, 1), replay.CodeWireValue, -1, ".utility_output.result[1]", "true", "false", nil},
		{"the answer to another call", 713, edit(becomes([]byte{9}), 4, 0), replay.CodeWireValue, -1, ".utility_output.call_id", "1", "9", nil},
		{"a failure", 713, edit(func(n *node) { n.parts[1], n.parts[2] = leaf(text), leaf(null) }, 4), replay.CodeWireKind, -1, ".utility_output.failure_message", "nil", `"x"`, []Code{replay.CodeWireKind}},
		{"no frame", 7, frames(func([][]byte) [][][]byte { return [][][]byte{{}} }), replay.CodeWireFrames, -1, "frames", "1 frame", "0 frames", nil},
	}
	g := pinnedWire(t)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			run := bootedWire(t, g)
			tamper(run, saidIn(run.Recorded, t, test.line), func(m [][]byte) [][][]byte { return test.change(t, m) })
			require.NoError(t, run.All())
			var f check.Outcome
			run.Comparison.Report(&f)
			if len(f.Failures) == 0 {
				t.Fatal("nothing was found")
			}
			first, path := f.Failures[0], test.path
			if path == "" || path[0] == '.' {
				path = "EngineCoreOutputs" + path
			}
			frame := test.line - 1
			if test.name == "a step too many" {
				frame++ // beside the next step
			}
			if first.Code != test.code || first.Request != test.request || first.Frame != frame ||
				!strings.HasPrefix(first.Path, path) || !strings.HasSuffix(path, ".") && first.Path != path ||
				!strings.HasPrefix(first.Expected, test.want) || !strings.HasPrefix(first.Actual, test.got) {
				t.Errorf("found %+v", first)
			}
			if !strings.Contains(first.Message, fmt.Sprintf(".jsonl.gz: line %d: ", frame+1)) {
				t.Errorf("the message does not name the place: %s", first.Message)
			}
			var others []Code
			for _, wrong := range f.Failures[1:] {
				if others = append(others, wrong.Code); len(others) == len(test.others) {
					break
				}
			}
			if len(f.Failures)-1 < len(test.others) || !slices.Equal(others[:len(test.others)], test.others) {
				t.Errorf("followed by %v, want %v", others, test.others)
			}
			if len(test.others) == 0 && len(f.Failures) > 1 {
				t.Errorf("and besides %+v", f.Failures[1:])
			}
		})
	}
}

// What an engine says before it is sent anything is compared too.
func TestTamperedStart(t *testing.T) {
	edit := func(raw []byte, change func(*node), path ...any) []byte {
		return edited(t, [][]byte{raw}, change, path...)[0]
	}
	false1, other := []byte{0xc2}, pack.AppendString(nil, "other")
	tests := []struct {
		name   string
		change func(w *replay.WireReplay)
		code   Code
		frame  int
		path   string
	}{
		{"another instance", func(w *replay.WireReplay) { w.Engine.RawReady = edit(w.Engine.RawReady, becomes(other), "instance_id") }, "", 0, ""},
		{"an instance without a name", func(w *replay.WireReplay) {
			w.Engine.RawReady = edit(w.Engine.RawReady, becomes(pack.AppendString(nil, "")), "instance_id")
		}, replay.CodeWireValue, 3, "EngineCoreReadyResponse.instance_id"},
		{"HELLO", func(w *replay.WireReplay) {
			w.Engine.Statuses[0] = edit(w.Engine.Statuses[0], becomes(false1), "headless")
		}, replay.CodeWireValue, 1, "EngineStatus.headless"},
		{"READY", func(w *replay.WireReplay) { w.Engine.Statuses[1] = edit(w.Engine.Statuses[1], drops(2, 2)) }, replay.CodeWireMissing, 4, "EngineStatus.local"},
		{"no READY", func(w *replay.WireReplay) { w.Engine.Statuses = w.Engine.Statuses[:1] }, replay.CodeWireFrames, 4, "frames"},
		{"a value", func(w *replay.WireReplay) {
			w.Engine.RawReady = edit(w.Engine.RawReady, becomes([]byte{7}), "block_size")
		}, replay.CodeWireValue, 3, "EngineCoreReadyResponse.block_size"},
		{"a key too few", func(w *replay.WireReplay) { w.Engine.RawReady = edit(w.Engine.RawReady, drops(0, 2)) }, replay.CodeWireMissing, 3, "EngineCoreReadyResponse.max_model_len"},
		{"an instance of another kind", func(w *replay.WireReplay) {
			w.Engine.RawReady = edit(w.Engine.RawReady, becomes([]byte{7}), "instance_id")
		}, replay.CodeWireKind, 3, "EngineCoreReadyResponse.instance_id"},
	}
	g := pinnedWire(t)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			run := bootedWire(t, g)
			test.change(run)
			run.Handshake()
			var f check.Outcome
			run.Comparison.Report(&f)
			if test.code == "" {
				if len(f.Failures) > 0 {
					t.Errorf("found %+v", f.Failures)
				}
				return
			}
			if len(f.Failures) != 1 || f.Failures[0].Code != test.code || f.Failures[0].Frame != test.frame || f.Failures[0].Path != test.path {
				t.Errorf("found %+v", f.Failures)
			}
		})
	}
}
