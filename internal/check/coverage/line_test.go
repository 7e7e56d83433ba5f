package coverage

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
	"github.com/vllm-vcr/conformance/manifest"
	"github.com/vllm-vcr/conformance/trace"
)

// wireGolden is the wire of a line that the session of its golden of role wire shows.
func wireGolden(t *testing.T, line string) (*Line, *check.Golden) {
	t.Helper()
	codec, err := protocol.CodecFor(line)
	require.NoError(t, err)
	return goldenOf(t, codec, "wire-edge", manifest.Wire)
}

// goldenOf is the wire of a line that a golden of raw frames shows.
func goldenOf(t *testing.T, codec *protocol.Codec, id string, role manifest.Role) (*Line, *check.Golden) {
	t.Helper()
	files, err := filepath.Glob("../../../testdata/goldens/conformance/v" + codec.Line() + ".*/cpu/tiny/" + id + "-*")
	if err != nil || len(files) != 1 {
		t.Fatalf("%q: %v", files, err)
	}
	data, err := os.ReadFile(files[0])
	require.NoError(t, err)
	g := &check.Golden{Codec: codec, Location: files[0], Registered: manifest.Golden{Role: role}}
	if _, g.Frames, err = check.ReadFrames(data, files[0]); err != nil {
		t.Fatal(err)
	}
	l := New(codec)
	l.AddGolden(g, true)
	return l, g
}

func (l *Line) field(t *testing.T, name string) *Field {
	t.Helper()
	at := slices.IndexFunc(l.Fields, func(f *Field) bool { return f.FullName() == name })
	if at < 0 {
		t.Fatalf("line %s has no field %s", l.Line, name)
	}
	return l.Fields[at]
}

// TestFramesInvariants: of a session that nobody repeats, what the rules for every engine find counts as compared, and nothing
// of what is only read.
func TestFramesInvariants(t *testing.T) {
	codec, err := protocol.CodecFor("0.33")
	require.NoError(t, err)
	l, _ := goldenOf(t, codec, "frames-pooling", manifest.Frames)
	for name, want := range map[string]bool{
		"EngineCoreOutputs.timestamp":         true, // it does not go back
		"PrefillStats.num_prompt_tokens":      true, // that of the request
		"EngineCoreReadyResponse.instance_id": false,
	} {
		if f := l.field(t, name); !f.Seen || f.Compared != want {
			t.Errorf("%s: seen %v, compared %v, want %v", name, f.Seen, f.Compared, want)
		}
	}
}

// TestGolden: a recorded session shows what it is known to hold, and nothing else.
func TestGolden(t *testing.T) {
	l, _ := wireGolden(t, "0.33")
	for _, f := range []struct {
		name         string
		seen, varied bool
	}{
		{"EngineCoreOutput.new_token_ids", true, true},
		{"EngineCoreOutput.finish_reason", true, true},
		{"SamplingParams.structured_outputs", true, true},
		{"SamplingParams.logit_bias", true, false},                       // one request, one value
		{"EngineCoreRequest.lora_request", false, false},                 // None in every request
		{"SchedulerStats.step_counter", false, false},                    // always 0, its default
		{"EngineCoreReadyResponse.supports_lora", false, false},          // required, and false
		{"EngineCoreReadyResponse.max_model_len", true, false},           // one registration
		{"LogprobsLists.cu_num_generated_tokens", false, false},          // None
		{"BlockStored.block_hashes", false, false},                       // no KV events
		{"EngineHandshakeMetadata.parallel_config", false, false},        // empty
		{"PrefillStats.num_external_cached_tokens", false, false},        // 0
		{"StructuredOutputsParams.disable_any_whitespace", false, false}, // false
	} {
		if got := l.field(t, f.name); got.Seen != f.seen || got.Varied() != f.varied {
			t.Errorf("%s: seen %v, several values %v", f.name, got.Seen, got.Varied())
		}
	}
	for _, i := range []struct {
		items []*Item
		name  string
		seen  bool
	}{
		{l.Utilities, "is_sleeping", true},
		{l.Utilities, "add_lora", false},
		{l.Members, "FinishReason.REPETITION", true},
		{l.Members, "FinishReason.ERROR", false},
		{l.Members, "EngineCoreRequestType.ABORT", true},
		{l.Messages, "HELLO", true},
		{l.Messages, "utility answer", true},
		{l.Messages, "KV events", false},
		{l.Messages, "ENGINE_CORE_DEAD", false},
	} {
		at := slices.IndexFunc(i.items, func(item *Item) bool { return item.Name == i.name })
		require.True(t, at >= 0 && i.items[at].Seen == i.seen, "%s: item %d, want seen %v", i.name, at, i.seen)
	}
	require.True(t, slices.Equal(l.Frontends, []string{"vllm-rs"}) && slices.Equal(l.Runners, []string{"V1"}), "frontends %q, runners %q", l.Frontends, l.Runners)
}

