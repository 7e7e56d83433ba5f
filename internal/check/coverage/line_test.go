package coverage

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// wireGolden is the wire of a line that the session of its golden of role wire shows.
func wireGolden(t *testing.T, line string) (*Line, *check.Golden) {
	t.Helper()
	codec, err := protocol.CodecFor(line)
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("../../../testdata/goldens/conformance/v" + line + ".*/cpu/tiny/wire-edge-*")
	if err != nil || len(files) != 1 {
		t.Fatalf("%q: %v", files, err)
	}
	data, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	g := &check.Golden{Codec: codec, Location: files[0]}
	if _, g.Frames, err = check.ReadFrames(data, files[0], true); err != nil {
		t.Fatal(err)
	}
	l := New(codec)
	l.AddGolden(g)
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
		if at < 0 || i.items[at].Seen != i.seen {
			t.Errorf("%s: item %d, want seen %v", i.name, at, i.seen)
		}
	}
	if !slices.Equal(l.Frontends, []string{"vllm-rs"}) || !slices.Equal(l.Runners, []string{"V1"}) {
		t.Errorf("frontends %q, runners %q", l.Frontends, l.Runners)
	}
}

// TestFeatures: every field, method, member and kind of message of every line is of a feature, and every feature has some.
func TestFeatures(t *testing.T) {
	used := map[string]bool{}
	for _, line := range protocol.Lines() {
		codec, err := protocol.CodecFor(line)
		if err != nil {
			t.Fatal(err)
		}
		details := New(codec).Summarise(true).Details
		for _, f := range details.Fields {
			used[f.Feature] = true
		}
		for _, items := range [][]ItemState{details.Utilities, details.Members, details.Messages} {
			for _, i := range items {
				used[i.Feature] = true
			}
		}
	}
	for _, f := range Features() {
		if !used[f] {
			t.Errorf("nothing is of the feature %q", f)
		}
	}
	if used[""] {
		t.Error("something is of no feature")
	}
}

// TestRunnerOf: the model runners differ in the type of token ids.
func TestRunnerOf(t *testing.T) {
	for dtype, want := range map[string]string{"<i4": "V1", "<i8": "V2", "<f4": ""} {
		raw := pack.AppendString(pack.AppendArrayHeader(nil, 3), dtype)
		if got := runnerOf(protocol.FieldValue{Raw: raw}); got != want {
			t.Errorf("%s: %q, want %q", dtype, got, want)
		}
	}
}
