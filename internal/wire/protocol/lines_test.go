package protocol

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// everything returns an envelope with a value in every part of it that this
// package writes.
func everything(t testing.TB, c *Codec) ClientMessage {
	t.Helper()
	r := plainRequest("a")
	r.Sampling.Logprobs, r.Sampling.PromptLogprobs = 0, 0
	table := func(id uint32) *Logprobs {
		return &Logprobs{Width: 1, TokenIDs: []uint32{id}, Values: []float32{-1}, Ranks: []int64{1}}
	}
	b := c.NewBatch(0)
	err := b.Add(c.NewStream(r), &Output{
		Tokens: []uint32{7}, Finish: FinishStop, StopToken: 7, HasStopToken: true,
		Logprobs: table(7), PromptLogprobs: table(2),
		Events:     []Event{{EventQueued, 1}, {EventScheduled, 2}},
		Prefill:    &PrefillStats{Prompt: 2, Computed: 2},
		KVTransfer: pack.AppendMapHeader(nil, 0),
		Error:      &RequestError{Code: "c", Message: "m"},
	})
	require.NoError(t, err)
	m, err := b.Finish(&SchedulerStats{Running: 1, Spec: &SpecDecodingStats{SpecTokens: 1, AcceptedPerPos: []int{1}}}, 3)
	require.NoError(t, err)
	return m
}

// TestOnlyTheLinesOwnKeys: what is written has the keys that the line's struct
// declares, all of them, in its order.
func TestOnlyTheLinesOwnKeys(t *testing.T) {
	for _, line := range Lines() {
		c := codecOf(t, line)
		envelope := elements(t, everything(t, c)[0])
		output := elements(t, elements(t, envelope[1])[0])
		ready := DefaultReady("0")
		at := func(structName, field string) int { return c.Profile().Structs[structName].Index(field) }
		parts := map[string][]byte{
			"SchedulerStats":          envelope[2],
			"PrefixCacheStats":        member(t, envelope[2], "prefix_cache_stats"),
			"SpecDecodingStats":       member(t, envelope[2], "spec_decoding_stats"),
			"PrefillStats":            output[at("EngineCoreOutput", "prefill_stats")],
			"EngineCoreEvent":         elements(t, output[at("EngineCoreOutput", "events")])[0],
			"EngineCoreReadyResponse": c.AppendReady(nil, &ready),
		}
		if c.HasRequestError() {
			parts["RequestError"] = output[at("EngineCoreOutput", "error")]
		}
		for name, raw := range parts {
			t.Run(line+"/"+name, func(t *testing.T) {
				var want []string
				for _, f := range c.Profile().Structs[name].Fields {
					want = append(want, f.Name)
				}
				require.NoDiff(t, cmp.Diff(want, keys(raw)), "-declared +written")
			})
		}
	}
}

// elements splits an array into the raw values of its elements.
func elements(t testing.TB, raw []byte) (list [][]byte) {
	t.Helper()
	v := ViewOf(raw)
	if v.Kind() != pack.Array {
		t.Fatalf("%s is not an array", pack.Format(raw))
	}
	for part := range v.Parts() {
		list = append(list, part.Bytes())
	}
	return list
}

// keys lists the keys of a map.
func keys(raw []byte) (list []string) {
	for part := range ViewOf(raw).Parts() {
		list = append(list, part.Name())
	}
	return list
}

// member returns the raw value of a key of a map.
func member(t testing.TB, raw []byte, name string) []byte {
	t.Helper()
	v := ViewOf(raw).Field(name)
	if v.IsAbsent() {
		t.Fatalf("no %s in %s", name, pack.Format(raw))
	}
	return v.Bytes()
}

func TestLineOf(t *testing.T) {
	for _, test := range []struct{ name, tag, want string }{
		{"line", "0.33", "0.33"},
		{"tag", "v0.27.1", "0.27"},
		{"version", "0.25.1", "0.25"},
		{"development build", "0.33.0.dev1+g123abc", "0.33"},
		{"candidate", "0.31rc2", "0.31"},
		{"two digits of major", "v12.4.0", "12.4"},
		{"spaces around", " v0.30.0\n", "0.30"},
		{"tracker", "nightly", "nightly"},
		{"branch", "main", "main"},
		{"no minor", "v1", "v1"},
		{"empty minor", "0.", "0."},
		{"no number", "v.5", "v.5"},
		{"signed", "-1.5", "-1.5"},
		{"two letters", "vv0.33", "vv0.33"},
		{"empty", "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			require.Equal(t, LineOf(test.tag), test.want, "LineOf(%q)", test.tag)
		})
	}
}