// everything is what all lines have.
func everything(t *testing.T) (all Details) {
	t.Helper()
	for _, line := range protocol.Lines() {
		codec, err := protocol.CodecFor(line)
		require.NoError(t, err)
		d := New(codec).Summarise(true).Details
		all.Fields, all.Utilities = append(all.Fields, d.Fields...), append(all.Utilities, d.Utilities...)
		all.Members, all.Messages = append(all.Members, d.Members...), append(all.Messages, d.Messages...)
	}
	return all
}

// TestFeatures: every field, method, member and kind of message of every line is of a feature, and every feature has some.
func TestFeatures(t *testing.T) {
	used := map[string]bool{}
	all := everything(t)
	for _, f := range all.Fields {
		used[f.Feature] = true
	}
	for _, i := range slices.Concat(all.Utilities, all.Members, all.Messages) {
		used[i.Feature] = true
	}
	for _, f := range Features() {
		require.True(t, used[f], "nothing is of the feature %q", f)
	}
	require.True(t, !used[""], "something is of no feature")
}

// TestRunnerOf: the model runners differ in the type of token ids.
func TestRunnerOf(t *testing.T) {
	for dtype, want := range map[string]string{"<i4": "V1", "<i8": "V2", "<f4": ""} {
		raw := pack.AppendArray(nil, pack.AppendString(nil, dtype))
		require.Equal(t, runnerOf(protocol.ViewOf(raw)), want, "%s", dtype)
	}
}

// TestCompared: what the wire check masks is not compared, and what it does not look at neither.
func TestCompared(t *testing.T) {
	l, _ := wireGolden(t, "0.33")
	for name, want := range map[string]bool{
		"EngineCoreOutput.new_token_ids":        true,
		"EngineCoreOutput.prefill_stats":        true, // a struct: there or not
		"PrefillStats.num_cached_tokens":        true,
		"LogprobsLists.logprob_token_ids":       true,  // the first of each row
		"LogprobsLists.logprobs":                false, // made up
		"LogprobsLists.sampled_token_ranks":     false,
		"EngineCoreOutputs.timestamp":           false, // masked
		"EngineCoreReadyResponse.instance_id":   false,
		"EngineCoreReadyResponse.max_model_len": true,
		"EngineCoreRequest.prompt_token_ids":    false, // what is sent to the engine is not judged
		"EngineZmqAddresses.inputs":             false,
		"EngineCoreReadyResponse.supports_lora": false, // not seen
	} {
		require.Equal(t, l.field(t, name).Compared, want, "%s: compared", name)
	}
}

// TestUnreachable: what has a reason is a name of some line, once, and has one that says something.
func TestUnreachable(t *testing.T) {
	known := map[string]bool{}
	all := everything(t)
	for _, f := range all.Fields {
		known[f.Name] = true
	}
	for _, i := range slices.Concat(all.Utilities, all.Members, all.Messages) {
		known[i.Name] = true
	}
	listed := 0
	for row := range strings.Lines(unreachableText) {
		if row = strings.TrimSpace(row); row != "" && !strings.ContainsAny(row[:1], "#[") {
			listed++
		}
	}
	if listed != len(unreachable()) {
		t.Errorf("%d names have a reason, %d of them are different", listed, len(unreachable()))
	}
	for name, reason := range unreachable() {
		if !known[name] || len(reason) < 10 {
			t.Errorf("%s, which has the reason %q: known to some line: %v", name, reason, known[name])
		}
	}
}

