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

// lengths are the sizes on the wire of each line, newest first. An array one
// longer than a Rust frontend knows ends it.
var lengths = []struct {
	line                                           string
	request, outputs, output, tensors, lora, ready int
	prefillAt                                      int // of prefill_stats in an output: 0.26 inserted a field before it
	sampling                                       int // keys that the line declares
}{
	{"0.33", 22, 9, 19, 5, 6, 28, 11, 43},
	{"0.32", 22, 9, 18, 5, 6, 25, 11, 43},
	{"0.31", 22, 8, 18, 5, 7, 25, 11, 42},
	{"0.30", 21, 8, 17, 5, 7, 24, 11, 40},
	{"0.29", 21, 8, 17, 5, 7, 24, 11, 39},
	{"0.28", 21, 8, 16, 4, 7, 21, 11, 38},
	{"0.27", 20, 8, 14, 4, 7, 18, 11, 38},
	{"0.26", 20, 8, 14, 4, 7, 10, 11, 37},
	{"0.25", 20, 8, 13, 4, 7, 10, 10, 37},
}

// TestLengths counts what is really written, field by field, of each line.
func TestLengths(t *testing.T) {
	var lines []string
	for _, test := range lengths {
		lines = append(lines, test.line)
		t.Run(test.line, func(t *testing.T) {
			c := codecOf(t, test.line)
			r := plainRequest("a")
			r.LoRA = &LoRA{Name: "l", ID: 1, Path: "/p"}
			request := elements(t, c.AppendRequest(nil, r))
			envelope := elements(t, everything(t, c)[0])
			output := elements(t, elements(t, envelope[1])[0])
			ready := DefaultReady("0")
			got := []int{
				len(request), len(envelope), len(output), len(elements(t, output[3])), len(elements(t, request[6])),
				len(keys(t, c.AppendReady(nil, &ready))), slices.IndexFunc(output, isMapWith("num_prompt_tokens")),
				len(c.Profile().Structs["SamplingParams"].Fields),
			}
			want := []int{test.request, test.outputs, test.output, test.tensors, test.lora, test.ready, test.prefillAt, test.sampling}
			require.NoDiff(t, cmp.Diff(want, got), "request, outputs, output, LogprobsTensors, LoRARequest, ready keys, prefill_stats at, sampling keys (-want +got)")
			if n := len(elements(t, output[2])); n != 4 {
				t.Errorf("LogprobsLists has %d fields, want 4", n)
			}
		})
	}
	require.NoDiff(t, cmp.Diff(lines, recordedLines()), "lines without a row here (-here +recorded)")
}

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

// TestStatisticsAreWhole: a Rust frontend of any line ends at the first
// statistics map without one of these keys.
func TestStatisticsAreWhole(t *testing.T) {
	required := map[string][]string{
		"":                    {"num_running_reqs", "num_waiting_reqs", "step_counter", "current_wave", "kv_cache_usage", "prefix_cache_stats", "kv_cache_eviction_events"},
		"prefix_cache_stats":  {"reset", "requests", "queries", "hits", "preempted_requests", "preempted_queries", "preempted_hits"},
		"spec_decoding_stats": {"num_spec_tokens", "num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_accepted_tokens_per_pos"},
	}
	for _, line := range Lines() {
		for part, want := range required {
			t.Run(line+"/"+part, func(t *testing.T) {
				c := codecOf(t, line)
				stats := elements(t, everything(t, c)[0])[2]
				if part != "" {
					stats = member(t, stats, part)
				}
				got := keys(t, stats)
				for _, key := range want {
					if !slices.Contains(got, key) {
						t.Errorf("no %s in %v", key, got)
					}
				}
			})
		}
	}
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
				require.NoDiff(t, cmp.Diff(want, keys(t, raw)), "-declared +written")
			})
		}
	}
}

// elements splits an array into the raw values of its elements.
func elements(t testing.TB, raw []byte) [][]byte {
	t.Helper()
	cur := pack.NewCursor(raw)
	n, err := cur.ArrayLen()
	if err != nil {
		t.Fatalf("%v in %s", err, pack.Format(raw))
	}
	list := make([][]byte, n)
	for i := range list {
		list[i], err = cur.Raw()
		require.NoError(t, err)
	}
	if !cur.Done() {
		t.Fatalf("bytes after %s", pack.Format(raw))
	}
	return list
}

// keys lists the keys of a map.
func keys(t testing.TB, raw []byte) []string {
	t.Helper()
	var list []string
	err := eachKey(raw, func(key string, cur *pack.Cursor) error {
		list = append(list, key)
		return cur.Skip()
	})
	if err != nil {
		t.Fatalf("%v in %s", err, pack.Format(raw))
	}
	return list
}

// member returns the raw value of a key of a map.
func member(t testing.TB, raw []byte, name string) []byte {
	t.Helper()
	var value []byte
	err := eachKey(raw, func(key string, cur *pack.Cursor) error {
		v, err := cur.Raw()
		if key == name {
			value = v
		}
		return err
	})
	if err != nil || value == nil {
		t.Fatalf("no %s (%v) in %s", name, err, pack.Format(raw))
	}
	return value
}

func isMapWith(key string) func([]byte) bool {
	return func(raw []byte) bool {
		found := false
		_ = eachKey(raw, func(k string, cur *pack.Cursor) error {
			found = found || k == key
			return cur.Skip()
		})
		return found
	}
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
			if got := LineOf(test.tag); got != test.want {
				t.Errorf("LineOf(%q) = %q, want %q", test.tag, got, test.want)
			}
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
			if err != nil || p.Version != test.want || LineOf(p.Version) != p.Line {
				t.Errorf("got %+v %v, want release %s", p, err, test.want)
			}
		})
	}
	for _, unknown := range []string{"0.24", "0.999.0", "main", "", "../profiles/0.33", "0.033"} {
		t.Run("unknown "+unknown, func(t *testing.T) {
			_, err := LoadProfile(unknown)
			want := fmt.Sprintf("no wire profile for vLLM line %q: this build knows %s and nightly", unknown, strings.Join(Lines(), ", "))
			if err == nil || err.Error() != want {
				t.Errorf("got %v, want %s", err, want)
			}
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
			if got := codecOf(t, test.line).FieldName(test.path, test.index); got != test.want {
				t.Errorf("FieldName(%s, %d) = %q, want %q", test.path, test.index, got, test.want)
			}
		})
	}
}
