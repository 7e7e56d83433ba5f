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

// canonical says how the enc-outputs-* vectors are written by this package, and
// where that differs from the vector. The vectors come from vLLM's encoder, but
// the values were put in by hand; a difference stands here with its reason, and
// one that is no longer there fails the test.
var canonical = []struct {
	name    string // after enc-outputs-
	since   string // first line that has it
	write   func(*testing.T, *Codec, *Outputs, [][]byte) [][]byte
	differs func(line string) []string
}{
	{name: "first-token", write: writeBatch, differs: kvFetchStagesFilled},
	{name: "stats-only", write: writeBatch, differs: kvFetchStagesFilled},
	{name: "finish", write: writeBatch},
	{name: "stop-token", write: writeBatch},
	{name: "logprobs-inline", write: writeBatch, differs: func(string) []string { return wideRanks }},
	{name: "logprobs-aux", write: writeBatch, differs: func(string) []string {
		// The vector's ids are 0 to 79 and its token is 5; an engine puts the
		// sampled token into column 0, so 0 is taken as the token here.
		return append([]string{"EngineCoreOutputs.outputs[0].new_token_ids[0]: want 5, got 0"}, wideRanks...)
	}},
	{name: "prompt-logprobs", write: writeBatch},
	{name: "request-error", since: "0.33", write: writeBatch},
	{name: "weight-version", since: "0.32", write: writeBatch},
	{name: "utility-true", write: writeResult("is_sleeping", true)},
	{name: "utility-none", write: writeResult("reset_mm_cache", nil)},
	{name: "utility-tasks", write: writeResult("get_supported_tasks", []string{"generate"})},
	{name: "utility-fail", write: func(_ *testing.T, c *Codec, o *Outputs, _ [][]byte) [][]byte {
		return c.UtilityFailure(o.EngineIndex, UtilityCall{CallID: o.Utility.CallID, Method: "x"}, "y", o.Timestamp)
	}},
	{name: "wave-complete", write: func(_ *testing.T, c *Codec, o *Outputs, _ [][]byte) [][]byte {
		return c.WaveComplete(o.EngineIndex, o.WaveComplete, o.Timestamp)
	}},
	{name: "start-wave", write: func(_ *testing.T, c *Codec, o *Outputs, _ [][]byte) [][]byte {
		return c.StartWave(o.EngineIndex, o.StartWave, o.Timestamp)
	}},
}

// neverWritten are the vectors of fields that this package leaves at their
// defaults.
var neverWritten = []string{"mm-cache-miss", "sampling-mask", "spec-metrics"}

// wideRanks: a running engine's ranks are int64, as in the captures; the vector
// was made with int32.
var wideRanks = []string{
	`EngineCoreOutputs.outputs[0].new_logprobs.sampled_token_ranks[0]: want "<i4", got "<i8"`,
	`EngineCoreOutputs.outputs[0].new_logprobs.sampled_token_ranks[2]: ` +
		`want ext(3, 4 bytes) ends at byte 4, got ext(3, 8 bytes) from byte 4: 00000000`,
}

// kvFetchStagesFilled: a running scheduler of 0.32 and later always sends the
// three stages, as in the captures; the vector has the declared default, {}.
func kvFetchStagesFilled(line string) []string {
	if !slices.Contains([]string{"0.32", "0.33"}, line) {
		return nil
	}
	const path = "EngineCoreOutputs.scheduler_stats.num_kv_fetch_reqs_by_stage."
	return []string{
		path + "waiting_to_start: want absent, got 0",
		path + "in_progress: want absent, got 0",
		path + "completed_waiting: want absent, got 0",
	}
}

func writeBatch(t *testing.T, c *Codec, o *Outputs, frames [][]byte) [][]byte {
	t.Helper()
	b := c.NewBatch(o.EngineIndex)
	b.WeightVersion = o.WeightVersion
	for i := range o.Outputs {
		out := engineOutput(t, &o.Outputs[i], frames)
		if out.Logprobs != nil {
			out.Tokens = []uint32{out.Logprobs.TokenIDs[0]}
		}
		require.NoError(t, b.Add(c.NewStream(plainRequest(string(o.Outputs[i].ID))), out))
	}
	for _, id := range o.FinishedRequests {
		b.ReportFinished(string(id))
	}
	got, err := b.Finish(engineStats(t, o.SchedulerStats), o.Timestamp)
	require.NoError(t, err)
	return got
}

func writeResult(method string, result any) func(*testing.T, *Codec, *Outputs, [][]byte) [][]byte {
	return func(t *testing.T, c *Codec, o *Outputs, _ [][]byte) [][]byte {
		t.Helper()
		call := UtilityCall{CallID: o.Utility.CallID, Method: method}
		got, err := c.UtilityResult(o.EngineIndex, call, result, o.Timestamp)
		require.NoError(t, err)
		return got
	}
}

// plainRequest asks for tokens and nothing else.
func plainRequest(id string) *Request {
	return &Request{ID: id, PromptTokenIDs: []uint32{1, 2, 3}, HasSampling: true, Sampling: defaultSampling(nil, nil), DataParallelRank: -1}
}