// TestMutations: every value of a message that is not None can be another of its kind, and only that changes.
func TestMutations(t *testing.T) {
	for _, c := range []struct {
		name    string
		value   []byte
		structs bool
		want    []string
	}{
		{"int", pack.AppendInt(nil, 7), false, []string{"8", "8"}},
		{"greatest int", pack.AppendUint(nil, 1<<64-1), false, []string{"18446744073709551614", "18446744073709551614"}},
		{"float", pack.AppendFloat64(nil, 1), false, []string{"0.75", "0.75"}},
		{"narrow float", pack.AppendFloat32(nil, 1), false, []string{"0.75", "0.75"}},
		{"bool", pack.AppendBool(nil, true), false, []string{"false", "false"}},
		{"text", pack.AppendString(nil, "a"), false, []string{`"ax"`, `"ax"`}},
		{"None", pack.AppendNil(nil), false, nil},
		{"list", pack.AppendInt(pack.AppendInt(pack.AppendArrayHeader(nil, 2), 1), 2), false, []string{"[1, 3]", "[2, 2]"}},
		{"empty list", pack.AppendArrayHeader(nil, 0), false, nil},
		{"map", pack.AppendInt(pack.AppendString(pack.AppendMapHeader(nil, 1), "k"), 2), false, []string{"{\"k\": 3}", "{\"k\": 3}"}},
		{"structs", pack.AppendInt(pack.AppendInt(pack.AppendArrayHeader(nil, 2), 1), 2), true, []string{"[1]"}},
		{"struct", pack.AppendMapHeader(nil, 0), true, []string{"nil"}},
	} {
		message := slices.Concat(pack.AppendArrayHeader(nil, 1), c.value)
		var got []string
		for _, frames := range mutations(protocol.ViewOf(message).At(0), c.structs, [][]byte{message}, 0) {
			require.NoErrorf(t, pack.Validate(frames[0]), "%s", c.name)
			got = append(got, pack.Format(frames[0][1:]))
		}
		require.True(t, slices.Equal(got, c.want), "%s: %q, want %q", c.name, got, c.want)
	}
}

// TestMutationsOfTensors: of a tensor the data is another, in the message or in a frame of its own.
func TestMutationsOfTensors(t *testing.T) {
	codec, err := protocol.CodecFor("0.33")
	require.NoError(t, err)
	for _, data := range [][]byte{pack.AppendExt(nil, 3, []byte{1, 2, 3, 4}), pack.AppendInt(nil, 1)} {
		tensor := pack.AppendArray(nil, pack.AppendString(nil, "int32"), pack.AppendArray(nil, pack.AppendInt(nil, 1)), data)
		null := pack.AppendNil(nil)
		output := pack.AppendArray(nil, pack.AppendString(nil, "a"), pack.AppendArray(nil), null, null, tensor)
		message := pack.AppendArray(nil, pack.AppendInt(nil, 0), pack.AppendArray(nil, output))
		root := codec.Read(new(protocol.View), protocol.KindOutputs, message)
		v := root.Field("outputs").At(0).Field("pooling_output")
		var got [][]byte
		for _, frames := range mutations(v, false, [][]byte{message, {1, 2, 3, 4}}, 0) {
			changed := codec.Read(new(protocol.View), protocol.KindOutputs, frames[0], frames[1])
			if cur := pack.NewCursor(changed.Field("outputs").At(0).Field("pooling_output").At(2).Bytes()); cur.Kind() == pack.Ext {
				_, frames[1], _ = cur.Ext()
			}
			got = append(got, frames[1])
		}
		require.True(t, len(got) == 2 && string(got[0]) == "\x01\x02\x03\x05" && string(got[1]) == "\x00\x02\x03\x04", "%x: %x", data, got)
	}
}

// TestCoordinator: what an engine says to a coordinator, and what that sends to it, is surveyed too.
func TestCoordinator(t *testing.T) {
	codec, err := protocol.CodecFor("0.33")
	require.NoError(t, err)
	l := New(codec)
	l.Add(&trace.Message{Channel: "coordinator_output", Direction: trace.EngineToFrontend, Frames: codec.WaveComplete(0, 3, 1.5)})
	l.Add(&trace.Message{Channel: "coordinator_input", Direction: trace.FrontendToEngine, Frames: [][]byte{{protocol.TypeStartDPWave}, {0x92, 1, 0}}})
	at := slices.IndexFunc(l.Fields, func(f *Field) bool { return f.FullName() == "EngineCoreOutputs.wave_complete" })
	require.True(t, l.Fields[at].Seen && l.items[message+startWave].Seen, "wave_complete is not seen, or START_DP_WAVE")
}