func TestLoadProfile(t *testing.T) {
	newest, err := LoadProfile(Newest())
	require.NoError(t, err)
	for _, test := range []struct{ name, line, want string }{
		{"line", "0.25", "0.25.1"},
		{"tag", "v0.27.1", "0.27.1"},
		{"another patch of the line", "0.27.9", "0.27.1"},
		{"development build", "0.33.0.dev1", "0.33.0"},
		{"tracker", Nightly, newest.Version},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, err := LoadProfile(test.line)
			require.True(t, err == nil && p.Version == test.want && LineOf(p.Version) == p.Line, "got %+v %v, want release %s", p, err, test.want)
		})
	}
	for _, unknown := range []string{"0.24", "0.999.0", "main", "", "../profiles/0.33", "0.033"} {
		t.Run("unknown "+unknown, func(t *testing.T) {
			_, err := LoadProfile(unknown)
			want := fmt.Sprintf("no wire profile for vLLM line %q: this build knows %s and nightly", unknown, strings.Join(Lines(), ", "))
			require.True(t, err != nil && err.Error() == want, "got %v, want %s", err, want)
			if _, err := CodecFor(unknown); err == nil {
				t.Error("CodecFor knows it")
			}
		})
	}
}

func TestLines(t *testing.T) {
	want := []string{"0.33", "0.32", "0.31", "0.30", "0.29", "0.28", "0.27", "0.26", "0.25"}
	require.NoDiff(t, cmp.Diff(want, recordedLines()), "-want +got")
	if Newest() != Lines()[0] {
		t.Errorf("Newest() is %s, the newest profile is %s", Newest(), Lines()[0])
	}
	for _, line := range append(Lines(), Nightly) {
		c, err := CodecFor(line)
		if err != nil {
			t.Errorf("CodecFor(%s): %v", line, err)
			continue
		}
		if want := strings.Replace(line, Nightly, Newest(), 1); c.Line() != want || c.Profile().Line != want {
			t.Errorf("CodecFor(%s) is of line %s", line, c.Line())
		}
		if got := c.HasRequestError(); got == slices.Contains(want[1:], c.Line()) {
			t.Errorf("%s: HasRequestError %v", line, got)
		}
	}
}

func TestFieldName(t *testing.T) {
	for _, test := range []struct {
		name, line, path string
		index            int
		want             string
	}{
		{"envelope", "0.33", "EngineCoreOutputs", 8, "weight_version"},
		{"envelope of an older line", "0.31", "EngineCoreOutputs", 8, ""},
		{"list of outputs", "0.33", "EngineCoreOutputs.outputs", 0, ""},
		{"output", "0.33", "EngineCoreOutputs.outputs[3]", 11, "prefill_stats"},
		{"output before the insertion", "0.25", "EngineCoreOutputs.outputs[3]", 10, "prefill_stats"},
		{"struct or nil", "0.33", "EngineCoreOutputs.outputs[0].new_logprobs", 2, "sampled_token_ranks"},
		{"prompt logprobs", "0.33", "EngineCoreOutputs.outputs[0].new_prompt_logprobs_tensors", 4, "cu_num_generated_tokens_tensor"},
		{"utility answer", "0.33", "EngineCoreOutputs.utility_output", 1, "failure_message"},
		{"map", "0.33", "EngineCoreOutputs.scheduler_stats", 0, ""},
		{"events are maps", "0.33", "EngineCoreOutputs.outputs[0].events[0]", 0, ""},
		{"request", "0.33", "EngineCoreRequest", 21, "kv_hints"},
		{"inside a request", "0.32", "EngineCoreRequest.lora_request", 4, "load_inplace"},
		{"inside a request, before 0.32", "0.31", "EngineCoreRequest.lora_request", 4, "tensorizer_config_dict"},
		{"element of a struct that is no list", "0.33", "EngineCoreRequest.lora_request[0]", 0, ""},
		{"unknown struct", "0.33", "Nothing", 0, ""},
		{"unknown field", "0.33", "EngineCoreRequest.nothing", 0, ""},
		{"token ids", "0.33", "EngineCoreRequest.prompt_token_ids", 0, ""},
		{"empty", "0.33", "", 0, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			require.Equal(t, codecOf(t, test.line).FieldName(test.path, test.index), test.want, "FieldName(%s, %d)", test.path, test.index)
		})
	}
}