func TestReencodeCanonicalOutputs(t *testing.T) {
	vectors := map[string]vector{}
	for _, v := range loadVectors(t) {
		if name, ok := strings.CutPrefix(v.Name, "enc-outputs-"); ok && !slices.Contains(neverWritten, name) {
			vectors[LineOf(v.Release)+"/"+name] = v
		}
	}
	for _, line := range []string{"0.23", "0.24"} { // no lines of ours
		for key := range vectors {
			if strings.HasPrefix(key, line+"/") {
				delete(vectors, key)
			}
		}
	}
	for _, line := range recordedLines() {
		for _, test := range canonical {
			if line < test.since {
				continue
			}
			key := line + "/" + test.name
			v, ok := vectors[key]
			delete(vectors, key)
			t.Run(key, func(t *testing.T) {
				if !ok {
					t.Fatal("no vector")
				}
				c := codecOf(t, v.Release)
				var o Outputs
				require.NoError(t, c.DecodeOutputs(v.Frames[0], &o))
				var want []string
				if test.differs != nil {
					want = test.differs(line)
				}
				require.NoDiff(t, cmp.Diff(want, differences(t, c, v.Frames, test.write(t, c, &o, v.Frames))), "differences from the vector (-declared +found)")
			})
		}
	}
	for key := range vectors {
		t.Errorf("vector %s is not re-encoded", key)
	}
}

// differences compares messages frame by frame: the first by value and by the
// order of its keys, the auxiliary ones by their bytes.
func differences(t *testing.T, c *Codec, want, got [][]byte) []string {
	t.Helper()
	if len(want) != len(got) {
		return []string{fmt.Sprintf("%d frames, want %d", len(got), len(want))}
	}
	found, err := pack.Diff("EngineCoreOutputs", want[0], got[0], pack.DiffOptions{Names: c.FieldName, MapOrder: true})
	require.NoError(t, err)
	var list []string
	for _, d := range found {
		list = append(list, d.String())
	}
	for i := 1; i < len(want); i++ {
		if string(want[i]) != string(got[i]) {
			list = append(list, fmt.Sprintf("frame %d: want %x, got %x", i, want[i], got[i]))
		}
	}
	return list
}

// TestReencodeCanonicalReady demands the bytes that each line's own encoder
// wrote for its registration: keys, order, kinds and values.
func TestReencodeCanonicalReady(t *testing.T) {
	lines := map[string]bool{}
	for _, v := range loadVectors(t) {
		line := LineOf(v.Release)
		if !strings.HasPrefix(v.Name, "enc-ready-response") || !slices.Contains(recordedLines(), line) {
			continue
		}
		lines[line] = true
		t.Run(v.Release+"/"+v.Name, func(t *testing.T) {
			c := codecOf(t, v.Release)
			r, err := DecodeReady(v.Frames[0])
			require.NoError(t, err)
			got := c.AppendReady(nil, &r)
			diffs, err := pack.Diff("EngineCoreReadyResponse", v.Frames[0], got, pack.DiffOptions{MapOrder: true})
			require.True(t, err == nil && len(diffs) == 0, "%v %v", diffs, err)
		})
	}
	if len(lines) != len(recordedLines()) {
		t.Errorf("registrations of %d lines, want %d", len(lines), len(recordedLines()))
	}
}

// unsetByUs are sampling parameters that the vectors' HTTP requests set and
// requests of this package leave at what is written when nobody sets them.
var unsetByUs = []string{
	"top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty",
	"logit_bias", "allowed_token_ids", "structured_outputs",
}

// TestReencodeRequests reads each request that a real frontend sent and writes it again: every field that an engine core
// answers for keeps its value, and no key is written that the line's own Rust frontend would not write. Of a Python
// frontend only the kinds of values are compared, since it leaves out the keys at their defaults.
func TestReencodeRequests(t *testing.T) {
	rust, python := map[string]int{}, map[string]int{}
	for _, v := range loadVectors(t) {
		line := LineOf(v.Release)
		if !strings.Contains(v.Name, "-add-") || strings.HasPrefix(v.Name, "enc-") || !slices.Contains(recordedLines(), line) {
			continue
		}
		t.Run(v.Release+"/"+v.Name, func(t *testing.T) {
			c := codecOf(t, v.Release)
			var r Request
			require.NoError(t, c.DecodeRequest(v.Frames[1], &r))
			opt := pack.DiffOptions{Names: c.FieldName}
			isPython := strings.HasPrefix(v.Name, "pyfe-")
			if rust[line]++; isPython {
				python[line]++
				opt.Mask = func(string) bool { return true }
			}
			found, err := pack.Diff("EngineCoreRequest", v.Frames[1], c.AppendRequest(nil, &r), opt)
			require.NoError(t, err)
			for _, d := range found {
				inSampling := strings.HasPrefix(d.Path, "EngineCoreRequest.sampling_params.")
				onOneSide := d.WantOffset < 0 || d.GotOffset < 0
				if !(isPython && inSampling && onOneSide) && rustMayDiffer(&r, d) == "" {
					t.Error(d)
				}
			}
		})
	}
	for _, line := range recordedLines() {
		if rust[line]-python[line] < 8 {
			t.Errorf("line %s: %d requests of Rust frontends, want 8 at least", line, rust[line]-python[line])
		}
	}
	require.True(t, len(python) >= 5, "requests of Python frontends of %d lines, want 5 at least: %v", len(python), python)
}

// rustMayDiffer returns why a difference is allowed.
func rustMayDiffer(r *Request, d pack.Difference) string {
	const sampling = "EngineCoreRequest.sampling_params."
	for _, key := range unsetByUs {
		if strings.HasPrefix(d.Path, sampling+key) && d.WantOffset >= 0 {
			return "chosen by the client, nothing to answer for"
		}
	}
	switch {
	case d.Path == "EngineCoreRequest.reasoning_parser_kwargs" && d.Got == "nil":
		return "since 0.31 Rust sends {chat_template_kwargs: {}} where Python sends nil"
	case strings.HasPrefix(d.Path, sampling+"_all_stop_token_ids") && r.Sampling.EOSTokenID < 0:
		return "with ignore_eos the frontend still lists the model's end of sequence, which is nowhere else in the request"
	}
	return ""
}
