package protocol

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv"
	"github.com/vllm-vcr/conformance/internal/testenv/require"
	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// decodeVector checks a vector as what its name says it holds: decoding it, and strictly, for found. strict is false
// where nothing of this package applies to it, and of what the mock engine said to which the rust-* vectors belong.
func decodeVector(t *testing.T, v vector) (kind string, found []Mismatch, strict bool) {
	c, first, rest := codecOf(t, v.Release), v.Frames[0], v.Frames[1:]
	last := v.Frames[len(v.Frames)-1]
	has := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(v.Name, part) })
	}
	isVLLM, isMessage := !strings.HasPrefix(v.Name, "rust-"), !strings.HasPrefix(v.Name, "enc-")
	switch {
	case has("-add-") && !has("enc-utility-"), has("enc-request-"):
		checkAdd(t, c, v)
		if isMessage {
			return "add", c.CheckMessage(v.Frames), true
		}
		return "add", c.CheckRequest(first, rest...), true
	case has("-util-", "enc-utility-"):
		checkUtilityCall(t, last)
		if isMessage {
			return "utility call", c.CheckMessage(v.Frames), true
		}
		return "utility call", c.CheckUtility(first, rest...), true
	case has("-abort"):
		checkAbort(t, last)
		if isMessage {
			return "abort", c.CheckMessage(v.Frames), true
		}
		return "abort", c.CheckAbort(first), true
	case has("-init"):
		checkInit(t, last)
		return "init", c.CheckInit(first), true
	case has("-coord-ready"):
		require.Equal(t, string(last), "READY", "coordinator said %q", last)
		return "coordinator ready", nil, false
	case has("-ready-response", "-register"):
		r, err := DecodeReady(last)
		require.True(t, err == nil && r.MaxModelLen != 0 && r.BlockSize != 0 && r.VLLMVersion != "", "%+v, %v", r, err)
		if isVLLM {
			found = c.CheckReady(first)
		}
		return "registration", found, isVLLM
	case has("-hello", "-ready"):
		checkStatus(t, last)
		return "status", nil, false
	case has("enc-outputs-", "-out-", "-utilres-", "-wave-complete", "-start-wave"):
		checkOutputs(t, c, v)
		if strict = !has("-utilres-"); strict {
			found = c.CheckOutputs(first, rest...)
		}
		return "outputs", found, strict
	case has("-coord-msg"):
		_, _, err := DecodeStartWave(last)
		require.NoError(t, err)
		return "start wave", nil, false
	case has("enc-kv-batch"):
		require.NoError(t, pack.Validate(last))
		return "kv events", nil, false
	}
	t.Errorf("no check for a vector of this name")
	return "", nil, false
}

func TestDecodeEveryRealFrame(t *testing.T) {
	seen, misfits := map[string]int{}, map[string][]string{}
	frames, checked := 0, 0
	for _, v := range loadVectors(t) {
		t.Run(v.Release+"/"+v.Name, func(t *testing.T) {
			kind, found, strict := decodeVector(t, v)
			seen[kind]++
			if strict {
				checked++
			}
			if len(found) > 0 {
				misfits[v.Release+"/"+v.Name] = texts(found)
			}
		})
		frames += len(v.Frames)
	}
	require.True(t, frames == 1483 && checked == 850, "%d frames, of %d strictly checked messages, want 1483 of 850", frames, checked)
	for _, kind := range []string{
		"add", "utility call", "abort", "init", "status", "registration", "outputs",
		"start wave", "coordinator ready", "kv events",
	} {
		if seen[kind] < 11 {
			t.Errorf("%d vectors of kind %q, want at least one a release", seen[kind], kind)
		}
	}
	require.NoDiff(t, cmp.Diff(knownMisfits, misfits), "mismatches of real messages (-want +got)")
}

func checkAdd(t *testing.T, c *Codec, v vector) {
	payload := v.Frames[0]
	if !strings.HasPrefix(v.Name, "enc-") {
		if payload[0] != TypeAdd {
			t.Fatalf("first frame %x, want 00", payload)
		}
		payload = v.Frames[1]
	}
	var r Request
	require.NoError(t, c.DecodeRequest(payload, &r))
	want := len(c.request.fields)
	require.True(t, r.Fields == want && len(r.Tail) == 0 && r.ID != "", "%d fields, %d unknown, id %q; the line has %d", r.Fields, len(r.Tail), r.ID, want)
	if strings.HasPrefix(v.Name, "rust-10-add-") && (!r.HasSampling || r.ExternalID == "" || r.ArrivalTime == 0) {
		t.Errorf("sampling %v, external id %q, arrival %v", r.HasSampling, r.ExternalID, r.ArrivalTime)
	}
	switch {
	case strings.HasSuffix(v.Name, "rust-10-add-lora") && (r.LoRA == nil || r.LoRA.Name != "ad1" || r.LoRA.ID != 1):
		t.Errorf("lora %+v", r.LoRA)
	case strings.HasSuffix(v.Name, "rust-10-add-logprobs") && r.Sampling.Logprobs != 2:
		t.Errorf("logprobs %d", r.Sampling.Logprobs)
	case strings.HasSuffix(v.Name, "rust-10-add-kvparams") && r.Sampling.ExtraArgs == nil:
		t.Error("no extra_args")
	}
}

func checkUtilityCall(t *testing.T, payload []byte) {
	call, err := DecodeUtilityCall(payload)
	require.NoError(t, err)
	again := AppendUtilityCall(nil, call)
	if equal, err := pack.Equal(payload, again); err != nil || !equal {
		t.Errorf("re-encoded as %s, want %s (%v)", pack.Format(again), pack.Format(payload), err)
	}
}

func checkAbort(t *testing.T, payload []byte) {
	ids, err := DecodeAbort(payload)
	require.NoError(t, err)
	if again := AppendAbort(nil, ids...); string(again) != string(payload) {
		t.Errorf("re-encoded as %x, want %x", again, payload)
	}
}

func checkInit(t *testing.T, payload []byte) {
	a, err := DecodeInit(payload)
	require.NoError(t, err)
	diffs, err := pack.Diff("INIT", payload, AppendInit(nil, a), pack.DiffOptions{
		Ignore: func(path string) bool { return strings.HasPrefix(path, "INIT.parallel_config") },
	})
	require.True(t, err == nil && len(diffs) == 0, "%v %v", diffs, err)
}

func checkStatus(t *testing.T, payload []byte) {
	s, err := DecodeStatus(payload)
	require.NoError(t, err)
	if again := AppendStatus(nil, s); string(again) != string(payload) {
		t.Errorf("re-encoded as %x, want %x", again, payload)
	}
}

// checkOutputs decodes an envelope. TestReencodeCanonicalOutputs writes those of
// vLLM's own encoder again; the rust-* ones came from a stand-in for an engine,
// with fewer keys in the statistics, and are only decoded.
func checkOutputs(t *testing.T, c *Codec, v vector) {
	var o Outputs
	require.NoError(t, c.DecodeOutputs(v.Frames[0], &o))
	if o.Fields > len(c.envelope.fields) || (o.Utility == nil && len(o.Outputs) == 0 && o.SchedulerStats == nil && o.WaveComplete < 0 && o.StartWave < 0) {
		t.Errorf("%+v", o)
	}
}

// TestReencodeCaptures decodes every frame of four real sessions and writes
// each message again: the engine's envelopes and registrations, the frontend's
// requests. Same frames, same values, position by position.
func TestReencodeCaptures(t *testing.T) {
	for _, test := range []struct {
		name, line string
		messages   int
	}{
		{"0.27.1-edge-s1.jsonl.gz", "0.27", 369},
		{"0.27.1-multiturn-s7.jsonl.gz", "0.27", 1027},
		{"0.27.1-ngram-s7.jsonl.gz", "0.27", 922},
		{"0.33.0-multiturn-s7.jsonl.gz", "0.33", 948},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := codecOf(t, test.line)
			messages := testenv.Capture(t, test.name)
			require.True(t, len(messages) == test.messages, "%d messages, want %d", len(messages), test.messages)
			streams := map[string]*Stream{}
			for i, m := range messages {
				reencode(t, c, fmt.Sprintf("message %d", i), m, streams)
			}
		})
	}
}

func reencode(t *testing.T, c *Codec, where string, m testenv.Captured, streams map[string]*Stream) {
	t.Helper()
	payload := m.Frames[len(m.Frames)-1]
	switch {
	case m.Channel == "handshake" && m.Direction == "f2e":
		checkInit(t, payload)
	case m.Channel == "handshake":
		checkStatus(t, payload)
	case m.Channel == "input0" && m.Direction == "e2f":
		reencodeReady(t, c, where, payload)
	case m.Channel == "input0":
		reencodeInput(t, c, where, m.Frames, streams)
	case m.Channel == "output0":
		reencodeOutputs(t, c, where, m.Frames, streams)
	default:
		t.Fatalf("%s: channel %s", where, m.Channel)
	}
}

func reencodeReady(t *testing.T, c *Codec, where string, payload []byte) {
	t.Helper()
	r, err := DecodeReady(payload)
	require.NoErrorf(t, err, "%s", where)
	if again := c.AppendReady(nil, &r); string(again) != string(payload) {
		sameValue(t, c, "EngineCoreReadyResponse", where, payload, again)
		t.Errorf("%s: registration differs in bytes", where)
	}
}

func reencodeInput(t *testing.T, c *Codec, where string, frames [][]byte, streams map[string]*Stream) {
	t.Helper()
	switch frames[0][0] {
	case TypeAbort:
		checkAbort(t, frames[1])
	case TypeUtility:
		checkUtilityCall(t, frames[1])
	case TypeAdd:
		var r Request
		require.NoErrorf(t, c.DecodeRequest(frames[1], &r), "%s", where)
		streams[r.ID] = c.NewStream(&r)
		diffs, err := pack.Diff("EngineCoreRequest", frames[1], c.AppendRequest(nil, &r), pack.DiffOptions{
			Names: c.FieldName, Ignore: notWrittenByUs,
		})
		require.NoErrorf(t, err, "%s", where)
		for _, d := range diffs {
			t.Errorf("%s: %s: want %s, got %s", where, d.Path, d.Want, d.Got)
		}
	}
}

// notWrittenByUs lists what a load generator chose freely and a conformance
// request never sets: sampling knobs that no engine core has to answer for.
func notWrittenByUs(path string) bool {
	for _, key := range []string{
		"top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty",
		"logit_bias", "structured_outputs", "_all_stop_token_ids",
	} {
		if path == "EngineCoreRequest.sampling_params."+key {
			return true
		}
	}
	return strings.HasPrefix(path, "EngineCoreRequest.reasoning_parser_kwargs")
}
